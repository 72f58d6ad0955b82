use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::thread;
use std::time::{Duration, Instant};

use super::*;
use crate::memory::epoch::Guard;
use crate::memory::region::HugePages;

const PD: PdId = PdId(3);
const STREAM: StreamId = StreamId(1);
const OTHER: StreamId = StreamId(2);

fn region(len: usize) -> Arc<Region> {
    Arc::new(Region::allocate_unlocked(len, HugePages::None).unwrap())
}

/// A table with a region of 8192 octets, zero-based, that windows may be bound to.
fn bindable(region: &Arc<Region>) -> (Arc<StagTable>, Stag) {
    let table = Arc::new(StagTable::new(8, [42; 32]));
    let access = Access::LOCAL_WRITE | Access::MW_BIND;
    let all = 0..region.len();
    let stag = table
        .register(region.clone(), all, TaggedOffset(0), access, PD)
        .unwrap();
    (table, stag)
}

fn binding(stag: Stag, region: Stag, start: u64, length: u64) -> Binding {
    Binding {
        stag: stag.0,
        region: region.0,
        start,
        length,
        base: start,
        access: Access::REMOTE_WRITE.0,
        ..Binding::default()
    }
}

/// Writes to all octets of a window of 4096 octets, if it is valid.
fn fill(guard: &Guard<'_>, stag: Stag, start: u64, stream: StreamId, octet: u8) -> bool {
    let (origin, need) = ((PD, stream), Access::REMOTE_WRITE);
    match guard.for_placement(stag, TaggedOffset(start), 4096, origin, need) {
        Ok(placement) => placement.write(&[octet; 4096]).unwrap(),
        Err(_) => return false,
    }
    true
}

// rfc: 5040-112 STags are hard to predict
#[test]
fn keys_are_unpredictable_and_never_the_same_twice_in_a_row() {
    let keys = |seed: u8| -> Vec<u8> {
        let table = StagTable::new(4, [seed; 32]);
        let window = table.allocate_window(PD).unwrap();
        let mut stag = window;
        let next = |_| {
            let next = table.new_key(stag);
            assert_eq!(next.index(), window.index());
            assert_ne!(next.key(), stag.key());
            stag = next;
            next.key()
        };
        (0..4096).map(next).collect()
    };
    assert_ne!(keys(1), keys(2));
    assert_eq!(keys(1).into_iter().collect::<BTreeSet<_>>().len(), 256);
}

#[test]
fn a_key_that_the_application_chose_is_not_chosen_next() {
    let region = region(8192);
    let (table, stag) = bindable(&region);
    let window = table.allocate_window(PD).unwrap();
    let worker = table.worker();
    for key in 0..=255 {
        let chosen = window.with_key(key);
        let guard = worker.enter();
        guard
            .bind_window(&binding(chosen, stag, 0, 10), PD, STREAM)
            .unwrap();
        assert_eq!(table.live(window), Some(chosen));
        guard.invalidate(chosen, (PD, STREAM)).unwrap();
        assert_ne!(table.new_key(window), chosen);
    }
}

#[test]
fn windows_and_fast_registrations_take_slots_and_give_them_back() {
    let region = region(8192);
    let table = StagTable::new(2, [1; 32]);
    let window = table.allocate_window(PD).unwrap();
    let fast = table.allocate_fast(region.clone(), PD).unwrap();
    assert_eq!(Arc::strong_count(&region), 2);
    assert_eq!(table.allocate_window(PD), Err(TableError::Full(2)));
    let none = table.allocate_fast(region.clone(), PD);
    assert_eq!(none, Err(TableError::Full(2)));
    table.revoke(window).unwrap();
    table.revoke(fast).unwrap();
    assert_eq!(Arc::strong_count(&region), 1);
    assert_eq!(table.revoke(fast), Err(TableError::NotRegistered(fast)));
    assert_eq!(table.recall(fast), Err(TableError::NotRegistered(fast)));
    table.allocate_window(PD).unwrap();
}

/// An STag whose revocation was refused inside a batch can no longer be bound.
#[test]
fn nothing_is_bound_to_an_stag_that_is_given_up() {
    let region = region(8192);
    let (table, stag) = bindable(&region);
    let window = table.allocate_window(PD).unwrap();
    let fast = table.allocate_fast(region, PD).unwrap();
    let worker = table.worker();
    let guard = worker.enter();
    let part = binding(window, stag, 0, 10);
    guard.bind_window(&part, PD, STREAM).unwrap();
    assert_eq!(table.recall(window), Err(TableError::InsideBatch(window)));
    assert_eq!(
        table.live(window),
        None,
        "recalled, but not known to be unused"
    );
    for given_up in [window, fast] {
        let inside = Err(TableError::InsideBatch(given_up));
        assert_eq!(table.revoke(given_up), inside);
    }
    let gone = Err(BindError::NoWindow(window));
    assert_eq!(guard.bind_window(&part, PD, STREAM), gone);
    let gone = Err(BindError::NotFast(fast));
    let part = binding(fast, Stag(0), 0, 10);
    assert_eq!(guard.fast_register(&part, PD, STREAM), gone);
    drop(guard);
    table.revoke(window).unwrap();
    table.revoke(fast).unwrap();
    table.revoke(stag).unwrap();
}

/// Runs `end` on another thread, where it blocks on this thread's batch. Returns once it blocks.
fn waiting<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    table: &'scope StagTable,
    stag: Stag,
    end: fn(&StagTable, Stag) -> Result<(), TableError>,
) -> thread::ScopedJoinHandle<'scope, Result<(), TableError>> {
    let waiting = scope.spawn(move || end(table, stag));
    let start = Instant::now();
    // Inside a batch `recall` changes nothing; its error tells whether the other thread has begun.
    while table.recall(stag) != Err(TableError::NotRegistered(stag)) {
        assert!(start.elapsed() < Duration::from_secs(10), "nobody is");
        thread::yield_now();
    }
    waiting
}

/// While one waits until no worker uses an STag any more, nobody else ends it, and nothing is bound
/// to it.
// rfc: 5040-110, 5041-91 after revocation nothing changes the buffer
#[test]
fn an_stag_is_ended_by_one_at_a_time() {
    let region = region(8192);
    let (table, stag) = bindable(&region);
    let window = table.allocate_window(PD).unwrap();
    let worker = table.worker();
    let part = binding(window, stag, 0, 10);
    let not_there = Err(TableError::NotRegistered(window));
    thread::scope(|scope| {
        let guard = worker.enter();
        guard.bind_window(&part, PD, STREAM).unwrap();
        let recalling = waiting(scope, &table, window, StagTable::recall);
        assert_eq!(table.revoke(window), not_there);
        let gone = Err(BindError::NoWindow(window));
        assert_eq!(guard.bind_window(&part, PD, STREAM), gone);
        drop(guard);
        assert_eq!(recalling.join().unwrap(), Ok(()));
    });
    // A window that was recalled serves again.
    let guard = worker.enter();
    guard.bind_window(&part, PD, STREAM).unwrap();
    guard.invalidate(window, (PD, STREAM)).unwrap();
    drop(guard);
    thread::scope(|scope| {
        let guard = worker.enter();
        let revoking = waiting(scope, &table, window, StagTable::revoke);
        assert_eq!(table.revoke(window), not_there);
        drop(guard);
        assert_eq!(revoking.join().unwrap(), Ok(()));
    });
    assert_eq!(table.registered(), 1);
}

/// An STag is ended by the name that its owner was given, whatever its key is now.
#[test]
fn an_stag_is_ended_by_its_first_name_alone() {
    let region = region(8192);
    let (table, stag) = bindable(&region);
    let window = table.allocate_window(PD).unwrap();
    let worker = table.worker();
    let renamed = table.new_key(window);
    let part = binding(renamed, stag, 0, 10);
    worker.enter().bind_window(&part, PD, STREAM).unwrap();
    let not_there = Err(TableError::NotRegistered(renamed));
    assert_eq!(table.recall(renamed), not_there);
    assert_eq!(table.revoke(renamed), not_there);
    assert_eq!(table.live(window), Some(renamed));
    table.revoke(window).unwrap();
    assert_eq!(table.live(window), None);
}

/// Whatever is registered in the place of a window that is gone is not taken for it.
#[test]
fn an_stag_that_is_gone_is_not_valid_by_what_took_its_slot() {
    let table = StagTable::new(1, [42; 32]);
    let window = table.allocate_window(PD).unwrap();
    table.revoke(window).unwrap();
    let (region, start) = (region(4096), TaggedOffset(0));
    let other = table
        .register(region, 0..4096, start, Access::LOCAL_WRITE, PD)
        .unwrap();
    assert_eq!(table.live(other), Some(other));
    assert_eq!(table.live(window), None);
}

/// With a region go the windows that are bound to it, and no others, nor other regions.
#[test]
fn only_its_own_windows_go_with_a_region() {
    let memory = region(8192);
    let (table, first) = bindable(&memory);
    let access = Access::LOCAL_WRITE | Access::MW_BIND;
    let second = table
        .register(memory, 0..4096, TaggedOffset(0), access, PD)
        .unwrap();
    let worker = table.worker();
    let [gone, stays] = [first, second].map(|region| {
        let window = table.allocate_window(PD).unwrap();
        let part = binding(window, region, 0, 10);
        worker.enter().bind_window(&part, PD, STREAM).unwrap();
        window
    });
    table.revoke_with_windows(first).unwrap();
    assert_eq!((table.live(gone), table.live(stays)), (None, Some(stays)));
    assert!(table.is_valid(second));
}

/// The worker of one stream opens and closes a window here and there and writes through it, and
/// that of another tries the same STags all the time. The other never gets access, and what is
/// written lies in the window.
// rfc: 5040-106, 5041-78, 5041-87, 5042-9 an STag of one stream is of use to no other
#[test]
fn a_window_that_changes_is_never_half_of_each_for_anybody() {
    let region = region(8192);
    let (table, stag) = bindable(&region);
    let window = table.allocate_window(PD).unwrap();
    let (stop, now) = (AtomicBool::new(false), AtomicU32::new(window.0));
    let intruded = thread::scope(|scope| {
        let intruder = scope.spawn(|| {
            let worker = table.worker();
            let mut intruded = 0u32;
            while !stop.load(Ordering::Relaxed) {
                let guard = worker.enter();
                for _ in 0..32 {
                    let stag = Stag(now.load(Ordering::Relaxed));
                    for start in [0, 4096] {
                        intruded += u32::from(fill(&guard, stag, start, OTHER, 0xee));
                    }
                }
            }
            intruded
        });
        let worker = table.worker();
        for round in 0..20_000_u32 {
            let guard = worker.enter();
            let (stag_now, start) = (table.new_key(window), u64::from(round % 2) * 4096);
            let part = binding(stag_now, stag, start, 4096);
            guard.bind_window(&part, PD, STREAM).unwrap();
            now.store(stag_now.0, Ordering::Relaxed);
            assert!(fill(&guard, stag_now, start, STREAM, 1 + (round % 2) as u8));
            assert!(!fill(&guard, stag_now, 4096 - start, STREAM, 0xee));
            guard.invalidate(stag_now, (PD, STREAM)).unwrap();
            assert!(!fill(&guard, stag_now, start, STREAM, 0xee));
        }
        stop.store(true, Ordering::Relaxed);
        intruder.join().unwrap()
    });
    assert_eq!(intruded, 0);
    let mut octets = vec![0; 8192];
    region.read(0, &mut octets).unwrap();
    assert!(octets[..4096].iter().all(|octet| *octet == 1));
    assert!(octets[4096..].iter().all(|octet| *octet == 2));
}

/// A worker binds a window again and again and writes through it; the region is revoked, and from
/// then on its octets do not change.
// rfc: 5040-110, 5041-91, 5042-11 after revocation nothing changes the buffer
#[test]
fn memory_is_still_once_its_region_went_with_its_windows() {
    for _ in 0..20 {
        let region = region(8192);
        let (table, stag) = bindable(&region);
        let window = table.allocate_window(PD).unwrap();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let worker = table.worker();
                let mut octet = 0u8;
                while !stop.load(Ordering::Relaxed) {
                    let guard = worker.enter();
                    octet = octet.wrapping_add(1).max(1);
                    let next = table.new_key(window);
                    let _ = guard.bind_window(&binding(next, stag, 0, 4096), PD, STREAM);
                    for _ in 0..16 {
                        if let Some(live) = table.live(window) {
                            fill(&guard, live, 0, STREAM, octet);
                        }
                    }
                    if octet.is_multiple_of(2)
                        && let Some(live) = table.live(window)
                    {
                        let _ = guard.invalidate(live, (PD, STREAM));
                    }
                }
            });
            let start = Instant::now();
            while region.load(0).unwrap() == 0 && start.elapsed() < Duration::from_secs(5) {
                thread::yield_now();
            }
            table.revoke_with_windows(stag).unwrap();
            region.fill(0, 8192, 0).unwrap();
            thread::sleep(Duration::from_millis(1));
            let mut octets = vec![1; 8192];
            region.read(0, &mut octets).unwrap();
            stop.store(true, Ordering::Relaxed);
            assert!(
                octets.iter().all(|octet| *octet == 0),
                "written after revocation"
            );
        });
        table.revoke(window).unwrap();
    }
}

/// A worker has found a window valid when its region is revoked. As long as it may go on with what
/// it found, nobody gives the window another meaning by the same key: the worker would take that
/// for the one it has seen.
#[test]
fn a_window_is_not_bound_anew_under_a_worker_that_has_seen_it() {
    let memory = region(8192);
    let (table, first) = bindable(&memory);
    let access = Access::LOCAL_WRITE | Access::MW_BIND;
    let second = table
        .register(memory.clone(), 0..8192, TaggedOffset(0), access, PD)
        .unwrap();
    let window = table.allocate_window(PD).unwrap();
    let (worker, others) = (table.worker(), table.worker());
    let guard = worker.enter();
    guard
        .bind_window(&binding(window, first, 0, 10), PD, STREAM)
        .unwrap();
    thread::scope(|scope| {
        let revoking = scope.spawn(|| table.revoke_with_windows(first));
        while table.is_valid(first) {
            thread::yield_now();
        }
        let again = others
            .enter()
            .bind_window(&binding(window, second, 20, 10), PD, OTHER);
        assert_eq!(again, Err(BindError::Settling(window)));
        // What the worker does with what it has seen concerns no other binding.
        assert!(guard.invalidate(window, (PD, STREAM)).is_err());
        drop(guard);
        revoking.join().unwrap().unwrap();
    });
    others
        .enter()
        .bind_window(&binding(window, second, 20, 10), PD, OTHER)
        .unwrap();
    table.recall(window).unwrap();
    table.revoke(second).unwrap();
}
