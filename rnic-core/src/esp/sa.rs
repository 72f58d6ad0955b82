//! Security Associations (RFC 4301 section 4.4.2): what is known of one, and what it has done.

use core::fmt;
use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;

use crate::wire::encapsulation::{self, UdpPorts};
use crate::wire::esp::{HEADER_LEN, TRAILER_LEN};
use crate::wire::ip::header_len;

use super::cipher::{Algorithm, Cipher, Keys, Label, Shape, UnusableKey, cipher};
use super::numbers::Numbers;
use super::replay::Window;

/// Names an association.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SaId {
    /// Its Security Parameters Index, which the receiver has chosen.
    pub spi: u32,
    /// The receiver.
    pub destination: IpAddr,
}

/// What is protected of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Its payload.
    Transport,
    /// All of it, inside another packet.
    Tunnel,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Transport => "transport",
            Self::Tunnel => "tunnel",
        })
    }
}

/// What both ends of an association know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sa {
    /// Its name.
    pub id: SaId,
    /// The sender.
    pub source: IpAddr,
    /// What is protected.
    pub mode: Mode,
    /// By what.
    pub algorithm: Algorithm,
    /// Sequence numbers have 64 bits (ESN).
    pub extended: bool,
    /// Its packets are in UDP, between these ports.
    pub encapsulation: Option<UdpPorts>,
    /// Ties it to the policies that it is for, as the key manager says (`reqid`).
    pub request: u32,
}

impl Sa {
    /// Returns the octets of the UDP header in front of its packets.
    pub(super) fn encapsulation_len(&self) -> usize {
        match self.encapsulation {
            Some(_) => encapsulation::HEADER_LEN,
            None => 0,
        }
    }
}

/// What an association has done, and may do. Workers count, and others read.
#[derive(Debug)]
pub struct Usage {
    packets: AtomicU64,
    octets: AtomicU64,
    replayed: AtomicU64,
    forged: AtomicU64,
    most_packets: AtomicU64,
    most_octets: AtomicU64,
}

impl Default for Usage {
    fn default() -> Self {
        Self {
            packets: AtomicU64::default(),
            octets: AtomicU64::default(),
            replayed: AtomicU64::default(),
            forged: AtomicU64::default(),
            most_packets: u64::MAX.into(),
            most_octets: u64::MAX.into(),
        }
    }
}

impl Usage {
    /// Sets the packets or octets with which the association ends (RFC 4301 section 4.4.2.1: its hard
    /// lifetime). As in Linux, the last packet may have more octets than were left.
    pub fn limit(&self, packets: u64, octets: u64) {
        self.most_packets.store(packets, Relaxed);
        self.most_octets.store(octets, Relaxed);
    }

    /// Returns whether the association has reached its end.
    pub(super) fn is_spent(&self) -> bool {
        self.packets() >= self.most_packets.load(Relaxed)
            || self.octets() >= self.most_octets.load(Relaxed)
    }

    /// Sets what was counted elsewhere, by one thread alone.
    pub fn set(&self, packets: u64, octets: u64) {
        self.packets.store(packets, Relaxed);
        self.octets.store(octets, Relaxed);
    }

    /// Counts a packet. Returns whether the association may have it: of those that workers have at
    /// once, no more than its limits allow. `alone`: no other worker counts.
    pub(super) fn count(&self, octets: usize, alone: bool) -> bool {
        let octets = octets as u64;
        let packets_before = add(&self.packets, 1, alone);
        let octets_before = add(&self.octets, octets, alone);
        let may = packets_before < self.most_packets.load(Relaxed)
            && octets_before < self.most_octets.load(Relaxed);
        if !may {
            self.packets.fetch_sub(1, Relaxed);
            self.octets.fetch_sub(octets, Relaxed);
        }
        may
    }

    pub(super) fn replay(&self) {
        self.replayed.fetch_add(1, Relaxed);
    }

    pub(super) fn forge(&self) {
        self.forged.fetch_add(1, Relaxed);
    }

    /// Returns the packets that were sealed or opened.
    pub fn packets(&self) -> u64 {
        self.packets.load(Relaxed)
    }

    /// Returns the octets of what was protected.
    pub fn octets(&self) -> u64 {
        self.octets.load(Relaxed)
    }

    /// Returns the packets whose number had been received before, or was too old.
    pub fn replayed(&self) -> u64 {
        self.replayed.load(Relaxed)
    }

    /// Returns the packets whose ICV was wrong.
    pub fn forged(&self) -> u64 {
        self.forged.load(Relaxed)
    }
}

/// Adds to a counter. Returns what it was. Relaxed: nothing else is published by it. Who is `alone` in
/// changing it needs no locked instruction.
fn add(counter: &AtomicU64, by: u64, alone: bool) -> u64 {
    if !alone {
        return counter.fetch_add(by, Relaxed);
    }
    let before = counter.load(Relaxed);
    counter.store(before.wrapping_add(by), Relaxed);
    before
}

/// An association that frames are opened with, by all workers of a device.
pub struct InboundSa {
    /// There is one worker.
    pub(super) alone: bool,
    pub(super) sa: Sa,
    pub(super) cipher: Box<dyn Cipher>,
    window: Window,
    usage: Arc<Usage>,
}

impl InboundSa {
    /// Makes one that has received what the window says.
    pub fn new(sa: Sa, keys: &Keys, window: Window) -> Result<Self, UnusableKey> {
        Ok(Self {
            alone: false,
            cipher: cipher(sa.algorithm, keys)?,
            sa,
            window,
            usage: Arc::default(),
        })
    }

    /// Returns what it has done.
    pub fn usage(&self) -> &Arc<Usage> {
        &self.usage
    }

    /// Returns it for a device that has one worker, and never gets another.
    pub fn for_one_worker(self) -> Self {
        Self {
            alone: true,
            ..self
        }
    }

    /// Returns what it has received.
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Returns the label of a packet.
    pub(super) fn label(&self, number: u64) -> Label {
        label(&self.sa, number)
    }
}

/// Which of several associations is used to seal: the greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    /// It need not be replaced as soon as there is another one.
    pub(super) stays: bool,
    /// The younger of two is used.
    pub(super) age: u64,
}

impl Rank {
    /// Returns that of one which need not be replaced.
    pub(super) fn new(age: u64) -> Self {
        Self { stays: true, age }
    }
}

/// An association that frames are sealed with, by all workers of a device.
pub struct OutboundSa {
    /// There is one worker.
    pub(super) alone: bool,
    pub(super) sa: Sa,
    pub(super) cipher: Box<dyn Cipher>,
    numbers: Numbers,
    usage: Arc<Usage>,
    pub(super) age: u64,
}

impl OutboundSa {
    /// Makes one without numbers. Of several that a policy can use, that with the highest `age` is
    /// used.
    pub fn new(sa: Sa, keys: &Keys, age: u64) -> Result<Self, UnusableKey> {
        Ok(Self {
            alone: false,
            cipher: cipher(sa.algorithm, keys)?,
            sa,
            numbers: Numbers::default(),
            usage: Arc::default(),
            age,
        })
    }

    /// Returns what it has done.
    pub fn usage(&self) -> &Arc<Usage> {
        &self.usage
    }

    /// Returns it for a device that has one worker, and never gets another.
    pub fn for_one_worker(self) -> Self {
        Self {
            alone: true,
            ..self
        }
    }

    /// Returns the numbers that it may use.
    pub fn numbers(&self) -> &Numbers {
        &self.numbers
    }

    pub(super) fn label(&self, number: u64) -> Label {
        label(&self.sa, number)
    }

    /// Returns the longest IP packet that, sealed, is no longer than `mtu`.
    pub(super) fn inner_mtu(&self, mtu: u16) -> u16 {
        let Shape { iv, block, icv } = self.cipher.shape();
        let outer = header_len(self.sa.id.destination);
        let front = outer + self.sa.encapsulation_len() + HEADER_LEN + iv;
        let room = usize::from(mtu).saturating_sub(front + icv);
        let payload = (room / block * block).saturating_sub(TRAILER_LEN);
        let inner = match self.sa.mode {
            Mode::Transport => outer + payload,
            Mode::Tunnel => payload,
        };
        inner as u16
    }
}

fn label(sa: &Sa, number: u64) -> Label {
    Label {
        spi: sa.id.spi,
        number,
        extended: sa.extended,
    }
}

impl fmt::Debug for InboundSa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.sa.fmt(f)
    }
}

impl fmt::Debug for OutboundSa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.sa.fmt(f)
    }
}
