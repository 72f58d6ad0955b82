#![cfg(loom)]

use std::task::Wake;

use loom::sync::atomic::AtomicU32;
use loom::thread;

use super::*;
use crate::memory::ring::ring;

struct Wakes(AtomicU32);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// An application that arms, and polls once more, and then sleeps: what it has not seen wakes it.
fn is_seen_or_wakes(solicited_only: bool) {
    const CQ: CqId = CqId(0);
    loom::model(move || {
        let (producer, mut consumer) = ring(2).unwrap();
        let (arming, wakes) = (Arc::new(Arming::new()), Arc::new(Wakes(AtomicU32::new(0))));
        let mut table = CqTable::new();
        table
            .add(CQ, producer, wakes.clone().into(), arming.clone())
            .unwrap();
        let engine = thread::spawn(move || {
            for n in 0..2 {
                let completion =
                    Completion::new(n, QpNumber(1), WcOpcode::Recv, WcStatus::Success, 0);
                table.complete(CQ, completion, true);
                table.notify_all();
            }
        });
        arming.arm(solicited_only);
        let seen = consumer.pop().is_some();
        engine.join().unwrap();
        let wakes = wakes.0.load(Ordering::Relaxed);
        assert!(seen || wakes > 0, "it sleeps for ever");
        assert!(wakes <= 1, "one arming, one notification");
    });
}

/// Seen to fail: without the fence in `arm`, and without that in `fire`.
#[test]
fn a_completion_is_seen_or_wakes() {
    is_seen_or_wakes(false);
}

#[test]
fn a_solicited_completion_is_seen_or_wakes() {
    is_seen_or_wakes(true);
}
