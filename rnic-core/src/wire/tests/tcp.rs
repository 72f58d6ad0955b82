use crate::wire::{
    error::PacketError,
    tcp::{Flags, HEADER_LEN, SackBlocks, Seq, TcpHeader, TcpOptions, TcpSegment, Timestamps},
};
use proptest::prelude::*;

#[rustfmt::skip]
const HEADER: [u8; 20] = [
    0xc5, 0x8f, 0x1c, 0x06, // ports
    0x01, 0x02, 0x03, 0x04, // sequence number
    0xa1, 0xa2, 0xa3, 0xa4, // acknowledgment number
    0x50, 0x12, 0xfa, 0xf0, // data offset, flags, window
    0xbe, 0xef, 0x00, 0x07, // checksum, urgent pointer
];

fn with_options(options: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut octets = [&HEADER, options, payload].concat();
    octets[12] = ((HEADER_LEN + options.len()) / 4 * 16) as u8;
    octets
}

fn sack(blocks: &[(u32, u32)]) -> SackBlocks {
    let mut sack = SackBlocks::EMPTY;
    for (left, right) in blocks {
        assert!(sack.push(Seq(*left), Seq(*right)));
    }
    sack
}

#[test]
fn each_field_stands_where_the_rfc_says() {
    let octets = with_options(&[], b"data");
    let segment = TcpSegment::parse(&octets).unwrap();
    let header = TcpHeader {
        source_port: 0xc58f,
        destination_port: 7174,
        seq: Seq(0x0102_0304),
        ack: Seq(0xa1a2_a3a4),
        flags: Flags::SYN | Flags::ACK,
        window: 0xfaf0,
        urgent: 7,
        options: TcpOptions::default(),
    };
    assert_eq!(
        segment,
        TcpSegment {
            header,
            payload: b"data"
        }
    );
    assert_eq!(segment.sequence_len(), 5);

    let mut emitted = [0xff; 20];
    assert_eq!(header.emit(&mut emitted), 20);
    assert_eq!(emitted[16..18], [0, 0], "the checksum is left zero");
    emitted[16..18].copy_from_slice(&HEADER[16..18]);
    assert_eq!(emitted, HEADER);
}

#[test]
fn each_flag_has_its_bit() {
    let readers: [fn(Flags) -> bool; 8] = [
        Flags::fin,
        Flags::syn,
        Flags::rst,
        Flags::psh,
        Flags::ack,
        Flags::urg,
        Flags::ece,
        Flags::cwr,
    ];
    for (bit, _) in readers.iter().enumerate() {
        let flags = Flags(1 << bit);
        let read: Vec<bool> = readers.iter().map(|reader| reader(flags)).collect();
        assert_eq!(read, (0..8).map(|other| other == bit).collect::<Vec<_>>());
    }
    let mut flags = Flags::SYN;
    flags |= Flags::ACK;
    assert_eq!(format!("{flags:?}"), "SYN|ACK");
    assert!(flags.contains(Flags::SYN) && !flags.contains(Flags::SYN | Flags::FIN));
    assert!(flags.contains(Flags::NONE));
}

#[test]
fn every_truncation_is_refused() {
    let octets = with_options(&[2, 4, 5, 180, 1, 3, 3, 7], &[]);
    for len in 0..octets.len() {
        let result = TcpSegment::parse(&octets[..len]);
        assert_eq!(result, Err(PacketError::Truncated("TCP")), "{len} octets");
    }
    assert!(TcpSegment::parse(&octets).is_ok());
}

#[test]
fn a_data_offset_inside_the_header_is_refused() {
    for words in 0..5 {
        let mut octets = HEADER;
        octets[12] = words << 4;
        let result = TcpSegment::parse(&octets);
        assert_eq!(
            result,
            Err(PacketError::Malformed("TCP data offset")),
            "{words} words"
        );
    }
}

#[test]
fn options_are_read() {
    #[rustfmt::skip]
    let octets = [
        2, 4, 0x05, 0xb4,
        1, 3, 3, 7,
        4, 2,
        8, 10, 0, 0, 0, 1, 0, 0, 0, 2,
        5, 10, 0, 0, 0, 3, 0, 0, 0, 4,
    ];
    let expected = TcpOptions {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some(Timestamps { value: 1, echo: 2 }),
        sack: sack(&[(3, 4)]),
    };
    assert_eq!(TcpOptions::parse(&octets), expected);
}

#[test]
fn a_list_that_goes_wrong_counts_up_to_there() {
    let mss = TcpOptions {
        mss: Some(1460),
        ..Default::default()
    };
    let malformed: [&[u8]; 7] = [
        &[2, 4, 5, 180, 3],               // no length
        &[2, 4, 5, 180, 3, 0],            // length below two
        &[2, 4, 5, 180, 3, 1, 7],         //
        &[2, 4, 5, 180, 3, 3],            // value cut off
        &[2, 4, 5, 180, 8, 10, 1, 2],     //
        &[2, 4, 5, 180, 77, 255, 3, 3],   // unknown and too long
        &[2, 4, 5, 180, 0, 3, 3, 7, 255], // end of list
    ];
    for octets in malformed {
        assert_eq!(TcpOptions::parse(octets), mss, "{octets:?}");
    }
}

#[test]
fn unknown_options_and_wrong_lengths_are_skipped() {
    let scale = TcpOptions {
        window_scale: Some(7),
        ..Default::default()
    };
    let skipped: [&[u8]; 9] = [
        &[30, 2, 3, 3, 7],
        &[254, 6, 1, 2, 3, 4, 3, 3, 7],
        &[2, 2, 3, 3, 7],
        &[2, 3, 5, 3, 3, 7],
        &[2, 5, 5, 5, 5, 3, 3, 7],
        &[4, 3, 0, 3, 3, 7],
        &[8, 6, 0, 0, 0, 0, 3, 3, 7],
        &[5, 6, 0, 0, 0, 1, 3, 3, 7],
        &[5, 2, 3, 3, 7],
    ];
    for octets in skipped {
        assert_eq!(TcpOptions::parse(octets), scale, "{octets:?}");
    }
}

#[test]
fn the_first_of_a_kind_counts() {
    let octets = [2, 4, 0, 1, 2, 4, 0, 2, 3, 3, 1, 3, 3, 2];
    let options = TcpOptions::parse(&octets);
    assert_eq!((options.mss, options.window_scale), (Some(1), Some(1)));
}

#[test]
fn a_window_scale_beyond_14_is_14() {
    assert_eq!(TcpOptions::parse(&[3, 3, 14]).window_scale, Some(14));
    assert_eq!(TcpOptions::parse(&[3, 3, 15]).window_scale, Some(14));
    assert_eq!(TcpOptions::parse(&[3, 3, 255]).window_scale, Some(14));
}

#[test]
fn options_are_written_as_linux_does() {
    let syn = TcpOptions {
        mss: Some(1460),
        window_scale: Some(3),
        sack_permitted: true,
        timestamps: Some(Timestamps {
            value: 0x3038_59cc,
            echo: 0,
        }),
        ..Default::default()
    };
    #[rustfmt::skip]
    let expected = [
        2, 4, 5, 0xb4, 4, 2, 8, 10, 0x30, 0x38, 0x59, 0xcc, 0, 0, 0, 0, 1, 3, 3, 3,
    ];
    let mut octets = [0xff; 40];
    assert_eq!(syn.emit(&mut octets), 20);
    assert_eq!(octets[..20], expected);

    let ack = TcpOptions {
        sack: sack(&[(1, 2)]),
        ..Default::default()
    };
    assert_eq!(ack.emit(&mut octets), 12);
    assert_eq!(octets[..12], [1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2]);

    let sack_permitted = TcpOptions {
        sack_permitted: true,
        ..Default::default()
    };
    assert_eq!(sack_permitted.emit(&mut octets), 4);
    assert_eq!(octets[..4], [1, 1, 4, 2]);
    assert!(TcpOptions::default().is_empty());
}

/// A header may be packed tighter than ours are: written again, with each option aligned, it has a
/// block less.
#[test]
fn a_header_without_padding_is_written_with_a_block_less() {
    let blocks = [(1, 2), (3, 4), (5, 6), (7, 8)];
    let mut octets = vec![3, 3, 9, 4, 2, 5, 34];
    for (left, right) in blocks {
        octets.extend(u32::to_be_bytes(left));
        octets.extend(u32::to_be_bytes(right));
    }
    assert!(octets.len() <= 40);
    let read = TcpOptions::parse(&octets);
    assert_eq!(read.sack, sack(&blocks));
    let mut written = [0; 40];
    let len = read.emit(&mut written);
    let back = TcpOptions::parse(&written[..len]);
    let expected = TcpOptions {
        sack: sack(&blocks[..3]),
        ..read
    };
    assert_eq!(back, expected);
}

#[test]
fn sack_blocks_that_do_not_fit_are_left_out() {
    let four = sack(&[(1, 2), (3, 4), (5, 6), (7, 8)]);
    assert_eq!((four.len(), four.is_empty()), (4, false));
    assert!(!four.clone().push(Seq(9), Seq(10)), "four is the limit");

    let alone = TcpOptions {
        sack: four,
        ..Default::default()
    };
    assert_eq!(alone.len(), 36);
    let stamps = Some(Timestamps::default());
    let beside = TcpOptions {
        sack: four,
        timestamps: stamps,
        ..Default::default()
    };
    assert_eq!(beside.len(), 40);
    let mut octets = [0; 40];
    beside.emit(&mut octets);
    assert_eq!(
        TcpOptions::parse(&octets).sack,
        sack(&[(1, 2), (3, 4), (5, 6)])
    );
    let all = TcpOptions {
        mss: Some(1),
        window_scale: Some(1),
        sack_permitted: true,
        ..beside
    };
    assert_eq!(all.len(), 40, "two blocks fit beside all the others");
}

prop_compose! {
    fn any_options()(
        mss: Option<u16>,
        window_scale in proptest::option::of(0..=14u8),
        sack_permitted: bool,
        timestamps in proptest::option::of(any::<(u32, u32)>()),
        blocks in proptest::collection::vec(any::<(u32, u32)>(), 0..=4),
    ) -> TcpOptions {
        let timestamps = timestamps.map(|(value, echo)| Timestamps { value, echo });
        TcpOptions { mss, window_scale, sack_permitted, timestamps, sack: sack(&blocks) }
    }
}

prop_compose! {
    pub(super) fn any_header()(
        ports: (u16, u16), seq: u32, ack: u32, flags: u8, window: u16, urgent: u16,
        mut options in any_options(),
    ) -> TcpHeader {
        // Only as many blocks as fit, so that what is written is what was meant.
        let all = options.sack;
        options.sack = SackBlocks::EMPTY;
        let room = (40 - options.len()).saturating_sub(4) / 8;
        for (left, right) in all.iter().take(room) {
            options.sack.push(left, right);
        }
        TcpHeader {
            source_port: ports.0,
            destination_port: ports.1,
            seq: Seq(seq),
            ack: Seq(ack),
            flags: Flags(flags),
            window,
            urgent,
            options,
        }
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(header in any_header(), payload: Vec<u8>) {
        let mut octets = vec![0xff; header.len()];
        prop_assert_eq!(header.emit(&mut octets), header.len());
        prop_assert!(header.len() % 4 == 0 && (20..=60).contains(&header.len()));
        octets.extend(&payload);
        prop_assert_eq!(TcpSegment::parse(&octets), Ok(TcpSegment { header, payload: &payload }));
    }

    #[test]
    fn any_options_fit_and_are_aligned(options in any_options()) {
        let mut octets = [0; 40];
        let len = options.emit(&mut octets);
        prop_assert_eq!(len, options.len());
        prop_assert!(len.is_multiple_of(4));
        let read = TcpOptions::parse(&octets[..len]);
        prop_assert_eq!(TcpOptions { sack: options.sack, ..read }, options);
    }

    #[test]
    fn arbitrary_octets_do_no_harm(octets in proptest::collection::vec(any::<u8>(), 0..100)) {
        let _ = TcpSegment::parse(&octets);
        let _ = TcpOptions::parse(&octets);
    }

    #[test]
    fn arbitrary_options_do_no_harm(options in proptest::collection::vec(0..12u8, 0..=40)) {
        let octets = with_options(&options[..options.len() & !3], &[]);
        let segment = TcpSegment::parse(&octets).unwrap();
        let mut emitted = [0; 60];
        segment.header.emit(&mut emitted);
    }
}
