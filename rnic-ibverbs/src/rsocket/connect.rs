//! The events of rdma_cm: connections come about, and end.

use std::os::fd::AsFd;
use std::sync::Arc;

use super::identifier::{Event, Identifier, refuse};
use super::index;
use super::layout::ConnectData;
use super::reactor::Reactor;
use super::socket::{Flow, Phase, Socket};
use crate::abi::*;
use crate::errno::{Errno, lock};

/// Begins to connect, and waits for the end of it unless the socket is non-blocking.
pub(super) fn connect(socket: &Socket, peer: &rdma_sockaddr) -> Result<(), Errno> {
    let mut flow = lock(&socket.flow);
    match flow.phase {
        Phase::Opened => flow.phase = Phase::Connecting,
        Phase::Connecting | Phase::Connected => return wait_connected(socket, flow),
        Phase::Listening => return Err(Errno::EINVAL),
        Phase::Failed | Phase::Disconnected => return Err(Errno::ENOTCONN),
    }
    drop(flow);
    if let Err(why) = lock(&socket.identifier).resolve_addr(peer) {
        socket.fail(why);
    }
    wait_connected(socket, lock(&socket.flow))
}

fn wait_connected(socket: &Socket, flow: std::sync::MutexGuard<'_, Flow>) -> Result<(), Errno> {
    drop(flow);
    let outcome = socket.wait_for(socket.is_nonblocking(), |flow| match flow.phase {
        Phase::Connecting => None,
        Phase::Failed => Some(Err(flow.error.take().unwrap_or(Errno::ENOTCONN))),
        _ => Some(Ok(())),
    });
    outcome.map_err(|why| {
        if why == Errno::EAGAIN {
            Errno::EINPROGRESS
        } else {
            why
        }
    })
}

/// Handles what has happened to a socket.
pub(super) fn on_events(socket: &Arc<Socket>) {
    loop {
        let next = lock(&socket.identifier).next_event();
        let Some(event) = next else { return };
        match event.kind {
            RDMA_CM_EVENT_ADDR_RESOLVED => step(socket, |identifier| identifier.resolve_route()),
            RDMA_CM_EVENT_ROUTE_RESOLVED => step(socket, |identifier| {
                let ours = socket.make_endpoint(identifier)?;
                identifier.connect(&ours.to_octets())
            }),
            RDMA_CM_EVENT_CONNECT_REQUEST => asked(socket, &event),
            RDMA_CM_EVENT_ESTABLISHED => established(socket, &event),
            RDMA_CM_EVENT_ADDR_ERROR
            | RDMA_CM_EVENT_ROUTE_ERROR
            | RDMA_CM_EVENT_CONNECT_ERROR
            | RDMA_CM_EVENT_UNREACHABLE
            | RDMA_CM_EVENT_REJECTED => failed(socket, event.error()),
            RDMA_CM_EVENT_DISCONNECTED | RDMA_CM_EVENT_DEVICE_REMOVAL => ended(socket),
            _ => {}
        }
    }
}

fn step(socket: &Socket, next: impl FnOnce(&Identifier) -> Result<(), Errno>) {
    // The identifier is let go before those who wait are woken.
    let done = next(&lock(&socket.identifier));
    if let Err(why) = done {
        socket.fail(why);
    }
}

/// Somebody wants to connect. The application gets the connection once it is established.
fn asked(listener: &Arc<Socket>, event: &Event) {
    let Some(peer) = ConnectData::from_octets(&event.private_data) else {
        return refuse(event.id);
    };
    let Some(place) = listener.backlog.take() else {
        return refuse(event.id);
    };
    let Ok(identifier) = Identifier::adopt(event.id) else {
        return;
    };
    let socket = Arc::new(Socket::accepting(identifier, listener));
    *lock(&socket.place) = Some(place);
    let accepted = {
        let identifier = lock(&socket.identifier);
        let accepted = socket.make_endpoint(&identifier).and_then(|ours| {
            socket.learn(peer);
            identifier.accept(event, &ours.to_octets())
        });
        if accepted.is_err() {
            identifier.reject();
        }
        accepted
    };
    if accepted.is_ok() {
        index::insert(&socket);
        if Reactor::get()
            .and_then(|reactor| reactor.watch(lock(&socket.identifier).as_fd()))
            .is_err()
        {
            index::remove(&socket);
        }
    }
}

fn established(socket: &Arc<Socket>, event: &Event) {
    if lock(&socket.flow).phase != Phase::Connecting {
        return;
    }
    let Some(listener) = &socket.listener else {
        match ConnectData::from_octets(&event.private_data) {
            Some(peer) => {
                socket.learn(peer);
                socket.enter(Phase::Connected);
            }
            None => {
                lock(&socket.identifier).disconnect();
                socket.fail(Errno::EOPNOTSUPP);
            }
        }
        return;
    };
    socket.enter(Phase::Connected);
    let waits = listener.upgrade().is_some_and(|listener| {
        let mut flow = lock(&listener.flow);
        let open = !flow.closed;
        if open {
            flow.accepted.push_back(socket.clone());
            drop(flow);
            listener.watchers.wake();
        }
        open
    });
    if !waits {
        forget(socket);
    }
}

fn failed(socket: &Arc<Socket>, why: Errno) {
    socket.fail(why);
    if socket.listener.is_some() {
        forget(socket);
    }
}

/// The connection is gone. What came before can still be read.
fn ended(socket: &Arc<Socket>) {
    let mut flow = lock(&socket.flow);
    if flow.phase == Phase::Connecting {
        drop(flow);
        return failed(socket, Errno::ECONNRESET);
    }
    socket.progress(&mut flow);
    flow.lose();
    drop(flow);
    socket.watchers.wake();
}

/// Stops watching a socket that nobody will use, and removes it from the index.
pub(super) fn forget(socket: &Socket) {
    if let Ok(reactor) = Reactor::get() {
        reactor.unwatch(lock(&socket.identifier).as_fd());
    }
    index::remove(socket);
}
