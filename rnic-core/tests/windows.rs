//! Memory windows between two engines over a link that loses and reorders: memory does not change
//! once its window is closed.

mod common;

use std::time::Duration;

use common::*;
use rnic_core::connection::{ConnectionOptions, EndReason};
use rnic_core::engine::EngineConfig;
use rnic_core::memory::{binding::Binding, table::Access};
use rnic_core::testing::link::Impairments;
use rnic_core::testing::simulation::{PD, SharedRegion, Simulation, TestQp};
use rnic_core::verbs::{
    Sge,
    status::WcStatus,
    wr::{Completion, SendWr, WcOpcode, WrOpcode},
};
use rnic_core::wire::ddp::{Stag, TaggedOffset};

const SEEDS: u64 = 20;

/// A link that loses, reorders and duplicates.
fn bad_link() -> Impairments {
    Impairments {
        delay: Duration::from_micros(50),
        loss: 20,
        duplication: 20,
        reordering: 100,
        jitter: Duration::from_micros(200),
        ..Impairments::default()
    }
}

fn connected(seed: u64) -> (Simulation, TestQp, TestQp) {
    let mut sim = Simulation::new(&EngineConfig::default(), bad_link(), seed);
    let (active, passive) = sim.connect(&ConnectionOptions::default()).unwrap();
    (sim, active, passive)
}

/// Makes a zero-based binding of a window to `len` octets of a region from `start` on.
fn binding(stag: Stag, region: &SharedRegion, start: usize, len: usize, access: Access) -> Binding {
    Binding {
        stag: stag.0,
        region: region.stag.0,
        start: start as u64,
        length: len as u64,
        access: access.0,
        ..Binding::default()
    }
}

fn bind(id: u64, binding: &Binding) -> SendWr {
    SendWr::bind(id, WrOpcode::BindWindow, binding)
}

/// Makes memory of host 1 that peers reach through windows alone.
fn closed(sim: &Simulation, len: usize, octet: u8) -> SharedRegion {
    let access = Access::LOCAL_WRITE | Access::MW_BIND;
    sim.hosts[1].share(&vec![octet; len], access)
}

fn ids(completions: &[Completion]) -> Vec<u64> {
    completions
        .iter()
        .map(|completion| completion.wr_id)
        .collect()
}

/// In each round one side opens another part of its memory and announces it, and the other writes
/// there and closes it. What the side itself writes to the part after that stays.
// rfc: 5040-110, 5041-91, 5042-11
#[test]
fn windows_open_and_close_over_a_bad_link() {
    const ROUNDS: u64 = 25;
    const PART: usize = 5000;
    for seed in 0..SEEDS {
        let (mut sim, mut active, mut passive) = connected(seed);
        let memory = closed(&sim, PART * ROUNDS as usize, 0);
        let told = sim.hosts[0].share(&[0; 4], all_rights());
        let source = sim.hosts[0].share(&pattern(PART), all_rights());
        let window = sim.hosts[1].table().allocate_window(PD).unwrap();
        // A responder may send once the initiator has.
        sim.hosts[0].post_send(&mut active, write(999, &source, Stag(0), 0));
        completions(&mut sim, &mut active, 1, SECOND * 60);
        for round in 0..ROUNDS {
            let start = PART * round as usize;
            sim.hosts[0].post_recv(&mut active, recv(1, &told, 4));
            sim.hosts[1].post_recv(&mut passive, empty_recv(2));
            let stag = sim.hosts[1].table().new_key(window);
            let open = binding(stag, &memory, start, PART, Access::REMOTE_WRITE);
            sim.hosts[1].post_send(&mut passive, bind(3, &open));
            sim.hosts[1].post_send(&mut passive, inline_send(4, &stag.0.to_be_bytes()));
            completions(&mut sim, &mut active, 1, SECOND * 60);
            let mut octets = [0; 4];
            told.region.read(0, &mut octets).unwrap();
            let stag = Stag(u32::from_be_bytes(octets));
            sim.hosts[0].post_send(&mut active, write(5, &source, stag, PART));
            sim.hosts[0].post_send(&mut active, invalidate(6, stag));
            let all = completions(&mut sim, &mut passive, 3, SECOND * 60);
            assert_eq!(ids(&all), [3, 4, 2], "seed {seed}");
            assert_eq!(all[2].invalidated_stag, stag.0);
            assert!(!sim.hosts[1].is_valid(stag));
            let mut part = vec![0; PART];
            memory.region.read(start, &mut part).unwrap();
            assert!(part == pattern(PART), "seed {seed}, round {round}");
            memory.region.fill(start, PART, 0xee).unwrap();
            let sent = completions(&mut sim, &mut active, 2, SECOND * 60);
            assert_eq!(ids(&sent), [5, 6]);
        }
        sim.run_for(SECOND);
        assert!(
            memory.content().iter().all(|octet| *octet == 0xee),
            "seed {seed}"
        );
        sim.hosts[1].revoke(memory.stag);
    }
}

/// Runs until a region has another octet at this place.
fn wait_for(sim: &mut Simulation, region: &SharedRegion, at: usize, octet: u8) {
    let mut now = [0];
    let begun = sim.run_until(SECOND * 60, |_| {
        region.region.read(at, &mut now).unwrap();
        now == [octet]
    });
    assert!(begun);
}

fn assert_terminated(sim: &mut Simulation, active: &TestQp, number: (u8, u8, u8), seed: u64) {
    let over = sim.run_until(SECOND * 600, |sim| {
        sim.hosts[0].end_of(active.number).is_some()
    });
    assert!(over, "seed {seed}");
    let reason = sim.hosts[0].end_of(active.number);
    assert!(
        matches!(reason, Some(EndReason::TerminateReceived { control, .. })
            if (control.layer, control.error_type, control.code) == number),
        "seed {seed}: {reason:?}"
    );
}

/// After the completion of the Local Invalidate, the memory is the application's.
// rfc: 5040-110, 5041-91, 5042-11
#[test]
#[cfg_attr(carrier_sockets, ignore = "stops a message in its middle")]
fn a_local_invalidate_stops_a_write_in_the_middle() {
    const LEN: usize = 1_000_000;
    for seed in 0..SEEDS {
        let (mut sim, mut active, mut passive) = connected(seed);
        let memory = closed(&sim, LEN, 0);
        let source = sim.hosts[0].share(&vec![9; LEN], all_rights());
        let window = sim.hosts[1].table().allocate_window(PD).unwrap();
        let open = binding(window, &memory, 0, LEN, Access::REMOTE_WRITE);
        sim.hosts[1].post_send(&mut passive, bind(1, &open));
        // The initiator has sent nothing yet: local requests need not wait for it.
        completions(&mut sim, &mut passive, 1, SECOND);
        sim.hosts[0].post_send(&mut active, write(2, &source, window, LEN));
        wait_for(&mut sim, &memory, 100_000, 9);
        sim.hosts[1].post_send(&mut passive, SendWr::invalidate(3, window));
        let done = completions(&mut sim, &mut passive, 1, SECOND);
        let invalidated = (3, WcOpcode::LocalInvalidate, WcStatus::Success);
        assert_eq!(outcome(&done[0]), invalidated);
        let then = memory.content();
        assert!(then.contains(&0), "the Write was not over");
        assert_terminated(&mut sim, &active, (1, 1, 0), seed);
        assert!(
            memory.content() == then,
            "written to after it was invalidated"
        );
        let failed = (2, WcOpcode::Write, WcStatus::RemoteAccessError);
        assert_eq!(outcomes(&mut active), [failed]);
        assert_nothing_left(&mut sim);
    }
}

/// The request does not wait for the Read Response that it stops.
// rfc: 5040-110
#[test]
fn a_local_invalidate_stops_a_read_in_the_middle() {
    const LEN: usize = 1_000_000;
    for seed in 0..SEEDS {
        let (mut sim, mut active, mut passive) = connected(seed);
        let memory = closed(&sim, LEN, 9);
        let sink = sim.hosts[0].share(&vec![0; LEN], all_rights());
        let window = sim.hosts[1].table().allocate_window(PD).unwrap();
        let open = binding(window, &memory, 0, LEN, Access::REMOTE_READ);
        sim.hosts[1].post_send(&mut passive, bind(1, &open));
        completions(&mut sim, &mut passive, 1, SECOND);
        sim.hosts[0].post_send(&mut active, read(2, &sink, window, LEN));
        wait_for(&mut sim, &sink, 100_000, 9);
        sim.hosts[1].post_send(&mut passive, SendWr::invalidate(3, window));
        sim.run_now();
        let invalidated = (3, WcOpcode::LocalInvalidate, WcStatus::Success);
        assert_eq!(outcomes(&mut passive), [invalidated], "seed {seed}");
        assert_terminated(&mut sim, &active, (0, 1, 0), seed);
        assert!(sink.content().contains(&0), "not all of it was sent");
        let failed = (2, WcOpcode::Read, WcStatus::RemoteAccessError);
        assert_eq!(outcomes(&mut active), [failed]);
        assert_nothing_left(&mut sim);
    }
}

/// The sink of a Read is registered by a request, and invalidated while the response comes. Nothing
/// more is placed, and this side, which invalidated it, ends the connection.
// rfc: 5040-110, 5041-91
#[test]
fn a_read_stops_whose_sink_is_invalidated() {
    const LEN: usize = 1_000_000;
    let access = Access::LOCAL_WRITE;
    for seed in 0..SEEDS {
        let (mut sim, mut active, passive) = connected(seed);
        let far = sim.hosts[1].share(&vec![9; LEN], all_rights());
        let near = sim.hosts[0].share(&vec![0; LEN], Access::default());
        let table = sim.hosts[0].table();
        let fast = table.allocate_fast(near.region.clone(), PD).unwrap();
        let all = binding(fast, &near, 0, LEN, access);
        let all = Binding { region: 0, ..all };
        sim.hosts[0].post_send(&mut active, SendWr::bind(1, WrOpcode::FastRegister, &all));
        let sink = Sge {
            offset: 0,
            length: LEN as u32,
            lkey: fast.0,
        };
        let wr = SendWr::new(2, WrOpcode::Read)
            .with_remote(far.stag, TaggedOffset(0))
            .with_sges(&[sink])
            .unwrap();
        sim.hosts[0].post_send(&mut active, wr);
        wait_for(&mut sim, &near, 100_000, 9);
        sim.hosts[0].post_send(&mut active, SendWr::invalidate(3, fast));
        sim.run_now();
        assert!(!sim.hosts[0].is_valid(fast));
        let then = near.content();
        let over = sim.run_until(SECOND * 600, |sim| {
            sim.hosts[1].end_of(passive.number).is_some()
        });
        assert!(over, "seed {seed}");
        assert!(
            near.content() == then,
            "written to after it was invalidated"
        );
        let all = outcomes(&mut active);
        assert_eq!(all[0], (1, WcOpcode::FastRegister, WcStatus::Success));
        assert_eq!(all[1].0, 2);
        assert_ne!(all[1].2, WcStatus::Success);
        assert_eq!(all.len(), 3);
        assert_nothing_left(&mut sim);
    }
}
