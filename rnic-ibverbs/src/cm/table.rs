//! What the engine's events are for: the connections and listeners of each adapter, and the ids that they belong to.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rnic_verbs::{ConnectionEvent, ConnectionEvents, EndReason, Listener, QpNumber};
use tracing::debug;

use crate::abi::RDMA_CM_EVENT_DEVICE_REMOVAL;
use crate::adapter::Adapter;
use crate::cm::event::What;
use crate::cm::id::Id;
use crate::cm::outcome;
use crate::cm::request;
use crate::dispatch::spawn;
use crate::errno::{Errno, lock};
use crate::objects::Qp;
use crate::registry::on_leaving;

/// How long a connection that the program has ended may take to be over before its queue pair is destroyed.
const LONGEST_END: Duration = Duration::from_secs(2);

/// How long a listener that was destroyed goes on if a peer has connected to it. Programs such as perftest agree on something over the
/// first connection, and then listen again at the same port. Their peers come back at once: they wait for the next listener, or are
/// rejected in the end. perftest's server sleeps for a second before it listens again.
const LINGER: Duration = Duration::from_secs(5);

/// The connections and listeners on an adapter.
struct Table {
    adapter: usize,
    process: u32,
    /// Taken by the dispatcher, one at a time.
    events: Mutex<ConnectionEvents>,
    connections: Mutex<HashMap<QpNumber, Arc<Id>>>,
    listeners: Mutex<Vec<Listening>>,
    /// Listeners that were destroyed and [linger](LINGER).
    lingering: Mutex<Vec<Arc<Listener>>>,
    /// Held while listeners are asked, so that who removes one knows when it is not used any more.
    asking: Mutex<()>,
    /// Ids on the device.
    ids: Mutex<Vec<std::sync::Weak<Id>>>,
}

#[derive(Clone)]
struct Listening {
    listener: Arc<Listener>,
    id: Arc<Id>,
}

/// The tables of this process.
static TABLES: Mutex<Vec<Arc<Table>>> = Mutex::new(Vec::new());

/// Returns the table of an adapter, if there is one.
fn known(adapter: &Adapter) -> Option<Arc<Table>> {
    find(&lock(&TABLES), adapter)
}

fn find(tables: &[Arc<Table>], adapter: &Adapter) -> Option<Arc<Table>> {
    let process = std::process::id();
    let this = |table: &&Arc<Table>| table.adapter == adapter.index && table.process == process;
    tables.iter().find(this).cloned()
}

/// Returns the table of an adapter, and opens its device.
fn table(adapter: &'static Adapter) -> Result<Arc<Table>, Errno> {
    let device = adapter.device()?;
    let new = {
        let mut tables = lock(&TABLES);
        if let Some(known) = find(&tables, adapter) {
            return Ok(known);
        }
        let events = device.connection_events().ok_or(Errno::EBUSY)?;
        let new = Arc::new(Table::new(adapter, events));
        // What a fork inherited stays: it belongs to the parent.
        tables.push(new.clone());
        new
    };
    on_leaving(leaving);
    adapter.on_events(dispatch);
    Ok(new)
}

/// Hands the engine's events to the ids that they are for.
fn dispatch(adapter: &'static Adapter) {
    if let Some(table) = known(adapter) {
        table.hand_on_events();
        table.ask_listeners();
    }
}

impl Table {
    fn new(adapter: &Adapter, events: ConnectionEvents) -> Self {
        Self {
            adapter: adapter.index,
            process: std::process::id(),
            events: Mutex::new(events),
            connections: Mutex::default(),
            listeners: Mutex::default(),
            lingering: Mutex::default(),
            asking: Mutex::default(),
            ids: Mutex::default(),
        }
    }

    fn hand_on_events(&self) {
        let mut is_gone = false;
        loop {
            let Some((qp, event)) = lock(&self.events).take() else {
                break;
            };
            is_gone |= matches!(event, ConnectionEvent::Disconnected(EndReason::DeviceGone));
            let id = lock(&self.connections).get(&qp).cloned();
            match id {
                Some(id) => outcome::tell(&id, event),
                None => debug!("{qp}: nobody waits for {event:?}"),
            }
        }
        if is_gone {
            self.tell_removal();
        }
    }

    fn ask_listeners(&self) {
        let _asking = lock(&self.asking);
        let listeners = lock(&self.listeners).clone();
        for one in listeners {
            loop {
                match one.listener.next_request(Duration::ZERO) {
                    Ok(Some(asked)) => request::tell(&one.id, asked),
                    Ok(None) => break,
                    Err(why) => {
                        debug!("a listener has ended: {why}");
                        lock(&self.listeners)
                            .retain(|known| !Arc::ptr_eq(&known.listener, &one.listener));
                        one.id.tell(What::new(RDMA_CM_EVENT_DEVICE_REMOVAL, 0));
                        break;
                    }
                }
            }
        }
    }

    /// Keeps a listener for a while.
    fn linger(self: &Arc<Self>, listener: Arc<Listener>) {
        lock(&self.lingering).push(listener.clone());
        let (table, weak) = (self.clone(), Arc::downgrade(&listener));
        let expire = move || {
            std::thread::sleep(LINGER);
            if let Some(listener) = weak.upgrade() {
                lock(&table.lingering).retain(|one| !Arc::ptr_eq(one, &listener));
            }
        };
        // Without a thread it ends now.
        if spawn("rnic-linger", expire).is_err() {
            lock(&self.lingering).retain(|one| !Arc::ptr_eq(one, &listener));
        }
    }

    /// Tells all connections that the device is gone.
    fn tell_removal(&self) {
        let ids: Vec<_> = std::mem::take(&mut *lock(&self.ids));
        for id in ids.iter().filter_map(std::sync::Weak::upgrade) {
            id.tell(What::new(RDMA_CM_EVENT_DEVICE_REMOVAL, 0));
        }
    }
}

/// Looks after the connection of a queue pair that is about to be destroyed. What the engine reports then does not come any more.
fn leaving(qp: &Qp) {
    let find = || {
        lock(&known(qp.adapter)?.connections)
            .get(&qp.number)
            .cloned()
    };
    let Some(id) = find() else { return };
    // Destroying it would cut the end in order short.
    id.wait_over(LONGEST_END);
    forget_connection(qp.adapter, qp.number);
    outcome::tell_destroyed(&id);
}

/// Has an id told of the events of a queue pair. To be called before the queue pair connects.
pub(super) fn remember_connection(
    adapter: &'static Adapter,
    qp: QpNumber,
    id: &Arc<Id>,
) -> Result<(), Errno> {
    let table = table(adapter)?;
    {
        let mut state = id.state();
        state.connection = Some(qp);
        state.was_begun = true;
    }
    lock(&table.connections).insert(qp, id.clone());
    let mut ids = lock(&table.ids);
    ids.retain(|known| known.strong_count() > 0);
    ids.push(Arc::downgrade(id));
    Ok(())
}

/// Tells an id no more of the events of this queue pair.
pub(super) fn forget_connection(adapter: &Adapter, qp: QpNumber) {
    if let Some(table) = known(adapter) {
        lock(&table.connections).remove(&qp);
    }
}

/// Undoes [`remember_connection`], if that was done.
pub(super) fn forget_connection_of(adapter: &Adapter, id: &Arc<Id>) {
    let begun = {
        let mut state = id.state();
        state.was_begun = false;
        state.connection.take()
    };
    if let Some(qp) = begun {
        forget_connection(adapter, qp);
    }
}

/// Has an id told of the requests to a listener.
pub(super) fn remember_listener(
    adapter: &'static Adapter,
    listener: Arc<Listener>,
    id: &Arc<Id>,
) -> Result<(), Errno> {
    let listening = Listening {
        listener,
        id: id.clone(),
    };
    lock(&table(adapter)?.listeners).push(listening);
    // Requests may have come already.
    adapter.on_events(dispatch);
    Ok(())
}

/// Returns the listener at an address that was destroyed a moment ago, and has gone on since.
pub(super) fn take_lingering(adapter: &Adapter, local: SocketAddr) -> Option<Arc<Listener>> {
    let table = known(adapter)?;
    let mut lingering = lock(&table.lingering);
    let at = lingering
        .iter()
        .position(|one| one.local_address() == local)?;
    Some(lingering.swap_remove(at))
}

/// Drops the listeners of an id, unless they [linger](LINGER). Returns whether there were any that do not.
pub(super) fn forget_listeners(adapter: &Adapter, id: &Arc<Id>) -> bool {
    let Some(table) = known(adapter) else {
        return false;
    };
    let forgotten: Vec<_> = {
        let mut listeners = lock(&table.listeners);
        let of_id = |one: &mut Listening| Arc::ptr_eq(&one.id, id);
        listeners.extract_if(.., of_id).collect()
    };
    drop(lock(&table.asking));
    if id.was_asked.load(Ordering::Relaxed) {
        for one in forgotten {
            table.linger(one.listener);
        }
        return false;
    }
    !forgotten.is_empty()
}
