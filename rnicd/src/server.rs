//! The loop: connections, requests, and what the kernel reports of devices. One thread does all of
//! it, one request of a client at a time, and for some milliseconds, so that none holds up the
//! others for long. Nothing here waits for a client, or for what it has sent.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use rnic_manager::Closer;
use rnic_manager::LinkState;
use rnic_manager::channel::ChannelError;
use rnic_manager::protocol::{FromDaemon, Notice};
use rnic_manager::states::{Event, PortEnd};
use rnic_xdp::shared::{HostEnd, SharingError};
use slab::Slab;
use tracing::{debug, info, warn};

use crate::claim::Claim;
use crate::client::{Client, Received, event, now};
use crate::ending::Endings;
use crate::kept::Keeper;
use crate::listeners::Listener;
use crate::memory::Memory;
use crate::places::Places;
use crate::questions::Questions;
use crate::quota::Quotas;
use crate::record::Records;
use crate::settings::Settings;
use crate::shared::{ClientKey, Port, Shared, found};
use crate::users::Users;

/// How long requests of clients are carried out before administrators and the kernel have their
/// turn.
pub(crate) const TURN: Duration = Duration::from_millis(10);

/// What rnicd has.
pub(crate) struct Server {
    pub(crate) listeners: Vec<Listener>,
    /// Closes what clients have sent.
    pub(crate) closer: Closer,
    /// When it started, in seconds since 1970-01-01 UTC.
    pub(crate) since: u64,
    /// Until when no connection is accepted.
    pub(crate) pause: Option<Instant>,
    pub(crate) devices: Vec<Shared>,
    pub(crate) clients: Slab<Client>,
    /// What users have done of late, and whose turn was last.
    pub(crate) users: Users,
    pub(crate) served: u32,
    /// What clients want to know of listeners.
    pub(crate) questions: Questions,
    pub(crate) quotas: Quotas,
    /// Who holds for the next rnicd what this one holds.
    pub(crate) keeper: Keeper,
    /// What it had from a former rnicd, by key, until the device is shared that it belongs to.
    pub(crate) found: HashMap<String, OwnedFd>,
    /// Ports that have ended, and still exist.
    pub(crate) endings: Endings,
    pub(crate) places: Places,
    /// The claim of the directory of the pinned maps, once there is one.
    pub(crate) pins: Option<Claim>,
    pub(crate) settings: Settings,
    /// When to look for devices that are missing.
    pub(crate) look_at: Instant,
    /// Why devices that are missing cannot be shared, as it was said last.
    pub(crate) complaints: BTreeMap<String, String>,
}

impl Drop for Server {
    /// Leaves what it holds to the next rnicd.
    fn drop(&mut self) {
        self.keeper.leave();
    }
}

/// What the loop was woken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Signal,
    Listener(usize),
    Device(usize),
    Client(ClientKey),
    Keeper,
    Endings,
    Freed,
}

impl Server {
    /// Serves those who connect to `listeners`, which do not block.
    pub(crate) fn new(
        listeners: Vec<Listener>,
        closer: Closer,
        places: Places,
        settings: Settings,
    ) -> io::Result<Self> {
        let quotas = Quotas::default();
        let keeper = Keeper::open(places.keeper());
        let mut found = keeper.list();
        let memory = |key: String| {
            let file = found.remove(&key)?;
            Some(Memory::adopt(&keeper, key, file))
        };
        let endings = Endings::open(
            Records::open(places.ended())?,
            &quotas,
            memory,
            &places.freer,
        )?;
        Ok(Self {
            listeners,
            closer,
            since: now(),
            pause: None,
            devices: Vec::new(),
            clients: Slab::new(),
            users: Users::default(),
            served: 0,
            questions: Questions::default(),
            quotas,
            keeper,
            found,
            endings,
            places,
            pins: None,
            settings,
            look_at: Instant::now(),
            complaints: BTreeMap::new(),
        })
    }

    /// Waits for something to do, for as long as `at_most`, and does it. Returns whether `signal`
    /// is readable.
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
        self.wake_clients(began);
        let mut asking = Vec::new();
        for source in ready {
            match source {
                Source::Signal => signalled = true,
                Source::Listener(index) => self.accept(index),
                Source::Device(_) => {}
                Source::Client(key) => asking.push(key),
                Source::Keeper => self.keeper.look(),
                Source::Endings => self.endings.poll(),
                Source::Freed => {}
            }
        }
        self.endings.poll_freeing();
        self.serve_clients(asking, began + TURN);
        self.say_located();
        self.serve_waiting(began);
        self.restore_keeper();
        let keys: Vec<_> = self.clients.iter().map(|(key, _)| key).collect();
        for key in keys {
            self.flush(key);
        }
        self.say_what_was_left_out();
        Ok(signalled)
    }

    /// Stops sharing some devices: their ports end.
    pub(crate) fn stop_sharing(&mut self, which: impl Fn(&str) -> bool) {
        let devices = std::mem::take(&mut self.devices);
        let is_to_end = |shared: &Shared| which(shared.device.netdev());
        let (ended, kept): (Vec<_>, Vec<_>) = devices.into_iter().partition(is_to_end);
        self.devices = kept;
        for shared in ended {
            let name = shared.device.netdev().to_owned();
            match self.close(shared) {
                Ok(()) => info!("{name} is shared no more"),
                Err(error) => warn!("{name} is shared no more, but: {error}"),
            }
        }
    }

    /// Ends the sharing of a device, and its ports.
    fn close(&mut self, mut shared: Shared) -> Result<(), SharingError> {
        let netdev = shared.device.netdev().to_owned();
        self.say_gone(&mut shared);
        let mut host_ends = BTreeMap::new();
        for (&number, port) in shared
            .ports
            .iter()
            .filter(|(_, port)| port.record.queue.is_none())
        {
            let end = found(&netdev, shared.device.host_end_of(number)).flatten();
            if let Some(end) = &end {
                self.endings.record(&port.record, &netdev, Some(end));
            }
            host_ends.extend(end.map(|end| (number, end)));
        }
        let closed = shared.device.close();
        if let Err(SharingError::StillOpen { .. }) = &closed {
            for number in host_ends.keys() {
                self.endings.forget_record(*number);
            }
            // What is steered goes on, and nobody else may have its TCP ports.
            shared.ports.into_values().for_each(Port::leave);
            let found = self.keeper.list().into_iter();
            let is_its_own = |key: &str| key.split(' ').nth(1) == Some(&netdev);
            self.found.extend(found.filter(|(key, _)| is_its_own(key)));
            return closed;
        }
        // Nothing is steered any more: now the TCP ports are given back.
        for (number, port) in shared.ports {
            self.endings
                .add(port.end(), &netdev, host_ends.remove(&number));
        }
        closed
    }

    /// Forgets a port that was taken from its client, whose host end stays as long as somebody has
    /// its socket: that counts.
    pub(crate) fn end_in_quota(&mut self, index: usize, number: u32, host_end: Option<HostEnd>) {
        let shared = &mut self.devices[index];
        let netdev = shared.device.netdev().to_owned();
        if let Some((port, end)) = shared.ports.get(&number).zip(host_end.as_ref()) {
            self.endings.record(&port.record, &netdev, Some(end));
        }
        if let Some(port) = shared.remove(number) {
            self.endings.add(port.end(), &netdev, host_end);
        }
    }

    /// Starts another keeper if there is none, and hands over all that is held.
    fn restore_keeper(&mut self) {
        if !self.keeper.restore() {
            return;
        }
        let ports = self.devices.iter().flat_map(|shared| shared.ports.values());
        let endings = self.endings.memories().map(Memory::kept);
        for kept in ports.flat_map(Port::kept).chain(endings) {
            self.keeper.keep_again(kept);
        }
        for (key, descriptor) in &self.found {
            self.keeper.hand_over(key, descriptor.as_fd());
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
        for (index, listener) in self.listeners.iter().enumerate() {
            if pause.is_none() && self.has_room(listener.role) {
                sources.push(Source::Listener(index));
                fds.push(PollFd::new(listener.as_fd(), PollFlags::POLLIN));
            }
        }
        for (number, shared) in self.devices.iter().enumerate() {
            for fd in shared.device.fds() {
                sources.push(Source::Device(number));
                fds.push(PollFd::new(fd, PollFlags::POLLIN));
            }
        }
        let keeper = self.keeper.channel();
        if let Some(keeper) = &keeper {
            sources.push(Source::Keeper);
            fds.push(PollFd::new(keeper.as_fd(), PollFlags::POLLIN));
        }
        sources.push(Source::Endings);
        fds.push(PollFd::new(self.endings.as_fd(), PollFlags::POLLIN));
        for freed in self.endings.freed() {
            sources.push(Source::Freed);
            fds.push(PollFd::new(freed, PollFlags::POLLIN));
        }
        for (key, client) in &self.clients {
            let mut events = PollFlags::empty();
            events.set(PollFlags::POLLIN, self.is_ready(client));
            events.set(PollFlags::POLLOUT, client.has_news());
            let rests = self.questions.are_too_many(client.account);
            if !events.is_empty() || (client.is_watched() && !rests) {
                sources.push(Source::Client(key));
                fds.push(PollFd::new(client.as_fd(), events));
            }
        }
        let devices = self.devices.iter();
        let timers = devices.filter_map(|shared| shared.device.timeout());
        let timeout = timers
            .chain(at_most)
            .chain(pause)
            .chain(self.patience())
            .chain(self.keeper.until_trying())
            .chain(self.endings.until_freeing())
            .chain(self.rest_of_events())
            .chain(self.until_waking())
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

    /// Returns whether another request of a client is read.
    fn is_ready(&self, client: &Client) -> bool {
        client.is_ready() && !self.questions.are_too_many(client.account)
    }

    /// Drops devices that were removed. They are opened again when they are back.
    fn drop_lost_devices(&mut self) {
        let is_gone = |shared: &Shared| shared.device.link_state() == LinkState::Gone;
        while let Some(at) = self.devices.iter().position(is_gone) {
            let shared = self.devices.swap_remove(at);
            let name = shared.device.netdev().to_owned();
            warn!("{name} is gone, and its ports with it");
            self.complaints
                .insert(name, "the network device is gone".to_owned());
            // The program went with the device; the maps have no use any more.
            let _ = self.close(shared);
        }
    }

    /// Handles a request of a client.
    pub(crate) fn serve_client(&mut self, key: ClientKey) {
        if !self
            .clients
            .get(key)
            .is_some_and(|client| self.is_ready(client))
        {
            return;
        }
        let Some(client) = self.clients.get_mut(key) else {
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
            Received::End(error) => {
                if let ChannelError::Descriptors { .. } | ChannelError::DescriptorsLost = error {
                    let account = client.account;
                    self.users.shut_out(account);
                }
                self.disconnect(key, &error);
            }
        }
    }

    /// Ends a connection. The ports of the client go on as long as it has their sockets; it may
    /// connect again.
    pub(crate) fn disconnect(&mut self, key: ClientKey, error: &ChannelError) {
        let Some(client) = self.clients.try_remove(key) else {
            return;
        };
        let (peer, account) = (&client.peer, client.account);
        let name = client.program.as_deref().unwrap_or("?");
        match error {
            ChannelError::Closed => debug!("{name} (pid {}, uid {}) has left", peer.pid, peer.uid),
            error => {
                let what = format!("{name} (pid {}, uid {}): {error}", peer.pid, peer.uid);
                self.log(account, &what);
            }
        }
        client.close();
        self.questions.forget(key);
        self.users.forget_idle();
        for shared in &mut self.devices {
            let ports = shared.ports.iter_mut();
            let own = ports.filter(|(_, port)| port.client == Some(key));
            let numbers = own.map(|(&number, port)| {
                port.client = None;
                number
            });
            // If its process has ended, its ports are about to: a moment later the kernel does not
            // say what they received.
            for number in numbers.collect::<Vec<_>>() {
                shared.look(number);
                shared.device.watch_port(number, true);
            }
        }
    }
}
