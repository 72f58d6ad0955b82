//! No number comes twice, whatever blocks are handed in.

use proptest::prelude::*;

use crate::esp::{BLOCK, Numbers};

#[test]
fn a_block_is_asked_for_once_in_time() {
    let numbers = Numbers::default();
    assert!(numbers.is_low() && !numbers.is_low());
    assert_eq!(numbers.take(false), None);
    assert!(numbers.add(1..BLOCK + 1));
    let mut asked_after = None;
    for taken in 1..=BLOCK {
        assert_eq!(numbers.take(false), Some(taken));
        if numbers.is_low() {
            assert_eq!(asked_after.replace(taken), None);
        }
    }
    assert_eq!(asked_after, Some(BLOCK / 2));
    assert_eq!(numbers.take(false), None);
    // The request came to nothing, and the next one comes to a block further on.
    assert!(!numbers.add(0..0));
    assert!(numbers.is_low());
    assert!(numbers.add(7 * BLOCK..7 * BLOCK + 2));
    assert_eq!(
        [numbers.take(false), numbers.take(false)],
        [7 * BLOCK, 7 * BLOCK + 1].map(Some)
    );
    assert_eq!((numbers.take(false), numbers.last()), (None, 7 * BLOCK + 1));
}

proptest! {
    #[test]
    fn none_comes_twice(alone in prop::bool::ANY, steps in prop::collection::vec((0u64..60, 0u64..12, 0usize..12), 1..60)) {
        let numbers = Numbers::default();
        let mut last = 0;
        for (start, len, take) in steps {
            numbers.add(start..start + len);
            for number in (0..take).map_while(|_| numbers.take(alone)) {
                prop_assert!(number > last);
                last = number;
            }
        }
    }
}
