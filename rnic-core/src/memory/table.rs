//! The STag table: which memory peers may reach, by which name, and how. Each access is checked
//! here (`StagTable::check`).
//!
//! Workers read it without a lock, inside a batch (see [`epoch`](super::epoch)). A slot is written
//! only while it is invalid and no reader that it concerns can still have seen it valid, so its
//! fields never change under a reader: applications write it after every worker has passed a
//! quiescent point, and the worker of a stream, which alone uses the STags of that stream, between
//! two of its lookups (see `binding`).

mod binding;
pub mod list;

use std::collections::{HashMap, TryReserveError};
use std::ops::Range;
use std::ptr;
use std::sync::{Arc, PoisonError};

pub use self::binding::BindError;
pub use super::access::{Access, Origin, Scope};
use super::error::TagError;
use super::random::Random;
use super::region::Region;
use super::target::Target;
use super::workers::Workers;
use crate::ids::{PdId, StreamId};
use crate::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::wire::ddp::{Stag, TaggedOffset};

/// The most STags of a table.
pub const MAX_STAGS: u32 = 1 << 20;

/// Why memory was not registered or not revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// No slot is free.
    #[error("all {0} STags are in use; deregister memory or open the device with more")]
    Full(usize),
    /// The range is empty or not inside the region.
    #[error(
        "octets {start}..{end} cannot be registered of a region of {region}: choose a range inside it that is not empty"
    )]
    Range {
        /// First octet.
        start: usize,
        /// Past the last octet.
        end: usize,
        /// Octets in the region.
        region: usize,
    },
    /// Rights to write were asked for, and the region has none.
    #[error("the region is read-only: it cannot be registered with the rights {0}")]
    ReadOnly(Access),
    /// Tagged offsets would pass 2^64.
    #[error(
        "{len} octets do not fit between tagged offset {base:#x} and 2^64; choose a lower base"
    )]
    OffsetWrap {
        /// The first tagged offset.
        base: u64,
        /// Octets.
        len: usize,
    },
    /// No such registration, or somebody else is revoking it.
    #[error("STag {0} is not registered")]
    NotRegistered(Stag),
    /// Memory windows are bound to it.
    #[error(
        "{windows} memory windows are bound to STag {stag}; invalidate or drop them before the region"
    )]
    WindowsBound {
        /// The STag.
        stag: Stag,
        /// Windows.
        windows: u32,
    },
    /// The caller runs inside a batch of a worker, and would wait for itself.
    #[error(
        "STag {0} was made invalid, but its memory cannot be let go inside a worker's batch; revoke it after the batch"
    )]
    InsideBatch(Stag),
}

/// StagSlot scope: any stream of the domain. Streams are counted from 0, and never so far.
const ANY_STREAM: u64 = u64::MAX;

/// What readers see of a registration.
#[derive(Debug)]
#[repr(align(64))]
struct StagSlot {
    /// The STag while it is valid, else 0. Written last (Release), read first (Acquire).
    live: AtomicU32,
    access: AtomicU32,
    pd: AtomicU32,
    /// The stream, or `ANY_STREAM`.
    stream: AtomicU64,
    /// The first tagged offset.
    base: AtomicU64,
    start: AtomicPtr<u8>,
    len: AtomicUsize,
    /// A window: the STag of the region that it is bound to. Else 0.
    parent: AtomicU32,
    /// A region: the windows that are bound to it.
    windows: AtomicU32,
}

/// What a slot is made to say.
struct StagEntry {
    access: Access,
    scope: Scope,
    base: TaggedOffset,
    start: Target,
    len: usize,
    parent: Stag,
}

impl StagSlot {
    fn new() -> Self {
        Self {
            live: AtomicU32::new(0),
            access: AtomicU32::new(0),
            pd: AtomicU32::new(0),
            stream: AtomicU64::new(ANY_STREAM),
            base: AtomicU64::new(0),
            start: AtomicPtr::new(ptr::null_mut()),
            len: AtomicUsize::new(0),
            parent: AtomicU32::new(0),
            windows: AtomicU32::new(0),
        }
    }

    /// Makes the slot say something, and its STag valid. The caller holds the ledger, the slot is
    /// invalid, and no reader that could use it has seen it valid since its last quiescent point.
    fn publish(&self, stag: Stag, entry: &StagEntry) {
        let (pd, stream) = match entry.scope {
            Scope::Domain(pd) => (pd, ANY_STREAM),
            // rfc: 5041-82 an STag can be bound to one stream
            Scope::Stream(pd, stream) => (pd, stream.0),
        };
        self.access.store(entry.access.0.into(), Ordering::Relaxed);
        self.pd.store(pd.0, Ordering::Relaxed);
        self.stream.store(stream, Ordering::Relaxed);
        self.base.store(entry.base.0, Ordering::Relaxed);
        self.start.store(entry.start.marked(), Ordering::Relaxed);
        self.len.store(entry.len, Ordering::Relaxed);
        self.parent.store(entry.parent.0, Ordering::Relaxed);
        // Release: who finds it valid finds all of the above.
        self.live.store(stag.0, Ordering::Release);
    }

    // rfc: 5042-7 the scope of an STag is a protection domain or a stream
    fn origin_fits(&self, origin: Origin) -> bool {
        let stream = self.stream.load(Ordering::Relaxed);
        self.pd.load(Ordering::Relaxed) == origin.pd.0
            && (stream == ANY_STREAM || origin.stream == Some(StreamId(stream)))
    }
}

/// What an STag was made for.
#[derive(Debug)]
enum Kind {
    /// Memory registered from the start. It is held, so that it stays mapped while a worker can
    /// write to it.
    Region(Arc<Region>),
    /// Memory that work requests register, in parts and anew.
    Fast(Arc<Region>),
    /// A memory window, which is bound to parts of regions. Those hold their memory.
    Window,
}

/// A registration as its owner sees it.
#[derive(Debug)]
struct Registration {
    /// The STag that its owner was given. That of a window or of a fast registration later has
    /// other keys.
    stag: Stag,
    pd: PdId,
    kind: Kind,
    /// Its owner gave it up: it is never valid again.
    over: bool,
    /// Somebody waits until no worker uses it any more.
    waiting: bool,
    /// A window: it was made invalid with its region, and a worker may still go on with what it
    /// said, for each of so many regions.
    settling: u32,
    /// A region: the windows that its end has made invalid.
    ended_windows: Vec<Stag>,
}

/// What writers need, behind a lock.
#[derive(Debug)]
struct Ledger {
    random: Random,
    free: Vec<u32>,
    last_key: Vec<u8>,
    /// By the index part of the STag.
    registered: HashMap<u32, Registration>,
}

/// The registered memory of a device.
///
/// An STag is a 24-bit index and an 8-bit key. The low bits of the index choose the slot, at random
/// among the free ones; the rest of the index and the key are random too, and the slot holds the
/// whole STag to compare. A peer that guesses therefore has all 32 bits to guess, however small the
/// table is.
#[derive(Debug)]
pub struct StagTable {
    /// A power of two of them.
    slots: Box<[StagSlot]>,
    ledger: Mutex<Ledger>,
    workers: Workers,
}

impl StagTable {
    /// Returns a table of `capacity` STags (rounded up to a power of two, [`MAX_STAGS`] at most).
    /// `seed` must be unpredictable. It panics where there is no memory.
    pub fn new(capacity: usize, seed: [u8; 32]) -> Self {
        Self::try_new(capacity, seed).expect("memory for a table of STags")
    }

    /// Returns the same, or an error where there is no memory: a table is large, and a process may
    /// have a limit.
    pub fn try_new(capacity: usize, seed: [u8; 32]) -> Result<Self, TryReserveError> {
        let capacity = capacity.clamp(1, MAX_STAGS as usize).next_power_of_two();
        let (mut slots, mut free, mut last_key) = (Vec::new(), Vec::new(), Vec::new());
        slots.try_reserve_exact(capacity)?;
        free.try_reserve_exact(capacity)?;
        last_key.try_reserve_exact(capacity)?;
        slots.resize_with(capacity, StagSlot::new);
        free.extend(0..capacity as u32);
        last_key.resize(capacity, 0);
        let ledger = Ledger {
            random: Random::new(seed),
            free,
            last_key,
            registered: HashMap::new(),
        };
        Ok(Self {
            slots: slots.into_boxed_slice(),
            ledger: Mutex::new(ledger),
            workers: Workers::default(),
        })
    }

    /// Returns the number of STags that can exist at once.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Returns the number of STags that exist, invalidated ones included.
    #[cfg(test)]
    fn registered(&self) -> usize {
        self.lock().registered.len()
    }

    /// Lets `scope` reach octets `range` of a region as tagged offsets from `base`, as `access`
    /// allows.
    // rfc: 5041-79, 5041-82 an STag is bound to a protection domain or a stream
    // rfc: 5041-80, 5041-81 its range can be set, and it can be made valid or invalid
    // rfc: 5041-89, 5040-108 its binding to a buffer can be made and revoked
    // rfc: 5041-90, 5040-109 and so can rights to read and write
    pub fn register(
        &self,
        region: Arc<Region>,
        range: Range<usize>,
        base: TaggedOffset,
        access: Access,
        scope: impl Into<Scope>,
    ) -> Result<Stag, TableError> {
        if range.is_empty() || range.end > region.len() {
            return Err(TableError::Range {
                start: range.start,
                end: range.end,
                region: region.len(),
            });
        }
        if access.lets_write() && !region.is_writable() {
            return Err(TableError::ReadOnly(access));
        }
        let len = range.len();
        if base.0.checked_add(len as u64).is_none() {
            return Err(TableError::OffsetWrap { base: base.0, len });
        }
        let scope = scope.into();
        let (Scope::Domain(pd) | Scope::Stream(pd, _)) = scope;
        let start = Target::of(&region, range.start);
        let mut ledger = self.lock();
        let stag = self.add(&mut ledger, pd, Kind::Region(region))?;
        // rfc: 5040-109, 5041-79, 5041-80 rights, protection domain and range are set
        let entry = StagEntry {
            access: access | Access::LOCAL_READ,
            scope,
            base,
            start,
            len,
            parent: Stag(0),
        };
        // rfc: 5041-81 the STag becomes valid
        self.slot(stag).publish(stag, &entry);
        Ok(stag)
    }

    /// Returns a new STag, which is not valid yet.
    fn add(&self, ledger: &mut Ledger, pd: PdId, kind: Kind) -> Result<Stag, TableError> {
        let capacity = self.slots.len();
        let stag = ledger
            .new_stag(capacity)
            .ok_or(TableError::Full(capacity))?;
        let registration = Registration {
            stag,
            pd,
            kind,
            over: false,
            waiting: false,
            settling: 0,
            ended_windows: Vec::new(),
        };
        ledger.registered.insert(stag.index(), registration);
        Ok(stag)
    }

    /// Ends a registration, by the STag that it was given first. When it returns, no worker can
    /// reach the memory through it any more. Refused while memory windows are bound to it.
    ///
    /// It waits for the batches that are under way. On [`TableError::InsideBatch`] the STag is
    /// invalid already, but the registration remains: try again after the batch.
    // rfc: 5040-110, 5041-91, 5042-11 after revocation nothing changes the buffer
    pub fn revoke(&self, stag: Stag) -> Result<(), TableError> {
        self.end(stag, Windows::Refuse)
    }

    /// Revokes a registration as [`revoke`](Self::revoke) does, and invalidates the windows that
    /// are bound to it.
    pub fn revoke_with_windows(&self, stag: Stag) -> Result<(), TableError> {
        self.end(stag, Windows::Invalidate)
    }

    fn end(&self, stag: Stag, windows: Windows) -> Result<(), TableError> {
        {
            let mut ledger = self.lock();
            self.stop(&mut ledger, stag, windows)?;
            ledger.owned(stag)?.over = true;
            self.check_outside_batch(stag)?;
            ledger.owned(stag)?.waiting = true;
        }
        // Without the lock: a worker may need it to finish its batch.
        self.workers.wait();
        let mut ledger = self.lock();
        let registration = ledger.registered.remove(&stag.index());
        ledger.free.push(self.slot_index(stag));
        for window in registration.iter().flat_map(|it| &it.ended_windows) {
            // It may have been given up meanwhile.
            if let Some(window) = ledger.named(*window) {
                window.settling -= 1;
            }
        }
        drop(ledger);
        // Unmapping may take long: without the lock.
        drop(registration);
        Ok(())
    }

    /// Makes a registration invalid, by whatever key it has now.
    fn stop(&self, ledger: &mut Ledger, stag: Stag, windows: Windows) -> Result<(), TableError> {
        ledger.owned(stag)?;
        let slot = self.slot(stag);
        let bound = slot.windows.load(Ordering::Acquire);
        if bound > 0 {
            match windows {
                Windows::Refuse => {
                    return Err(TableError::WindowsBound {
                        stag,
                        windows: bound,
                    });
                }
                Windows::Invalidate => self.disable_windows(ledger, stag),
            }
        }
        // rfc: 5041-91 after revocation nothing changes the buffer
        // If it became invalid since it was read, so much the better.
        self.disable(Stag(slot.live.load(Ordering::Relaxed)));
        Ok(())
    }

    fn check_outside_batch(&self, stag: Stag) -> Result<(), TableError> {
        if self.workers.inside_batch() {
            return Err(TableError::InsideBatch(stag));
        }
        Ok(())
    }

    /// Returns whether an STag is valid now.
    pub fn is_valid(&self, stag: Stag) -> bool {
        stag.0 != 0 && self.slot(stag).live.load(Ordering::Acquire) == stag.0
    }

    pub(super) fn workers(&self) -> &Workers {
        &self.workers
    }

    /// Makes an STag of one stream invalid because that stream asks for it: its peer, or a work
    /// request. The caller holds a guard, so the slot is not reused meanwhile.
    // rfc: 5040-110, 5041-91, 5042-11 after revocation nothing changes the buffer
    pub(super) fn invalidate(&self, stag: Stag, origin: Origin) -> Result<(), TagError> {
        let slot = self.find(stag, origin)?;
        // rfc: 5040-111 a peer cannot invalidate an STag that several streams may use
        if slot.stream.load(Ordering::Relaxed) == ANY_STREAM {
            return Err(TagError::NotInvalidatable(stag));
        }
        if slot.windows.load(Ordering::Acquire) > 0 {
            return Err(TagError::WindowsBound(stag));
        }
        let invalidated = self.disable(stag);
        invalidated.then_some(()).ok_or(TagError::InvalidStag(stag))
    }

    /// Makes an STag invalid, and returns whether it was valid. Of several callers at once, one
    /// gets `true`. The caller holds the ledger, or a guard as the worker of the STag's stream.
    fn disable(&self, stag: Stag) -> bool {
        let slot = self.slot(stag);
        // Once it is invalid, another may bind it. (Acquire: it reads the parent of the STag that it
        // ends, published with that. What later lookups see is the business of `Workers::wait`.)
        let parent = Stag(slot.parent.load(Ordering::Relaxed));
        let was_live = stag.0 != 0
            && slot
                .live
                .compare_exchange(stag.0, 0, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        if was_live && parent.0 != 0 {
            // Release: the window was ended before the region's owner finds it gone.
            self.slot(parent).windows.fetch_sub(1, Ordering::Release);
        }
        was_live
    }

    /// Returns where `len` octets at a tagged offset are, if the STag lets `origin` do `need` to
    /// all of them. The caller holds a guard while it uses the address.
    // rfc: 5041-73b, 5041-73c, 5041-73d, 5041-73e TO and end lie in the buffer, and do not wrap
    // rfc: 5040-100, 5040-101, 5040-102 so do those of the source of a Read
    // rfc: 5041-88, 5040-107, 5042-10 no access outside of the range of the STag
    #[inline(always)]
    pub(super) fn check(
        &self,
        stag: Stag,
        offset: TaggedOffset,
        len: usize,
        origin: Origin,
        need: Access,
    ) -> Result<Target, TagError> {
        let slot = self.find(stag, origin)?;
        let allowed = Access(slot.access.load(Ordering::Relaxed) as u8).and(origin.rights);
        if !allowed.contains(need) {
            return Err(TagError::AccessViolation { stag, need });
        }
        // The sum itself must not wrap, so the octet at offset 2^64 - 1 cannot be reached.
        if offset.0.checked_add(len as u64).is_none() {
            return Err(TagError::OffsetWrap { offset, len });
        }
        let outside = TagError::BaseOrBounds { stag, offset, len };
        let into = offset
            .0
            .checked_sub(slot.base.load(Ordering::Relaxed))
            .ok_or(outside)?;
        let into = usize::try_from(into).map_err(|_| outside)?;
        // rfc: 5040-101, 5040-107, 5042-10 the offset lies in the range of the STag
        let room = slot
            .len
            .load(Ordering::Relaxed)
            .checked_sub(into)
            .ok_or(outside)?;
        // rfc: 5040-101, 5040-107, 5041-73d, 5041-88, 5042-10 so does the end
        if len > room {
            return Err(outside);
        }
        // rfc: 5041-15 the payload goes to the tagged buffer
        Ok(Target::from_marked(slot.start.load(Ordering::Relaxed)).add(into))
    }

    /// Checks all octets from a tagged offset to the last one. Returns where they are, and their
    /// number: at least one.
    pub(super) fn check_rest(
        &self,
        stag: Stag,
        offset: TaggedOffset,
        origin: Origin,
        need: Access,
    ) -> Result<(Target, usize), TagError> {
        let first = self.check(stag, offset, 1, origin, need)?;
        let slot = self.slot(stag);
        let before = offset.0 - slot.base.load(Ordering::Relaxed);
        // It is less, and fits, because the first of them is one of these octets.
        Ok((first, slot.len.load(Ordering::Relaxed) - before as usize))
    }

    /// Returns the slot of a valid STag that `origin` may use.
    // rfc: 5041-30, 5041-73a, 5040-98, 5040-99 the STag is valid on this stream
    // rfc: 5041-77, 5041-86, 5040-105, 5042-8 it is of the same protection domain
    // rfc: 5041-78, 5041-87, 5040-106, 5042-9 or of this stream alone
    #[inline(always)]
    fn find(&self, stag: Stag, origin: Origin) -> Result<&StagSlot, TagError> {
        let slot = self.slot(stag);
        // STag 0 would match every invalid slot.
        if stag.0 == 0 || slot.live.load(Ordering::Acquire) != stag.0 {
            return Err(TagError::InvalidStag(stag));
        }
        if !slot.origin_fits(origin) {
            return Err(TagError::NotAssociated {
                stag,
                pd: origin.pd,
            });
        }
        Ok(slot)
    }

    fn slot_index(&self, stag: Stag) -> u32 {
        stag.index() & (self.slots.len() - 1) as u32
    }

    fn slot(&self, stag: Stag) -> &StagSlot {
        &self.slots[self.slot_index(stag) as usize]
    }

    fn lock(&self) -> MutexGuard<'_, Ledger> {
        // Nothing panics while the ledger is half changed, so a poisoned one is whole.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What happens to the windows that are bound to a region when the region is revoked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Windows {
    Refuse,
    Invalidate,
}

impl Ledger {
    /// Returns a registration by the STag that its owner was given.
    fn named(&mut self, stag: Stag) -> Option<&mut Registration> {
        let registration = self.registered.get_mut(&stag.index());
        registration.filter(|registration| registration.stag == stag)
    }

    /// Returns a registration, unless it is being revoked.
    fn owned(&mut self, stag: Stag) -> Result<&mut Registration, TableError> {
        self.named(stag)
            .filter(|registration| !registration.waiting)
            .ok_or(TableError::NotRegistered(stag))
    }

    /// Allocates a free slot at random and names it: never index 0, never the key it had last.
    // rfc: 5040-112, 5040-s7 STags are hard to predict, and sparse
    fn new_stag(&mut self, capacity: usize) -> Option<Stag> {
        if self.free.is_empty() {
            return None;
        }
        let pick = self.random.next() as usize % self.free.len();
        let slot = self.free.swap_remove(pick);
        loop {
            let random = self.random.next() as u32;
            let index = (random >> 8) & !(capacity as u32 - 1) | slot;
            let key = random as u8;
            if index != 0 && key != self.last_key[slot as usize] {
                self.last_key[slot as usize] = key;
                return Some(Stag(index << 8 | u32::from(key)));
            }
        }
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
