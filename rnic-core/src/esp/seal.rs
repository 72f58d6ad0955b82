//! Frames to send: those that policies protect are sealed on their way to the device.
//!
//! The frame that TCP holds stays plain. Each transmission of it is sealed into a frame of its own,
//! with a number of its own, so that what is sent again has the same payload and no nonce comes
//! twice.

use core::net::{IpAddr, SocketAddr};
use core::ops::Range;
use std::collections::VecDeque;
use std::sync::Arc;

use crate::memory::frames::{FrameId, TxFrames};
use crate::wire::checksum::Checksums;
use crate::wire::encapsulation;
use crate::wire::esp::{self, EspHeader, HEADER_LEN, TRAILER_LEN};
use crate::wire::icmp::{EspTooBig, least_mtu};
use crate::wire::ip::{IpPacket, emit_outer, header_len, set_ethertype, set_payload};
use crate::wire::packet::addresses;

use super::change::Request;
use super::cipher::Shape;
use super::flow::Decisions;
use super::required::RequiredPorts;
use super::sa::{Mode, OutboundSa, Rank, Sa, SaId};
use super::selector::{Action, Demand, Selector, Template, action};

/// Frames that are left to what is sealed: what the engine has built must find one.
const SEALED_FRAMES: usize = 16;

/// The most requests that wait when one for an association is added. A packet that waits for one is
/// sent again, and then asked for again.
const MOST_REQUESTS: usize = 64;

/// What becomes of the packets between two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    Bypass,
    Discard,
    /// Sealed by the association at this place.
    Seal(usize),
    /// There is no association for them yet.
    Wait,
}

/// An association, and how it stands among others.
type Ranked = (Arc<OutboundSa>, Rank);

/// Seals frames, as the policies for what is sent say.
#[derive(Debug, Default)]
pub struct Sealer {
    associations: Vec<Ranked>,
    /// Policies for what is sent, those with precedence first.
    demands: Vec<Demand>,
    choices: Decisions<Choice>,
    required: RequiredPorts,
    requests: VecDeque<Request>,
    scratch: Vec<u8>,
    sealed: u64,
    unsealed: u64,
}

impl Sealer {
    pub(super) fn new(required: RequiredPorts) -> Self {
        Self {
            required,
            ..Self::default()
        }
    }

    pub(super) fn set_demands(&mut self, demands: Vec<Demand>) {
        self.demands = demands;
        self.choices.clear();
    }

    pub(super) fn add(&mut self, association: Arc<OutboundSa>) {
        self.remove(association.sa.id);
        let rank = Rank::new(association.age);
        self.associations.push((association, rank));
    }

    pub(super) fn remove(&mut self, id: SaId) {
        self.associations.retain(|(known, _)| known.sa.id != id);
        self.choices.clear();
    }

    /// Returns what is known of an association.
    pub(super) fn known(&self, id: SaId) -> Option<&Sa> {
        let mut all = self.associations.iter().map(|(known, _)| &known.sa);
        all.find(|sa| sa.id == id)
    }

    pub(super) fn let_die(&mut self, id: SaId) {
        let mut all = self.associations.iter_mut();
        if let Some((_, rank)) = all.find(|(known, _)| known.sa.id == id) {
            rank.stays = false;
            self.choices.clear();
        }
    }

    pub(super) fn poll_request(&mut self) -> Option<Request> {
        self.requests.pop_front()
    }

    /// Returns what was counted since the last call: frames sealed, and frames that had to be and
    /// could not.
    pub(super) fn take_counts(&mut self) -> (u64, u64) {
        (
            core::mem::take(&mut self.sealed),
            core::mem::take(&mut self.unsealed),
        )
    }

    fn ask_for_association(&mut self, template: Template, local: IpAddr, remote: IpAddr) {
        let request = Request::Acquire {
            template: template.between(local, remote),
            local,
            remote,
        };
        if self.requests.len() < MOST_REQUESTS {
            self.requests.push_back(request);
        }
    }

    /// Returns the MTU of what is sent between two hosts, so that with what protects it it is no
    /// longer than `mtu`. Fails while there is no association for some of it, with what is demanded.
    pub(super) fn inner_mtu(
        &self,
        local: IpAddr,
        remote: IpAddr,
        mtu: u16,
    ) -> Result<u16, Template> {
        let mut least = mtu;
        for (place, demand) in self.demands.iter().enumerate() {
            let Action::Protect(template) = demand.action else {
                continue;
            };
            let Selector {
                local_ports,
                remote_ports,
                ..
            } = demand.selector;
            let has_precedence = |first: &Demand| {
                first.selector.selects_some(local, remote)
                    && first.selector.local_ports.covers(local_ports)
                    && first.selector.remote_ports.covers(remote_ports)
            };
            let selects = demand.selector.selects_some(local, remote);
            if !selects || self.demands[..place].iter().any(has_precedence) {
                continue;
            }
            let ends = template.ends(local, remote);
            let found = youngest(ranked(&self.associations), &template, ends).ok_or(template)?;
            least = least.min(self.associations[found].0.inner_mtu(mtu));
        }
        Ok(least)
    }

    /// Asks for an association that is missing for what is sent between two hosts.
    pub(super) fn ask(&mut self, local: IpAddr, remote: IpAddr) {
        if let Err(template) = self.inner_mtu(local, remote, u16::MAX) {
            self.ask_for_association(template, local, remote);
        }
    }

    /// Returns the association that has sent a packet of late about which a router's message is.
    /// Anybody can forge one (RFC 4301 section 8.2).
    pub(super) fn has_sent(&self, told: &EspTooBig) -> Option<&OutboundSa> {
        let id = SaId {
            spi: told.header.spi,
            destination: told.destination,
        };
        let mut all = self.associations.iter().map(|(known, _)| &**known);
        all.find(|known| {
            known.sa.id == id
                && known.sa.source == told.source
                && known.numbers().used_lately(told.header.number)
        })
    }

    /// Returns the MTU that a router leaves to what is sent between two hosts. Returns `None` if its
    /// message is not about that, or about a packet that was not sent of late.
    pub(super) fn narrowed(&self, told: &EspTooBig, local: IpAddr, remote: IpAddr) -> Option<u16> {
        let association = self.has_sent(told)?;
        let is_for = |demand: &Demand| match demand.action {
            Action::Protect(template) => {
                demand.selector.selects_some(local, remote)
                    && template.admits(&association.sa, template.ends(local, remote))
            }
            Action::Bypass | Action::Discard => false,
        };
        let mtu = told.mtu.max(least_mtu(told.destination));
        let is_for_them = self.demands.iter().any(is_for);
        is_for_them.then(|| association.inner_mtu(mtu))
    }

    /// Returns what becomes of what is sent between two ends.
    fn choose(&mut self, local: SocketAddr, remote: SocketAddr) -> Choice {
        let Self {
            demands,
            associations,
            ..
        } = self;
        self.choices
            .find(local, remote, || match action(&*demands, local, remote) {
                Action::Bypass => Choice::Bypass,
                Action::Discard => Choice::Discard,
                Action::Protect(template) => {
                    let ends = template.ends(local.ip(), remote.ip());
                    let found = youngest(ranked(associations), &template, ends);
                    found.map_or(Choice::Wait, Choice::Seal)
                }
            })
    }

    /// Returns what becomes of what is sent between two ends, which may have to be protected even
    /// where no policy says so.
    fn choose_for(&mut self, local: SocketAddr, remote: SocketAddr) -> Choice {
        match self.choose(local, remote) {
            Choice::Bypass if self.required.contains(local.port()) => Choice::Discard,
            choice => choice,
        }
    }

    /// Returns whether what is sent between two ends goes as it is.
    pub(super) fn sends_plain(&mut self, local: SocketAddr, remote: SocketAddr) -> bool {
        self.choose_for(local, remote) == Choice::Bypass
    }

    /// Sends a frame, sealed if it has to be. One that cannot be sealed is not sent: TCP sends it
    /// again.
    fn transmit<F: TxFrames>(&mut self, tx: &mut F, frame: FrameId, len: usize) {
        let ends = addresses(&tx.bytes(frame)[..len]);
        let choice = ends.map_or(Choice::Discard, |(local, remote)| {
            self.choose_for(local, remote)
        });
        let sealed = match choice {
            Choice::Bypass => return tx.transmit(frame, len),
            Choice::Discard => None,
            Choice::Seal(place) => self.seal(tx, place, frame, len),
            Choice::Wait => {
                if let Some((local, remote)) = ends
                    && let Action::Protect(template) = action(&self.demands, local, remote)
                {
                    self.ask_for_association(template, local.ip(), remote.ip());
                }
                None
            }
        };
        match sealed {
            Some((sealed, len)) => {
                self.sealed += 1;
                tx.transmit(sealed, len);
                tx.release(sealed);
            }
            // rfc: 5040-128, 5041-104, 5042-6, 5044-91
            None => self.unsealed += 1,
        }
    }

    /// Seals a frame into another one. Returns that and its length.
    fn seal<F: TxFrames>(
        &mut self,
        tx: &mut F,
        place: usize,
        frame: FrameId,
        len: usize,
    ) -> Option<(FrameId, usize)> {
        let (association, _) = &self.associations[place];
        if association.usage().is_spent() {
            // What is sent again goes by another one, or asks for it.
            let id = association.sa.id;
            self.remove(id);
            return None;
        }
        let number = association.numbers().take(association.alone);
        if association.numbers().is_low() {
            // Each association waits for one at most, and none may get lost: it is not repeated.
            self.requests.push_back(Request::Numbers(association.sa.id));
        }
        let (number, sealed) = (number?, tx.allocate()?);
        let scratch = &mut self.scratch;
        let written = write(association, tx, number, (frame, len), sealed, scratch);
        if written.is_none() {
            tx.release(sealed);
        }
        written.map(|len| (sealed, len))
    }
}

fn ranked(associations: &[Ranked]) -> impl Iterator<Item = (&Sa, Rank)> {
    associations.iter().map(|(known, rank)| (&known.sa, *rank))
}

/// Returns the place of the association to use of those that a policy can use between two ends: the
/// youngest that is not dying, as the kernel chooses.
pub(super) fn youngest<'a>(
    associations: impl Iterator<Item = (&'a Sa, Rank)>,
    template: &Template,
    ends: (IpAddr, IpAddr),
) -> Option<usize> {
    let all = associations.enumerate();
    let found = all.filter(|(_, (sa, _))| template.admits(sa, ends));
    let found = found.max_by_key(|(_, (_, rank))| *rank);
    found.map(|(place, _)| place)
}

/// Writes a frame, sealed, into another one. Returns its length, `None` if it is too long, or the
/// association has come to its end.
fn write<F: TxFrames>(
    association: &OutboundSa,
    tx: &mut F,
    number: u64,
    (frame, len): (FrameId, usize),
    sealed: FrameId,
    scratch: &mut Vec<u8>,
) -> Option<usize> {
    // It was built here: its lengths are right.
    let packet = IpPacket::of_frame(&tx.bytes(frame)[..len], Checksums::Unnecessary).ok()?;
    let Shape { iv, block, icv } = association.cipher.shape();
    let inner = match association.sa.mode {
        Mode::Transport => packet.payload_at..packet.end,
        Mode::Tunnel => packet.at..packet.end,
    };
    let outer_len = match association.sa.mode {
        Mode::Transport => packet.payload_at - packet.at,
        Mode::Tunnel => header_len(association.sa.id.destination),
    };
    let outer_at = packet.at + outer_len;
    let esp_at = outer_at + association.sa.encapsulation_len();
    let text_at = esp_at + HEADER_LEN + iv;
    let text_end = text_at + inner.len() + esp::padding(inner.len(), block) + TRAILER_LEN;
    let end = text_end + icv;
    if end > tx.bytes(sealed).len() {
        return None;
    }

    let payload_end = text_at + inner.len();
    if !association.usage().count(inner.len(), association.alone) {
        return None;
    }
    tx.copy(frame, inner, sealed, text_at);
    let front = match association.sa.mode {
        Mode::Transport => packet.payload_at,
        Mode::Tunnel => packet.at,
    };
    tx.copy(frame, 0..front, sealed, 0);
    let octets = &mut tx.bytes_mut(sealed)[..end];
    let next_header = write_outer(association, &packet, octets, end - outer_at);
    let header = EspHeader {
        spi: association.sa.id.spi,
        number: number as u32,
    };
    header.emit(&mut octets[esp_at..]);
    esp::emit_trailer(&mut octets[payload_end..text_end], next_header);
    let label = association.label(number);
    let text = &mut octets[esp_at + HEADER_LEN..];
    association.cipher.seal(&label, text, scratch);
    if let Some(ports) = association.sa.encapsulation {
        let Sa { source, id, .. } = association.sa;
        ports.emit(&mut octets[outer_at..], source, id.destination);
    }
    Some(end)
}

/// Writes the IP header in front of what is sealed, which is `len` octets. Returns what that is.
fn write_outer(association: &OutboundSa, packet: &IpPacket, octets: &mut [u8], len: usize) -> u8 {
    let sa = &association.sa;
    let protocol = match sa.encapsulation {
        Some(_) => encapsulation::PROTOCOL,
        None => esp::PROTOCOL,
    };
    match sa.mode {
        Mode::Transport => {
            set_payload(&mut octets[packet.at..], protocol, len);
            packet.protocol
        }
        Mode::Tunnel => {
            // rfc: 5040-126, 5041-102
            // Class and ECN of what is inside (RFC 6040 section 4.1, normal mode).
            let outer = (protocol, packet.traffic_class);
            set_ethertype(&mut octets[..packet.at], sa.id.destination);
            emit_outer(
                &mut octets[packet.at..],
                (sa.source, sa.id.destination),
                outer,
                len,
            );
            match packet.source {
                IpAddr::V4(_) => esp::IPV4,
                IpAddr::V6(_) => esp::IPV6,
            }
        }
    }
}

/// Transmit frames of a device, which are sealed on their way there.
pub struct Sealing<'a, F> {
    tx: &'a mut F,
    sealer: &'a mut Sealer,
}

impl<'a, F: TxFrames> Sealing<'a, F> {
    /// Seals what is sent by `tx`.
    pub fn new(tx: &'a mut F, sealer: &'a mut Sealer) -> Self {
        Self { tx, sealer }
    }
}

impl<F: TxFrames> TxFrames for Sealing<'_, F> {
    fn allocate(&mut self) -> Option<FrameId> {
        match self.available() {
            0 => None,
            _ => self.tx.allocate(),
        }
    }

    fn available(&self) -> usize {
        self.tx.available().saturating_sub(SEALED_FRAMES)
    }

    fn total(&self) -> usize {
        self.tx.total().saturating_sub(SEALED_FRAMES)
    }

    fn bytes(&self, frame: FrameId) -> &[u8] {
        self.tx.bytes(frame)
    }

    fn bytes_mut(&mut self, frame: FrameId) -> &mut [u8] {
        self.tx.bytes_mut(frame)
    }

    fn copy(&mut self, from: FrameId, range: Range<usize>, to: FrameId, at: usize) {
        self.tx.copy(from, range, to, at);
    }

    fn busy(&self, frame: FrameId) -> bool {
        self.tx.busy(frame)
    }

    fn can_transmit(&self) -> bool {
        self.tx.can_transmit() && self.tx.available() > 0
    }

    fn transmit(&mut self, frame: FrameId, len: usize) {
        self.sealer.transmit(self.tx, frame, len);
    }

    fn release(&mut self, frame: FrameId) {
        self.tx.release(frame);
    }
}
