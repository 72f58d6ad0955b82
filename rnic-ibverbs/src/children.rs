//! What a forked process has of the library's lists: none of the objects there, so that it can make
//! its own.

use std::sync::atomic::AtomicBool;

use crate::adapter::adapters;
use crate::asynchronous::renew_readers;
use crate::context::renew_lists;
use crate::process::in_children;
use crate::registry::{CQS, QPS, SRQS};

/// Registers that forked processes get new lists.
pub(crate) fn register() {
    static NAMED: AtomicBool = AtomicBool::new(false);
    in_children(&NAMED, renew_all);
}

extern "C" fn renew_all() {
    // SAFETY: in a child there is no other thread, and this one was in `fork`.
    unsafe {
        adapters().iter().for_each(|adapter| adapter.renew());
        QPS.renew();
        CQS.renew();
        SRQS.renew();
        renew_lists();
        renew_readers();
    }
}
