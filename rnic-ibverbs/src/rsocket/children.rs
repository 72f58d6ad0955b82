//! What a forked process has of the lists of rsockets: the numbers of its parent's, which do
//! nothing.

use std::sync::atomic::AtomicBool;

use super::index::renew_index;
use super::keepalive::renew_probed;
use super::reactor::renew_reactor;
use super::repoll::renew_sets;
use crate::process::in_children;

/// Registers that forked processes get new lists.
pub(super) fn register() {
    static NAMED: AtomicBool = AtomicBool::new(false);
    in_children(&NAMED, renew_all);
}

extern "C" fn renew_all() {
    // SAFETY: in a child there is no other thread, and this one was in `fork`.
    unsafe {
        renew_index();
        renew_probed();
        renew_reactor();
        renew_sets();
    }
}
