//! Segments, octet by octet.

use rnic_core::wire::ddp::{
    DdpHeader, DdpSegment, MessageOffset, Msn, QueueNumber, Stag, TaggedHeader, TaggedOffset,
    UntaggedHeader,
};
use rnic_core::wire::rdmap::{Control, Opcode};

/// Octets of one segment as they stand in an FPDU.
pub(crate) type Ulpdu = Vec<u8>;

/// The header of a segment.
pub(crate) fn header(ulpdu: &[u8]) -> DdpHeader {
    DdpSegment::parse(ulpdu).unwrap().header
}

/// The payload of a segment.
pub(crate) fn payload(ulpdu: &[u8]) -> &[u8] {
    DdpSegment::parse(ulpdu).unwrap().payload
}

pub(crate) fn ulp(opcode: Opcode) -> u8 {
    Control::new(opcode).into()
}

/// A segment to a tagged buffer.
pub(crate) fn tagged(opcode: Opcode, last: bool, stag: Stag, offset: u64, payload: &[u8]) -> Ulpdu {
    let header = TaggedHeader {
        last,
        ulp: ulp(opcode),
        stag,
        offset: TaggedOffset(offset),
    };
    segment(DdpHeader::Tagged(header), payload)
}

/// A segment to a queue.
pub(crate) fn untagged(
    opcode: Opcode,
    last: bool,
    queue: QueueNumber,
    msn: u32,
    offset: u32,
    payload: &[u8],
) -> Ulpdu {
    let header = UntaggedHeader {
        last,
        ulp: ulp(opcode),
        ulp32: 0,
        queue,
        msn: Msn(msn),
        offset: MessageOffset(offset),
    };
    segment(DdpHeader::Untagged(header), payload)
}

/// A Send in one segment.
pub(crate) fn send(msn: u32, payload: &[u8]) -> Ulpdu {
    untagged(Opcode::Send, true, QueueNumber::SEND, msn, 0, payload)
}

pub(crate) fn segment(header: DdpHeader, payload: &[u8]) -> Ulpdu {
    let mut ulpdu = vec![0; header.len()];
    header.emit(&mut ulpdu);
    ulpdu.extend_from_slice(payload);
    ulpdu
}

/// Octets that differ from place to place.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}
