//! rsockets as programs call them, between two hosts: network namespaces that a veth pair joins. Each end is a process of its own:
//! this one again, which plays one role of a test.

#![allow(
    unsafe_code,
    unsafe_op_in_unsafe_fn,
    reason = "the tests call functions of C, as programs do, with what the manual pages ask for"
)]

mod calls;
#[path = "../cm/hosts.rs"]
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
fn what_is_sent_comes_back() {
    play("recho", "echo", "echo-client");
}

#[test]
fn a_socket_that_must_not_wait_is_polled() {
    play("rpoll", "reader", "writer");
}

#[test]
fn data_are_peeked_at_and_gathered() {
    play("rpiece", "pieces", "pieces-client");
}

#[test]
fn connections_end_in_order_or_are_aborted() {
    play("rend", "ends", "ends-client");
}

#[test]
fn what_cannot_be_fails_with_an_errno() {
    play("rerr", "nothing", "errors-client");
}

#[test]
fn mapped_buffers_are_written_directly() {
    play("riomap", "mapper", "mapped-writer");
}

#[test]
fn a_set_of_descriptors_is_waited_for() {
    play("repoll", "echo", "watcher");
}
