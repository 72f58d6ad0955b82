use proptest::prelude::*;

use crate::wire::crc::{RESIDUE, crc, to_wire};
use crate::wire::ddp::{DdpHeader, MessageOffset, Msn, QueueNumber, UntaggedHeader};
use crate::wire::fpdu_template::FpduTemplate;

use super::segment_template::any_header;

fn fpdu(header: &DdpHeader, payload: &[u8]) -> Vec<u8> {
    let ulpdu_len = header.len() + payload.len();
    let mut fpdu = (ulpdu_len as u16).to_be_bytes().to_vec();
    fpdu.resize(2 + header.len(), 0);
    header.emit(&mut fpdu[2..]);
    fpdu.extend(payload);
    fpdu.resize(fpdu.len().next_multiple_of(4), 0);
    fpdu.extend(to_wire(crc(&fpdu)));
    fpdu
}

/// The header of the segment that follows, behind so many octets.
fn behind(header: &DdpHeader, octets: usize) -> DdpHeader {
    header.at(header.position() + octets as u64)
}

proptest! {
    #[test]
    fn fpdus_that_follow_each_other_are_read_from_a_stream(
        header in any_header(), payload in proptest::collection::vec(any::<u8>(), 1..900), more: bool,
    ) {
        let mut template = FpduTemplate::behind(&fpdu(&header, &payload)).unwrap();
        let mut next = header;
        for _ in 0..3 {
            next = behind(&next, payload.len());
            prop_assert_eq!(template.header(), next);
            let mut octets = fpdu(&next, &payload);
            prop_assert_eq!(template.read(&octets[..octets.len() - 1]), None);
            let fpdu = octets.clone();
            octets.resize(octets.len() + if more { 100 } else { 0 }, 7);
            prop_assert_eq!(template.read(&octets), Some((&fpdu[..], &payload[..])));
            template.advance();
            prop_assert_eq!(template.read(&octets), None);
        }
    }

    /// What is wrong about an FPDU shows, if only in the CRC.
    #[test]
    fn an_fpdu_with_changed_octets_is_not_read(
        header in any_header(), payload in proptest::collection::vec(any::<u8>(), 1..900),
        at: proptest::sample::Index, bits in 1..=255_u8, in_headers: bool,
    ) {
        let template = FpduTemplate::behind(&fpdu(&header, &payload)).unwrap();
        let mut octets = fpdu(&behind(&header, payload.len()), &payload);
        let headers_len = 2 + header.len();
        let at = at.index(if in_headers { headers_len } else { octets.len() });
        octets[at] ^= bits;
        let read = template.read(&octets);
        prop_assert!(at >= headers_len || read.is_none());
        prop_assert!(read.is_none_or(|(fpdu, _)| crc(fpdu) != RESIDUE));
    }
}

#[test]
fn nothing_is_expected_behind_the_last_segment_or_an_empty_or_cut_one() {
    let header = |last| {
        DdpHeader::Untagged(UntaggedHeader {
            last,
            ulp: 0x43,
            ulp32: 0,
            queue: QueueNumber::SEND,
            msn: Msn::FIRST,
            offset: MessageOffset(0),
        })
    };
    let whole = fpdu(&header(false), &[1; 9]);
    assert!(FpduTemplate::behind(&whole).is_some());
    assert!(FpduTemplate::behind(&fpdu(&header(true), &[1; 9])).is_none());
    assert!(FpduTemplate::behind(&fpdu(&header(false), &[])).is_none());
    for len in 0..whole.len() {
        assert!(FpduTemplate::behind(&whole[..len]).is_none(), "{len}");
    }
}
