//! One side of one connection: its memory, its queue pair, and messages between the sides.

use std::sync::Arc;
use std::time::Duration;

use rnic_verbs::{
    Access, Completion, ConnectionEvent, Cq, Device, EndReason, HugePages, Mr, Pd, Qp, QpCaps,
    Region, RemoteAddress, SendRequest, Stag, WcStatus,
};

use crate::outcome::Outcome;
use crate::plan::{Connection, Step, Target};

/// Octets of each region.
pub(crate) const MEMORY_LENGTH: usize = 0x18_0000;
/// Entries of each queue.
const DEPTH: usize = 128;
/// Octets of a control message, which the sides exchange between steps: a tagged offset, an STag, a
/// number.
const CONTROL_LENGTH: usize = 16;
/// The number in the first message of a connection.
const HELLO: u32 = u32::MAX;
/// The longest time that anything may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// After this time the initiator suspects that its first message was overlooked.
const NUDGE: Duration = Duration::from_millis(100);

/// A message that this side will receive.
#[derive(Clone, Copy, Debug)]
enum Expected {
    Control,
    /// Of a step, this of its data.
    Data(usize, usize),
}

pub(crate) struct Memory {
    pub(crate) source: Arc<Region>,
    pub(crate) target: Arc<Region>,
    pub(crate) inbox: Arc<Region>,
    control: Arc<Region>,
}

impl Memory {
    pub(crate) fn new() -> Outcome<Self> {
        let region =
            |len| Ok::<_, rnic_verbs::Error>(Arc::new(Region::allocate(len, HugePages::None)?));
        Ok(Self {
            source: region(MEMORY_LENGTH)?,
            target: region(MEMORY_LENGTH)?,
            inbox: region(MEMORY_LENGTH)?,
            control: region(DEPTH * CONTROL_LENGTH)?,
        })
    }
}

pub(crate) struct Side {
    pub(crate) qp: Qp,
    pub(crate) send_cq: Cq,
    pub(crate) recv_cq: Cq,
    pub(crate) source: Mr,
    pub(crate) target: Mr,
    pub(crate) inbox: Mr,
    control: Mr,
    readable: Mr,
    writable: Mr,
    private: Mr,
    foreign: Mr,
    freed: RemoteAddress,
    once: Option<Mr>,
    pd: Pd,
    expected: Vec<Expected>,
    steps: Vec<Step>,
    posted: usize,
    received: usize,
}

impl Side {
    /// Makes a side that is not connected yet, and posts its receives.
    pub(crate) fn new(device: &Device, memory: &Memory, connection: &Connection) -> Outcome<Self> {
        let pd = device.pd();
        let (send_cq, recv_cq) = (device.cq(DEPTH as u32)?, device.cq(DEPTH as u32)?);
        let caps = QpCaps {
            max_send_wr: DEPTH as u32,
            max_recv_wr: DEPTH as u32,
            ..QpCaps::default()
        };
        let (read, write) = (Access::REMOTE_READ, Access::REMOTE_WRITE);
        let local = |region| pd.register(region, Access::LOCAL_WRITE);
        let target = |access| pd.register(&memory.target, Access::LOCAL_WRITE | access);
        let mut side = Self {
            qp: pd.qp(&send_cq, &recv_cq, caps)?,
            send_cq,
            recv_cq,
            source: local(&memory.source)?,
            inbox: local(&memory.inbox)?,
            control: local(&memory.control)?,
            target: target(read | write)?,
            readable: target(read)?,
            writable: target(write)?,
            private: local(&memory.target)?,
            foreign: device
                .pd()
                .register(&memory.target, Access::LOCAL_WRITE | read | write)?,
            freed: target(read | write)?.remote(0),
            once: None,
            pd,
            expected: expected(&connection.steps),
            steps: connection.steps.clone(),
            posted: 0,
            received: 0,
        };
        side.post_receives()?;
        Ok(side)
    }

    fn post_receives(&mut self) -> Outcome {
        while self.posted < self.expected.len() && self.posted < self.received + DEPTH {
            let pieces = match self.expected[self.posted] {
                Expected::Control => {
                    let slot = self.posted % DEPTH * CONTROL_LENGTH;
                    vec![self.control.sge(slot, CONTROL_LENGTH as u32)]
                }
                Expected::Data(step, index) => self.steps[step]
                    .response_layout()
                    .cut(index)
                    .iter()
                    .map(|&(at, length)| self.inbox.sge(at, length as u32))
                    .collect(),
            };
            self.qp.post_recv(self.posted as u64, &pieces)?;
            self.posted += 1;
        }
        Ok(())
    }

    /// Waits for the next message, which must come without error.
    pub(crate) fn receive(&mut self) -> Outcome<Completion> {
        let completion = wait(&mut self.recv_cq)?;
        let number = self.received as u64;
        if !completion.is_success() || completion.wr_id() != number {
            return Err(format!("receive {number}: {completion:?}").into());
        }
        self.received += 1;
        Ok(completion)
    }

    /// Receives the control message before or after a step. Returns the address of the peer's
    /// memory in it, if the step uses any.
    pub(crate) fn receive_control(&mut self, number: u32) -> Outcome<RemoteAddress> {
        let slot = self.received % DEPTH * CONTROL_LENGTH;
        let completion = self.receive()?;
        let mut octets = [0; CONTROL_LENGTH];
        self.control.read(slot, &mut octets)?;
        let word = |at: usize| {
            u32::from_be_bytes([octets[at], octets[at + 1], octets[at + 2], octets[at + 3]])
        };
        if completion.byte_len() as usize != CONTROL_LENGTH || word(12) != number {
            return Err(
                format!("expected message {number}; got {octets:x?}, {completion:?}").into(),
            );
        }
        self.post_receives()?;
        Ok(RemoteAddress {
            offset: u64::from(word(0)) << 32 | u64::from(word(4)),
            stag: Stag(word(8)),
        })
    }

    pub(crate) fn send_control(&mut self, number: u32, here: Option<RemoteAddress>) -> Outcome {
        let mut octets = Vec::with_capacity(CONTROL_LENGTH);
        let here = here.unwrap_or(RemoteAddress {
            stag: Stag(0),
            offset: 0,
        });
        octets.extend(here.offset.to_be_bytes());
        octets.extend(here.stag.0.to_be_bytes());
        octets.extend(number.to_be_bytes());
        self.send(&octets)
    }

    /// Sends a message.
    pub(crate) fn send(&mut self, octets: &[u8]) -> Outcome {
        self.qp.post_send(&SendRequest::send().inline(octets))?;
        match wait(&mut self.send_cq)? {
            done if done.is_success() => Ok(()),
            failed => Err(format!("message {octets:x?}: {failed:?}").into()),
        }
    }

    /// Exchanges the first messages of a connection. This side sends `first`, or after it has
    /// received.
    pub(crate) fn greet(&mut self, initiates: bool, first: bool) -> Outcome {
        if first {
            self.send_control(HELLO, None)?;
        }
        if initiates {
            self.nudge()?;
        }
        self.receive_control(HELLO)?;
        if !first {
            self.send_control(HELLO, None)?;
        }
        Ok(())
    }

    /// Sends an empty Write now and then until something arrives. A siw responder can leave what
    /// comes soon after its MPA Reply unread until more comes.
    fn nudge(&mut self) -> Outcome {
        let nowhere = RemoteAddress {
            stag: Stag(0),
            offset: 0,
        };
        for _ in 0..PATIENCE.as_millis() / NUDGE.as_millis() {
            if self.recv_cq.wait(NUDGE)? {
                break;
            }
            println!("nudge=1");
            self.qp
                .post_send(&SendRequest::write(nowhere).unsignaled())?;
        }
        Ok(())
    }

    /// Returns the address of this side's memory that a step names.
    pub(crate) fn describe(&mut self, step: &Step) -> Outcome<RemoteAddress> {
        Ok(match step.region {
            Target::All => self.target.remote(0),
            Target::Readable => self.readable.remote(0),
            Target::Writable => self.writable.remote(0),
            Target::Private => self.private.remote(0),
            Target::Foreign => self.foreign.remote(0),
            Target::Freed => self.freed,
            Target::Once if step.invalidates() || self.once.is_none() => {
                let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
                let registration = self.pd.registration(self.target.region());
                let once = registration.access(access).only_for(&self.qp).register()?;
                self.once.insert(once).remote(0)
            }
            Target::Once => self.once.as_ref().ok_or("nothing to invalidate")?.remote(0),
        })
    }

    /// Returns whether the peer has invalidated it.
    pub(crate) fn is_once_invalid(&self) -> bool {
        self.once.as_ref().is_some_and(|once| !once.is_valid())
    }

    /// Waits until the connection ends, and says why it did.
    pub(crate) fn wait_for_the_end(&mut self) -> Outcome<EndReason> {
        loop {
            match self.qp.next_event(PATIENCE)? {
                Some(ConnectionEvent::Disconnected(reason)) => return Ok(reason),
                Some(ConnectionEvent::Established(_)) => {}
                other => return Err(format!("the connection does not end, but: {other:?}").into()),
            }
        }
    }

    /// Returns how the receives that are left complete: each does, once, in order.
    pub(crate) fn rest_of_receives(&mut self) -> Outcome<Vec<WcStatus>> {
        (self.received..self.posted)
            .map(|number| {
                let completion = wait(&mut self.recv_cq)?;
                if completion.wr_id() != number as u64 {
                    return Err(format!("receive {number}: {completion:?}").into());
                }
                Ok(completion.status())
            })
            .collect()
    }
}

/// Returns what a side receives. A requester gets a control message when the responder is ready. A
/// responder gets the data, if the step is a Send, and a control message when all is done.
fn expected(steps: &[Step]) -> Vec<Expected> {
    let mut expected = vec![Expected::Control];
    for (number, step) in steps.iter().enumerate() {
        if !step.mine {
            expected.extend((0..step.receives()).map(|index| Expected::Data(number, index)));
        }
        if step.mine || !step.ends {
            expected.push(Expected::Control);
        }
        if step.mine && step.reads_nothing() {
            expected.push(Expected::Control);
        }
    }
    expected
}

/// Waits for the next completion of a queue.
pub(crate) fn wait(cq: &mut Cq) -> Outcome<Completion> {
    loop {
        if let Some(completion) = cq.poll_one() {
            return Ok(completion);
        }
        if !cq.wait(PATIENCE)? {
            return Err("a request does not complete".into());
        }
    }
}
