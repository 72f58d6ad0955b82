//! The objects behind the pointers of the program: each begins with the structure that the program
//! knows.
#![allow(unsafe_code, reason = "the program's objects")]

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::task::Waker;

use rnic_verbs::{Sge, SrqLimit};

use crate::abi::*;
use crate::adapter::Adapter;
use crate::datagrams::{DatagramQp, Datagrams, Destination, SharedReceives};
use crate::errno::{Errno, ToErrno, lock};
use crate::event_queue::EventQueue;
use crate::process::{self, Process};
use crate::section::Section;
use crate::settings::Settings;

/// Defines how the object is found that a pointer of the program names.
macro_rules! behind {
    ($object:ident, $pointer:ident) => {
        // SAFETY: its own members may go to other threads (`_SHARED` checks those of rnic-verbs).
        // Raw pointers in it are only given back to the program, or name objects that are shared in
        // the same way.
        unsafe impl Send for $object {}
        // SAFETY: what changes is atomic or behind a lock. What lies in an UnsafeCell belongs to
        // the program (`abi`), or to the thread of the program that is in the section (`polled`,
        // `batch`).
        unsafe impl Sync for $object {}

        impl $object {
            /// Returns the object that the program has a pointer to. It lives until it is
            /// destroyed.
            ///
            /// # Safety
            /// The pointer is that of such an object.
            pub(crate) unsafe fn of<'a>(pointer: *mut $pointer) -> &'a Self {
                // SAFETY: the object is there, says the caller, and the structure that the program
                // knows lies at its beginning. It is shared, and what the program writes lies in
                // the UnsafeCell.
                unsafe { &*pointer.cast::<Self>() }
            }

            /// Returns the object as [`of`](Self::of) does. Fails in a process that was forked from
            /// the one that made it.
            ///
            /// # Safety
            /// As of [`of`](Self::of).
            #[inline]
            #[allow(dead_code, reason = "not needed of every object")]
            pub(crate) unsafe fn here<'a>(pointer: *mut $pointer) -> Result<&'a Self, Errno> {
                // SAFETY: says the caller.
                let object = unsafe { Self::of(pointer) };
                process::check(&object.process)?;
                Ok(object)
            }

            /// Returns whether this process was forked from the one that made the object. Then it
            /// is not destroyed, but left.
            ///
            /// # Safety
            /// As of [`of`](Self::of).
            pub(crate) unsafe fn is_inherited(pointer: *mut $pointer) -> bool {
                // SAFETY: says the caller.
                unsafe { Self::of(pointer) }.process.is_forked()
            }

            /// Returns the pointer that the program has.
            #[allow(dead_code, reason = "not needed of every object")]
            pub(crate) fn pointer(&self) -> *mut $pointer {
                // Not derived from `self`: the program may write to the object by it, and destroy
                // the object.
                std::ptr::with_exposed_provenance_mut((&raw const *self).addr())
            }

            /// Hands the object to the program, until it is destroyed.
            pub(crate) fn give(self) -> *mut $pointer {
                let object = Box::into_raw(Box::new(self));
                // For `pointer`.
                let _ = object.expose_provenance();
                object.cast()
            }

            /// Takes the object back from the program.
            ///
            /// # Safety
            /// The pointer came from `give`, and nobody uses it any more.
            pub(crate) unsafe fn take(pointer: *mut $pointer) -> Box<Self> {
                // SAFETY: `give` made it of a Box of this type, and the caller has the last use of
                // it.
                unsafe { Box::from_raw(pointer.cast::<Self>()) }
            }
        }
    };
}

/// What the objects have of rnic-verbs is shared between threads: itself, or behind a lock.
const _SHARED: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<rnic_verbs::Pd>();
    shared::<rnic_verbs::Mw>();
    shared::<Mutex<rnic_verbs::Cq>>();
    shared::<Mutex<rnic_verbs::Srq>>();
    shared::<Mutex<rnic_verbs::Qp>>();
    shared::<Mutex<Option<rnic_verbs::Mr>>>();
    shared::<EventQueue<CqPointer>>();
};

/// A count of what uses an object, which therefore cannot be destroyed.
///
/// Who finds none left, and destroys the object, acquires what each user has released: its last
/// access comes before the destruction.
#[derive(Debug, Default)]
pub(crate) struct Users(AtomicU32);

impl Users {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn remove(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    pub(crate) fn any(&self) -> bool {
        self.0.load(Ordering::Acquire) != 0
    }
}

/// A count of events that the program has got and not acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Unacknowledged {
    count: Mutex<u64>,
    changed: Condvar,
}

impl Unacknowledged {
    pub(crate) fn add(&self) {
        *lock(&self.count) += 1;
    }

    pub(crate) fn acknowledge(&self, events: u32) {
        let mut count = lock(&self.count);
        *count = count.saturating_sub(events.into());
        self.changed.notify_all();
    }

    /// Waits until all are acknowledged.
    pub(crate) fn wait(&self) {
        let none = |count: &mut u64| *count != 0;
        let _count = self
            .changed
            .wait_while(lock(&self.count), none)
            .unwrap_or_else(PoisonError::into_inner);
    }
}

/// A protection domain.
#[repr(C)]
pub(crate) struct Pd {
    abi: UnsafeCell<ibv_pd>,
    process: Process,
    pub(crate) pd: rnic_verbs::Pd,
    /// A parent domain shares that of this one.
    pub(crate) parent_of: *mut ibv_pd,
    pub(crate) users: Users,
}

behind!(Pd, ibv_pd);

impl Pd {
    pub(crate) fn new(
        context: *mut ibv_context,
        pd: rnic_verbs::Pd,
        parent_of: *mut ibv_pd,
    ) -> Self {
        Self {
            abi: UnsafeCell::new(ibv_pd { context, handle: 0 }),
            process: Process::this(),
            pd,
            parent_of,
            users: Users::default(),
        }
    }
}

/// An address handle.
#[repr(C)]
pub(crate) struct Ah {
    abi: UnsafeCell<ibv_ah>,
    process: Process,
    /// Where datagrams go; the number is that of no queue pair.
    pub(crate) destination: Destination,
}

behind!(Ah, ibv_ah);

impl Ah {
    pub(crate) fn new(
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        destination: Destination,
    ) -> Self {
        Self {
            abi: UnsafeCell::new(ibv_ah {
                context,
                pd,
                handle: 0,
            }),
            process: Process::this(),
            destination,
        }
    }
}

/// A completion channel.
#[repr(C)]
pub(crate) struct Channel {
    pub(crate) abi: UnsafeCell<ibv_comp_channel>,
    pub(crate) process: Process,
    /// The queues whose notifications wait to be read.
    pub(crate) notified: Arc<EventQueue<CqPointer>>,
    /// Queues that notify here.
    pub(crate) users: Users,
}

behind!(Channel, ibv_comp_channel);

/// A pointer to a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CqPointer(pub(crate) *mut ibv_cq);

// SAFETY: it is only given back to the program.
unsafe impl Send for CqPointer {}

/// A completion queue.
#[repr(C)]
pub(crate) struct Cq {
    pub(crate) abi: UnsafeCell<ibv_cq_ex>,
    process: Process,
    /// What `start_poll` has begun and `end_poll` ends: the completion that the program reads.
    pub(crate) polled: Section<ibv_wc>,
    cq: Mutex<rnic_verbs::Cq>,
    pub(crate) adapter: &'static Adapter,
    /// Its number in the device.
    pub(crate) id: rnic_verbs::CqId,
    /// What carries the datagrams of its queue pairs, once one of them has any.
    pub(crate) datagrams: OnceLock<Arc<Datagrams>>,
    /// Up to [which](rnic_verbs::Cq::written) completion the program was told.
    pub(crate) told: AtomicU32,
    /// Notifies the program.
    pub(crate) notify: Waker,
    /// Ends its notifications.
    pub(crate) quiet: Box<dyn Fn() + Send + Sync>,
    /// Queue pairs that complete here.
    pub(crate) users: Users,
    /// Notifications.
    pub(crate) notifications: Unacknowledged,
    /// Asynchronous events.
    pub(crate) asynchronous: Unacknowledged,
}

behind!(Cq, ibv_cq);

impl Cq {
    pub(crate) fn new(
        abi: ibv_cq_ex,
        cq: rnic_verbs::Cq,
        adapter: &'static Adapter,
        notify: Waker,
        quiet: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        Self {
            abi: UnsafeCell::new(abi),
            process: Process::this(),
            id: cq.id(),
            cq: Mutex::new(cq),
            adapter,
            told: AtomicU32::new(0),
            notify,
            polled: Section::default(),
            datagrams: OnceLock::new(),
            quiet: Box::new(quiet),
            users: Users::default(),
            notifications: Unacknowledged::default(),
            asynchronous: Unacknowledged::default(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, rnic_verbs::Cq> {
        lock(&self.cq)
    }
}

/// A shared receive queue.
#[repr(C)]
pub(crate) struct Srq {
    pub(crate) abi: UnsafeCell<ibv_srq>,
    process: Process,
    srq: Mutex<rnic_verbs::Srq>,
    /// Its receives, as long as no engine has them.
    pub(crate) receives: Arc<SharedReceives>,
    pub(crate) adapter: &'static Adapter,
    /// Its number in the device.
    pub(crate) id: rnic_verbs::SrqId,
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    /// What the program has armed; 0 once it has fired.
    pub(crate) limit: AtomicU32,
    /// Queue pairs that take receives from it.
    pub(crate) users: Users,
    pub(crate) asynchronous: Unacknowledged,
}

behind!(Srq, ibv_srq);

impl Srq {
    pub(crate) fn new(
        abi: ibv_srq,
        srq: rnic_verbs::Srq,
        adapter: &'static Adapter,
        (max_wr, max_sge): (u32, u32),
    ) -> Self {
        Self {
            abi: UnsafeCell::new(abi),
            process: Process::this(),
            id: srq.id(),
            receives: Arc::new(SharedReceives::new(srq.id(), max_wr, max_sge)),
            srq: Mutex::new(srq),
            adapter,
            max_wr,
            max_sge,
            limit: AtomicU32::new(0),
            users: Users::default(),
            asynchronous: Unacknowledged::default(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, rnic_verbs::Srq> {
        lock(&self.srq)
    }

    /// Arms the limit of the engine's receives.
    pub(crate) fn arm_engine(&self, left: u32) -> Result<(), Errno> {
        let limit = SrqLimit { left, share: None };
        let armed = self.lock().arm_limit(limit);
        armed.map_err(|why| why.errno())
    }

    /// Gives the receives to the engine, which has the connections that take them.
    pub(crate) fn give_to_engine(&self) -> Result<(), Errno> {
        let post = |wr_id, pieces: &[Sge]| {
            let posted = self.lock().post_recv(wr_id, pieces);
            posted.map_err(|why| why.errno())
        };
        self.receives
            .give_to_engine(post, |left| self.arm_engine(left))
    }
}

/// A queue pair.
#[repr(C)]
pub(crate) struct Qp {
    pub(crate) abi: UnsafeCell<ibv_qp_ex>,
    process: Process,
    /// The requests of `ibv_wr_start` to `ibv_wr_complete`.
    pub(crate) batch: Section<Batch>,
    qp: Mutex<rnic_verbs::Qp>,
    pub(crate) adapter: &'static Adapter,
    /// Its number in the device, by which events name it. Another one after a reset, and once it
    /// is its own peer.
    number: AtomicU32,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) signal_all: bool,
    /// The operations of `ibv_qp_ex` that it was made for: 0 if it was made without.
    pub(crate) send_ops: u64,
    /// Its queues, if it is one for datagrams.
    pub(crate) datagrams: Option<DatagramQp>,
    /// The program connects it itself, so that its connection keeps to RC.
    pub(crate) connects_itself: AtomicBool,
    /// It is its own peer, and receives by its [mirror](crate::settings::Meeting::mirror).
    pub(crate) is_own_peer: AtomicBool,
    /// Held while the program changes it.
    pub(crate) changing: Mutex<()>,
    /// What the program has set by `ibv_modify_qp`.
    pub(crate) settings: Mutex<Settings>,
    pub(crate) asynchronous: Unacknowledged,
    /// For rdma_cm: the identifier that it belongs to.
    pub(crate) cm_id: AtomicPtr<rdma_cm_id>,
}

behind!(Qp, ibv_qp);

/// What is needed to make a queue pair.
pub(crate) struct NewQp {
    pub(crate) abi: ibv_qp_ex,
    pub(crate) qp: rnic_verbs::Qp,
    pub(crate) adapter: &'static Adapter,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) signal_all: bool,
    pub(crate) send_ops: u64,
    pub(crate) datagrams: Option<DatagramQp>,
}

impl Qp {
    pub(crate) fn new(new: NewQp) -> Self {
        Self {
            abi: UnsafeCell::new(new.abi),
            process: Process::this(),
            number: AtomicU32::new(new.qp.number().0),
            qp: Mutex::new(new.qp),
            adapter: new.adapter,
            cap: new.cap,
            signal_all: new.signal_all,
            send_ops: new.send_ops,
            datagrams: new.datagrams,
            connects_itself: AtomicBool::new(false),
            is_own_peer: AtomicBool::new(false),
            changing: Mutex::default(),
            settings: Mutex::default(),
            batch: Section::default(),
            asynchronous: Unacknowledged::default(),
            cm_id: AtomicPtr::default(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, rnic_verbs::Qp> {
        lock(&self.qp)
    }

    /// Returns its number in the device.
    pub(crate) fn number(&self) -> rnic_verbs::QpNumber {
        rnic_verbs::QpNumber(self.number.load(Ordering::Acquire))
    }

    /// Puts another queue pair in the place of this one, and returns this one.
    pub(crate) fn replace(&self, new: rnic_verbs::Qp) -> rnic_verbs::Qp {
        let mut inner = self.lock();
        self.number.store(new.number().0, Ordering::Release);
        std::mem::replace(&mut inner, new)
    }

    /// Locks it unless somebody else has.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, rnic_verbs::Qp>> {
        match self.qp.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// Requests that were built by `ibv_wr_*` and are not posted yet.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) requests: Vec<BatchedRequest>,
    pub(crate) pieces: Vec<ibv_sge>,
    pub(crate) inline: Vec<u8>,
    pub(crate) inline_pieces: Vec<ibv_sge>,
    /// The first thing that was wrong.
    pub(crate) wrong: Option<Errno>,
}

/// One of them. Its data are ranges of the lists of the batch.
#[derive(Clone, Copy)]
pub(crate) struct BatchedRequest {
    pub(crate) wr: ibv_send_wr,
    pub(crate) pieces: (usize, usize),
    pub(crate) inline: (usize, usize),
}

/// A memory region.
#[repr(C)]
pub(crate) struct Mr {
    pub(crate) abi: UnsafeCell<ibv_mr>,
    pub(crate) process: Process,
    /// What is registered now. None where it covers no octet.
    pub(crate) mr: Mutex<Option<rnic_verbs::Mr>>,
    pub(crate) access: AtomicU32,
}

behind!(Mr, ibv_mr);

/// A memory window.
#[repr(C)]
pub(crate) struct Mw {
    pub(crate) abi: UnsafeCell<ibv_mw>,
    pub(crate) process: Process,
    pub(crate) mw: rnic_verbs::Mw,
    /// Of type 1: the STag of the last binding that was posted, and the queue pair.
    pub(crate) bound: Mutex<Option<(rnic_verbs::Stag, rnic_verbs::QpNumber)>>,
}

behind!(Mw, ibv_mw);
