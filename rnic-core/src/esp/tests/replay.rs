//! The replay window against a model that remembers everything.

use std::collections::BTreeSet;

use proptest::prelude::*;

use crate::esp::{LARGEST_WINDOW, Window};

/// All numbers that were received.
struct Model {
    received: BTreeSet<u64>,
    size: u64,
}

impl Model {
    fn top(&self) -> u64 {
        self.received.last().copied().unwrap_or(0)
    }

    fn is_new(&self, number: u64) -> bool {
        number > 0 && number + self.size > self.top() && !self.received.contains(&number)
    }
}

proptest! {
    #[test]
    fn each_number_is_received_once(
        size in 1u32..5000,
        begin in prop_oneof![Just(0u64), 1u64..1 << 40],
        alone in prop::bool::ANY,
        steps in prop::collection::vec((-6000i64..6000, prop::bool::ANY), 1..400),
    ) {
        let window = Window::new(size, true, begin);
        let mut model = Model {
            received: (0..=begin).rev().take(5000).collect(),
            size: window.size().into(),
        };
        for (step, small) in steps {
            let step = if small { step / 100 } else { step };
            let number = model.top().saturating_add_signed(step);
            prop_assert_eq!(window.is_new(number), model.is_new(number), "{}", number);
            let is_new = model.is_new(number);
            prop_assert_eq!(window.receive(number, alone), is_new, "{}", number);
            if is_new {
                model.received.insert(number);
            }
            prop_assert!(!window.receive(number, alone));
            prop_assert_eq!(window.top(), model.top());
        }
    }

    #[test]
    fn the_whole_number_is_found_by_its_lower_half(
        top in prop_oneof![1u64..1 << 34, (1u64 << 32) - 3000..(1 << 32) + 3000],
        ahead in -1000i64..1 << 31,
    ) {
        let window = Window::new(1024, true, top);
        let number = top.saturating_add_signed(ahead).max(1);
        prop_assert_eq!(window.whole(number as u32), Some(number));
    }
}

#[test]
fn windows_have_bounds() {
    for (wanted, size) in [
        (0, 64),
        (1, 64),
        (65, 128),
        (1024, 1024),
        (u32::MAX, LARGEST_WINDOW),
    ] {
        assert_eq!(Window::new(wanted, false, 0).size(), size);
    }
}

#[test]
fn a_number_from_below_the_first_or_above_the_last_is_none() {
    let window = Window::new(64, true, 5);
    assert_eq!(window.whole(u32::MAX), None);
    assert!(!window.is_new(0));
    let end = Window::new(64, true, u64::MAX - 10);
    assert_eq!(end.whole(3), None);
    assert_eq!(end.whole(u32::MAX), Some(u64::MAX));
    // Without ESN a number is what is sent, and never wraps.
    let plain = Window::new(64, false, u32::MAX.into());
    assert_eq!(plain.whole(3), Some(3));
    assert!(!plain.is_new(3));
}

#[test]
fn what_was_received_before_a_restart_is_never_new() {
    for top in [1, 63, 64, 65, 1 << 32, 12_345_678] {
        let window = Window::new(256, true, top);
        assert!(
            (0..=top)
                .rev()
                .take(600)
                .all(|number| !window.is_new(number))
        );
        assert!((1..600).all(|ahead| window.is_new(top + ahead)));
        assert!(window.receive(top + 200, false));
        assert!((1..200).all(|ahead| window.is_new(top + ahead)));
        assert!(!window.is_new(top) && !window.is_new(top + 200));
    }
}
