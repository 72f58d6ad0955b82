//! The end of the process: peers are told that their connections are over, as the kernel tells them
//! where it has the connections.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::unistd::{Pid, gettid};
use rnic_verbs::QpState;

use crate::adapter::adapters;
use crate::datagrams;
use crate::registry::QPS;
use crate::system;

/// How long the end of a process waits for its last segments to go out.
const LONGEST: Duration = Duration::from_millis(500);

/// How long it waits in all until the peers of queue pairs that keep to RC, and were destroyed or
/// failed, have the FIN, and how often it looks. The FIN acknowledges what was received, and nobody
/// sends it again once the process is gone: a peer would take its last request for failed.
const LONGEST_LEAVING: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(1);

/// What rnic does at exit takes less than this.
pub(crate) const LONGEST_SECONDS: u32 = 4;

/// The thread that ends the process.
static ENDING: OnceLock<Pid> = OnceLock::new();

/// Returns whether another thread ends the process, or has.
pub(crate) fn has_begun() -> bool {
    ENDING.get().is_some_and(|&thread| thread != gettid())
}

/// Registers that connections are ended when the process exits.
pub(crate) fn register() {
    static REGISTERED: AtomicU32 = AtomicU32::new(0);
    let process = std::process::id();
    // A child has what its parent registered.
    if REGISTERED.swap(process, Ordering::AcqRel) == 0 {
        system::at_exit(at_exit);
    }
}

/// Other threads may still run, and hold what they like: nothing is waited for but the engine.
extern "C" fn at_exit() {
    ENDING.get_or_init(gettid);
    let began = Instant::now();
    let until = began + LONGEST;
    let devices: Vec<_> = adapters().iter().filter_map(|a| a.opened()).collect();
    if devices.is_empty() {
        return;
    }
    QPS.each(|qp| {
        let Some(mut inner) = qp.try_lock() else {
            return;
        };
        if matches!(inner.state(), QpState::Connecting | QpState::Rts) {
            // Fails only where there is no engine any more.
            let _ = inner.fail();
        }
    });
    while Instant::now() < until && adapters().iter().any(datagrams::are_busy) {
        for device in &devices {
            let _ = device.barrier(Duration::from_millis(1));
        }
    }
    adapters().iter().for_each(datagrams::leave);
    let closing = || {
        let mut closing = false;
        QPS.each(|qp| {
            let state = qp.try_lock().map(|inner| inner.state());
            closing |= state.is_some_and(|state| !state.is_over() && state != QpState::Init);
        });
        closing
    };
    for device in &devices {
        let answers = loop {
            // An engine that answers has carried out what it was told before.
            let left = until.saturating_duration_since(Instant::now());
            let answered = device.barrier(left.max(LOOK));
            let answers = matches!(answered, Ok(true));
            if !answers || left.is_zero() || !closing() {
                break answers;
            }
        };
        // The kernel goes on by itself where the connections are its sockets.
        if answers && device.kernel().is_none() {
            let is_leaving = || matches!(device.is_leaving(LONGEST), Ok(true));
            while Instant::now() < began + LONGEST_LEAVING && is_leaving() {
                std::thread::sleep(LOOK);
            }
        }
    }
}
