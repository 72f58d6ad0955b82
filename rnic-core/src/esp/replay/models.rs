#![cfg(loom)]

use std::sync::Arc;

use loom::thread;

use super::{SMALLEST_WINDOW, Window};

/// Workers receive the same numbers while the window moves: each is new to one of them at most, and
/// the top is the highest.
///
/// Seen to fail: with a slot that is loaded and then stored.
#[test]
fn each_number_is_new_once() {
    // The second takes the slot of the first: there is one slot more than the window has blocks.
    let far = u64::from(SMALLEST_WINDOW) + 16 + 1;
    for numbers in [[1, 2], [1, far], [far, 1]] {
        loom::model(move || {
            let window = Arc::new(Window::new(SMALLEST_WINDOW, true, 0));
            let other = {
                let window = window.clone();
                thread::spawn(move || numbers.map(|number| window.receive(number, false)))
            };
            let here = numbers.map(|number| window.receive(number, false));
            let there = other.join().unwrap();
            for at in 0..2 {
                assert!(!(here[at] && there[at]), "{} came twice", numbers[at]);
            }
            assert!(here.contains(&true) || there.contains(&true));
            assert_eq!(window.top(), numbers[0].max(numbers[1]));
        });
    }
}
