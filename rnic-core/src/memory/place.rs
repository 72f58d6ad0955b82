//! Placement proofs: values that only a successful check of an STag can make, and that alone lead
//! to memory.

#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::ids::{PdId, StreamId};
use crate::memory::binding::Binding;
use crate::wire::ddp::{Stag, TaggedOffset};

use super::epoch::Guard;
use super::error::{Fault, TagError};
use super::guarded;
use super::table::{Access, BindError, Origin};
use super::target::Target;
use super::words;

/// Where the layer above DDP wants the payload of a received segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// In its buffer, with a delivery. If that is a tagged buffer, the peer needs these rights to
    /// it.
    Buffer(Access),
    /// In a tagged buffer to which the peer needs these rights, without a delivery: an RDMA Write.
    PlaceOnly(Access),
    /// In the delivery, for the completion. The buffer of the queue is used up, but not written.
    Delivery,
}

/// Why an atomic operation is not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AtomicError {
    /// The memory must not be touched so.
    #[error(transparent)]
    Tag(#[from] TagError),
    /// The value does not stand at an address that is a multiple of 8.
    #[error(
        "tagged offset {:#x} of STag {stag} is no multiple of 8 as an address, as an atomic needs it",
        offset.0
    )]
    Misaligned {
        /// The STag.
        stag: Stag,
        /// First octet.
        offset: TaggedOffset,
    },
}

impl Guard<'_> {
    /// Proves that `len` octets may be written at a tagged offset. Zero-length messages are not
    /// checked at all (RFC 5041 section 5.2): do not ask for them.
    pub fn for_placement(
        &self,
        stag: Stag,
        offset: TaggedOffset,
        len: usize,
        origin: impl Into<Origin>,
        need: Access,
    ) -> Result<Placement<'_>, TagError> {
        let to = self.table().check(stag, offset, len, origin.into(), need)?;
        Ok(Placement::new(to, len))
    }

    /// Returns the placement, or none where it is refused, without the reason: that takes less.
    #[inline(always)]
    pub fn placement(
        &self,
        stag: Stag,
        offset: TaggedOffset,
        len: usize,
        origin: Origin,
        need: Access,
    ) -> Option<Placement<'_>> {
        let to = self.table().check(stag, offset, len, origin, need).ok()?;
        Some(Placement::new(to, len))
    }

    /// Proves that all octets from a tagged offset to the last one of the STag may be written.
    pub fn for_placement_of_rest(
        &self,
        stag: Stag,
        offset: TaggedOffset,
        origin: impl Into<Origin>,
        need: Access,
    ) -> Result<Placement<'_>, TagError> {
        let (to, len) = self.table().check_rest(stag, offset, origin.into(), need)?;
        Ok(Placement::new(to, len))
    }

    /// Proves that `len` octets may be read at a tagged offset.
    pub fn for_reading(
        &self,
        stag: Stag,
        offset: TaggedOffset,
        len: usize,
        origin: impl Into<Origin>,
        need: Access,
    ) -> Result<Source<'_>, TagError> {
        let from = self.table().check(stag, offset, len, origin.into(), need)?;
        Ok(Source {
            from,
            len,
            guard: PhantomData,
        })
    }

    /// Proves that a peer may change the 8 octets at a tagged offset atomically. It is their
    /// address that must be a multiple of 8: tagged offsets may count from anywhere.
    // rfc: 7306-6, 7306-10, 7306-18 atomics work on any multiple of 8
    pub fn for_atomic(
        &self,
        stag: Stag,
        offset: TaggedOffset,
        origin: impl Into<Origin>,
    ) -> Result<AtomicPlace<'_>, AtomicError> {
        let (origin, need) = (origin.into(), Access::REMOTE_ATOMIC);
        let value = self
            .table()
            .check(stag, offset, size_of::<u64>(), origin, need)?;
        // rfc: 7306-7, 7306-11, 7306-12, 7306-13, 7306-60 elsewhere: an error, and no change
        if !value.is_aligned_to(align_of::<u64>()) {
            return Err(AtomicError::Misaligned { stag, offset });
        }
        Ok(AtomicPlace {
            value,
            guard: PhantomData,
        })
    }

    /// Makes an STag of one stream invalid because that stream's peer (Send with Invalidate) or a
    /// work request asks for it. Nothing is placed through it any more when this returns. Its
    /// memory stays mapped until its owner revokes it.
    // rfc: 5040-93, 5040-94 the STag to invalidate is valid, and of this stream
    pub fn invalidate(&self, stag: Stag, origin: impl Into<Origin>) -> Result<(), TagError> {
        self.table().invalidate(stag, origin.into())
    }

    /// Binds a memory window to a part of a region, for one stream. From now on until it is
    /// invalidated, the peer of that stream alone reaches the part by the new STag.
    pub fn bind_window(
        &self,
        binding: &Binding,
        pd: PdId,
        stream: StreamId,
    ) -> Result<(), BindError> {
        self.table().bind_window(binding, pd, stream)
    }

    /// Registers a part of the region that an STag was allocated for, for one stream.
    pub fn fast_register(
        &self,
        binding: &Binding,
        pd: PdId,
        stream: StreamId,
    ) -> Result<(), BindError> {
        self.table().fast_register(binding, pd, stream)
    }
}

/// A writer to registered memory, with its origin and the right that it needs.
#[derive(Clone, Copy, Debug)]
pub struct Writer<'g> {
    guard: &'g Guard<'g>,
    origin: Origin,
    need: Access,
}

impl<'g> Writer<'g> {
    /// Writes on behalf of `origin`.
    pub fn new(guard: &'g Guard<'_>, origin: Origin, need: Access) -> Self {
        Self {
            guard,
            origin,
            need,
        }
    }

    /// Checks a placement up to the end of the buffer, as [`Guard::for_placement_of_rest`] does.
    pub fn rest(&self, stag: Stag, offset: TaggedOffset) -> Result<Placement<'g>, TagError> {
        self.guard
            .for_placement_of_rest(stag, offset, self.origin, self.need)
    }
}

/// Proof that some octets of registered memory may be written.
///
/// It cannot outlive the guard that it was made under, whose end lets a revocation finish:
///
/// ```compile_fail,E0505
/// # use rnic_core::memory::{epoch::Worker, table::Access};
/// # use rnic_core::{ids::PdId, wire::ddp::{Stag, TaggedOffset}};
/// fn late(worker: &Worker) {
///     let guard = worker.enter();
///     let placement = guard.for_placement(Stag(1), TaggedOffset(0), 8, PdId(1), Access::REMOTE_WRITE);
///     drop(guard);
///     placement.unwrap().write(&[0; 8]);
/// }
/// ```
///
/// In the order that the types allow, it compiles:
///
/// ```
/// # use rnic_core::memory::{epoch::Worker, table::Access};
/// # use rnic_core::{ids::PdId, wire::ddp::{Stag, TaggedOffset}};
/// fn in_time(worker: &Worker) {
///     let guard = worker.enter();
///     let placement = guard.for_placement(Stag(1), TaggedOffset(0), 8, PdId(1), Access::REMOTE_WRITE);
///     placement.unwrap().write(&[0; 8]);
///     drop(guard);
/// }
/// ```
#[derive(Debug)]
pub struct Placement<'g> {
    to: Target,
    len: usize,
    guard: PhantomData<&'g Guard<'g>>,
}

impl<'g> Placement<'g> {
    #[inline(always)]
    fn new(to: Target, len: usize) -> Self {
        Self {
            to,
            len,
            guard: PhantomData,
        }
    }

    /// Splits off the first `len` octets, which are then written by themselves. Returns `None` if
    /// it has fewer.
    // rfc: 5041-88 no access outside of the range of the STag
    #[inline]
    pub fn split_front(&mut self, len: usize) -> Option<Placement<'g>> {
        let left = self.len.checked_sub(len)?;
        let front = Placement { len, ..*self };
        self.to = self.to.add(len);
        self.len = left;
        Some(front)
    }

    /// Drops all but the first `len` octets.
    pub fn shorten(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Returns the number of octets that may be written.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies `bytes` to the first of them. An aligned word of 2, 4 or 8 octets is stored in one
    /// piece, and the last such word of `bytes` last: an application that waits for it then sees
    /// the others too. A plain copy writes in any order.
    ///
    /// Fails, having written any part of them, if the program has taken away memory of its own
    /// ([`Region::foreign`](super::region::Region::foreign)).
    ///
    /// # Panics
    ///
    /// If there are more `bytes` than were validated, which is a mistake of the caller.
    #[inline(always)]
    pub fn write(&self, bytes: &[u8]) -> Result<(), Fault> {
        assert!(
            bytes.len() <= self.len,
            "placing more octets than were validated"
        );
        let to = match self.to.address() {
            Ok(to) => to,
            Err(to) => return self.write_foreign(to, bytes),
        };
        let word = to.cast::<u64>();
        if let Ok(octets) = bytes.try_into()
            && word.is_aligned()
        {
            // SAFETY: as below; the address is that of an aligned word.
            let word = unsafe { AtomicU64::from_ptr(word) };
            // Release: who sees it sees what was placed before.
            word.store(u64::from_ne_bytes(octets), Ordering::Release);
            return Ok(());
        }
        // SAFETY: validation found `len` octets at `to` inside a registered region. The guard that
        // this value borrows keeps the region mapped. The application and other workers may access
        // the same octets meanwhile: that race is RDMA's nature, all sides only ever copy octets,
        // of which every value is valid, and which of them win is the peers' business.
        unsafe { words::store(to, bytes) };
        Ok(())
    }

    #[inline(never)]
    fn write_foreign(&self, to: *mut u8, bytes: &[u8]) -> Result<(), Fault> {
        // SAFETY: validation found `len` octets at `to` inside a registered region of the
        // program's, and `write` that there are enough of them. They may be gone.
        unsafe { guarded::write(to, bytes) }
    }
}

/// Proof that some octets of registered memory may be read. It cannot outlive its guard either.
#[derive(Debug)]
pub struct Source<'g> {
    from: Target,
    len: usize,
    guard: PhantomData<&'g Guard<'g>>,
}

impl<'g> Source<'g> {
    /// Splits off the first `len` octets, which are then read by themselves. Returns `None` if it
    /// has fewer.
    #[inline]
    pub fn split_front(&mut self, len: usize) -> Option<Source<'g>> {
        let others = self.len.checked_sub(len)?;
        let front = Source { len, ..*self };
        self.from = self.from.add(len);
        self.len = others;
        Some(front)
    }

    /// Returns the number of octets that may be read.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies the first of them to the whole of `bytes`. An aligned word of 2, 4 or 8 octets is
    /// loaded in one piece.
    ///
    /// Fails if the program has taken away memory of its own
    /// ([`Region::foreign`](super::region::Region::foreign)).
    ///
    /// # Panics
    ///
    /// If more `bytes` are wanted than were validated, which is a mistake of the caller.
    #[inline]
    pub fn read(&self, bytes: &mut [u8]) -> Result<(), Fault> {
        assert!(
            bytes.len() <= self.len,
            "reading more octets than were validated"
        );
        let from = match self.from.address() {
            Ok(from) => from,
            // SAFETY: validation found `len` octets at `from` inside a registered region of the
            // program's. They may be gone.
            Err(from) => return unsafe { guarded::read(from, bytes) },
        };
        // SAFETY: validation found `len` octets at `from` inside a registered region. The guard
        // that this value borrows keeps the region mapped.
        unsafe { words::load(from, bytes) };
        Ok(())
    }
}

/// Proof that 8 octets of registered memory may be changed atomically. It cannot outlive its guard
/// either.
#[derive(Debug)]
pub struct AtomicPlace<'g> {
    value: Target,
    guard: PhantomData<&'g Guard<'g>>,
}

impl AtomicPlace<'_> {
    /// Replaces the number that the octets hold, in the byte order of this machine, by what
    /// `change` makes of it. Returns what they held. One step for every worker and for the
    /// application's own atomic operations: `change` is called again if another came between.
    ///
    /// Fails if the program has taken away memory of its own
    /// ([`Region::foreign`](super::region::Region::foreign)).
    // rfc: 7306-3, 7306-38, 7306-40 atomic for all streams of this RNIC
    pub fn update(&self, change: impl Fn(u64) -> u64) -> Result<u64, Fault> {
        let value = match self.value.address() {
            Ok(value) => value.cast(),
            // SAFETY: validation found 8 octets at `value` inside a registered region of the
            // program's, and that they are aligned. They may be gone.
            Err(value) => return unsafe { guarded::update(value.cast(), change) },
        };
        // SAFETY: validation found 8 octets at `value` inside a registered region, and that they
        // are aligned. The guard that this value borrows keeps the region mapped. What writes the
        // octets meanwhile by other means than an atomic operation races with it: RFC 7306 section
        // 5 leaves that to the applications.
        let value = unsafe { AtomicU64::from_ptr(value) };
        // The application may use it as a lock: what is placed before and behind it stays there.
        let mut original = value.load(Ordering::Acquire);
        while let Err(found) = value.compare_exchange_weak(
            original,
            change(original),
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            original = found;
        }
        Ok(original)
    }
}
