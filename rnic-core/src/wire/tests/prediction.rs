use core::net::IpAddr;

use proptest::prelude::*;

use crate::wire::{
    crc::crc,
    ethernet::MacAddr,
    mpa::fpdu_len,
    packet::{Checksums, parse},
    prediction::Prediction,
    tcp::{Flags, SackBlocks, Seq, TcpHeader, TcpOptions, TcpSegment, Timestamps},
    template::NetHeader,
};

use super::packet::{any_addresses, build};

/// What varies from one data segment of a connection to the next.
#[derive(Clone, Debug)]
struct Plain {
    numbers: (u32, u32),
    push: bool,
    window: u16,
    urgent: u16,
    stamps: (u32, u32),
    payload: Vec<u8>,
}

prop_compose! {
    fn plain()(
        numbers: (u32, u32), push: bool, window: u16, urgent: u16, stamps: (u32, u32),
        // An ACK has none.
        payload in prop_oneof![Just(Vec::new()), proptest::collection::vec(any::<u8>(), 0..200)],
    ) -> Plain {
        Plain { numbers, push, window, urgent, stamps, payload }
    }
}

/// What a connection's frames have in common.
#[derive(Clone, Debug)]
struct Flow {
    net: NetHeader,
    ports: (u16, u16),
    timestamps: bool,
}

prop_compose! {
    fn flow()(
        (source, destination) in any_addresses(), vlan in proptest::option::of(1..4096_u16), ports: (u16, u16), timestamps: bool,
        // Not marked for congestion.
        traffic_class in any::<u8>().prop_map(|class| if class & 3 == 3 { class - 1 } else { class }),
    ) -> Flow {
        Flow { net: net(source, destination, vlan, traffic_class), ports, timestamps }
    }
}

fn net(source: IpAddr, destination: IpAddr, vlan: Option<u16>, traffic_class: u8) -> NetHeader {
    NetHeader {
        source_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        destination_mac: MacAddr([2, 0, 0, 0, 0, 2]),
        vlan,
        source,
        destination,
        hop_limit: 64,
        traffic_class,
    }
}

impl Flow {
    fn header(&self, plain: &Plain) -> TcpHeader {
        let push = if plain.push { Flags::PSH } else { Flags::NONE };
        let (value, echo) = plain.stamps;
        TcpHeader {
            source_port: self.ports.0,
            destination_port: self.ports.1,
            seq: Seq(plain.numbers.0),
            ack: Seq(plain.numbers.1),
            flags: Flags::ACK | push,
            window: plain.window,
            urgent: plain.urgent,
            options: TcpOptions {
                timestamps: self.timestamps.then_some(Timestamps { value, echo }),
                ..TcpOptions::default()
            },
        }
    }

    fn frame(&self, plain: &Plain) -> Vec<u8> {
        build(&self.net, &self.header(plain), &plain.payload)
    }
}

/// Without what means nothing.
fn without_urgent(segment: TcpSegment<'_>) -> TcpSegment<'_> {
    let header = TcpHeader {
        urgent: 0,
        ..segment.header
    };
    TcpSegment { header, ..segment }
}

/// What a frame like the first makes expect.
fn after(frame: &[u8]) -> Option<Prediction> {
    Prediction::like(frame, &parse(frame, Checksums::None).unwrap(), false)
}

proptest! {
    #[test]
    fn the_next_frame_of_a_flow_is_read_as_without(flow in flow(), first in plain(), second in plain()) {
        let prediction = after(&flow.frame(&first)).unwrap();
        let frame = flow.frame(&second);
        let read = |frame| prediction.parse(frame, Checksums::None).map(|expected| expected.segment());
        let segment = read(&frame);
        prop_assert_eq!(segment, Some(without_urgent(parse(&frame, Checksums::None).unwrap().segment)));
        // And with what Ethernet pads it with.
        let mut padded = frame.clone();
        padded.extend([0xaa; 7]);
        prop_assert_eq!(read(&padded), segment);
    }

    /// The CRC of a payload is told where that is one FPDU by its length, as expected; the checksum
    /// is verified in any case.
    #[test]
    fn the_crc_of_an_fpdu_comes_with_its_checksum(
        flow in flow(), first in plain(), ulpdu in prop::collection::vec(any::<u8>(), 24..2000), more in 0..3_usize, fpdus: bool,
        at: proptest::sample::Index,
    ) {
        let length = (ulpdu.len() as u16).to_be_bytes();
        let mut payload = [&length[..], &ulpdu].concat();
        payload.resize(fpdu_len(ulpdu.len()) + 4 * more, 0xa5);
        let plain = Plain { payload, ..first };
        let mut frame = flow.frame(&plain);
        let packet = parse(&frame, Checksums::None).unwrap();
        let prediction = Prediction::like(&frame, &packet, fpdus).unwrap();
        let expected = prediction.parse(&frame, Checksums::None).unwrap();
        prop_assert_eq!(expected.payload, &plain.payload[..]);
        let told = (fpdus && more == 0).then(|| crc(&plain.payload));
        prop_assert_eq!(expected.payload_crc, told);
        let unnecessary = prediction.parse(&frame, Checksums::Unnecessary).unwrap();
        prop_assert_eq!(unnecessary.payload_crc, None);
        let at = frame.len() - 1 - at.index(plain.payload.len());
        frame[at] ^= 0x10;
        prop_assert_eq!(prediction.parse(&frame, Checksums::None), None);
    }

    /// Whatever is wrong or new about a frame, it is not read as something else than what it is.
    #[test]
    fn a_changed_frame_is_read_as_without_or_not_at_all(
        flow in flow(), first in plain(), second in plain(), at: proptest::sample::Index, bits in 1..=255_u8,
        front: bool,
    ) {
        let prediction = after(&flow.frame(&first)).unwrap();
        let mut frame = flow.frame(&second);
        // More often in the headers than their length would have it.
        let at = at.index(if front { 90.min(frame.len()) } else { frame.len() });
        frame[at] ^= bits;
        for checksums in [Checksums::None, Checksums::Unnecessary] {
            if let Some(expected) = prediction.parse(&frame, checksums) {
                let packet = parse(&frame, checksums).unwrap();
                prop_assert_eq!(expected.segment(), without_urgent(packet.segment));
                prop_assert_eq!(packet.source.ip(), flow.net.source);
                prop_assert_eq!(packet.destination.ip(), flow.net.destination);
                prop_assert_eq!(packet.vlan, flow.net.vlan);
                prop_assert_eq!(packet.ecn, flow.net.traffic_class & 3);
            }
        }
    }

    #[test]
    fn a_frame_of_another_flow_is_not_taken_for_one(a in flow(), b in flow(), first in plain(), second in plain()) {
        prop_assume!((&a.net, a.ports, a.timestamps) != (&b.net, b.ports, b.timestamps));
        let prediction = after(&a.frame(&first)).unwrap();
        let frame = b.frame(&second);
        prop_assert_eq!(prediction.parse(&frame, Checksums::None), None);
    }

    #[test]
    fn a_frame_cut_anywhere_is_not_read(flow in flow(), first in plain(), second in plain(), at: proptest::sample::Index) {
        let prediction = after(&flow.frame(&first)).unwrap();
        let frame = flow.frame(&second);
        let cut = &frame[..at.index(frame.len())];
        prop_assert_eq!(prediction.parse(cut, Checksums::Unnecessary), None);
    }

    /// Else a mark in each of them would go unnoticed.
    #[test]
    fn frames_marked_for_congestion_are_not_expected_again(mut flow in flow(), plain in plain()) {
        prop_assert!(after(&flow.frame(&plain)).is_some());
        flow.net.traffic_class |= 3;
        prop_assert!(after(&flow.frame(&plain)).is_none());
    }

    #[test]
    fn frames_with_other_flags_or_options_are_not_expected_again(flow in flow(), plain in plain(), flags: u8) {
        let mut header = flow.header(&plain);
        header.flags = Flags(flags);
        let frame = build(&flow.net, &header, &plain.payload);
        let usual = header.flags | Flags::PSH == Flags::ACK | Flags::PSH;
        prop_assert_eq!(after(&frame).is_some(), usual);

        let mut header = flow.header(&plain);
        let mut sack = SackBlocks::EMPTY;
        sack.push(Seq(1), Seq(2));
        header.options.sack = sack;
        prop_assert!(after(&build(&flow.net, &header, &plain.payload)).is_none());
    }
}
