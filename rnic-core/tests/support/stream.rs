//! TCP connections out of frames: a reassembly of its own, to check ours against.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use rnic_core::wire::packet::{self, Checksums};
use rnic_core::wire::tcp::Seq;

use super::pcap::Capture;

/// One direction of a connection.
#[derive(Default)]
pub(crate) struct Stream {
    /// Sequence number of the first octet.
    start: Seq,
    /// What came so far, in order.
    pub(crate) octets: Vec<u8>,
    /// Where each segment with something new ended.
    pub(crate) cuts: Vec<usize>,
    /// Octets ahead of order, by their place in the stream.
    ahead: BTreeMap<usize, Vec<u8>>,
}

impl Stream {
    fn receive(&mut self, seq: Seq, payload: &[u8]) {
        // A segment from before the start of the stream would be a keep-alive: none is here.
        self.ahead
            .insert(seq.distance_from(self.start) as usize, payload.to_vec());
        while let Some((&at, _)) = self.ahead.first_key_value()
            && at <= self.octets.len()
        {
            let segment = self.ahead.remove(&at).unwrap();
            let known = self.octets.len() - at;
            if known < segment.len() {
                self.octets.extend(&segment[known..]);
                self.cuts.push(self.octets.len());
            }
        }
    }

    /// The stream as its segments brought it, from `start` on.
    pub(crate) fn segments(&self, start: usize) -> impl Iterator<Item = &[u8]> {
        let mut from = start;
        self.cuts.iter().filter_map(move |&to| {
            let segment = self
                .octets
                .get(from..to)
                .filter(|segment| !segment.is_empty())?;
            from = to;
            Some(segment)
        })
    }
}

/// Both directions of a connection.
pub(crate) struct Connection {
    pub(crate) initiator: SocketAddr,
    pub(crate) from_initiator: Stream,
    pub(crate) from_responder: Stream,
    /// Whether a RST was seen.
    pub(crate) reset: bool,
}

/// The connections of a capture, in the order of their SYNs.
pub(crate) fn connections(capture: &Capture) -> Vec<Connection> {
    let checksums = if capture.has_partial_checksums() {
        Checksums::Unnecessary
    } else {
        Checksums::None
    };
    let mut connections: Vec<Connection> = Vec::new();
    for frame in &capture.frames {
        let packet = packet::parse(frame, checksums).unwrap();
        let header = packet.segment.header;
        if header.flags.syn() && !header.flags.ack() {
            connections.push(Connection {
                initiator: packet.source,
                from_initiator: Stream {
                    start: header.seq + 1,
                    ..Default::default()
                },
                from_responder: Stream::default(),
                reset: false,
            });
            continue;
        }
        let ends = [packet.source, packet.destination];
        let connection = connections
            .iter_mut()
            .rfind(|known| ends.contains(&known.initiator));
        let connection = connection.expect("a SYN precedes every other segment");
        connection.reset |= header.flags.rst();
        let stream = if packet.source == connection.initiator {
            &mut connection.from_initiator
        } else {
            &mut connection.from_responder
        };
        if header.flags.syn() {
            stream.start = header.seq + 1;
        } else if !packet.segment.payload.is_empty() {
            stream.receive(header.seq, packet.segment.payload);
        }
    }
    connections
}
