//! Measuring bandwidth: the client's side.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rnic_verbs::{Completion, SendRequest};

use super::args::{Length, Operation};
use super::buffer::{Layout, Pattern, check_count, clear_at};
use super::flow::grant;
use super::message::Message;
use super::progress::{Idle, Progress};
use super::report::Bandwidth;
use super::session::Session;
use super::stats::{Stretch, Thinned, peak_rate};
use crate::failure::{Doing, Failure, Outcome};

/// The most groups of requests from which the peak is computed, which takes the square of that many
/// steps.
const STRETCHES: usize = 4096;
/// The most completions taken at once.
const BATCH: usize = 64;

/// The progress of one connection.
#[derive(Debug, Default)]
struct Lane {
    posted: u64,
    completed: u64,
    /// For each group of requests in flight: when it began, and how many requests were posted
    /// before.
    groups: VecDeque<(Duration, u64)>,
}

/// A run with one message size.
struct Run<'a> {
    session: &'a mut Session,
    lanes: Vec<Lane>,
    layout: Layout,
    size: u64,
    /// One of this many requests is signalled.
    moderation: u64,
    limit: u64,
    started: Instant,
    posted: u64,
    completed: u64,
    last_completion: Duration,
    stretches: Thinned<Stretch>,
    pattern: Pattern,
    bad: u64,
    idle: Idle,
}

/// Runs one message size. Returns the figures, and how many messages were corrupt.
pub(super) fn run(
    session: &mut Session,
    size: u64,
    length: Length,
    progress: &mut Progress,
) -> Outcome<(Bandwidth, u64)> {
    let hello = session.hello;
    let mut layout = Layout::new(hello.largest, size, hello.depth, hello.verify);
    if hello.test.operation() == Operation::Send {
        layout.depth = layout.depth.min(super::receives::layout(&hello).depth);
    }
    let lanes = session.flows.iter().map(|_| Lane::default()).collect();
    let limit = match length {
        Length::Iterations(count) => count,
        Length::Time { .. } => u64::MAX,
    };
    let mut run = Run {
        lanes,
        moderation: (layout.depth / 4).clamp(1, 64),
        layout,
        size,
        limit,
        started: Instant::now(),
        posted: 0,
        completed: 0,
        last_completion: Duration::ZERO,
        stretches: Thinned::new(STRETCHES),
        pattern: Pattern::default(),
        bad: 0,
        idle: Idle::new(&session.cq),
        session,
    };
    let row = match length {
        Length::Iterations(count) => run.until_all_complete(count, progress)?,
        Length::Time { duration, margin } => run.for_a_time(duration, margin, progress)?,
    };
    let hello = run.session.hello;
    if hello.verify && hello.test.operation() == Operation::Write {
        run.until_placed(progress)?;
    }
    Ok((row, run.bad))
}

impl Run<'_> {
    /// Runs for a number of messages on each connection. The time is that from the first post to
    /// the last completion.
    fn until_all_complete(&mut self, count: u64, progress: &mut Progress) -> Outcome<Bandwidth> {
        let total = count as f64 * self.lanes.len() as f64;
        while !self.is_complete() {
            self.step()?;
            let now = Instant::now();
            if progress.is_due(now) {
                progress.show(now, self.completed as f64 / total)?;
                self.look_up(now)?;
            }
        }
        Ok(self.figures(self.completed, self.last_completion))
    }

    /// Runs for a time, or until the user ends it. What completes inside the margins does not
    /// count, unless it ends within the first one.
    fn for_a_time(
        &mut self,
        mut duration: Duration,
        margin: Duration,
        progress: &mut Progress,
    ) -> Outcome<Bandwidth> {
        let mut begin = None;
        let mut end = None;
        while !self.is_complete() {
            self.step()?;
            let now = Instant::now();
            let elapsed = now - self.started;
            if elapsed >= margin && end.is_none() {
                begin.get_or_insert((elapsed, self.completed));
            }
            if elapsed >= duration.saturating_sub(margin) {
                end.get_or_insert((elapsed, self.completed));
            }
            if elapsed >= duration && self.limit == u64::MAX {
                self.limit = self.last_signalled();
            }
            if progress.is_due(now) {
                progress.show(now, elapsed.as_secs_f64() / duration.as_secs_f64())?;
                if progress.has_ended_early() {
                    duration = duration.min(elapsed);
                }
                self.look_up(now)?;
            }
        }
        let nothing = (Duration::ZERO, 0);
        let ((from, before), (to, after)) = (begin.unwrap_or(nothing), end.unwrap_or(nothing));
        Ok(self.figures(after - before, to - from))
    }

    /// Waits until the server's memory has what was written. A Write completes when TCP has
    /// delivered it, and a relay on the way may have it still; a Read of nothing is answered when
    /// what was written ahead of it is placed (RFC 5040 section 5.5).
    fn until_placed(&mut self, progress: &mut Progress) -> Outcome {
        for flow in &mut self.session.flows {
            let request = SendRequest::read(flow.remote(0)).memory(&[]);
            flow.qp.post_send(&request).doing("post a request")?;
        }
        let mut left = self.session.flows.len();
        while left > 0 {
            let mut completions = [Completion::default(); BATCH];
            let count = self.session.cq.poll(&mut completions);
            for completion in &completions[..count] {
                self.session.check(completion)?;
                left -= 1;
            }
            let now = Instant::now();
            if progress.is_due(now) {
                progress.show(now, 1.0)?;
                self.look_up(now)?;
            }
            self.idle.after(count, &self.session.cq)?;
        }
        Ok(())
    }

    /// Returns a number of messages at which every connection can stop: its last request makes a
    /// completion.
    fn last_signalled(&self) -> u64 {
        let most = self.lanes.iter().map(|lane| lane.posted).max().unwrap_or(0);
        most.next_multiple_of(self.moderation)
    }

    fn is_complete(&self) -> bool {
        self.lanes.iter().all(|lane| lane.completed >= self.limit)
    }

    fn figures(&self, messages: u64, time: Duration) -> Bandwidth {
        let seconds = time.as_secs_f64();
        Bandwidth {
            size: self.size,
            iterations: self.completed,
            peak_rate: peak_rate(self.stretches.items()),
            rate: if seconds > 0.0 {
                messages as f64 / seconds
            } else {
                0.0
            },
        }
    }

    /// Posts as many requests as fit, and takes completions.
    fn step(&mut self) -> Outcome {
        let mut blocked = false;
        for lane in 0..self.lanes.len() {
            blocked |= self.post(lane)?;
        }
        let mut completions = [Completion::default(); BATCH];
        let count = self.session.cq.poll(&mut completions);
        for completion in &completions[..count] {
            self.complete(completion)?;
        }
        if blocked && count == 0 {
            self.take_credits()?;
        }
        self.idle.after(count, &self.session.cq)
    }

    /// Fills the send queue of a connection. Returns whether the other side's receives are used up.
    fn post(&mut self, index: usize) -> Outcome<bool> {
        let operation = self.session.hello.test.operation();
        let verify = self.session.hello.verify;
        let lane = &mut self.lanes[index];
        let flow = &mut self.session.flows[index];
        while lane.posted < self.limit && lane.posted - lane.completed < self.layout.depth {
            if operation == Operation::Send && flow.used == flow.granted {
                return Ok(true);
            }
            let sequence = lane.posted;
            let (at, len) = (self.layout.offset(sequence), self.size as usize);
            if sequence.is_multiple_of(self.moderation) {
                lane.groups.push_back((self.started.elapsed(), self.posted));
            }
            let local = if operation.brings() {
                flow.incoming()?
            } else {
                flow.outgoing()?
            };
            if verify && !operation.brings() {
                self.pattern.fill(local, at, flow.index, sequence, len)?;
            }
            let pieces = [local.sge(at, self.size as u32)];
            let pieces = if self.size == 0 { &[][..] } else { &pieces };
            let last = (sequence + 1).is_multiple_of(self.moderation) || sequence + 1 == self.limit;
            let request = match operation {
                Operation::Write => SendRequest::write(flow.remote(at)),
                Operation::Read => SendRequest::read(flow.remote(at)),
                Operation::Send => SendRequest::send(),
                Operation::FetchAdd => SendRequest::fetch_add(flow.remote(at), 1),
            };
            let request = request.memory(pieces).wr_id(sequence).signaled(last);
            flow.qp.post_send(&request).doing("post a request")?;
            flow.used += u64::from(operation == Operation::Send);
            lane.posted += 1;
            self.posted += 1;
        }
        Ok(false)
    }

    fn complete(&mut self, completion: &Completion) -> Outcome {
        self.session.check(completion)?;
        let index = self.session.flow(completion.qp())?;
        let lane = &mut self.lanes[index];
        let done = lane.completed..completion.wr_id() + 1;
        self.completed += done.end - done.start;
        lane.completed = done.end;
        self.last_completion = self.started.elapsed();
        if let Some((posted, before)) = lane.groups.pop_front() {
            let (completed, after) = (self.last_completion, self.completed);
            self.stretches.push(Stretch {
                posted,
                completed,
                before,
                after,
            });
        }
        if self.session.hello.verify {
            self.check(index, done)?;
        }
        Ok(())
    }

    /// Checks the data that these messages brought, if they bring any.
    fn check(&mut self, index: usize, done: std::ops::Range<u64>) -> Outcome {
        let operation = self.session.hello.test.operation();
        if !operation.brings() {
            return Ok(());
        }
        let flow = &self.session.flows[index];
        let (mr, size) = (flow.incoming()?, self.size as usize);
        for sequence in done {
            // The server's memory has one content for each slot.
            let slot = sequence % self.layout.slots;
            let at = self.layout.offset(slot);
            let good = match operation {
                Operation::FetchAdd => check_count(mr, at, sequence / self.layout.slots)?,
                _ => self.pattern.check(mr, at, flow.index, slot, size)?,
            };
            self.bad += u64::from(!good);
            clear_at(mr, at, size)?;
        }
        Ok(())
    }

    /// Checks that the connections are up, and takes messages of the other side. Called now and
    /// then.
    fn look_up(&mut self, now: Instant) -> Outcome {
        self.take_credits()?;
        for flow in &mut self.session.flows {
            flow.check()?;
        }
        self.session.control.say_alive(now)
    }

    fn take_credits(&mut self) -> Outcome {
        while let Some(message) = self.session.control.poll()? {
            let Message::Credit { flow, count } = message else {
                return Err(Failure::operation(
                    "run the test",
                    format!("the server said {message:?} meanwhile"),
                ));
            };
            grant(&mut self.session.flows, flow, count)?;
        }
        Ok(())
    }
}
