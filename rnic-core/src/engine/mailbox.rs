//! What an application and a worker share: commands go one way, events the other.
//!
//! Work requests and completions do not pass through here: they have rings of their own.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::connection::{Event, Notice};
use crate::ids::QpNumber;
use crate::memory::{doorbell::Doorbells, table::StagTable};

use super::Command;
use super::events::Events;
use super::owners::{EnginePlace, places};

/// The application's end of a mailbox.
#[derive(Clone)]
pub struct HostEnd {
    /// The STag table, which all workers share.
    pub table: Arc<StagTable>,
    /// Rung after posting to a queue pair.
    pub doorbells: Arc<Doorbells>,
    /// Events of the engine.
    pub events: Arc<Events>,
    commands: Sender<Command>,
    wake: Waker,
}

impl HostEnd {
    /// Sends a command and wakes the worker if it sleeps. Fails if the worker has ended.
    pub fn send(&self, command: Command) -> Result<(), WorkerGone> {
        self.commands.send(command).map_err(|_| WorkerGone)?;
        if self.doorbells.ring_commands() {
            self.wake.wake_by_ref();
        }
        Ok(())
    }

    /// Tells the worker that requests were posted to a queue pair.
    pub fn ring(&self, qp: QpNumber) {
        if self.ring_only(qp) {
            self.wake();
        }
    }

    /// Tells the worker that requests were posted to a queue pair, without waking it. Returns
    /// whether the worker sleeps. If so, the caller must [wake](Self::wake) it or run a turn in its
    /// place.
    #[inline]
    #[must_use = "if true, the worker sleeps and has to be woken"]
    pub fn ring_only(&self, qp: QpNumber) -> bool {
        self.doorbells.ring(qp.0)
    }

    /// Wakes the worker.
    pub fn wake(&self) {
        self.wake.wake_by_ref();
    }
}

/// The worker has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the worker that drives this device has ended; open the device again")]
pub struct WorkerGone;

/// The worker's end of a mailbox.
pub struct EngineEnd {
    /// The STag table of the host.
    pub table: Arc<StagTable>,
    /// Which queue pairs have new requests.
    pub doorbells: Arc<Doorbells>,
    /// Commands of the host.
    pub commands: Receiver<Command>,
    /// Where events go.
    pub events: Arc<Events>,
    number: u16,
    /// The engine's place among several of the device.
    pub(super) place: Option<EnginePlace>,
}

impl EngineEnd {
    /// Returns the number of the engine among those of the device.
    pub fn number(&self) -> u16 {
        self.number
    }
}

impl Drop for EngineEnd {
    /// Tells the host that the worker has ended. Nothing else does.
    fn drop(&mut self) {
        self.events.tell(Notice {
            stream: None,
            event: Event::WorkerEnded,
        });
    }
}

/// Makes a mailbox. `wake` wakes the worker when it sleeps.
pub fn mailbox(table: Arc<StagTable>, max_qps: u32, wake: Waker) -> (HostEnd, EngineEnd) {
    one_mailbox(table, max_qps, wake, Arc::default(), 0)
}

/// Makes the mailboxes of several engines of one device, one for each waker. They share the STag
/// table and the queue of events: each host end yields the events of all engines.
pub fn mailboxes(
    table: &Arc<StagTable>,
    max_qps: u32,
    wakes: Vec<Waker>,
) -> Vec<(HostEnd, EngineEnd)> {
    let events: Arc<Events> = Arc::default();
    let mut mailboxes: Vec<_> = (0..)
        .zip(wakes)
        .map(|(number, wake)| one_mailbox(table.clone(), max_qps, wake, events.clone(), number))
        .collect();
    if mailboxes.len() > 1 {
        let ways = mailboxes.iter().map(|(host, _)| {
            let (commands, doorbells) = (host.commands.clone(), host.doorbells.clone());
            (commands, doorbells, host.wake.clone())
        });
        let places = places(ways);
        for ((_, engine), place) in mailboxes.iter_mut().zip(places) {
            engine.place = Some(place);
        }
    }
    mailboxes
}

fn one_mailbox(
    table: Arc<StagTable>,
    max_qps: u32,
    wake: Waker,
    events: Arc<Events>,
    number: u16,
) -> (HostEnd, EngineEnd) {
    let (commands, commands_end) = unbounded();
    let doorbells = Arc::new(Doorbells::new(max_qps));
    (
        HostEnd {
            table: table.clone(),
            doorbells: doorbells.clone(),
            events: events.clone(),
            commands,
            wake,
        },
        EngineEnd {
            table,
            doorbells,
            commands: commands_end,
            events,
            number,
            place: None,
        },
    )
}

/// Anything that drives an engine by one turn of its loop.
pub trait Turn: Send {
    /// Handles everything that waits, without blocking. Returns whether there was anything.
    fn turn(&mut self) -> bool;

    /// Returns whether no connection owes its peer anything: each is over, or only waits out its
    /// TIME-WAIT.
    fn is_settled(&self) -> bool;

    /// Blocks until there may be something to do, for `at_most` at most.
    fn wait(&mut self, at_most: Duration);
}

/// A [`Turn`] whose worker sleeps without holding the engine, so that other threads can take turns
/// meanwhile.
pub trait SplitTurn: Turn {
    /// Begins a sleep of `at_most`: from here on a doorbell or a command wakes the [`Sleeper`].
    /// Returns how long the sleep may last, or `None` if there is something to do.
    ///
    /// A thread that took a turn during a sleep calls it again: what it did may have brought a
    /// timer that expires earlier, and used up a ring.
    fn begin_sleep(&mut self, at_most: Duration) -> Option<Duration>;

    /// Returns where the worker sleeps. It may be another place for the next sleep.
    fn sleeper(&mut self) -> Arc<dyn Sleeper>;
}

/// Where a worker sleeps.
pub trait Sleeper: Send + Sync {
    /// Sleeps until a frame arrives, the worker is woken, or `at_most` has passed. After it
    /// doorbells wake nobody.
    fn sleep(&self, at_most: Duration);

    /// Ends this sleep, or the next one at once.
    fn wake(&self);
}
