//! Sequence numbers and control bits (RFC 9293 section 3.1).

use core::fmt;
use core::ops::{BitOr, BitOrAssign};

use crate::wire::serial::serial_number;

/// A sequence number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seq(pub u32);

serial_number!(Seq);

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The control bits of a header.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u8);

impl Flags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// No more data from the sender.
    pub const FIN: Self = Self(0x01);
    /// Synchronise sequence numbers.
    pub const SYN: Self = Self(0x02);
    /// Reset the connection.
    pub const RST: Self = Self(0x04);
    /// Push.
    pub const PSH: Self = Self(0x08);
    /// The acknowledgment field is significant.
    pub const ACK: Self = Self(0x10);
    /// The urgent pointer is significant.
    pub const URG: Self = Self(0x20);
    /// ECN echo (RFC 3168).
    pub const ECE: Self = Self(0x40);
    /// Congestion window reduced (RFC 3168).
    pub const CWR: Self = Self(0x80);

    /// Returns whether all flags of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns whether FIN is set.
    pub const fn fin(self) -> bool {
        self.contains(Self::FIN)
    }

    /// Returns whether SYN is set.
    pub const fn syn(self) -> bool {
        self.contains(Self::SYN)
    }

    /// Returns whether RST is set.
    pub const fn rst(self) -> bool {
        self.contains(Self::RST)
    }

    /// Returns whether PSH is set.
    pub const fn psh(self) -> bool {
        self.contains(Self::PSH)
    }

    /// Returns whether ACK is set.
    pub const fn ack(self) -> bool {
        self.contains(Self::ACK)
    }

    /// Returns whether URG is set.
    pub const fn urg(self) -> bool {
        self.contains(Self::URG)
    }

    /// Returns whether ECE is set.
    pub const fn ece(self) -> bool {
        self.contains(Self::ECE)
    }

    /// Returns whether CWR is set.
    pub const fn cwr(self) -> bool {
        self.contains(Self::CWR)
    }
}

impl BitOr for Flags {
    type Output = Self;
    fn bitor(self, rhs: Self) -> Self {
        Self(self.0 | rhs.0)
    }
}

impl BitOrAssign for Flags {
    fn bitor_assign(&mut self, rhs: Self) {
        *self = *self | rhs;
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 8] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"];
        let set = NAMES
            .iter()
            .enumerate()
            .filter(|(bit, _)| self.0 >> bit & 1 != 0);
        let names: Vec<_> = set.map(|(_, name)| *name).collect();
        f.write_str(&names.join("|"))
    }
}
