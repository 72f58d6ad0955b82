//! SO_KEEPALIVE: connections that their application wants to be probed.

use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use super::endpoint::{Octets, Work};
use super::layout::Sge;
use super::reactor::Reactor;
use super::socket::{Phase, Socket};
use crate::errno::{Errno, lock};

/// What Linux has by default.
const DEFAULT_IDLE: u32 = 7200;

#[derive(Debug)]
struct Probed {
    socket: Weak<Socket>,
    idle: Duration,
    next: Instant,
}

static PROBED: Mutex<Vec<Probed>> = Mutex::new(Vec::new());

/// Returns the lock of the connections, which a child makes new.
pub(super) fn renewed() -> &'static Mutex<impl Default> {
    &PROBED
}

/// Returns the time after which the kernel probes its own connections.
pub(super) fn system_idle() -> u32 {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_keepalive_time").ok();
    text.and_then(|text| text.trim().parse().ok())
        .unwrap_or(DEFAULT_IDLE)
}

/// Probes a connection every `idle` seconds from now on. `None` ends that.
pub(super) fn set(socket: &Arc<Socket>, idle: Option<u32>) -> Result<(), Errno> {
    let reactor = Reactor::get()?;
    let mut probed = lock(&PROBED);
    probed.retain(|other| !std::ptr::eq(other.socket.as_ptr(), Arc::as_ptr(socket)));
    if let Some(idle) = idle {
        let idle = Duration::from_secs(idle.into());
        probed.push(Probed {
            socket: Arc::downgrade(socket),
            idle,
            next: Instant::now() + idle,
        });
        reactor.ring();
    }
    Ok(())
}

/// Probes those whose time has come, and returns how long it is until the next.
pub(super) fn run() -> Option<Duration> {
    let now = Instant::now();
    let mut due = Vec::new();
    let mut probed = lock(&PROBED);
    probed.retain_mut(|one| {
        let Some(socket) = one.socket.upgrade() else {
            return false;
        };
        if one.next <= now {
            one.next = now + one.idle;
            due.push(socket);
        }
        true
    });
    let next = probed.iter().map(|one| one.next).min();
    drop(probed);
    due.iter().for_each(|socket| socket.probe());
    next.map(|next| next.saturating_duration_since(now))
}

impl Socket {
    /// Sends a Write of nothing: TCP finds out whether the peer is there.
    fn probe(&self) {
        let Some(endpoint) = self.endpoint.get() else {
            return;
        };
        let mut flow = lock(&self.flow);
        if flow.phase == Phase::Connected && flow.outgoing.send_controls(1) {
            let nowhere = Sge {
                length: 0,
                ..flow.peer.target(0)
            };
            if endpoint
                .post_write(Octets::Inline(&[]), Work::Control, nowhere)
                .is_err()
            {
                flow.lose();
            }
        }
    }
}
