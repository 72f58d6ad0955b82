//! Frames, start-up frames, FPDUs and markers.

use super::fault::Fault;
use crate::decoder::Rule;
use crate::script::{HEADERS, MSS, What};
use crate::talk::{does, says, untagged};

/// Makes the checksums of a frame right again; the frame has no options.
fn resum(frame: &mut [u8]) {
    let sum = |octets: &[u8], start: u32| {
        let pairs = octets.chunks(2);
        let words =
            pairs.map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
        let mut sum = start + words.sum::<u32>();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        (!sum as u16).to_be_bytes()
    };
    frame[50..52].fill(0);
    let pseudo = frame[26..34].to_vec();
    let len = frame.len() as u32 - 34;
    let words = pseudo
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let start = words.sum::<u32>() + 6 + len;
    let computed = sum(&frame[34..], start);
    frame[50..52].copy_from_slice(&computed);
}

/// One of the octets of a start-up frame is another one.
macro_rules! octet {
    ($name:literal, $at:literal, $value:expr) => {
        |script| script.says($name)[$at] = $value
    };
}

pub(super) const FRAMES: &[Fault] = &[
    ("TCP checksum", Rule::Frame, |script| {
        script.at("Send").frame = Some(|frame| frame[HEADERS + 3] ^= 1);
    }),
    ("IP checksum", Rule::Frame, |script| {
        script.at("Send").frame = Some(|frame| frame[22] ^= 1);
    }),
    ("IP length", Rule::Frame, |script| {
        script.at("Send").frame = Some(|frame| frame[17] -= 1);
    }),
    ("other octets when sent again", Rule::Stream, |script| {
        let mut again = does(0, "again", What::Again(100..140));
        again.frame = Some(|frame| {
            frame[HEADERS + 20] ^= 1;
            resum(frame);
        });
        script.behind("Immediate", again);
    }),
    ("a segment is left out", Rule::Stream, |script| {
        script.at("Send").frame = Some(|frame| {
            frame.truncate(12);
            frame.extend([0x08, 0x06]);
        });
    }),
    ("data behind FIN", Rule::Stream, |script| {
        let fin = does(0, "early FIN", What::Fin);
        script.behind("long Send, last", fin);
    }),
    ("data behind RST", Rule::Stream, |script| {
        script.behind("Write, last", does(0, "RST", What::Reset));
    }),
    ("a segment larger than MSS", Rule::SegmentSize, |script| {
        let data = vec![0; usize::from(MSS)];
        *script.says("Send") = untagged(true, 3, [0, 0, 1, 0], &data);
    }),
    ("an FPDU in two segments", Rule::Alignment, |script| {
        script.at("Write, first").cuts = vec![800];
    }),
    (
        "a segment ends inside the next FPDU",
        Rule::Alignment,
        |script| {
            script.at("Send").joined = true;
            script.at("long Send, first").cuts = vec![400];
        },
    ),
];

pub(super) const STARTUP: &[Fault] = &[
    (
        "key of the Request",
        Rule::StartupFrame,
        octet!("Request", 9, b'p'),
    ),
    (
        "key of the Reply",
        Rule::StartupFrame,
        octet!("Reply", 9, b'q'),
    ),
    (
        "reserved bit",
        Rule::StartupFrame,
        octet!("Request", 16, 0x51),
    ),
    ("revision", Rule::StartupFrame, octet!("Request", 17, 3)),
    (
        "a Request that rejects",
        Rule::StartupFrame,
        octet!("Request", 16, 0x70),
    ),
    (
        "S in revision 1",
        Rule::StartupFrame,
        octet!("Request", 17, 1),
    ),
    ("S without data", Rule::StartupFrame, |script| {
        let request = script.says("Request");
        request.truncate(20);
        request[19] = 0;
    }),
    ("too many private data", Rule::StartupFrame, |script| {
        let request = script.says("Request");
        request[18..20].copy_from_slice(&513_u16.to_be_bytes());
        request.resize(20 + 513, 0);
    }),
    (
        "B without A",
        Rule::StartupFrame,
        octet!("Request", 20, 0x40),
    ),
    ("another revision", Rule::StartupAgreement, |script| {
        script.says("Reply")[16..18].copy_from_slice(&[0x40, 1]);
    }),
    (
        "no S to S",
        Rule::StartupAgreement,
        octet!("Reply", 16, 0x40),
    ),
    (
        "A to none",
        Rule::StartupAgreement,
        octet!("Reply", 20, 0xc0),
    ),
    ("A without a way", Rule::StartupAgreement, |script| {
        script.says("Request")[20] |= 0xc0;
        script.says("Reply")[20] |= 0x80;
    }),
    (
        "ORD above IRD",
        Rule::StartupAgreement,
        octet!("Reply", 23, 5),
    ),
    ("ORD negotiated", Rule::StartupAgreement, |script| {
        script.says("Request")[20..22].copy_from_slice(&[0x3f, 0xff]);
    }),
    ("IRD negotiated", Rule::StartupAgreement, |script| {
        script.says("Request")[22..24].copy_from_slice(&[0x3f, 0xff]);
    }),
    (
        "a Reply to a Request that has not come",
        Rule::StartupOrder,
        |script| {
            script.at("Reply").deaf = true;
        },
    ),
    ("an FPDU before the Reply", Rule::StartupOrder, |script| {
        script.at("Write, first").deaf = true;
    }),
    (
        "an FPDU before there is a Reply",
        Rule::StartupOrder,
        |script| {
            script.steps.swap(3, 4);
        },
    ),
    ("the responder is first", Rule::StartupOrder, |script| {
        script.drop("Write, first");
        script.drop("Write, last");
        let early = says(1, "early", untagged(true, 3, [0, 0, 1, 0], b"!"));
        script.behind("Reply", early);
        script.says("Send with Invalidate")[13] = 2;
    }),
    (
        "an FPDU that the responder has not heard",
        Rule::StartupOrder,
        |script| {
            let mut early = says(1, "early", untagged(true, 3, [0, 0, 1, 0], b"!"));
            early.deaf = true;
            script.behind("Write, first", early);
            script.says("Send with Invalidate")[13] = 2;
        },
    ),
    (
        "FPDUs after a Reply that rejects",
        Rule::StartupOrder,
        octet!("Reply", 16, 0x70),
    ),
    ("does not begin as agreed", Rule::StartupOrder, |script| {
        // By a Read, and by nothing else.
        for name in ["Request", "Reply"] {
            script.says(name)[20] |= 0x80;
            script.says(name)[22] |= 0x40;
        }
    }),
];

pub(super) const MPA: &[Fault] = &[
    ("no room for a DDP header", Rule::FpduLength, |script| {
        script.says("Send").truncate(17);
    }),
    ("nothing at all", Rule::FpduLength, |script| {
        script.says("Send").clear()
    }),
    (
        "the stream ends inside an FPDU",
        Rule::FpduLength,
        |script| {
            script.at("Terminate").after_crc = Some(|fpdu| fpdu.truncate(20));
        },
    ),
    ("more pad than there is", Rule::FpduLength, |script| {
        script.at("Terminate").after_crc = Some(|fpdu| fpdu.extend([0; 2]));
    }),
    ("pad", Rule::Padding, |script| {
        script.at("long Send, last").before_crc = Some(|fpdu| *fpdu.last_mut().unwrap() = 1);
    }),
    ("CRC", Rule::Crc, |script| {
        script.at("Send").after_crc = Some(|fpdu| *fpdu.last_mut().unwrap() ^= 1);
    }),
    ("the CRC in another order", Rule::Crc, |script| {
        script.at("Send").after_crc = Some(|fpdu| {
            let crc = fpdu.len() - 4;
            fpdu[crc..].reverse();
        });
    }),
    ("payload that the CRC does not cover", Rule::Crc, |script| {
        script.at("Send").after_crc = Some(|fpdu| fpdu[21] ^= 1);
    }),
    ("no CRC", Rule::Crc, |script| {
        script.at("Send").after_crc = Some(|fpdu| {
            let crc = fpdu.len() - 4;
            fpdu[crc..].fill(0);
        });
    }),
];

/// With markers, the first FPDU begins with one, and has others 512 and 1,024 octets later.
pub(super) const MARKERS: &[Fault] = &[
    ("the first marker points", Rule::Marker, |script| {
        script.at("Write, first").before_crc = Some(|fpdu| fpdu[3] = 4);
    }),
    ("a marker points behind", Rule::Marker, |script| {
        script.at("Write, first").before_crc = Some(|fpdu| fpdu[512 + 3] -= 4);
    }),
    ("a marker points before", Rule::Marker, |script| {
        script.at("Write, first").before_crc = Some(|fpdu| fpdu[1024 + 3] -= 8);
    }),
    (
        "a marker points to the one before it",
        Rule::Marker,
        |script| {
            script.at("Write, first").before_crc = Some(|fpdu| fpdu[1024 + 2..][..2].fill(2));
        },
    ),
    ("reserved octets", Rule::Marker, |script| {
        script.at("Write, first").before_crc = Some(|fpdu| fpdu[512] = 1);
    }),
    ("a marker too early", Rule::Marker, |script| {
        script.at("Write, first").before_crc = Some(|fpdu| fpdu[508..516].rotate_left(4));
    }),
    ("no markers", Rule::Marker, |script| {
        script.markers[0] = false
    }),
    ("markers that nobody asked for", Rule::Crc, |script| {
        script.says("Reply")[16] &= 0x7f;
    }),
];
