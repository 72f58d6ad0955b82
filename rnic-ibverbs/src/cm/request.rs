//! Requests of peers, and the ids that are made of them.
#![allow(unsafe_code, unsafe_op_in_unsafe_fn, reason = "the program's ids")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rnic_verbs::ConnectRequest;
use tracing::debug;

use crate::abi::*;
use crate::adapter::{Adapter, adapters};
use crate::cm::address;
use crate::cm::channel;
use crate::cm::event::EventData;
use crate::cm::id::{Id, Phase, State};
use crate::cm::sidr::{self, Peer};
use crate::cm::verbs;
use rnic_verbs::rdma::socket_address;

/// Tells an id that a peer asks for a connection. Rejects the peer if too many wait already.
pub(super) fn tell(id: &Arc<Id>, asked: ConnectRequest) {
    let backlog = id.state().backlog;
    id.asked.fetch_add(1, Ordering::Relaxed);
    if id.requests.load(Ordering::Relaxed) >= backlog {
        debug!("{}: {backlog} peers wait already", asked.peer());
        return;
    }
    let is_datagram = id.qp_type == IBV_QPT_UD;
    let private_data = match (is_datagram, sidr::asked(asked.private_data())) {
        (true, Some(private_data)) => private_data.to_vec(),
        (false, None) => asked.private_data().to_vec(),
        // It asks for what is not here, and is rejected.
        _ => return debug!("{}: wants something else than this id", asked.peer()),
    };
    id.tell(EventData {
        private_data,
        peer: is_datagram.then(Peer::default),
        responder_resources: asked.ord(),
        initiator_depth: asked.ird(),
        request: Some(asked),
        ..EventData::new(RDMA_CM_EVENT_CONNECT_REQUEST, 0)
    });
}

/// Makes the id of a peer that asks. Returns `None`, and rejects the peer, if that fails.
///
/// # Safety
/// The program's part of the id that listens is there.
pub(super) unsafe fn make_id(
    listening: &Arc<Id>,
    asked: ConnectRequest,
    what: &EventData,
) -> Option<*mut rdma_cm_id> {
    let parent = listening.public();
    let (channel, is_sync, options, bound_to, asked_for) = {
        let state = listening.state();
        // `rdma_migrate_id` changes both with the lock.
        let channel = ((*parent).channel, state.queue.clone()?);
        let asked_for = state.local.map(|local| local.port());
        let bound_to = state.adapter;
        (channel, state.is_sync, state.options, bound_to, asked_for)
    };
    let adapter = bound_to.or_else(|| adapter_of(&asked))?;
    let (local, peer) = (asked.local(), asked.peer());
    // The program knows the port that it asked for, and not one that it was mapped to.
    let known = SocketAddr::new(local.ip(), asked_for.unwrap_or(local.port()));
    let link = adapter.interface().link_of(local.ip());
    let shown = [known, peer].map(|end| socket_address(end.ip(), end.port(), link));
    let (channel, queue) = if is_sync {
        channel::make().ok()?
    } else {
        channel
    };
    let state = State {
        phase: Phase::Requested,
        queue: Some(queue),
        is_sync,
        adapter: Some(adapter),
        local: Some(local),
        remote: Some(peer),
        request: Some(asked),
        is_passive: true,
        initiator_depth: what.initiator_depth,
        responder_resources: what.responder_resources,
        options,
        ..State::default()
    };
    let kind = ((*parent).ps, listening.qp_type);
    let child = Id::make(channel, (*parent).context, kind, state);
    address::write(shown[0], &raw mut (*child).route.addr.src_addr);
    address::write(shown[1], &raw mut (*child).route.addr.dst_addr);
    verbs::show_gid(&raw mut (*child).route.addr.addr.sgid, local.ip());
    verbs::show_gid(&raw mut (*child).route.addr.addr.dgid, peer.ip());
    if let Err(errno) = verbs::attach(child, adapter) {
        debug!("{peer}: no protection domain for it: {errno}");
        if is_sync {
            channel::rdma_destroy_event_channel(channel);
        }
        Id::free(child);
        return None;
    }
    Some(child)
}

/// Returns the adapter to which a peer connected.
fn adapter_of(asked: &ConnectRequest) -> Option<&'static Adapter> {
    let local = asked.local().ip();
    let mut adapters = adapters().iter();
    adapters.find(|adapter| adapter.addresses().contains(&local))
}
