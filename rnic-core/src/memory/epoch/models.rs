#![cfg(loom)]

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

use super::StagTable;
use crate::ids::{PdId, StreamId};
use crate::memory::access::{Access, Scope};
use crate::memory::binding::Binding;
use crate::memory::error::TagError;
use crate::memory::region::{HugePages, Region};
use crate::wire::ddp::{Stag, TaggedOffset};

const PD: PdId = PdId(3);
const STREAM: StreamId = StreamId(7);
const ORIGIN: (PdId, StreamId) = (PD, STREAM);
const BASE: TaggedOffset = TaggedOffset(0x1000);

fn region() -> Arc<Region> {
    Arc::new(Region::allocate_unlocked(4096, HugePages::None).unwrap())
}

fn table(capacity: usize) -> Arc<StagTable> {
    Arc::new(StagTable::new(capacity, [42; 32]))
}

fn register(table: &StagTable, region: &Arc<Region>, base: TaggedOffset) -> Stag {
    let access = Access::REMOTE_WRITE | Access::MW_BIND | Access::LOCAL_WRITE;
    let scope = Scope::Stream(PD, STREAM);
    table
        .register(region.clone(), 0..100, base, access, scope)
        .unwrap()
}

/// Placing stands for what a worker does by an STag; owning for what the program does with the
/// memory afterwards.
#[derive(Clone)]
struct Memory(Arc<UnsafeCell<()>>);

impl Memory {
    fn new() -> Self {
        Self(Arc::new(UnsafeCell::new(())))
    }

    fn touch(&self) {
        self.0.with_mut(|_| ());
    }
}

/// Seen to fail: without the fence in `open`, and without that in `wait`; with a store in `close`
/// that does not release, and a load in `wait` that does not acquire.
#[test]
fn memory_is_the_owners_after_revocation() {
    let region = region();
    loom::model(move || {
        let table = table(1);
        let stag = register(&table, &region, BASE);
        let memory = Memory::new();
        let (worker, placed) = (table.worker(), memory.clone());
        thread::spawn(move || {
            let guard = worker.enter();
            let placement = guard.for_placement(stag, BASE, 1, ORIGIN, Access::REMOTE_WRITE);
            if placement.is_ok() {
                placed.touch();
            }
        });
        table.revoke(stag).unwrap();
        memory.touch();
    });
}

/// Two batches, one after the other: the wait for the first is not taken for a wait for the second.
#[test]
fn memory_is_the_owners_while_batches_go_on() {
    let region = region();
    loom::model(move || {
        let table = table(1);
        let stag = register(&table, &region, BASE);
        let memory = Memory::new();
        let (worker, placed) = (table.worker(), memory.clone());
        thread::spawn(move || {
            for _ in 0..2 {
                let guard = worker.enter();
                if guard
                    .for_placement(stag, BASE, 1, ORIGIN, Access::REMOTE_WRITE)
                    .is_ok()
                {
                    placed.touch();
                }
            }
        });
        table.revoke(stag).unwrap();
        memory.touch();
    });
}

/// A peer knows an STag from elsewhere, and sooner than the worker knows of the registration.
///
/// Seen to fail: with a store of `live` in `publish` that does not release, and a load of it in
/// `find` that does not acquire.
#[test]
fn a_valid_stag_says_all_that_it_was_registered_with() {
    let region = region();
    loom::model(move || {
        let table = table(1);
        let worker = table.worker();
        let told = Arc::new(AtomicU32::new(0));
        let heard = told.clone();
        thread::spawn(move || {
            let guard = worker.enter();
            let stag = Stag(heard.load(Ordering::Relaxed));
            let found = guard.for_placement(stag, BASE, 100, ORIGIN, Access::REMOTE_WRITE);
            assert!(matches!(found, Ok(_) | Err(TagError::InvalidStag(_))));
        });
        let stag = register(&table, &region, BASE);
        told.store(stag.0, Ordering::Relaxed);
    });
}

/// The only slot gets another registration: who found the first one valid reads nothing of the
/// second.
///
/// Seen to fail: without the fence in `open`, without that in `wait`, and where `revoke` does not
/// wait.
#[test]
fn a_slot_that_is_used_again_does_not_change_under_a_worker() {
    let region = region();
    loom::model(move || {
        let table = table(1);
        let stag = register(&table, &region, BASE);
        let worker = table.worker();
        thread::spawn(move || {
            let guard = worker.enter();
            let found = guard.for_placement(stag, BASE, 100, ORIGIN, Access::REMOTE_WRITE);
            assert!(matches!(found, Ok(_) | Err(TagError::InvalidStag(_))));
        });
        table.revoke(stag).unwrap();
        register(&table, &region, TaggedOffset(0x9000));
    });
}

/// The peer invalidates a window while its owner gives it up: once that is done, no window is
/// counted any more.
///
/// Seen to fail: with a store in `close` that does not release, and where `revoke` does not wait.
#[test]
fn a_window_is_taken_from_its_region_once() {
    let region = region();
    loom::model(move || {
        let table = table(2);
        let worker = table.worker();
        let (stag, window) = (
            register(&table, &region, BASE),
            table.allocate_window(PD).unwrap(),
        );
        let binding = Binding {
            stag: window.0,
            region: stag.0,
            start: BASE.0,
            length: 10,
            base: 0,
            access: Access::REMOTE_WRITE.0,
            ..Binding::default()
        };
        worker.enter().bind_window(&binding, PD, STREAM).unwrap();
        thread::spawn(move || {
            let outcome = worker.enter().invalidate(window, ORIGIN);
            assert!(matches!(outcome, Ok(()) | Err(TagError::InvalidStag(_))));
        });
        table.revoke(window).unwrap();
        table.revoke(stag).unwrap();
    });
}
