//! Whether a thread is within a call of this library.
//!
//! librspreload.so replaces the program's `socket` by `rsocket`, and so it does with ours: rnic
//! reserves its TCP ports by sockets of the kernel. Within our own calls `rsocket` refuses, and the
//! preload library turns to the kernel.

use std::cell::Cell;

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// That the thread is inside, until this is dropped.
#[derive(Debug)]
pub(super) struct Inside(());

/// Enters.
pub(super) fn enter() -> Inside {
    let _ = DEPTH.try_with(|depth| depth.set(depth.get() + 1));
    Inside(())
}

/// Returns whether the thread is inside.
pub(super) fn is_inside() -> bool {
    DEPTH.try_with(|depth| depth.get() > 0).unwrap_or(false)
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = DEPTH.try_with(|depth| depth.set(depth.get() - 1));
    }
}
