//! What the engine's events are for: the connections and listeners of each adapter, and the ids
//! that they belong to.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rnic_verbs::{ConnectionEvent, EndReason, Listener, Peers, Prefix, QpNumber};
use tracing::debug;

use crate::abi::RDMA_CM_EVENT_DEVICE_REMOVAL;
use crate::adapter::Adapter;
use crate::cm::ends::Ends;
use crate::cm::event::EventData;
use crate::cm::id::{Id, Phase};
use crate::cm::outcome;
use crate::cm::request;
use crate::connections;
use crate::dispatch::spawn;
use crate::errno::{Errno, lock};
use crate::objects::Qp;
use crate::registry::on_leaving;

/// How long a connection that the program has ended may take to be over before its queue pair is
/// destroyed, if there are requests that the peer has not acknowledged. If there are none, the
/// engine ends the connection in order without a queue pair, but for the moment in which the
/// connection begins.
const LONGEST_END: Duration = Duration::from_secs(2);
const PROMPT_END: Duration = Duration::from_millis(100);

/// How long a listener that was destroyed goes on for the one peer that has connected to it, while
/// that connection lives. perftest's two sides agree on their test over a first connection, and
/// then the server listens again at the same port, a second later. Its client does not wait for
/// that, and dies if it is refused: it waits for the next listener, or is rejected in the end. All
/// others are refused at once, as by the kernel.
const LINGER: Duration = Duration::from_secs(5);

/// The connections and listeners on an adapter.
struct Table {
    adapter: usize,
    process: u32,
    connections: Mutex<HashMap<QpNumber, Arc<Id>>>,
    ends: Ends,
    listeners: Mutex<Vec<Listening>>,
    /// Listeners that were destroyed and [linger](LINGER).
    lingering: Mutex<Vec<Lingering>>,
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

/// A listener that goes on for the peer of a connection.
struct Lingering {
    listener: Arc<Listener>,
    connection: Arc<Id>,
}

/// The tables of this process.
static TABLES: Mutex<Vec<Arc<Table>>> = Mutex::new(Vec::new());

/// Returns the lock of the tables, which a child makes new.
pub(super) fn renewed() -> &'static Mutex<impl Default> {
    &TABLES
}

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
    adapter.device()?;
    let new = {
        let mut tables = lock(&TABLES);
        if let Some(known) = find(&tables, adapter) {
            return Ok(known);
        }
        let new = Arc::new(Table::new(adapter));
        // What a fork inherited stays: it belongs to the parent.
        tables.push(new.clone());
        new
    };
    on_leaving(leaving);
    connections::on_event(adapter, take)?;
    adapter.on_events(dispatch);
    Ok(new)
}

/// Hands the requests of peers to the ids that listen.
fn dispatch(adapter: &'static Adapter) -> Option<Instant> {
    let table = known(adapter)?;
    table.ask_listeners();
    let again = table.ends.tell_due(adapter, Instant::now());
    table.end_lingering_of_ended();
    again
}

/// Hands an event of the engine to the id that it is for.
fn take(
    adapter: &'static Adapter,
    qp: QpNumber,
    event: ConnectionEvent,
) -> Option<ConnectionEvent> {
    let Some(table) = known(adapter) else {
        return Some(event);
    };
    let is_gone = matches!(event, ConnectionEvent::Disconnected(EndReason::DeviceGone));
    let id = lock(&table.connections).get(&qp).cloned();
    let left = match id {
        Some(id) if matches!(event, ConnectionEvent::Disconnected(_)) && !is_gone => {
            table.ends.tell(adapter, qp, id, event);
            None
        }
        Some(id) => {
            outcome::tell(&id, event);
            None
        }
        None => Some(event),
    };
    if is_gone {
        table.tell_removal();
    }
    left
}

/// Returns whether a connection has begun and is not over.
fn is_alive(connection: &Id) -> bool {
    let phase = connection.state().phase;
    matches!(phase, Phase::Connecting | Phase::Connected)
}

impl Table {
    fn new(adapter: &Adapter) -> Self {
        Self {
            adapter: adapter.index,
            process: std::process::id(),
            connections: Mutex::default(),
            ends: Ends::default(),
            listeners: Mutex::default(),
            lingering: Mutex::default(),
            asking: Mutex::default(),
            ids: Mutex::default(),
        }
    }

    fn ask_listeners(&self) {
        let _asking = lock(&self.asking);
        let listeners = lock(&self.listeners).clone();
        for one in listeners {
            loop {
                match one.listener.next_request(Duration::ZERO) {
                    Ok(Some(asked)) => {
                        self.ends.tell_of(asked.peer().ip());
                        request::tell(&one.id, asked);
                    }
                    Ok(None) => break,
                    Err(why) => {
                        debug!("a listener has ended: {why}");
                        lock(&self.listeners)
                            .retain(|known| !Arc::ptr_eq(&known.listener, &one.listener));
                        one.id.tell(EventData::new(RDMA_CM_EVENT_DEVICE_REMOVAL, 0));
                        break;
                    }
                }
            }
        }
    }

    /// Returns the connection that came by the listener at this port, if there is one only.
    fn sole_connection_at(&self, port: u16) -> Option<Arc<Id>> {
        let ids: Vec<_> = lock(&self.connections).values().cloned().collect();
        let came = ids.into_iter().filter(|id| {
            let state = id.state();
            state.is_passive && state.local.is_some_and(|local| local.port() == port)
        });
        let came: Vec<_> = came.collect();
        let [sole] = <[_; 1]>::try_from(came).ok()?;
        is_alive(&sole).then_some(sole)
    }

    /// Keeps a listener for a while, for the peer of a connection.
    fn linger(self: &Arc<Self>, listener: Arc<Listener>, connection: Arc<Id>) {
        let peer = connection.state().remote.map(|remote| remote.ip());
        let only = Peers::only(peer.map(|peer| Prefix::new(peer, u8::MAX)));
        if listener.limit(&only).is_err() {
            return;
        }
        // Whoever asks already is rejected.
        while let Ok(Some(asked)) = listener.next_request(Duration::ZERO) {
            drop(asked);
        }
        let (table, weak) = (self.clone(), Arc::downgrade(&listener));
        lock(&self.lingering).push(Lingering {
            listener,
            connection,
        });
        let expire = move || {
            std::thread::sleep(LINGER);
            if let Some(listener) = weak.upgrade() {
                table.end_lingering(|one| Arc::ptr_eq(&one.listener, &listener));
            }
        };
        // Without a thread it ends now.
        if spawn("rnic-linger", expire).is_err() {
            self.end_lingering(|_| true);
        }
    }

    /// Ends listeners that linger.
    fn end_lingering(&self, ends: impl Fn(&Lingering) -> bool) {
        lock(&self.lingering).retain(|one| !ends(one));
    }

    /// Ends the listeners that linger for a connection that is over.
    fn end_lingering_of_ended(&self) {
        self.end_lingering(|one| !is_alive(&one.connection));
    }

    /// Tells all connections that the device is gone.
    fn tell_removal(&self) {
        let ids: Vec<_> = std::mem::take(&mut *lock(&self.ids));
        for id in ids.iter().filter_map(std::sync::Weak::upgrade) {
            id.tell(EventData::new(RDMA_CM_EVENT_DEVICE_REMOVAL, 0));
        }
    }
}

/// Looks after the connection of a queue pair that is about to be destroyed. What the engine
/// reports then does not come any more.
fn leaving(qp: &Qp) {
    let find = || {
        lock(&known(qp.adapter)?.connections)
            .get(&qp.number())
            .cloned()
    };
    let Some(id) = find() else { return };
    if let Some(table) = known(qp.adapter) {
        table.ends.tell_now(qp.number());
    }
    // Destroying it would cut short what is still to be sent.
    let most = match qp.lock() {
        inner if inner.send_room() < inner.caps().max_send_wr => LONGEST_END,
        _ => PROMPT_END,
    };
    id.wait_over(most);
    forget_connection(qp.adapter, qp.number());
    outcome::tell_destroyed(&id);
    if let Some(table) = known(qp.adapter) {
        table.end_lingering_of_ended();
    }
}

/// Records which id is told of the events of a queue pair. To be called before the queue pair
/// connects.
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
        table.ends.forget(qp);
        table.end_lingering_of_ended();
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

/// Records which id is told of the requests to a listener.
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

/// Returns the listener at an address that was destroyed a moment ago and [lingers](LINGER). All
/// may connect to it again.
pub(super) fn take_lingering(adapter: &Adapter, local: SocketAddr) -> Option<Arc<Listener>> {
    let table = known(adapter)?;
    let mut lingering = lock(&table.lingering);
    let at = lingering
        .iter()
        .position(|one| one.listener.local_address() == local)?;
    let Lingering { listener, .. } = lingering.swap_remove(at);
    listener.limit(&Peers::all()).ok()?;
    Some(listener)
}

/// Drops the listeners of an id, unless they [linger](LINGER). Returns whether there were any.
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
    let any = !forgotten.is_empty();
    if id.asked.load(Ordering::Relaxed) != 1 {
        return any;
    }
    for Listening { listener, .. } in forgotten {
        if let Some(connection) = table.sole_connection_at(listener.local_address().port()) {
            table.linger(listener, connection);
        }
    }
    any
}
