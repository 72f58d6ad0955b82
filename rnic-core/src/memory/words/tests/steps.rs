//! What each store changes, seen step by step. This processor can be run so from within a process.

use super::{PAGE, Region, placing, regions};
use crate::memory::stores::{assert_whole_words, stores_to};

/// Octets, none of which is 0.
fn octets(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n % 255 + 1) as u8).collect()
}

/// Every length at every alignment: words are stored whole, in the order of their addresses, each
/// once, and the last one alone.
#[test]
#[ignore = "slow: ci/test runs it"]
fn pieces_are_stored_in_whole_words_and_the_last_one_last() {
    let lengths: Vec<usize> = (1..=40)
        .chain([63, 64, 65, 127, 200, 255, 256, 257])
        .collect();
    let lengths = || lengths.iter().copied().chain([300, 390, 1428, 1431]);
    for region in regions(PAGE) {
        placing(&region, |place| {
            for (len, offset) in lengths().flat_map(|len| (0..8).map(move |offset| (len, offset))) {
                check(&region, len, 56 + offset, |at, octets| place(at, octets));
            }
        });
        // The application's own.
        for (len, offset) in [(2, 2), (4, 4), (8, 8), (13, 3), (1000, 1)] {
            check(&region, len, offset, |at, octets| {
                region.write(at, octets).unwrap();
            });
        }
    }
}

fn check(region: &Region, len: usize, offset: usize, store: impl FnOnce(usize, &[u8])) {
    let data = octets(len);
    let (stores, seen) = stores_to(region, offset + len + 64, || store(offset, &data));
    let what = format!("{len} octets at {offset} of {region:?}: {stores:?}");
    assert_eq!(seen[offset..][..len], data, "{what}");
    let piece = offset..offset + len;
    assert_whole_words(&stores, std::slice::from_ref(&piece), &what);
}
