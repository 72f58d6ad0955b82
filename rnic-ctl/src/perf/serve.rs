//! The server's side of a run.

use std::time::{Duration, Instant};

use rnic_verbs::{Completion, WcOpcode};

use super::args::Test;
use super::buffer::{Layout, Pattern, checksum, clear};
use super::latency::PingPong;
use super::message::Message;
use super::progress::{Idle, Progress};
use super::receives::{self, Receive};
use super::report::Row;
use super::session::Session;
use crate::failure::{Failure, Outcome};
use crate::interrupt::Interrupt;

/// A client measures one size, or with -a all powers of two.
const MAX_RUNS: usize = 64;

/// Serves runs until the client has no more. Calls `report` with each result that the client
/// measured.
pub(super) fn serve(
    session: &mut Session,
    interrupt: &Interrupt,
    mut report: impl FnMut(Row) -> Outcome,
) -> Outcome {
    let (mut runs, mut reported) = (0, 0);
    loop {
        match receive(session, interrupt)? {
            Message::Begin { size } if runs < MAX_RUNS && session.hello.is_possible(size) => {
                runs += 1;
                run(session, size, interrupt)?
            }
            Message::Figures(figures) if reported < runs => {
                reported = runs;
                report(Row::from_figures(session.hello.test, figures))?;
            }
            Message::Bye => return Ok(()),
            other => return Err(unexpected(&other)),
        }
    }
}

fn unexpected(message: &Message) -> Failure {
    Failure::operation(
        "serve the client",
        format!("it said {message:?}, which makes no sense now"),
    )
}

fn receive(session: &mut Session, interrupt: &Interrupt) -> Outcome<Message> {
    let Session { control, flows, .. } = session;
    control.receive(interrupt, || {
        flows.iter_mut().try_for_each(|flow| flow.check())
    })
}

fn run(session: &mut Session, size: u64, interrupt: &Interrupt) -> Outcome {
    let hello = session.hello;
    let layout = Layout::new(hello.largest, size, hello.depth, hello.verify);
    prepare(session, size, &layout)?;
    session.control.send(&Message::Ready)?;
    let mut progress = Progress::new(interrupt, false, false);
    let (messages, bad) = match hello.test {
        Test::WriteBw | Test::ReadBw | Test::ReadLat | Test::AtomicBw | Test::AtomicLat => {
            match receive(session, interrupt)? {
                Message::Done { messages } => (messages, 0),
                other => return Err(unexpected(&other)),
            }
        }
        Test::SendBw => Sink::new(session, size).run(&mut progress)?,
        Test::WriteLat | Test::SendLat => PingPong::new(session, size, &mut progress).answer()?,
    };
    let checksum = if hello.verify && hello.test == Test::WriteBw {
        arrived(session, &layout)?
    } else {
        0
    };
    session.control.send(&Message::Arrived {
        messages,
        checksum,
        bad,
    })
}

/// Fills the memory with what the test expects there.
fn prepare(session: &Session, size: u64, layout: &Layout) -> Outcome {
    let hello = session.hello;
    let mut pattern = Pattern::default();
    for flow in &session.flows {
        match hello.test {
            Test::WriteLat => clear(flow.incoming()?, size as usize)?,
            Test::WriteBw if hello.verify => clear(flow.incoming()?, layout.len())?,
            Test::AtomicBw | Test::AtomicLat => clear(flow.outgoing()?, layout.len())?,
            Test::ReadBw | Test::ReadLat if hello.verify => {
                for slot in 0..layout.slots {
                    let at = layout.offset(slot);
                    pattern.fill(flow.outgoing()?, at, flow.index, slot, size as usize)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns the checksum of the memory that the client wrote to.
fn arrived(session: &Session, layout: &Layout) -> Outcome<u32> {
    session
        .flows
        .iter()
        .try_fold(0, |sum, flow| checksum(flow.incoming()?, layout.len(), sum))
}

/// Receives the messages of `send-bw`, and posts their buffers again.
struct Sink<'a> {
    session: &'a mut Session,
    size: u64,
    /// Buffers that are posted again before the client gets a Credit.
    credit: u64,
    received: Vec<u64>,
    untold: Vec<u64>,
    pattern: Pattern,
    bad: u64,
    idle: Idle,
}

impl<'a> Sink<'a> {
    fn new(session: &'a mut Session, size: u64) -> Self {
        let receives = receives::layout(&session.hello).depth;
        let lanes = session.flows.len();
        Self {
            idle: Idle::new(&session.cq),
            session,
            size,
            credit: (receives / 4).max(1),
            received: vec![0; lanes],
            untold: vec![0; lanes],
            pattern: Pattern::default(),
            bad: 0,
        }
    }

    fn run(mut self, progress: &mut Progress) -> Outcome<(u64, u64)> {
        let mut expected: Option<(u64, Instant)> = None;
        let mut fruitless = 0_u32;
        loop {
            let total: u64 = self.received.iter().sum();
            if let Some((messages, since)) = expected {
                if total >= messages {
                    // Both sides must count the same in the next run.
                    self.tell_all()?;
                    return Ok((total, self.bad));
                }
                if since.elapsed() > Duration::from_secs(5) {
                    let why = format!("{total} of {messages} messages arrived");
                    return Err(Failure::operation("receive", why));
                }
            }
            let mut completions = [Completion::default(); 64];
            let count = self.session.cq.poll(&mut completions);
            for completion in &completions[..count] {
                self.take(completion)?;
            }
            fruitless = if count == 0 { fruitless + 1 } else { 0 };
            self.idle.after(count, &self.session.cq)?;
            if count == 0 && fruitless.is_multiple_of(64) {
                match self.session.control.poll()? {
                    Some(Message::Done { messages }) => expected = Some((messages, Instant::now())),
                    Some(other) => return Err(unexpected(&other)),
                    None => {}
                }
            }
            let now = Instant::now();
            if progress.is_due(now) {
                progress.show(now, 0.0)?;
                self.session
                    .flows
                    .iter_mut()
                    .try_for_each(|flow| flow.check())?;
                self.session.control.say_alive(now)?;
            }
        }
    }

    fn take(&mut self, completion: &Completion) -> Outcome {
        self.session.check(completion)?;
        if completion.opcode() != WcOpcode::Recv {
            return Ok(());
        }
        let hello = self.session.hello;
        let index = self.session.flow(completion.qp())?;
        let flow = &self.session.flows[index];
        let receive = Receive::of(completion.wr_id());
        let owner = &self.session.flows[usize::from(receive.flow)];
        let good = u64::from(completion.byte_len()) == self.size
            && (!hello.verify || {
                let at = receives::layout(&hello).offset(receive.slot);
                let sequence = self.received[index];
                self.pattern.check(
                    owner.incoming()?,
                    at,
                    flow.index,
                    sequence,
                    self.size as usize,
                )?
            });
        self.bad += u64::from(!good);
        self.session.post_receive(receive)?;
        self.received[index] += 1;
        self.untold[index] += 1;
        if self.untold[index] >= self.credit {
            self.tell(index)?;
        }
        Ok(())
    }

    fn tell(&mut self, index: usize) -> Outcome {
        let count = std::mem::take(&mut self.untold[index]);
        self.session.control.send(&Message::Credit {
            flow: index as u32,
            count,
        })
    }

    fn tell_all(&mut self) -> Outcome {
        for index in 0..self.untold.len() {
            if self.untold[index] > 0 {
                self.tell(index)?;
            }
        }
        Ok(())
    }
}
