//! A decoder of iWARP traffic for tests, written from the figures of RFC 5044, 6581, 5041, 5040 and
//! 7306 alone: it shares no code with the engine. It sees frames as they are sent, reassembles both
//! streams of each connection, reads them up to RDMAP, and reports whatever the standards do not
//! allow.
//!
//! A half of a connection is *judged* if all of it must be right, as with a host. The others, such
//! as peers that violate rules on purpose, are only read, because what they send decides what is
//! right for the other half.

#![allow(dead_code)] // each test uses some of it

mod ddp;
mod findings;
pub(crate) mod frame;
mod half;
mod headers;
mod mpa;
mod rdmap;
mod startup;
mod stream;
pub(crate) mod terminate;

use std::collections::HashMap;
use std::net::SocketAddr;

pub(crate) use self::findings::{Heard, Objection, Rule};

use findings::Findings;
use frame::TcpFrame;
use half::Half;

/// Both directions, the initiator's first.
struct Connection {
    halves: [Half; 2],
}

/// Reads all connections of a network.
#[derive(Default)]
pub(crate) struct Decoder {
    connections: HashMap<[SocketAddr; 2], Connection>,
    /// Senders need not align FPDUs with TCP segments.
    pub(crate) unaligned: bool,
    /// Connections may use the opcodes of the semantics of RC: `ConnectionOptions::rc`.
    pub(crate) rc: bool,
    /// TCP checksums are left to the device.
    pub(crate) partial_checksums: bool,
    pub(crate) heard: Heard,
    objections: Vec<Objection>,
}

impl Decoder {
    /// Reads a frame as it is sent, before anything happens to it.
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

    /// Records that a frame arrives: its receiver learns the window in it. A side that has learned
    /// no window yet is taken to have room.
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

    /// Returns the violations since the last call.
    pub(crate) fn take_objections(&mut self) -> Vec<Objection> {
        std::mem::take(&mut self.objections)
    }

    /// Reads a frame, and panics if it has found a violation.
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
        // A segment of no connection, such as a RST.
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
            rc: self.rc,
            aligned: !self.unaligned,
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
        // It may have sent more than could be understood without this.
        findings.judged = listener.judged;
        findings.wrong = listener.wrong;
        findings.place = format!("{} -> {}", tcp.destination, tcp.source);
        read(listener, speaker, aligned, &mut findings);
        listener.wrong = findings.wrong;
    }
}

/// Reads on in the speaker's stream, as far as it was sent.
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
