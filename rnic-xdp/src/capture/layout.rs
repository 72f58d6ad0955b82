//! The layout of `ebpf/capture.h`: what the programs are told, and the records that they write
//! ahead of frames.

use std::net::IpAddr;

use rnic_manager::PoliceVerdict;
use zerocopy::{FromBytes, Immutable, KnownLayout};

use super::frame::{Direction, Frame};
use super::wanted::Wanted;

/// The most octets of a frame that are captured.
pub(super) const MAX_SNAP: u32 = 65_280;
/// Bits of the kinds.
const RECEIVED: u8 = 1;
const SENT: u8 = 2;
/// An action or verdict where no program has judged the frame.
const NOT_JUDGED: u8 = 255;
/// Values of the family.
const IPV4: u32 = 4;
const IPV6: u32 = 6;

/// `struct capture_wanted`.
pub(super) type WantedOctets = [u8; 52];

/// Why frames are lost.
pub(super) const LOSSES: u32 = 2;

/// Nobody captures.
pub(super) const NOTHING: WantedOctets = [0; 52];

/// `struct capture_record`.
#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Record {
    time: u64,
    len: u32,
    captured: u32,
    port: u32,
    to_port: u32,
    kind: u8,
    action: u8,
    verdict: u8,
    reserved: [u8; 5],
}

/// Returns what the programs are told.
pub(super) fn wanted(wanted: &Wanted) -> WantedOctets {
    let kinds = match wanted.direction {
        Some(Direction::Received) => RECEIVED,
        Some(Direction::Sent) => SENT,
        None => RECEIVED | SENT,
    };
    let (family, address, mask) = match wanted.peers.map(|peers| (peers.address, peers.bits)) {
        None => (0, [0; 16], [0; 16]),
        Some((IpAddr::V4(address), bits)) => {
            let mut octets = [0; 16];
            octets[..4].copy_from_slice(&address.octets());
            (IPV4, octets, mask(bits))
        }
        Some((IpAddr::V6(address), bits)) => (IPV6, address.octets(), mask(bits)),
    };
    let words = [
        kinds.into(),
        wanted.snap.min(MAX_SNAP),
        wanted.port.unwrap_or(0),
        wanted.tcp_port.map_or(0, u32::from),
        family,
    ];
    let mut octets = NOTHING;
    for (word, room) in words.iter().zip(octets.chunks_exact_mut(4)) {
        room.copy_from_slice(&word.to_ne_bytes());
    }
    octets[20..36].copy_from_slice(&address);
    octets[36..].copy_from_slice(&mask);
    octets
}

/// Returns a mask of this many bits.
fn mask(bits: u8) -> [u8; 16] {
    let mask = match bits {
        0 => 0,
        bits => u128::MAX << 128_u32.saturating_sub(bits.into()),
    };
    mask.to_be_bytes()
}

/// Reads an entry of a ring. Returns `None` if it is too short.
pub(super) fn frame(entry: &[u8]) -> Option<Frame> {
    let (record, octets) = Record::read_from_prefix(entry).ok()?;
    let is_client = |port: &u32| *port != 0;
    let verdict = (record.verdict != NOT_JUDGED).then_some(usize::from(record.verdict));
    Some(Frame {
        time: record.time,
        direction: match record.kind {
            RECEIVED => Direction::Received,
            _ => Direction::Sent,
        },
        port: Some(record.port).filter(is_client),
        to_port: Some(record.to_port).filter(is_client),
        action: Some(record.action).filter(|action| *action != NOT_JUDGED),
        verdict: verdict.and_then(|verdict| PoliceVerdict::ALL.get(verdict).copied()),
        len: record.len,
        octets: octets.get(..record.captured.try_into().ok()?)?.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::wanted::Peers;
    use super::*;
    use crate::capture::skeleton::types::{capture_record, capture_wanted};

    #[test]
    fn sizes_are_those_of_the_c_structures() {
        assert_eq!(size_of::<capture_wanted>(), size_of::<WantedOctets>());
        assert_eq!(size_of::<capture_record>(), size_of::<Record>());
    }

    #[test]
    fn filters_are_written_as_the_programs_read_them() {
        let all = wanted(&Wanted::default());
        assert_eq!(all[0], RECEIVED | SENT);
        assert_eq!(all[4..8], MAX_SNAP.to_ne_bytes());
        assert_eq!(all[8..], [0; 44]);
        let some = wanted(&Wanted {
            direction: Some(Direction::Sent),
            snap: 96,
            port: Some(3),
            tcp_port: Some(4420),
            peers: Some(Peers {
                address: "10.1.2.3".parse().unwrap(),
                bits: 9,
            }),
        });
        let words: Vec<_> = some[..20]
            .chunks_exact(4)
            .map(|word| u32::from_ne_bytes(word.try_into().unwrap()))
            .collect();
        assert_eq!(words, [u32::from(SENT), 96, 3, 4420, IPV4]);
        assert_eq!(some[20..25], [10, 1, 2, 3, 0]);
        assert_eq!(some[36..39], [255, 128, 0]);
        assert_eq!((mask(0), mask(128)), ([0; 16], [255; 16]));
    }

    #[test]
    fn what_is_behind_a_frame_is_not_a_part_of_it() {
        let mut entry = vec![0; size_of::<Record>() + 7];
        entry[0] = 5;
        entry[8..12].copy_from_slice(&90_u32.to_ne_bytes());
        entry[12..16].copy_from_slice(&3_u32.to_ne_bytes());
        entry[24..27].copy_from_slice(&[SENT, 1, 16]);
        entry[32..].copy_from_slice(b"abcdefg");
        let found = frame(&entry).unwrap();
        let expected = Frame {
            time: 5,
            direction: Direction::Sent,
            port: None,
            to_port: None,
            action: Some(1),
            verdict: Some(PoliceVerdict::Rate),
            len: 90,
            octets: b"abc".to_vec(),
        };
        assert_eq!(found, expected);
        assert_eq!(frame(&entry[..34]), None);
    }
}
