//! A conversation in which everything is right, and everything occurs.

use crate::script::{Script, Step, What};

fn step(by: usize, name: &'static str, what: What) -> Step {
    Step {
        name,
        by,
        what,
        deaf: false,
        before_crc: None,
        after_crc: None,
        frame: None,
        cuts: Vec::new(),
        joined: false,
    }
}

pub(crate) fn says(by: usize, name: &'static str, ulpdu: Vec<u8>) -> Step {
    step(by, name, What::Fpdu(ulpdu))
}

pub(crate) fn does(by: usize, name: &'static str, what: What) -> Step {
    step(by, name, what)
}

/// A start-up frame of revision 2.
pub(crate) fn startup(key: &[u8; 16], flags: u8, ird: u16, ord: u16) -> Vec<u8> {
    let mut octets = key.to_vec();
    octets.extend([flags | 0x10, 2, 0, 6]);
    octets.extend(ird.to_be_bytes());
    octets.extend(ord.to_be_bytes());
    octets.extend(b"hi");
    octets
}

/// A tagged segment.
pub(crate) fn tagged(last: bool, opcode: u8, stag: u32, offset: u64, len: usize) -> Vec<u8> {
    let mut ulpdu = vec![if last { 0xc1 } else { 0x81 }, 0x40 | opcode];
    ulpdu.extend(stag.to_be_bytes());
    ulpdu.extend(offset.to_be_bytes());
    ulpdu.extend((0..len).map(|at| at as u8));
    ulpdu
}

/// An untagged segment.
pub(crate) fn untagged(
    last: bool,
    opcode: u8,
    [invalidate, queue, msn, offset]: [u32; 4],
    payload: &[u8],
) -> Vec<u8> {
    let mut ulpdu = vec![if last { 0x41 } else { 0x01 }, 0x40 | opcode];
    for field in [invalidate, queue, msn, offset] {
        ulpdu.extend(field.to_be_bytes());
    }
    ulpdu.extend(payload);
    ulpdu
}

pub(crate) fn read_request(msn: u32, sink: (u32, u64), len: u32) -> Vec<u8> {
    let mut payload = sink.0.to_be_bytes().to_vec();
    payload.extend(sink.1.to_be_bytes());
    payload.extend(len.to_be_bytes());
    payload.extend(0x5555_u32.to_be_bytes());
    payload.extend(0x6666_u64.to_be_bytes());
    untagged(true, 1, [0, 1, msn, 0], &payload)
}

/// FetchAdd is 0, CmpSwap 2.
pub(crate) fn atomic(msn: u32, code: u32, identifier: u32) -> Vec<u8> {
    let mut payload = code.to_be_bytes().to_vec();
    payload.extend(identifier.to_be_bytes());
    payload.extend(0x7777_u32.to_be_bytes());
    payload.extend(64_u64.to_be_bytes());
    payload.extend(5_u64.to_be_bytes());
    payload.extend(u64::MAX.to_be_bytes());
    payload.extend(if code == 2 { 9_u64 } else { 0 }.to_be_bytes());
    payload.extend(u64::MAX.to_be_bytes());
    untagged(true, 10, [0, 1, msn, 0], &payload)
}

pub(crate) fn atomic_response(msn: u32, identifier: u32) -> Vec<u8> {
    let mut payload = identifier.to_be_bytes().to_vec();
    payload.extend(1_u64.to_be_bytes());
    untagged(true, 11, [0, 3, msn, 0], &payload)
}

/// A Terminate with the number of an error, HdrCt, and all that follows.
pub(crate) fn terminate(numbers: [u8; 2], counts: u8, rest: &[u8]) -> Vec<u8> {
    let mut payload = vec![numbers[0], numbers[1], counts, 0];
    payload.extend(rest);
    untagged(true, 7, [0, 2, 1, 0], &payload)
}

/// What a Terminate quotes of a segment: its length and its header.
pub(crate) fn quote(ulpdu: &[u8]) -> Vec<u8> {
    let header = if ulpdu[0] & 0x80 != 0 { 14 } else { 18 };
    let mut quoted = (ulpdu.len() as u16).to_be_bytes().to_vec();
    quoted.extend(&ulpdu[..header]);
    quoted
}

/// The conversation. Both require CRCs, and markers if `markers` says so.
pub(crate) fn talk(markers: bool) -> Script {
    let flags = if markers { 0xc0 } else { 0x40 };
    let refused = read_request(5, (0x44, 0), 700);
    let mut quoted = quote(&refused);
    quoted.extend(&refused[18..]);
    let data = [7; 1000];
    Script {
        markers: [markers; 2],
        steps: vec![
            does(0, "SYN", What::Syn),
            does(1, "SYN-ACK", What::Syn),
            does(
                0,
                "Request",
                What::Octets(startup(b"MPA ID Req Frame", flags, 4, 3)),
            ),
            does(
                1,
                "Reply",
                What::Octets(startup(b"MPA ID Rep Frame", flags, 3, 4)),
            ),
            says(0, "Write, first", tagged(false, 0, 0x22, 1000, 1001)),
            says(0, "Write, last", tagged(true, 0, 0x22, 2001, 500)),
            says(0, "Send", untagged(true, 3, [0, 0, 1, 0], &data[..3])),
            says(
                0,
                "long Send, first",
                untagged(false, 5, [0, 0, 2, 0], &data),
            ),
            says(
                0,
                "long Send, last",
                untagged(true, 5, [0, 0, 2, 1000], &data[..77]),
            ),
            says(
                1,
                "Send with Invalidate",
                untagged(true, 4, [0x99, 0, 1, 0], &data[..42]),
            ),
            says(0, "Read", read_request(1, (0x11, 0x1_0000_0000), 1300)),
            says(0, "empty Read", read_request(2, (0x12, 0), 0)),
            says(
                1,
                "Response, first",
                tagged(false, 2, 0x11, 0x1_0000_0000, 1200),
            ),
            says(
                1,
                "Response, last",
                tagged(true, 2, 0x11, 0x1_0000_0000 + 1200, 100),
            ),
            says(1, "empty Response", tagged(true, 2, 0x12, 0, 0)),
            says(0, "Immediate", untagged(true, 8, [0, 0, 3, 0], &data[..8])),
            says(0, "FetchAdd", atomic(3, 0, 70)),
            says(0, "CmpSwap", atomic(4, 2, 71)),
            says(1, "first atomic Response", atomic_response(1, 70)),
            says(1, "second atomic Response", atomic_response(2, 71)),
            says(0, "bad Read", refused),
            says(1, "Terminate", terminate([0x01, 0x02], 0xe0, &quoted)),
            does(1, "FIN", What::Fin),
            does(0, "FIN-ACK", What::Fin),
        ],
    }
}
