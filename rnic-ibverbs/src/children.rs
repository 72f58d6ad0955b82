//! What a forked process has of the library's lists: none of the objects there, so that it can make
//! its own.
#![allow(unsafe_code, reason = "a handler of fork")]

use std::sync::atomic::AtomicBool;

use crate::adapter::adapters;
use crate::process::{in_children, renew};
use crate::registry::{CQS, QPS, SRQS};
use crate::{asynchronous, connections, context, datagrams, rendezvous};

/// Registers that forked processes get new lists.
pub(crate) fn register() {
    static NAMED: AtomicBool = AtomicBool::new(false);
    in_children(&NAMED, renew_all);
}

extern "C" fn renew_all() {
    // SAFETY: in a child there is no other thread, and this one was in `fork`.
    unsafe {
        for adapter in adapters() {
            let (device, handlers) = adapter.renewed();
            renew(device);
            renew(handlers);
            renew(adapter.numbers.renewed());
            adapter.numbers.forget_all();
        }
        renew(QPS.renewed());
        renew(CQS.renewed());
        renew(SRQS.renewed());
        for list in context::renewed() {
            renew(list);
        }
        renew(asynchronous::renewed());
        let (readers, takers) = connections::renewed();
        renew(readers);
        renew(takers);
        renew(rendezvous::renewed());
        renew(datagrams::renewed());
    }
}
