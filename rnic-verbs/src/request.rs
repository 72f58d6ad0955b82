//! Work requests as an application writes them.

use rnic_core::verbs::total_length;
use rnic_core::verbs::wr::{self, MAX_INLINE, MAX_SGE, SendWr, WrOpcode, send_flags};
use rnic_core::wire::ddp::{Stag, TaggedOffset};
use rnic_core::wire::rdmap::IMMEDIATE_LEN;

use crate::error::PostError;

/// A piece of registered local memory; [`Mr::sge`](crate::Mr::sge) makes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge(wr::Sge);

impl Sge {
    /// From its parts.
    pub fn new(stag: Stag, offset: u64, length: u32) -> Self {
        Self(wr::Sge {
            offset,
            length,
            lkey: stag.0,
        })
    }

    /// Octets.
    pub fn length(&self) -> u32 {
        self.0.length
    }
}

/// A place in the peer's memory, as the peer told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAddress {
    /// The peer's Steering Tag.
    pub stag: Stag,
    /// The tagged offset in it.
    pub offset: u64,
}

#[derive(Clone, Copy, Debug)]
enum Data<'a> {
    Memory(&'a [Sge]),
    Inline(&'a [u8]),
}

impl Data<'_> {
    fn is_empty(&self) -> bool {
        match self {
            Self::Memory(pieces) => pieces.is_empty(),
            Self::Inline(data) => data.is_empty(),
        }
    }
}

/// A request for a send queue. Signalled unless [`unsignaled`](Self::unsignaled).
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'a> {
    wr_id: u64,
    opcode: WrOpcode,
    flags: u8,
    data: Data<'a>,
    remote: Option<RemoteAddress>,
    invalidate: Stag,
    immediate: [u8; IMMEDIATE_LEN],
}

impl<'a> SendRequest<'a> {
    fn new(opcode: WrOpcode) -> Self {
        Self {
            wr_id: 0,
            opcode,
            flags: send_flags::SIGNALED,
            data: Data::Memory(&[]),
            remote: None,
            invalidate: Stag(0),
            immediate: [0; IMMEDIATE_LEN],
        }
    }

    /// RDMA Write: puts the data in the peer's memory, without its knowledge.
    pub fn write(to: RemoteAddress) -> Self {
        Self {
            remote: Some(to),
            ..Self::new(WrOpcode::Write)
        }
    }

    /// RDMA Read: takes data from the peer's memory into the (one) piece of memory.
    pub fn read(from: RemoteAddress) -> Self {
        Self {
            remote: Some(from),
            ..Self::new(WrOpcode::Read)
        }
    }

    /// Send: puts the data in the next buffer that the peer posted to its receive queue.
    pub fn send() -> Self {
        Self::new(WrOpcode::Send)
    }

    /// Send with Invalidate: a Send that makes an STag of the peer's invalid.
    pub fn send_invalidate(stag: Stag) -> Self {
        Self {
            invalidate: stag,
            ..Self::new(WrOpcode::SendInvalidate)
        }
    }

    /// Immediate Data: 8 octets that the completion of a receive of the peer's tells. The receive's buffer stays as it is.
    /// There is no other data.
    pub fn immediate(data: [u8; IMMEDIATE_LEN]) -> Self {
        Self {
            immediate: data,
            ..Self::new(WrOpcode::Immediate)
        }
    }

    /// RDMA Write, and [Immediate Data](Self::immediate) once all of it is in the peer's memory: one request.
    pub fn write_with_immediate(to: RemoteAddress, immediate: [u8; IMMEDIATE_LEN]) -> Self {
        Self {
            remote: Some(to),
            immediate,
            ..Self::new(WrOpcode::WriteImmediate)
        }
    }

    /// The data, in registered memory.
    pub fn memory(self, pieces: &'a [Sge]) -> Self {
        Self {
            data: Data::Memory(pieces),
            ..self
        }
    }

    /// The data itself, copied into the request. Not for a Read.
    pub fn inline(self, data: &'a [u8]) -> Self {
        Self {
            data: Data::Inline(data),
            ..self
        }
    }

    /// The application's name for it, which the completion tells.
    pub fn wr_id(self, wr_id: u64) -> Self {
        Self { wr_id, ..self }
    }

    /// No completion if it succeeds (unless the queue pair signals all).
    pub fn unsignaled(self) -> Self {
        Self {
            flags: self.flags & !send_flags::SIGNALED,
            ..self
        }
    }

    /// Sets whether it makes a completion if it succeeds.
    pub fn signaled(self, signaled: bool) -> Self {
        let signaled_flag = if signaled { send_flags::SIGNALED } else { 0 };
        Self {
            flags: self.flags & !send_flags::SIGNALED | signaled_flag,
            ..self
        }
    }

    /// A Send, or Immediate Data, that notifies a peer who armed for solicited completions.
    pub fn solicited(self) -> Self {
        Self {
            flags: self.flags | send_flags::SOLICITED,
            ..self
        }
    }

    /// Begins only when all earlier Reads are complete.
    pub fn fenced(self) -> Self {
        Self {
            flags: self.flags | send_flags::FENCE,
            ..self
        }
    }

    /// The ring entry, after everything that can be checked beforehand.
    pub(crate) fn encode(&self, max_sge: usize, max_inline: usize) -> Result<SendWr, PostError> {
        let mut wr = SendWr::new(self.wr_id, self.opcode)
            .with_flags(self.flags)
            .with_immediate(self.immediate);
        wr.invalidate_stag = self.invalidate.0;
        if let Some(remote) = self.remote {
            wr = wr.with_remote(remote.stag, TaggedOffset(remote.offset));
        }
        match self.data {
            data if self.opcode == WrOpcode::Immediate => {
                data.is_empty().then_some(wr).ok_or(PostError::Immediate)
            }
            Data::Inline(_) if self.opcode == WrOpcode::Read => Err(PostError::ReadSink),
            Data::Inline(data) => {
                let max = max_inline.min(MAX_INLINE);
                let too_long = PostError::InlineTooLong {
                    len: data.len(),
                    max,
                };
                (data.len() <= max)
                    .then(|| wr.with_inline(data))
                    .flatten()
                    .ok_or(too_long)
            }
            Data::Memory(pieces) if self.opcode == WrOpcode::Read && pieces.len() > 1 => {
                Err(PostError::ReadSink)
            }
            Data::Memory(pieces) => {
                let (sges, count) = elements(pieces, max_sge)?;
                let too_long = PostError::TooLong(total_length(&sges[..count]));
                wr.with_sges(&sges[..count]).ok_or(too_long)
            }
        }
    }
}

/// The scatter/gather list as it stands in a ring entry, and how many elements it has.
pub(crate) fn elements(
    pieces: &[Sge],
    max: usize,
) -> Result<([wr::Sge; MAX_SGE], usize), PostError> {
    let max = max.min(MAX_SGE);
    let count = pieces.len();
    if count > max {
        return Err(PostError::TooManyElements { count, max });
    }
    let mut sges = [wr::Sge::default(); MAX_SGE];
    for (sge, piece) in sges.iter_mut().zip(pieces) {
        *sge = piece.0;
    }
    Ok((sges, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: RemoteAddress = RemoteAddress {
        stag: Stag(0x1234),
        offset: 0x5678,
    };

    #[test]
    fn checks_before_posting() {
        let piece = Sge::new(Stag(1), 0, 10);
        let long = Sge::new(Stag(1), 0, u32::MAX);
        let encode = |request: SendRequest<'_>| request.encode(2, 16).map(|wr| wr.length);
        assert_eq!(encode(SendRequest::send().memory(&[piece, piece])), Ok(20));
        assert_eq!(
            encode(SendRequest::send().memory(&[piece; 3])),
            Err(PostError::TooManyElements { count: 3, max: 2 })
        );
        assert_eq!(
            encode(SendRequest::write(PEER).memory(&[long])),
            Ok(u32::MAX)
        );
        assert_eq!(
            encode(SendRequest::write(PEER).memory(&[long, piece])),
            Err(PostError::TooLong(u64::from(u32::MAX) + 10))
        );
        assert_eq!(encode(SendRequest::send().inline(&[7; 16])), Ok(16));
        assert_eq!(
            encode(SendRequest::send().inline(&[7; 17])),
            Err(PostError::InlineTooLong { len: 17, max: 16 })
        );
        assert_eq!(encode(SendRequest::read(PEER).memory(&[piece])), Ok(10));
        assert_eq!(
            encode(SendRequest::read(PEER).memory(&[piece; 2])),
            Err(PostError::ReadSink)
        );
        assert_eq!(
            encode(SendRequest::read(PEER).inline(b"x")),
            Err(PostError::ReadSink)
        );
    }

    #[test]
    fn immediate_data_carry_nothing_else() {
        let alone = SendRequest::immediate(*b"12345678");
        let wr = alone.encode(2, 16).unwrap();
        assert_eq!((wr.length, &wr.immediate), (0, b"12345678"));
        let piece = Sge::new(Stag(1), 0, 10);
        assert_eq!(
            alone.memory(&[piece]).encode(2, 16),
            Err(PostError::Immediate)
        );
        assert_eq!(alone.inline(b"x").encode(2, 16), Err(PostError::Immediate));
        let wr = SendRequest::write_with_immediate(PEER, *b"12345678")
            .memory(&[piece])
            .encode(2, 16)
            .unwrap();
        assert_eq!(
            (wr.length, wr.remote_stag, &wr.immediate),
            (10, 0x1234, b"12345678")
        );
    }

    #[test]
    fn the_ring_entry_says_what_was_asked() {
        let wr = SendRequest::write(PEER)
            .inline(b"abc")
            .wr_id(9)
            .unsignaled()
            .fenced()
            .encode(4, 64)
            .unwrap();
        assert_eq!(
            (wr.wr_id, wr.remote_stag, wr.remote_offset),
            (9, 0x1234, 0x5678)
        );
        assert_eq!(wr.flags, send_flags::FENCE | send_flags::INLINE);
        assert_eq!(wr.inline_data(), b"abc");
        let wr = SendRequest::send_invalidate(Stag(5))
            .solicited()
            .encode(4, 64)
            .unwrap();
        assert_eq!(wr.operation(), Ok(WrOpcode::SendInvalidate));
        assert_eq!(
            (wr.invalidate_stag, wr.flags),
            (5, send_flags::SIGNALED | send_flags::SOLICITED)
        );
    }
}
