//! Communication identifiers: what the program sees of one, and what is kept of it here.
#![allow(unsafe_code, unsafe_op_in_unsafe_fn, reason = "C ABI: entry points")]

use std::collections::VecDeque;
use std::ffi::c_void;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::libc::free;
use rnic_verbs::{ConnectRequest, Qp, QpNumber};

use crate::abi::*;
use crate::adapter::Adapter;
use crate::cm::address::Reserved;
use crate::cm::attempt::Attempt;
use crate::cm::claims::Claim;
use crate::cm::event::EventData;
use crate::errno::{Errno, lock};
use crate::event_queue::EventQueue;
use crate::process::{self, Process};

/// The events of a channel.
pub(super) type Queue = Arc<EventQueue<Waiting>>;

/// An event that waits in a channel.
#[derive(Debug)]
pub(super) struct Waiting {
    /// The id that it is about; of a connection request the one that listens.
    pub(super) id: Arc<Id>,
    pub(super) what: EventData,
}

/// An id in the program's hands.
#[repr(C)]
struct ProgramId {
    public: rdma_cm_id,
    id: Arc<Id>,
}

/// What is kept of an id.
pub(super) struct Id {
    process: Process,
    /// The program's part, which is there as long as an event of the id is not acknowledged.
    public: Public,
    pub(super) qp_type: u32,
    state: Mutex<State>,
    count: Mutex<Count>,
    acknowledged: Condvar,
    /// Notified when the connection may be over.
    over: Condvar,
    /// Connection requests that wait in the channel.
    pub(super) requests: AtomicUsize,
    /// How often peers have asked for a connection.
    pub(super) asked: AtomicUsize,
}

/// A pointer to the program's part.
#[derive(Clone, Copy)]
struct Public(*mut rdma_cm_id);

// SAFETY: a number, as long as nobody follows it. Whoever does says why what it points to is there,
// and is not written to meanwhile.
unsafe impl Send for Public {}
// SAFETY: it does not change.
unsafe impl Sync for Public {}

/// How many events an id has had.
#[derive(Default)]
struct Count {
    /// Put into a channel.
    told: u64,
    /// Acknowledged, or removed before the program got them.
    done: u64,
}

/// How far an id has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    #[default]
    Idle,
    Bound,
    /// It waits for the way to its peer.
    Resolving,
    AddressResolved,
    /// It waits for the port mapper of its peer.
    ResolvingRoute,
    RouteResolved,
    Listening,
    /// A peer has asked, and has no answer yet.
    Requested,
    Connecting,
    Connected,
    /// The connection is over, or was refused.
    Over,
    Destroyed,
}

/// A queue pair that asks a peer for that of its datagrams.
pub(super) struct Asking {
    pub(super) qp: Qp,
    /// Ends that the id is told of what happens to it.
    pub(super) forget: fn(&Adapter, QpNumber),
}

#[derive(Default)]
pub(super) struct State {
    pub(super) phase: Phase,
    pub(super) queue: Option<Queue>,
    /// Calls wait for their outcome, and the channel is the id's own.
    pub(super) is_sync: bool,
    pub(super) adapter: Option<&'static Adapter>,
    /// The local address as the engine is to use it.
    pub(super) local: Option<SocketAddr>,
    /// The program left the port to us.
    pub(super) any_port: bool,
    /// Keeps the port until the engine has it.
    pub(super) reserved: Option<Reserved>,
    /// Keeps other ids of this process from the address until the id is destroyed.
    pub(super) claim: Option<Claim>,
    pub(super) remote: Option<SocketAddr>,
    pub(super) request: Option<ConnectRequest>,
    /// What a peer asked for, or what was asked of it.
    pub(super) initiator_depth: u16,
    pub(super) responder_resources: u16,
    /// How it connects, until the outcome is there.
    pub(super) attempt: Option<Attempt>,
    /// The queue pair that it has connected, or is connecting.
    pub(super) connection: Option<QpNumber>,
    /// What asks a peer for the queue pair of its datagrams, until that has answered.
    pub(super) asking: Option<Asking>,
    /// It has begun to connect, or was accepted.
    pub(super) was_begun: bool,
    /// A peer has asked for it.
    pub(super) is_passive: bool,
    /// The program has asked for the end of the connection.
    pub(super) disconnected: bool,
    /// The program has got the event of the end.
    pub(super) knows_end: bool,
    pub(super) options: Options,
    /// The queue pairs of an endpoint that listens.
    pub(super) qp_attributes: Option<QpAttributes>,
    /// Private data ahead of that of `rdma_connect`, from `rdma_getaddrinfo`.
    pub(super) connect_data: Vec<u8>,
    pub(super) local_ece: (u32, u32),
    pub(super) backlog: usize,
    /// Addresses that were looked up for the program.
    pub(super) resolved: Resolved,
}

/// Options of an id.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Options {
    /// Several ids may have the port while none listens.
    pub(super) reuse_address: bool,
    /// `[::]` does not stand for IPv4 as well.
    pub(super) one_family: bool,
    /// The class of what is sent.
    pub(super) type_of_service: u8,
}

/// The outcome of a lookup.
#[derive(Default)]
pub(super) struct Resolved {
    pub(super) is_asked: bool,
    pub(super) first: Option<Addresses>,
}

/// A list of addresses, which is the program's once it has asked for it.
pub(super) struct Addresses(pub(super) *mut rdma_addrinfo);

// SAFETY: the list was allocated by malloc, and whoever holds this is the only one who has it.
unsafe impl Send for Addresses {}

#[unsafe(export_name = "rnic_cm_rdma_freeaddrinfo")]
pub(crate) unsafe extern "C" fn rdma_freeaddrinfo(mut res: *mut rdma_addrinfo) {
    while let Some(one) = res.as_ref() {
        let next = one.ai_next;
        free(one.ai_connect);
        free(one.ai_route);
        free(one.ai_src_canonname.cast());
        free(one.ai_dst_canonname.cast());
        free(one.ai_src_addr.cast());
        free(one.ai_dst_addr.cast());
        free(res.cast());
        res = next;
    }
}

/// Attributes of queue pairs.
#[derive(Clone, Copy)]
pub(super) struct QpAttributes(pub(super) ibv_qp_init_attr);

// SAFETY: the pointers in it are only handed to `rdma_create_qp`, and name objects that threads
// share.
unsafe impl Send for QpAttributes {}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Id").field(&self.public.0).finish()
    }
}

impl Id {
    /// Makes an id.
    pub(super) fn make(
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        (ps, qp_type): (u32, u32),
        state: State,
    ) -> *mut rdma_cm_id {
        // A raw pointer from the beginning: the id keeps it, and a Box that moves would end what
        // was derived from it.
        let made: *mut ProgramId = Box::into_raw(Box::<ProgramId>::new_uninit()).cast();
        let public: *mut rdma_cm_id = made.cast();
        let id = Arc::new(Self {
            process: Process::this(),
            public: Public(public),
            qp_type,
            state: Mutex::new(state),
            count: Mutex::default(),
            acknowledged: Condvar::new(),
            over: Condvar::new(),
            requests: AtomicUsize::new(0),
            asked: AtomicUsize::new(0),
        });
        let mut zeros = rdma_cm_id::zeros();
        zeros.channel = channel;
        zeros.context = context;
        zeros.ps = ps;
        zeros.qp_type = qp_type;
        // SAFETY: it was allocated for this above, and nobody else has it yet.
        unsafe { made.write(ProgramId { public: zeros, id }) };
        public
    }

    /// Returns what is kept of an id of the program, which lives until that is freed.
    ///
    /// # Safety
    /// `id` is NULL or an id of the program.
    pub(super) unsafe fn of<'a>(id: *mut rdma_cm_id) -> Result<&'a Arc<Self>, Errno> {
        let made = id.cast::<ProgramId>().as_ref().ok_or(Errno::EINVAL)?;
        process::check(&made.id.process)?;
        Ok(&made.id)
    }

    /// Returns whether this process was forked from the one that made an id. Then it is not
    /// destroyed, but left.
    ///
    /// # Safety
    /// `id` is NULL or an id of the program.
    pub(super) unsafe fn is_inherited(id: *mut rdma_cm_id) -> bool {
        let made = id.cast::<ProgramId>().as_ref();
        made.is_some_and(|made| made.id.is_of_parent())
    }

    /// Returns whether this process was forked from the one that made it.
    pub(super) fn is_of_parent(&self) -> bool {
        self.process.is_forked()
    }

    /// Frees the program's part.
    ///
    /// # Safety
    /// `id` is an id of the program that nobody uses any more. All its events are acknowledged.
    pub(super) unsafe fn free(id: *mut rdma_cm_id) {
        drop(Box::from_raw(id.cast::<ProgramId>()));
    }

    /// Returns the program's part.
    pub(super) fn public(&self) -> *mut rdma_cm_id {
        self.public.0
    }

    /// Shows the program the local port from which the id has connected.
    ///
    /// # Safety
    /// An event of the id is not acknowledged, or the program is in a call with the id.
    pub(super) unsafe fn show_port(&self) {
        let local = {
            let state = self.state();
            state.local.filter(|_| !state.is_passive)
        };
        if let Some(local) = local {
            // It lies at the same place in both families.
            (*self.public()).route.addr.src_addr.sin.sin_port = local.port().to_be();
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(super) fn notify_over(&self) {
        self.over.notify_all();
    }

    /// Waits until a connection that the program has ended is over.
    pub(super) fn wait_over(&self, at_most: Duration) {
        let ending = |state: &mut State| state.disconnected && state.phase == Phase::Connected;
        let waited = self.over.wait_timeout_while(self.state(), at_most, ending);
        drop(waited);
    }

    /// Puts an event into the channel, unless the id is being destroyed.
    pub(super) fn tell(self: &Arc<Self>, what: EventData) {
        let state = self.state();
        self.tell_in(&state, what);
    }

    /// Puts an event into the channel of an id that is locked.
    pub(super) fn tell_in(self: &Arc<Self>, state: &State, what: EventData) {
        let Some(queue) = state.queue.as_ref() else {
            return;
        };
        if state.phase == Phase::Destroyed {
            return;
        }
        if what.request.is_some() {
            self.requests.fetch_add(1, Ordering::Relaxed);
        }
        lock(&self.count).told += 1;
        queue.push(Waiting {
            id: self.clone(),
            what,
        });
    }

    /// Counts events that the program has acknowledged, or does not get.
    pub(super) fn count_done(&self, events: usize) {
        lock(&self.count).done += events as u64;
        self.acknowledged.notify_all();
    }

    /// Removes from the queue of a channel what waits there for this id, and returns it.
    pub(super) fn take_waiting(self: &Arc<Self>, queue: &Queue) -> VecDeque<Waiting> {
        let of_this = |waiting: &Waiting| Arc::ptr_eq(&waiting.id, self);
        let taken = queue.extract(of_this);
        let requests = taken.iter().filter(|one| one.what.request.is_some());
        self.requests.fetch_sub(requests.count(), Ordering::Relaxed);
        taken
    }

    /// Waits until the program has acknowledged all that it has got. `waiting` were counted and
    /// wait in a channel.
    pub(super) fn wait_acknowledged(&self, waiting: usize) {
        let mut count = lock(&self.count);
        let told = count.told;
        while count.done + (waiting as u64) < told {
            count = self
                .acknowledged
                .wait(count)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}
