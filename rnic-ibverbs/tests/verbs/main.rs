//! The verbs as programs call them. What needs a peer runs between two hosts: network namespaces
//! that a veth pair joins, with a process on each.

#![allow(
    unsafe_code,
    unsafe_op_in_unsafe_fn,
    reason = "the tests call functions of C, as programs do, with what the manual pages ask for"
)]

mod alone;
mod calls;
mod crowds;
mod datagrams;
mod descriptors;
mod end;
mod forks;
#[path = "../cm/hosts.rs"]
mod hosts;
mod itself;
mod own_peer;
mod pair;
mod parting;
mod psns;
mod sections;
mod shared;
mod shared_datagrams;
mod stopped;
mod there;
mod threads;
mod unreliable;

use hosts::play;

/// The process plays a role if it was started for that.
#[test]
fn role() {
    let Ok(role) = std::env::var(hosts::ROLE) else {
        return;
    };
    pair::play(&role);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn objects_are_made_and_destroyed_in_order() {
    play("alone", pair::IDLE, "objects");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_device_says_what_it_is() {
    play("says", pair::IDLE, "attributes");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn wrong_arguments_have_their_errno() {
    play("wrong", pair::IDLE, "wrong");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn requests_of_every_kind_are_carried_out() {
    play("kinds", pair::SERVER_ROLE, "kinds");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn requests_are_built_by_calls_and_completions_read_by_calls() {
    play("ex", pair::SERVER_ROLE, "extended");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_channel_serves_several_queues() {
    play("chan", pair::SERVER_ROLE, "channel");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn events_of_queue_pairs_are_told_and_acknowledged() {
    play("event", pair::SERVER_ROLE, "events");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn windows_are_bound_and_memory_is_registered_anew() {
    play("window", pair::SERVER_ROLE, "windows");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn any_thread_uses_any_object() {
    play("thread", pair::SERVER_ROLE, "threads");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn between_two_calls_all_others_go_on() {
    play("within", pair::SERVER_ROLE, "sections");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn threads_build_batches_and_poll_by_calls() {
    play("batch", pair::SERVER_ROLE, "sections-of-threads");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_batch_is_posted_in_whole_or_not_at_all() {
    play("whole", pair::SERVER_ROLE, "whole");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn what_a_forked_process_inherits_does_nothing_and_says_so() {
    play("fork", pair::SERVER_ROLE, "forks");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_child_that_lives_does_not_keep_the_interface() {
    play("heir", pair::SERVER_ROLE, "heirs");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn events_of_a_shared_receive_queue_are_told() {
    play("shared", pair::SERVER_ROLE, "shared");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn queue_pairs_meet_by_their_numbers_whoever_comes_first() {
    play("meet", "meet-server", "meet");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn strangers_do_not_come_between_two_queue_pairs() {
    play("strg", "strangers-server", "strangers");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_stranger_with_a_wrong_psn_gets_nothing() {
    play("psn", "wrong-psns-server", "wrong-psns");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_queue_pair_in_rtr_receives() {
    play("rtr", "receiver-server", "receiver");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn queue_pairs_come_and_go() {
    play("comego", "come-and-go-server", "come-and-go");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces")]
fn queue_pairs_over_sockets_leave_no_descriptor_behind() {
    let any = [hosts::ANY_BY_SOCKETS; 2];
    hosts::play_on("fds", any, "leave-nothing-server", "leave-nothing");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_queue_pair_is_moved_as_the_manual_says() {
    play("refuse", pair::IDLE, "refusals");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_crowd_does_not_keep_the_peer_away() {
    play("crowd", "crowds-server", "crowds");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn queue_pairs_of_one_process_meet() {
    play("oneproc", pair::IDLE, "one-process");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn what_was_posted_before_the_end_arrives() {
    play("parting", "last-words-server", "last-words");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn what_was_posted_before_the_end_arrives_where_others_send_much() {
    play(
        "partmany",
        "last-words-of-many-server",
        "last-words-of-many",
    );
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_queue_pair_of_uc_does_not_wait_for_ever() {
    play("uc", pair::IDLE, "unreliable");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_queue_pair_sends_to_itself() {
    play("ownpeer", pair::IDLE, "own-peer");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn requests_wait_while_the_send_queue_is_stopped() {
    play("sqd", pair::IDLE, "stopped");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn datagrams_go_between_hosts() {
    play("udhosts", "datagrams-server", "datagrams");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn datagrams_stay_in_a_process() {
    play("udproc", pair::IDLE, "datagrams-of-one-process");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn datagram_queue_pairs_share_receives() {
    play("udsrq", pair::IDLE, "shared-datagrams");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn datagrams_come_in_spite_of_hostile_processes() {
    play("udhost", "hostile-datagrams-server", "hostile-datagrams");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn datagrams_wait_for_a_process_that_is_late() {
    play("udlate", "late-datagrams-server", "late-datagrams");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn datagrams_to_many_processes_find_slots() {
    play("udmany", "many-datagrams-server", "many-datagrams");
}
