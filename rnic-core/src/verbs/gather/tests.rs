use std::sync::Arc;

use proptest::prelude::*;

use crate::ids::PdId;
use crate::memory::{
    region::{HugePages, Region},
    table::StagTable,
};
use crate::wire::ddp::Stag;

use super::*;

const PD: PdId = PdId(1);
const BASE: u64 = 0x7000_0000;
const LEN: usize = 4096;

struct Setup {
    region: Arc<Region>,
    table: Arc<StagTable>,
    stag: Stag,
}

fn setup(access: Access) -> Setup {
    let region = Arc::new(Region::allocate_unlocked(LEN, HugePages::None).unwrap());
    let table = Arc::new(StagTable::new(4, [9; 32]));
    let stag = table
        .register(region.clone(), 0..LEN, TaggedOffset(BASE), access, PD)
        .unwrap();
    Setup {
        region,
        table,
        stag,
    }
}

fn octets(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 + n / 256 + 1) as u8).collect()
}

/// Lists of pieces that do not overlap, as (offset in the region, length).
fn lists() -> impl Strategy<Value = Vec<(usize, usize)>> {
    prop::collection::vec(0..=LEN / 4, 0..=4).prop_map(|lengths| {
        lengths
            .into_iter()
            .enumerate()
            .map(|(n, len)| (n * LEN / 4, len))
            .collect()
    })
}

proptest! {
    #[test]
    fn both_ways_agree_with_one_flat_copy(
        list in lists(),
        reverse in any::<bool>(),
        from in 0..5000usize,
        len in 0..5000usize,
    ) {
        let s = setup(Access::LOCAL_WRITE);
        let memory = octets(LEN);
        s.region.write(0, &memory).unwrap();
        let mut list = list;
        if reverse {
            list.reverse();
        }
        let sge = |&(at, len): &(usize, usize)| {
            Sge { offset: BASE + at as u64, length: len as u32, lkey: s.stag.0 }
        };
        let sges: Vec<Sge> = list.iter().map(sge).collect();
        // Where each octet of the message is in the region.
        let places: Vec<usize> = list.iter().flat_map(|&(at, len)| at..at + len).collect();
        prop_assert_eq!(total_length(&sges), places.len() as u64);

        let worker = s.table.worker();
        let guard = worker.enter();
        let mut out = vec![0; len];
        let fits = from + len <= places.len();
        prop_assert_eq!(gather(&guard, PD, &sges, from as u64, &mut out).is_ok(), fits);
        let new = octets(len).into_iter().map(|octet| !octet).collect::<Vec<u8>>();
        let scattered = scatter(&guard, PD, &sges, from as u64, &new);
        let mut after = vec![0; LEN];
        s.region.read(0, &mut after).unwrap();
        if !fits {
            let room = places.len() as u64;
            prop_assert_eq!(scattered, Err(ScatterError::TooLong { end: (from + len) as u64, room }));
            prop_assert!(after == memory);
            return Ok(());
        }
        prop_assert_eq!(scattered, Ok(()));
        let mut expected = memory.clone();
        for (n, &place) in places[from..from + len].iter().enumerate() {
            prop_assert_eq!(out[n], memory[place]);
            expected[place] = new[n];
        }
        prop_assert!(after == expected);
    }
}

#[test]
fn nothing_is_scattered_unless_all_of_it_may_be() {
    let s = setup(Access::LOCAL_WRITE);
    let good = Sge {
        offset: BASE,
        length: 8,
        lkey: s.stag.0,
    };
    let worker = s.table.worker();
    let guard = worker.enter();
    for bad in [
        Sge {
            lkey: s.stag.0 ^ 0x10,
            ..good
        },
        Sge {
            offset: BASE + LEN as u64 - 7,
            ..good
        },
        Sge {
            offset: BASE - 1,
            ..good
        },
        Sge {
            offset: u64::MAX - 3,
            ..good
        },
    ] {
        let result = scatter(&guard, PD, &[good, bad], 0, &[1; 16]);
        assert!(matches!(result, Err(ScatterError::Tag(_))), "{bad:?}");
        assert!(gather(&guard, PD, &[good, bad], 0, &mut [0; 16]).is_err());
    }
    let mut after = [9; 8];
    s.region.read(0, &mut after).unwrap();
    assert_eq!(after, [0; 8]);
    assert!(matches!(
        scatter(&guard, PdId(2), &[good], 0, &[1]),
        Err(ScatterError::Tag(_))
    ));
}

#[test]
fn an_offset_that_wraps_is_not_taken_for_the_last_one() {
    let s = setup(Access::LOCAL_WRITE);
    let top = s
        .table
        .register(
            s.region.clone(),
            0..8,
            TaggedOffset(u64::MAX - 8),
            Access::LOCAL_WRITE,
            PD,
        )
        .unwrap();
    let worker = s.table.worker();
    let guard = worker.enter();
    let sge = Sge {
        offset: u64::MAX - 8,
        length: 20,
        lkey: top.0,
    };
    assert_eq!(scatter(&guard, PD, &[sge], 0, &[1; 8]), Ok(()));
    for at in 7..20 {
        assert_eq!(
            scatter(&guard, PD, &[sge], at, &[1]).is_ok(),
            at == 7,
            "octet {at}"
        );
    }
}

#[test]
fn receiving_needs_the_right_to_write_locally() {
    let s = setup(Access::REMOTE_WRITE);
    let sge = Sge {
        offset: BASE,
        length: 8,
        lkey: s.stag.0,
    };
    let worker = s.table.worker();
    let guard = worker.enter();
    assert!(matches!(
        scatter(&guard, PD, &[sge], 0, &[1; 8]),
        Err(ScatterError::Tag(TagError::AccessViolation { .. }))
    ));
    assert_eq!(gather(&guard, PD, &[sge], 0, &mut [0; 8]), Ok(()));
}

#[test]
fn nothing_needs_no_list() {
    let s = setup(Access::LOCAL_READ);
    let worker = s.table.worker();
    let guard = worker.enter();
    assert_eq!(gather(&guard, PD, &[], 0, &mut []), Ok(()));
    assert_eq!(scatter(&guard, PD, &[], 0, &[]), Ok(()));
    assert!(gather(&guard, PD, &[], 0, &mut [0]).is_err());
    assert!(gather(&guard, PD, &[], u64::MAX, &mut [0]).is_err());
}
