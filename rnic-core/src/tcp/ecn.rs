//! Explicit congestion notification (RFC 3168): a router marks what it would otherwise have to drop
//! soon, the receiver echoes the mark, and the sender slows down without having lost anything.

use crate::wire::tcp::Flags;

/// Whether a connection uses ECN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EcnMode {
    /// Never.
    Off,
    /// Where the peer asks for it (what Linux does by default).
    #[default]
    Accept,
    /// Asks the peer for it, too.
    Ask,
}

/// One connection's.
#[derive(Debug)]
pub(super) struct Ecn {
    mode: EcnMode,
    /// Our SYN asked.
    asked: bool,
    /// Both SYNs agreed.
    used: bool,
    /// A mark has arrived, and the peer has not said yet that it has reduced its window.
    echoing: bool,
}

const SETUP: Flags = Flags(Flags::ECE.0 | Flags::CWR.0);

impl Ecn {
    pub(super) fn new(mode: EcnMode) -> Self {
        Self {
            mode,
            asked: false,
            used: false,
            echoing: false,
        }
    }

    /// Returns whether both ends have agreed to use it.
    pub(super) fn is_used(&self) -> bool {
        self.used
    }

    /// Returns the ECN flags of our SYN. Some middleboxes drop one that asks: it is asked once
    /// (section 6.1.1.1).
    pub(super) fn syn(&mut self, again: bool) -> Flags {
        self.asked = self.mode == EcnMode::Ask && !again;
        if self.asked { SETUP } else { Flags::NONE }
    }

    /// Returns the ECN flags of our SYN-ACK.
    pub(super) fn syn_ack(&self) -> Flags {
        if self.used { Flags::ECE } else { Flags::NONE }
    }

    /// Handles the ECN flags of the peer's SYN or SYN-ACK. A peer that reflects those of our SYN
    /// does not know ECN (section 6.1.1.2).
    pub(super) fn process_syn(&mut self, flags: Flags) {
        self.used = match flags.ack() {
            true => self.asked && flags.ece() && !flags.cwr(),
            false => self.mode != EcnMode::Off && flags.contains(SETUP),
        };
    }

    /// Handles the ECN flags of a segment inside the window, and its CE mark if it is `marked`.
    /// Returns whether to acknowledge it at once: the peer must know of the mark, or that its CWR
    /// has come, as its window may be very small now.
    pub(super) fn on_segment(&mut self, flags: Flags, marked: bool) -> bool {
        if !self.used {
            return false;
        }
        let must_ack = flags.cwr() || (marked && !self.echoing);
        if flags.cwr() {
            self.echoing = false;
        }
        self.echoing |= marked;
        must_ack
    }

    /// Returns the flags for every segment with an ACK: ECE until the peer answers with CWR.
    pub(super) fn echo(&self) -> Flags {
        if self.echoing {
            Flags::ECE
        } else {
            Flags::NONE
        }
    }
}
