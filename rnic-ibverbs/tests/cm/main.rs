//! rdma_cm as programs call it, between two hosts: network namespaces that a veth pair joins. Each end is a process of its own, as
//! programs are: this one again, which plays one role of a test.

#![allow(
    unsafe_code,
    unsafe_op_in_unsafe_fn,
    reason = "the tests call functions of C, as programs do, with what the manual pages ask for"
)]

mod calls;
mod hosts;
mod roles;

use hosts::play;

/// The process plays a role if it was started for that.
#[test]
fn role() {
    let Ok(role) = std::env::var(hosts::ROLE) else {
        return;
    };
    roles::play(&role);
}

#[test]
fn calls_that_wait_connect_and_exchange_private_data() {
    play("sync", roles::SYNC_SERVER, roles::SYNC_CLIENT);
}

#[test]
fn events_come_in_the_kernels_order_and_with_its_status() {
    play("async", roles::ASYNC_SERVER, roles::ASYNC_CLIENT);
}

#[test]
fn a_peer_is_rejected_with_private_data_or_refused() {
    play("reject", roles::REJECT_SERVER, roles::REJECT_CLIENT);
}

#[test]
fn ids_bind_to_addresses_as_in_the_kernel() {
    play("bind", roles::IDLE, roles::BIND);
}

#[test]
fn an_id_is_destroyed_once_its_events_are_acknowledged() {
    play("ack", roles::ASYNC_SERVER, roles::ACKNOWLEDGE);
}

#[test]
fn events_move_with_their_id() {
    play("migr", roles::MIGRATE_SERVER, roles::ASYNC_CLIENT);
}

#[test]
fn a_queue_pair_that_is_destroyed_at_once_ends_its_connection_in_order() {
    play("hasty", roles::ASYNC_SERVER, roles::HASTY_CLIENT);
}
