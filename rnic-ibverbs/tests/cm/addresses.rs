//! The addresses of ids: ports that are used again, and link-local ones.

use std::net::Ipv6Addr;
use std::ptr::null_mut;
use std::thread;
use std::time::Duration;

use nix::libc;

use crate::calls::*;
use crate::hosts::{CLIENT, READY, SERVER};
use crate::roles::{PORT, listen_at};

/// Plays a role, if it is one of these.
pub(crate) fn play(role: &str) -> bool {
    // SAFETY: the roles call functions of C as the manual pages have it.
    unsafe {
        match role {
            "ports-server" => ports_server(),
            "ports-client" => ports_client(),
            "scope-server" => scope_server(),
            "scope-client" => scope_client(),
            "cleaned-client" => cleaned_client(),
            _ => return false,
        }
    }
    true
}

/// The port that the client chooses.
const OWN: u16 = 5555;

/// Accepts three peers on two ports. Their connections end.
unsafe fn ports_server() {
    let channel = rdma_create_event_channel();
    let listening = [PORT, PORT + 1].map(|port| listen_at(channel, &format!("{SERVER}:{port}")));
    println!("\n{READY}");
    for _ in 0..3 {
        let id = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST).id;
        assert_eq!(u16::from_be((*id).route.addr.dst_addr.sin.sin_port), OWN);
        ok(rdma_create_qp(id, null_mut(), &mut qp_attributes()));
        ok(rdma_accept(id, null_mut()));
        next(channel, RDMA_CM_EVENT_ESTABLISHED);
        next(channel, RDMA_CM_EVENT_DISCONNECTED);
        rdma_destroy_qp(id);
        ok(rdma_destroy_id(id));
    }
    listening.into_iter().for_each(|id| ok(rdma_destroy_id(id)));
    rdma_destroy_event_channel(channel);
}

/// Connects from the same port behind the orderly end of its own connections.
unsafe fn ports_client() {
    let channel = rdma_create_event_channel();
    let new = || {
        let mut id = null_mut();
        ok(rdma_create_id(channel, &mut id, null_mut(), RDMA_PS_TCP));
        id
    };
    let own = Address::new(&format!("{CLIENT}:{OWN}"));
    let other = Address::new(&format!("{CLIENT}:{}", OWN + 1));
    // To another port of the peer, and to the one where the first connection was.
    for port in [PORT, PORT + 1, PORT] {
        let id = new();
        ok(rdma_bind_addr(id, own.pointer()));
        let server = Address::new(&format!("{SERVER}:{port}"));
        // The kernel takes a source address for an id that has one, and ignores it.
        ok(rdma_resolve_addr(
            id,
            other.pointer(),
            server.pointer(),
            2000,
        ));
        next(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
        assert_eq!(u16::from_be(rdma_get_src_port(id)), OWN);
        ok(rdma_resolve_route(id, 2000));
        next(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
        ok(rdma_create_qp(id, null_mut(), &mut qp_attributes()));
        ok(rdma_connect(id, null_mut()));
        next(channel, RDMA_CM_EVENT_ESTABLISHED);
        ok(rdma_disconnect(id));
        next(channel, RDMA_CM_EVENT_DISCONNECTED);
        rdma_destroy_qp(id);
        // The id has the port until it is destroyed.
        let second = new();
        fails(rdma_bind_addr(second, own.pointer()), libc::EADDRINUSE);
        ok(rdma_destroy_id(second));
        ok(rdma_destroy_id(id));
    }
    rdma_destroy_event_channel(channel);
}

/// Returns the link-local address of the only interface that has one, and the number of the
/// interface, as soon as the kernel has made it.
fn link_local() -> (Ipv6Addr, u32) {
    loop {
        if let Some(made) = link_local_now() {
            return made;
        }
        thread::sleep(Duration::from_millis(50));
    }
}

fn link_local_now() -> Option<(Ipv6Addr, u32)> {
    let of_links = nix::ifaddrs::getifaddrs().unwrap().filter_map(|entry| {
        let v6 = *entry.address?.as_sockaddr_in6()?;
        v6.ip().is_unicast_link_local().then(|| {
            let index = nix::net::if_::if_nametoindex(&*entry.interface_name).unwrap();
            (v6.ip(), index)
        })
    });
    of_links.last()
}

unsafe fn scope(address: &rdma_sockaddr) -> (Ipv6Addr, u32) {
    (
        address.sin6.sin6_addr.s6_addr.into(),
        address.sin6.sin6_scope_id,
    )
}

/// Tells its link-local address to its first peer. The second comes there.
unsafe fn scope_server() {
    let channel = rdma_create_event_channel();
    let listening = listen_at(channel, &format!("[::]:{PORT}"));
    let (own, link) = link_local();
    println!("\n{READY}");
    let told = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST).id;
    ok(rdma_reject(told, own.octets().as_ptr().cast(), 16));
    ok(rdma_destroy_id(told));
    let id = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST).id;
    assert_eq!(scope(&(*id).route.addr.src_addr), (own, link));
    let (peer, its_link) = scope(&(*id).route.addr.dst_addr);
    assert!(peer.is_unicast_link_local());
    assert_eq!(its_link, link);
    ok(rdma_destroy_id(id));
    ok(rdma_destroy_id(listening));
    rdma_destroy_event_channel(channel);
}

unsafe fn scope_client() {
    let channel = rdma_create_event_channel();
    let told = crate::roles::resolved(channel, PORT);
    ok(rdma_connect(told, null_mut()));
    let octets = next(channel, RDMA_CM_EVENT_REJECTED).data;
    let server = Ipv6Addr::from(<[u8; 16]>::try_from(&octets[..]).unwrap());
    rdma_destroy_qp(told);
    ok(rdma_destroy_id(told));

    let (own, link) = link_local();
    let mut id = null_mut();
    ok(rdma_create_id(channel, &mut id, null_mut(), RDMA_PS_TCP));
    let bind = |text: String| rdma_bind_addr(id, Address::new(&text).pointer());
    // An address of a link needs the link, and the right one.
    fails(bind(format!("[{own}]:0")), libc::EINVAL);
    assert_eq!(bind(format!("[{own}%1]:0")), -1);
    // The kernel uses it when it knows that nobody else does.
    while bind(format!("[{own}%{link}]:0")) != 0 {
        assert_eq!(errno(), libc::EADDRNOTAVAIL);
        thread::sleep(Duration::from_millis(50));
    }
    ok(rdma_destroy_id(id));

    ok(rdma_create_id(channel, &mut id, null_mut(), RDMA_PS_TCP));
    let there = Address::new(&format!("[{server}%{link}]:{PORT}"));
    ok(rdma_resolve_addr(id, null_mut(), there.pointer(), 10_000));
    next(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
    assert_eq!(scope(&(*id).route.addr.src_addr), (own, link));
    assert_eq!(scope(&(*id).route.addr.dst_addr), (server, link));
    ok(rdma_resolve_route(id, 2000));
    next(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
    ok(rdma_create_qp(id, null_mut(), &mut qp_attributes()));
    ok(rdma_connect(id, null_mut()));
    assert_eq!(
        next(channel, RDMA_CM_EVENT_REJECTED).status,
        -libc::ECONNRESET
    );
    rdma_destroy_qp(id);
    ok(rdma_destroy_id(id));
    rdma_destroy_event_channel(channel);
}

/// Cleans its environment once it has looked for devices, and asks for no less protection then.
unsafe fn cleaned_client() {
    let channel = rdma_create_event_channel();
    std::env::remove_var("RNIC_REQUIRE_PROTECTION");
    let mut id = null_mut();
    ok(rdma_create_id(channel, &mut id, null_mut(), RDMA_PS_TCP));
    ok(rdma_bind_addr(id, Address::new("[::]:0").pointer()));
    fails(rdma_listen(id, 1), libc::EINVAL);
    ok(rdma_destroy_id(id));
    rdma_destroy_event_channel(channel);
}
