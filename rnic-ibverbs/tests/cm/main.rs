//! rdma_cm as programs call it, between two hosts: network namespaces that a veth pair joins. Each
//! end is a process of its own, as programs are: this one again, which plays one role of a test.

#![allow(
    unsafe_code,
    unsafe_op_in_unsafe_fn,
    reason = "the tests call functions of C, as programs do, with what the manual pages ask for"
)]

mod addresses;
mod calls;
mod datagrams;
mod ends;
mod hosts;
mod plain;
mod roles;

use hosts::play;

/// The process plays a role if it was started for that.
#[test]
fn role() {
    let Ok(role) = std::env::var(hosts::ROLE) else {
        return;
    };
    if !ends::play(&role) && !addresses::play(&role) && !datagrams::play(&role) {
        roles::play(&role);
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn calls_that_wait_connect_and_exchange_private_data() {
    play("sync", roles::SYNC_SERVER, roles::SYNC_CLIENT);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn events_come_in_the_kernels_order_and_with_its_status() {
    play("async", roles::ASYNC_SERVER, roles::ASYNC_CLIENT);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_peer_is_rejected_with_private_data_or_refused() {
    play("reject", roles::REJECT_SERVER, roles::REJECT_CLIENT);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_peer_is_asked_for_the_queue_pair_of_its_datagrams() {
    play(
        "udcm",
        datagrams::DATAGRAM_SERVER,
        datagrams::DATAGRAM_CLIENT,
    );
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_peer_that_does_not_understand_a_question_keeps_nobody_from_asking() {
    play(
        "udstr",
        datagrams::STRANGE_SERVER,
        datagrams::STRANGE_CLIENT,
    );
}

/// Its Reply has no enhanced data, or it does not know such a Request at all.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_peer_that_knows_revision_1_alone_is_asked_again() {
    play("plain", roles::PLAIN_SERVER, roles::PLAIN_CLIENT);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn ids_bind_to_addresses_as_in_the_kernel() {
    play("bind", roles::IDLE, roles::BIND);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn an_id_is_destroyed_once_its_events_are_acknowledged() {
    play("ack", roles::ASYNC_SERVER, roles::ACKNOWLEDGE);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn events_move_with_their_id() {
    play("migr", roles::MIGRATE_SERVER, roles::ASYNC_CLIENT);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_queue_pair_that_is_destroyed_at_once_ends_its_connection_in_order() {
    play("hasty", roles::ASYNC_SERVER, roles::HASTY_CLIENT);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn one_event_tells_that_connecting_has_failed() {
    play("once", roles::REJECT_SERVER, "rejected-client");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_listener_that_is_destroyed_refuses_at_once() {
    play("gone", "gone-server", "gone-client");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn the_end_comes_behind_what_was_received() {
    play("lastword", "last-word-server", "last-word-client");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_peer_whose_connection_lives_waits_for_the_next_listener() {
    play("again", "again-server", "again-client");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_thread_may_come_back_to_a_channel_that_is_gone() {
    play("late", roles::IDLE, "late-client");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_port_is_used_again_behind_an_orderly_end() {
    play("ports", "ports-server", "ports-client");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn link_local_addresses_have_their_link() {
    play("scope", "scope-server", "scope-client");
}

/// The device of all interfaces has those of each.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces")]
fn link_local_addresses_have_their_link_on_the_device_of_all_interfaces() {
    let any = [hosts::ANY_BY_SOCKETS; 2];
    hosts::play_on("scopeany", any, "scope-server", "scope-client");
}

/// Sockets of the kernel protect nothing by our ESP.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces")]
fn a_program_that_cleans_its_environment_is_protected_nevertheless() {
    let required = [("RNIC_VIA", "kernel"), ("RNIC_REQUIRE_PROTECTION", "1")];
    let devices = [&required[..1], &required];
    hosts::play_on("cleaned", devices, roles::IDLE, "cleaned-client");
}
