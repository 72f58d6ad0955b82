//! A connection to rnicd, and what was asked for on it.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use crossbeam_channel::Sender;
use rnic_core::engine::Found;
use rnic_core::esp::SaId;
use rnic_core::time::Instant;
use rnic_manager::channel::{Channel, ChannelError};
use rnic_manager::protocol::{Ask, Reason, Refused, Request};

/// How long rnicd may take to say where a listener is. It waits a second for a host that is silent,
/// and for some time before that if many are asked.
pub(super) const LOCATED_WITHIN: Duration = Duration::from_secs(5);

/// A request that was not answered yet.
pub(super) enum Waiting {
    Hello,
    Adopt,
    /// A local port, and whether it speaks protected or not at all.
    Reserve(Ask, Sender<Result<(SocketAddr, bool), Refused>>),
    Release(SocketAddr),
    Do(Ask, Sender<Result<(), Refused>>),
    Unmap(SocketAddr),
    Numbers(SaId),
    Locate(Ask, (SocketAddr, Found), Instant),
    /// One of those that are answered only if they are refused.
    Follow,
}

/// A connection to rnicd.
pub(super) struct Connection {
    pub(super) channel: Channel,
    next_id: u64,
    /// Requests that rnicd has not taken yet.
    pub(super) outgoing: VecDeque<Request>,
    pub(super) waiting: HashMap<u64, Waiting>,
}

impl Connection {
    pub(super) fn new(channel: Channel, next_id: u64) -> Self {
        Self {
            channel,
            next_id,
            outgoing: VecDeque::new(),
            waiting: HashMap::new(),
        }
    }

    pub(super) fn ask(&mut self, ask: Ask, waiting: Waiting) {
        let id = self.next_id;
        self.next_id += 1;
        self.outgoing.push_back(Request { id, ask });
        if !matches!(waiting, Waiting::Follow) {
            self.waiting.insert(id, waiting);
        }
    }

    /// Sends what rnicd takes now.
    pub(super) fn flush(&mut self) -> Result<(), ChannelError> {
        while let Some(request) = self.outgoing.front() {
            match self.channel.send(request, &[]) {
                Ok(()) => drop(self.outgoing.pop_front()),
                Err(ChannelError::TimedOut { .. }) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns whether somebody waits to know where a listener is.
    pub(super) fn locates(&self) -> bool {
        let mut waiting = self.waiting.values();
        waiting.any(|waiting| matches!(waiting, Waiting::Locate(..)))
    }

    /// Takes listeners for what they were asked for as where rnicd does not answer.
    pub(super) fn give_up_locating(&mut self, now: Instant) {
        let is_late = |_: &u64, waiting: &mut Waiting| match waiting {
            Waiting::Locate(_, _, since) => now.since(*since) >= LOCATED_WITHIN,
            _ => false,
        };
        for (_, waiting) in self.waiting.extract_if(is_late) {
            refuse(
                waiting,
                &Refused::new(Reason::NotReady, "rnicd does not answer"),
            );
        }
    }
}

/// Answers a request with a refusal.
pub(super) fn refuse(waiting: Waiting, refused: &Refused) {
    // Whoever asked may have given up.
    let _ = match waiting {
        Waiting::Reserve(_, reply) => reply.send(Err(refused.clone())).is_ok(),
        Waiting::Do(_, reply) => reply.send(Err(refused.clone())).is_ok(),
        Waiting::Locate(_, (remote, found), _) => {
            found(remote);
            true
        }
        Waiting::Hello
        | Waiting::Adopt
        | Waiting::Release(_)
        | Waiting::Unmap(_)
        | Waiting::Numbers(_)
        | Waiting::Follow => false,
    };
}
