//! Connection events: each goes from the engine to the part of the library that began the
//! connection.

use std::mem::ManuallyDrop;
use std::sync::Mutex;
use std::time::Instant;

use rnic_verbs::{ConnectionEvent, ConnectionEvents, QpNumber};
use tracing::debug;

use crate::adapter::Adapter;
use crate::errno::{Errno, lock};

/// Takes the event of a queue pair, or returns it if that is not its own.
pub(crate) type Taker = fn(&'static Adapter, QpNumber, ConnectionEvent) -> Option<ConnectionEvent>;

/// Who reads the events of a device. Never dropped in a child, which must not touch it.
struct Reader {
    adapter: usize,
    process: u32,
    events: ManuallyDrop<ConnectionEvents>,
}

static READERS: Mutex<Vec<Reader>> = Mutex::new(Vec::new());
static TAKERS: Mutex<Vec<Taker>> = Mutex::new(Vec::new());

/// Returns the locks of both lists, which a child makes new.
pub(crate) fn renewed() -> (&'static Mutex<impl Default>, &'static Mutex<impl Default>) {
    (&READERS, &TAKERS)
}

/// Has `taker` asked, behind those before it, whose event each one of this adapter is. A taker that
/// is registered already is not asked twice.
pub(crate) fn on_event(adapter: &'static Adapter, taker: Taker) -> Result<(), Errno> {
    let device = adapter.device()?;
    let process = std::process::id();
    let mut readers = lock(&READERS);
    let is_this = |reader: &Reader| reader.adapter == adapter.index && reader.process == process;
    if !readers.iter().any(is_this) {
        readers.push(Reader {
            adapter: adapter.index,
            process,
            events: ManuallyDrop::new(device.connection_events().ok_or(Errno::EBUSY)?),
        });
    }
    drop(readers);
    let mut takers = lock(&TAKERS);
    if !takers
        .iter()
        .any(|known| std::ptr::fn_addr_eq(*known, taker))
    {
        takers.push(taker);
    }
    drop(takers);
    adapter.on_events(hand_on);
    Ok(())
}

/// Hands the events of an adapter to their takers: a handler of its dispatcher.
fn hand_on(adapter: &'static Adapter) -> Option<Instant> {
    while let Some((queue_pair, event)) = next(adapter) {
        let takers = lock(&TAKERS).clone();
        let offer = |event, taker: Taker| taker(adapter, queue_pair, event);
        let left = takers.into_iter().try_fold(event, offer);
        if let Some(event) = left {
            debug!("{queue_pair}: nobody waits for {event:?}");
        }
    }
    None
}

fn next(adapter: &Adapter) -> Option<(QpNumber, ConnectionEvent)> {
    let process = std::process::id();
    let mut readers = lock(&READERS);
    let is_this =
        |reader: &&mut Reader| reader.adapter == adapter.index && reader.process == process;
    readers.iter_mut().find(is_this)?.events.take()
}
