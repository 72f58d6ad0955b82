//! Measuring latency: one message at a time, both sides.

use std::time::Instant;

use rnic_verbs::{Completion, DEFAULT_INLINE, SendRequest, WcOpcode};

use super::args::{Length, Operation};
use super::buffer::{Pattern, check_count};
use super::message::Message;
use super::progress::{LOOKS_TO_YIELD, Progress, Stall};
use super::receives::Receive;
use super::report::Row;
use super::session::Session;
use super::stats::Latencies;
use crate::failure::{Doing, Failure, Outcome};

/// One of this many requests is signalled.
const MODERATION: u64 = 16;
/// Polls without result after which a spinning loop checks for the end of the test.
const SPINS: u32 = 256;

/// A ping-pong of messages of one size.
pub(super) struct PingPong<'a> {
    session: &'a mut Session,
    progress: &'a mut Progress,
    size: u64,
    sent: u64,
    received: u64,
    pattern: Pattern,
    bad: u64,
    spins: u32,
    stall: Stall,
    /// Messages received at the last check.
    seen: u64,
    /// The client said that it is over.
    is_over: Option<u64>,
    share: f64,
}

impl<'a> PingPong<'a> {
    pub(super) fn new(session: &'a mut Session, size: u64, progress: &'a mut Progress) -> Self {
        Self {
            session,
            progress,
            size,
            sent: 0,
            received: 0,
            pattern: Pattern::default(),
            bad: 0,
            spins: 0,
            stall: Stall::default(),
            seen: 0,
            is_over: None,
            share: 0.0,
        }
    }

    /// Measures, as the client. Returns the figures, and how many messages were corrupt.
    pub(super) fn measure(mut self, length: Length) -> Outcome<(Row, u64)> {
        let mut samples = Latencies::new();
        let started = Instant::now();
        let mut before = started;
        loop {
            match length {
                Length::Iterations(count) if self.sent == count => break,
                Length::Iterations(count) => self.share = self.sent as f64 / count as f64,
                Length::Time { duration, .. } => {
                    self.share = (before - started).as_secs_f64() / duration.as_secs_f64();
                    if self.share >= 1.0 || self.progress.has_ended_early() {
                        break;
                    }
                }
            }
            self.send()?;
            self.receive()?;
            let now = Instant::now();
            let counts = match length {
                Length::Iterations(_) => true,
                Length::Time { duration, margin } => {
                    before - started >= margin && now - started <= duration - margin
                }
            };
            if counts {
                samples.record((now - before).as_nanos() as u64);
            }
            before = now;
        }
        // A Read or atomic is a round trip by itself; of the others, each direction is half of one.
        let divisor = if self.operation().brings() { 1.0 } else { 2.0 };
        let latency = samples.figures(divisor).ok_or_else(|| {
            Failure::operation(
                "measure latency",
                "no message came back in time; choose a longer -D, or end it later",
            )
        })?;
        Ok((
            Row::Latency {
                size: self.size,
                iterations: self.sent,
                latency,
            },
            self.bad,
        ))
    }

    /// Returns every message, as the server, until the client ends the run. Returns how many there
    /// were, and how many were corrupt.
    pub(super) fn answer(mut self) -> Outcome<(u64, u64)> {
        loop {
            self.receive()?;
            if let Some(messages) = self.is_over {
                if messages != self.received {
                    let why = format!("{} of {messages} messages arrived", self.received);
                    return Err(Failure::operation("measure latency", why));
                }
                return Ok((self.received, self.bad));
            }
            self.send()?;
        }
    }

    fn operation(&self) -> Operation {
        self.session.hello.test.operation()
    }

    /// Returns the last octet of Write number `sequence`, which shows that it has arrived.
    fn mark(sequence: u64) -> u8 {
        // Each differs from the one before, and the first from the initial zero.
        (sequence % 255) as u8 + 1
    }

    fn send(&mut self) -> Outcome {
        let hello = self.session.hello;
        let flow = &mut self.session.flows[0];
        let (sequence, len) = (self.sent, self.size as usize);
        let operation = hello.test.operation();
        if operation.brings() {
            let piece = [flow.incoming()?.sge(0, self.size as u32)];
            let pieces = if len == 0 { &[][..] } else { &piece };
            let request = match operation {
                Operation::FetchAdd => SendRequest::fetch_add(flow.remote(0), 1),
                _ => SendRequest::read(flow.remote(0)),
            };
            flow.qp
                .post_send(&request.memory(pieces))
                .doing("post a request")?;
            self.sent += 1;
            return Ok(());
        }
        let mr = flow.outgoing()?;
        if hello.verify {
            self.pattern.fill(mr, 0, flow.index, sequence, len)?;
        }
        if operation == Operation::Write {
            mr.write(len - 1, &[Self::mark(sequence)])
                .doing("mark a message")?;
        }
        let mut octets = [0; DEFAULT_INLINE];
        let pieces = [mr.sge(0, self.size as u32)];
        let request = match operation {
            Operation::Write => SendRequest::write(flow.remote(0)),
            _ => SendRequest::send(),
        };
        let request = if let Some(inline) = octets.get_mut(..len) {
            mr.read(0, inline).doing("read a message")?;
            request.inline(inline)
        } else {
            request.memory(&pieces)
        };
        let request = request.signaled((sequence + 1).is_multiple_of(MODERATION));
        flow.qp.post_send(&request).doing("post a message")?;
        self.sent += 1;
        Ok(())
    }

    /// Waits for the next message, or for the end of the run.
    fn receive(&mut self) -> Outcome {
        let sequence = self.received;
        match self.operation() {
            Operation::Write => {
                let last = self.size as usize - 1;
                while self.session.flows[0]
                    .incoming()?
                    .load(last)
                    .doing("watch memory")?
                    != Self::mark(sequence)
                {
                    self.poll()?;
                    if self.look_up()? {
                        return Ok(());
                    }
                }
                self.received += 1;
            }
            Operation::Send | Operation::Read | Operation::FetchAdd => {
                while self.received == sequence {
                    self.poll()?;
                    if self.received == sequence && self.look_up()? {
                        return Ok(());
                    }
                }
            }
        }
        if self.session.hello.verify {
            self.check(sequence)?;
        }
        Ok(())
    }

    /// Polls and handles one completion, if there is one. This also drives the device.
    fn poll(&mut self) -> Outcome {
        let mut completions = [Completion::default()];
        if self.session.cq.poll(&mut completions) == 0 {
            return Ok(());
        }
        let [completion] = completions;
        self.session.check(&completion)?;
        match completion.opcode() {
            WcOpcode::Recv | WcOpcode::RecvImmediate => {
                self.session.post_receive(Receive::of(completion.wr_id()))?;
                self.received += 1;
            }
            WcOpcode::Read | WcOpcode::FetchAdd | WcOpcode::CmpSwap => self.received += 1,
            WcOpcode::Send
            | WcOpcode::Write
            | WcOpcode::BindWindow
            | WcOpcode::FastRegister
            | WcOpcode::LocalInvalidate => {}
        }
        Ok(())
    }

    /// Counts a poll without result. After some of them returns whether the run is over, and fails
    /// if the other side is gone or the user asked to stop.
    fn look_up(&mut self) -> Outcome<bool> {
        self.spins += 1;
        if self.spins < SPINS {
            if self.spins.is_multiple_of(LOOKS_TO_YIELD) {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
            return Ok(false);
        }
        self.spins = 0;
        match self.session.control.poll()? {
            Some(Message::Done { messages }) => {
                self.is_over = Some(messages);
                return Ok(true);
            }
            Some(other) => {
                return Err(Failure::operation(
                    "measure latency",
                    format!("the other side said {other:?} meanwhile"),
                ));
            }
            None => {}
        }
        if std::mem::replace(&mut self.seen, self.received) != self.received {
            self.stall.end();
        }
        self.stall.go_on(&self.session.cq)?;
        let now = Instant::now();
        if self.progress.is_due(now) {
            self.progress.show(now, self.share)?;
            self.session.flows[0].check()?;
            self.session.control.say_alive(now)?;
        }
        Ok(false)
    }

    /// Checks the message that has arrived. The last octet of a Write can be there before others
    /// that were lost, so it waits for those.
    fn check(&mut self, sequence: u64) -> Outcome {
        let operation = self.operation();
        if operation == Operation::FetchAdd {
            let good = check_count(self.session.flows[0].incoming()?, 0, sequence)?;
            self.bad += u64::from(!good);
            return Ok(());
        }
        // The mark is not part of the pattern; a Read always brings the same.
        let len = self.size as usize - usize::from(operation == Operation::Write);
        let sequence = if operation == Operation::Read {
            0
        } else {
            sequence
        };
        let patience = std::time::Duration::from_secs(2);
        let started = Instant::now();
        loop {
            let flow = &self.session.flows[0];
            let good = self
                .pattern
                .check(flow.incoming()?, 0, flow.index, sequence, len)?;
            if good {
                return Ok(());
            }
            if operation != Operation::Write || started.elapsed() > patience {
                self.bad += 1;
                return Ok(());
            }
            self.poll()?;
        }
    }
}
