use crate::wire::hello::{Hello, Kind, Receipts, Refusal, why};
use proptest::prelude::*;

const HELLO: Hello = Hello {
    kind: Kind::QueuePairs,
    own: 0x0040_0001,
    peer: 0x00ff_ff02,
    rq_psn: 0x0012_3456,
    sq_psn: None,
    gid: [7; 16],
    receipts: Receipts::Unknown,
};

#[test]
fn a_hello_is_read_as_it_was_written() {
    let octets = HELLO.octets(None);
    assert_eq!(Hello::parse(&octets), Some(HELLO));
    assert_eq!(&octets[..12], b"RNRC\x01\0\0\0\0\x40\0\x01");
    let carrying = Hello {
        kind: Kind::Datagrams,
        ..HELLO
    };
    assert_eq!(Hello::parse(&carrying.octets(None)), Some(carrying));
    for (sq_psn, wanted) in [(0, [1, 0, 0, 0]), (0x00fe_dcba, [1, 0xfe, 0xdc, 0xba])] {
        let sending = Hello {
            sq_psn: Some(sq_psn),
            ..HELLO
        };
        let octets = sending.octets(None);
        assert_eq!(octets[20..24], wanted);
        assert_eq!(Hello::parse(&octets), Some(sending));
    }
    for (receipts, octet) in [(Receipts::Known, 1), (Receipts::Sent, 3)] {
        let octets = Hello { receipts, ..HELLO }.octets(None);
        assert_eq!(octets[7], octet);
        assert_eq!(Receipts::stated_in(&octets), receipts);
    }
    // Who sends them understands them, and later versions may have more bits.
    let mut odd = octets;
    for (octet, receipts) in [(2, Receipts::Unknown), (0xfd, Receipts::Known)] {
        odd[7] = octet;
        assert_eq!(Receipts::stated_in(&odd), receipts);
    }
    assert_eq!(Receipts::stated_in(b"no hello"), Receipts::Unknown);
    let longer = [&octets[..], &[1, 2, 3]].concat();
    assert_eq!(Hello::parse(&longer), Some(HELLO));
    assert_eq!(
        why(&HELLO.octets(Some(Refusal::Psn))),
        "its queue pair sends or expects another PSN"
    );
}

#[test]
fn an_answer_has_the_same_purpose_and_both_numbers() {
    let answer = Hello {
        own: HELLO.peer,
        peer: HELLO.own,
        rq_psn: 1,
        sq_psn: Some(2),
        gid: [8; 16],
        receipts: Receipts::Sent,
        ..HELLO
    };
    assert!(answer.answers(&HELLO) && HELLO.answers(&answer));
    let others = [
        HELLO,
        Hello { own: 1, ..answer },
        Hello { peer: 1, ..answer },
        Hello {
            kind: Kind::Datagrams,
            ..answer
        },
    ];
    for other in others {
        assert!(!other.answers(&HELLO), "{other:?}");
    }
}

#[test]
fn what_is_no_hello_is_not_taken_for_one() {
    let octets = HELLO.octets(None);
    for short in 0..octets.len() {
        assert_eq!(Hello::parse(&octets[..short]), None);
    }
    for (at, bit) in [(0, 1), (1, 1), (2, 1), (3, 1), (4, 1), (6, 2)] {
        let mut other = octets;
        other[at] ^= bit;
        assert_eq!(Hello::parse(&other), None, "octet {at}");
    }
}

proptest! {
    #[test]
    fn any_octets_are_read_without_a_panic(octets in prop::collection::vec(any::<u8>(), 0..64)) {
        if let Some(hello) = Hello::parse(&octets) {
            prop_assert_eq!(Hello::parse(&hello.octets(None)), Some(hello));
        }
        why(&octets);
    }
}
