//! DDP segments, and the messages of RDMAP.

use super::fault::Fault;
use crate::decoder::Rule;
use crate::script::What;
use crate::talk::{atomic, atomic_response, does, read_request, says, tagged, terminate, untagged};

pub(super) const DDP: &[Fault] = &[
    ("reserved bit", Rule::DdpControl, |script| {
        script.says("Send")[0] |= 0x04
    }),
    ("version 0", Rule::DdpControl, |script| {
        script.says("Send")[0] &= 0xfc
    }),
    ("version 2", Rule::DdpControl, |script| {
        script.says("Write, last")[0] ^= 0x03
    }),
    ("an MSN once more", Rule::Msn, |script| {
        script.says("long Send, first")[13] = 1;
        script.says("long Send, last")[13] = 1;
    }),
    ("an MSN is left out", Rule::Msn, |script| {
        script.says("Immediate")[13] = 4
    }),
    ("the first MSN is 0", Rule::Msn, |script| {
        script.says("Send with Invalidate")[13] = 0
    }),
    ("the MSN of a Read", Rule::Msn, |script| {
        script.says("empty Read")[13] = 3
    }),
    (
        "the MSN of an Atomic counts with Reads",
        Rule::Msn,
        |script| {
            script.says("FetchAdd")[13] = 1;
        },
    ),
    ("the MSN of an Atomic Response", Rule::Msn, |script| {
        script.says("second atomic Response")[13] = 4;
    }),
    ("the MSN of a Terminate", Rule::Msn, |script| {
        script.says("Terminate")[13] = 2
    }),
    ("the MSN within a message", Rule::Msn, |script| {
        script.says("long Send, last")[13] = 3;
    }),
    ("MO at the start", Rule::MessageOffset, |script| {
        script.says("Send")[17] = 1
    }),
    ("MO that leaves out", Rule::MessageOffset, |script| {
        script.says("long Send, last")[17] += 1;
    }),
    ("MO that overlaps", Rule::MessageOffset, |script| {
        script.says("long Send, last")[17] -= 1;
    }),
    ("TO that leaves out", Rule::TaggedOffset, |script| {
        script.says("Write, last")[13] += 1
    }),
    ("TO that overlaps", Rule::TaggedOffset, |script| {
        script.says("Write, last")[13] -= 1
    }),
    ("TO wraps", Rule::TaggedOffset, |script| {
        script.says("Write, first")[6..14].fill(0xff)
    }),
    ("L on a segment too early", Rule::MessageOffset, |script| {
        script.says("long Send, first")[0] |= 0x40;
    }),
    ("L missing", Rule::Message, |script| {
        script.says("Write, last")[0] &= 0xbf
    }),
    ("another STag", Rule::Message, |script| {
        script.says("Write, last")[5] ^= 1
    }),
    ("another opcode", Rule::Message, |script| {
        script.says("long Send, last")[1] = 0x43
    }),
    ("another queue", Rule::Message, |script| {
        script.says("long Send, last")[9] = 1
    }),
    ("another RsvdULP", Rule::Message, |script| {
        script.says("long Send, last")[5] = 1
    }),
    ("another message in between", Rule::Message, |script| {
        let between = untagged(true, 3, [0, 0, 3, 0], b"between");
        script.behind("Write, first", says(0, "between", between));
    }),
    (
        "a segment of nothing behind others",
        Rule::Message,
        |script| {
            script.says("Write, last").truncate(14);
        },
    ),
    (
        "a segment of nothing that is not the last",
        Rule::Message,
        |script| {
            script.says("empty Response")[0] &= 0xbf;
        },
    ),
];

pub(super) const RDMAP: &[Fault] = &[
    ("version 0", Rule::RdmapControl, |script| {
        script.says("Send")[1] = 0x03
    }),
    ("version 2", Rule::RdmapControl, |script| {
        script.says("Write, first")[1] = 0x80
    }),
    ("reserved bit", Rule::RdmapControl, |script| {
        script.says("Send")[1] |= 0x20
    }),
    ("Invalidate STag in a Send", Rule::RdmapControl, |script| {
        script.says("Send")[5] = 1
    }),
    ("Invalidate STag in a Read", Rule::RdmapControl, |script| {
        script.says("Read")[2] = 1
    }),
    (
        "Invalidate STag in Immediate Data",
        Rule::RdmapControl,
        |script| {
            script.says("Immediate")[2] = 1;
        },
    ),
    ("an opcode that is none", Rule::Opcode, |script| {
        script.says("Send")[1] = 0x4c
    }),
    ("a tagged Send", Rule::Opcode, |script| {
        *script.says("Send") = tagged(true, 3, 1, 0, 4);
    }),
    ("an untagged Write", Rule::Opcode, |script| {
        script.says("Send")[1] = 0x40
    }),
    ("a Send to queue 1", Rule::Opcode, |script| {
        script.says("Send")[9] = 1
    }),
    ("a Read Request to queue 0", Rule::Opcode, |script| {
        script.says("Read")[9] = 0
    }),
    ("a Terminate to queue 0", Rule::Opcode, |script| {
        script.says("Terminate")[9] = 0
    }),
    ("Immediate Data to queue 1", Rule::Opcode, |script| {
        script.says("Immediate")[9] = 1
    }),
    ("an Atomic Response to queue 0", Rule::Opcode, |script| {
        script.says("first atomic Response")[9] = 0;
    }),
    ("a queue that nobody has", Rule::Opcode, |script| {
        script.says("Send")[6] = 1
    }),
    ("a Read Request too short", Rule::MessageFormat, |script| {
        script.says("Read").pop();
    }),
    ("a Read Request too long", Rule::MessageFormat, |script| {
        script.says("Read").push(0)
    }),
    (
        "a Read Request that goes on",
        Rule::MessageFormat,
        |script| {
            script.says("Read")[0] &= 0xbf;
        },
    ),
    ("Immediate Data too short", Rule::MessageFormat, |script| {
        script.says("Immediate").pop();
    }),
    ("an Atomic too long", Rule::MessageFormat, |script| {
        script.says("FetchAdd").push(0)
    }),
    ("an Atomic that is none", Rule::MessageFormat, |script| {
        *script.says("FetchAdd") = atomic(3, 1, 70);
    }),
    (
        "reserved bits of an Atomic",
        Rule::MessageFormat,
        |script| {
            *script.says("FetchAdd") = atomic(3, 0x10, 70);
        },
    ),
    ("a FetchAdd that compares", Rule::MessageFormat, |script| {
        script.says("FetchAdd")[18 + 43] = 4;
    }),
    (
        "an Atomic Response too short",
        Rule::MessageFormat,
        |script| {
            script.says("first atomic Response").pop();
        },
    ),
    ("too many Reads", Rule::Depth, |script| {
        for (name, msn) in [("third", 3), ("fourth", 4)] {
            let more = says(0, name, read_request(msn, (0x13, 0), 10));
            script.behind("empty Read", more);
        }
    }),
    (
        "a Read before the Response has come",
        Rule::Depth,
        |script| {
            // Two were answered, but the answers are under way.
            let third = says(0, "third", read_request(3, (0x13, 0), 10));
            script.behind("empty Read", third);
            let mut fourth = says(0, "fourth", read_request(4, (0x14, 0), 10));
            fourth.deaf = true;
            script.behind("empty Response", fourth);
        },
    ),
    ("more Atomics than Reads are taken", Rule::Depth, |script| {
        script.says("Reply")[21] = 1;
    }),
];

pub(super) const RESPONSES: &[Fault] = &[
    ("another STag", Rule::Response, |script| {
        script.says("Response, first")[5] ^= 1;
        script.says("Response, last")[5] ^= 1;
    }),
    ("another TO", Rule::Response, |script| {
        script.says("Response, first")[13] += 1;
        script.says("Response, last")[13] += 1;
    }),
    ("too long", Rule::Response, |script| {
        script.says("Response, last").push(0)
    }),
    ("too short", Rule::Response, |script| {
        script.says("Response, last").pop();
    }),
    ("ends early", Rule::Response, |script| {
        script.says("Response, first")[0] |= 0x40;
        script.drop("Response, last");
    }),
    ("the second first", Rule::Response, |script| {
        script.drop("empty Response");
        let early = says(1, "early", tagged(true, 2, 0x12, 0, 0));
        script.behind("empty Read", early);
    }),
    ("twice", Rule::Response, |script| {
        let twice = says(1, "twice", tagged(true, 2, 0x12, 0, 0));
        script.behind("empty Response", twice);
    }),
    ("never asked for", Rule::Response, |script| {
        let response = says(1, "response", tagged(true, 2, 0x12, 0, 0));
        script.behind("Send with Invalidate", response);
    }),
    ("before the Request has come", Rule::Response, |script| {
        script.at("Response, first").deaf = true;
    }),
    (
        "a Read is answered as an Atomic",
        Rule::Response,
        |script| {
            *script.says("empty Response") = atomic_response(1, 70);
            script.says("first atomic Response")[13] = 2;
            script.says("second atomic Response")[13] = 3;
        },
    ),
    ("another identifier", Rule::Response, |script| {
        script.says("first atomic Response")[21] ^= 1;
    }),
];

pub(super) const TERMINATES: &[Fault] = &[
    ("a layer that is none", Rule::Terminate, |script| {
        script.says("Terminate")[18] = 0x31
    }),
    ("a type that is none", Rule::Terminate, |script| {
        script.says("Terminate")[18] = 0x03
    }),
    ("a code that is none", Rule::Terminate, |script| {
        script.says("Terminate")[19] = 0x05
    }),
    ("reserved bits", Rule::Terminate, |script| {
        script.says("Terminate")[20] |= 1
    }),
    ("more reserved bits", Rule::Terminate, |script| {
        script.says("Terminate")[21] |= 1
    }),
    ("D without M", Rule::Terminate, |script| {
        script.says("Terminate")[20] &= 0x7f
    }),
    ("M without D", Rule::Terminate, |script| {
        *script.says("Terminate") = terminate([0x01, 0x02], 0x80, &[0, 46]);
    }),
    ("R without an RDMA header", Rule::Terminate, |script| {
        script.says("Terminate").truncate(18 + 4 + 2 + 18);
    }),
    ("an RDMA header without R", Rule::Terminate, |script| {
        script.says("Terminate")[20] &= 0xdf;
    }),
    ("headers of a catastrophe", Rule::Terminate, |script| {
        script.says("Terminate")[18..20].copy_from_slice(&[0, 0]);
    }),
    ("headers with an error of MPA", Rule::Terminate, |script| {
        script.says("Terminate")[18..20].copy_from_slice(&[0x20, 2]);
    }),
    (
        "the RDMA header with an error of DDP",
        Rule::Terminate,
        |script| {
            script.says("Terminate")[18..20].copy_from_slice(&[0x11, 0]);
        },
    ),
    ("cut short", Rule::Terminate, |script| {
        script.says("Terminate").truncate(18 + 10)
    }),
    ("shorter than its control", Rule::Terminate, |script| {
        script.says("Terminate").truncate(18 + 3);
    }),
    ("another header is quoted", Rule::TerminateQuote, |script| {
        script.says("Terminate")[18 + 4 + 2 + 13] ^= 1;
    }),
    ("another length is quoted", Rule::TerminateQuote, |script| {
        script.says("Terminate")[18 + 5] += 1;
    }),
    ("another Read is quoted", Rule::TerminateQuote, |script| {
        script.says("Terminate")[18 + 4 + 2 + 18 + 3] ^= 1;
    }),
    (
        "a Read is quoted that has done more than was asked",
        Rule::TerminateQuote,
        |script| {
            script.says("Terminate")[18 + 4 + 2 + 18 + 12] ^= 1;
        },
    ),
    ("an FPDU behind it", Rule::AfterTerminate, |script| {
        let late = says(1, "late", untagged(true, 3, [0, 0, 2, 0], b"!"));
        script.behind("Terminate", late);
    }),
    ("a second Terminate", Rule::AfterTerminate, |script| {
        let second = says(1, "second", untagged(true, 7, [0, 2, 2, 0], &[0; 4]));
        script.behind("Terminate", second);
    }),
    (
        "octets that are no FPDU behind it",
        Rule::AfterTerminate,
        |script| {
            script.behind("Terminate", does(1, "octets", What::Octets(vec![0; 3])));
        },
    ),
];
