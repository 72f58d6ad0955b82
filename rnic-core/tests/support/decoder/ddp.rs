//! DDP segments and the messages that they make up: RFC 5041 sections 4 and 5.

use super::{Findings, Half, Rule, rdmap};

const TAGGED_LEN: usize = 14;
const UNTAGGED_LEN: usize = 18;

/// Queues that RDMAP uses: Sends, Read Requests, Terminates, Atomic Responses.
const QUEUES: usize = 4;

/// Where a segment goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Tagged {
        stag: u32,
        offset: u64,
    },
    Untagged {
        /// Octets 2 to 5: Invalidate STag, or nothing.
        reserved: u32,
        queue: u32,
        msn: u32,
        offset: u32,
    },
}

/// A DDP segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment<'a> {
    pub(super) last: bool,
    pub(super) opcode: u8,
    pub(super) target: Target,
    pub(super) payload: &'a [u8],
}

/// A message whose last segment has not come.
#[derive(Clone, Copy, Debug)]
struct Open {
    opcode: u8,
    /// What the next segment is to say.
    next: Target,
    length: u64,
}

/// What there was so far.
#[derive(Default)]
pub(super) struct State {
    /// Messages begun in each queue.
    begun: [u32; QUEUES],
    open: Option<Open>,
    /// Header and length of each segment.
    said: Vec<(Vec<u8>, usize)>,
}

impl State {
    /// Whether a segment with this header and of this length was sent.
    pub(super) fn has_said(&self, header: &[u8], len: usize) -> bool {
        self.said
            .iter()
            .rev()
            .any(|(said, said_len)| said == header && *said_len == len)
    }
}

/// The octets of a DDP header, as far as they are there.
pub(super) fn header_len(control: u8) -> usize {
    if control & 0x80 != 0 {
        TAGGED_LEN
    } else {
        UNTAGGED_LEN
    }
}

fn be32(octets: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([octets[at], octets[at + 1], octets[at + 2], octets[at + 3]])
}

fn parse<'a>(ulpdu: &'a [u8], findings: &mut Findings<'_>) -> Option<Segment<'a>> {
    let len = ulpdu
        .first()
        .map_or(TAGGED_LEN, |control| header_len(*control));
    let Some((header, payload)) = ulpdu.split_at_checked(len) else {
        let what = format!("a ULPDU of {} octets has no DDP header", ulpdu.len());
        findings.object(Rule::FpduLength, what);
        return None;
    };
    let (ddp, rdmap) = (header[0], header[1]);
    findings.demand(ddp & 0x3c == 0, Rule::DdpControl, || {
        format!("reserved bits in {ddp:#04x}")
    });
    findings.demand(ddp & 0x03 == 1, Rule::DdpControl, || {
        format!("version {}", ddp & 3)
    });
    findings.demand(rdmap & 0x30 == 0, Rule::RdmapControl, || {
        format!("reserved bits in {rdmap:#04x}")
    });
    findings.demand(rdmap >> 6 == 1, Rule::RdmapControl, || {
        format!("version {}", rdmap >> 6)
    });
    let target = if len == TAGGED_LEN {
        Target::Tagged {
            stag: be32(header, 2),
            offset: u64::from(be32(header, 6)) << 32 | u64::from(be32(header, 10)),
        }
    } else {
        Target::Untagged {
            reserved: be32(header, 2),
            queue: be32(header, 6),
            msn: be32(header, 10),
            offset: be32(header, 14),
        }
    };
    Some(Segment {
        last: ddp & 0x40 != 0,
        opcode: rdmap & 0x0f,
        target,
        payload,
    })
}

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
    let Some(segment) = parse(ulpdu, findings) else {
        return;
    };
    rdmap::check_opcode(&segment, findings);
    let before = check_message(&mut speaker.ddp, &segment, findings);
    rdmap::read(speaker, listener, &segment, before, end, findings);
}

/// Follows the message that the segment belongs to. Returns how many octets of it came before.
fn check_message(state: &mut State, segment: &Segment<'_>, findings: &mut Findings<'_>) -> u64 {
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
    state.open = Some(Open {
        opcode,
        next,
        length,
    });
    before
}

fn begins(state: &mut State, segment: &Segment<'_>, findings: &mut Findings<'_>) {
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

fn continues(open: &Open, segment: &Segment<'_>, findings: &mut Findings<'_>) {
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
