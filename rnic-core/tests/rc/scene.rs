//! Queue pairs whose connections have the semantics of RC.

use std::time::Duration;

use rnic_core::connection::{ConnectionOptions, EndReason, Event};
use rnic_core::engine::{Command, EngineConfig};
use rnic_core::fast_paths::FastPaths;
use rnic_core::ids::QpNumber;
use rnic_core::testing::link::Impairments;
use rnic_core::testing::simulation::{Simulation, TestQp};
use rnic_core::verbs::{status::WcStatus, wr::WcOpcode};

use crate::common::*;

/// Returns hosts whose decoder knows the opcodes of RC.
pub(crate) fn rc_hosts() -> Simulation {
    rc_hosts_with(FastPaths::default())
}

pub(crate) fn rc_hosts_with(fast_paths: FastPaths) -> Simulation {
    let config = EngineConfig {
        fast_paths,
        ..EngineConfig::default()
    };
    let link = Impairments {
        delay: Duration::from_micros(50),
        ..Impairments::default()
    };
    let (sim, decoder) = watched_by(&config, link, 1);
    decoder.borrow_mut().rc = true;
    sim
}

pub(crate) type Outcome = (u64, WcOpcode, WcStatus);

pub(crate) fn rc() -> ConnectionOptions {
    ConnectionOptions {
        rc: true,
        private_data: hello(),
        ..ConnectionOptions::default()
    }
}

pub(crate) fn connected() -> (Simulation, TestQp, TestQp) {
    let mut sim = rc_hosts();
    let (mut active, passive) = sim.connect(&rc()).unwrap();
    // The responder may send once it has received.
    let nowhere = sim.hosts[0].share(&[0], all_rights());
    sim.hosts[0].post_send(&mut active, write(0, &nowhere, nowhere.stag, 0));
    completions(&mut sim, &mut active, 1, SECOND);
    (sim, active, passive)
}

/// Connects a queue pair of host 0 to a raw peer, which has sent something.
pub(crate) fn with_raw_peer(sim: &mut Simulation) -> RawConnection {
    let raw = accept_raw(sim, &rc());
    sim.raw[raw.peer].send_ddp(nothing(), &[]);
    sim.run_now();
    raw
}

/// Returns how the peer of a queue pair has left, if it has.
pub(crate) fn departure(sim: &Simulation, host: usize, number: QpNumber) -> Option<EndReason> {
    let left = |event: &Event| match event {
        Event::PeerLeft { qp, reason } if *qp == number => Some(reason.clone()),
        _ => None,
    };
    let mut all = sim.hosts[host].events.iter().filter_map(left);
    let first = all.next();
    assert_eq!(all.next(), None, "it is told once");
    first
}

/// Counts the events that a queue pair is over with its receives.
pub(crate) fn last_receives(sim: &Simulation, host: usize, number: QpNumber) -> usize {
    let last = |event: &&Event| matches!(event, Event::LastReceive { qp } if *qp == number);
    sim.hosts[host].events.iter().filter(last).count()
}

/// Checks that a queue pair is as it was before its peer left for this reason: nothing completes,
/// and it is not disconnected.
#[track_caller]
/// Has the application of a host give up waiting for the peer that has left a queue pair.
pub(crate) fn give_up(sim: &mut Simulation, host: usize, qp: &TestQp) {
    let command = Command::FailAs {
        qp: qp.number,
        status: WcStatus::RetryExceeded,
    };
    sim.hosts[host].command(command);
    sim.run_now();
}

pub(crate) fn assert_orphaned(sim: &Simulation, host: usize, qp: &mut TestQp, reason: &EndReason) {
    assert_eq!(departure(sim, host, qp.number).as_ref(), Some(reason));
    assert_eq!(ends(sim, host, qp), 0);
    assert_eq!(last_receives(sim, host, qp.number), 0);
    assert_eq!(outcomes(qp), []);
}
