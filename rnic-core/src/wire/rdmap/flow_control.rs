//! The Control message of connections with the semantics of RC: whether the sender of the message
//! has receives posted. It is no message of RFC 5040 or 7306, and only connections whose sides have
//! both agreed on it have it (docs/design/rc-receiver-not-ready.md).

use std::time::Duration;

use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::RdmapWireError;

/// The longest min_rnr_timer that InfiniBand has a code for. A longer one counts as this.
pub const MAX_RNR_TIMER: Duration = Duration::from_micros(655_360);

/// What a Control message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// XOFF: a message has found no receive. The peer begins no more requests until XON.
    NotReady,
    /// XON: the receives are there again.
    Ready,
}

impl Readiness {
    const XOFF: u8 = 1;
    const XON: u8 = 2;
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    kind: u8,
    reserved: [u8; 3],
    count: U32,
    /// In microseconds.
    timer: U32,
    reserved_too: [u8; 4],
}

/// The payload of a Control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowControl {
    /// What it says.
    pub readiness: Readiness,
    /// Counts the XOFFs of its sender from 1. An XON has the count of the XOFF that it ends.
    pub count: u32,
    /// The least time between two tries of a request that finds no receive, as its sender wants it.
    pub min_rnr_timer: Duration,
}

impl FlowControl {
    /// Octets of the payload.
    pub const LEN: usize = 16;

    /// Reads a payload. Reserved octets are not looked at.
    pub fn parse(octets: &[u8]) -> Result<Self, RdmapWireError> {
        let wrong = RdmapWireError::Length {
            header: "Control message",
            octets: octets.len(),
        };
        let raw = Raw::ref_from_bytes(octets).map_err(|_| wrong)?;
        let readiness = match raw.kind {
            Readiness::XOFF => Readiness::NotReady,
            Readiness::XON => Readiness::Ready,
            unknown => return Err(RdmapWireError::FlowControl(unknown)),
        };
        let timer = Duration::from_micros(raw.timer.get().into());
        Ok(Self {
            readiness,
            count: raw.count.get(),
            min_rnr_timer: timer.min(MAX_RNR_TIMER),
        })
    }

    /// Writes the payload. Panics if `buffer` is shorter than [`LEN`](Self::LEN).
    pub fn emit(&self, buffer: &mut [u8]) -> usize {
        let timer = self.min_rnr_timer.min(MAX_RNR_TIMER);
        let raw = Raw {
            kind: match self.readiness {
                Readiness::NotReady => Readiness::XOFF,
                Readiness::Ready => Readiness::XON,
            },
            reserved: [0; 3],
            count: U32::new(self.count),
            timer: U32::new(timer.as_micros() as u32),
            reserved_too: [0; 4],
        };
        buffer[..Self::LEN].copy_from_slice(raw.as_bytes());
        Self::LEN
    }
}
