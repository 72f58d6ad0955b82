//! Headers of DDP and of RDMAP: RFC 5041 section 4, RFC 5040 section 4.

use super::findings::{Findings, Rule};

const TAGGED_LEN: usize = 14;
const UNTAGGED_LEN: usize = 18;
pub(super) const READ_REQUEST_LEN: usize = 28;

/// The octets of a DDP header, as far as they are there.
pub(super) fn header_len(control: u8) -> usize {
    if control & 0x80 != 0 {
        TAGGED_LEN
    } else {
        UNTAGGED_LEN
    }
}

/// A number in network order.
pub(super) fn be(octets: &[u8]) -> u64 {
    octets
        .iter()
        .fold(0, |value, octet| value << 8 | u64::from(*octet))
}

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

impl<'a> Segment<'a> {
    /// Reads the header in front of a ULPDU.
    pub(super) fn parse(ulpdu: &'a [u8], findings: &mut Findings<'_>) -> Option<Self> {
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
        let be32 = |at: usize| be(&header[at..at + 4]) as u32;
        let target = if len == TAGGED_LEN {
            Target::Tagged {
                stag: be32(2),
                offset: be(&header[6..14]),
            }
        } else {
            Target::Untagged {
                reserved: be32(2),
                queue: be32(6),
                msn: be32(10),
                offset: be32(14),
            }
        };
        Some(Self {
            last: ddp & 0x40 != 0,
            opcode: rdmap & 0x0f,
            target,
            payload,
        })
    }
}

/// A Read Request (RFC 5040 figure 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadRequest {
    pub(super) sink_stag: u32,
    pub(super) sink_offset: u64,
    pub(super) length: u32,
    pub(super) source_stag: u32,
    pub(super) source_offset: u64,
}

impl ReadRequest {
    pub(super) fn parse(octets: &[u8]) -> Option<Self> {
        let octets: &[u8; READ_REQUEST_LEN] = octets.try_into().ok()?;
        Some(Self {
            sink_stag: be(&octets[..4]) as u32,
            sink_offset: be(&octets[4..12]),
            length: be(&octets[12..16]) as u32,
            source_stag: be(&octets[16..20]) as u32,
            source_offset: be(&octets[20..]),
        })
    }
}
