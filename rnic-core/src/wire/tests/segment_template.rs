use core::net::IpAddr;

use proptest::prelude::*;

use crate::wire::{
    crc::{RESIDUE, crc, to_wire},
    ddp::{
        DdpHeader, MessageOffset, Msn, QueueNumber, Stag, TaggedHeader, TaggedOffset,
        UntaggedHeader,
    },
    ethernet::MacAddr,
    packet::{Checksums, parse},
    prediction::Prediction,
    segment_template::{Coalescable, SegmentTemplate},
    tcp::{Flags, Seq, TcpHeader, TcpOptions, Timestamps},
    template::NetHeader,
};

use super::packet::{any_addresses, build};

/// A segment of a message in a frame of its own.
#[derive(Clone, Debug)]
struct Segment {
    addresses: (IpAddr, IpAddr),
    vlan: Option<u16>,
    tcp: TcpHeader,
    ddp: DdpHeader,
    payload: Vec<u8>,
}

prop_compose! {
    fn tagged()(ulp: u8, stag: u32, offset in 0..u64::MAX - 9000) -> DdpHeader {
        DdpHeader::Tagged(TaggedHeader { last: false, ulp, stag: Stag(stag), offset: TaggedOffset(offset) })
    }
}

prop_compose! {
    fn untagged()(ulp: u8, ulp32: u32, queue: u32, msn: u32, offset in 0..u32::MAX - 9000) -> DdpHeader {
        DdpHeader::Untagged(UntaggedHeader {
            last: false,
            ulp,
            ulp32,
            queue: QueueNumber(queue),
            msn: Msn(msn),
            offset: MessageOffset(offset),
        })
    }
}

/// A header of either kind, of a segment that is not the last of its message.
pub(super) fn any_header() -> impl Strategy<Value = DdpHeader> {
    prop_oneof![tagged(), untagged()]
}

fn segment() -> impl Strategy<Value = Segment> {
    segment_with(any_header())
}

prop_compose! {
    fn segment_with(ddp: impl Strategy<Value = DdpHeader>)(
        ddp in ddp,
        addresses in any_addresses(),
        vlan in proptest::option::of(1..4096_u16), numbers: (u32, u32), window: u16, push: bool, stamps: Option<(u32, u32)>,
        payload in proptest::collection::vec(any::<u8>(), 40..900),
    ) -> Segment {
        let push = if push { Flags::PSH } else { Flags::NONE };
        let timestamps = stamps.map(|(value, echo)| Timestamps { value, echo });
        let tcp = TcpHeader {
            source_port: 1,
            destination_port: 2,
            seq: Seq(numbers.0),
            ack: Seq(numbers.1),
            flags: Flags::ACK | push,
            window,
            urgent: 0,
            options: TcpOptions { timestamps, ..TcpOptions::default() },
        };
        Segment { addresses, vlan, tcp, ddp, payload }
    }
}

impl Segment {
    fn fpdu(&self) -> Vec<u8> {
        let ulpdu_len = self.ddp.len() + self.payload.len();
        let mut fpdu = (ulpdu_len as u16).to_be_bytes().to_vec();
        fpdu.resize(2 + self.ddp.len(), 0);
        self.ddp.emit(&mut fpdu[2..]);
        fpdu.extend(&self.payload);
        fpdu.resize(fpdu.len().next_multiple_of(4), 0);
        let check = to_wire(crc(&fpdu));
        fpdu.extend(check);
        fpdu
    }

    fn frame(&self) -> Vec<u8> {
        let net = NetHeader {
            source_mac: MacAddr([2, 0, 0, 0, 0, 1]),
            destination_mac: MacAddr([2, 0, 0, 0, 0, 2]),
            vlan: self.vlan,
            source: self.addresses.0,
            destination: self.addresses.1,
            hop_limit: 64,
            traffic_class: 0,
        };
        build(&net, &self.tcp, &self.fpdu())
    }

    /// The segment behind it.
    fn next(&self) -> Self {
        let mut next = self.clone();
        next.tcp.seq = self.tcp.seq + self.fpdu().len() as u32;
        next.advance(self.payload.len() as u32);
        next.payload.reverse();
        next
    }

    fn advance(&mut self, octets: u32) {
        match &mut self.ddp {
            DdpHeader::Tagged(header) => header.offset.0 += u64::from(octets),
            DdpHeader::Untagged(header) => header.offset.0 += octets,
        }
    }

    fn is_tagged(&self) -> bool {
        matches!(self.ddp, DdpHeader::Tagged(_))
    }

    /// The same segment as the last one of its message.
    fn last(mut self) -> Self {
        match &mut self.ddp {
            DdpHeader::Tagged(header) => header.last = true,
            DdpHeader::Untagged(header) => header.last = true,
        }
        self
    }

    /// Changes one field of DDP's header, but for L and the offset.
    fn change(&mut self, which: u32, delta: u32) {
        match &mut self.ddp {
            DdpHeader::Tagged(header) if which == 0 => header.ulp ^= delta as u8 | 1,
            DdpHeader::Tagged(header) => header.stag.0 ^= delta,
            DdpHeader::Untagged(header) => match which {
                0 => header.ulp ^= delta as u8 | 1,
                1 => header.ulp32 ^= delta,
                2 => header.queue.0 ^= delta,
                _ => header.msn.0 ^= delta,
            },
        }
    }

    /// What a frame with it makes expect.
    fn template_of_crcs(&self, crcs: bool) -> Option<SegmentTemplate> {
        let frame = self.frame();
        let packet = parse(&frame, Checksums::None).unwrap();
        let prediction = Prediction::like(&frame, &packet, crcs).unwrap();
        let expected = prediction.parse(&frame, Checksums::None).unwrap();
        SegmentTemplate::behind(&prediction, &frame, &expected)
    }

    fn template(&self) -> SegmentTemplate {
        self.template_of_crcs(true).unwrap()
    }
}

const ALL: [Checksums; 2] = [Checksums::None, Checksums::Unnecessary];

/// What a template reads of a frame: the same on both ways, where there are two.
fn read<'a>(
    template: &SegmentTemplate,
    frame: &'a [u8],
    checksums: Checksums,
) -> Option<Coalescable<'a>> {
    let next = template.read(frame, checksums);
    let usual = next.filter(|_| template.is_usual());
    assert_eq!(template.read_usual(frame, checksums), usual);
    next
}

proptest! {
    #[test]
    fn segments_that_follow_each_other_are_read(mut segment in segment(), id: u16) {
        let mut template = segment.template();
        for _ in 0..4 {
            segment = segment.next();
            let mut frame = segment.frame();
            let next = Coalescable { crc: RESIDUE, payload: &segment.payload };
            for checksums in ALL {
                prop_assert_eq!(read(&template, &frame, checksums), Some(next));
            }
            let total = crate::wire::checksum::sum(&frame);
            prop_assert_eq!(read(&template, &frame, Checksums::Complete(total)), Some(next));
            // IP's identification may be any, and then its checksum is another.
            if segment.addresses.0.is_ipv4() {
                let ip_at = if segment.vlan.is_some() { 18 } else { 14 };
                frame[ip_at + 4..ip_at + 6].copy_from_slice(&id.to_be_bytes());
                frame[ip_at + 10..ip_at + 12].fill(0);
                let check = !crate::wire::checksum::sum(&frame[ip_at..ip_at + 20]);
                frame[ip_at + 10..ip_at + 12].copy_from_slice(&check.to_be_bytes());
                prop_assert_eq!(read(&template, &frame, Checksums::None), Some(next));
            }
            template.advance();
        }
    }

    /// What is wrong about a frame shows, if only in the CRC.
    #[test]
    fn a_frame_with_changed_octets_is_not_read(
        segment in segment(), at: proptest::sample::Index, bits in 1..=255_u8, front: bool,
    ) {
        let template = segment.template();
        let mut frame = segment.next().frame();
        let at = at.index(if front { 110 } else { frame.len() });
        frame[at] ^= bits;
        prop_assert_eq!(read(&template, &frame, Checksums::None), None);
        if let Some(next) = read(&template, &frame, Checksums::Unnecessary) {
            let unread = parse(&frame, Checksums::Unnecessary).unwrap();
            prop_assert_eq!((unread.segment.header, unread.ecn), (segment.next().tcp, 0));
            prop_assert!(next.crc != RESIDUE || next.payload == segment.next().payload);
        }
        // Not even where another message is expected to begin.
        if let Some(turned) = template.turned_to(&frame) {
            prop_assert_eq!(read(&turned, &frame, Checksums::None), None);
        }
        // And where the device gives the sum of the frame (CHECKSUM_COMPLETE).
        let total = crate::wire::checksum::sum(&frame);
        prop_assert_eq!(read(&template, &frame, Checksums::Complete(total)), None);
    }

    /// Right in itself, but another. It may be that of another message, if that is expected.
    #[test]
    fn another_segment_is_not_read(
        segment in segment(), what in 0..12, field in 0..4_u32, delta in 1..1000_u32,
    ) {
        let template = segment.template();
        let mut next = segment.next();
        let header = &mut next.tcp;
        match what {
            0 => header.seq += delta,
            1 => header.ack += delta,
            2 => header.window = header.window.wrapping_add(delta as u16),
            3 => header.flags = Flags(header.flags.0 ^ Flags::PSH.0),
            4 => header.flags |= Flags::FIN,
            5 => header.options.timestamps = match header.options.timestamps {
                Some(stamps) => Some(Timestamps { value: stamps.value.wrapping_add(delta), ..stamps }),
                None => Some(Timestamps { value: 1, echo: 2 }),
            },
            6 => next = next.last(),
            7 | 8 => next.change(field, delta),
            9 => next.advance(delta),
            10 => next.payload.truncate(39),
            _ => next.payload.extend(vec![0; delta as usize]),
        }
        let frame = next.frame();
        let turned = template.turned_to(&frame);
        let may_turn = segment.is_tagged() && matches!(what, 3 | 6 | 9 | 10 | 11);
        for checksums in ALL {
            prop_assert!(read(&template, &frame, checksums).is_none());
            let turned = turned.as_ref().and_then(|turned| read(turned, &frame, checksums));
            prop_assert_eq!(turned.is_some(), may_turn, "{:?}", what);
        }
    }

    // rfc: 5041-33 the STag is the same in all segments of a message
    #[test]
    fn a_message_may_end_and_another_begin(
        segment in segment_with(tagged()), stag: u32, offset in 0..u64::MAX - 9000, last: bool,
        push: bool, payload in proptest::collection::vec(any::<u8>(), 39..900),
    ) {
        let mut template = segment.template();
        let mut next = segment.next().last();
        template = template.turned_to(&next.frame()).unwrap();
        prop_assert_eq!(template.header(), next.ddp);
        template.advance();
        next = next.next();
        let (stag, offset) = (Stag(stag), TaggedOffset(offset));
        next.ddp = DdpHeader::Tagged(TaggedHeader { last, ulp: segment.ddp.ulp(), stag, offset });
        next.tcp.flags = Flags(next.tcp.flags.0 & !Flags::PSH.0 | if push { Flags::PSH.0 } else { 0 });
        next.payload = payload;
        template = template.turned_to(&next.frame()).unwrap();
        for _ in 0..2 {
            prop_assert_eq!((template.header(), template.pushes()), (next.ddp, push));
            prop_assert_eq!(template.fpdu_len(), next.fpdu().len());
            let (frame, expected) = (next.frame(), Coalescable { crc: RESIDUE, payload: &next.payload });
            for checksums in ALL {
                prop_assert_eq!(read(&template, &frame, checksums), Some(expected));
            }
            let total = crate::wire::checksum::sum(&frame);
            prop_assert_eq!(read(&template, &frame, Checksums::Complete(total)), Some(expected));
            template.advance();
            next = next.next();
        }
    }

    /// The same segment again, and the one after the next.
    #[test]
    fn each_is_read_in_its_turn_only(segment in segment()) {
        let mut template = segment.template();
        let next = segment.next();
        prop_assert!(read(&template, &segment.frame(), Checksums::None).is_none());
        prop_assert!(read(&template, &next.next().frame(), Checksums::None).is_none());
        template.advance();
        prop_assert!(read(&template, &next.frame(), Checksums::None).is_none());
        prop_assert!(read(&template, &next.next().frame(), Checksums::None).is_some());
    }

    #[test]
    fn a_frame_cut_anywhere_is_not_read(segment in segment(), at: proptest::sample::Index) {
        let frame = segment.next().frame();
        let cut = &frame[..at.index(frame.len())];
        for checksums in ALL {
            prop_assert_eq!(segment.template().read(cut, checksums), None);
        }
    }

    /// Nothing follows the last segment of a message, nor is anything known of octets that are not
    /// one whole FPDU.
    #[test]
    fn nothing_is_expected_behind_others(segment in segment()) {
        prop_assert!(segment.clone().last().template_of_crcs(true).is_none());
        prop_assert!(segment.template_of_crcs(false).is_none());
        let empty = Segment { payload: Vec::new(), ..segment };
        prop_assert!(empty.template_of_crcs(true).is_none());
    }
}
