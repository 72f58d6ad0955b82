//! Memory windows and fast registrations: memory opened and closed by work requests.

use std::ops::Range;
use std::sync::Arc;

use rnic_core::memory::region::Region;
use rnic_core::memory::table::Access;
use rnic_core::verbs;
use rnic_core::verbs::wr::{SendWr, WrOpcode};
use rnic_core::wire::ddp::Stag;

use crate::error::Error;
use crate::memory::{Mr, Owned, Pd};
use crate::request::{RemoteAddress, Sge};

/// What a request gives an STag to mean: some octets, the tagged offset of the first, and rights.
/// [`SendRequest::bind`](crate::SendRequest::bind) posts it.
///
/// The STag is known at once, so that a request posted right behind can tell it to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    opcode: WrOpcode,
    inner: verbs::Binding,
}

impl Binding {
    /// The tagged offset of the first octet; without it, the offset that a window's region has there, and the virtual
    /// address of a fast registration. 0 makes it zero-based.
    pub fn base(mut self, base: u64) -> Self {
        self.inner.base = base;
        self
    }

    /// The last octet of the STag, as the application chooses it; without it, one that cannot be predicted and differs
    /// from the last. With the same key twice, a peer that remembers an STag reaches what that now means.
    pub fn key(mut self, key: u8) -> Self {
        self.inner.stag = self.stag().with_key(key).0;
        self
    }

    /// The STag that has this meaning once the request is done, until it is invalidated.
    pub fn stag(&self) -> Stag {
        self.inner.stag()
    }

    /// What the peer needs to know to read or write from octet `offset` on.
    pub fn remote(&self, offset: usize) -> RemoteAddress {
        RemoteAddress {
            stag: self.stag(),
            offset: self.inner.base.wrapping_add(offset as u64),
        }
    }

    /// `length` octets from octet `offset` on, for a local request on the same queue pair. A window has none for local
    /// use: its region has.
    pub fn sge(&self, offset: usize, length: u32) -> Sge {
        let at = self.inner.base.wrapping_add(offset as u64);
        Sge::new(self.stag(), at, length)
    }

    pub(crate) fn encode(&self, wr_id: u64) -> SendWr {
        SendWr::bind(wr_id, self.opcode, &self.inner)
    }
}

/// A memory window (of type 2): an STag that requests on a queue pair bind to a part of a region, for the peer of that
/// queue pair alone, and that a request or the peer makes invalid again.
///
/// Opening and closing memory that way costs a request each, while a registration waits for the worker. A window is
/// bound to one part at a time; it may be bound again, on any queue pair of its protection domain, once it is invalid.
/// Dropping it closes it for good.
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
    /// A memory window, bound to nothing.
    pub fn window(&self) -> Result<Mw, Error> {
        let device = &self.device.inner;
        let stag = device.table().allocate_window(self.id)?;
        Ok(Mw(Owned::new(device, stag)))
    }

    /// An STag for registrations of parts of a region by work requests. The region stays as it is while this is there.
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
    /// A binding to octets `range` of a registration (counted from its first), with remote rights: `access` of
    /// [`Access::REMOTE`] and no others. The registration must allow [`Access::MW_BIND`], and the local write too where
    /// peers shall write; it need not be open to peers itself. It cannot be deregistered while the window is bound.
    ///
    /// Nothing is checked here: a request that asks for what cannot be fails with
    /// [`MwBindError`](crate::WcStatus::MwBindError), and the connection with it, whose end says why.
    pub fn binding(&self, mr: &Mr, range: Range<usize>, access: Access) -> Binding {
        self.onto(mr.remote(range.start), range.len(), access)
    }

    /// A binding to octets `range` of what `fast` means on the same queue pair when the request is carried out.
    pub fn binding_of_fast(&self, fast: &Binding, range: Range<usize>, access: Access) -> Binding {
        self.onto(fast.remote(range.start), range.len(), access)
    }

    fn onto(&self, start: RemoteAddress, len: usize, access: Access) -> Binding {
        let inner = verbs::Binding {
            stag: self.0.new_key().0,
            region: start.stag.0,
            start: start.offset,
            length: len as u64,
            base: start.offset,
            access: access.0,
            ..verbs::Binding::default()
        };
        Binding {
            opcode: WrOpcode::BindWindow,
            inner,
        }
    }

    /// By which STag the peer reaches through it now, if it is bound.
    pub fn live(&self) -> Option<Stag> {
        self.0.live()
    }

    /// Unbinds it, if it is bound, from this side: for when its connection has ended, and no request can do it any
    /// more. When this returns no placement through it is under way, nor will there be one. Waits for the worker.
    pub fn recall(&self) -> Result<(), Error> {
        self.0.recall()
    }

    /// Ends it, bound or not. When this returns no placement through it is under way, nor will there be one.
    ///
    /// Inside a worker's batch it fails after unbinding it: try again after the batch.
    pub fn deallocate(&mut self) -> Result<(), Error> {
        self.0.revoke()
    }
}

/// An STag under which work requests register parts of a region: for the queue pair alone on which they are posted,
/// whose peer may invalidate it. Dropping it ends it for good, and unbinds windows that are bound to it.
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
    /// A registration of octets `range` of the region, with these rights.
    ///
    /// Nothing is checked here: a request that asks for what cannot be fails with
    /// [`MwBindError`](crate::WcStatus::MwBindError), and the connection with it, whose end says why.
    pub fn binding(&self, range: Range<usize>, access: Access) -> Binding {
        let start = range.start as u64;
        let inner = verbs::Binding {
            stag: self.owned.new_key().0,
            start,
            length: range.len() as u64,
            base: self.region.base_address().wrapping_add(start),
            access: access.0,
            ..verbs::Binding::default()
        };
        Binding {
            opcode: WrOpcode::FastRegister,
            inner,
        }
    }

    /// The region.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Under which STag something is registered now, if it is.
    pub fn live(&self) -> Option<Stag> {
        self.owned.live()
    }

    /// Makes it invalid, if it is valid, from this side: for when its connection has ended, and no request can do it
    /// any more. When this returns no placement through it is under way, nor will there be one. Waits for the worker.
    /// Refused while windows are bound to it.
    pub fn recall(&self) -> Result<(), Error> {
        self.owned.recall()
    }

    /// Ends it. When this returns no placement through it is under way, nor will there be one. Refused while windows
    /// are bound to it.
    ///
    /// Inside a worker's batch it fails after making the STag invalid: try again after the batch.
    pub fn deregister(&mut self) -> Result<(), Error> {
        self.owned.revoke()
    }
}
