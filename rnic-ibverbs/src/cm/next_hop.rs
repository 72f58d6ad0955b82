//! Whether the next hop on the way to a peer answers, which resolving an address waits for.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::adapter::{Adapter, adapters};
use crate::cm::event::EventData;
use crate::cm::id::{Id, Phase};
use crate::dispatch::spawn;
use crate::errno::Errno;

use crate::abi::{RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_ADDR_RESOLVED};

/// How long the engine may take to say what it knows.
const PROMPT: Duration = Duration::from_millis(100);
/// How long to wait before the engine is asked again, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Returns whether the next hop on the way to a peer is known. This host itself needs none.
fn is_known(adapter: &'static Adapter, local: IpAddr, peer: IpAddr) -> Result<bool, Errno> {
    let is_own = |adapter: &Adapter| adapter.addresses().contains(&peer);
    if adapters().iter().any(is_own) {
        return Ok(true);
    }
    let device = adapter.device()?;
    device
        .resolves(local, peer, PROMPT)
        .map_err(|_| Errno::ENODEV)
}

/// Tells an id, now or within this time, that the way to its peer is known or is not.
pub(super) fn find(
    id: &Arc<Id>,
    adapter: &'static Adapter,
    (local, peer): (IpAddr, IpAddr),
    most: Duration,
) -> Result<(), Errno> {
    if is_known(adapter, local, peer)? {
        tell(id, Ok(()));
        return Ok(());
    }
    let until = Instant::now() + most;
    let id = id.clone();
    spawn("rnic-resolve", move || {
        let mut pause = FIRST_PAUSE;
        while id.state().phase == Phase::Resolving {
            std::thread::sleep(pause);
            pause = LONGEST_PAUSE.min(2 * pause);
            match is_known(adapter, local, peer) {
                Ok(false) if Instant::now() < until => {}
                Ok(false) => tell(&id, Err(Errno::ETIMEDOUT)),
                known => tell(&id, known.map(drop)),
            }
        }
    })
}

/// Tells an id that resolves an address what has come of it.
fn tell(id: &Arc<Id>, outcome: Result<(), Errno>) {
    let mut state = id.state();
    if state.phase != Phase::Resolving {
        return;
    }
    let what = match outcome {
        Ok(()) => {
            state.phase = Phase::AddressResolved;
            EventData::new(RDMA_CM_EVENT_ADDR_RESOLVED, 0)
        }
        Err(errno) => {
            state.phase = Phase::Bound;
            EventData::new(RDMA_CM_EVENT_ADDR_ERROR, -(errno as i32))
        }
    };
    id.tell_in(&state, what);
}
