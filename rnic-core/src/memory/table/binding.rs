//! STags that work requests give a meaning: memory windows, and regions registered on a send queue.
//!
//! Their index is allocated once, with nothing behind it; each request chooses a key with it, so
//! that what a peer still knows of the use before is of no use to it. What they say holds for the
//! stream alone on whose queue the request stood (a window of type 2; RFC 5041 section 8.2), which
//! has two merits: the peer may be allowed to invalidate them (RFC 5040 section 8.1.1), and as the
//! stream's worker alone can use them, and carries the requests out itself, nothing can be under
//! way when an invalidation is done, without anybody having waited.

use std::ops::Range;
use std::sync::Arc;

use crate::ids::{PdId, StreamId};
use crate::memory::{binding::Binding, error::TagError, region::Region, target::Target};
use crate::sync::atomic::Ordering;
use crate::wire::ddp::{Stag, TaggedOffset};

use super::{Access, Kind, Ledger, Registration, Scope, StagEntry, StagTable, TableError, Windows};

/// Why a work request did not give an STag a meaning, or take it away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// No window of this protection domain.
    #[error("STag {0} is no memory window of the queue pair's protection domain; allocate one")]
    NoWindow(Stag),
    /// No STag for fast registrations of this protection domain.
    #[error(
        "STag {0} was not allocated for fast registration in the queue pair's protection domain"
    )]
    NotFast(Stag),
    /// It has a meaning already.
    #[error("STag {0} is still valid; invalidate it before it gets another meaning")]
    StillValid(Stag),
    /// Its region is being deregistered.
    #[error(
        "the region that STag {0} was bound to is being deregistered; bind it again when that is done"
    )]
    Settling(Stag),
    /// These rights cannot be given.
    #[error(
        "a memory window gives remote rights and no others, and a region those that there are: not {0:#04x}"
    )]
    Rights(u8),
    /// No octets.
    #[error("no octets were given; bind at least one, and take the meaning away by invalidation")]
    Empty,
    /// The octets are not in the region that the STag was allocated for.
    #[error("{length} octets from octet {start} on are not all within the region")]
    Range {
        /// First octet.
        start: u64,
        /// Octets.
        length: u64,
    },
    /// Tagged offsets would pass 2^64.
    #[error("{length} octets do not fit between tagged offset {base:#x} and 2^64")]
    OffsetWrap {
        /// The first tagged offset.
        base: u64,
        /// Octets.
        length: u64,
    },
    /// The STag to be invalidated, or the region that the window opens, is not what it must be.
    #[error(transparent)]
    Tag(#[from] TagError),
}

impl StagTable {
    /// Allocates a memory window of a protection domain, which is not valid yet.
    /// [`revoke`](Self::revoke) ends it.
    pub fn allocate_window(&self, pd: PdId) -> Result<Stag, TableError> {
        self.add(&mut self.lock(), pd, Kind::Window)
    }

    /// Allocates an STag of a protection domain for fast registrations of parts of a region, which
    /// is not valid yet. [`revoke`](Self::revoke) ends it.
    pub fn allocate_fast(&self, region: Arc<Region>, pd: PdId) -> Result<Stag, TableError> {
        self.add(&mut self.lock(), pd, Kind::Fast(region))
    }

    /// Returns an STag with the same index and an unpredictable key other than its last one, for
    /// the next binding or registration.
    // rfc: 5040-112 STags are hard to predict
    pub fn new_key(&self, stag: Stag) -> Stag {
        let slot = self.slot_index(stag) as usize;
        let mut ledger = self.lock();
        loop {
            let key = ledger.random.next() as u8;
            if key != ledger.last_key[slot] {
                ledger.last_key[slot] = key;
                return stag.with_key(key);
            }
        }
    }

    /// Returns the STag by which a window or a fast registration is valid now, if it is.
    pub fn live(&self, stag: Stag) -> Option<Stag> {
        let live = Stag(self.slot(stag).live.load(Ordering::Acquire));
        (live.0 != 0 && live.index() == stag.index()).then_some(live)
    }

    /// Revokes the meaning of a window or fast registration, from the side of its owner. `stag` is
    /// the STag that it was given first. This is for a connection that has ended, on whose queue no
    /// request can do it any more. When it returns, no worker can reach the memory through it any
    /// more.
    ///
    /// Waits, and fails inside a batch, as [`revoke`](Self::revoke) does; then try again.
    // rfc: 5040-110, 5041-91, 5042-11 after revocation nothing changes the buffer
    pub fn recall(&self, stag: Stag) -> Result<(), TableError> {
        {
            let mut ledger = self.lock();
            self.stop(&mut ledger, stag, Windows::Refuse)?;
            self.check_outside_batch(stag)?;
            ledger.owned(stag)?.waiting = true;
        }
        self.workers.wait();
        if let Some(registration) = self.lock().registered.get_mut(&stag.index()) {
            registration.waiting = false;
        }
        Ok(())
    }

    /// Binds a window for one stream. The caller, the worker of that stream, holds a guard.
    // rfc: 5041-79, 5041-82 an STag is bound to a protection domain or a stream
    // rfc: 5041-89, 5040-108 its binding to a buffer can be made and revoked
    // rfc: 5041-90, 5040-109 and so can rights to read and write
    pub(in crate::memory) fn bind_window(
        &self,
        binding: &Binding,
        pd: PdId,
        stream: StreamId,
    ) -> Result<(), BindError> {
        let stag = binding.stag();
        let mut ledger = self.lock();
        let registration = ledger.awaiting(stag, pd);
        if !matches!(
            registration,
            Some(Registration {
                kind: Kind::Window,
                ..
            })
        ) {
            return Err(BindError::NoWindow(stag));
        }
        if !Access::REMOTE.contains(binding.access()) {
            return Err(BindError::Rights(binding.access));
        }
        // Only a binding side that may write to the memory can let others write to it.
        let need = if binding.access().lets_peers_write() {
            Access::MW_BIND | Access::LOCAL_WRITE
        } else {
            Access::MW_BIND
        };
        let len = length(binding)?;
        let origin = (pd, stream).into();
        let start = TaggedOffset(binding.start);
        // The region is not revoked meanwhile: that takes the ledger.
        let start = self.check(binding.region(), start, len, origin, need)?;
        let entry = StagEntry {
            // rfc: 5041-79, 5041-89, 5041-90 bind to stream, buffer and rights
            access: binding.access(),
            scope: Scope::Stream(pd, stream),
            base: binding.base(),
            start,
            len,
            parent: binding.region(),
        };
        self.give_meaning(&mut ledger, stag, &entry)?;
        // Relaxed: who revokes the region takes the ledger, and who invalidates it for the stream
        // is this worker.
        self.slot(binding.region())
            .windows
            .fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Registers a part of a region for one stream. The caller, the worker of that stream, holds a
    /// guard.
    // rfc: 5041-79, 5041-82 an STag is bound to a protection domain or a stream
    // rfc: 5041-89, 5040-108 its binding to a buffer can be made and revoked
    // rfc: 5041-90, 5040-109 and so can rights to read and write
    pub(in crate::memory) fn fast_register(
        &self,
        binding: &Binding,
        pd: PdId,
        stream: StreamId,
    ) -> Result<(), BindError> {
        let stag = binding.stag();
        let mut ledger = self.lock();
        let Some(Registration {
            kind: Kind::Fast(region),
            ..
        }) = ledger.awaiting(stag, pd)
        else {
            return Err(BindError::NotFast(stag));
        };
        let writes = binding.access().lets_write();
        if !Access::ALL.contains(binding.access()) || writes && !region.is_writable() {
            return Err(BindError::Rights(binding.access));
        }
        let len = length(binding)?;
        let range = octets(binding).filter(|range| range.end <= region.len());
        let Range { start, .. } = range.ok_or(BindError::Range {
            start: binding.start,
            length: binding.length,
        })?;
        let start = Target::of(region, start);
        let entry = StagEntry {
            access: binding.access() | Access::LOCAL_READ,
            scope: Scope::Stream(pd, stream),
            base: binding.base(),
            start,
            len,
            parent: Stag(0),
        };
        self.give_meaning(&mut ledger, stag, &entry)
    }

    fn give_meaning(
        &self,
        ledger: &mut Ledger,
        stag: Stag,
        entry: &StagEntry,
    ) -> Result<(), BindError> {
        let slot = self.slot(stag);
        // Relaxed: what ended the last meaning was this worker, or took the ledger.
        if slot.live.load(Ordering::Relaxed) != 0 {
            return Err(BindError::StillValid(stag));
        }
        // A worker that has seen it valid uses it until the end of its batch: it would mistake a
        // new binding with the same key for the old one.
        if ledger
            .registered
            .get(&stag.index())
            .is_some_and(|it| it.settling > 0)
        {
            return Err(BindError::Settling(stag));
        }
        ledger.last_key[self.slot_index(stag) as usize] = stag.key();
        slot.publish(stag, entry);
        Ok(())
    }

    /// Makes the windows invalid that are bound to a region. They stay so until the end of the
    /// region is over.
    pub(super) fn disable_windows(&self, ledger: &mut Ledger, region: Stag) {
        let mut ended = Vec::new();
        for window in ledger.registered.values_mut() {
            let slot = self.slot(window.stag);
            let parent = Stag(slot.parent.load(Ordering::Relaxed));
            // A fast registration has had its key changed. No window has index 0 for its region.
            let is_bound = parent.index() == region.index();
            if is_bound && self.disable(Stag(slot.live.load(Ordering::Relaxed))) {
                window.settling += 1;
                ended.push(window.stag);
            }
        }
        if let Some(region) = ledger.named(region) {
            region.ended_windows.append(&mut ended);
        }
    }
}

impl Stag {
    /// Returns the part that names a registration: it stays the same while its key changes.
    pub const fn index(self) -> u32 {
        self.0 >> 8
    }

    /// Returns the part that tells one use of an index from another.
    pub const fn key(self) -> u8 {
        self.0 as u8
    }

    /// Returns the STag with the same index and another key.
    pub const fn with_key(self, key: u8) -> Self {
        Self(self.0 & !0xff | key as u32)
    }
}

impl Ledger {
    /// Returns a registration of a protection domain by its index, unless its owner is about to end
    /// it.
    fn awaiting(&self, stag: Stag, pd: PdId) -> Option<&Registration> {
        self.registered
            .get(&stag.index())
            .filter(|registration| registration.pd == pd)
            .filter(|registration| !registration.over && !registration.waiting)
    }
}

/// Returns the octets of a binding: at least one, with tagged offsets below 2^64.
fn length(binding: &Binding) -> Result<usize, BindError> {
    if binding.length == 0 {
        return Err(BindError::Empty);
    }
    let wraps = BindError::OffsetWrap {
        base: binding.base,
        length: binding.length,
    };
    binding.base.checked_add(binding.length).ok_or(wraps)?;
    usize::try_from(binding.length).map_err(|_| wraps)
}

/// Returns the octets of a fast registration, counted in its region.
fn octets(binding: &Binding) -> Option<Range<usize>> {
    let start = usize::try_from(binding.start).ok()?;
    let len = usize::try_from(binding.length).ok()?;
    Some(start..start.checked_add(len)?)
}

#[cfg(test)]
mod tests;
