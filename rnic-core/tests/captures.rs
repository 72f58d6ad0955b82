//! Captured traffic between two hosts with Linux's siw: everything in it is parsed, written again
//! and compared.

mod support;

use std::fmt::Write as _;

use rnic_core::mpa::{Deframer, frame};
use rnic_core::wire::{
    checksum, crc,
    ddp::{DdpHeader, DdpSegment, Msn, QueueNumber, TaggedOffset},
    ethernet::EthernetHeader,
    mpa::{CRC_LEN, Enhanced, Fpdu, LENGTH_LEN, StartupFrame, StartupKind, fpdu_len},
    packet::{self, Checksums},
    rdmap::{BitOrder, Control, Opcode, ReadRequest, Terminate},
    template::NetHeader,
};
use support::pcap::{self, Capture};
use support::stream::{self, Connection, Stream};

/// One direction of a connection, parsed.
struct Spoken<'a> {
    startup: Option<StartupFrame<'a>>,
    startup_len: usize,
    fpdus: Vec<Fpdu<'a>>,
    /// The octets of an FPDU that the capture cuts off.
    rest: &'a [u8],
}

impl<'a> Spoken<'a> {
    fn of(stream: &'a Stream, kind: StartupKind) -> Self {
        let octets = &stream.octets[..];
        let Some((startup, startup_len)) = StartupFrame::parse(octets).unwrap() else {
            return Self {
                startup: None,
                startup_len: 0,
                fpdus: Vec::new(),
                rest: octets,
            };
        };
        assert_eq!(startup.kind, kind);
        let (mut fpdus, mut rest) = (Vec::new(), &octets[startup_len..]);
        while let Some((fpdu, len)) = Fpdu::parse(rest) {
            fpdus.push(fpdu);
            rest = &rest[len..];
        }
        Self {
            startup: Some(startup),
            startup_len,
            fpdus,
            rest,
        }
    }

    fn segments(&self) -> impl Iterator<Item = DdpSegment<'a>> {
        self.fpdus
            .iter()
            .map(|fpdu| DdpSegment::parse(fpdu.ulpdu).unwrap())
    }

    fn opcodes(&self) -> impl Iterator<Item = Opcode> {
        self.segments()
            .map(|segment| Opcode::try_from(Control::from(segment.header.ulp()).opcode).unwrap())
    }
}

/// Returns whether both sides use CRCs, because a Request or Reply asks for them.
fn uses_crc(request: &Spoken<'_>, reply: &Spoken<'_>) -> bool {
    [request, reply]
        .iter()
        .filter_map(|side| side.startup)
        .any(|startup| startup.crc)
}

/// Checks both directions of every connection of every capture.
fn for_each_connection(mut check: impl FnMut(&Capture, &Connection, [&Spoken<'_>; 2])) {
    for capture in pcap::all() {
        for connection in stream::connections(&capture) {
            let request = Spoken::of(&connection.from_initiator, StartupKind::Request);
            let reply = Spoken::of(&connection.from_responder, StartupKind::Reply);
            check(&capture, &connection, [&request, &reply]);
        }
    }
}

/// Checks the connections of one capture.
fn in_capture(name: &str, mut check: impl FnMut([&Spoken<'_>; 2])) {
    let mut found = false;
    for_each_connection(|capture, _, spoken| {
        if capture.name == name {
            found = true;
            check(spoken);
        }
    });
    assert!(found, "there is no capture {name}");
}

/// Every frame is written again from what was read. Only the IP identification, which Linux counts
/// up and we leave zero, and the IP checksum over it may differ.
#[test]
fn every_frame_is_read_with_its_checksums_and_written_again() {
    let mut frames = 0;
    for capture in pcap::all() {
        let partial = capture.has_partial_checksums();
        let checksums = if partial {
            Checksums::Unnecessary
        } else {
            Checksums::None
        };
        for (number, frame) in capture.frames.iter().enumerate() {
            let place = format!("{} frame {}", capture.name, number + 1);
            let packet =
                packet::parse(frame, checksums).unwrap_or_else(|error| panic!("{place}: {error}"));
            let header = packet.segment.header;
            let (link, _) = EthernetHeader::parse(frame).unwrap();
            let net = NetHeader {
                source_mac: link.source,
                destination_mac: link.destination,
                vlan: link.vlan,
                source: packet.source.ip(),
                destination: packet.destination.ip(),
                hop_limit: frame[22],
                traffic_class: frame[15],
            };
            let at = net.len() + header.len();
            let mut again = vec![0xee; at];
            again.extend(packet.segment.payload);
            let sum = checksum::sum(packet.segment.payload);
            assert_eq!(
                net.write(&mut again, &header, packet.segment.payload.len(), sum),
                frame.len()
            );

            let mut expected = frame.clone();
            let unlike = [18..20, 24..26]
                .into_iter()
                .chain(partial.then_some(50..52));
            for octets in unlike {
                expected[octets.clone()].copy_from_slice(&again[octets]);
            }
            assert_eq!(again, expected, "{place}");
            frames += 1;
        }
    }
    assert!(frames > 1500, "{frames} frames");
}

#[test]
fn every_startup_frame_is_written_again() {
    let mut count = 0;
    for_each_connection(|capture, connection, spoken| {
        let streams = [&connection.from_initiator, &connection.from_responder];
        for (side, stream) in spoken.iter().zip(streams) {
            let Some(startup) = side.startup else {
                continue;
            };
            let mut again = vec![0xee; startup.len()];
            startup.emit(&mut again);
            assert_eq!(again, stream.octets[..side.startup_len], "{}", capture.name);
            count += 1;
        }
    });
    assert_eq!(
        count,
        2 * (CONTENTS.trim().lines().count() - 1),
        "two of each connection that came about"
    );
}

/// The pad and, with CRCs off, the CRC field are copied: a sender may put anything there.
#[test]
fn every_fpdu_is_written_again() {
    let (mut with_crc, mut with_marked_pad) = (0, 0);
    for_each_connection(|capture, _, [request, reply]| {
        let crc_on = uses_crc(request, reply);
        for fpdu in request.fpdus.iter().chain(&reply.fpdus) {
            let mut again = fpdu.covered[..LENGTH_LEN].to_vec();
            assert_eq!(
                usize::from(u16::from_be_bytes([again[0], again[1]])),
                fpdu.ulpdu.len()
            );
            again.resize(LENGTH_LEN + fpdu.ulpdu.len(), 0xee);
            write_ulpdu(fpdu.ulpdu, &mut again[LENGTH_LEN..]);
            again.extend(fpdu.pad);
            assert_eq!(again, fpdu.covered, "{}", capture.name);
            assert_eq!(again.len() + CRC_LEN, fpdu_len(fpdu.ulpdu.len()));
            let expected = if crc_on {
                crc::to_wire(crc::crc(&again))
            } else {
                [0; CRC_LEN]
            };
            assert_eq!(fpdu.crc, expected, "{}", capture.name);
            with_crc += usize::from(crc_on);
            if fpdu.pad.iter().any(|octet| *octet != 0) {
                with_marked_pad += 1;
            } else if fpdu.ulpdu.len() <= frame::MAX_MULPDU {
                again.resize(fpdu_len(fpdu.ulpdu.len()), 0xee);
                frame::seal(&mut again, fpdu.ulpdu.len(), crc_on);
                assert_eq!(
                    again,
                    [fpdu.covered, &fpdu.crc].concat(),
                    "{}",
                    capture.name
                );
            }
        }
    });
    assert_eq!((with_crc, with_marked_pad), (WITH_CRC, WITH_MARKED_PAD));
}

/// Reads a ULPDU down to RDMAP and writes it from what was read.
fn write_ulpdu(ulpdu: &[u8], again: &mut [u8]) {
    let segment = DdpSegment::parse(ulpdu).unwrap();
    let control = Control::from(segment.header.ulp());
    let mut header = segment.header;
    match &mut header {
        DdpHeader::Tagged(header) => header.ulp = control.into(),
        DdpHeader::Untagged(header) => header.ulp = control.into(),
    }
    let header_len = header.emit(again);
    let payload = &mut again[header_len..];
    let opcode = Opcode::try_from(control.opcode).unwrap();
    assert_eq!(opcode.is_tagged(), matches!(header, DdpHeader::Tagged(_)));
    match opcode {
        Opcode::ReadRequest => {
            ReadRequest::parse(segment.payload).unwrap().emit(payload);
        }
        Opcode::Terminate => {
            let (terminate, order) = Terminate::parse_as_meant(segment.payload).unwrap();
            assert_eq!(terminate.emit_as(order, payload), segment.payload.len());
        }
        _ => payload.copy_from_slice(segment.payload),
    }
}

#[test]
fn the_deframer_finds_the_same_ulpdus_in_the_segments_as_they_came() {
    for_each_connection(|capture, connection, [request, reply]| {
        let crc_on = uses_crc(request, reply);
        let streams = [&connection.from_initiator, &connection.from_responder];
        for (side, stream) in [request, reply].iter().zip(streams) {
            let mut deframer = Deframer::new(crc_on);
            let mut expected = side.fpdus.iter();
            for mut segment in stream.segments(side.startup_len) {
                while let Some(ulpdu) = deframer.next(&mut segment).unwrap() {
                    assert_eq!(
                        Some(ulpdu),
                        expected.next().map(|fpdu| fpdu.ulpdu),
                        "{}",
                        capture.name
                    );
                }
            }
            assert!(expected.next().is_none(), "{}", capture.name);
            assert_eq!(deframer.buffered(), side.rest.len(), "{}", capture.name);
        }
    });
}

/// Describes what was negotiated, and how many segments of each kind followed: "> " by the
/// initiator, "< " by the responder.
fn describe(
    capture: &Capture,
    connection: &Connection,
    [request, reply]: [&Spoken<'_>; 2],
) -> String {
    let mut line = capture.name.clone();
    for (arrow, side) in [('>', request), ('<', reply)] {
        write!(line, " {arrow}").unwrap();
        let Some(startup) = side.startup else {
            continue;
        };
        write!(line, " rev{}", startup.revision).unwrap();
        for (set, name) in [
            (startup.markers, "M"),
            (startup.crc, "C"),
            (startup.reject, "R"),
        ] {
            line += if set { name } else { "" };
        }
        if let Some(Enhanced { ird, ord, .. }) = startup.enhanced {
            write!(line, " {ird}/{ord}").unwrap();
        }
        write!(line, " +{}", startup.private_data.len()).unwrap();
        for opcode in (0..8).map(|opcode| Opcode::try_from(opcode).unwrap()) {
            let count = side.opcodes().filter(|seen| *seen == opcode).count();
            if count > 0 {
                write!(line, " {opcode:?}:{count}").unwrap();
            }
        }
    }
    line + if connection.reset { " RST" } else { "" }
}

#[test]
fn the_captures_hold_what_they_are_said_to() {
    let mut contents = String::new();
    for_each_connection(|capture, connection, spoken| {
        for side in spoken {
            assert!(
                side.rest.is_empty() || capture.is_head(),
                "{}: an FPDU is cut",
                capture.name
            );
        }
        contents += &describe(capture, connection, spoken);
        contents += "\n";
    });
    assert_eq!(contents.trim(), CONTENTS.trim(), "\n{contents}");
}

/// Describes the Terminates of a capture: their meaning, the order of their bits, and the length
/// that was quoted.
fn terminates(name: &str) -> Vec<String> {
    let mut found = Vec::new();
    in_capture(name, |spoken| {
        for segment in spoken.iter().flat_map(|side| side.segments()) {
            let DdpHeader::Untagged(header) = segment.header else {
                continue;
            };
            if Control::from(header.ulp) != Control::new(Opcode::Terminate) {
                continue;
            }
            assert_eq!(
                (header.queue, header.msn, header.last),
                (QueueNumber::TERMINATE, Msn::FIRST, true)
            );
            let (terminate, order) = Terminate::parse_as_meant(segment.payload).unwrap();
            assert_eq!(order, BitOrder::Swapped, "{name}");
            let quoted = DdpSegment::parse(terminate.ddp_header.unwrap()).unwrap();
            let offender = spoken[0].segments().next().unwrap();
            if name == "11-term-badkey-read" {
                // siw quotes the size of the Read in place of the MSN.
                let DdpHeader::Untagged(header) = quoted.header else {
                    panic!("untagged")
                };
                assert_eq!(header.msn, Msn(64));
            } else {
                assert_eq!(quoted.header, offender.header, "{name}");
            }
            let length = terminate.ddp_segment_length.unwrap();
            found.push(format!("{}, length {length}", terminate.control));
        }
    });
    found
}

/// siw numbers the errors as the RFCs do, but with the bit fields in reverse order.
#[test]
fn terminates_are_read_as_siw_means_them() {
    let expected = [
        (
            "10-term-badkey-write",
            "1/1/00 (tagged: invalid STag), length 64",
        ),
        (
            "11-term-badkey-read",
            "0/1/00 (Read: invalid STag), length 0",
        ),
        (
            "12-term-badkeybyte-write",
            "1/1/00 (tagged: invalid STag), length 64",
        ),
        (
            "13-term-oob-write",
            "1/1/01 (tagged: base or bounds violation), length 64",
        ),
        (
            "15-term-noaccess-write",
            "1/1/00 (tagged: invalid STag), length 64",
        ),
        (
            "17-term-send-norecv",
            "1/2/02 (untagged: no receive buffer), length 64",
        ),
        (
            "18-term-send-toolong",
            "1/2/02 (untagged: no receive buffer), length 512",
        ),
        (
            "40-crc-both-term",
            "1/1/00 (tagged: invalid STag), length 64",
        ),
    ];
    for (name, meaning) in expected {
        assert_eq!(terminates(name), [meaning], "{name}");
    }
    assert_eq!(terminates("16-noaccess-read-NOTERM"), [""; 0]);
}

#[test]
fn the_read_of_a_bad_stag_is_quoted_in_the_terminate() {
    in_capture("11-term-badkey-read", |[request, reply]| {
        let sent = request.segments().next().unwrap();
        let terminate = reply.segments().next().unwrap();
        let (terminate, _) = Terminate::parse_as_meant(terminate.payload).unwrap();
        assert_eq!(terminate.rdma_header, Some(sent.payload));
        assert_eq!(ReadRequest::parse(sent.payload).unwrap().length, 64);
    });
}

#[test]
fn the_peer_to_peer_flags_are_read() {
    let peer_to_peer = Enhanced {
        ird: 4,
        ord: 4,
        peer_to_peer: true,
        ..Default::default()
    };
    let by_write = Enhanced {
        rtr_write: true,
        ..peer_to_peer
    };
    let by_read = Enhanced {
        rtr_read: true,
        ..peer_to_peer
    };
    let by_both = Enhanced {
        rtr_write: true,
        rtr_read: true,
        ..peer_to_peer
    };
    let expected = [
        ("44-p2p-rtr-both", [by_both, by_write]),
        ("45-p2p-rtr-write", [by_write; 2]),
        ("46-p2p-rtr-read", [by_read; 2]),
    ];
    for (name, enhanced) in expected {
        in_capture(name, |spoken| {
            assert_eq!(
                spoken.map(|side| side.startup.unwrap().enhanced.unwrap()),
                enhanced,
                "{name}"
            );
            let first = spoken[0].segments().next().unwrap();
            assert!(first.header.last(), "the message that starts is whole");
        });
    }
}

#[test]
fn zero_length_messages_are_one_segment_with_no_payload() {
    for name in [
        "22-zero-write",
        "24-zero-send",
        "44-p2p-rtr-both",
        "45-p2p-rtr-write",
    ] {
        in_capture(name, |[request, _]| {
            let segment = request.segments().next().unwrap();
            assert!(
                segment.header.last() && segment.payload.is_empty(),
                "{name}"
            );
        });
    }
    in_capture("23-zero-read", |[request, reply]| {
        let asked = ReadRequest::parse(request.segments().next().unwrap().payload).unwrap();
        let answer = reply.segments().next().unwrap();
        assert_eq!(asked.length, 0);
        assert!(answer.header.last() && answer.payload.is_empty());
    });
}

#[test]
fn odd_sizes_are_padded_to_four() {
    for (octets, name) in [1, 2, 3, 5, 7].map(|octets| (octets, format!("25-odd-write-{octets}"))) {
        in_capture(&name, |[request, _]| {
            let fpdu = request.fpdus[0];
            let segment = DdpSegment::parse(fpdu.ulpdu).unwrap();
            assert_eq!(
                (segment.payload.len(), (octets + fpdu.pad.len()) % 4),
                (octets, 0)
            );
        });
    }
}

/// The offsets of the segments of a message are contiguous, and the last one has the L bit.
#[test]
fn a_message_of_several_segments_is_contiguous() {
    in_capture("26-write-3001-x3", |[request, _]| {
        let segments: Vec<_> = request.segments().collect();
        for message in segments.chunks(3) {
            let mut expected = None;
            for (index, segment) in message.iter().enumerate() {
                let DdpHeader::Tagged(header) = segment.header else {
                    panic!("a Write is tagged")
                };
                assert_eq!(header.last, index == 2);
                assert_eq!(expected.unwrap_or(header.offset), header.offset);
                expected = Some(TaggedOffset(header.offset.0 + segment.payload.len() as u64));
            }
            assert_eq!(
                message
                    .iter()
                    .map(|segment| segment.payload.len())
                    .sum::<usize>(),
                3001
            );
        }
    });
}

/// The number of FPDUs in connections with CRCs.
const WITH_CRC: usize = 44;
/// The number of FPDUs whose pad octets are not all zero.
const WITH_MARKED_PAD: usize = 16;
/// A line for each connection, as [`describe`] writes it.
const CONTENTS: &str = include_str!("captures/contents.txt");
