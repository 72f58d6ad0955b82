//! Atomic Requests and Responses, and what their operations make of a value.

use crate::wire::ddp::{Stag, TaggedOffset};
use crate::wire::rdmap::{AtomicOperation, AtomicRequest, AtomicResponse, RdmapWireError};
use proptest::prelude::*;

#[rustfmt::skip]
const REQUEST: [u8; 52] = [
    0x00, 0x00, 0x00, 0x02,                         // CmpSwap
    0x11, 0x12, 0x13, 0x14,                         // request identifier
    0x21, 0x22, 0x23, 0x24,                         // remote STag
    0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38, // remote tagged offset
    0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48, // swap data
    0x51, 0x52, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, // swap mask
    0x61, 0x62, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68, // compare data
    0x71, 0x72, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78, // compare mask
];

fn request(operation: AtomicOperation) -> AtomicRequest {
    AtomicRequest {
        identifier: 0x1112_1314,
        stag: Stag(0x2122_2324),
        offset: TaggedOffset(0x3132_3334_3536_3738),
        operation,
    }
}

fn emitted(request: &AtomicRequest) -> [u8; 52] {
    let mut octets = [0xee; AtomicRequest::LEN];
    assert_eq!(request.emit(&mut octets), 52);
    octets
}

// rfc: 7306-4, 7306-17 both atomic operations, with all their fields
#[test]
fn each_field_of_an_atomic_request() {
    let swap = request(AtomicOperation::CmpSwap {
        swap: 0x4142_4344_4546_4748,
        swap_mask: 0x5152_5354_5556_5758,
        compare: 0x6162_6364_6566_6768,
        compare_mask: 0x7172_7374_7576_7778,
    });
    assert_eq!(AtomicRequest::parse(&REQUEST), Ok(swap));
    assert_eq!(emitted(&swap), REQUEST);

    // What FetchAdd does not use is sent as section 5.2.1 says, and not looked at.
    let add = request(AtomicOperation::FetchAdd {
        add: 0x4142_4344_4546_4748,
        mask: 0x5152_5354_5556_5758,
    });
    let mut octets = REQUEST;
    octets[3] = 0;
    assert_eq!(AtomicRequest::parse(&octets), Ok(add));
    octets[36..44].fill(0);
    octets[44..].fill(0xff);
    assert_eq!(emitted(&add), octets);

    let mut reserved = REQUEST;
    reserved[..4].copy_from_slice(&[0xff, 0xff, 0xff, 0xf2]);
    assert_eq!(AtomicRequest::parse(&reserved), Ok(swap));
}

// rfc: 7306-24 an unknown atomic operation is an error
#[test]
fn operation_codes() {
    for code in 0..16 {
        let mut octets = REQUEST;
        octets[3] = code;
        let parsed = AtomicRequest::parse(&octets);
        match code {
            0 | 2 => assert_eq!(emitted(&parsed.unwrap())[3], code),
            _ => assert_eq!(parsed, Err(RdmapWireError::AtomicOperation(code))),
        }
    }
}

#[test]
fn each_field_of_an_atomic_response() {
    let octets = [1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18];
    let response = AtomicResponse {
        identifier: 0x0102_0304,
        original: 0x1112_1314_1516_1718,
    };
    assert_eq!(AtomicResponse::parse(&octets), Ok(response));
    let mut back = [0xee; AtomicResponse::LEN];
    assert_eq!(response.emit(&mut back), 12);
    assert_eq!(back, octets);
}

#[test]
fn atomic_messages_have_one_length() {
    let longer = [&REQUEST[..], &[0]].concat();
    let length = |header, octets| RdmapWireError::Length { header, octets };
    for len in (0..52).chain([53]) {
        let parsed = AtomicRequest::parse(&longer[..len]);
        assert_eq!(parsed, Err(length("Atomic Request", len)));
    }
    for len in (0..12).chain([13]) {
        let parsed = AtomicResponse::parse(&longer[..len]);
        assert_eq!(parsed, Err(length("Atomic Response", len)));
    }
}

/// Section 5.1.1, bit by bit: an adder whose carry ends behind each bit of the mask.
fn added(original: u64, add: u64, mask: u64) -> u64 {
    let mut carry = 0;
    let mut result = 0;
    for bit in 0..64 {
        let sum = carry + (original >> bit & 1) + (add >> bit & 1);
        result |= (sum & 1) << bit;
        carry = if mask >> bit & 1 == 1 { 0 } else { sum >> 1 };
    }
    result
}

/// Section 5.1.2, bit by bit.
fn swapped(original: u64, swap: u64, swap_mask: u64, compare: u64, compare_mask: u64) -> u64 {
    let bit = |of: u64, at: u32| of >> at & 1;
    let equal = (0..64)
        .filter(|&at| bit(compare_mask, at) == 1)
        .all(|at| bit(original, at) == bit(compare, at));
    (0..64).fold(0, |result, at| {
        let from = if equal && bit(swap_mask, at) == 1 {
            swap
        } else {
            original
        };
        result | bit(from, at) << at
    })
}

/// Values and masks of every shape: none, all, one bit, runs, fields of equal width, and any.
fn shapes() -> impl Strategy<Value = u64> {
    let run = (0u32..64, 0u32..64).prop_map(|(from, len)| (u64::MAX >> (63 - len)) << from);
    let fields = (0u32..6, 0u32..64).prop_map(|(log, shift)| {
        let width = 1 << log;
        (0..64 / width).fold(0, |mask, field| mask | 1 << ((field * width + shift) % 64))
    });
    let bit = (0u32..64).prop_map(|at| 1 << at);
    prop_oneof![Just(0), Just(u64::MAX), bit, run, fields, any::<u64>()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn fetch_add_is_the_adder_of_the_rfc(original in shapes(), add in shapes(), mask in shapes()) {
        let operation = AtomicOperation::FetchAdd { add, mask };
        prop_assert_eq!(operation.apply(original), added(original, add, mask));
        let whole = AtomicOperation::FetchAdd { add, mask: 0 };
        prop_assert_eq!(whole.apply(original), original.wrapping_add(add));
    }

    // rfc: 7306-9 CmpSwap writes the swap data under its mask, or leaves the memory as it was
    #[test]
    fn cmp_swap_swaps_what_the_masks_say(
        original in shapes(),
        swap in shapes(),
        swap_mask in shapes(),
        compare in shapes(),
        compare_mask in shapes(),
        found: bool,
    ) {
        let compare = if found { original ^ compare & !compare_mask } else { compare };
        let operation = AtomicOperation::CmpSwap { swap, swap_mask, compare, compare_mask };
        let expected = swapped(original, swap, swap_mask, compare, compare_mask);
        prop_assert_eq!(operation.apply(original), expected);
    }
}

#[test]
fn each_octet_counts_by_itself_under_a_mask_of_octets() {
    let operation = AtomicOperation::FetchAdd {
        add: 0x0101_0101_0101_0101,
        mask: 0x8080_8080_8080_8080,
    };
    assert_eq!(
        operation.apply(0x00ff_7f80_fe01_ff00),
        0x0100_8081_ff02_0001
    );
}
