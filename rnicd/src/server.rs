//! The loop: connections, requests, and what the kernel reports of devices. One thread does all of it, one request of a client at
//! a time, so that none holds up the others for long.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use rnic_xdp::LinkState;
use rnic_xdp::manager::protocol::{FromDaemon, Notice, UntaggedAddress};
use rnic_xdp::manager::states::{DeviceNews, Event, PortEnd};
use rnic_xdp::manager::{DeviceEvent, channel::ChannelError};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use slab::Slab;
use tracing::{debug, info, warn};

use crate::claim::Claim;
use crate::client::{Client, Received, event, now};
use crate::places::Places;
use crate::quota::Quotas;
use crate::settings::Settings;
use crate::shared::{ClientKey, Shared};

/// Connections accepted at a time, so that clients have their turn.
const ACCEPTED_PER_TURN: usize = 16;
/// The most connections: each costs a descriptor.
const MOST_CLIENTS: usize = 4096;

/// The most connections of one user, so that others have theirs.
const MOST_OF_USER: usize = 256;
/// How long to accept none when the kernel has no descriptor for one.
const PAUSE: Duration = Duration::from_millis(100);

/// What rnicd has.
pub(crate) struct Server {
    listener: OwnedFd,
    /// When it started, in seconds since 1970-01-01 UTC.
    pub(crate) since: u64,
    /// Until when no connection is accepted.
    pause: Option<Instant>,
    pub(crate) devices: Vec<Shared>,
    pub(crate) clients: Slab<Client>,
    pub(crate) quotas: Quotas,
    pub(crate) places: Places,
    /// The claim of the directory of the pinned maps, once there is one.
    pub(crate) pins: Option<Claim>,
    pub(crate) settings: Settings,
    /// When to look for devices that are missing.
    pub(crate) look_at: Instant,
    /// Why devices that are missing cannot be shared, as it was said last.
    pub(crate) complaints: BTreeMap<String, String>,
}

/// What the loop was woken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Signal,
    Listener,
    Device(usize),
    Client(ClientKey),
    /// A client has closed the socket of an inspection.
    Inspected(ClientKey),
}

impl Server {
    /// Serves the clients that connect to `listener`, which does not block.
    pub(crate) fn new(listener: OwnedFd, places: Places, settings: Settings) -> Self {
        Self {
            listener,
            since: now(),
            pause: None,
            devices: Vec::new(),
            clients: Slab::new(),
            quotas: Quotas::default(),
            places,
            pins: None,
            settings,
            look_at: Instant::now(),
            complaints: BTreeMap::new(),
        }
    }

    /// Waits for something to do, for as long as `at_most`, and does it. Returns whether `signal` is readable.
    pub(crate) fn turn(
        &mut self,
        signal: BorrowedFd<'_>,
        at_most: Option<Duration>,
    ) -> io::Result<bool> {
        let ready = self.wait(signal, at_most)?;
        let began = Instant::now();
        let mut signalled = false;
        for device in 0..self.devices.len() {
            self.serve_device(device);
        }
        self.drop_lost_devices();
        for source in ready {
            match source {
                Source::Signal => signalled = true,
                Source::Listener => self.accept(),
                Source::Device(_) => {}
                Source::Client(key) => self.serve_client(key),
                Source::Inspected(key) => {
                    if let Some(client) = self.clients.get_mut(key) {
                        client.forget_inspections();
                    }
                }
            }
        }
        self.serve_waiting(began);
        let keys: Vec<_> = self.clients.iter().map(|(key, _)| key).collect();
        for key in keys {
            self.flush(key);
        }
        Ok(signalled)
    }

    /// Stops sharing some devices: their ports end.
    pub(crate) fn stop_sharing(&mut self, which: impl Fn(&str) -> bool) {
        let devices = std::mem::take(&mut self.devices);
        let is_to_end = |shared: &Shared| which(shared.device.netdev());
        let (ended, kept): (Vec<_>, Vec<_>) = devices.into_iter().partition(is_to_end);
        self.devices = kept;
        for mut shared in ended {
            let name = shared.device.netdev().to_owned();
            self.say_gone(&mut shared);
            match shared.device.close() {
                Ok(()) => info!("{name} is shared no more"),
                Err(error) => warn!("{name} is shared no more, but: {error}"),
            }
        }
    }

    /// Tells those who want to know what happens.
    pub(crate) fn announce(&mut self, what: Event) {
        let notice = event(what);
        for (_, client) in &mut self.clients {
            client.announce(&notice);
        }
    }

    /// Tells the clients of a device that their ports have ended.
    fn say_gone(&mut self, shared: &mut Shared) {
        for number in shared.ports.keys().copied().collect::<Vec<_>>() {
            shared.close_books(number);
        }
        let netdev = || shared.device.netdev().to_owned();
        self.announce(Event::DeviceChanged {
            netdev: netdev(),
            state: LinkState::Gone,
        });
        for (&port, owner) in &shared.ports {
            shared.records.forget(port);
            self.announce(Event::PortEnded {
                port,
                netdev: netdev(),
                why: PortEnd::DeviceGone,
            });
            let client = owner.client.and_then(|key| self.clients.get_mut(key));
            if let Some(client) = client {
                let state = LinkState::Gone;
                client.tell(Notice::Link { port, state });
            }
        }
    }

    /// Waits. Returns what is ready.
    fn wait(&self, signal: BorrowedFd<'_>, at_most: Option<Duration>) -> io::Result<Vec<Source>> {
        let mut sources = vec![Source::Signal];
        let mut fds = vec![PollFd::new(signal, PollFlags::POLLIN)];
        let pause = self
            .pause
            .map(|until| until.saturating_duration_since(Instant::now()));
        let pause = pause.filter(|pause| !pause.is_zero());
        if self.clients.len() < MOST_CLIENTS && pause.is_none() {
            sources.push(Source::Listener);
            fds.push(PollFd::new(self.listener.as_fd(), PollFlags::POLLIN));
        }
        for (number, shared) in self.devices.iter().enumerate() {
            for fd in shared.device.fds() {
                sources.push(Source::Device(number));
                fds.push(PollFd::new(fd, PollFlags::POLLIN));
            }
        }
        for (key, client) in &self.clients {
            let mut events = PollFlags::empty();
            events.set(PollFlags::POLLIN, client.is_ready());
            events.set(PollFlags::POLLOUT, client.has_news());
            // While its request waits, its end is not looked for: that would wake the loop again and again.
            if !events.is_empty() || client.waiting.is_none() {
                sources.push(Source::Client(key));
                fds.push(PollFd::new(client.as_fd(), events));
            }
            for socket in client.inspections() {
                sources.push(Source::Inspected(key));
                fds.push(PollFd::new(socket, PollFlags::empty()));
            }
        }
        let devices = self.devices.iter();
        let timers = devices.filter_map(|shared| shared.device.timeout());
        let timeout = timers
            .chain(at_most)
            .chain(pause)
            .chain(self.patience())
            .min();
        match ppoll(&mut fds, timeout.map(TimeSpec::from_duration), None) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_ready = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
        let both = fds.iter().zip(sources);
        let ready = both.filter(|(fd, _)| is_ready(fd));
        Ok(ready.map(|(_, source)| source).collect())
    }

    /// Gives up devices that were removed. They are opened again when they are back.
    fn drop_lost_devices(&mut self) {
        let is_gone = |shared: &Shared| shared.device.link_state() == LinkState::Gone;
        while let Some(at) = self.devices.iter().position(is_gone) {
            let mut shared = self.devices.swap_remove(at);
            let name = shared.device.netdev().to_owned();
            warn!("{name} is gone, and its ports with it");
            self.complaints
                .insert(name, "the network device is gone".to_owned());
            self.say_gone(&mut shared);
            // The program went with the device; the maps have no use any more.
            let _ = shared.device.close();
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTED_PER_TURN {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = match accept_with(&self.listener, flags) {
                Ok(socket) => socket,
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
                Err(error) => return self.pause_accepting(error),
            };
            self.pause = None;
            match Client::new(socket) {
                Ok(client) => self.admit(client),
                Err(error) => warn!("cannot serve a connection: {error}"),
            }
        }
    }

    /// Waits before the next connection, which stays in line: a client that ends frees a descriptor.
    fn pause_accepting(&mut self, error: Errno) {
        if self.pause.is_none() {
            warn!("cannot accept connections now: {error}");
        }
        self.pause = Some(Instant::now() + PAUSE);
    }

    /// Keeps a connection, unless its user has too many.
    fn admit(&mut self, client: Client) {
        let uid = client.peer.uid;
        let of_user = self
            .clients
            .iter()
            .filter(|(_, other)| other.peer.uid == uid);
        if of_user.count() < MOST_OF_USER {
            self.clients.insert(client);
        } else {
            // At this level only: it can be said as often as somebody connects.
            debug!("uid {uid} has {MOST_OF_USER} connections already, and gets no other");
        }
    }

    /// Handles a request of a client.
    fn serve_client(&mut self, key: ClientKey) {
        let Some(client) = self.clients.get_mut(key).filter(|client| client.is_ready()) else {
            return;
        };
        match client.receive() {
            Received::Request(request) => self.handle(key, request),
            Received::Malformed(error) => {
                if let FromDaemon::Answer(reply) = error.answer() {
                    self.answer(key, reply, Vec::new());
                }
            }
            Received::Nothing => {}
            Received::End(error) => self.disconnect(key, &error),
        }
    }

    /// Sends a client what it takes now.
    fn flush(&mut self, key: ClientKey) {
        let Some(client) = self.clients.get_mut(key).filter(|client| client.has_news()) else {
            return;
        };
        if client.is_ready() {
            self.say_changes(key);
        }
        let Some(client) = self.clients.get_mut(key) else {
            return;
        };
        if let Err(error) = client.flush() {
            self.disconnect(key, &error);
        }
    }

    /// Puts into words what has changed for a client since it was told.
    fn say_changes(&mut self, key: ClientKey) {
        let Some(client) = self.clients.get_mut(key) else {
            return;
        };
        for (port, destination) in std::mem::take(&mut client.changed) {
            let mut devices = self.devices.iter();
            let shared = devices.find(|shared| shared.ports.contains_key(&port));
            let followed = shared.and_then(|shared| shared.destinations.get(&destination));
            if let Some(hop) = followed.and_then(|followed| followed.hop) {
                let hop = hop.map(Into::into);
                client.tell(Notice::NextHop {
                    port,
                    destination,
                    hop,
                });
            }
        }
        for port in std::mem::take(&mut client.links_changed) {
            let mut devices = self.devices.iter();
            if let Some(shared) = devices.find(|shared| shared.ports.contains_key(&port)) {
                let state = shared.device.link_state();
                client.tell(Notice::Link { port, state });
            }
        }
        for port in std::mem::take(&mut client.untagged_changed) {
            let mut devices = self.devices.iter();
            if let Some(shared) = devices.find(|shared| shared.ports.contains_key(&port)) {
                let addresses = UntaggedAddress::list(shared.device.untagged());
                client.tell(Notice::Untagged { port, addresses });
            }
        }
    }

    /// Ends a connection. The ports of the client go on as long as it has their sockets; it may connect again.
    pub(crate) fn disconnect(&mut self, key: ClientKey, error: &ChannelError) {
        let Some(client) = self.clients.try_remove(key) else {
            return;
        };
        let peer = &client.peer;
        let name = client.program.as_deref().unwrap_or("?");
        match error {
            ChannelError::Closed => debug!("{name} (pid {}, uid {}) has left", peer.pid, peer.uid),
            error => info!("{name} (pid {}, uid {}): {error}", peer.pid, peer.uid),
        }
        for shared in &mut self.devices {
            let ports = shared.ports.iter_mut();
            let own = ports.filter(|(_, port)| port.client == Some(key));
            let numbers = own.map(|(&number, port)| {
                port.client = None;
                number
            });
            // If its process has ended, its ports are about to: a moment later the kernel does not say what they received.
            for number in numbers.collect::<Vec<_>>() {
                shared.look(number);
                shared.device.watch_port(number, true);
            }
        }
    }

    /// Passes on what the kernel reports of a device.
    fn serve_device(&mut self, number: usize) {
        let Some(shared) = self.devices.get_mut(number) else {
            return;
        };
        shared.device.poll();
        let mut happened = Vec::new();
        while let Some(event) = shared.device.poll_event() {
            happened.extend(pass_on(shared, &mut self.clients, event));
        }
        for event in happened {
            self.announce(event);
        }
    }
}

/// Passes on what the kernel reports of a device. Returns what others want to know of it.
fn pass_on(shared: &mut Shared, clients: &mut Slab<Client>, event: DeviceEvent) -> Option<Event> {
    let netdev = || shared.device.netdev().to_owned();
    match event {
        DeviceEvent::NextHop(destination, hop) => {
            for port in shared.set_hop(destination, hop) {
                if let Some(client) = client_of(shared, clients, port) {
                    client.changed.insert((port, destination));
                }
            }
            None
        }
        DeviceEvent::Link(state) => {
            let netdev = netdev();
            info!("{netdev} is {}", words(state));
            for &port in shared.ports.keys() {
                if let Some(client) = client_of(shared, clients, port) {
                    client.links_changed.insert(port);
                }
            }
            // One that is gone is given up, which is announced.
            (state != LinkState::Gone).then_some(Event::DeviceChanged { netdev, state })
        }
        DeviceEvent::Untagged => {
            for &port in shared.ports.keys() {
                if let Some(client) = client_of(shared, clients, port) {
                    client.untagged_changed.insert(port);
                }
            }
            None
        }
        DeviceEvent::News(news) => {
            let netdev = netdev();
            match news {
                DeviceNews::ProgramDetached { .. } => warn!("{netdev}: {news}"),
                _ => info!("{netdev}: {news}"),
            }
            Some(Event::DeviceNews { netdev, news })
        }
        DeviceEvent::TooBig(too_big) => {
            if let Some(port) = shared.lessee(too_big.local)
                && let Some(client) = client_of(shared, clients, port)
            {
                let segment = too_big.into();
                client.mention(Notice::TooBig { port, segment });
            }
            None
        }
        DeviceEvent::PortEnded(port) => {
            let netdev = netdev();
            let why = PortEnd::Left;
            let ended = shared.remove(port);
            ended.map(|_| Event::PortEnded { port, netdev, why })
        }
    }
}

/// Returns the client that has a port, if it is connected.
fn client_of<'a>(
    shared: &Shared,
    clients: &'a mut Slab<Client>,
    port: u32,
) -> Option<&'a mut Client> {
    clients.get_mut(shared.ports.get(&port)?.client?)
}

/// Returns a state of a device in words.
fn words(state: LinkState) -> &'static str {
    match state {
        LinkState::Active => "up",
        LinkState::Inactive => "down, or has no carrier",
        LinkState::Gone => "gone",
    }
}
