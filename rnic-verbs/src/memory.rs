//! Memory regions and their registration.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rnic_core::memory::{
    region::{HugePages, Region, RegionError},
    table::{Access, Scope, TableError},
};
use rnic_core::wire::ddp::{Stag, TaggedOffset};

use crate::address::{RemoteAddress, Sge};
use crate::device::{Device, Inner};
use crate::error::Error;
use crate::pd::Pd;
use crate::qp::Qp;

impl Device {
    /// Allocates a [region](Region::allocate), on the device's NUMA node if that has memory. Fails
    /// if the kernel maps no such region, or if `len` is 0.
    pub fn allocate(&self, len: usize, pages: HugePages) -> Result<Region, RegionError> {
        let mut made = None;
        self.inner
            .net
            .near_device(&mut || made = Some(Region::allocate(len, pages)));
        made.unwrap_or_else(|| Region::allocate(len, pages))
    }
}

impl Pd {
    /// Allocates a [region](Device::allocate) of `len` octets, on hugepages where they fit and are
    /// to be had, and registers it. Fails as those two do.
    pub fn allocate(&self, len: usize, access: Access) -> Result<Mr, Error> {
        let region = self.device.allocate(len, HugePages::default())?;
        self.register(&Arc::new(region), access)
    }

    /// Registers a whole region. Its tagged offsets are its virtual addresses. Fails as
    /// [`Registration::register`] does.
    pub fn register(&self, region: &Arc<Region>, access: Access) -> Result<Mr, Error> {
        self.registration(region).access(access).register()
    }

    /// Begins a registration with options.
    pub fn registration(&self, region: &Arc<Region>) -> Registration<'_> {
        Registration {
            pd: self,
            region: region.clone(),
            range: 0..region.len(),
            base: None,
            access: Access::LOCAL_WRITE,
            scope: Scope::Domain(self.id),
        }
    }
}

/// A registration with options: [`register`](Self::register) makes it.
#[derive(Debug)]
pub struct Registration<'a> {
    pd: &'a Pd,
    region: Arc<Region>,
    range: Range<usize>,
    base: Option<TaggedOffset>,
    access: Access,
    scope: Scope,
}

impl Registration<'_> {
    /// Registers only these octets of the region.
    pub fn range(mut self, range: Range<usize>) -> Self {
        self.range = range;
        self
    }

    /// Sets the tagged offset of the first octet. The default is the virtual address.
    pub fn base(mut self, base: u64) -> Self {
        self.base = Some(TaggedOffset(base));
        self
    }

    /// Sets the access rights. The default is local use only.
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Restricts it to the peer of this queue pair, which may then invalidate it (Send with
    /// Invalidate).
    pub fn only_for(mut self, qp: &Qp) -> Self {
        self.scope = Scope::Stream(self.pd.id, qp.stream());
        self
    }

    /// Registers the memory. Fails with [`Error::Registration`] if all STags are in use, if the
    /// range is not inside the region, or if the region is read-only and the rights are not.
    pub fn register(self) -> Result<Mr, Error> {
        let device = &self.pd.device.inner;
        // A range beyond the end fails below.
        let start = self
            .region
            .base_address()
            .wrapping_add(self.range.start as u64);
        let base = self.base.unwrap_or(TaggedOffset(start));
        let stag = device.table().register(
            self.region.clone(),
            self.range.clone(),
            base,
            self.access,
            self.scope,
        )?;
        Ok(Mr {
            owned: Owned::new(device, stag),
            region: self.region,
            range: self.range,
            base,
        })
    }
}

/// Registered memory. Dropping it deregisters it: after that neither peers nor queued requests
/// reach the memory through it or through [windows](crate::Mw) that are bound to it.
pub struct Mr {
    owned: Owned,
    region: Arc<Region>,
    range: Range<usize>,
    base: TaggedOffset,
}

impl Mr {
    /// Returns its Steering Tag, by which peers and local requests name it.
    pub fn stag(&self) -> Stag {
        self.owned.stag
    }

    /// Returns the number of octets registered.
    #[expect(clippy::len_without_is_empty, reason = "a registration is never empty")]
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Returns the tagged offset of the first octet.
    pub fn base(&self) -> u64 {
        self.base.0
    }

    /// Returns what a peer needs to know to read or write from octet `offset` on.
    pub fn remote(&self, offset: usize) -> RemoteAddress {
        RemoteAddress {
            stag: self.stag(),
            offset: self.base.0.wrapping_add(offset as u64),
        }
    }

    /// Returns a scatter/gather element of `length` octets from octet `offset` on. If they are not
    /// inside the registration, the request that uses them completes with a protection error.
    pub fn sge(&self, offset: usize, length: u32) -> Sge {
        Sge::new(self.stag(), self.base.0.wrapping_add(offset as u64), length)
    }

    /// Returns the region that it is part of.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Copies octets out, from octet `offset` of the registration on. If a peer writes at the same
    /// time, old and new octets may be mixed. Fails if they are not all inside the registration, or
    /// the program has unmapped that memory.
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result<(), Error> {
        Ok(self.region.read(self.at(offset, to.len())?, to)?)
    }

    /// Returns a copy of `len` octets, from octet `offset` of the registration on. If a peer writes
    /// at the same time, old and new octets may be mixed. Fails as [`read`](Self::read) does.
    pub fn copy(&self, offset: usize, len: usize) -> Result<Vec<u8>, Error> {
        // Checked before so much memory is asked for.
        self.at(offset, len)?;
        let mut octets = vec![0; len];
        self.read(offset, &mut octets)?;
        Ok(octets)
    }

    /// Copies octets in, from octet `offset` of the registration on. Fails if they are not all
    /// inside the registration, if the region is read-only, or if the program has unmapped that
    /// memory.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), Error> {
        Ok(self.region.write(self.at(offset, from.len())?, from)?)
    }

    /// Loads one octet from memory: for a loop that waits for a peer's write. Fails if it is
    /// outside of the registration.
    pub fn load(&self, offset: usize) -> Result<u8, Error> {
        Ok(self.region.load(self.at(offset, 1)?)?)
    }

    /// Returns the 8 octets from octet `offset` of the registration on for atomic operations, as a
    /// number in this machine's byte order. They are atomic with those of peers
    /// ([`fetch_add`](crate::SendRequest::fetch_add)). Fails if their address is no multiple of 8.
    pub fn atomic(&self, offset: usize) -> Result<&AtomicU64, Error> {
        Ok(self
            .region
            .atomic(self.at(offset, size_of::<AtomicU64>())?)?)
    }

    /// Returns the offset in the region of octets of the registration. Fails if any of them is
    /// outside.
    fn at(&self, offset: usize, len: usize) -> Result<usize, RegionError> {
        if offset > self.len() || len > self.len() - offset {
            return Err(RegionError::OutOfRange {
                offset,
                len,
                region: self.len(),
            });
        }
        Ok(self.range.start + offset)
    }

    /// Returns whether it is still valid. A peer may have invalidated it.
    pub fn is_valid(&self) -> bool {
        self.owned.live() == Some(self.stag())
    }

    /// Deregisters it. When this returns, no placement through it is under way, and none will
    /// follow. Fails, and changes nothing, while [windows](crate::Mw) are bound to it.
    ///
    /// Inside a worker's batch it fails after making the STag invalid: try again after the batch.
    pub fn deregister(&mut self) -> Result<(), Error> {
        self.owned.revoke()
    }
}

impl std::fmt::Debug for Mr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mr")
            .field("stag", &self.stag())
            .field("base", &self.base)
            .field("len", &self.len())
            .finish()
    }
}

/// An STag that this application has allocated. Dropping it revokes the STag.
pub(crate) struct Owned {
    device: Arc<Inner>,
    /// The STag as allocated. The key of a window or a fast registration changes.
    stag: Stag,
    /// It was not revoked yet.
    is_allocated: bool,
}

impl Owned {
    pub(crate) fn new(device: &Arc<Inner>, stag: Stag) -> Self {
        Self {
            device: device.clone(),
            stag,
            is_allocated: true,
        }
    }

    /// Returns the STag as allocated.
    pub(crate) fn stag(&self) -> Stag {
        self.stag
    }

    /// Returns the STag under which it is valid now, if it is.
    pub(crate) fn live(&self) -> Option<Stag> {
        let live = self.device.table().live(self.stag);
        live.filter(|_| self.is_allocated)
    }

    pub(crate) fn recall(&self) -> Result<(), Error> {
        Ok(self.device.table().recall(self.stag)?)
    }

    pub(crate) fn new_key(&self) -> Stag {
        self.device.table().new_key(self.stag)
    }

    /// Revokes the STag if that was not done. It can be tried again after a failure.
    pub(crate) fn revoke(&mut self) -> Result<(), Error> {
        if self.is_allocated {
            let revoked = self.device.table().revoke(self.stag);
            self.is_allocated = matches!(
                revoked,
                Err(TableError::InsideBatch(_) | TableError::WindowsBound { .. })
            );
            revoked?;
        }
        Ok(())
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if self.device.is_forked() {
            return self.device.forget();
        }
        if self.is_allocated {
            // Fails only if it was revoked elsewhere, or inside a worker's batch: then it is
            // invalid from now on, and its memory stays mapped.
            let _ = self.device.table().revoke_with_windows(self.stag);
        }
    }
}

impl std::fmt::Debug for Owned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (valid as {:?})", self.stag, self.live())
    }
}
