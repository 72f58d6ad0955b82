use std::cell::Cell;
use std::collections::HashSet;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::memory::binding::Binding;
use crate::memory::program::{ProgramMemory, TakeAway};
use crate::memory::region::HugePages;

const PD: PdId = PdId(3);
const ALL: Access = Access(7);

fn region(len: usize) -> Arc<Region> {
    Arc::new(Region::allocate_unlocked(len, HugePages::None).unwrap())
}

fn table(capacity: usize) -> Arc<StagTable> {
    Arc::new(StagTable::new(capacity, [42; 32]))
}

#[test]
fn placed_octets_arrive_where_they_were_validated() {
    let (table, region) = (table(8), region(8192));
    let base = TaggedOffset(0x1_0000_0000);
    let stag = table
        .register(region.clone(), 1000..2000, base, ALL, PD)
        .unwrap();
    let worker = table.worker();
    let guard = worker.enter();
    let at = TaggedOffset(base.0 + 990);
    let placement = guard
        .for_placement(stag, at, 10, PD, Access::REMOTE_WRITE)
        .unwrap();
    placement.write(b"0123456789").unwrap();
    let mut back = [0; 12];
    region.read(1989, &mut back).unwrap();
    assert_eq!(&back, b"\x000123456789\0");
    let source = guard
        .for_reading(stag, at, 4, PD, Access::REMOTE_READ)
        .unwrap();
    let mut back = [0; 4];
    source.read(&mut back).unwrap();
    assert_eq!(&back, b"0123");
}

/// Another atomic operation comes between the look at a number and its change: neither is lost.
// rfc: 7306-38 an atomic is one step for all other streams
#[test]
fn an_atomic_begins_again_where_another_comes_between() {
    let (table, region) = (table(8), region(4096));
    let stag = table
        .register(
            region.clone(),
            0..4096,
            TaggedOffset(0),
            Access::REMOTE_ATOMIC,
            PD,
        )
        .unwrap();
    let number = region.atomic(64).unwrap();
    number.store(7, Ordering::Relaxed);
    let worker = table.worker();
    let guard = worker.enter();
    let place = guard.for_atomic(stag, TaggedOffset(64), PD).unwrap();
    let comes_between = Cell::new(true);
    let found = place.update(|number_then| {
        if comes_between.take() {
            number.fetch_add(1 << 32, Ordering::Relaxed);
        }
        number_then + 1
    });
    assert_eq!(found, Ok(1 << 32 | 7));
    assert_eq!(number.load(Ordering::Relaxed), 1 << 32 | 8);
}

#[test]
#[should_panic(expected = "more octets than were validated")]
fn a_proof_does_not_stretch() {
    let (table, region) = (table(8), region(4096));
    let stag = table
        .register(region, 0..4096, TaggedOffset(0), ALL, PD)
        .unwrap();
    let worker = table.worker();
    let guard = worker.enter();
    guard
        .for_placement(stag, TaggedOffset(0), 8, PD, ALL)
        .unwrap()
        .write(&[0; 9])
        .unwrap();
}

// rfc: 5040-98, 5040-99, 5040-105, 5040-106, 5041-77, 5041-78, 5041-86, 5041-87, 5042-7, 5042-8
// rfc: 5042-9 an STag is of use only to its protection domain, or its stream
#[test]
fn only_its_own_domain_or_stream_uses_an_stag() {
    let (table, region) = (table(8), region(4096));
    let shared = table
        .register(region.clone(), 0..8, TaggedOffset(0), ALL, PD)
        .unwrap();
    let scope = Scope::Stream(PD, StreamId(7));
    let own = table
        .register(region, 8..16, TaggedOffset(0), ALL, scope)
        .unwrap();
    let worker = table.worker();
    let guard = worker.enter();
    let reads = |stag, origin: Origin| {
        guard
            .for_reading(stag, TaggedOffset(0), 8, origin, Access::REMOTE_READ)
            .map(|_| ())
    };
    let refused = |stag, pd| Err(TagError::NotAssociated { stag, pd });
    assert_eq!(reads(shared, PD.into()), Ok(()));
    assert_eq!(reads(shared, (PD, StreamId(1)).into()), Ok(()));
    assert_eq!(reads(shared, PdId(4).into()), refused(shared, PdId(4)));
    assert_eq!(reads(own, (PD, StreamId(7)).into()), Ok(()));
    assert_eq!(reads(own, (PD, StreamId(8)).into()), refused(own, PD));
    assert_eq!(reads(own, PD.into()), refused(own, PD));
    assert_eq!(
        reads(own, (PdId(4), StreamId(7)).into()),
        refused(own, PdId(4))
    );
    assert_eq!(
        reads(Stag(0), PD.into()),
        Err(TagError::InvalidStag(Stag(0)))
    );
    assert_eq!(
        reads(Stag(shared.0 ^ 1), PD.into()),
        Err(TagError::InvalidStag(Stag(shared.0 ^ 1)))
    );
}

// rfc: 5040-109, 5041-90 rights to read and to write are granted one by one
#[test]
fn access_is_what_was_granted() {
    let (table, region) = (table(8), region(4096));
    let worker = table.worker();
    for granted in (0..8).map(Access) {
        let stag = table
            .register(region.clone(), 0..8, TaggedOffset(0), granted, PD)
            .unwrap();
        let guard = worker.enter();
        for need in (0..8).map(Access) {
            let allowed = guard
                .for_placement(stag, TaggedOffset(0), 1, PD, need)
                .is_ok();
            assert_eq!(allowed, need.0 & !granted.0 == 0, "{granted} for {need}");
        }
        drop(guard);
        table.revoke(stag).unwrap();
    }
}

// rfc: 5040-93, 5040-94, 5040-111 a peer invalidates only a valid STag that is its stream's alone
#[test]
fn a_peer_invalidates_only_what_is_its_streams_alone() {
    let (table, region) = (table(8), region(4096));
    let shared = table
        .register(region.clone(), 0..8, TaggedOffset(0), ALL, PD)
        .unwrap();
    let scope = Scope::Stream(PD, StreamId(7));
    let own = table
        .register(region, 0..8, TaggedOffset(0), ALL, scope)
        .unwrap();
    let worker = table.worker();
    let guard = worker.enter();
    let (us, them) = ((PD, StreamId(7)), (PD, StreamId(8)));
    assert_eq!(
        guard.invalidate(shared, us),
        Err(TagError::NotInvalidatable(shared))
    );
    assert_eq!(
        guard.invalidate(own, them),
        Err(TagError::NotAssociated { stag: own, pd: PD })
    );
    assert_eq!(guard.invalidate(own, us), Ok(()));
    assert_eq!(guard.invalidate(own, us), Err(TagError::InvalidStag(own)));
    assert!(
        guard
            .for_reading(own, TaggedOffset(0), 8, us, Access::REMOTE_READ)
            .is_err()
    );
    drop(guard);
    assert!(!table.is_valid(own) && table.is_valid(shared));
    // Its owner still ends the registration.
    assert_eq!(table.registered(), 2);
    table.revoke(own).unwrap();
    assert_eq!(table.revoke(own), Err(TableError::NotRegistered(own)));
    assert_eq!(table.registered(), 1);
}

#[test]
fn registration_checks_its_arguments() {
    let (table, region) = (table(2), region(4096));
    let register = |range, base| table.register(region.clone(), range, TaggedOffset(base), ALL, PD);
    assert!(matches!(register(0..0, 0), Err(TableError::Range { .. })));
    #[expect(clippy::reversed_empty_ranges, reason = "that is what is refused")]
    let backwards = 9..8;
    assert!(matches!(
        register(backwards, 0),
        Err(TableError::Range { .. })
    ));
    assert!(matches!(
        register(1..4097, 0),
        Err(TableError::Range { .. })
    ));
    assert!(matches!(
        register(0..4096, u64::MAX - 4095),
        Err(TableError::OffsetWrap { .. })
    ));
    register(0..4096, u64::MAX - 4096).unwrap();
    register(0..4096, 0).unwrap();
    assert_eq!(register(0..1, 0), Err(TableError::Full(2)));
}

// rfc: 5040-112, 5040-s7 STags are hard to predict, and sparse
#[test]
fn stags_are_unpredictable_and_not_repeated() {
    let region = region(4096);
    let names = |seed: u8, count: usize| -> Vec<u32> {
        let table = StagTable::new(4, [seed; 32]);
        let mut names = Vec::new();
        for _ in 0..count {
            let stag = table
                .register(region.clone(), 0..1, TaggedOffset(0), ALL, PD)
                .unwrap();
            table.revoke(stag).unwrap();
            names.push(stag.0);
        }
        names
    };
    let stags = names(1, 4096);
    assert_eq!(stags, names(1, 4096));
    assert_ne!(stags, names(2, 4096));
    assert!(stags.iter().all(|stag| stag >> 8 != 0));
    // All 32 bits vary, each about half the time.
    for bit in 0..32 {
        let set = stags.iter().filter(|&stag| stag >> bit & 1 == 1).count();
        assert!(
            (1800..2300).contains(&set),
            "bit {bit} is set in {set} of 4096"
        );
    }
    assert!(stags.iter().collect::<HashSet<_>>().len() > 4090);
    // The key of a slot changes at each use.
    let mut last = [None; 4];
    for stag in stags {
        let (slot, key) = ((stag >> 8 & 3) as usize, stag as u8);
        assert_ne!(last[slot].replace(key), Some(key));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    // rfc: 5041-73c, 5041-73d, 5041-73e, 5041-88, 5040-100, 5040-101, 5040-102, 5040-107, 5042-10
    // offset and length lie in the STag's range, and their sum does not wrap
    #[test]
    fn bounds_agree_with_unbounded_arithmetic(
        base in prop_oneof![any::<u64>(), 0..20_000u64, u64::MAX - 20_000..u64::MAX],
        start in 0..4096usize,
        len in 1..4096usize,
        shift in -5000..5000i64,
        far in prop::option::of(any::<u64>()),
        want in prop_oneof![0..5000usize, Just(usize::MAX), any::<usize>()],
    ) {
        let (table, region) = (table(1), region(8192));
        let address = region.base_address() as u128;
        let range = start..start + len;
        let registered = table.register(region, range, TaggedOffset(base), ALL, PD);
        let end = base as u128 + len as u128;
        prop_assert_eq!(registered.is_ok(), end <= u64::MAX as u128);
        let Ok(stag) = registered else { return Ok(()) };

        let (last, any) = ((end - 1) as u64, far.unwrap_or(base.wrapping_add_signed(shift)));
        let edges = [base.wrapping_sub(1), base, base + 1, last, last.wrapping_add(1)];
        let lengths = [0, 1, 2, len - 1, len, len + 1];
        let at_edges = edges.iter().flat_map(|&offset| lengths.map(|want| (offset, want)));
        for (offset, want) in at_edges.chain([(any, want)]) {
            let (first, past) = (offset as u128, offset as u128 + want as u128);
            let found = table.check(stag, TaggedOffset(offset), want, PD.into(), ALL);
            if past > u64::MAX as u128 {
                let wraps = matches!(found, Err(TagError::OffsetWrap { .. }));
                prop_assert!(wraps, "{:?}", found);
            } else if first < base as u128 || past > end {
                let outside = matches!(found, Err(TagError::BaseOrBounds { .. }));
                prop_assert!(outside, "{:?}", found);
            } else {
                let at = address + start as u128 + (first - base as u128);
                prop_assert_eq!(found.map(|to| to.marked().addr() as u128), Ok(at));
            }
        }
    }
}

/// A worker that writes through the STag whenever it is valid, in batches like those of an engine.
fn writer(table: Arc<StagTable>, stag: Stag, stop: Arc<AtomicBool>) -> thread::JoinHandle<u64> {
    thread::spawn(move || {
        let worker = table.worker();
        let mut placed = 0u64;
        while !stop.load(Ordering::Relaxed) {
            let guard = worker.enter();
            for _ in 0..32 {
                let at = TaggedOffset(0);
                if let Ok(placement) = guard.for_placement(stag, at, 4096, PD, Access::REMOTE_WRITE)
                {
                    placed += 1;
                    placement.write(&[placed as u8; 4096]).unwrap();
                }
            }
        }
        placed
    })
}

// rfc: 5040-110, 5041-91, 5042-11 after revocation nothing changes the buffer
#[test]
fn memory_is_still_once_revocation_returned() {
    for _ in 0..20 {
        let (table, region) = (table(64), region(4096));
        let stag = table
            .register(region.clone(), 0..4096, TaggedOffset(0), ALL, PD)
            .unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let workers: Vec<_> = (0..2)
            .map(|_| writer(table.clone(), stag, stop.clone()))
            .collect();
        let start = Instant::now();
        while region.load(0).unwrap() == 0 && start.elapsed() < Duration::from_secs(5) {
            thread::yield_now();
        }
        table.revoke(stag).unwrap();
        region.fill(0, 4096, 0).unwrap();
        // Registering again reuses slots: the old name must not lead to the new registration.
        register_anew(&table, 64);
        thread::sleep(Duration::from_millis(1));
        let mut now = vec![1; 4096];
        region.read(0, &mut now).unwrap();
        assert!(
            now.iter().all(|&octet| octet == 0),
            "written after revocation"
        );
        stop.store(true, Ordering::Relaxed);
        let placed: u64 = workers
            .into_iter()
            .map(|worker| worker.join().unwrap())
            .sum();
        assert!(placed > 0);
    }
}

fn register_anew(table: &StagTable, count: usize) {
    let other = region(4096);
    for _ in 0..count {
        table
            .register(other.clone(), 0..4096, TaggedOffset(0), ALL, PD)
            .unwrap();
    }
}

#[test]
fn revocation_waits_for_a_batch_under_way_and_no_longer() {
    let (table, region) = (table(8), region(4096));
    let stag = table
        .register(region.clone(), 0..8, TaggedOffset(0), ALL, PD)
        .unwrap();
    let worker = table.worker();
    let guard = worker.enter();
    let revoked = Arc::new(AtomicBool::new(false));
    let revoker = thread::spawn({
        let (table, revoked) = (table.clone(), revoked.clone());
        move || {
            table.revoke(stag).unwrap();
            revoked.store(true, Ordering::SeqCst);
        }
    });
    while table.is_valid(stag) {
        thread::yield_now();
    }
    // Inside the batch others still register, and end registrations elsewhere.
    let other = table
        .register(region.clone(), 0..8, TaggedOffset(0), ALL, PD)
        .unwrap();
    assert!(
        guard
            .for_placement(stag, TaggedOffset(0), 8, PD, ALL)
            .is_err()
    );
    thread::sleep(Duration::from_millis(5));
    assert!(!revoked.load(Ordering::SeqCst));
    // The slot is not free yet and its memory is held.
    assert_eq!(Arc::strong_count(&region), 3);
    drop(guard);
    let _next_batch = worker.enter();
    revoker.join().unwrap();
    assert_eq!(Arc::strong_count(&region), 2);
    assert!(table.is_valid(other));
}

#[test]
fn a_thread_that_drives_its_worker_revokes_between_batches() {
    let (table, region) = (table(8), region(4096));
    let stag = table
        .register(region, 0..8, TaggedOffset(0), ALL, PD)
        .unwrap();
    let worker = table.worker();
    let (guard, nested) = (worker.enter(), worker.enter());
    drop(guard);
    // Inside, it would wait for itself.
    assert_eq!(table.revoke(stag), Err(TableError::InsideBatch(stag)));
    assert!(!table.is_valid(stag));
    drop(nested);
    assert_eq!(table.revoke(stag), Ok(()));
    drop(worker.enter());
}

#[test]
fn a_worker_that_is_gone_holds_nobody_up() {
    let (table, region) = (table(8), region(4096));
    let stag = table
        .register(region, 0..8, TaggedOffset(0), ALL, PD)
        .unwrap();
    let worker = table.worker();
    std::mem::forget(worker.enter());
    drop(worker);
    assert_eq!(table.revoke(stag), Ok(()));
}

#[test]
fn memory_that_may_only_be_read_is_registered_without_rights_to_write() {
    let pages = ProgramMemory::map(4096, false);
    pages.take_away(0, TakeAway::MakeReadOnly);
    let region = Arc::new(pages.region(0, 4096, false).unwrap());
    let table = Arc::new(StagTable::new(16, [1; 32]));
    let register = |access| table.register(region.clone(), 0..4096, TaggedOffset(0), access, PD);
    for access in [
        Access::LOCAL_WRITE,
        Access::REMOTE_WRITE,
        Access::REMOTE_ATOMIC | Access::REMOTE_READ,
    ] {
        assert_eq!(register(access), Err(TableError::ReadOnly(access)));
    }
    register(Access::REMOTE_READ | Access::MW_BIND).unwrap();
    let worker = table.worker();
    let fast = table.allocate_fast(region.clone(), PD).unwrap();
    let stag = table.new_key(fast);
    let binding = |access: Access| Binding {
        stag: stag.0,
        length: 4096,
        access: access.0,
        ..Binding::default()
    };
    let guard = worker.enter();
    let register = |access| guard.fast_register(&binding(access), PD, StreamId(1));
    let refused = register(Access::LOCAL_WRITE);
    assert_eq!(refused, Err(BindError::Rights(Access::LOCAL_WRITE.0)));
    register(Access::REMOTE_READ).unwrap();
}
