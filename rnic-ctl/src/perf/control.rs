//! The control connection: an RDMA connection of its own, on which both sides talk about the test.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rnic_verbs::{
    AsyncEvent, AsyncEvents, Completion, Cq, Device, HugePages, Mr, Pd, Qp, QpCaps, Region,
    SendRequest, WcOpcode,
};

use super::message::{LEN, Message};
use super::progress::LOOKS_TO_YIELD;
use crate::failure::{Doing, Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::out;

/// The most messages in flight.
const SENDS: u64 = 16;
/// How often a side that waits sends an Alive message.
const ALIVE: Duration = Duration::from_secs(1);
/// How often a side that waits checks for Ctrl-C and for the end of its connections.
const NAP: Duration = Duration::from_millis(50);
/// How long a side spins after the last traffic before it sleeps.
const PATIENCE: Duration = Duration::from_millis(2);

/// A completion of the control connection.
enum Taken {
    Nothing,
    Sent,
    Message(Message),
}

/// Returns the first message that says more than that the other side is still there. The others are
/// taken on the way: a side that looks seldom must not run out of receives.
fn first_message(mut take: impl FnMut() -> Outcome<Taken>) -> Outcome<Option<Message>> {
    loop {
        match take()? {
            Taken::Nothing => return Ok(None),
            Taken::Sent | Taken::Message(Message::Alive) => {}
            Taken::Message(message) => return Ok(Some(message)),
        }
    }
}

/// The control connection of one side.
pub(super) struct Control {
    pub qp: Qp,
    device: Device,
    interrupt: Interrupt,
    events: AsyncEvents,
    cq: Cq,
    mr: Mr,
    /// Receive buffers; the send buffers follow them.
    receives: u64,
    sent: u64,
    sends_done: u64,
    /// Messages received before they were expected.
    kept: Vec<Message>,
    alive_at: Instant,
}

impl Control {
    /// Makes it, not connected yet. Every data connection may have several messages in flight.
    pub(super) fn new(device: &Device, pd: &Pd, qps: u16, interrupt: &Interrupt) -> Outcome<Self> {
        let receives = 64 + 8 * u64::from(qps);
        let doing = "make the control connection";
        let entries = (receives + SENDS) as u32;
        let region = Region::allocate(entries as usize * LEN, HugePages::None).doing(doing)?;
        let mr = pd
            .register(&Arc::new(region), rnic_verbs::Access::LOCAL_WRITE)
            .doing(doing)?;
        let cq = device.cq(entries).doing(doing)?;
        let caps = QpCaps {
            max_send_wr: SENDS as u32,
            max_recv_wr: receives as u32,
            ..QpCaps::default()
        };
        let mut qp = pd.qp(&cq, &cq, caps).doing(doing)?;
        for slot in 0..receives {
            qp.post_recv(slot, &[mr.sge(slot as usize * LEN, LEN as u32)])
                .doing(doing)?;
        }
        let alive_at = Instant::now() + ALIVE;
        Ok(Self {
            qp,
            device: device.clone(),
            interrupt: interrupt.clone(),
            events: device.async_events().doing(doing)?,
            cq,
            mr,
            receives,
            sent: 0,
            sends_done: 0,
            kept: Vec::new(),
            alive_at,
        })
    }

    /// Sends a message.
    pub(super) fn send(&mut self, message: &Message) -> Outcome {
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.sent - self.sends_done >= SENDS {
            self.device.drive();
            if let Some(message) = self.poll_any()? {
                if self.kept.len() as u64 >= self.receives {
                    let why = "it says more than this side can take in";
                    return Err(Failure::operation("talk to the other side", why));
                }
                self.kept.push(message);
                continue;
            }
            self.interrupt.check()?;
            if Instant::now() > deadline {
                return Err(Failure::operation(
                    "talk to the other side",
                    "it takes no more messages",
                ));
            }
        }
        let slot = (self.receives + self.sent % SENDS) as usize;
        let doing = "send a control message";
        self.mr.write(slot * LEN, &message.encode()).doing(doing)?;
        self.qp
            .post_send(&SendRequest::send().memory(&[self.mr.sge(slot * LEN, LEN as u32)]))
            .doing(doing)?;
        self.sent += 1;
        Ok(())
    }

    /// Returns a message that has arrived. The caller drives the device. A message that the other
    /// side has failed is returned as a failure.
    pub(super) fn poll(&mut self) -> Outcome<Option<Message>> {
        let message = if self.kept.is_empty() {
            self.poll_any()?
        } else {
            Some(self.kept.remove(0))
        };
        match message {
            Some(Message::Failed(why)) => Err(Failure::operation("the other side failed", why)),
            other => Ok(other),
        }
    }

    fn poll_any(&mut self) -> Outcome<Option<Message>> {
        first_message(|| self.take())
    }

    fn take(&mut self) -> Outcome<Taken> {
        let mut completions = [Completion::default()];
        if self.cq.take(&mut completions) == 0 {
            return Ok(Taken::Nothing);
        }
        let [completion] = completions;
        if !completion.is_success() {
            return Err(self.ended(&completion));
        }
        if completion.opcode() != WcOpcode::Recv {
            self.sends_done += 1;
            return Ok(Taken::Sent);
        }
        let slot = completion.wr_id() as usize * LEN;
        let mut octets = [0; LEN];
        let doing = "receive a control message";
        self.mr.read(slot, &mut octets).doing(doing)?;
        self.qp
            .post_recv(completion.wr_id(), &[self.mr.sge(slot, LEN as u32)])
            .doing(doing)?;
        match Message::decode(
            octets
                .get(..completion.byte_len() as usize)
                .unwrap_or_default(),
        ) {
            Some(message) => Ok(Taken::Message(message)),
            None => Err(Failure::operation(
                doing,
                "it makes no sense; use the same release on both sides",
            )),
        }
    }

    /// Waits for a message, however long. Calls `meanwhile` now and then.
    pub(super) fn receive(
        &mut self,
        interrupt: &Interrupt,
        mut meanwhile: impl FnMut() -> Outcome,
    ) -> Outcome<Message> {
        let mut busy_at = Instant::now();
        let mut look_up = busy_at + NAP;
        let mut fruitless = 0_u32;
        loop {
            if let Some(message) = self.poll()? {
                return Ok(message);
            }
            let now = Instant::now();
            if now >= look_up {
                look_up = now + NAP;
                interrupt.check()?;
                meanwhile()?;
                self.say_alive(now)?;
            }
            if self.device.drive() {
                busy_at = now;
            } else if !self.device.is_inline() || now - busy_at > PATIENCE {
                self.cq.wait(NAP).doing("wait for the other side")?;
            } else {
                fruitless = fruitless.wrapping_add(1);
                if fruitless.is_multiple_of(LOOKS_TO_YIELD) {
                    std::thread::yield_now();
                }
            }
        }
    }

    /// Reports on standard error when the interface loses its link or has it again. Fails if the
    /// interface is gone.
    fn watch_link(&mut self) -> Outcome {
        let doing = "watch the interface";
        while let Some(event) = self.events.next(Duration::ZERO).doing(doing)? {
            match event {
                AsyncEvent::PortError => out::note(
                    "rnic-ctl: the interface has lost its link; without it the connections end soon",
                ),
                AsyncEvent::PortActive => out::note("rnic-ctl: the interface has its link again"),
                _ => {}
            }
        }
        Ok(())
    }

    /// Sends an Alive message if the last one was a while ago.
    pub(super) fn say_alive(&mut self, now: Instant) -> Outcome {
        self.watch_link()?;
        if now >= self.alive_at && self.sent - self.sends_done < SENDS {
            self.alive_at = now + ALIVE;
            self.send(&Message::Alive)?;
        }
        Ok(())
    }

    /// Returns why a request failed, which is mostly the end of the connection.
    fn ended(&mut self, completion: &Completion) -> Failure {
        why_ended(&mut self.qp, completion)
    }
}

/// Returns why a request of a queue pair failed: the end of its connection, or else the status of
/// the request.
pub(super) fn why_ended(qp: &mut Qp, completion: &Completion) -> Failure {
    let what = "connection to the other side";
    match qp.wait_ended(Duration::from_millis(500)) {
        Ok(Some(reason)) => Failure::operation(what, reason),
        Ok(None) => Failure::operation(
            what,
            format!("{:?} failed: {}", completion.opcode(), completion.status()),
        ),
        Err(error) => Failure::operation(what, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_looks_seldom_takes_all_that_says_nothing() {
        let (alive, ready) = (Message::Alive, Message::Ready);
        let said = [
            None,
            Some(alive.clone()),
            None,
            Some(ready.clone()),
            Some(alive),
        ];
        let taken = said.map(|message| message.map_or(Taken::Sent, Taken::Message));
        let mut left = taken.into_iter();
        let mut look = || first_message(|| Ok(left.next().unwrap_or(Taken::Nothing)));
        assert_eq!(look().unwrap(), Some(ready));
        assert_eq!(look().unwrap(), None);
        assert_eq!(left.len(), 0);
    }
}
