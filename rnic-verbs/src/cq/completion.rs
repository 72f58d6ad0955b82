//! Completions, as the application gets them.

use rnic_core::ids::QpNumber;
use rnic_core::verbs::{
    status::WcStatus,
    wr::{self, WcOpcode, completion_flags},
};
use rnic_core::wire::ddp::Stag;

/// A completion: how a work request ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion(pub(super) wr::Completion);

impl Completion {
    /// Returns the application's identifier of the request.
    pub fn wr_id(&self) -> u64 {
        self.0.wr_id
    }

    /// Returns the status: how the request ended.
    pub fn status(&self) -> WcStatus {
        self.0.status()
    }

    /// Returns whether the request succeeded.
    pub fn is_success(&self) -> bool {
        self.status() == WcStatus::Success
    }

    /// Returns the operation of the request, or [`WcOpcode::Recv`], or [`WcOpcode::RecvImmediate`].
    pub fn opcode(&self) -> WcOpcode {
        // The engine writes valid opcodes only.
        self.0.opcode().unwrap_or(WcOpcode::Recv)
    }

    /// Returns the queue pair.
    pub fn qp(&self) -> QpNumber {
        QpNumber(self.0.qp)
    }

    /// Returns the number of octets received, read or sent. With received Immediate Data, which
    /// leave the receive's buffer as it is, it is what was written before them: the octets of the
    /// last Write, whatever the peer says of it, if nothing else was received since.
    pub fn byte_len(&self) -> u32 {
        self.0.byte_len
    }

    /// Returns whether the message came with Solicited Event.
    pub fn is_solicited(&self) -> bool {
        self.0.flags & completion_flags::SOLICITED != 0
    }

    /// Returns the STag that the message made invalid (Send with Invalidate).
    pub fn invalidated(&self) -> Option<Stag> {
        (self.0.flags & completion_flags::WITH_INVALIDATE != 0)
            .then_some(Stag(self.0.invalidated_stag))
    }

    /// Returns the peer's Immediate Data. With [`Recv`](WcOpcode::Recv), of a Send with Immediate,
    /// these are the first 4 octets, and the others are zero.
    pub fn immediate(&self) -> Option<[u8; 8]> {
        (self.0.flags & completion_flags::WITH_IMMEDIATE != 0).then_some(self.0.immediate)
    }
}

/// Who sent a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The number of the queue pair, as peers know it: 24 bits.
    pub number: u32,
    /// It came by IPv6.
    pub is_ipv6: bool,
}

/// The bit behind a number that stands for IPv6.
const IPV6: u32 = 1 << 31;

/// What a datagram brings besides its octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Who sent it.
    pub source: Source,
    /// Its Immediate Data.
    pub immediate: Option<[u8; 4]>,
    /// It came with Solicited Event.
    pub solicited: bool,
}

impl Completion {
    /// Returns the completion of a datagram that was sent, or of a request that failed.
    pub fn of_sent(wr_id: u64, qp: QpNumber, status: WcStatus) -> Self {
        Self(wr::Completion::new(wr_id, qp, WcOpcode::Send, status, 0))
    }

    /// Returns the completion of a receive that failed.
    pub fn of_failed_receive(wr_id: u64, qp: QpNumber, status: WcStatus) -> Self {
        Self(wr::Completion::new(wr_id, qp, WcOpcode::Recv, status, 0))
    }

    /// Returns the completion of a receive that a datagram took, with so many octets.
    pub fn of_received(wr_id: u64, qp: QpNumber, byte_len: u32, datagram: Datagram) -> Self {
        let status = WcStatus::Success;
        let mut completion = wr::Completion::new(wr_id, qp, WcOpcode::Recv, status, byte_len);
        completion.flags = completion_flags::DATAGRAM;
        let Source { number, is_ipv6 } = datagram.source;
        let source = number & !IPV6 | if is_ipv6 { IPV6 } else { 0 };
        completion.immediate[4..].copy_from_slice(&source.to_ne_bytes());
        if let Some(immediate) = datagram.immediate {
            completion.flags |= completion_flags::WITH_IMMEDIATE;
            completion.immediate[..4].copy_from_slice(&immediate);
        }
        if datagram.solicited {
            completion.flags |= completion_flags::SOLICITED;
        }
        Self(completion)
    }

    /// Returns who sent a datagram. `None` for completions of other kinds.
    #[inline]
    pub fn source(&self) -> Option<Source> {
        let [_, _, _, _, source @ ..] = self.0.immediate;
        let source = u32::from_ne_bytes(source);
        (self.0.flags & completion_flags::DATAGRAM != 0).then_some(Source {
            number: source & !IPV6,
            is_ipv6: source & IPV6 != 0,
        })
    }
}
