//! Notices: what the kernel reports of a device is noted for the clients that it concerns, and put
//! into words when they can take it, as it is then.

use std::time::{Duration, Instant};

use rnic_manager::LinkState;
use rnic_manager::protocol::{Notice, UntaggedAddress};
use rnic_manager::states::{DeviceNews, Event, PortEnd};
use rnic_xdp::shared::DeviceEvent;
use slab::Slab;
use tracing::{info, warn};

use crate::client::Client;
use crate::ending::Endings;
use crate::protected::protection;
use crate::server::{Server, TURN};
use crate::shared::{ClientKey, Shared};

impl Server {
    /// Sends a client what it takes now.
    pub(crate) fn flush(&mut self, key: ClientKey) {
        let Some(client) = self.clients.get_mut(key).filter(|client| client.has_news()) else {
            return;
        };
        if client.can_be_told() {
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
        client.say_revoked();
        // The port may have ended since, and its number may be another client's.
        let devices = &self.devices;
        let device_of = |number: u32| {
            let has = |shared: &&Shared| {
                let port = shared.ports.get(&number);
                port.is_some_and(|port| port.client == Some(key))
            };
            devices.iter().find(has)
        };
        for (port, path) in std::mem::take(&mut client.changed) {
            let followed = device_of(port).and_then(|shared| shared.paths.get(&path));
            if let Some(hop) = followed.and_then(|followed| followed.hop) {
                let hop = hop.map(Into::into);
                client.tell(Notice::NextHop {
                    port,
                    source: Some(path.local).filter(|local| !local.is_unspecified()),
                    destination: path.remote,
                    hop,
                });
            }
        }
        for port in std::mem::take(&mut client.links_changed) {
            if let Some(shared) = device_of(port) {
                let state = shared.device.link_state();
                client.tell(Notice::Link { port, state });
            }
        }
        for port in std::mem::take(&mut client.protection_changed) {
            if let Some(shared) = device_of(port) {
                protection(shared, port).for_each(|notice| client.tell(notice));
            }
        }
        for port in std::mem::take(&mut client.untagged_changed) {
            if let Some(shared) = device_of(port) {
                let addresses = UntaggedAddress::list(shared.device.untagged());
                client.tell(Notice::Untagged { port, addresses });
            }
        }
    }

    /// Passes on what the kernel reports of a device.
    pub(crate) fn serve_device(&mut self, number: usize) {
        let Some(shared) = self.devices.get_mut(number) else {
            return;
        };
        shared.device.poll();
        let (began, mut happened) = (Instant::now(), Vec::new());
        // Many ports may end at once. What is left comes in the next turn, at once.
        shared.has_more = true;
        while began.elapsed() < TURN {
            let Some(event) = shared.device.poll_event() else {
                shared.has_more = false;
                break;
            };
            happened.extend(pass_on(shared, &mut self.clients, &mut self.endings, event));
        }
        for event in happened {
            self.announce(event);
        }
    }

    /// Returns no time if there are events of devices that no turn had room for.
    pub(crate) fn rest_of_events(&self) -> Option<Duration> {
        let has_more = self.devices.iter().any(|shared| shared.has_more);
        has_more.then_some(Duration::ZERO)
    }
}

/// Passes on what the kernel reports of a device. Returns what others want to know of it.
fn pass_on(
    shared: &mut Shared,
    clients: &mut Slab<Client>,
    endings: &mut Endings,
    event: DeviceEvent,
) -> Option<Event> {
    let netdev = || shared.device.netdev().to_owned();
    match event {
        DeviceEvent::NextHop(path, hop) => {
            for port in shared.set_hop(path, hop) {
                if let Some(client) = client_of(shared, clients, port) {
                    client.changed.insert((port, path));
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
        DeviceEvent::ProtectedTooBig(port, too_big) => {
            if let Some(client) = client_of(shared, clients, port) {
                let packet = too_big.into();
                client.mention(Notice::ProtectedTooBig { port, packet });
            }
            None
        }
        DeviceEvent::Protection(port) => {
            if let Some(client) = client_of(shared, clients, port) {
                client.protection_changed.insert(port);
            }
            None
        }
        DeviceEvent::PortEnded(port) => {
            let netdev = netdev();
            let why = PortEnd::Left;
            let ended = shared.remove(port);
            ended.map(|ended| {
                endings.free(ended.end(), &netdev);
                Event::PortEnded { port, netdev, why }
            })
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
