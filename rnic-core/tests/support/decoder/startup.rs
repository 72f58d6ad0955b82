//! Start-up frames: RFC 5044 section 7.1 and RFC 6581.

use super::findings::{Findings, Rule};
use super::half::{Enhanced, Half, NOT_NEGOTIATED, Startup};

const REQUEST_KEY: &[u8; 16] = b"MPA ID Req Frame";
const REPLY_KEY: &[u8; 16] = b"MPA ID Rep Frame";
const HEADER_LEN: usize = 20;
const MAX_PRIVATE_DATA: usize = 512;

/// Reads the start-up frame, once it is whole.
pub(super) fn read(speaker: &mut Half, listener: &Half, findings: &mut Findings<'_>) -> bool {
    let initiator = speaker.initiator;
    let octets = speaker.stream.octets();
    let Some(header) = octets.first_chunk::<HEADER_LEN>() else {
        return false;
    };
    let key = if initiator { REQUEST_KEY } else { REPLY_KEY };
    if &header[..16] != key {
        // Whatever this is, it is no MPA.
        if speaker.read == 0 {
            findings.object(Rule::StartupFrame, "another key");
        }
        speaker.read = octets.len() as u64;
        return false;
    }
    let [flags, revision] = [header[16], header[17]];
    let private_len = usize::from(u16::from_be_bytes([header[18], header[19]]));
    let Some(private_data) = octets.get(HEADER_LEN..HEADER_LEN + private_len) else {
        return false;
    };
    let bit = |mask: u8| flags & mask != 0;
    let enhanced = (bit(0x10) && revision >= 2)
        .then(|| private_data.first_chunk::<4>())
        .flatten()
        .map(|data| {
            let (first, second) = (
                u16::from_be_bytes([data[0], data[1]]),
                u16::from_be_bytes([data[2], data[3]]),
            );
            Enhanced {
                peer_to_peer: first & 0x8000 != 0,
                ready: [
                    first & 0x4000 != 0,
                    second & 0x8000 != 0,
                    second & 0x4000 != 0,
                ],
                ird: first & 0x3fff,
                ord: second & 0x3fff,
            }
        });
    let startup = Startup {
        markers: bit(0x80),
        crc: bit(0x40),
        reject: bit(0x20),
        revision,
        enhanced,
        len: (HEADER_LEN + private_len) as u64,
    };
    let reserved = if revision == 1 { 0x1f } else { 0x0f };
    let frame = |findings: &mut Findings<'_>, holds, what: &str| {
        findings.demand(holds, Rule::StartupFrame, || what.into());
    };
    frame(findings, flags & reserved == 0, "reserved bits");
    frame(findings, matches!(revision, 1 | 2), "the revision");
    frame(
        findings,
        private_len <= MAX_PRIVATE_DATA,
        "too many private data",
    );
    frame(
        findings,
        !bit(0x10) || revision < 2 || enhanced.is_some(),
        "S, but no data",
    );
    frame(
        findings,
        !(initiator && startup.reject),
        "a Request that rejects",
    );
    let agreed = enhanced.is_none_or(|data| data.peer_to_peer || data.ready == [false; 3]);
    frame(findings, agreed, "B, C or D without A");
    if !initiator {
        check_reply(&startup, speaker.acknowledged, listener, findings);
    }
    findings.heard.startups += 1;
    speaker.read = startup.len;
    speaker.startup = Some(startup);
    true
}

/// Checks that the Reply fits the Request.
fn check_reply(reply: &Startup, acknowledged: u64, initiator: &Half, findings: &mut Findings<'_>) {
    let Some(request) = initiator.startup else {
        if !initiator.wrong {
            findings.object(Rule::StartupOrder, "a Reply to no Request");
        }
        return;
    };
    let heard = acknowledged >= request.len;
    findings.demand(heard, Rule::StartupOrder, || {
        "a Reply before the Request was received".into()
    });
    let mut agreement = |holds, what: &str| {
        findings.demand(holds, Rule::StartupAgreement, || {
            format!("{what}: {request:?} was answered by {reply:?}")
        });
    };
    agreement(reply.revision == request.revision, "the revision");
    let (Some(asked), Some(answered)) = (request.enhanced, reply.enhanced) else {
        let same = request.enhanced.is_some() == reply.enhanced.is_some();
        return agreement(same, "S");
    };
    agreement(asked.peer_to_peer == answered.peer_to_peer, "A");
    agreement(
        !answered.peer_to_peer || answered.ready != [false; 3],
        "no way to begin",
    );
    if reply.reject {
        return;
    }
    if asked.ird == NOT_NEGOTIATED {
        agreement(answered.ord == NOT_NEGOTIATED, "ORD is not negotiated");
    } else {
        let fits = answered.ord == NOT_NEGOTIATED || answered.ord <= asked.ird;
        agreement(fits, "ORD above IRD");
    }
    if asked.ord == NOT_NEGOTIATED {
        agreement(answered.ird == NOT_NEGOTIATED, "IRD is not negotiated");
    }
}

/// Returns whether a half may send FPDUs at all, and what its first one may be. `kind`: which way
/// to begin the first FPDU is (Send, Write, Read without octets), if any.
pub(super) fn check_fpdu(
    speaker: &Half,
    listener: &Half,
    is_terminate: bool,
    kind: Option<usize>,
    findings: &mut Findings<'_>,
) {
    let order = Rule::StartupOrder;
    let rejected = |half: &Half| half.startup.is_some_and(|startup| startup.reject);
    findings.demand(!rejected(speaker) && !rejected(listener), order, || {
        "an FPDU after a Reply that rejects".into()
    });
    let Some(theirs) = listener.startup else {
        return;
    };
    if speaker.mpa.fpdus > 0 {
        return;
    }
    if speaker.initiator {
        findings.demand(speaker.acknowledged >= theirs.len, order, || {
            "an FPDU before the Reply was received".into()
        });
        if let Some(Enhanced {
            peer_to_peer: true,
            ready,
            ..
        }) = theirs.enhanced
        {
            let agreed = is_terminate || kind.is_some_and(|kind| ready[kind]);
            findings.demand(agreed, order, || format!("begins by {kind:?} of {ready:?}"));
        }
    } else if !listener.wrong {
        let first = listener.mpa.first_end;
        let whole = first.is_some_and(|end| speaker.acknowledged >= end);
        // What was received may have been no FPDU: then the Terminate says so.
        let heard = whole || (is_terminate && speaker.acknowledged > theirs.len);
        findings.demand(heard, order, || {
            "the responder's FPDU before the initiator's first was received".into()
        });
    }
}
