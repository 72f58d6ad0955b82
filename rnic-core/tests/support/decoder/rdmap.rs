//! RDMA messages: RFC 5040 sections 4 and 5, RFC 7306 sections 4 to 6.

use super::findings::{Findings, Rule};
use super::half::{Asked, Half, NOT_NEGOTIATED, Outstanding};
use super::headers::{READ_REQUEST_LEN, ReadRequest, Segment, Target, be};
use super::terminate;

const WRITE: u8 = 0;
const READ_REQUEST: u8 = 1;
const READ_RESPONSE: u8 = 2;
const SEND: u8 = 3;
const SEND_INVALIDATE: u8 = 4;
const SEND_SOLICITED: u8 = 5;
const SEND_SOLICITED_INVALIDATE: u8 = 6;
pub(super) const TERMINATE: u8 = 7;
const IMMEDIATE: u8 = 8;
const IMMEDIATE_SOLICITED: u8 = 9;
const ATOMIC_REQUEST: u8 = 10;
const ATOMIC_RESPONSE: u8 = 11;
/// Of connections with the semantics of RC: docs/design/rc.md.
const SEND_IMMEDIATE: u8 = 12;
const SEND_SOLICITED_IMMEDIATE: u8 = 13;
const CONTROL: u8 = 14;

const IMMEDIATE_LEN: usize = 8;
const ATOMIC_REQUEST_LEN: usize = 52;
const ATOMIC_RESPONSE_LEN: usize = 12;
const CONTROL_LEN: usize = 16;

/// Figure 4 of RFC 5040, figure 2 of RFC 7306: an opcode belongs to a tagged buffer, or to one
/// queue.
pub(super) fn check_opcode(segment: &Segment<'_>, findings: &mut Findings<'_>) {
    let wanted = match segment.opcode {
        WRITE | READ_RESPONSE => None,
        SEND
        | SEND_INVALIDATE
        | SEND_SOLICITED
        | SEND_SOLICITED_INVALIDATE
        | IMMEDIATE
        | IMMEDIATE_SOLICITED => Some(0),
        SEND_IMMEDIATE | SEND_SOLICITED_IMMEDIATE if findings.rc => Some(0),
        READ_REQUEST | ATOMIC_REQUEST => Some(1),
        TERMINATE => Some(2),
        ATOMIC_RESPONSE => Some(3),
        CONTROL if findings.rc => Some(4),
        other => return findings.object(Rule::Opcode, format!("opcode {other}")),
    };
    let queue = match segment.target {
        Target::Tagged { .. } => None,
        Target::Untagged {
            queue, reserved, ..
        } => {
            let used = matches!(
                segment.opcode,
                SEND_INVALIDATE
                    | SEND_SOLICITED_INVALIDATE
                    | SEND_IMMEDIATE
                    | SEND_SOLICITED_IMMEDIATE
            );
            findings.demand(used || reserved == 0, Rule::RdmapControl, || {
                format!("an Invalidate STag, {reserved:#x}, in {segment:?}")
            });
            Some(queue)
        }
    };
    findings.demand(queue == wanted, Rule::Opcode, || {
        let opcode = segment.opcode;
        format!("opcode {opcode} in queue {queue:?}, where {wanted:?} is its place")
    });
}

/// Reads a segment of a message, of which `before` octets were sent before.
pub(super) fn read(
    speaker: &mut Half,
    listener: &mut Half,
    segment: &Segment<'_>,
    before: u64,
    end: u64,
    findings: &mut Findings<'_>,
) {
    let payload = segment.payload;
    let one_segment = |len: usize, findings: &mut Findings<'_>| {
        let fits = segment.last && before == 0 && payload.len() == len;
        findings.demand(fits, Rule::MessageFormat, || {
            format!("{segment:?} is not one segment of {len} octets")
        });
        fits
    };
    match segment.opcode {
        READ_REQUEST if one_segment(READ_REQUEST_LEN, findings) => {
            if let Some(request) = ReadRequest::parse(payload)
                && let Target::Untagged { msn, .. } = segment.target
            {
                speaker.rdmap.reads.push((msn, request));
                ask(speaker, listener, Asked::Read(request), end, findings);
            }
        }
        ATOMIC_REQUEST if one_segment(ATOMIC_REQUEST_LEN, findings) => {
            check_atomic(payload, findings);
            let identifier = be(&payload[4..8]) as u32;
            let asked = Asked::Atomic { identifier };
            ask(speaker, listener, asked, end, findings);
        }
        IMMEDIATE | IMMEDIATE_SOLICITED => {
            one_segment(IMMEDIATE_LEN, findings);
        }
        READ_RESPONSE => check_response(speaker, listener, segment, before, end, findings),
        ATOMIC_RESPONSE if one_segment(ATOMIC_RESPONSE_LEN, findings) => {
            check_atomic_response(speaker, listener, payload, end, findings);
        }
        CONTROL if findings.rc && one_segment(CONTROL_LEN, findings) => {
            check_control(speaker, payload, findings);
        }
        TERMINATE => {
            findings.demand(segment.last && before == 0, Rule::MessageFormat, || {
                "a Terminate of several segments".into()
            });
            terminate::read(speaker, listener, payload, findings);
        }
        _ => {}
    }
}

/// Returns how many Reads a half may have outstanding: the other one's IRD (RFC 6581 section 9.1).
fn depth(speaker: &Half, listener: &Half) -> Option<usize> {
    let (own, theirs) = (speaker.startup?.enhanced?, listener.startup?.enhanced?);
    // The initiator's own request does not limit it: the Reply does.
    let own = if speaker.initiator {
        NOT_NEGOTIATED
    } else {
        own.ord
    };
    // That Read is taken, whatever the depth.
    let begins_by_read = speaker.initiator && theirs.peer_to_peer && theirs.ready[2];
    let least = own.min(theirs.ird).max(u16::from(begins_by_read));
    (least != NOT_NEGOTIATED).then_some(usize::from(least))
}

fn ask(speaker: &mut Half, listener: &Half, asked: Asked, end: u64, findings: &mut Findings<'_>) {
    let depth = depth(speaker, listener);
    let acknowledged = speaker.acknowledged;
    let state = &mut speaker.rdmap;
    state.waiting.push_back(Outstanding { asked, end });
    // A Response that is not acknowledged may not have arrived.
    state.answered.retain(|end| *end > acknowledged);
    let outstanding = state.waiting.len() + state.answered.len();
    if let Some(depth) = depth
        && !listener.wrong
    {
        findings.demand(outstanding <= depth, Rule::Depth, || {
            format!("{outstanding} Reads outstanding where the peer takes {depth}")
        });
    }
}

/// Returns the request that a Response is to, if the listener has one that the speaker has
/// received.
fn answered_request(speaker: &Half, listener: &Half, findings: &mut Findings<'_>) -> Option<Asked> {
    let request = listener.rdmap.waiting.front();
    let received = request.filter(|request| request.end <= speaker.acknowledged);
    // What the peer asked for is not certain any more.
    if received.is_none() && !listener.wrong {
        let what = format!("a Response where {request:?} is asked for");
        findings.object(Rule::Response, what);
    }
    received.map(|request| request.asked)
}

fn check_response(
    speaker: &Half,
    listener: &mut Half,
    segment: &Segment<'_>,
    before: u64,
    end: u64,
    findings: &mut Findings<'_>,
) {
    let asked = answered_request(speaker, listener, findings);
    let Some(asked) = asked else { return };
    let right = match (asked, segment.target) {
        (Asked::Read(request), Target::Tagged { stag, offset }) => {
            let place = (request.sink_stag, request.sink_offset.wrapping_add(before));
            let whole = before + segment.payload.len() as u64 == u64::from(request.length);
            let rest = u64::from(request.length).saturating_sub(before);
            (stag, offset) == place && segment.payload.len() as u64 <= rest && whole == segment.last
        }
        _ => false,
    };
    if !listener.wrong {
        findings.demand(right, Rule::Response, || {
            let (len, last) = (segment.payload.len(), segment.last);
            let target = segment.target;
            format!("{asked:x?}, after {before} octets: {len} to {target:x?}, last {last}")
        });
    }
    if segment.last {
        answer(listener, end, findings);
    }
}

fn check_atomic_response(
    speaker: &Half,
    listener: &mut Half,
    payload: &[u8],
    end: u64,
    findings: &mut Findings<'_>,
) {
    let identifier = be(&payload[..4]) as u32;
    let asked = answered_request(speaker, listener, findings);
    let Some(asked) = asked else { return };
    let right = matches!(asked, Asked::Atomic { identifier: own } if own == identifier);
    findings.demand(right || listener.wrong, Rule::Response, || {
        format!("identifier {identifier:#x} answers {asked:x?}")
    });
    answer(listener, end, findings);
}

fn answer(listener: &mut Half, end: u64, findings: &mut Findings<'_>) {
    listener.rdmap.waiting.pop_front();
    listener.rdmap.answered.push_back(end);
    findings.heard.responses += 1;
}

/// XOFFs count from 1, and each has one XON behind it at most. A receipt is for more than the one
/// before it, and for no more than has come.
fn check_control(speaker: &mut Half, payload: &[u8], findings: &mut Findings<'_>) {
    if be(&payload[..4]) == 0x0300_0000 {
        let (before, acknowledged) = (speaker.rdmap.receipt, speaker.acknowledged);
        let offset = be(&payload[8..]);
        findings.demand(
            offset > before && offset <= acknowledged,
            Rule::MessageFormat,
            || format!("a receipt for {offset} behind {before}, of {acknowledged} octets"),
        );
        speaker.rdmap.receipt = offset;
        return;
    }
    let (kind, count) = (be(&payload[..4]), be(&payload[4..8]));
    let (xoffs, stopped) = speaker.rdmap.xoffs;
    let right = match kind {
        0x0100_0000 => !stopped && count == xoffs + 1,
        0x0200_0000 => stopped && count == xoffs,
        _ => false,
    };
    findings.demand(
        right && be(&payload[12..]) == 0,
        Rule::MessageFormat,
        || format!("a Control message {payload:x?} behind {xoffs} XOFFs, the last open: {stopped}"),
    );
    speaker.rdmap.xoffs = (count, kind == 0x0100_0000);
    findings.heard.controls += 1;
}

/// RFC 7306 section 5.2.1.
fn check_atomic(payload: &[u8], findings: &mut Findings<'_>) {
    let code = be(&payload[..4]);
    let [compare, compare_mask] = [36, 44].map(|at| be(&payload[at..at + 8]));
    let mut format = |holds, what: &str| {
        findings.demand(holds, Rule::MessageFormat, || {
            format!("an Atomic Request: {what}")
        });
    };
    format(matches!(code, 0 | 2), "reserved bits, or an unknown code");
    if code == 0 {
        let unused = (compare, compare_mask) == (0, u64::MAX);
        format(unused, "Compare fields of a FetchAdd");
    }
}
