//! What the decoder finds: what it has understood, and the violations.

use std::fmt;

/// What an objection is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Rule {
    /// Lengths and checksums of IP and TCP.
    Frame,
    /// Retransmitted octets are the same; nothing is left out; nothing comes behind the end.
    Stream,
    /// Fields of the start-up frames: RFC 5044 section 7.1.1, RFC 6581 section 6.
    StartupFrame,
    /// The Reply fits the Request: RFC 6581 section 9.
    StartupAgreement,
    /// Which side may send when during start-up: RFC 5044 section 7.1.2, RFC 6581 section 9.2.
    StartupOrder,
    /// ULPDU_Length and how the stream ends: RFC 5044 section 4.1.
    FpduLength,
    /// Pad octets are zero: RFC 5044 section 4.1.
    Padding,
    /// Markers stand in their places and point to the starts of FPDUs: RFC 5044 section 4.3.
    Marker,
    /// RFC 5044 section 4.4.
    Crc,
    /// An FPDU stands whole in one TCP segment: RFC 5044 section 5.1.
    Alignment,
    /// A segment is no longer than the peer can take: RFC 5044 section 4.5.
    SegmentSize,
    /// DDP's version and reserved bits: RFC 5041 section 4.1.
    DdpControl,
    /// RDMAP's version, reserved bits, and Invalidate STag where there is none: RFC 5040 section
    /// 4.1.
    RdmapControl,
    /// An opcode that is known, in its queue or to a tagged buffer: RFC 5040 figure 4, RFC 7306
    /// figure 2.
    Opcode,
    /// Messages are numbered from one in each queue: RFC 5041 section 4.3.
    Msn,
    /// The Message Offsets of a message are contiguous: RFC 5041 section 5.1.
    MessageOffset,
    /// So are its Tagged Offsets, and they do not wrap.
    TaggedOffset,
    /// All segments of a message share their fields, and only the last has the L bit.
    Message,
    /// Messages of fixed form have it: Read Requests, Immediate Data, Atomics.
    MessageFormat,
    /// No more Reads and Atomics are outstanding than the peer takes: RFC 6581 section 9.1.
    Depth,
    /// Each Response is to the oldest Request, and is what was asked for: RFC 5040 section 5.2.2,
    /// RFC 7306.
    Response,
    /// Format of a Terminate: RFC 5040 section 4.8.
    Terminate,
    /// A Terminate quotes what the peer has sent.
    TerminateQuote,
    /// Nothing comes behind a Terminate: RFC 5040 section 7.
    AfterTerminate,
}

impl Rule {
    /// Each of them.
    pub(crate) const ALL: [Self; 24] = [
        Self::Frame,
        Self::Stream,
        Self::StartupFrame,
        Self::StartupAgreement,
        Self::StartupOrder,
        Self::FpduLength,
        Self::Padding,
        Self::Marker,
        Self::Crc,
        Self::Alignment,
        Self::SegmentSize,
        Self::DdpControl,
        Self::RdmapControl,
        Self::Opcode,
        Self::Msn,
        Self::MessageOffset,
        Self::TaggedOffset,
        Self::Message,
        Self::MessageFormat,
        Self::Depth,
        Self::Response,
        Self::Terminate,
        Self::TerminateQuote,
        Self::AfterTerminate,
    ];

    /// Returns whether it is uncertain, without it, what the rest of the stream means to the other
    /// half.
    fn confuses(self) -> bool {
        use Rule::*;
        let harmless = matches!(self, Padding | Alignment | SegmentSize | Depth);
        !harmless && !matches!(self, Terminate | TerminateQuote)
    }
}

/// A violation of a rule.
#[derive(Clone, Debug)]
pub(crate) struct Objection {
    pub(crate) rule: Rule,
    /// The side that sent it, and the place in its stream.
    pub(crate) place: String,
    pub(crate) what: String,
}

impl fmt::Display for Objection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}: {}", self.rule, self.place, self.what)
    }
}

/// What was understood so far: a decoder that reads nothing would find nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Heard {
    pub(crate) frames: u64,
    pub(crate) retransmitted_octets: u64,
    pub(crate) startups: u64,
    pub(crate) fpdus: u64,
    pub(crate) markers: u64,
    pub(crate) crcs: u64,
    pub(crate) messages: u64,
    pub(crate) responses: u64,
    pub(crate) terminates: u64,
    pub(crate) controls: u64,
}

/// Where a check records what it finds.
pub(super) struct Findings<'a> {
    pub(super) objections: &'a mut Vec<Objection>,
    pub(super) heard: &'a mut Heard,
    pub(super) judged: bool,
    /// The opcodes of RC are agreed on.
    pub(super) rc: bool,
    /// FPDUs must be aligned with TCP segments, so that none comes in pieces.
    pub(super) aligned: bool,
    pub(super) wrong: bool,
    pub(super) place: String,
}

impl Findings<'_> {
    /// Records a violation, if this half is judged.
    pub(super) fn object(&mut self, rule: Rule, what: impl Into<String>) {
        self.wrong |= rule.confuses();
        if self.judged {
            let place = self.place.clone();
            let what = what.into();
            self.objections.push(Objection { rule, place, what });
        }
    }

    /// Records a violation unless something `holds`.
    pub(super) fn demand(&mut self, holds: bool, rule: Rule, what: impl FnOnce() -> String) {
        if !holds {
            self.object(rule, what());
        }
    }
}
