//! What becomes of connections: the events of queue pairs as programs know them.

use std::sync::Arc;

use rnic_verbs::{ConnectionEvent, EndReason, QpNumber, ReadDepths};

use crate::abi::*;
use crate::cm::attempt::{Attempt, PAUSE};
use crate::cm::event::EventData;
use crate::cm::id::{Id, Phase};
use crate::cm::mapping;
use crate::cm::sidr::{self, Answer, Peer};
use crate::cm::verbs;
use crate::dispatch::spawn;
use crate::errno::Errno;

/// Tells an id of an event of its queue pair.
pub(super) fn tell(id: &Arc<Id>, event: ConnectionEvent) {
    if let ConnectionEvent::Failed(reason) = &event
        && tries_again(id, reason)
    {
        return;
    }
    if id.qp_type == IBV_QPT_UD {
        return tell_asker(id, &event);
    }
    let mut state = id.state();
    state.attempt = None;
    // One event says how it ended. What follows comes of the queue pair, which the program or
    // rdma_cm has failed since.
    if !matches!(state.phase, Phase::Connecting | Phase::Connected) {
        return;
    }
    let what = match event {
        ConnectionEvent::Established(established) => {
            state.phase = Phase::Connected;
            state.local = Some(established.local);
            // rfc: 6581-14 the peer's depths, where it states them
            let agreed = (established.ird, established.ord);
            let (ird, ord) = stated(established.peer_depths).unwrap_or((agreed.1, agreed.0));
            EventData {
                private_data: established.private_data,
                initiator_depth: ird,
                responder_resources: ord,
                ..EventData::new(RDMA_CM_EVENT_ESTABLISHED, 0)
            }
        }
        ConnectionEvent::Rejected {
            private_data,
            peer_depths,
        } => {
            state.phase = Phase::Over;
            // rfc: 6581-20 of a rejection too
            let (ird, ord) = stated(peer_depths).unwrap_or_default();
            EventData {
                private_data,
                initiator_depth: ird,
                responder_resources: ord,
                ..EventData::new(RDMA_CM_EVENT_REJECTED, -(Errno::ECONNRESET as i32))
            }
        }
        ConnectionEvent::Failed(reason) => {
            state.phase = Phase::Over;
            let (event, errno) = failure(&reason);
            if let Some(remote) = state.remote.filter(|_| !state.is_passive) {
                mapping::say_refused(remote, &reason);
            }
            // Nobody rejects who has accepted.
            let event = if state.is_passive {
                RDMA_CM_EVENT_CONNECT_ERROR
            } else {
                event
            };
            EventData::new(event, -(errno as i32))
        }
        ConnectionEvent::Disconnected(_) if state.phase == Phase::Connected => {
            state.phase = Phase::Over;
            EventData::new(RDMA_CM_EVENT_DISCONNECTED, 0)
        }
        // The program has failed the queue pair before it was connected.
        ConnectionEvent::Disconnected(_) => {
            state.phase = Phase::Over;
            EventData::new(RDMA_CM_EVENT_CONNECT_ERROR, -(Errno::ECONNABORTED as i32))
        }
        // rdma_cm asks for no connection with the semantics of RC.
        ConnectionEvent::PeerLeft(_) => return,
    };
    id.tell_in(&state, what);
    drop(state);
    id.notify_over();
}

/// Returns the IRD and ORD that a peer has stated, unless it leaves them to the programs.
fn stated(peer: Option<ReadDepths>) -> Option<(u16, u16)> {
    const NOT_NEGOTIATED: u16 = 0x3fff;
    let peer = peer.filter(|peer| peer.ird != NOT_NEGOTIATED && peer.ord != NOT_NEGOTIATED)?;
    Some((peer.ird, peer.ord))
}

/// Asks the peer again: in the form of RFC 5044, if it seems to know no other, or a moment later, if
/// it may not listen yet. Returns whether that has begun: then its outcome is that of the id.
fn tries_again(id: &Arc<Id>, reason: &EndReason) -> bool {
    let mut state = id.state();
    let waits = state.phase == Phase::Connecting && !state.disconnected;
    let attempt = state.attempt.take().filter(|_| waits);
    let (Some(attempt), Some(number)) = (attempt, state.connection) else {
        return false;
    };
    if let Some(later) = attempt.later(reason) {
        state.attempt = Some(later.clone());
        drop(state);
        return starts_later(id, later, number);
    }
    drop(state);
    let again = attempt.plainer(reason);
    again.is_some_and(|again| starts(id, &again, number))
}

/// Makes a queue pair connect. Returns whether it does: the program may have destroyed it meanwhile.
fn starts(id: &Id, attempt: &Attempt, number: QpNumber) -> bool {
    if id.qp_type == IBV_QPT_UD {
        let mut state = id.state();
        let asking = state.asking.as_mut();
        return asking.is_some_and(|asking| attempt.start(&mut asking.qp).is_ok());
    }
    let mut begun = false;
    verbs::with_number(attempt.adapter, number, |qp| {
        begun = attempt.start(&mut qp.lock()).is_ok();
    });
    begun
}

/// Makes a queue pair connect after a pause. Returns whether it will.
fn starts_later(id: &Arc<Id>, attempt: Attempt, number: QpNumber) -> bool {
    let id = id.clone();
    let run = move || {
        std::thread::sleep(PAUSE);
        let waits = || {
            let state = id.state();
            state.phase == Phase::Connecting && !state.disconnected
        };
        if waits() && !starts(&id, &attempt, number) {
            id.state().attempt = None;
            tell(&id, ConnectionEvent::Failed(EndReason::Refused));
        }
    };
    spawn("rnic-again", run).is_ok()
}

/// Returns how the kernel would report that connecting has failed.
fn failure(reason: &EndReason) -> (u32, Errno) {
    match reason {
        EndReason::Refused | EndReason::NoAdaptation => {
            (RDMA_CM_EVENT_REJECTED, Errno::ECONNREFUSED)
        }
        // A Terminate before the connection stands is how a peer gives up.
        EndReason::Reset
        | EndReason::Peer
        | EndReason::CutOff
        | EndReason::NotEnhanced(_)
        | EndReason::TerminateReceived { .. } => (RDMA_CM_EVENT_REJECTED, Errno::ECONNRESET),
        EndReason::TimedOut | EndReason::ReceiverNotReady => {
            (RDMA_CM_EVENT_UNREACHABLE, Errno::ETIMEDOUT)
        }
        EndReason::Unreachable => (RDMA_CM_EVENT_UNREACHABLE, Errno::EHOSTUNREACH),
        EndReason::Startup(_) | EndReason::Session(_) => {
            (RDMA_CM_EVENT_CONNECT_ERROR, Errno::EPROTO)
        }
        EndReason::InUse => (RDMA_CM_EVENT_CONNECT_ERROR, Errno::EADDRINUSE),
        EndReason::DeviceGone | EndReason::Revoked { .. } => {
            (RDMA_CM_EVENT_CONNECT_ERROR, Errno::ENODEV)
        }
        EndReason::QpNotIdle => (RDMA_CM_EVENT_CONNECT_ERROR, Errno::EINVAL),
        EndReason::Local | EndReason::TerminateSent { .. } => {
            (RDMA_CM_EVENT_CONNECT_ERROR, Errno::ECONNABORTED)
        }
    }
}

/// Tells an id that has asked for datagrams what became of that. What asked goes.
fn tell_asker(id: &Arc<Id>, event: &ConnectionEvent) {
    let mut state = id.state();
    state.attempt = None;
    if state.phase != Phase::Connecting {
        return;
    }
    state.phase = Phase::Over;
    let asking = (state.asking.take(), state.connection.take(), state.adapter);
    let unreachable = |status: i32, private_data: &[u8]| EventData {
        private_data: private_data.to_vec(),
        peer: Some(Peer::default()),
        ..EventData::new(RDMA_CM_EVENT_UNREACHABLE, status)
    };
    let what = match event {
        ConnectionEvent::Rejected { private_data, .. } => {
            let answer = Answer::parse(private_data);
            let ends = state.adapter.zip(state.local).zip(state.remote);
            match (answer.status, ends) {
                (sidr::ACCEPTED, Some(((adapter, local), remote))) => EventData {
                    private_data: answer.private_data.to_vec(),
                    peer: Some(Peer {
                        ah_attr: verbs::address_handle(adapter, local.ip(), remote.ip()),
                        qp_num: answer.qp_num,
                        qkey: answer.qkey,
                    }),
                    ..EventData::new(RDMA_CM_EVENT_ESTABLISHED, 0)
                },
                (status, _) => unreachable(status.into(), answer.private_data),
            }
        }
        ConnectionEvent::Failed(EndReason::Refused) => unreachable(sidr::NOBODY.into(), &[]),
        ConnectionEvent::Failed(reason) => unreachable(-(failure(reason).1 as i32), &[]),
        // Who accepts has not understood.
        ConnectionEvent::Established(_) => unreachable(sidr::NOBODY.into(), &[]),
        ConnectionEvent::Disconnected(_) | ConnectionEvent::PeerLeft(_) => {
            unreachable(-(Errno::ECONNABORTED as i32), &[])
        }
    };
    id.tell_in(&state, what);
    drop(state);
    if let (Some(asking), Some(number), Some(adapter)) = asking {
        (asking.forget)(adapter, number);
        // Its number may be another's from here on.
        drop(asking);
    }
}

/// Tells an id that its queue pair was destroyed. What the engine would still report does not come
/// any more.
pub(super) fn tell_destroyed(id: &Arc<Id>) {
    let mut state = id.state();
    state.connection = None;
    let event = match state.phase {
        Phase::Connected => EventData::new(RDMA_CM_EVENT_DISCONNECTED, 0),
        Phase::Connecting => {
            EventData::new(RDMA_CM_EVENT_CONNECT_ERROR, -(Errno::ECONNABORTED as i32))
        }
        _ => return,
    };
    state.phase = Phase::Over;
    id.tell_in(&state, event);
}
