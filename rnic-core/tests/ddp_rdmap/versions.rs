//! The versions of DDP and RDMAP: 1 and nothing else, both ways.

use rnic_core::verbs::{SendWr, WrOpcode};
use rnic_core::wire::ddp::{QueueNumber, TaggedOffset};
use rnic_core::wire::rdmap::{Opcode, ReadRequest};

use crate::fixture::{BASE, End, send, tagged, untagged};

fn read_request(end: &End) -> Vec<u8> {
    let request = ReadRequest {
        sink_stag: end.stag,
        sink_offset: TaggedOffset(BASE),
        length: 1,
        source_stag: end.stag,
        source_offset: TaggedOffset(BASE),
    };
    let mut octets = [0; ReadRequest::LEN];
    request.emit(&mut octets);
    let queue = QueueNumber::READ_REQUEST;
    untagged(Opcode::ReadRequest, true, queue, 1, 0, &octets)
}

/// Returns the versions of DDP and RDMAP in a segment.
fn versions(ulpdu: &[u8]) -> (u8, u8) {
    (ulpdu[0] & 3, ulpdu[1] >> 6)
}

/// What comes has the versions of what goes, or ends the stream before it does anything.
#[test]
fn versions_are_the_same_both_ways() {
    // rfc: 5040-92, 5040-97, 5044-93
    type Make = fn(&End) -> Vec<u8>;
    let messages: [Make; 3] = [
        |_| send(1, b"x"),
        read_request,
        |end| tagged(Opcode::Write, true, end.stag, BASE, b"x"),
    ];
    for (ddp, rdmap) in (0..4).flat_map(|ddp| (0..4).map(move |rdmap| (ddp, rdmap))) {
        for (kind, make) in messages.iter().enumerate() {
            let mut end = End::new(1, 1);
            end.post_receive(1, 0, 10);
            let mut ulpdu = make(&end);
            assert_eq!(versions(&ulpdu), (1, 1));
            ulpdu[0] = ulpdu[0] & !3 | ddp;
            ulpdu[1] = rdmap << 6 | ulpdu[1] & 0x3f;
            let answer = end.receive(&ulpdu).map_err(|refused| refused.numbers);
            let expected = match (ddp, rdmap) {
                (1, 1) => Ok(()),
                (1, _) => Err((0, 2, 5)),
                _ if kind == 2 => Err((1, 1, 4)),
                _ => Err((1, 2, 6)),
            };
            assert_eq!(answer, expected, "DDP {ddp}, RDMAP {rdmap}: message {kind}");
            if expected.is_err() {
                assert_eq!(end.memory(0, 1), [0]);
                assert!(end.sent().is_empty());
            }
            // Nothing but the Terminate, or the response.
            let said = end.segments();
            let expected = usize::from(expected.is_err() || kind == 1);
            assert_eq!(said.len(), expected, "{said:x?}");
            assert!(said.iter().all(|ulpdu| versions(ulpdu) == (1, 1)));
        }
    }
}

#[test]
fn every_message_that_goes_has_them() {
    // rfc: 5044-93
    let mut end = End::new(1, 4);
    // What comes first may be anything with the same versions.
    end.receive(&read_request(&end)).unwrap();
    let sink = [end.sge(0, 8)];
    let to = |wr: SendWr| wr.with_remote(end.stag, TaggedOffset(BASE));
    let requests = [
        SendWr::new(1, WrOpcode::Send).with_inline(b"x").unwrap(),
        to(SendWr::new(2, WrOpcode::Write))
            .with_inline(b"x")
            .unwrap(),
        to(SendWr::new(3, WrOpcode::Read)).with_sges(&sink).unwrap(),
        to(SendWr::new(4, WrOpcode::FetchAdd))
            .with_sges(&sink)
            .unwrap(),
        SendWr::new(5, WrOpcode::SendInvalidate),
    ];
    for wr in requests {
        end.post(wr);
    }
    let gone = end.all_segments();
    assert!(gone.len() >= 6, "{gone:?}");
    for ulpdu in gone {
        assert_eq!(versions(&ulpdu), (1, 1), "{ulpdu:x?}");
    }
}
