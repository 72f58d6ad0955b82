//! What administrators ask for: what is there, its end, and what happens. Other users see what is
//! their own. `release` ends a lease, for an administrator and for its client.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::ops::Bound;
use std::os::fd::OwnedFd;

use rnic_manager::LinkState;
use rnic_manager::protocol::{Answer, Notice, Reason, Refused, Show};
use rnic_manager::states::{
    AssociationState, Configured, DaemonState, DeviceState, Event, Holding, LeaseState, Page,
    PortEnd, PortState, QueueState, SentFrames, SteeredFrames, UsageState, UserState,
};
use tracing::info;

use crate::config::{Device, Limits, Origin, Setting, mode_name, words};
use crate::listeners::Role;
use crate::quota::Resource;
use crate::record::Record;
use crate::server::Server;
use crate::shared::{ClientKey, Shared, found};

/// The most characters of who has set a limit: a path can be long.
const MAX_ORIGIN: usize = 512;
/// The most characters of a value: a list can be long.
const MAX_VALUE: usize = 2048;

/// An answer with its descriptors.
pub(crate) type Answered = Result<(Answer, Vec<OwnedFd>), Refused>;

impl Server {
    /// Answers with a page of what is there.
    pub(crate) fn show(&mut self, key: ClientKey, show: Show) -> Answered {
        let client = &self.clients[key];
        let (all, uid, account) = (client.role != Role::Client, client.peer.uid, client.account);
        let sees = move |of: &Record| all || (of.uid == uid && of.account() == account);
        let answer = match show {
            Show::Devices { after } => {
                self.check_observer(key, "see the devices")?;
                Answer::Devices(self.device_states(after))
            }
            Show::Ports { after } => Answer::Ports(self.port_states(after, sees)),
            Show::Leases { after } => Answer::Leases(self.lease_states(after, sees)),
            Show::Associations { after } => {
                self.check_observer(key, "see the associations")?;
                Answer::Associations(self.association_states(after))
            }
            Show::Users { after } => {
                Answer::Users(self.user_states(after, |of| all || of == account))
            }
            Show::Usage { after } => {
                self.check_observer(key, "see what users have sent")?;
                Answer::Usage(self.usage_states(after))
            }
            Show::Daemon => Answer::Daemon(DaemonState {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                since: self.since,
            }),
        };
        Ok((answer, Vec::new()))
    }

    /// Ends the port of any client.
    pub(crate) fn end_port(&mut self, key: ClientKey, number: u32) -> Answered {
        self.check_root(key, "end ports")?;
        if self.endings.has(number) {
            let why = format!(
                "port {number} has ended already, and is gone when nobody has its socket any more"
            );
            return Err(Refused::new(Reason::Other, why));
        }
        let index = self.device_of(number)?;
        let shared = &mut self.devices[index];
        shared.look(number);
        let host_end = shared.device.retire_port(number).map_err(|error| {
            let why = format!("port {number} cannot be ended: {error}");
            Refused::new(Reason::Other, why)
        })?;
        let netdev = shared.device.netdev().to_owned();
        info!("{netdev}: port {number} was ended by an administrator");
        let owner = shared.ports.get(&number).and_then(|port| port.client);
        self.end_in_quota(index, number, host_end);
        if let Some(client) = owner.and_then(|owner| self.clients.get_mut(owner)) {
            client.tell(Notice::Link {
                port: number,
                state: LinkState::Gone,
            });
        }
        self.announce(Event::PortEnded {
            port: number,
            netdev,
            why: PortEnd::Killed,
        });
        done()
    }

    /// Ends the lease of any client.
    pub(crate) fn revoke(&mut self, key: ClientKey, number: u32, local: SocketAddr) -> Answered {
        self.check_root(key, "revoke leases")?;
        if !self.take_lease(number, local)? {
            let why = format!(
                "port {number} has not leased {local}; `rnic-ctl lease show` lists what is leased"
            );
            return Err(Refused::new(Reason::Other, why));
        }
        info!("port {number}: {local} was revoked by an administrator");
        done()
    }

    /// Takes a lease from a port, and tells its client. Returns whether it had it.
    pub(crate) fn take_lease(&mut self, number: u32, local: SocketAddr) -> Result<bool, Refused> {
        let index = self.device_of(number)?;
        let shared = &mut self.devices[index];
        if !release(shared, number, local)? {
            return Ok(false);
        }
        shared.device.end_protection_of(number, local);
        let owner = shared.ports.get(&number).and_then(|port| port.client);
        if let Some(client) = owner.and_then(|owner| self.clients.get_mut(owner)) {
            client.tell(Notice::Revoked {
                port: number,
                local,
            });
        }
        self.lease_ended(number, local, true);
        Ok(true)
    }

    /// Sends a client events from now on.
    pub(crate) fn monitor(&mut self, key: ClientKey) -> Answered {
        self.check_observer(key, "follow what happens")?;
        self.clients[key].monitor();
        done()
    }

    pub(crate) fn lease_ended(&mut self, port: u32, local: SocketAddr, revoked: bool) {
        self.announce(Event::LeaseEnded {
            port,
            local,
            revoked,
        });
    }

    /// Fails if a client is no administrator.
    pub(crate) fn check_root(&self, key: ClientKey, doing: &str) -> Result<(), Refused> {
        let client = &self.clients[key];
        let why = match (client.role, client.peer.uid) {
            (Role::Administrator, _) => return Ok(()),
            // rfc: 5040-118, 5042-4 whoever is root in a container is not trusted for that
            (_, 0) => {
                "root may not {doing} here: only at rnicd's socket for administrators, which containers are not given (/run/rnic-admin)"
            }
            _ => "uid {uid} may not {doing}: only root may (`sudo`)",
        };
        let uid = client.peer.uid.to_string();
        let why = why.replace("{uid}", &uid).replace("{doing}", doing);
        Err(Refused::new(Reason::NotPermitted, why))
    }

    /// Fails if a client may not even see all.
    fn check_observer(&self, key: ClientKey, doing: &str) -> Result<(), Refused> {
        match self.clients[key].role {
            Role::Observer => Ok(()),
            Role::Client | Role::Administrator => self.check_root(key, doing),
        }
    }

    /// Returns the device of a port.
    fn device_of(&self, number: u32) -> Result<usize, Refused> {
        let mut devices = self.devices.iter();
        let found = devices.position(|shared| shared.ports.contains_key(&number));
        found.ok_or_else(|| {
            let why = format!("there is no port {number}; `rnic-ctl port show` lists the ports");
            Refused::new(Reason::Other, why)
        })
    }

    fn device_states(&mut self, after: Option<String>) -> Page<DeviceState> {
        let waiting = self.waiting().into_iter();
        let waiting: Vec<_> = waiting.map(|name| (self.fault(&name), name)).collect();
        let settings = &self.settings;
        let of = |name: &str| settings.shared_device(name);
        let shared = self.devices.iter_mut();
        let shared = shared.map(|shared| (shared.device.netdev().to_owned(), Ok(shared)));
        let waiting = waiting.into_iter();
        let all = shared.chain(waiting.map(|(fault, name)| (name, Err(fault))));
        let mut all: BTreeMap<_, _> = all.collect();
        let behind = (behind(after), Bound::Unbounded);
        let behind = all.range_mut::<String, _>(behind);
        Page::of(behind.map(|(name, found)| match found {
            Ok(shared) => device_state(shared, of(name)),
            Err(fault) => waiting_state(name, fault.take(), of(name)),
        }))
    }

    fn port_states(
        &mut self,
        after: Option<u32>,
        sees: impl Fn(&Record) -> bool,
    ) -> Page<PortState> {
        let ending = self.endings.records();
        let ending = ending
            .filter(|(number, record)| after.is_none_or(|last| *number > last) && sees(record));
        let mut numbers: BTreeMap<_, _> = ending.map(|(number, _)| (number, None)).collect();
        for (index, shared) in self.devices.iter().enumerate() {
            let ports = shared.ports.range((behind(after), Bound::Unbounded));
            let seen = ports.filter(|(_, port)| sees(&port.record));
            numbers.extend(seen.map(|(&number, _)| (number, Some(index))));
        }
        let (devices, endings) = (&mut self.devices, &self.endings);
        Page::of(
            numbers
                .into_iter()
                .filter_map(|(number, index)| match index {
                    Some(index) => port_state(&mut devices[index], number),
                    None => endings.state(number),
                }),
        )
    }

    fn lease_states(
        &self,
        after: Option<(u32, SocketAddr)>,
        sees: impl Fn(&Record) -> bool,
    ) -> Page<LeaseState> {
        let mut ports = BTreeMap::new();
        let first = after.map_or(0, |(port, _)| port);
        for shared in &self.devices {
            let netdev = shared.device.netdev();
            let behind = shared.ports.range(first..);
            let seen = behind.filter(|(_, port)| sees(&port.record));
            ports.extend(seen.map(|(&number, port)| (number, (netdev, port))));
        }
        let leases = ports.into_iter().flat_map(|(number, (netdev, port))| {
            let last = after.filter(|(of, _)| *of == number);
            let last = last.map(|(_, local)| local);
            let leases = port.leases.range((behind(last), Bound::Unbounded));
            leases.map(move |(&local, lease)| LeaseState {
                port: number,
                local,
                known_as: port.record.mapped.get(&local).copied(),
                netdev: netdev.to_owned(),
                uid: port.record.uid,
                since: lease.since,
            })
        });
        Page::of(leases)
    }

    fn association_states(&self, after: Option<(u32, IpAddr, u32)>) -> Page<AssociationState> {
        let mut found = BTreeMap::new();
        for shared in &self.devices {
            for (id, port) in shared.device.associations() {
                let uid = shared.ports.get(&port).map(|port| port.record.uid);
                let state = uid.map(|uid| AssociationState {
                    port,
                    netdev: shared.device.netdev().to_owned(),
                    uid,
                    spi: id.spi,
                    destination: id.destination,
                });
                found.extend(state.map(|state| ((port, id.destination, id.spi), state)));
            }
        }
        let shown = found.range((behind(after), Bound::Unbounded));
        Page::of(shown.map(|(_, state)| state.clone()))
    }

    fn user_states(&self, after: Option<u32>, sees: impl Fn(u32) -> bool) -> Page<UserState> {
        // The groups decide on the limits; those of a connection are newer than those of a port.
        let policy = &self.settings.policy;
        let mut users = BTreeMap::new();
        let ports = self.devices.iter().flat_map(|shared| shared.ports.values());
        let ending = self.endings.records().map(|(_, record)| record);
        for record in ending.chain(ports.map(|port| &port.record)) {
            let (account, gids) = (record.account(), &record.gids);
            users.insert(account, policy.limits(account, gids));
        }
        for (_, client) in &self.clients {
            users.insert(client.account, client.limits(policy));
        }
        let behind = users.range((behind(after), Bound::Unbounded));
        let seen = behind.filter(|(uid, _)| sees(**uid));
        Page::of(seen.map(|(&account, limits)| self.user_state(account, limits)))
    }

    /// Returns what users have sent and received, a page of it. What ports count and what ended
    /// ports had counted are read at once, so that no port is in both or in none.
    fn usage_states(&mut self, after: Option<(String, Option<u32>)>) -> Page<UsageState> {
        let mut owners = BTreeMap::new();
        for (index, shared) in self.devices.iter().enumerate() {
            let netdev = shared.device.netdev();
            let of_device = shared.usage.owners().into_iter();
            owners.extend(of_device.map(|owner| ((netdev.to_owned(), owner), index)));
        }
        let devices = &mut self.devices;
        let behind = owners.range((behind(after), Bound::Unbounded));
        let page =
            Page::of(behind.map(|((_, owner), index)| usage_state(&mut devices[*index], *owner)));
        // What was shown must not go back.
        for shared in devices {
            shared.usage.keep();
        }
        page
    }

    fn user_state(&self, uid: u32, limits: &Limits) -> UserState {
        let holding = |resource: Resource| {
            let limit = resource.limit(limits);
            Holding {
                resource: resource.key().to_owned(),
                held: self.quotas.held(uid, resource),
                limit: limit.value,
                set_by: set_by(&limit.origin),
            }
        };
        let clients = self.clients.iter();
        let own = clients.filter(|(_, client)| client.account == uid);
        UserState {
            uid,
            connections: own.count() as u32,
            resources: Resource::ALL.map(holding).into(),
            settings: vec![
                in_words("devices", &limits.devices),
                in_words("queues", &limits.queues),
                in_words("listen", &limits.listen),
                in_words("protected", &limits.protected),
                in_words("rate", &limits.rate),
                in_words("peers", &limits.peers),
            ],
        }
    }
}

/// Ends a lease of a port. Returns whether the port had it.
pub(crate) fn release(
    shared: &mut Shared,
    number: u32,
    local: SocketAddr,
) -> Result<bool, Refused> {
    let Some(port) = shared.ports.get_mut(&number) else {
        return Ok(false);
    };
    if !port.leases.contains_key(&local) {
        return Ok(false);
    }
    let released = shared.device.release(number, local);
    released.map_err(|error| {
        let why = format!("{local} cannot be released: {error}");
        Refused::new(Reason::Other, why)
    })?;
    port.leases.remove(&local);
    shared.forget_listener(number, local);
    Ok(true)
}

fn done() -> Answered {
    Ok((Answer::Done, Vec::new()))
}

fn behind<T>(last: Option<T>) -> Bound<T> {
    last.map_or(Bound::Unbounded, Bound::Excluded)
}

/// Returns who has set something, in words.
fn set_by(origin: &Origin) -> String {
    origin.to_string().chars().take(MAX_ORIGIN).collect()
}

fn in_words(key: &str, setting: &Setting<impl Display>) -> Configured {
    Configured {
        key: key.to_owned(),
        value: words(&setting.value).chars().take(MAX_VALUE).collect(),
        set_by: set_by(&setting.origin),
    }
}

/// Returns who has set that a device is shared.
fn set_by_whom(device: &Device) -> String {
    let shared = device.shared.as_ref();
    set_by(shared.map_or(&device.name.origin, |shared| &shared.origin))
}

/// Returns how a device is shared: its XDP mode, and that it is although this host forwards, if
/// that is said.
fn settings_of(device: &Device) -> Vec<Configured> {
    let Setting { value, origin } = device.mode();
    let value = mode_name(value);
    let mode = in_words("xdp_mode", &Setting { value, origin });
    let said = device.forwarding.as_ref().map(|forwarding| {
        let (value, origin) = (forwarding.value.name(), forwarding.origin.clone());
        in_words("forwarding", &Setting { value, origin })
    });
    let number = device.ipsec_if_id.as_ref().map(|number| Configured {
        key: "ipsec_if_id".to_owned(),
        value: format!("{:#x}", number.value),
        set_by: set_by(&number.origin),
    });
    [mode].into_iter().chain(said).chain(number).collect()
}

fn device_state(shared: &mut Shared, configured: Option<&Device>) -> DeviceState {
    let leases: usize = shared.ports.values().map(|port| port.leases.len()).sum();
    let device = &mut shared.device;
    let counters = device.steering_counters();
    let received = found(device.netdev(), counters).map_or_else(Vec::new, |counters| {
        let frames = |(reason, frames): (&str, u64)| SteeredFrames {
            reason: reason.to_owned(),
            frames,
        };
        counters.entries().map(frames).collect()
    });
    let kernel = device.kernel_link();
    DeviceState {
        netdev: device.netdev().to_owned(),
        state: device.link_state(),
        fault: device.fault().map(str::to_owned),
        mode: Some(device.mode().clone()),
        mtu: device.mtu(),
        ports: shared.ports.len() as u32,
        leases: leases as u32,
        set_by: configured.map_or_else(String::new, set_by_whom),
        settings: configured.into_iter().flat_map(settings_of).collect(),
        received,
        kernel: found(device.netdev(), kernel).flatten(),
    }
}

/// Returns the state of a device that is to be shared and cannot be now.
fn waiting_state(netdev: &str, fault: Option<String>, configured: Option<&Device>) -> DeviceState {
    DeviceState {
        netdev: netdev.to_owned(),
        state: LinkState::Gone,
        fault,
        mode: None,
        mtu: 0,
        ports: 0,
        leases: 0,
        set_by: configured.map_or_else(String::new, set_by_whom),
        settings: configured.into_iter().flat_map(settings_of).collect(),
        received: Vec::new(),
        kernel: None,
    }
}

fn usage_state(shared: &mut Shared, owner: Option<u32>) -> UsageState {
    let ports = shared.ports.iter();
    let own = ports.filter(|(_, port)| shared.usage.owner(port.record.account()) == owner);
    let own: Vec<_> = own.map(|(&number, _)| number).collect();
    for &number in &own {
        shared.look(number);
    }
    let traffic = shared.usage.of(owner, &own);
    traffic.state(shared.device.netdev(), owner)
}

fn port_state(shared: &mut Shared, number: u32) -> Option<PortState> {
    let (counters, host_end) = shared.look(number);
    let sent = counters.map_or_else(Vec::new, |counters| {
        let counts = counters.entries().map(|(verdict, count)| SentFrames {
            verdict: verdict.name().to_owned(),
            frames: count.frames,
            octets: count.octets,
        });
        counts.collect()
    });
    let netdev = shared.device.netdev().to_owned();
    let port = shared.ports.get(&number)?;
    let record = &port.record;
    Some(PortState {
        port: number,
        netdev,
        uid: record.uid,
        program: record.program.clone(),
        pid: record.pid,
        connected: port.client.is_some(),
        ending: false,
        frames: record.frames,
        huge_octets: record.huge_octets,
        leases: port.leases.len() as u32,
        since: record.since,
        sent,
        host_end,
        queue: record.queue.as_ref().map(|of| QueueState {
            queue: of.queue,
            copied: of.copied.clone(),
        }),
    })
}
