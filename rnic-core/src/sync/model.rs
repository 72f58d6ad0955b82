//! What shipping code uses of `std`, by loom's types where loom has them.

pub(crate) use loom::{
    hint,
    sync::{Mutex, MutexGuard},
};

macro_rules! local {
    ($(#[$attribute:meta])* static $name:ident: $type:ty = const { $value:expr };) => {
        loom::thread_local! {
            $(#[$attribute])* static $name: $type = $value;
        }
    };
}
pub(crate) use local as thread_local;

pub(crate) mod thread {
    //! Threads.

    use std::time::Duration;

    pub(crate) use loom::thread::yield_now;

    /// Lets the others go on: time does not pass.
    pub(crate) fn sleep(_: Duration) {
        yield_now();
    }
}

pub(crate) mod atomic {
    //! loom takes an access that is sequentially consistent for one that acquires and releases, and
    //! knows such fences alone. So here one stands between such a store and the next such load of
    //! the same thread, and nowhere else. That is what the accesses promise: code that has a weaker
    //! load behind the store, or a weaker store in front of the load, needs a fence of its own.

    use std::cell::Cell;
    use std::ops::Deref;

    pub(crate) use std::sync::atomic::compiler_fence;

    pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence};

    loom::thread_local! {
        /// Whether a store was sequentially consistent, and no such load has come since.
        static STORED: Cell<bool> = Cell::new(false);
    }

    fn before_load(order: Ordering) {
        if order == Ordering::SeqCst && STORED.with(|stored| stored.replace(false)) {
            fence(Ordering::SeqCst);
        }
    }

    fn after_store(order: Ordering) {
        if order == Ordering::SeqCst {
            STORED.with(|stored| stored.set(true));
        }
    }

    macro_rules! atomic {
        ($name:ident, $value:ty, $($change:ident),*) => {
            /// An atomic with accesses that are sequentially consistent.
            #[derive(Debug, Default)]
            pub(crate) struct $name(loom::sync::atomic::$name);

            #[allow(dead_code, reason = "not each type is used in every way")]
            impl $name {
                pub(crate) fn new(value: $value) -> Self {
                    Self(loom::sync::atomic::$name::new(value))
                }

                pub(crate) fn load(&self, order: Ordering) -> $value {
                    before_load(order);
                    self.0.load(order)
                }

                pub(crate) fn store(&self, value: $value, order: Ordering) {
                    if order == Ordering::SeqCst {
                        // loom would let it come before a change by another thread that was made
                        // without it.
                        self.0.swap(value, Ordering::Release);
                        after_store(order);
                    } else {
                        self.0.store(value, order);
                    }
                }

                $(pub(crate) fn $change(&self, value: $value, order: Ordering) -> $value {
                    before_load(order);
                    let before = self.0.$change(value, order);
                    after_store(order);
                    before
                })*

                pub(crate) fn fetch_update(
                    &self,
                    set: Ordering,
                    fetch: Ordering,
                    update: impl FnMut($value) -> Option<$value>,
                ) -> Result<$value, $value> {
                    before_load(fetch);
                    let outcome = self.0.fetch_update(set, fetch, update);
                    if outcome.is_ok() {
                        after_store(set);
                    }
                    outcome
                }
            }

            /// What is never sequentially consistent.
            impl Deref for $name {
                type Target = loom::sync::atomic::$name;

                fn deref(&self) -> &Self::Target {
                    &self.0
                }
            }
        };
    }

    atomic!(AtomicBool, bool, swap, fetch_or);
    atomic!(AtomicU8, u8, swap, fetch_or, fetch_max);
    atomic!(AtomicU64, u64, swap, fetch_or, fetch_max);
}
