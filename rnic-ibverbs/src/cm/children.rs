//! What a forked process has of the lists of rdma_cm: nothing.
#![allow(unsafe_code, reason = "a handler of fork")]

use std::sync::atomic::AtomicBool;

use crate::cm::{claims, table, verbs};
use crate::process::{in_children, renew};

/// Registers that forked processes get new lists.
pub(super) fn register() {
    static NAMED: AtomicBool = AtomicBool::new(false);
    in_children(&NAMED, renew_all);
}

extern "C" fn renew_all() {
    // SAFETY: in a child there is no other thread, and this one was in `fork`.
    unsafe {
        renew(claims::renewed());
        renew(table::renewed());
        renew(verbs::renewed());
    }
}
