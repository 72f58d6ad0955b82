//! A decoder of iWARP traffic for tests, written from the figures of RFC 5044, 6581, 5041, 5040 and 7306 alone: it
//! shares no code with the engine. It sees frames as they are sent, puts both streams of each connection together,
//! reads them down to RDMAP, and objects to whatever the standards do not allow.
//!
//! A half of a connection is *judged* if all of it is to be right, as with a host. The others, such as peers that do
//! wrong on purpose, are only listened to, because what they say decides what is right for the other half.

#![allow(dead_code)] // each test uses some of it

mod ddp;
pub(crate) mod frame;
mod mpa;
mod rdmap;
mod startup;
mod stream;
pub(crate) mod terminate;

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;

use frame::TcpFrame;
use startup::Startup;
use stream::Stream;

/// What an objection is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Rule {
    /// Lengths and checksums of IP and TCP.
    Frame,
    /// Octets that are sent again are the same; nothing is left out; nothing comes behind the end.
    Stream,
    /// Fields of the start-up frames: RFC 5044 section 7.1.1, RFC 6581 section 6.
    StartupFrame,
    /// What the Reply answers to the Request: RFC 6581 section 9.
    StartupAgreement,
    /// Who speaks when during start-up: RFC 5044 section 7.1.2, RFC 6581 section 9.2.
    StartupOrder,
    /// ULPDU_Length and how the stream ends: RFC 5044 section 4.1.
    FpduLength,
    /// Pad octets are zero: RFC 5044 section 4.1.
    Padding,
    /// Markers stand where they belong and point to where they must: RFC 5044 section 4.3.
    Marker,
    /// RFC 5044 section 4.4.
    Crc,
    /// An FPDU stands whole in one TCP segment: RFC 5044 section 5.1.
    Alignment,
    /// A segment is no longer than the peer can take: RFC 5044 section 4.5.
    SegmentSize,
    /// DDP's version and reserved bits: RFC 5041 section 4.1.
    DdpControl,
    /// RDMAP's version, reserved bits, and Invalidate STag where there is none: RFC 5040 section 4.1.
    RdmapControl,
    /// An opcode that is known, in its queue or to a tagged buffer: RFC 5040 figure 4, RFC 7306 figure 2.
    Opcode,
    /// Messages are numbered from one in each queue: RFC 5041 section 4.3.
    Msn,
    /// The Message Offsets of a message are contiguous: RFC 5041 section 5.1.
    MessageOffset,
    /// So are its Tagged Offsets, and they do not wrap.
    TaggedOffset,
    /// All segments of a message share their fields, and the last of them, and no other, says that it is.
    Message,
    /// Messages that have one form have it: Read Requests, Immediate Data, Atomics.
    MessageFormat,
    /// No more Reads and Atomics are outstanding than the peer takes: RFC 6581 section 9.1.
    Depth,
    /// Each Response answers the oldest Request, and is what was asked for: RFC 5040 section 5.2.2, RFC 7306.
    Response,
    /// Format of a Terminate: RFC 5040 section 4.8.
    Terminate,
    /// A Terminate quotes what the peer has said.
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

    /// Whether it is uncertain, without it, what the rest of the stream means to the other half.
    fn confuses(self) -> bool {
        use Rule::*;
        let harmless = matches!(self, Padding | Alignment | SegmentSize | Depth);
        !harmless && !matches!(self, Terminate | TerminateQuote)
    }
}

/// Something that is not as it must be.
#[derive(Clone, Debug)]
pub(crate) struct Objection {
    pub(crate) rule: Rule,
    /// Who said it, and where in its stream.
    pub(crate) place: String,
    pub(crate) what: String,
}

impl fmt::Display for Objection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}: {}", self.rule, self.place, self.what)
    }
}

/// What was understood so far: a test that hears nothing would object to nothing.
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
}

/// One direction of a connection.
struct Half {
    initiator: bool,
    judged: bool,
    stream: Stream,
    /// Octets of the other half's stream that it has acknowledged.
    acknowledged: u64,
    startup: Option<Startup>,
    mpa: mpa::State,
    ddp: ddp::State,
    rdmap: rdmap::State,
    terminate: terminate::State,
    /// Octets that have been read.
    read: u64,
    /// It said something wrong, so that what follows from it is not known.
    wrong: bool,
}

impl Half {
    fn new(initiator: bool) -> Self {
        Self {
            initiator,
            judged: false,
            stream: Stream::default(),
            acknowledged: 0,
            startup: None,
            mpa: mpa::State::default(),
            ddp: ddp::State::default(),
            rdmap: rdmap::State::default(),
            terminate: terminate::State::default(),
            read: 0,
            wrong: false,
        }
    }
}

/// Both directions: first the initiator's.
struct Connection {
    halves: [Half; 2],
}

/// Where a check notes what it finds.
struct Findings<'a> {
    objections: &'a mut Vec<Objection>,
    heard: &'a mut Heard,
    judged: bool,
    wrong: bool,
    place: String,
}

impl Findings<'_> {
    fn object(&mut self, rule: Rule, what: impl Into<String>) {
        self.wrong |= rule.confuses();
        if self.judged {
            let place = self.place.clone();
            let what = what.into();
            self.objections.push(Objection { rule, place, what });
        }
    }

    fn demand(&mut self, holds: bool, rule: Rule, what: impl FnOnce() -> String) {
        if !holds {
            self.object(rule, what());
        }
    }
}

/// Listens to all connections of a network.
#[derive(Default)]
pub(crate) struct Decoder {
    connections: HashMap<[SocketAddr; 2], Connection>,
    /// Whoever sends need not align FPDUs with TCP segments.
    pub(crate) unaligned: bool,
    /// TCP checksums are left to the device.
    pub(crate) partial_checksums: bool,
    pub(crate) heard: Heard,
    objections: Vec<Objection>,
}

impl Decoder {
    /// Hears a frame as it is sent, before anything happens to it.
    pub(crate) fn hear(&mut self, judged: bool, frame: &[u8]) {
        self.heard.frames += 1;
        match frame::parse(frame, !self.partial_checksums) {
            Ok(Some(tcp)) => self.segment(judged, &tcp),
            Ok(None) => {}
            Err(what) if judged => self.objections.push(Objection {
                rule: Rule::Frame,
                place: format!("frame {}", self.heard.frames),
                what,
            }),
            Err(_) => {}
        }
    }

    /// Notes that a frame arrives: its receiver learns the window in it. A side that has learned no window yet is taken to
    /// have room.
    pub(crate) fn arrive(&mut self, frame: &[u8]) {
        let Ok(Some(tcp)) = frame::parse(frame, true) else {
            return;
        };
        let keys = [[tcp.source, tcp.destination], [tcp.destination, tcp.source]];
        for (key, sender) in keys.into_iter().zip([0, 1]) {
            if let Some(connection) = self.connections.get_mut(&key) {
                let [first, second] = &mut connection.halves;
                let (sender, receiver) = if sender == 0 {
                    (first, second)
                } else {
                    (second, first)
                };
                receiver.stream.hear_window(&tcp, &sender.stream);
            }
        }
    }

    /// What it has objected to since the last call.
    pub(crate) fn take_objections(&mut self) -> Vec<Objection> {
        std::mem::take(&mut self.objections)
    }

    /// Hears a frame, and panics if there is anything to object to.
    pub(crate) fn insist(&mut self, judged: bool, frame: &[u8]) {
        self.hear(judged, frame);
        let objections = self.take_objections();
        assert!(
            objections.is_empty(),
            "the decoder objects:\n{}",
            objections
                .iter()
                .map(|objection| format!("  {objection}\n"))
                .collect::<String>()
        );
    }

    fn segment(&mut self, judged: bool, tcp: &TcpFrame<'_>) {
        let initiates = tcp.syn && tcp.ack.is_none();
        let (there, back) = ([tcp.source, tcp.destination], [tcp.destination, tcp.source]);
        if initiates {
            let known = self.connections.get(&there);
            if known.is_none_or(|known| known.halves[0].stream.is_another(tcp.seq)) {
                // The ports are used again, by either side as initiator.
                self.connections.remove(&back);
                let halves = [true, false].map(Half::new);
                self.connections.insert(there, Connection { halves });
            }
        }
        let (key, side) = if self.connections.contains_key(&there) {
            (there, 0)
        } else {
            (back, 1)
        };
        // A segment of no connection: an answer to a stray one.
        let Some(connection) = self.connections.get_mut(&key) else {
            return;
        };
        let [first, second] = &mut connection.halves;
        let (speaker, listener) = if side == 0 {
            (first, second)
        } else {
            (second, first)
        };
        speaker.judged = judged;
        let mut findings = Findings {
            objections: &mut self.objections,
            heard: &mut self.heard,
            judged,
            wrong: speaker.wrong,
            place: format!("{} -> {}", tcp.source, tcp.destination),
        };
        speaker.stream.take(tcp, &listener.stream, &mut findings);
        if let Some(ack) = tcp.ack
            && let Some(offset) = listener.stream.offset_of(ack)
        {
            speaker.acknowledged = speaker.acknowledged.max(offset.max(0) as u64);
        }
        let aligned = !self.unaligned;
        read(speaker, listener, aligned, &mut findings);
        speaker.wrong = findings.wrong;
        // It may have said more than could be understood without this.
        findings.judged = listener.judged;
        findings.wrong = listener.wrong;
        findings.place = format!("{} -> {}", tcp.destination, tcp.source);
        read(listener, speaker, aligned, &mut findings);
        listener.wrong = findings.wrong;
    }
}

/// Reads on in the speaker's stream, as far as it has come.
fn read(speaker: &mut Half, listener: &mut Half, aligned: bool, findings: &mut Findings<'_>) {
    let place = findings.place.clone();
    loop {
        findings.place = format!("{place} at octet {}", speaker.read);
        let begin = speaker.read;
        let is_fpdu = speaker.startup.is_some();
        let done = if is_fpdu {
            mpa::read(speaker, listener, findings)
        } else if let Some(done) = mpa::read_no_reply(speaker, listener, findings) {
            done
        } else {
            startup::read(speaker, listener, findings)
        };
        if !done {
            break;
        }
        if aligned {
            speaker
                .stream
                .demand_one_segment(begin..speaker.read, is_fpdu, findings);
        }
    }
    if let Some(end) = speaker.stream.end() {
        findings.demand(end == speaker.read, Rule::FpduLength, || {
            format!("the stream ends in the middle, at octet {end}")
        });
    }
}
