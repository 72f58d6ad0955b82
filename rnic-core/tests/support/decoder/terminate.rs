//! The Terminate message: RFC 5040 section 4.8, with the codes of RFC 5041 section 7.2, RFC 5044
//! section 8 and RFC 6581 section 8.

use super::findings::{Findings, Rule};
use super::half::Half;
use super::headers::{READ_REQUEST_LEN, ReadRequest, header_len};

const CONTROL_LEN: usize = 4;
const SEGMENT_LENGTH_LEN: usize = 2;

/// What may go along with an error: RFC 5040 figure 10.
fn may_quote(layer: u8, error_type: u8) -> (bool, bool) {
    match (layer, error_type) {
        // An error in a Read Request, of either type.
        (0, 1 | 2) => (true, true),
        (1, 1 | 2) => (true, false),
        _ => (false, false),
    }
}

/// The errors that have numbers, apart from those that no Terminate can tell.
pub(crate) fn is_known(layer: u8, error_type: u8, code: u8) -> bool {
    match (layer, error_type) {
        // Any code.
        (0, 0) => true,
        (0, 1) => matches!(code, 0..=4 | 9 | 0xff),
        (0, 2) => matches!(code, 5..=9 | 0xff),
        (1, 0) => code == 0,
        (1, 1) => matches!(code, 0..=4),
        (1, 2) => matches!(code, 1..=6),
        // 1 is a connection that was lost, 4 a start-up frame that is wrong: there the connection
        // is closed.
        (2, 0) => matches!(code, 2 | 3 | 5..=7),
        _ => false,
    }
}

/// Reads a Terminate and compares what it quotes with what the peer has said.
pub(super) fn read(
    speaker: &mut Half,
    listener: &Half,
    payload: &[u8],
    findings: &mut Findings<'_>,
) {
    speaker.terminated = true;
    findings.heard.terminates += 1;
    let Some((control, rest)) = payload.split_first_chunk::<CONTROL_LEN>() else {
        return findings.object(Rule::Terminate, format!("{} octets", payload.len()));
    };
    let (layer, error_type, code) = (control[0] >> 4, control[0] & 15, control[1]);
    let [has_length, has_header, has_request] = [0x80, 0x40, 0x20].map(|bit| control[2] & bit != 0);
    let mut format = |holds, what: &str| {
        findings.demand(holds, Rule::Terminate, || {
            format!("{what}: {layer}/{error_type}/{code:02x}, {payload:02x?}")
        });
    };
    format(is_known(layer, error_type, code), "no such error");
    format(control[2] & 0x1f == 0 && control[3] == 0, "reserved bits");
    let (may_header, may_request) = may_quote(layer, error_type);
    format(may_header || !has_header, "quotes a DDP header");
    format(may_request || !has_request, "quotes an RDMA header");
    format(has_length == has_header, "M without D, or D without M");
    if !has_header {
        format(rest.is_empty() && !has_request, "quotes without D");
        return;
    }
    let Some((length, rest)) = rest.split_first_chunk::<SEGMENT_LENGTH_LEN>() else {
        return format(false, "cut short");
    };
    let header = rest.first().map_or(0, |control| header_len(*control));
    let Some((header, rest)) = rest.split_at_checked(header).filter(|(h, _)| !h.is_empty()) else {
        return format(false, "cut short");
    };
    let request_len = if has_request { READ_REQUEST_LEN } else { 0 };
    format(rest.len() == request_len, "another length");
    // An RDMA header is that of a Read Request.
    format(
        !has_request || header[1] & 15 == 1,
        "an RDMA header of another message",
    );
    if listener.stream.ambiguous {
        return;
    }
    let length = usize::from(u16::from_be_bytes(*length));
    findings.demand(
        listener.ddp.has_said(header, length),
        Rule::TerminateQuote,
        || format!("the peer sent no {length} octets with the header {header:02x?}"),
    );
    if let Some(request) = ReadRequest::parse(rest) {
        let known = listener.rdmap.reads.iter();
        // The header is that of an untagged segment.
        let quoted = known.filter(|(msn, _)| header[10..14] == msn.to_be_bytes());
        let right = quoted.clone().any(|(_, asked)| is_rest(&request, asked));
        findings.demand(right, Rule::TerminateQuote, || {
            format!("no Read Request of the peer is {request:x?}")
        });
    }
}

/// Returns whether a quoted Read Request is what is left of one that was sent.
fn is_rest(quoted: &ReadRequest, asked: &ReadRequest) -> bool {
    let Some(done) = asked.length.checked_sub(quoted.length).map(u64::from) else {
        return false;
    };
    *quoted
        == ReadRequest {
            length: quoted.length,
            sink_offset: asked.sink_offset.wrapping_add(done),
            source_offset: asked.source_offset.wrapping_add(done),
            ..*asked
        }
}
