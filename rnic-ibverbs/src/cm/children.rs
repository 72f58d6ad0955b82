//! What a forked process has of the lists of rdma_cm: nothing.

use std::sync::atomic::AtomicBool;

use crate::cm::claims::renew_claims;
use crate::cm::table::renew_tables;
use crate::cm::verbs::renew_domains;
use crate::process::in_children;

/// Registers that forked processes get new lists.
pub(super) fn register() {
    static NAMED: AtomicBool = AtomicBool::new(false);
    in_children(&NAMED, renew_all);
}

extern "C" fn renew_all() {
    // SAFETY: in a child there is no other thread, and this one was in `fork`.
    unsafe {
        renew_claims();
        renew_tables();
        renew_domains();
    }
}
