//! How words come into memory: whole, in order, and the last one of a piece last, whatever way its
//! octets take.

#![cfg(target_arch = "x86_64")]

mod common;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use common::*;
use rnic_core::connection::ConnectionOptions;
use rnic_core::engine::EngineConfig;
use rnic_core::fast_paths::{FastPath, FastPaths, taken};
use rnic_core::memory::program::ProgramMemory;
use rnic_core::memory::stores::{assert_whole_words, stores_to};
use rnic_core::testing::link::Impairments;
use rnic_core::testing::simulation::{PD, SharedRegion, Simulation, TestQp};
use rnic_core::verbs::sge::Sge;
use rnic_core::verbs::wr::{RecvWr, SendWr, WrOpcode};
use rnic_core::wire::ddp::TaggedOffset;
use rnic_core::wire::rdmap::AtomicOperation;

const LEN: usize = 8192;
/// Octets of payload in the FPDUs of a tagged and of an untagged message.
const TAGGED: usize = 1428;
const UNTAGGED: usize = 1424;
const MILLISECOND: Duration = Duration::from_millis(1);

/// Two connected hosts. Host 1 has memory that is watched; host 0 has what comes there.
struct Rig {
    sim: Simulation,
    pair: (TestQp, TestQp),
    watched: SharedRegion,
    source: SharedRegion,
}

impl Rig {
    fn new(foreign: bool, fast_paths: FastPaths, cutting: u32) -> Self {
        let config = EngineConfig {
            fast_paths,
            ..EngineConfig::default()
        };
        let link = Impairments {
            delay: Duration::from_micros(50),
            cutting,
            ..Impairments::default()
        };
        let mut sim = Simulation::new(&config, link, 1);
        let options = ConnectionOptions {
            ird: 4,
            ord: 4,
            ..ConnectionOptions::default()
        };
        let pair = sim.connect(&options).unwrap();
        let watched = if foreign {
            // It stays mapped as long as the process lives.
            let pages = Box::leak(Box::new(ProgramMemory::map(LEN, false)));
            let region = Arc::new(pages.region(0, LEN, true).unwrap());
            let stag = sim.hosts[1].register(&region, 0..LEN, all_rights(), PD);
            SharedRegion { region, stag }
        } else {
            sim.hosts[1].share(&[0; LEN], all_rights())
        };
        let octets: Vec<u8> = (0..LEN).map(|n| (n % 255 + 1) as u8).collect();
        let source = sim.hosts[0].share(&octets, all_rights());
        let mut rig = Self {
            sim,
            pair,
            watched,
            source,
        };
        // The initiator speaks first.
        rig.write(LEN - 8, 8);
        rig.watched.region.fill(LEN - 8, 8, 0).unwrap();
        rig
    }

    /// Writes octets to the watched memory, at this offset.
    fn write(&mut self, offset: usize, len: usize) {
        let wr = SendWr::new(1, WrOpcode::Write)
            .with_remote(self.watched.stag, TaggedOffset(offset as u64))
            .with_sges(&[sge(&self.source, len)])
            .unwrap();
        self.sim.hosts[0].post_send(&mut self.pair.0, wr);
        self.sim.run_for(MILLISECOND);
    }

    /// Lets host 1 send a message that arrives in the turn in which host 0 sends its next one. That
    /// one acknowledges it.
    fn call_for_answer(&mut self) {
        let wr = SendWr::new(9, WrOpcode::Write)
            .with_remote(self.source.stag, TaggedOffset(0))
            .with_inline(&[7; 8])
            .unwrap();
        self.sim.hosts[1].post_send(&mut self.pair.1, wr);
        self.sim.step();
    }

    fn piece(&self, offset: usize, len: usize) -> Sge {
        Sge {
            offset: offset as u64,
            length: len as u32,
            lkey: self.watched.stag.0,
        }
    }

    /// Checks what `work` stores to the watched memory.
    fn check(&mut self, pieces: &[Range<usize>], what: &str, work: impl FnOnce(&mut Self)) {
        let region = self.watched.region.clone();
        let (stores, _) = stores_to(&region, LEN, || work(self));
        assert_whole_words(&stores, pieces, what);
    }
}

fn each_memory(test: impl Fn(bool)) {
    [false, true].into_iter().for_each(test);
}

/// Cuts a message at the ends of its FPDUs.
fn pieces(offset: usize, len: usize, most: usize) -> Vec<Range<usize>> {
    let end = offset + len;
    let starts = (offset..end).step_by(most);
    starts.map(|start| start..end.min(start + most)).collect()
}

/// Short messages: of a word alone, or with one at the end.
const SHORT: [(usize, usize); 7] = [(2, 2), (4, 4), (8, 8), (4, 12), (8, 64), (3, 61), (4, 1000)];

fn times(path: FastPath) -> u64 {
    taken::times(path).expect("tests count")
}

#[test]
#[ignore = "slow: ci/test runs it"]
fn a_short_write_arrives_in_whole_words() {
    each_memory(|foreign| {
        let mut rig = Rig::new(foreign, FastPaths::NONE, 0);
        for (offset, len) in SHORT {
            rig.check(&pieces(offset, len, TAGGED), "ordinary", |rig| {
                rig.write(offset, len)
            });
        }
        let mut rig = Rig::new(foreign, FastPaths::ALL, 0);
        let before = times(FastPath::WholeMessage);
        for (offset, len) in SHORT {
            // The headers become as predicted.
            for _ in 0..2 {
                rig.call_for_answer();
                rig.write(LEN / 2, len);
            }
            rig.watched.region.fill(LEN / 2, len, 0).unwrap();
            rig.call_for_answer();
            rig.check(&pieces(offset, len, TAGGED), "whole message", |rig| {
                rig.write(offset, len);
            });
        }
        let taken = times(FastPath::WholeMessage) - before;
        assert!(
            taken >= 3 * SHORT.len() as u64 - 2,
            "{taken} whole messages"
        );
    });
}

#[test]
#[ignore = "slow: ci/test runs it"]
fn a_long_write_arrives_in_whole_words() {
    each_memory(|foreign| {
        for paths in [FastPaths::NONE, FastPaths::ALL] {
            let mut rig = Rig::new(foreign, paths, 0);
            let before = times(FastPath::CoalescedRun);
            let len = 4 * TAGGED + 12;
            rig.check(&pieces(4, len, TAGGED), "long", |rig| rig.write(4, len));
            let runs = times(FastPath::CoalescedRun) - before;
            assert_eq!(runs > 0, paths == FastPaths::ALL);
        }
    });
}

/// The octets of an FPDU come in two segments, and are joined before they are placed.
#[test]
#[ignore = "slow: ci/test runs it"]
fn what_was_joined_arrives_in_whole_words() {
    each_memory(|foreign| {
        let mut rig = Rig::new(foreign, FastPaths::ALL, 1000);
        for (offset, len) in [(8, 8), (4, 12), (4, 1000)] {
            rig.check(&pieces(offset, len, TAGGED), "joined", |rig| {
                rig.write(offset, len)
            });
        }
    });
}

/// Each element of a receive is filled by itself.
#[test]
#[ignore = "slow: ci/test runs it"]
fn a_send_arrives_in_whole_words() {
    each_memory(|foreign| {
        let mut rig = Rig::new(foreign, FastPaths::ALL, 0);
        let elements = [rig.piece(4, 12), rig.piece(64, 2000)];
        let (second, rest) = (64..64 + UNTAGGED - 12, 64 + UNTAGGED - 12..64 + 1600);
        rig.check(&[4..16, second, rest], "Send", |rig| {
            let buffer = RecvWr::new(5, &elements).unwrap();
            rig.sim.hosts[1].post_recv(&mut rig.pair.1, buffer);
            let wr = send(1, &rig.source, 1612);
            rig.sim.hosts[0].post_send(&mut rig.pair.0, wr);
            rig.sim.run_for(MILLISECOND);
        });
    });
}

#[test]
#[ignore = "slow: ci/test runs it"]
fn what_was_read_arrives_in_whole_words() {
    each_memory(|foreign| {
        for len in [8, 12, 3000] {
            let mut rig = Rig::new(foreign, FastPaths::ALL, 0);
            let wr = SendWr::new(1, WrOpcode::Read)
                .with_remote(rig.source.stag, TaggedOffset(0))
                .with_sges(&[rig.piece(8, len)])
                .unwrap();
            rig.check(&pieces(8, len, TAGGED), "Read Response", |rig| {
                rig.sim.hosts[1].post_send(&mut rig.pair.1, wr);
                rig.sim.run_for(MILLISECOND);
            });
        }
    });
}

/// An atomic changes its word at once, and what it found is one word too.
#[test]
#[ignore = "slow: ci/test runs it"]
fn an_atomic_stores_whole_words() {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    let add = AtomicOperation::FetchAdd { add: ONES, mask: 0 };
    each_memory(|foreign| {
        let mut rig = Rig::new(foreign, FastPaths::ALL, 0);
        let result = Sge {
            offset: 0,
            length: 8,
            lkey: rig.source.stag.0,
        };
        let wr = SendWr::atomic(1, add, result).with_remote(rig.watched.stag, TaggedOffset(16));
        rig.check(&pieces(16, 8, TAGGED), "changed", |rig| {
            rig.sim.hosts[0].post_send(&mut rig.pair.0, wr);
            rig.sim.run_for(MILLISECOND);
        });
        let found = rig.piece(24, 8);
        let wr = SendWr::atomic(1, add, found).with_remote(rig.source.stag, TaggedOffset(64));
        rig.check(&pieces(24, 8, TAGGED), "found", |rig| {
            rig.sim.hosts[1].post_send(&mut rig.pair.1, wr);
            rig.sim.run_for(MILLISECOND);
        });
    });
}
