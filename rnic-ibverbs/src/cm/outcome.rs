//! What becomes of connections: the events of queue pairs as programs know them.

use std::sync::Arc;

use rnic_verbs::{ConnectionEvent, EndReason};

use crate::abi::*;
use crate::cm::event::What;
use crate::cm::id::{Id, Phase};
use crate::errno::Errno;

/// Tells an id of an event of its queue pair.
pub(super) fn tell(id: &Arc<Id>, event: ConnectionEvent) {
    let mut state = id.state();
    let what = match event {
        ConnectionEvent::Established(established) => {
            state.phase = Phase::Connected;
            state.local = Some(established.local);
            What {
                private_data: established.private_data,
                initiator_depth: established.ord,
                responder_resources: established.ird,
                ..What::new(RDMA_CM_EVENT_ESTABLISHED, 0)
            }
        }
        ConnectionEvent::Rejected {
            private_data,
            peer_depths: _,
        } => {
            state.phase = Phase::Over;
            What {
                private_data,
                ..What::new(RDMA_CM_EVENT_REJECTED, -(Errno::ECONNRESET as i32))
            }
        }
        ConnectionEvent::Failed(reason) => {
            state.phase = Phase::Over;
            let (event, errno) = failure(&reason);
            // Nobody rejects who has accepted.
            let event = if state.is_passive {
                RDMA_CM_EVENT_CONNECT_ERROR
            } else {
                event
            };
            What::new(event, -(errno as i32))
        }
        ConnectionEvent::Disconnected(_) if state.phase == Phase::Connected => {
            state.phase = Phase::Over;
            What::new(RDMA_CM_EVENT_DISCONNECTED, 0)
        }
        // The program has failed the queue pair before it was connected.
        ConnectionEvent::Disconnected(_) => {
            state.phase = Phase::Over;
            What::new(RDMA_CM_EVENT_CONNECT_ERROR, -(Errno::ECONNABORTED as i32))
        }
    };
    id.tell_in(&state, what);
    drop(state);
    id.notify_over();
}

/// Returns how the kernel would report that connecting has failed.
fn failure(reason: &EndReason) -> (u32, Errno) {
    match reason {
        EndReason::Refused => (RDMA_CM_EVENT_REJECTED, Errno::ECONNREFUSED),
        EndReason::Reset | EndReason::Peer | EndReason::CutOff => {
            (RDMA_CM_EVENT_REJECTED, Errno::ECONNRESET)
        }
        EndReason::TimedOut => (RDMA_CM_EVENT_UNREACHABLE, Errno::ETIMEDOUT),
        EndReason::Unreachable => (RDMA_CM_EVENT_UNREACHABLE, Errno::EHOSTUNREACH),
        EndReason::Startup(_) => (RDMA_CM_EVENT_CONNECT_ERROR, Errno::EPROTO),
        EndReason::InUse => (RDMA_CM_EVENT_CONNECT_ERROR, Errno::EADDRINUSE),
        EndReason::DeviceGone | EndReason::Revoked { .. } => {
            (RDMA_CM_EVENT_CONNECT_ERROR, Errno::ENODEV)
        }
        EndReason::QpNotIdle => (RDMA_CM_EVENT_CONNECT_ERROR, Errno::EINVAL),
        EndReason::Local
        | EndReason::TerminateSent { .. }
        | EndReason::TerminateReceived { .. } => (RDMA_CM_EVENT_CONNECT_ERROR, Errno::ECONNABORTED),
    }
}

/// Tells an id that its queue pair was destroyed. What the engine would still report does not come any more.
pub(super) fn tell_destroyed(id: &Arc<Id>) {
    let mut state = id.state();
    state.connection = None;
    let event = match state.phase {
        Phase::Connected => What::new(RDMA_CM_EVENT_DISCONNECTED, 0),
        Phase::Connecting => What::new(RDMA_CM_EVENT_CONNECT_ERROR, -(Errno::ECONNABORTED as i32)),
        _ => return,
    };
    state.phase = Phase::Over;
    id.tell_in(&state, event);
}
