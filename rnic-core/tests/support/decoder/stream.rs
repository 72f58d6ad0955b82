//! One direction of a TCP connection, reassembled from the segments as they are sent.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use super::findings::{Findings, Rule};
use super::frame::TcpFrame;

/// The segment size of a peer that does not state one (RFC 9293 section 3.7.1).
const DEFAULT_MSS: u16 = 536;

/// The smallest room for an FPDU at which alignment is required: RFC 5044 section 4.5, and the
/// overhead of an FPDU.
const MIN_ROOM: usize = 128 + 12;

/// A segment as it was first sent.
#[derive(Clone, Debug)]
struct Cut {
    place: Range<u64>,
    /// Octets that a segment could take.
    room: usize,
    /// Where the peer's window ended.
    edge: u64,
}

/// The octets of a stream.
#[derive(Default)]
pub(super) struct Stream {
    /// Initial sequence numbers that were offered: a listener without state may choose another for
    /// each SYN.
    offered: Vec<u32>,
    /// The one that was chosen.
    isn: Option<u32>,
    mss: Option<u16>,
    window_scale: Option<u8>,
    /// Where the window ended that the peer granted last, as far as the speaker knows.
    edge: Option<u64>,
    /// The acknowledgment of the segment that granted it, and that segment's place in the peer's
    /// stream.
    granted: Option<(i64, i64)>,
    octets: Vec<u8>,
    /// What a peer sent out of order, by its place in the stream.
    ahead: BTreeMap<u64, Vec<u8>>,
    /// Segments as they were first sent that are not read yet.
    cuts: VecDeque<Cut>,
    fin: Option<u64>,
    reset: bool,
    /// The same octets were sent with two contents: the receiver chooses.
    pub(super) ambiguous: bool,
}

impl Stream {
    /// Returns whether a SYN begins another connection than this one.
    pub(super) fn is_another(&self, isn: u32) -> bool {
        !self.offered.contains(&isn)
    }

    /// Returns everything so far.
    pub(super) fn octets(&self) -> &[u8] {
        &self.octets
    }

    /// Where the stream ends, once all that comes before is there.
    pub(super) fn end(&self) -> Option<u64> {
        self.fin.filter(|fin| *fin == self.octets.len() as u64)
    }

    /// The place of a sequence number in the stream; negative before its first octet.
    pub(super) fn offset_of(&self, seq: u32) -> Option<i64> {
        let isn = match (self.isn, &self.offered[..]) {
            (Some(isn), _) => isn,
            (None, [.., last]) => *last,
            (None, []) => return None,
        };
        let len = self.octets.len();
        let near = isn.wrapping_add(1).wrapping_add(len as u32);
        Some(len as i64 + i64::from(seq.wrapping_sub(near).cast_signed()))
    }

    /// Records a segment as it is sent. `listener` is the stream the other way.
    pub(super) fn take(
        &mut self,
        tcp: &TcpFrame<'_>,
        listener: &Self,
        findings: &mut Findings<'_>,
    ) {
        if tcp.syn {
            if self.is_another(tcp.seq) {
                self.offered.push(tcp.seq);
            }
            self.mss = tcp.mss;
            self.window_scale = tcp.window_scale;
            return findings.demand(tcp.payload.is_empty(), Rule::Stream, || {
                "data in a SYN".into()
            });
        }
        self.reset |= tcp.rst;
        if tcp.rst || (tcp.payload.is_empty() && !tcp.fin) {
            return;
        }
        if self.isn.is_none() {
            let isn = tcp.seq.wrapping_sub(1);
            let known = self.offered.contains(&isn);
            self.isn = if findings.judged || known {
                Some(isn)
            } else {
                self.offered.last().copied()
            };
            findings.demand(known, Rule::Stream, || {
                "the first octet does not follow the SYN".into()
            });
        }
        let Some(offset) = self.offset_of(tcp.seq) else {
            return;
        };
        // What comes before the first octet is a keep-alive.
        let skip = tcp.payload.len().min(offset.min(0).unsigned_abs() as usize);
        let at = offset.max(0) as u64;
        if !tcp.payload.is_empty() {
            let room =
                usize::from(listener.mss.unwrap_or(DEFAULT_MSS)).saturating_sub(tcp.options_len);
            findings.demand(tcp.payload.len() <= room, Rule::SegmentSize, || {
                format!("{} octets where the peer takes {room}", tcp.payload.len())
            });
            self.take_octets(at, &tcp.payload[skip..], room, findings);
        }
        if tcp.fin {
            let end = (offset + tcp.payload.len() as i64).max(0) as u64;
            let same = self.fin.is_none_or(|fin| fin == end);
            findings.demand(same, Rule::Stream, || "another FIN".into());
            self.fin.get_or_insert(end);
        }
        let over = self.fin.unwrap_or(u64::MAX);
        findings.demand(self.octets.len() as u64 <= over, Rule::Stream, || {
            "octets behind the FIN".into()
        });
    }

    fn take_octets(&mut self, at: u64, payload: &[u8], room: usize, findings: &mut Findings<'_>) {
        let known = self.octets.len() as u64;
        if at > known {
            if findings.judged {
                findings.object(
                    Rule::Stream,
                    format!("octets {known} to {at} were left out"),
                );
            }
            let kept = self.ahead.entry(at).or_default();
            let common = kept.len().min(payload.len());
            self.ambiguous |= kept[..common] != payload[..common];
            if payload.len() > kept.len() {
                *kept = payload.to_vec();
            }
            return;
        }
        let again = (known - at).min(payload.len() as u64) as usize;
        let before = &self.octets[at as usize..at as usize + again];
        findings.heard.retransmitted_octets += again as u64;
        let same = before == &payload[..again];
        self.ambiguous |= !same;
        findings.demand(same, Rule::Stream, || {
            format!("other octets at {at} than before")
        });
        let fresh = &payload[again..];
        if !fresh.is_empty() {
            findings.demand(!self.reset, Rule::Stream, || "octets behind a RST".into());
            self.cuts.push_back(Cut {
                place: known..known + fresh.len() as u64,
                room,
                edge: self.edge.unwrap_or(u64::MAX),
            });
            self.octets.extend(fresh);
            self.close_gap();
            findings.wrong |= self.ambiguous;
        }
    }

    /// What was sent ahead of order may follow now.
    fn close_gap(&mut self) {
        while let Some((&at, _)) = self.ahead.first_key_value()
            && at <= self.octets.len() as u64
        {
            let octets = self.ahead.remove(&at).unwrap_or_default();
            let known = &self.octets[at as usize..];
            let again = known.len().min(octets.len());
            self.ambiguous |= known[..again] != octets[..again];
            self.octets.extend(&octets[again..]);
        }
    }

    /// An FPDU stands in one segment, with none or with other whole ones, and a start-up frame in a
    /// segment of its own. Only a start-up frame may be longer than a segment.
    pub(super) fn demand_one_segment(
        &mut self,
        unit: Range<u64>,
        is_fpdu: bool,
        findings: &mut Findings<'_>,
    ) {
        let len = (unit.end - unit.start) as usize;
        let mut cuts = Vec::new();
        while let Some(cut) = self.cuts.front()
            && cut.place.start < unit.end
        {
            cuts.push(cut.clone());
            if cut.place.end > unit.end {
                // It holds more; the next unit finds it again.
                break;
            }
            self.cuts.pop_front();
        }
        let small = |room| room < MIN_ROOM || (!is_fpdu && room < len);
        let excused = cuts
            .iter()
            .any(|cut| small(cut.room) || cut.edge < unit.end);
        let whole = match &cuts[..] {
            [cut] if is_fpdu => cut.place.start <= unit.start && unit.end <= cut.place.end,
            [cut] => cut.place == unit,
            _ => false,
        };
        findings.demand(whole || excused, Rule::Alignment, || {
            format!("{unit:?} was sent as {cuts:?}")
        });
    }

    /// A segment of the peer, whose stream is `listener`, has arrived at the speaker. Of one that
    /// is older than another, by its number or by what it acknowledges, or lies beyond the peer's
    /// window, the speaker need not take the window (RFC 9293 sections 3.4 and 3.10.7.4).
    pub(super) fn hear_window(&mut self, tcp: &TcpFrame<'_>, listener: &Self) {
        let scale = match (self.window_scale, listener.window_scale) {
            (Some(_), Some(scale)) if !tcp.syn => scale,
            _ => 0,
        };
        let Some(ack) = tcp.ack.and_then(|ack| self.offset_of(ack)) else {
            return;
        };
        let at = listener.offset_of(tcp.seq).unwrap_or(i64::MIN);
        let edge = (ack + (i64::from(tcp.window) << scale)).max(0) as u64;
        let beyond = listener.edge.is_some_and(|edge| at > edge.cast_signed());
        let older = self
            .granted
            .is_some_and(|(known, place)| ack < known || at < place);
        if beyond || older {
            self.edge = Some(self.edge.map_or(edge, |known| known.min(edge)));
        } else {
            (self.edge, self.granted) = (Some(edge), Some((ack, at)));
        }
    }
}
