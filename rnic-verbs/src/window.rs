//! Memory windows and fast registrations: remote access that work requests grant and revoke.

use std::ops::Range;
use std::sync::Arc;

use rnic_core::memory::binding;
use rnic_core::memory::region::Region;
use rnic_core::memory::table::Access;
use rnic_core::verbs::wr::WrOpcode;
use rnic_core::wire::ddp::Stag;

use crate::address::RemoteAddress;
use crate::binding::Binding;
use crate::error::Error;
use crate::memory::{Mr, Owned};
use crate::pd::Pd;

/// A memory window (of type 2): an STag that a request on a queue pair binds to a part of a region,
/// for the peer of that queue pair alone, and that a request or the peer invalidates.
///
/// Binding and invalidating cost a request each, while a registration waits for the worker. A
/// window is bound to one part at a time. It may be bound again, on any queue pair of its
/// protection domain, once it is invalid. Dropping it revokes it for good.
///
/// ```
/// # use std::{sync::Arc, time::Duration};
/// # use rnic_verbs::*;
/// # fn lend(pd: &Pd, qp: &mut Qp, cq: &mut Cq) -> Result<(), Box<dyn std::error::Error>> {
/// let region = Arc::new(Region::allocate(1 << 20, HugePages::default())?);
/// let mr = pd.register(&region, Access::LOCAL_WRITE | Access::MW_BIND)?;
/// let window = pd.window()?;
/// // The peer may write to 4096 octets, at offsets from 0 on.
/// let open = window.binding(&mr, 8192..12288, Access::REMOTE_WRITE).base(0);
/// qp.post_send(&SendRequest::bind(&open).unsignaled())?;
/// // Behind it, this tells the peer.
/// qp.post_send(&SendRequest::send().inline(&open.stag().0.to_be_bytes()))?;
/// // Later: no placement comes after the completion of this.
/// qp.post_send(&SendRequest::invalidate(open.stag()))?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Mw(Owned);

impl Pd {
    /// Makes a memory window that is not bound. Fails only if all STags of the device are in use.
    pub fn window(&self) -> Result<Mw, Error> {
        let device = &self.device.inner;
        let stag = device.table().allocate_window(self.id)?;
        Ok(Mw(Owned::new(device, stag)))
    }

    /// Makes an STag for registrations of parts of a region by work requests. It keeps the region
    /// allocated. Fails only if all STags of the device are in use.
    pub fn fast_registration(&self, region: &Arc<Region>) -> Result<FastMr, Error> {
        let device = &self.device.inner;
        let stag = device.table().allocate_fast(region.clone(), self.id)?;
        Ok(FastMr {
            owned: Owned::new(device, stag),
            region: region.clone(),
        })
    }
}

impl Mw {
    /// Returns a binding to octets `range` of a registration (counted from its first), with remote
    /// rights: `access` of [`Access::REMOTE`] and no others. The registration must allow
    /// [`Access::MW_BIND`], and local writes if peers may write. It needs no remote rights itself.
    /// It cannot be deregistered while the window is bound.
    ///
    /// Nothing is checked here. An invalid request completes with
    /// [`MwBindError`](crate::WcStatus::MwBindError) and ends the connection, whose
    /// [`EndReason`](crate::EndReason) says why.
    pub fn binding(&self, mr: &Mr, range: Range<usize>, access: Access) -> Binding {
        self.onto(mr.remote(range.start), range.len(), access)
    }

    /// Returns a binding to octets `range` of what `fast` means on the same queue pair when the
    /// request is carried out.
    pub fn binding_of_fast(&self, fast: &Binding, range: Range<usize>, access: Access) -> Binding {
        self.onto(fast.remote(range.start), range.len(), access)
    }

    fn onto(&self, start: RemoteAddress, len: usize, access: Access) -> Binding {
        let inner = binding::Binding {
            stag: self.0.new_key().0,
            region: start.stag.0,
            start: start.offset,
            length: len as u64,
            base: start.offset,
            access: access.0,
            ..binding::Binding::default()
        };
        Binding::new(WrOpcode::BindWindow, inner)
    }

    /// Returns its STag as it was allocated. Bindings have the same index, and keys of their own.
    pub fn stag(&self) -> Stag {
        self.0.stag()
    }

    /// Returns the STag under which it is bound now, if it is.
    pub fn live(&self) -> Option<Stag> {
        self.0.live()
    }

    /// Unbinds it, if it is bound, without a request: for use after its connection has ended. When
    /// this returns, no placement through it is under way, and none will follow. Waits for the
    /// worker.
    pub fn recall(&self) -> Result<(), Error> {
        self.0.recall()
    }

    /// Destroys it, bound or not. When this returns, no placement through it is under way, and none
    /// will follow.
    ///
    /// Inside a worker's batch it fails after unbinding it: try again after the batch.
    pub fn deallocate(&mut self) -> Result<(), Error> {
        self.0.revoke()
    }
}

/// An STag under which work requests register parts of a region, for the queue pair alone on which
/// they are posted. Its peer may invalidate it. Dropping it revokes it for good, and unbinds
/// windows that are bound to it.
///
/// ```
/// # use std::sync::Arc;
/// # use rnic_verbs::*;
/// # fn lend(pd: &Pd, qp: &mut Qp, there: RemoteAddress) -> Result<(), Box<dyn std::error::Error>> {
/// let region = Arc::new(Region::allocate(1 << 20, HugePages::default())?);
/// let fast = pd.fast_registration(&region)?;
/// let sink = fast.binding(4096..8192, Access::LOCAL_WRITE);
/// qp.post_send(&SendRequest::bind(&sink).unsignaled())?;
/// qp.post_send(&SendRequest::read(there).memory(&[sink.sge(0, 4096)]))?;
/// // The fence: not before the Read is done.
/// qp.post_send(&SendRequest::invalidate(sink.stag()).fenced())?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct FastMr {
    owned: Owned,
    region: Arc<Region>,
}

impl FastMr {
    /// Returns a registration of octets `range` of the region, with these rights.
    ///
    /// Nothing is checked here. An invalid request completes with
    /// [`MwBindError`](crate::WcStatus::MwBindError) and ends the connection, whose
    /// [`EndReason`](crate::EndReason) says why.
    pub fn binding(&self, range: Range<usize>, access: Access) -> Binding {
        let start = range.start as u64;
        let inner = binding::Binding {
            stag: self.owned.new_key().0,
            start,
            length: range.len() as u64,
            base: self.region.base_address().wrapping_add(start),
            access: access.0,
            ..binding::Binding::default()
        };
        Binding::new(WrOpcode::FastRegister, inner)
    }

    /// Returns the region.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Returns the STag under which it is registered now, if it is.
    pub fn live(&self) -> Option<Stag> {
        self.owned.live()
    }

    /// Invalidates it, if it is valid, without a request: for use after its connection has ended.
    /// When this returns, no placement through it is under way, and none will follow. Waits for the
    /// worker. Fails while windows are bound to it.
    pub fn recall(&self) -> Result<(), Error> {
        self.owned.recall()
    }

    /// Destroys it. When this returns, no placement through it is under way, and none will follow.
    /// Fails while windows are bound to it.
    ///
    /// Inside a worker's batch it fails after making the STag invalid: try again after the batch.
    pub fn deregister(&mut self) -> Result<(), Error> {
        self.owned.revoke()
    }
}
