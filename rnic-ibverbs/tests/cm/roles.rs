//! What the processes of the tests do.

use std::ptr::null_mut;
use std::sync::mpsc;
use std::thread;

use nix::libc;

use crate::calls::*;
use crate::hosts::{CLIENT, READY, SERVER};
use crate::plain;

pub(crate) const PORT: u16 = 7471;

pub(crate) const IDLE: &str = "idle";
pub(crate) const SYNC_SERVER: &str = "sync-server";
pub(crate) const SYNC_CLIENT: &str = "sync-client";
pub(crate) const ASYNC_SERVER: &str = "async-server";
pub(crate) const ASYNC_CLIENT: &str = "async-client";
pub(crate) const REJECT_SERVER: &str = "reject-server";
pub(crate) const REJECT_CLIENT: &str = "reject-client";
pub(crate) const MIGRATE_SERVER: &str = "migrate-server";
pub(crate) const PLAIN_SERVER: &str = "plain-server";
pub(crate) const PLAIN_CLIENT: &str = "plain-client";
pub(crate) const BIND: &str = "bind";
pub(crate) const ACKNOWLEDGE: &str = "acknowledge";
pub(crate) const HASTY_CLIENT: &str = "hasty-client";

/// Plays a role.
pub(crate) fn play(role: &str) {
    // SAFETY: the roles call functions of C as the manual pages have it.
    unsafe {
        match role {
            IDLE => println!("\n{READY}"),
            SYNC_SERVER => sync_server(),
            SYNC_CLIENT => sync_client(),
            ASYNC_SERVER => async_server(false),
            MIGRATE_SERVER => async_server(true),
            ASYNC_CLIENT => async_client(),
            REJECT_SERVER => reject_server(),
            REJECT_CLIENT => reject_client(),
            PLAIN_SERVER => plain::server(PORT),
            PLAIN_CLIENT => plain_client(),
            BIND => bind(),
            ACKNOWLEDGE => acknowledge(),
            HASTY_CLIENT => hasty_client(),
            unknown => panic!("no role {unknown}"),
        }
    }
}

/// The longest private data that rdma_cm carries.
fn long_data() -> Vec<u8> {
    (0..255).collect()
}

unsafe fn sync_server() {
    let found = look_up(None, PORT, RAI_PASSIVE);
    let mut listening = null_mut();
    ok(rdma_create_ep(
        &mut listening,
        found,
        null_mut(),
        &mut qp_attributes(),
    ));
    rdma_freeaddrinfo(found);
    // Any address is none of a device.
    assert!((*listening).verbs.is_null());
    ok(rdma_listen(listening, 0));
    println!("\n{READY}");

    let mut id = null_mut();
    ok(rdma_get_request(listening, &mut id));
    let asked = copy((*id).event);
    assert_eq!((asked.id, asked.listen_id), (id, listening));
    assert_eq!(
        (asked.event, asked.status),
        (RDMA_CM_EVENT_CONNECT_REQUEST, 0)
    );
    assert_eq!(asked.data, long_data());
    // The peer's ORD and IRD.
    assert_eq!(asked.depths, (5, 3));
    let mut message = [0; 16];
    receive(id, &mut message);
    ok(rdma_accept(id, &mut parameters(b"welcome", (7, 2))));
    let event = copy((*id).event);
    assert_eq!(event.event, RDMA_CM_EVENT_ESTABLISHED);
    // rfc: 6581-14 what the peer stated, and not what came of it
    assert_eq!(event.depths, (5, 3));
    assert_eq!(completion(id, (*id).recv_cq, (*id).recv_cq_channel), (0, 5));
    assert_eq!(message[..5], *b"hello");
    // The passive side may send as well.
    send(id, b"bye");
    assert_eq!(completion(id, (*id).send_cq, (*id).send_cq_channel).0, 0);
    // Returns when the connection is over, whoever ended it.
    ok(rdma_disconnect(id));
    fails(rdma_disconnect(id), libc::EINVAL);
    rdma_destroy_ep(id);
    rdma_destroy_ep(listening);
}

unsafe fn sync_client() {
    let found = look_up(Some(SERVER), PORT, RAI_NUMERICHOST);
    let mut id = null_mut();
    ok(rdma_create_ep(
        &mut id,
        found,
        null_mut(),
        &mut qp_attributes(),
    ));
    rdma_freeaddrinfo(found);
    let mut message = [0; 16];
    receive(id, &mut message);
    ok(rdma_connect(id, &mut parameters(&long_data(), (3, 5))));
    let event = copy((*id).event);
    assert_eq!(event.event, RDMA_CM_EVENT_ESTABLISHED);
    assert_eq!(event.data, b"welcome");
    // rfc: 6581-14, 6581-20 the peer's ORD and IRD, and not what came of them
    assert_eq!(event.depths, (2, 7));
    send(id, b"hello");
    assert_eq!(completion(id, (*id).send_cq, (*id).send_cq_channel).0, 0);
    assert_eq!(completion(id, (*id).recv_cq, (*id).recv_cq_channel), (0, 3));
    assert_eq!(message[..3], *b"bye");
    ok(rdma_disconnect(id));
    rdma_destroy_ep(id);
}

/// Listens at an address.
pub(crate) unsafe fn listen_at(channel: *mut rdma_event_channel, at: &str) -> *mut rdma_cm_id {
    let mut listening = null_mut();
    let context = (0x77 as *mut u8).cast();
    ok(rdma_create_id(
        channel,
        &mut listening,
        context,
        RDMA_PS_TCP,
    ));
    ok(rdma_bind_addr(listening, Address::new(at).pointer()));
    ok(rdma_listen(listening, 10));
    listening
}

/// Listens with a channel.
unsafe fn listen(channel: *mut rdma_event_channel) -> *mut rdma_cm_id {
    let listening = listen_at(channel, &format!("{SERVER}:{PORT}"));
    println!("\n{READY}");
    listening
}

/// Accepts one peer. `migrating`: the ids move to another channel whenever they can.
unsafe fn async_server(migrating: bool) {
    let mut channel = rdma_create_event_channel();
    let listening = listen(channel);
    if migrating {
        // The request may wait in the old channel, or come to the new one.
        let other = rdma_create_event_channel();
        ok(rdma_migrate_id(listening, other));
        rdma_destroy_event_channel(channel);
        channel = other;
    }
    let asked = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    let id = asked.id;
    assert_eq!(asked.listen_id, listening);
    assert_eq!(
        ((*id).context, (*id).channel),
        ((*listening).context, channel)
    );
    assert_eq!((*id).verbs, (*listening).verbs);
    assert_eq!(rdma_get_src_port(id), PORT.to_be());
    ok(rdma_create_qp(id, null_mut(), &mut qp_attributes()));
    ok(rdma_accept(id, null_mut()));
    if migrating {
        let other = rdma_create_event_channel();
        ok(rdma_migrate_id(id, other));
        ok(rdma_destroy_id(listening));
        rdma_destroy_event_channel(channel);
        channel = other;
    }
    assert_eq!(next(channel, RDMA_CM_EVENT_ESTABLISHED).id, id);
    let over = next(channel, RDMA_CM_EVENT_DISCONNECTED);
    assert_eq!((over.id, over.status), (id, 0));
    rdma_destroy_qp(id);
    ok(rdma_destroy_id(id));
    if !migrating {
        ok(rdma_destroy_id(listening));
        // The connection may hold the port still, and another listener gets it all the same.
        ok(rdma_destroy_id(listen(channel)));
    }
    rdma_destroy_event_channel(channel);
}

/// Resolves an address and makes a queue pair.
pub(crate) unsafe fn resolved_to(channel: *mut rdma_event_channel, to: &str) -> *mut rdma_cm_id {
    let mut id = null_mut();
    ok(rdma_create_id(channel, &mut id, null_mut(), RDMA_PS_TCP));
    let there = Address::new(to);
    ok(rdma_resolve_addr(id, null_mut(), there.pointer(), 2000));
    assert_eq!(next(channel, RDMA_CM_EVENT_ADDR_RESOLVED).id, id);
    ok(rdma_create_qp(id, null_mut(), &mut qp_attributes()));
    ok(rdma_resolve_route(id, 2000));
    next(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
    id
}

/// Resolves the server's address and makes a queue pair.
pub(crate) unsafe fn resolved(channel: *mut rdma_event_channel, port: u16) -> *mut rdma_cm_id {
    let mut id = null_mut();
    ok(rdma_create_id(channel, &mut id, null_mut(), RDMA_PS_TCP));
    let server = Address::new(&format!("{SERVER}:{port}"));
    ok(rdma_resolve_addr(id, null_mut(), server.pointer(), 2000));
    let event = next(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
    assert_eq!((event.id, event.status), (id, 0));
    assert!(!(*id).verbs.is_null() && !(*id).pd.is_null());
    // The local address is that of the route, and has a port.
    assert_ne!(rdma_get_src_port(id), 0);
    let source = (*id).route.addr.src_addr.sin.sin_addr.s_addr;
    assert_eq!(
        u32::from_be(source),
        u32::from(CLIENT.parse::<std::net::Ipv4Addr>().unwrap())
    );
    // An address is resolved once, and connecting needs a route.
    fails(
        rdma_resolve_addr(id, null_mut(), server.pointer(), 2000),
        libc::EINVAL,
    );
    ok(rdma_create_qp(id, null_mut(), &mut qp_attributes()));
    fails(rdma_connect(id, null_mut()), libc::EINVAL);
    ok(rdma_resolve_route(id, 2000));
    next(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
    id
}

unsafe fn async_client() {
    let channel = rdma_create_event_channel();
    let id = resolved(channel, PORT);
    ok(rdma_connect(id, null_mut()));
    let established = next(channel, RDMA_CM_EVENT_ESTABLISHED);
    assert_eq!((established.id, established.status), (id, 0));
    fails(rdma_connect(id, null_mut()), libc::EINVAL);
    ok(rdma_disconnect(id));
    fails(rdma_disconnect(id), libc::EINVAL);
    let over = next(channel, RDMA_CM_EVENT_DISCONNECTED);
    assert_eq!((over.id, over.status), (id, 0));
    rdma_destroy_qp(id);
    ok(rdma_destroy_id(id));
    rdma_destroy_event_channel(channel);
}

/// Disconnects, and destroys everything without waiting for the end. The server must see an end in
/// order, and the client gets the event all the same.
unsafe fn hasty_client() {
    let channel = rdma_create_event_channel();
    let id = resolved(channel, PORT);
    ok(rdma_connect(id, null_mut()));
    next(channel, RDMA_CM_EVENT_ESTABLISHED);
    ok(rdma_disconnect(id));
    rdma_destroy_qp(id);
    next(channel, RDMA_CM_EVENT_DISCONNECTED);
    ok(rdma_destroy_id(id));
    rdma_destroy_event_channel(channel);
}

/// Connects to peers that know RFC 5044 alone, and sends something first, as that demands.
// rfc: 6581-39
unsafe fn plain_client() {
    let channel = rdma_create_event_channel();
    for answer in plain::ANSWERS {
        let id = resolved(channel, PORT);
        ok(rdma_connect(id, &mut parameters(b"hello", (3, 5))));
        let event = next(channel, RDMA_CM_EVENT_ESTABLISHED);
        assert_eq!((event.id, event.status), (id, 0), "{answer:?}");
        assert_eq!(event.data, b"welcome", "{answer:?}");
        ok(rdma_disconnect(id));
        next(channel, RDMA_CM_EVENT_DISCONNECTED);
        rdma_destroy_qp(id);
        ok(rdma_destroy_id(id));
    }
    // One that hangs up on everybody is asked twice, and no more.
    let id = resolved(channel, PORT);
    ok(rdma_connect(id, &mut parameters(b"hello", (3, 5))));
    let rejected = next(channel, RDMA_CM_EVENT_REJECTED);
    assert_eq!(rejected.status, -libc::ECONNRESET);
    rdma_destroy_qp(id);
    ok(rdma_destroy_id(id));
    rdma_destroy_event_channel(channel);
}

unsafe fn reject_server() {
    let channel = rdma_create_event_channel();
    let listening = listen(channel);
    let asked = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    ok(rdma_reject(asked.id, b"no".as_ptr().cast(), 2));
    fails(rdma_reject(asked.id, null_mut(), 0), libc::EINVAL);
    ok(rdma_destroy_id(asked.id));
    // The next one gets no answer but the end of its id.
    let asked = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    ok(rdma_destroy_id(asked.id));
    ok(rdma_destroy_id(listening));
    rdma_destroy_event_channel(channel);
}

unsafe fn reject_client() {
    let channel = rdma_create_event_channel();
    for (port, errno, data) in [
        (PORT, libc::ECONNRESET, "no"),
        (PORT, libc::ECONNRESET, ""),
        (PORT + 1, libc::ECONNREFUSED, ""),
    ] {
        let id = resolved(channel, port);
        ok(rdma_connect(id, null_mut()));
        let rejected = next(channel, RDMA_CM_EVENT_REJECTED);
        assert_eq!(
            (rejected.status, &*rejected.data),
            (-errno, data.as_bytes())
        );
        rdma_destroy_qp(id);
        ok(rdma_destroy_id(id));
    }
    // Nobody has this address.
    let mut id = null_mut();
    ok(rdma_create_id(channel, &mut id, null_mut(), RDMA_PS_TCP));
    let nobody = Address::new("10.78.0.99:1");
    ok(rdma_resolve_addr(id, null_mut(), nobody.pointer(), 300));
    let nothing = next(channel, RDMA_CM_EVENT_ADDR_ERROR);
    assert_eq!((nothing.id, nothing.status), (id, -libc::ETIMEDOUT));
    fails(rdma_resolve_route(id, 2000), libc::EINVAL);
    ok(rdma_destroy_id(id));
    rdma_destroy_event_channel(channel);
}

unsafe fn bind() {
    let channel = rdma_create_event_channel();
    let new = || {
        let mut id = null_mut();
        ok(rdma_create_id(channel, &mut id, null_mut(), RDMA_PS_TCP));
        id
    };
    let bound = |text: &str| {
        let id = new();
        (id, rdma_bind_addr(id, Address::new(text).pointer()))
    };
    // Any address is none of a device; the port is settled.
    let (any, done) = bound("0.0.0.0:0");
    ok(done);
    assert!((*any).verbs.is_null());
    let port = u16::from_be(rdma_get_src_port(any));
    assert_ne!(port, 0);
    ok(rdma_listen(any, 0));
    assert_eq!(u16::from_be(rdma_get_src_port(any)), port);
    fails(rdma_listen(any, 0), libc::EINVAL);
    // The port is taken.
    let (taken, done) = bound(&format!("0.0.0.0:{port}"));
    fails(done, libc::EADDRINUSE);
    // It is free again at once.
    ok(rdma_destroy_id(any));
    let (any, done) = bound(&format!("0.0.0.0:{port}"));
    ok(done);
    ok(rdma_listen(any, 0));
    // And taken again, although a listener was there before.
    fails(
        rdma_bind_addr(taken, Address::new(&format!("0.0.0.0:{port}")).pointer()),
        libc::EADDRINUSE,
    );
    // An id that could not be bound can be bound elsewhere, and no other twice.
    ok(rdma_bind_addr(
        taken,
        Address::new(&format!("{CLIENT}:0")).pointer(),
    ));
    assert!(!(*taken).verbs.is_null());
    fails(
        rdma_bind_addr(taken, Address::new("0.0.0.0:0").pointer()),
        libc::EINVAL,
    );
    let (v6, done) = bound("[fd78::2]:0");
    ok(done);
    assert!(!(*v6).verbs.is_null());
    let (loopback, done) = bound("127.0.0.1:0");
    ok(done);
    assert!((*loopback).verbs.is_null());
    // What is no address of this host.
    let (elsewhere, done) = bound("192.0.2.7:0");
    fails(done, libc::EADDRNOTAVAIL);
    // No way leads there.
    let unreachable = new();
    fails(
        rdma_resolve_addr(
            unreachable,
            null_mut(),
            Address::new("192.0.2.7:1").pointer(),
            1,
        ),
        libc::ENETUNREACH,
    );
    // Families do not mix.
    let server = Address::new("[fd78::1]:7");
    fails(
        rdma_resolve_addr(taken, null_mut(), server.pointer(), 1),
        libc::EINVAL,
    );
    ok(rdma_resolve_addr(v6, null_mut(), server.pointer(), 2000));
    assert_eq!(next(channel, RDMA_CM_EVENT_ADDR_RESOLVED).id, v6);
    for id in [any, taken, v6, loopback, elsewhere, unreachable] {
        ok(rdma_destroy_id(id));
    }
    rdma_destroy_event_channel(channel);
}

/// Destroys an id while one of its events is not acknowledged.
unsafe fn acknowledge() {
    let channel = rdma_create_event_channel();
    let id = resolved(channel, PORT);
    ok(rdma_connect(id, null_mut()));
    let mut event = null_mut();
    ok(rdma_get_cm_event(channel, &mut event));
    assert_eq!((*event).event, RDMA_CM_EVENT_ESTABLISHED);
    rdma_destroy_qp(id);
    let (done, is_done) = mpsc::channel();
    let address = id as usize;
    let destroying = thread::spawn(move || {
        ok(rdma_destroy_id(address as *mut rdma_cm_id));
        done.send(()).unwrap();
    });
    // What would be wrong comes soon; what is right does not come.
    thread::sleep(std::time::Duration::from_millis(200));
    assert!(
        is_done.try_recv().is_err(),
        "destroyed with an event in use"
    );
    ok(rdma_ack_cm_event(event));
    destroying.join().unwrap();
    // DISCONNECTED, which had not been read, went with the id.
    let mut id = null_mut();
    ok(rdma_create_id(channel, &mut id, null_mut(), RDMA_PS_TCP));
    let server = Address::new(&format!("{SERVER}:{PORT}"));
    ok(rdma_resolve_addr(id, null_mut(), server.pointer(), 2000));
    assert_eq!(next(channel, RDMA_CM_EVENT_ADDR_RESOLVED).id, id);
    ok(rdma_destroy_id(id));
    rdma_destroy_event_channel(channel);
}
