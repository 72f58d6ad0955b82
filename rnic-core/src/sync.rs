//! What threads share and wait with: std's. Where `ci/test models` builds this, loom's, which runs
//! a model in every order of its threads, with every value that each load may yield.

#[cfg(loom)]
mod model;

#[cfg(loom)]
pub(crate) use self::model::{Mutex, MutexGuard, atomic, hint, thread, thread_local};

#[cfg(not(loom))]
pub(crate) use std::{
    hint,
    sync::{Mutex, MutexGuard, atomic},
    thread, thread_local,
};
