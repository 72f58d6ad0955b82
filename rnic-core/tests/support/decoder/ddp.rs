//! Messages, made up of DDP segments: RFC 5041 section 5.

use super::findings::{Findings, Rule};
use super::half::{DdpState, Half, OpenMessage};
use super::headers::{Segment, Target, header_len};
use super::rdmap;

/// Reads the segment in a ULPDU. `end`: where its FPDU ends in the stream.
pub(super) fn read(
    speaker: &mut Half,
    listener: &mut Half,
    ulpdu: &[u8],
    end: u64,
    findings: &mut Findings<'_>,
) {
    let header = ulpdu
        .get(..ulpdu.first().map_or(0, |control| header_len(*control)))
        .unwrap_or_default();
    speaker.ddp.said.push((header.to_vec(), ulpdu.len()));
    let Some(segment) = Segment::parse(ulpdu, findings) else {
        return;
    };
    rdmap::check_opcode(&segment, findings);
    let before = check_message(&mut speaker.ddp, &segment, findings);
    rdmap::read(speaker, listener, &segment, before, end, findings);
}

/// Follows the message that the segment belongs to. Returns how many octets of it came before.
fn check_message(state: &mut DdpState, segment: &Segment<'_>, findings: &mut Findings<'_>) -> u64 {
    let len = segment.payload.len() as u64;
    let is_terminate = segment.opcode == rdmap::TERMINATE;
    // A Terminate takes the place of what is left of a message.
    let open = match state.open.take() {
        Some(_) if is_terminate => None,
        open => open,
    };
    let before = open.map_or(0, |open| open.length);
    match open {
        Some(open) => {
            findings.demand(len > 0, Rule::Message, || {
                "a segment of nothing goes on with a message".into()
            });
            continues(&open, segment, findings);
        }
        None => begins(state, segment, findings),
    }
    findings.demand(len > 0 || segment.last, Rule::Message, || {
        "a segment of nothing is not the last".into()
    });
    let length = before + len;
    findings.demand(length <= u32::MAX.into(), Rule::Message, || {
        "a message of more than 2^32 - 1 octets".into()
    });
    if segment.last {
        findings.heard.messages += 1;
        return before;
    }
    let mut next = segment.target;
    match &mut next {
        Target::Tagged { offset, .. } => *offset = offset.wrapping_add(len),
        Target::Untagged { offset, .. } => *offset = offset.wrapping_add(len as u32),
    }
    let opcode = segment.opcode;
    state.open = Some(OpenMessage {
        opcode,
        next,
        length,
    });
    before
}

fn begins(state: &mut DdpState, segment: &Segment<'_>, findings: &mut Findings<'_>) {
    match segment.target {
        Target::Tagged { offset, .. } => {
            let wraps = offset.checked_add(segment.payload.len() as u64).is_none();
            findings.demand(!wraps, Rule::TaggedOffset, || "TO wraps".into());
        }
        Target::Untagged {
            queue, msn, offset, ..
        } => {
            findings.demand(offset == 0, Rule::MessageOffset, || {
                format!("a message begins at {offset}")
            });
            let Some(begun) = state.begun.get_mut(queue as usize) else {
                // The opcode has no such queue.
                return;
            };
            *begun = begun.wrapping_add(1);
            findings.demand(msn == *begun, Rule::Msn, || {
                format!("message {msn} of queue {queue} where {begun} is next")
            });
        }
    }
}

fn continues(open: &OpenMessage, segment: &Segment<'_>, findings: &mut Findings<'_>) {
    let same = |findings: &mut Findings<'_>, holds, what: &str| {
        findings.demand(holds, Rule::Message, || {
            format!("{what} changes within a message: {segment:?} after {open:?}")
        });
    };
    same(findings, open.opcode == segment.opcode, "the opcode");
    match (open.next, segment.target) {
        (
            Target::Tagged { stag, offset },
            Target::Tagged {
                stag: own_stag,
                offset: own_offset,
            },
        ) => {
            same(findings, stag == own_stag, "the STag");
            let wraps = own_offset
                .checked_add(segment.payload.len() as u64)
                .is_none();
            findings.demand(offset == own_offset && !wraps, Rule::TaggedOffset, || {
                format!("TO {own_offset:#x} where {offset:#x} is next")
            });
        }
        (
            Target::Untagged {
                reserved,
                queue,
                msn,
                offset,
            },
            Target::Untagged {
                reserved: own_reserved,
                queue: own_queue,
                msn: own_msn,
                offset: own_offset,
            },
        ) => {
            same(findings, reserved == own_reserved, "RsvdULP");
            same(findings, queue == own_queue, "the queue");
            findings.demand(msn == own_msn, Rule::Msn, || {
                format!("MSN {own_msn} within message {msn}")
            });
            findings.demand(offset == own_offset, Rule::MessageOffset, || {
                format!("MO {own_offset} where {offset} is next")
            });
        }
        _ => same(findings, false, "the buffer model"),
    }
}
