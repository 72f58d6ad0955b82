//! Work requests as an application writes them.

use rnic_core::verbs::sge::{self, total_length};
use rnic_core::verbs::wr::{MAX_INLINE, MAX_SGE, RecvWr, SendWr, WrOpcode, send_flags};
use rnic_core::wire::ddp::{Stag, TaggedOffset};
use rnic_core::wire::rdmap::{AtomicOperation, IMMEDIATE_LEN, SEND_IMMEDIATE_LEN};
use zerocopy::IntoBytes;

use crate::address::{RemoteAddress, Sge};
use crate::binding::Binding;
use crate::error::PostError;

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
    atomic: Option<AtomicOperation>,
    binding: Option<&'a Binding>,
}

impl<'a> SendRequest<'a> {
    #[inline]
    fn new(opcode: WrOpcode) -> Self {
        Self {
            wr_id: 0,
            opcode,
            flags: send_flags::SIGNALED,
            data: Data::Memory(&[]),
            remote: None,
            invalidate: Stag(0),
            immediate: [0; IMMEDIATE_LEN],
            atomic: None,
            binding: None,
        }
    }

    /// Makes an RDMA Write: the data go to the peer's memory, and the peer gets no completion.
    #[inline]
    pub fn write(to: RemoteAddress) -> Self {
        Self {
            remote: Some(to),
            ..Self::new(WrOpcode::Write)
        }
    }

    /// Makes an RDMA Read: data of the peer's memory come to the pieces of memory. On the wire each
    /// piece has a Read Request of its own, which counts as an outstanding Read.
    pub fn read(from: RemoteAddress) -> Self {
        Self {
            remote: Some(from),
            ..Self::new(WrOpcode::Read)
        }
    }

    /// Makes a Send: the data go to the next buffer that the peer posted to its receive queue.
    #[inline]
    pub fn send() -> Self {
        Self::new(WrOpcode::Send)
    }

    /// Makes a Send with Invalidate: a Send that also invalidates an STag of the peer.
    pub fn send_invalidate(stag: Stag) -> Self {
        Self {
            invalidate: stag,
            ..Self::new(WrOpcode::SendInvalidate)
        }
    }

    /// Makes a Send with Immediate: a Send whose 4 octets of immediate data come with the
    /// completion of the receive. Only a connection [with the semantics of
    /// RC](crate::ConnectionOptions::rc) has it; on any other the request fails with
    /// [`LocalQpOperationError`](crate::WcStatus::LocalQpOperationError), and the connection ends.
    pub fn send_with_immediate(data: [u8; SEND_IMMEDIATE_LEN]) -> Self {
        let mut immediate = [0; IMMEDIATE_LEN];
        immediate[..SEND_IMMEDIATE_LEN].copy_from_slice(&data);
        Self {
            immediate,
            ..Self::new(WrOpcode::SendImmediate)
        }
    }

    /// Makes a request for Immediate Data: 8 octets that come with the completion of a receive of
    /// the peer. The receive's buffer does not change. There are no other data.
    pub fn immediate(data: [u8; IMMEDIATE_LEN]) -> Self {
        Self {
            immediate: data,
            ..Self::new(WrOpcode::Immediate)
        }
    }

    /// Makes an RDMA Write with [Immediate Data](Self::immediate), which arrive once all data are
    /// in the peer's memory.
    pub fn write_with_immediate(to: RemoteAddress, immediate: [u8; IMMEDIATE_LEN]) -> Self {
        Self {
            remote: Some(to),
            immediate,
            ..Self::new(WrOpcode::WriteImmediate)
        }
    }

    /// Makes an atomic FetchAdd: adds to the 8 octets at `to`, as a number in the byte order of the
    /// peer's machine. Their old value comes to the (one) piece of memory of 8 octets, as a number
    /// in the byte order of this machine.
    ///
    /// It is atomic with all atomic operations of the peer's device and with its application's own
    /// ([`Mr::atomic`](crate::Mr::atomic)); RFC 7306 section 5.3. The peer's memory needs the right
    /// [`REMOTE_ATOMIC`](crate::Access::REMOTE_ATOMIC), and the address of `to` must be a multiple
    /// of 8: else the connection ends with a Terminate.
    pub fn fetch_add(to: RemoteAddress, add: u64) -> Self {
        Self::fetch_add_fields(to, add, 0)
    }

    /// Makes a [FetchAdd](Self::fetch_add) to several fields at once. Each bit of `mask` is the
    /// highest of a field, whose carry is dropped (RFC 7306 section 5.1.1).
    pub fn fetch_add_fields(to: RemoteAddress, add: u64, mask: u64) -> Self {
        let operation = AtomicOperation::FetchAdd { add, mask };
        Self::atomic(WrOpcode::FetchAdd, to, operation)
    }

    /// Makes an atomic CmpSwap: replaces the 8 octets at `to` by `swap` if they are `compare`.
    /// Their old value comes to the (one) piece of memory of 8 octets. Otherwise it is as
    /// [`fetch_add`](Self::fetch_add).
    pub fn cmp_swap(to: RemoteAddress, compare: u64, swap: u64) -> Self {
        Self::cmp_swap_masked(to, (compare, u64::MAX), (swap, u64::MAX))
    }

    /// Makes a [CmpSwap](Self::cmp_swap) of some bits. Each value comes with its mask. If the bits
    /// of the first mask are equal, those of the second are replaced (RFC 7306 section 5.1.2).
    pub fn cmp_swap_masked(
        to: RemoteAddress,
        (compare, compare_mask): (u64, u64),
        (swap, swap_mask): (u64, u64),
    ) -> Self {
        let operation = AtomicOperation::CmpSwap {
            swap,
            swap_mask,
            compare,
            compare_mask,
        };
        Self::atomic(WrOpcode::CmpSwap, to, operation)
    }

    fn atomic(opcode: WrOpcode, to: RemoteAddress, operation: AtomicOperation) -> Self {
        Self {
            remote: Some(to),
            atomic: Some(operation),
            ..Self::new(opcode)
        }
    }

    /// Makes a request that binds a [window](crate::Mw::binding), or registers memory
    /// [fast](crate::FastMr::binding). It sends nothing.
    ///
    /// It is carried out in order: after all messages of earlier requests have been built, and
    /// before a later request begins. Earlier Reads may still be outstanding, unless it is
    /// [`fenced`](Self::fenced). If it fails it completes with
    /// [`MwBindError`](crate::WcStatus::MwBindError), and the connection ends.
    pub fn bind(binding: &'a Binding) -> Self {
        Self {
            binding: Some(binding),
            ..Self::new(WrOpcode::BindWindow)
        }
    }

    /// Makes a request that invalidates an STag of this side: that of a window, of a fast
    /// registration, or of memory registered [for this queue pair
    /// only](crate::Registration::only_for). When it completes, no placement through the STag is
    /// under way, and none will follow. It sends nothing. Its order and failure are those of
    /// [`bind`](Self::bind).
    pub fn invalidate(stag: Stag) -> Self {
        Self {
            invalidate: stag,
            ..Self::new(WrOpcode::LocalInvalidate)
        }
    }

    /// Sets the data, in registered memory.
    #[inline]
    pub fn memory(self, pieces: &'a [Sge]) -> Self {
        Self {
            data: Data::Memory(pieces),
            ..self
        }
    }

    /// Sets the data, copied into the request. Not for a Read or an atomic.
    #[inline]
    pub fn inline(self, data: &'a [u8]) -> Self {
        Self {
            data: Data::Inline(data),
            ..self
        }
    }

    /// Sets the application's identifier, which comes back in the completion.
    #[inline]
    pub fn wr_id(self, wr_id: u64) -> Self {
        Self { wr_id, ..self }
    }

    /// Makes it unsignalled: no completion if it succeeds (unless the queue pair signals all).
    #[inline]
    pub fn unsignaled(self) -> Self {
        Self {
            flags: self.flags & !send_flags::SIGNALED,
            ..self
        }
    }

    /// Sets whether it makes a completion if it succeeds.
    #[inline]
    pub fn signaled(self, signaled: bool) -> Self {
        let signaled_flag = if signaled { send_flags::SIGNALED } else { 0 };
        Self {
            flags: self.flags & !send_flags::SIGNALED | signaled_flag,
            ..self
        }
    }

    /// Makes a Send or Immediate Data solicited: it notifies a peer that armed for solicited
    /// completions.
    pub fn solicited(self) -> Self {
        Self {
            flags: self.flags | send_flags::SOLICITED,
            ..self
        }
    }

    /// Makes it wait until all earlier Reads and atomics are complete.
    pub fn fenced(self) -> Self {
        Self {
            flags: self.flags | send_flags::FENCE,
            ..self
        }
    }

    /// Returns the front of the ring entry of a Write, Send or Read, and what stands behind it:
    /// inline data or the scatter/gather list, which need not be copied to another place first.
    /// Returns `None` for any other request, and for one that has too much.
    #[inline(always)]
    pub(crate) fn plain(&self, max_sge: usize, max_inline: usize) -> Option<(SendWr, &'a [u8])> {
        let mut wr = SendWr::new(self.wr_id, self.opcode);
        wr.flags = self.flags;
        let payload = match self.data {
            Data::Inline(data) => {
                let carried = matches!(self.opcode, WrOpcode::Write | WrOpcode::Send);
                if !carried || data.len() > max_inline.min(MAX_INLINE) {
                    return None;
                }
                wr.flags |= send_flags::INLINE;
                wr.length = data.len() as u32;
                data
            }
            Data::Memory(pieces) => {
                let carried = matches!(
                    self.opcode,
                    WrOpcode::Write | WrOpcode::Send | WrOpcode::Read
                );
                if !carried || pieces.len() > max_sge.min(MAX_SGE) {
                    return None;
                }
                wr.sge_count = pieces.len() as u16;
                let length: u64 = pieces.iter().map(|piece| u64::from(piece.length())).sum();
                wr.length = u32::try_from(length).ok()?;
                pieces.as_bytes()
            }
        };
        if let Some(remote) = self.remote {
            wr = wr.with_remote(remote.stag, TaggedOffset(remote.offset));
        }
        Some((wr, payload))
    }

    /// Returns the ring entry of any request. Fails if the request cannot be valid.
    pub(crate) fn encode(&self, max_sge: usize, max_inline: usize) -> Result<SendWr, PostError> {
        if self.opcode.is_local() {
            return self.encode_local();
        }
        let wr = match (self.atomic, self.data) {
            (None, _) => SendWr::new(self.wr_id, self.opcode),
            (Some(operation), Data::Memory(&[sink])) if sink.length() == 8 => {
                SendWr::atomic(self.wr_id, operation, sink.0)
            }
            (Some(_), _) => return Err(PostError::AtomicSink),
        };
        let mut wr = wr.with_flags(self.flags).with_immediate(self.immediate);
        wr.invalidate_stag = self.invalidate.0;
        if let Some(remote) = self.remote {
            wr = wr.with_remote(remote.stag, TaggedOffset(remote.offset));
        }
        match self.data {
            _ if self.atomic.is_some() => Ok(wr),
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
            Data::Memory(pieces) => {
                let (sges, count) = elements(pieces, max_sge)?;
                let too_long = PostError::TooLong(total_length(&sges[..count]));
                wr.with_sges(&sges[..count]).ok_or(too_long)
            }
        }
    }
}

impl SendRequest<'_> {
    /// Returns whether it sends nothing.
    #[inline]
    pub(crate) fn is_local(&self) -> bool {
        self.opcode.is_local()
    }

    fn encode_local(&self) -> Result<SendWr, PostError> {
        if !self.data.is_empty() {
            return Err(PostError::NoData);
        }
        let wr = match self.binding {
            Some(binding) => binding.encode(self.wr_id),
            None => SendWr::invalidate(self.wr_id, self.invalidate),
        };
        Ok(wr.with_flags(self.flags))
    }
}

/// Returns the ring entry of a receive.
pub(crate) fn receive(wr_id: u64, pieces: &[Sge], max_sge: usize) -> Result<RecvWr, PostError> {
    let (sges, count) = elements(pieces, max_sge)?;
    RecvWr::new(wr_id, &sges[..count]).ok_or(PostError::TooManyElements {
        count,
        max: MAX_SGE,
    })
}

/// Returns the scatter/gather list for a ring entry, and its number of elements.
fn elements(pieces: &[Sge], max: usize) -> Result<([sge::Sge; MAX_SGE], usize), PostError> {
    let max = max.min(MAX_SGE);
    let count = pieces.len();
    if count > max {
        return Err(PostError::TooManyElements { count, max });
    }
    let mut sges = [sge::Sge::default(); MAX_SGE];
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
        assert_eq!(encode(SendRequest::read(PEER).memory(&[piece; 2])), Ok(20));
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
    fn atomics_bring_eight_octets_back() {
        let sink = Sge::new(Stag(7), 16, 8);
        let add = SendRequest::fetch_add(PEER, 5);
        let wr = add.memory(&[sink]).wr_id(3).fenced().encode(1, 0).unwrap();
        assert_eq!(wr.sges(), [sink.0]);
        assert_eq!(
            (wr.wr_id, wr.length, wr.remote_stag, wr.remote_offset),
            (3, 8, 0x1234, 0x5678)
        );
        assert_eq!(wr.flags, send_flags::SIGNALED | send_flags::FENCE);
        let added = AtomicOperation::FetchAdd { add: 5, mask: 0 };
        assert_eq!(wr.atomic_operation(), Some(added));
        let swap =
            SendRequest::cmp_swap_masked(PEER, (1, 2), (3, 4)).memory(std::slice::from_ref(&sink));
        let swapped = AtomicOperation::CmpSwap {
            swap: 3,
            swap_mask: 4,
            compare: 1,
            compare_mask: 2,
        };
        assert_eq!(swap.encode(1, 0).unwrap().atomic_operation(), Some(swapped));
        let whole = SendRequest::cmp_swap(PEER, 1, 3).memory(std::slice::from_ref(&sink));
        let swapped = AtomicOperation::CmpSwap {
            swap: 3,
            swap_mask: u64::MAX,
            compare: 1,
            compare_mask: u64::MAX,
        };
        assert_eq!(
            whole.encode(1, 0).unwrap().atomic_operation(),
            Some(swapped)
        );
        let short = Sge::new(Stag(7), 16, 7);
        for refused in [
            add,
            add.memory(&[short]),
            add.memory(&[sink, sink]),
            add.inline(&[0; 8]),
        ] {
            assert_eq!(refused.encode(4, 64), Err(PostError::AtomicSink));
        }
    }

    #[test]
    fn what_sends_nothing_has_no_data() {
        let wr = SendRequest::invalidate(Stag(5))
            .wr_id(9)
            .fenced()
            .encode(4, 64)
            .unwrap();
        assert_eq!(wr.operation(), Ok(WrOpcode::LocalInvalidate));
        assert_eq!((wr.wr_id, wr.invalidate_stag, wr.length), (9, 5, 0));
        assert_eq!(wr.flags, send_flags::SIGNALED | send_flags::FENCE);
        let with_data = SendRequest::invalidate(Stag(5)).inline(b"x").encode(4, 64);
        assert_eq!(with_data, Err(PostError::NoData));
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
