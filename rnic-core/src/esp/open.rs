//! Received frames: those that are protected are opened, and plain ones that had to be are dropped.

use core::net::{IpAddr, SocketAddr};
use core::ops::Range;
use std::collections::HashSet;
use std::sync::Arc;

use crate::counters::{DropCounters, DropReason};
use crate::wire::checksum::Checksums;
use crate::wire::encapsulation::{self, UdpPorts};
use crate::wire::error::PacketError;
use crate::wire::esp::{self, EspHeader};
use crate::wire::ip::{IpPacket, set_ecn, set_ethertype, set_payload};
use crate::wire::packet::{CONGESTION_EXPERIENCED, addresses};
use crate::wire::tcp;

use super::cipher::Shape;
use super::flow::Decisions;
use super::inbound::InboundSas;
use super::required::RequiredPorts;
use super::sa::{InboundSa, Mode, Sa, SaId};
use super::selector::{Action, Demand, action};

/// What became of a received frame.
#[derive(Clone, Debug)]
enum Verdict {
    /// It goes to the engine as it came.
    Plain,
    /// What was in it is here, in the buffer.
    Opened(Range<usize>),
    Dropped,
}

/// A frame for the engine.
#[derive(Debug)]
pub enum Opened<'a, T> {
    /// As it came.
    Plain(T),
    /// What was protected, as if it had come plain.
    Inside(&'a [u8]),
}

impl<T: AsRef<[u8]>> AsRef<[u8]> for Opened<'_, T> {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Plain(frame) => frame.as_ref(),
            Self::Inside(octets) => octets,
        }
    }
}

/// Opens frames, and enforces the policies for what arrives.
#[derive(Debug, Default)]
pub struct Opener {
    associations: InboundSas,
    /// Policies for what arrives, those with precedence first.
    demands: Vec<Demand>,
    /// The addresses of this host: an end of a tunnel gets packets for others too.
    own: HashSet<IpAddr>,
    decisions: Decisions<Action>,
    required: RequiredPorts,
    /// The frames of a batch, and what was in those that were opened. Both are used again.
    verdicts: Vec<Verdict>,
    buffer: Vec<u8>,
    scratch: Vec<u8>,
    opened: u64,
    drops: DropCounters,
}

impl Opener {
    pub(super) fn new(required: RequiredPorts) -> Self {
        Self {
            required,
            ..Self::default()
        }
    }

    pub(super) fn set_demands(&mut self, demands: Vec<Demand>) {
        self.demands = demands;
        self.decisions.clear();
    }

    pub(super) fn set_own(&mut self, own: Vec<IpAddr>) {
        self.own = own.into_iter().collect();
    }

    pub(super) fn add(&mut self, association: Arc<InboundSa>) {
        self.associations.insert(association);
    }

    pub(super) fn remove(&mut self, id: SaId) {
        self.associations.remove(id);
    }

    /// Returns what was counted since the last call.
    pub(super) fn take_counts(&mut self) -> (u64, DropCounters) {
        (
            core::mem::take(&mut self.opened),
            core::mem::take(&mut self.drops),
        )
    }

    /// Looks at a batch of frames, and opens those that are protected. What is for the engine,
    /// [`frames`](Self::frames) returns.
    pub fn open(&mut self, frames: impl Iterator<Item = (impl AsRef<[u8]>, Checksums)>) {
        self.verdicts.clear();
        self.buffer.clear();
        for (frame, checksums) in frames {
            let verdict = self
                .judge(frame.as_ref(), checksums)
                .unwrap_or_else(|reason| {
                    self.drops.count(reason);
                    Verdict::Dropped
                });
            self.verdicts.push(verdict);
        }
    }

    /// Returns what is for the engine of the frames that were looked at. Those that go to it as they
    /// came are asked for again.
    pub fn frames<'a, T: AsRef<[u8]>>(
        &'a self,
        frames: impl Iterator<Item = impl FnOnce() -> (T, Checksums)>,
    ) -> impl Iterator<Item = (Opened<'a, T>, Checksums)> {
        let both = frames.zip(&self.verdicts);
        both.filter_map(|(frame, verdict)| match verdict {
            Verdict::Plain => {
                let (frame, checksums) = frame();
                Some((Opened::Plain(frame), checksums))
            }
            // The ICV covers what checksums would.
            Verdict::Opened(range) => {
                let inside = Opened::Inside(&self.buffer[range.clone()]);
                Some((inside, Checksums::Unnecessary))
            }
            Verdict::Dropped => None,
        })
    }

    fn judge(&mut self, frame: &[u8], checksums: Checksums) -> Result<Verdict, DropReason> {
        // What cannot be read, the engine counts and drops.
        let Ok(packet) = IpPacket::of_frame(frame, checksums) else {
            return Ok(Verdict::Plain);
        };
        if matches!(packet.protocol, esp::PROTOCOL | encapsulation::PROTOCOL) {
            let start = self.buffer.len();
            let opened = self.open_packet(frame, &packet);
            if opened.is_err() {
                self.buffer.truncate(start);
            }
            return opened.map(Verdict::Opened);
        }
        let Some((remote, local)) = addresses(frame) else {
            return Ok(Verdict::Plain);
        };
        match decide(&mut self.decisions, &self.demands, local, remote) {
            Action::Bypass if !self.required.contains(local.port()) => Ok(Verdict::Plain),
            Action::Bypass | Action::Discard | Action::Protect(_) => Err(DropReason::Unprotected),
        }
    }

    /// Opens a packet into the buffer. Returns where the plain frame is there.
    fn open_packet(&mut self, frame: &[u8], packet: &IpPacket) -> Result<Range<usize>, DropReason> {
        let malformed = |_| DropReason::EspMalformed;
        let mut payload = &frame[packet.payload_at..packet.end];
        let (mut port, mut end) = (None, packet.end);
        if packet.protocol == encapsulation::PROTOCOL {
            let (ports, inside) = UdpPorts::parse(payload).map_err(malformed)?;
            end = packet.payload_at + encapsulation::HEADER_LEN + inside.len();
            (port, payload) = (Some(ports.destination), inside);
        }
        let (header, protected) = EspHeader::parse(payload).map_err(malformed)?;
        let id = SaId {
            spi: header.spi,
            destination: packet.destination,
        };
        let association = self
            .associations
            .get(id)
            .filter(|found| {
                let to = found.sa.encapsulation.map(|ports| ports.destination);
                found.sa.source == packet.source && to == port && !found.usage().is_spent()
            })
            .ok_or(DropReason::EspUnknown)?;
        let start = self.buffer.len();
        self.buffer.extend_from_slice(&frame[..end]);
        let plain = decrypt(
            association,
            &header,
            protected.len(),
            &mut self.buffer[start..],
            &mut self.scratch,
        )?;
        let sa = &association.sa;
        let range = lay_bare(sa, packet, plain, &mut self.buffer[start..])?;
        let range = start + range.start..start + range.end;

        let (remote, local) =
            addresses(&self.buffer[range.clone()]).ok_or(DropReason::EspMalformed)?;
        let within = match decide(&mut self.decisions, &self.demands, local, remote) {
            Action::Protect(template) => template.admits_inbound(sa, local.ip(), remote.ip()),
            Action::Bypass | Action::Discard => false,
        };
        let is_ours = sa.mode == Mode::Transport || self.own.contains(&local.ip());
        if !within || !is_ours {
            return Err(DropReason::EspOutside);
        }
        self.opened += 1;
        Ok(range)
    }
}

/// Returns what the policies say of what arrives from a peer.
fn decide(
    decisions: &mut Decisions<Action>,
    demands: &[Demand],
    local: SocketAddr,
    remote: SocketAddr,
) -> Action {
    decisions.find(local, remote, || action(demands, local, remote))
}

/// Where what an association has protected lies in a frame: payload, and what it is.
struct Plain {
    payload: Range<usize>,
    next_header: u8,
}

/// Opens the packet that ends `frame`, whose last `len` octets are protected.
fn decrypt(
    association: &InboundSa,
    header: &EspHeader,
    len: usize,
    frame: &mut [u8],
    scratch: &mut Vec<u8>,
) -> Result<Plain, DropReason> {
    let Shape { iv, block, icv } = association.cipher.shape();
    let text = len.checked_sub(iv + icv).ok_or(DropReason::EspMalformed)?;
    if text == 0 || text % block != 0 {
        return Err(DropReason::EspMalformed);
    }
    let replayed = || {
        association.usage().replay();
        DropReason::EspReplayed
    };
    let window = association.window();
    let new = window.whole(header.number);
    let new = new.filter(|number| window.is_new(*number));
    let number = new.ok_or_else(replayed)?;
    let label = association.label(number);
    let at = frame.len() - len;
    // rfc: 5040-125, 5041-101, 7146-4, 7146-5
    let opened = association.cipher.open(&label, &mut frame[at..], scratch);
    if opened.is_err() {
        association.usage().forge();
        return Err(DropReason::EspForged);
    }
    let text_at = at + iv;
    let (payload, next_header) = esp::parse_trailer(&frame[text_at..text_at + text])
        .map_err(|_| DropReason::EspMalformed)?;
    let payload = text_at..text_at + payload.len();
    // Another worker may have been faster.
    if !window.receive(number, association.alone) {
        return Err(replayed());
    }
    if !association.usage().count(payload.len(), association.alone) {
        return Err(DropReason::EspUnknown);
    }
    Ok(Plain {
        payload,
        next_header,
    })
}

/// Makes a plain frame of what was protected: moves the headers that stay in front of it. Returns
/// where it is.
fn lay_bare(
    sa: &Sa,
    packet: &IpPacket,
    plain: Plain,
    frame: &mut [u8],
) -> Result<Range<usize>, DropReason> {
    let Plain {
        payload,
        next_header,
    } = plain;
    match (sa.mode, next_header) {
        (Mode::Transport, tcp::PROTOCOL) => {
            let start = payload.start - packet.payload_at;
            frame.copy_within(..packet.payload_at, start);
            set_payload(&mut frame[start + packet.at..], next_header, payload.len());
            Ok(start..payload.end)
        }
        (Mode::Tunnel, esp::IPV4 | esp::IPV6) => {
            let start = payload.start - packet.at;
            frame.copy_within(..packet.at, start);
            let version: IpAddr = match next_header {
                esp::IPV4 => [0; 4].into(),
                _ => [0; 16].into(),
            };
            set_ethertype(&mut frame[start..payload.start], version);
            let whole = &mut frame[start..payload.end];
            let inner = IpPacket::of_frame(whole, Checksums::None).map_err(unreadable)?;
            carry_mark(packet.traffic_class, &inner, whole)?;
            Ok(start..start + inner.end)
        }
        _ => Err(DropReason::EspMalformed),
    }
}

fn unreadable(error: PacketError) -> DropReason {
    match error {
        PacketError::Fragment => DropReason::Fragment,
        _ => DropReason::EspMalformed,
    }
}

/// Tells the packet in a tunnel what routers have told the one around it (RFC 6040 section 4.2).
fn carry_mark(outer: u8, inner: &IpPacket, frame: &mut [u8]) -> Result<(), DropReason> {
    let ecn = |class: u8| class & 3;
    if ecn(outer) != CONGESTION_EXPERIENCED || ecn(inner.traffic_class) == CONGESTION_EXPERIENCED {
        return Ok(());
    }
    if ecn(inner.traffic_class) == 0 {
        // Its sender would not heed the mark: it is dropped instead.
        return Err(DropReason::EspMalformed);
    }
    set_ecn(&mut frame[inner.at..], CONGESTION_EXPERIENCED);
    Ok(())
}
