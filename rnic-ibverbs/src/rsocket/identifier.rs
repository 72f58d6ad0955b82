//! An identifier of rdma_cm with an event channel of its own. The channel's descriptor is the
//! number of the socket.
#![allow(unsafe_code, reason = "calls rdma_cm by its C ABI")]

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, null_mut};
use std::slice;

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::calls::*;
use crate::abi::*;
use crate::errno::Errno;

/// How long resolving an address or a route may take.
const RESOLVING_MS: i32 = 2000;
const RDMA_OPTION_ID: i32 = 0;

/// The identifier. Its calls do not wait; what comes of them is an event.
#[derive(Debug)]
pub(super) struct Identifier {
    id: *mut rdma_cm_id,
    channel: Channel,
}

// SAFETY: rdma_cm may be called from any thread. Those members of the id that are read here change
// in calls alone, and the socket locks its identifier for both. That, and the id's life from `new`
// or `adopt` to `drop`, is what the calls below stand on.
unsafe impl Send for Identifier {}

#[derive(Debug)]
struct Channel(*mut rdma_event_channel);

impl Channel {
    fn new() -> Result<Self, Errno> {
        // SAFETY: it takes nothing.
        let channel = unsafe { rdma_create_event_channel() };
        if channel.is_null() {
            return Err(Errno::last());
        }
        let channel = Self(channel);
        set_nonblocking(&channel)?;
        Ok(channel)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel exists until `drop`, has its descriptor open until then, and does not
        // change it.
        unsafe { BorrowedFd::borrow_raw((*self.0).fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: `new` made it. The identifier that used it was destroyed before: see the order of
        // `Identifier`'s members.
        unsafe { rdma_destroy_event_channel(self.0) };
    }
}

/// What has happened.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) kind: u32,
    pub(super) status: i32,
    /// The identifier of a connection that is asked for.
    pub(super) id: *mut rdma_cm_id,
    pub(super) private_data: Vec<u8>,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
}

impl Identifier {
    pub(super) fn new() -> Result<Self, Errno> {
        let channel = Channel::new()?;
        let mut id = null_mut();
        // SAFETY: the channel exists, and the id goes to a variable here.
        check(unsafe { rdma_create_id(channel.0, &mut id, null_mut(), RDMA_PS_TCP) })?;
        Ok(Self { id, channel })
    }

    /// Takes over the id of a connection that was asked for, which nobody else uses. If that fails,
    /// the request is refused.
    pub(super) fn adopt(id: *mut rdma_cm_id) -> Result<Self, Errno> {
        let adopted = Channel::new().and_then(|channel| {
            // SAFETY: the id came with an event that is acknowledged, and the channel exists.
            check(unsafe { rdma_migrate_id(id, channel.0) })?;
            Ok(Self { id, channel })
        });
        if adopted.is_err() {
            refuse(id);
        }
        adopted
    }

    pub(super) fn raw(&self) -> *mut rdma_cm_id {
        self.id
    }

    pub(super) fn local(&self) -> rdma_sockaddr {
        // SAFETY: the id exists until `drop`, and the socket has locked its identifier, so no call
        // writes the address.
        unsafe { (*self.id).route.addr.src_addr }
    }

    pub(super) fn peer(&self) -> rdma_sockaddr {
        // SAFETY: as in `local`.
        unsafe { (*self.id).route.addr.dst_addr }
    }

    pub(super) fn bind(&self, address: &rdma_sockaddr) -> Result<(), Errno> {
        let address: *const rdma_sockaddr = address;
        // SAFETY: the id exists until `drop`. The address is only read.
        check(unsafe { rdma_bind_addr(self.id, address.cast_mut().cast()) })
    }

    pub(super) fn listen(&self, backlog: i32) -> Result<(), Errno> {
        // SAFETY: the id exists until `drop`.
        check(unsafe { rdma_listen(self.id, backlog) })
    }

    pub(super) fn resolve_addr(&self, peer: &rdma_sockaddr) -> Result<(), Errno> {
        let peer: *const rdma_sockaddr = peer;
        // SAFETY: the id exists until `drop`. The address is only read.
        check(unsafe {
            rdma_resolve_addr(self.id, null_mut(), peer.cast_mut().cast(), RESOLVING_MS)
        })
    }

    pub(super) fn resolve_route(&self) -> Result<(), Errno> {
        // SAFETY: the id exists until `drop`.
        check(unsafe { rdma_resolve_route(self.id, RESOLVING_MS) })
    }

    pub(super) fn connect(&self, private_data: &[u8]) -> Result<(), Errno> {
        // As rdma-core does: adapters that show by a Read that a connection is established need
        // one.
        let mut param = conn_param(private_data, 0, 1);
        // SAFETY: the id exists until `drop`. The parameters name private data that stay during the
        // call.
        check(unsafe { rdma_connect(self.id, &mut param) })
    }

    pub(super) fn accept(&self, request: &Event, private_data: &[u8]) -> Result<(), Errno> {
        let mut param = conn_param(
            private_data,
            request.responder_resources,
            request.initiator_depth,
        );
        // SAFETY: as in `connect`.
        check(unsafe { rdma_accept(self.id, &mut param) })
    }

    pub(super) fn reject(&self) {
        // SAFETY: the id exists until `drop`, and NULL are no private data.
        let _ = unsafe { rdma_reject(self.id, ptr::null(), 0) };
    }

    pub(super) fn disconnect(&self) {
        // Fails if there is no connection.
        // SAFETY: the id exists until `drop`.
        let _ = unsafe { rdma_disconnect(self.id) };
    }

    pub(super) fn set_option(&self, name: i32, value: &[u8]) -> Result<(), Errno> {
        let value = (value.as_ptr().cast_mut().cast(), value.len());
        // SAFETY: the id exists until `drop`. The value is only read, and has that length.
        check(unsafe { rdma_set_option(self.id, RDMA_OPTION_ID, name, value.0, value.1) })
    }

    /// Returns the next event, if one has come.
    pub(super) fn next_event(&self) -> Option<Event> {
        let mut event = null_mut();
        // SAFETY: the channel exists, and the event goes to a variable here.
        check(unsafe { rdma_get_cm_event(self.channel.0, &mut event) }).ok()?;
        // SAFETY: an event stays until it is acknowledged.
        let taken = unsafe { Event::of(&*event) };
        // SAFETY: it is acknowledged here alone, and what was taken of it is a copy.
        unsafe { rdma_ack_cm_event(event) };
        Some(taken)
    }
}

/// The descriptor of its event channel.
impl AsFd for Identifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl Drop for Identifier {
    fn drop(&mut self) {
        // SAFETY: `new` made the id, or `adopt` took it over. Its queue pair was destroyed before:
        // see the order of `Socket`'s members.
        unsafe { rdma_destroy_id(self.id) };
    }
}

impl Event {
    /// Copies an event.
    ///
    /// # Safety
    ///
    /// It is one of rdma_cm, and not acknowledged.
    unsafe fn of(event: &rdma_cm_event) -> Self {
        // SAFETY: rdma_cm makes events of zeros, so every member of the union has a value. Of an
        // event without these parameters the length is 0.
        let conn = unsafe { event.param.conn };
        let has_data = !conn.private_data.is_null() && conn.private_data_len > 0;
        let private_data = if has_data {
            // SAFETY: the event has so many octets, and they stay until it is acknowledged.
            unsafe {
                slice::from_raw_parts(conn.private_data.cast::<u8>(), conn.private_data_len.into())
            }
            .to_vec()
        } else {
            Vec::new()
        };
        Self {
            kind: event.event,
            status: event.status,
            id: event.id,
            private_data,
            responder_resources: conn.responder_resources,
            initiator_depth: conn.initiator_depth,
        }
    }

    /// Returns why connecting failed.
    pub(super) fn error(&self) -> Errno {
        match (self.kind, self.status) {
            (RDMA_CM_EVENT_REJECTED, _) => Errno::ECONNREFUSED,
            (_, status) if status < 0 => Errno::from_raw(-status),
            _ => Errno::ECONNRESET,
        }
    }
}

/// Refuses a connection that is asked for, whose id nobody else uses.
pub(super) fn refuse(id: *mut rdma_cm_id) {
    // SAFETY: the id came with an event, and nobody has destroyed it.
    unsafe { rdma_reject(id, ptr::null(), 0) };
    // SAFETY: as before, and the event is acknowledged. Whoever calls this uses the id no more.
    unsafe { rdma_destroy_id(id) };
}

fn conn_param(
    private_data: &[u8],
    responder_resources: u8,
    initiator_depth: u8,
) -> rdma_conn_param {
    rdma_conn_param {
        private_data: private_data.as_ptr().cast::<c_void>(),
        private_data_len: private_data.len() as u8,
        responder_resources,
        initiator_depth,
        flow_control: 1,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: 0,
        qp_num: 0,
    }
}

/// Makes calls on a descriptor return at once.
pub(super) fn set_nonblocking(fd: impl AsFd) -> Result<(), Errno> {
    let flags = OFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFL)?);
    fcntl(&fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).map(drop)
}

/// Returns what a call failed with.
pub(super) fn check(returned: i32) -> Result<(), Errno> {
    if returned == 0 {
        Ok(())
    } else {
        Err(Errno::last())
    }
}
