//! The TCP port of a peer, which resolving a route asks the port mapper of its host for.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::abi::RDMA_CM_EVENT_ROUTE_RESOLVED;
use crate::cm::event::EventData;
use crate::cm::id::{Id, Phase};
use crate::cm::mapping::{self, Use};
use crate::errno::Errno;

/// Tells an id which TCP port its peer has, when it is dropped at last: that of the program, unless a
/// port mapper said otherwise.
struct Resolving {
    id: Arc<Id>,
    remote: SocketAddr,
}

impl Resolving {
    /// Tells the TCP port that a port mapper has said.
    fn say(mut self, remote: SocketAddr) {
        self.remote = remote;
    }
}

impl Drop for Resolving {
    fn drop(&mut self) {
        let mut state = self.id.state();
        if state.phase == Phase::ResolvingRoute {
            state.phase = Phase::RouteResolved;
            state.remote = Some(self.remote);
            self.id
                .tell_in(&state, EventData::new(RDMA_CM_EVENT_ROUTE_RESOLVED, 0));
        }
    }
}

/// Resolves the route of an id, now or in about a second at most.
pub(super) fn find(id: &Arc<Id>) -> Result<(), Errno> {
    let (adapter, local, remote) = {
        let state = id.state();
        let adapter = state.adapter.ok_or(Errno::EINVAL)?;
        (adapter, state.local, state.remote.ok_or(Errno::EINVAL)?)
    };
    let resolving = Resolving {
        id: id.clone(),
        remote,
    };
    // Without a device connecting says what is wrong.
    if let Ok(device) = adapter.device()
        && mapping::choice() != Use::Never
    {
        device.find_listener(remote, local, |remote| resolving.say(remote));
    }
    Ok(())
}
