//! rsockets as programs call them, between two hosts: network namespaces that a veth pair joins.
//! Each end is a process of its own: this one again, which plays one role of a test.

#![allow(
    unsafe_code,
    unsafe_op_in_unsafe_fn,
    reason = "the tests call functions of C, as programs do, with what the manual pages ask for"
)]

mod calls;
#[path = "../cm/hosts.rs"]
mod hosts;
mod orderly;
mod roles;
mod waiting;

use hosts::play;

/// The process plays a role if it was started for that.
#[test]
fn role() {
    let Ok(role) = std::env::var(hosts::ROLE) else {
        return;
    };
    if !waiting::play(&role) && !orderly::play(&role) {
        roles::play(&role);
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn what_is_sent_comes_back() {
    play("recho", "echo", "echo-client");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_socket_that_must_not_wait_is_polled() {
    play("rpoll", "reader", "writer");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn data_are_peeked_at_and_gathered() {
    play("rpiece", "pieces", "pieces-client");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn connections_end_in_order_or_are_aborted() {
    play("rend", "ends", "ends-client");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn what_cannot_be_fails_with_an_errno() {
    play("rerr", "nothing", "errors-client");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn mapped_buffers_are_written_directly() {
    play("riomap", "mapper", "mapped-writer");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_set_of_descriptors_is_waited_for() {
    play("repoll", "echo", "watcher");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn connections_that_nobody_accepts_are_as_many_as_the_backlog_says() {
    play("rcrowd", "crowded", "crowd");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_call_goes_on_behind_a_signal_whose_handler_says_so() {
    play("rsignal", "late", "interrupted");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn why_connecting_failed_is_told_once() {
    play("rrefuse", "nothing", "refused");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn both_sides_shut_down_in_order_from_a_port_that_is_used_again() {
    play("rhalve", "halver", "halver-client");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn what_is_on_its_way_arrives_when_both_sides_shut_down_at_once() {
    play("rcross", "crosser", "crosser-client");
}
