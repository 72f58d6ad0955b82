//! What a forked process has of the lists of rsockets: the numbers of its parent's, which do
//! nothing.
#![allow(unsafe_code, reason = "a handler of fork")]

use std::sync::atomic::AtomicBool;

use super::{index, keepalive, reactor, repoll};
use crate::process::{in_children, renew, renew_shared};

/// Registers that forked processes get new lists.
pub(super) fn register() {
    static NAMED: AtomicBool = AtomicBool::new(false);
    in_children(&NAMED, renew_all);
}

extern "C" fn renew_all() {
    // SAFETY: in a child there is no other thread, and this one was in `fork`.
    unsafe {
        renew_shared(index::renewed());
        renew(keepalive::renewed());
        renew(reactor::renewed());
        renew_shared(repoll::renewed());
    }
}
