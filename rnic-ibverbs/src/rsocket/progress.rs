//! What moves a connection on: completions are taken in, the peer is told what it may send, and
//! threads sleep until something comes.

use std::time::{Duration, Instant};

use nix::libc::{POLLERR, POLLHUP, POLLIN, POLLOUT};

use super::config::Config;
use super::endpoint::{Endpoint, Octets, Work};
use super::incoming::Violation;
use super::layout::Message;
use super::socket::{Flow, Phase, Socket};
use super::waiter::{Waiter, entry, poll_fds};
use crate::abi::{IBV_WC_SUCCESS, ibv_wc};
use crate::errno::{Errno, lock};

/// Completions that are taken at once.
const BATCH: usize = 16;

impl Socket {
    /// Handles what has come, and tells the peer what it may send.
    pub(super) fn progress(&self, flow: &mut Flow) {
        let Some(endpoint) = self.endpoint.get() else {
            return;
        };
        while flow.phase == Phase::Connected {
            let mut completions = [ibv_wc::default(); BATCH];
            let polled = endpoint.poll(&mut completions);
            let taken = polled.and_then(|count| {
                flow.take_in(endpoint, &completions[..count])?;
                Ok(count)
            });
            match taken {
                Ok(0) => break,
                Ok(_) => {}
                Err(why) => {
                    flow.lose();
                    flow.error = Some(why);
                }
            }
        }
        flow.grant(endpoint);
    }

    /// Waits until `ready` has an answer. A call that must not wait fails with EAGAIN.
    pub(super) fn wait_for<T>(
        &self,
        nonblocking: bool,
        ready: impl FnMut(&mut Flow) -> Option<Result<T, Errno>>,
    ) -> Result<T, Errno> {
        self.wait(nonblocking.then_some(Duration::ZERO), ready)
    }

    /// Waits until `ready` has an answer, or fails with EAGAIN after this time.
    pub(super) fn wait<T>(
        &self,
        most: Option<Duration>,
        mut ready: impl FnMut(&mut Flow) -> Option<Result<T, Errno>>,
    ) -> Result<T, Errno> {
        if let Some(answer) = self.look(false, &mut ready) {
            return answer;
        }
        if most == Some(Duration::ZERO) {
            return Err(Errno::EAGAIN);
        }
        let begin = Instant::now();
        while begin.elapsed() < Config::get().polling {
            if let Some(answer) = self.look(false, &mut ready) {
                return answer;
            }
        }
        let waiter = Waiter::current()?;
        let _watch = self.watchers.add(&waiter);
        loop {
            waiter.clear();
            // One that came before this thread watched has woken nobody.
            self.take_event(&waiter);
            if let Some(answer) = self.look(true, &mut ready) {
                return answer;
            }
            let left = most.map(|most| most.saturating_sub(begin.elapsed()));
            if left == Some(Duration::ZERO) {
                return Err(Errno::EAGAIN);
            }
            Self::sleep(&waiter, left)?;
        }
    }

    /// Asks for an answer to what there is now. Whoever is going to sleep without one has the
    /// completion queue armed first.
    fn look<T>(
        &self,
        arming: bool,
        ready: &mut impl FnMut(&mut Flow) -> Option<Result<T, Errno>>,
    ) -> Option<Result<T, Errno>> {
        let mut flow = lock(&self.flow);
        if flow.closed {
            return Some(Err(Errno::EBADF));
        }
        self.progress(&mut flow);
        let answer = ready(&mut flow);
        if answer.is_none() && arming && self.arm(&mut flow) {
            // What came before the queue was armed is reported by nobody.
            return ready(&mut flow);
        }
        answer
    }

    /// Sleeps until something may have changed.
    fn sleep(waiter: &Waiter, most: Option<Duration>) -> Result<(), Errno> {
        match most {
            None => waiter.sleep()?,
            Some(_) => {
                poll_fds(&mut [entry(waiter.fd(), POLLIN)], most)?;
            }
        }
        Ok(())
    }

    /// Makes the completion queue report its next completion, unless it will anyway. Returns
    /// whether it had to be told; then what had come was handled since.
    pub(super) fn arm(&self, flow: &mut Flow) -> bool {
        let endpoint = self
            .endpoint
            .get()
            .filter(|_| flow.phase == Phase::Connected && !flow.armed);
        let Some(endpoint) = endpoint else {
            return false;
        };
        match endpoint.arm() {
            Ok(()) => flow.armed = true,
            Err(why) => {
                flow.lose();
                flow.error = Some(why);
            }
        }
        self.progress(flow);
        true
    }

    /// Removes the event of the completion queue. Wakes the others who sleep for it: they look for
    /// themselves.
    pub(super) fn take_event(&self, waiter: &Waiter) {
        let mut flow = lock(&self.flow);
        if flow.armed && self.endpoint.get().is_some_and(Endpoint::take_event) {
            flow.armed = false;
            drop(flow);
            self.watchers.wake_others(waiter);
        }
    }

    /// Returns which of these events of poll(2) there are.
    pub(super) fn events(&self, flow: &mut Flow, wanted: i16) -> i16 {
        self.progress(flow);
        let ended = flow.phase == Phase::Disconnected;
        let when = |is: bool, events: i16| if is { events } else { 0 };
        match flow.phase {
            Phase::Opened | Phase::Connecting => 0,
            Phase::Listening => when(!flow.accepted.is_empty(), wanted & POLLIN),
            Phase::Failed => wanted & (POLLIN | POLLOUT) | POLLERR | POLLHUP,
            Phase::Connected | Phase::Disconnected => {
                let readable = flow.incoming.readable() || !flow.readable || ended;
                let writable = flow.outgoing.room() > 0 || !flow.writable || ended;
                // Programs take a hang-up for the end of all, so who asks for data gets those
                // first.
                let over = ended && !(flow.incoming.readable() && wanted & POLLIN != 0);
                when(readable, wanted & POLLIN)
                    | when(writable, wanted & POLLOUT)
                    | when(over, POLLHUP)
                    | when(over && flow.lost, POLLERR)
            }
        }
    }
}

impl Flow {
    fn take_in(&mut self, endpoint: &Endpoint, completions: &[ibv_wc]) -> Result<(), Errno> {
        let mut places = [0; BATCH];
        let mut received = 0;
        for completion in completions {
            let success = completion.status == IBV_WC_SUCCESS;
            match Work::of(completion) {
                Work::Receive(place) if success => {
                    // Behind the last message the others are of no interest.
                    if self.phase == Phase::Connected {
                        self.hear(endpoint, endpoint.message(place))
                            .map_err(|Violation| Errno::EPROTO)?;
                    }
                    places[received] = place;
                    received += 1;
                }
                Work::Receive(_) => self.lose(),
                Work::Data(octets) => self.outgoing.done(octets),
                Work::Control => self.outgoing.control_done(),
                Work::Disconnect => {
                    self.outgoing.control_done();
                    if success && self.phase == Phase::Connected {
                        self.phase = Phase::Disconnected;
                    }
                }
            }
            if !success {
                self.lose();
            }
        }
        self.end_when_done();
        if self.phase == Phase::Connected {
            endpoint.post_receives(&places[..received])
        } else {
            Ok(())
        }
    }

    /// Ends the connection once both sides have said that they send nothing more, and the peer's
    /// host has all of this side's.
    fn end_when_done(&mut self) {
        let said_all = !self.writable && self.to_say == 0 && self.outgoing.is_done();
        if self.phase == Phase::Connected && self.peer_has_ended && said_all {
            self.phase = Phase::Disconnected;
        }
    }

    /// Handles a message.
    fn hear(&mut self, endpoint: &Endpoint, message: Message) -> Result<(), Violation> {
        match message {
            Message::Data(octets) => self.incoming.arrive(octets)?,
            Message::Credits(limit) => {
                self.outgoing.set_limit(limit);
                if let Some(target) = endpoint.take_target(self.outgoing.awaited()) {
                    self.outgoing.set_target(target);
                }
            }
            Message::Iomap(index) => {
                let iomap = endpoint.iomap(index).ok_or(Violation)?;
                *self.iomaps.get_mut(usize::from(index)).ok_or(Violation)? = iomap;
                self.incoming.arrive_without_data();
            }
            Message::KeepAlive => {}
            Message::Shutdown => (self.readable, self.peer_has_ended) = (false, true),
            Message::Disconnect => self.phase = Phase::Disconnected,
            Message::Unknown(_) => return Err(Violation),
        }
        Ok(())
    }

    /// Tells the peer what it may send, if that is due and can be posted now.
    pub(super) fn grant(&mut self, endpoint: &Endpoint) {
        if self.phase != Phase::Connected {
            return;
        }
        let Some(requests) = self.incoming.grant_due() else {
            return;
        };
        if !self.outgoing.send_controls(requests) {
            return;
        }
        let grant = self.incoming.grant();
        let message = Message::Credits(grant.limit);
        // If it cannot be posted, the connection has ended: how, say the completions that have
        // come.
        let _ = match grant.half {
            Some(offset) => {
                let to = self.peer.target(self.outgoing.next_peer_entry());
                let half = endpoint.half(offset).to_octets();
                endpoint.post_write_and_message(
                    Octets::Inline(&half),
                    [Work::Control; 2],
                    to,
                    message,
                )
            }
            None => endpoint.post_message(message, Work::Control),
        };
    }
}
