//! What clients ask for. Everything that they send is untrusted.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rnic_core::engine::{NetError, Peers};
use rnic_xdp::PortConfig;
use rnic_xdp::manager::Token;
use rnic_xdp::manager::protocol::{
    Answer, Ask, Notice, Reason, Refused, Reply, Request, UntaggedAddress, VERSION, Withheld,
};
use rnic_xdp::manager::states::Event;
use tracing::{debug, info, warn};

use crate::administration::{Answered, release};
use crate::client::now;
use crate::config::Limits;
use crate::devices::cannot_share;
use crate::made::{Made, check_queue, frames};
use crate::quota::{QuotaError, Resource, Taken};
use crate::record::Record;
use crate::server::Server;
use crate::shared::{ClientKey, Lease, Port, Shared};

/// The most destinations that a port follows. Each costs the kernel a lookup whenever routes change.
const MOST_DESTINATIONS: usize = 4096;
/// The most ports of all devices: the programs' maps have room for them.
const MOST_PORTS: u32 = 1023;

impl Server {
    /// Carries out a request of a client, and answers it.
    pub(crate) fn handle(&mut self, key: ClientKey, request: Request) {
        let silent = matches!(request.ask, Ask::Follow { .. } | Ask::Forget { .. });
        let answered = self.carry_out(key, request.ask.clone());
        if !(silent && answered.is_ok()) {
            self.answer_or_wait(key, request, answered);
        }
    }

    /// Sends a client an answer.
    pub(crate) fn answer(&mut self, key: ClientKey, reply: Reply, descriptors: Vec<OwnedFd>) {
        let Some(client) = self.clients.get_mut(key) else {
            return;
        };
        let refusal = match &reply.answer {
            Answer::Refused(Refused {
                reason, message, ..
            }) => {
                let (uid, pid) = (client.peer.uid, client.peer.pid);
                debug!("refused to pid {pid} (uid {uid}): {message}");
                Some(Event::Refused {
                    uid,
                    pid,
                    program: client.program.clone().unwrap_or_default(),
                    reason: *reason,
                    message: message.clone(),
                })
            }
            _ => None,
        };
        client.answer(reply, descriptors);
        if let Some(refusal) = refusal {
            self.announce(refusal);
        }
    }

    pub(crate) fn carry_out(&mut self, key: ClientKey, ask: Ask) -> Answered {
        if let Ask::Hello { version, program } = ask {
            return self.welcome(key, version, program);
        }
        if self.clients[key].program.is_none() {
            let why = "the first message of a connection is \"hello\"";
            return Err(Refused::new(Reason::Malformed, why));
        }
        match ask {
            Ask::Hello { .. } => Err(Refused::new(Reason::Malformed, "hello was said already")),
            Ask::OpenPort {
                netdev,
                rx_frames,
                tx_frames,
                tx_ring,
                queue,
            } => {
                let config = PortConfig {
                    queue,
                    rx_frames,
                    tx_frames,
                    tx_ring,
                    ..PortConfig::new(netdev)
                };
                self.open_port(key, &config)
            }
            Ask::Adopt {
                port,
                token,
                leases,
            } => self.adopt(key, port, token, &leases),
            Ask::Listen { port, local, peers } => self.listen(key, port, local, &peers),
            Ask::Connect {
                port,
                remote,
                local,
            } => self.connect(key, port, remote, local),
            Ask::Release { port, local } => self.release(key, port, local),
            Ask::Admit {
                port,
                local,
                remote,
            } => self.admit_peer(key, port, local, remote),
            Ask::Follow { port, destination } => self.follow(key, port, destination),
            Ask::Forget { port, destination } => {
                self.port_of(key, port)?.forget(port, destination);
                nothing()
            }
            Ask::Show(show) => self.show(key, show),
            Ask::EndPort { port } => self.end_port(key, port),
            Ask::Revoke { port, local } => self.revoke(key, port, local),
            Ask::Monitor => self.monitor(key),
            Ask::AddDevice { netdev, changes } => self.add_device(key, &netdev, &changes),
            Ask::RemoveDevice { netdev, force } => self.remove_device(key, &netdev, force),
            Ask::SetDevice {
                netdev,
                changes,
                force,
            } => self.set_device(key, &netdev, &changes, force),
            Ask::SetUser { user, changes } => self.set_user(key, &user, &changes),
            Ask::ResetUser { user } => self.reset_user(key, &user),
            Ask::Inspect { port, what, within } => self.inspect(key, port, what, within),
        }
    }

    fn welcome(&mut self, key: ClientKey, version: u32, program: String) -> Answered {
        let limits = self.limits(key);
        let client = &mut self.clients[key];
        let (uid, pid) = (client.peer.uid, client.peer.pid);
        debug!("{program} (pid {pid}, uid {uid}) has connected");
        client.program = Some(program);
        let (mut devices, mut withheld) = (Vec::new(), Vec::new());
        let wanted = self.settings.shared_devices();
        let wanted = wanted.map(|device| device.name.value.clone());
        for netdev in wanted.filter(|name| limits.devices.value.contains(name)) {
            match self.fault(&netdev) {
                None => devices.push(netdev),
                Some(why) => withheld.push(Withheld { netdev, why }),
            }
        }
        let welcome = Answer::Welcome {
            version: version.min(VERSION),
            devices,
            withheld,
        };
        Ok((welcome, Vec::new()))
    }

    fn limits(&self, key: ClientKey) -> Limits {
        let peer = &self.clients[key].peer;
        self.settings.policy.limits(peer.uid, &peer.gids)
    }

    /// Returns the device of a port, if the client has that port.
    fn port_of(&mut self, key: ClientKey, port: u32) -> Result<&mut Shared, Refused> {
        let mut devices = self.devices.iter_mut();
        let shared = devices.find(|shared| {
            let of_client = shared.ports.get(&port).map(|port| port.client);
            of_client == Some(Some(key))
        });
        shared.ok_or_else(|| not_yours(port))
    }

    fn open_port(&mut self, key: ClientKey, config: &PortConfig) -> Answered {
        let limits = self.limits(key);
        let peer = self.clients[key].peer.clone();
        let program = self.clients[key].program.clone().unwrap_or_default();
        let netdev = &config.netdev;
        let allowed = limits.devices.value.contains(netdev);
        if let Some(why) = self.fault(netdev).filter(|_| allowed) {
            let why = cannot_share(netdev, &why);
            return Err(Refused::new(Reason::NoSuchDevice, why));
        }
        let names = self.devices.iter().map(|shared| shared.device.netdev());
        let found = names
            .enumerate()
            .find(|(_, name)| allowed && name == netdev);
        let Some((index, _)) = found else {
            let why = format!(
                "rnicd shares no {netdev} with uid {}; `rnicd --show-config` lists devices and rules",
                peer.uid
            );
            return Err(Refused::new(Reason::NoSuchDevice, why));
        };
        let shared = &self.devices[index];
        check_queue(shared, config, &limits, peer.uid)?;
        let number = self.free_number().ok_or_else(|| {
            Refused::new(
                Reason::Quota,
                format!("all {MOST_PORTS} ports are in use; close some"),
            )
        })?;
        let shared = &mut self.devices[index];
        let frames = frames(shared, config);
        // rfc: 5040-117, 5041-95, 5042-3, 5042-14 what is scarce is given out here
        // rfc: 5040-s9, 5041-s14, 5042-s7 nobody is given more than a fair share
        let quotas = &self.quotas;
        let mut held = vec![
            quotas
                .try_take(peer.uid, Resource::Ports, 1, &limits)
                .map_err(over)?,
            quotas
                .try_take(peer.uid, Resource::Frames, frames.into(), &limits)
                .map_err(over)?,
        ];
        let token = Token::random().map_err(|error| {
            Refused::new(
                Reason::Other,
                format!("the kernel has no random numbers: {error}"),
            )
        })?;
        let made = Made::make(shared, number, config, &limits, peer.uid)?;
        // Only now is it known where the memory lies.
        let huge_octets = made.huge_octets();
        if huge_octets > 0 {
            let taken = quotas.try_take(peer.uid, Resource::Hugepages, huge_octets, &limits);
            match taken {
                Ok(taken) => held.push(taken),
                Err(error) => {
                    made.unmake(shared, number);
                    return Err(over(error));
                }
            }
        }
        let record = Record {
            port: number,
            token,
            uid: peer.uid,
            gids: peer.gids,
            program,
            pid: peer.pid,
            since: now(),
            frames,
            huge_octets,
            queue: made.queue.clone(),
        };
        if let Err(error) = shared.records.keep(&record) {
            made.unmake(shared, number);
            let why = format!("rnicd cannot keep a record of the port: {error}");
            return Err(Refused::new(Reason::Other, why));
        }
        info!(
            "{netdev}: port {number} for {} (pid {}, uid {})",
            record.program, peer.pid, peer.uid
        );
        let grant = made.grant(shared, number, token);
        let opened = Event::PortOpened {
            port: number,
            netdev: netdev.clone(),
            uid: record.uid,
            pid: record.pid,
            program: record.program.clone(),
        };
        let port = Port {
            record,
            client: Some(key),
            _held: held,
            leases: Default::default(),
            follows: Default::default(),
        };
        shared.usage.add_port(number, port.record.uid);
        shared.usage.keep();
        shared.ports.insert(number, port);
        self.announce(opened);
        Ok((Answer::Port(grant), made.descriptors))
    }

    /// Returns the lowest number that no port has.
    fn free_number(&self) -> Option<u32> {
        let is_free = |number: &u32| {
            let mut devices = self.devices.iter();
            !devices.any(|shared| shared.ports.contains_key(number))
        };
        (1..=MOST_PORTS).find(is_free)
    }

    /// Gives a port back to the client that shows its token, with those of its leases that the client still has.
    fn adopt(
        &mut self,
        key: ClientKey,
        number: u32,
        token: Token,
        leases: &[SocketAddr],
    ) -> Answered {
        let mut devices = self.devices.iter_mut();
        let shared = devices.find(|shared| shared.ports.contains_key(&number));
        let Some(shared) = shared else {
            return Err(match self.waits_for_devices() {
                true => not_yet(number),
                false => not_yours(number),
            });
        };
        let Some(port) = shared.ports.get_mut(&number) else {
            return Err(not_yours(number));
        };
        // rfc: 5040-118, 5041-96, 5042-4 each client is trusted alone, also beside others of the same user
        if port.record.token != token {
            warn!(
                "{}: somebody else asked for port {number}",
                shared.device.netdev()
            );
            return Err(not_yours(number));
        }
        port.client = Some(key);
        shared.device.watch_port(number, false);
        // A process that was forked may have it now. The record can do without that.
        port.record.pid = self.clients[key].peer.pid;
        let held = port.leases.keys().copied();
        let lost: Vec<_> = held.filter(|local| !leases.contains(local)).collect();
        // Whoever revoked these may have ended before it had said so.
        let revoked = leases
            .iter()
            .filter(|local| !port.leases.contains_key(*local));
        for &local in revoked {
            let port = number;
            self.clients[key].tell(Notice::Revoked { port, local });
        }
        let addresses = UntaggedAddress::list(shared.device.untagged());
        self.clients[key].tell(Notice::Untagged {
            port: number,
            addresses,
        });
        for &local in &lost {
            release(shared, number, local)?;
        }
        info!(
            "{}: port {number} is connected again",
            shared.device.netdev()
        );
        for local in lost {
            self.lease_ended(number, local, false);
        }
        Ok((Answer::Adopted, Vec::new()))
    }

    fn listen(
        &mut self,
        key: ClientKey,
        number: u32,
        local: SocketAddr,
        peers: &Peers,
    ) -> Answered {
        let limits = self.limits(key);
        let uid = self.clients[key].peer.uid;
        if local.port() != 0 && !limits.listen.value.contains(local.port()) {
            let setting = &limits.listen;
            let why = format!(
                "uid {uid} may listen on {}, not on {}; {} says so",
                setting.value,
                local.port(),
                setting.origin
            );
            return Err(Refused::new(Reason::NotPermitted, why));
        }
        let quotas = self.quotas.clone();
        let shared = self.port_of(key, number)?;
        let held = quotas
            .try_take(uid, Resource::Listeners, 1, &limits)
            .map_err(over)?;
        let reserved = shared.device.listen(number, local, peers);
        self.lease(number, reserved, held)
    }

    fn connect(
        &mut self,
        key: ClientKey,
        number: u32,
        remote: SocketAddr,
        local: Option<SocketAddr>,
    ) -> Answered {
        let limits = self.limits(key);
        let uid = self.clients[key].peer.uid;
        let wanted = local.map_or(0, |local| local.port());
        if wanted != 0 && !limits.listen.value.contains(wanted) {
            let setting = &limits.listen;
            let why = format!(
                "uid {uid} may choose from the TCP ports {}, not {wanted}; {} says so",
                setting.value, setting.origin
            );
            return Err(Refused::new(Reason::NotPermitted, why));
        }
        if !limits.peers.value.0.contains(remote.ip()) {
            let why = format!(
                "uid {uid} may not connect to {}; {} says so",
                remote.ip(),
                limits.peers.origin
            );
            return Err(Refused::new(Reason::NotPermitted, why));
        }
        let quotas = self.quotas.clone();
        let shared = self.port_of(key, number)?;
        let held = quotas
            .try_take(uid, Resource::Connections, 1, &limits)
            .map_err(over)?;
        let reserved = shared.device.connect(number, remote, local);
        self.lease(number, reserved, held)
    }

    /// Keeps a lease, and answers with it.
    fn lease(
        &mut self,
        number: u32,
        reserved: Result<(SocketAddr, OwnedFd), NetError>,
        held: Taken,
    ) -> Answered {
        let named = |error| self.name_holder(error, number);
        let (local, socket) = reserved.map_err(|error| Refused::from(named(error)))?;
        let mut devices = self.devices.iter_mut();
        if let Some(port) = devices.find_map(|shared| shared.ports.get_mut(&number)) {
            let since = Some(now());
            let lease = Lease { _held: held, since };
            port.leases.insert(local, lease);
        }
        self.announce(Event::LeaseAdded {
            port: number,
            local,
        });
        Ok((Answer::Lease { local }, vec![socket]))
    }

    fn release(&mut self, key: ClientKey, number: u32, local: SocketAddr) -> Answered {
        let shared = self.port_of(key, number)?;
        if release(shared, number, local)? {
            self.lease_ended(number, local, false);
        }
        Ok((Answer::Released, Vec::new()))
    }

    /// Says whether the host's policies, as they are now, let a peer connect to what a client has leased.
    fn admit_peer(
        &mut self,
        key: ClientKey,
        number: u32,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Answered {
        let shared = self.port_of(key, number)?;
        if shared.lessee(local) != Some(number) {
            let why = format!("port {number} has not leased {local}");
            return Err(Refused::new(Reason::NotPermitted, why));
        }
        shared.device.check_connection(local, remote)?;
        Ok((Answer::Done, Vec::new()))
    }

    fn follow(&mut self, key: ClientKey, number: u32, destination: IpAddr) -> Answered {
        let shared = self.port_of(key, number)?;
        let followed = shared
            .ports
            .get(&number)
            .map_or(0, |port| port.follows.len());
        if followed >= MOST_DESTINATIONS {
            let why = format!(
                "a port follows at most {MOST_DESTINATIONS} destinations; close connections"
            );
            return Err(Refused::new(Reason::Quota, why));
        }
        if shared.follow(number, destination) {
            self.clients[key].changed.insert((number, destination));
        }
        nothing()
    }
}

/// The answer that is not sent.
fn nothing() -> Answered {
    Ok((Answer::Released, Vec::new()))
}

fn over(error: QuotaError) -> Refused {
    Refused::new(Reason::Quota, error.to_string())
}

fn not_yours(port: u32) -> Refused {
    let why = format!("port {port} is not one of this connection");
    Refused::new(Reason::NotPermitted, why)
}

fn not_yet(port: u32) -> Refused {
    let why = format!("port {port} may be one of a device that is not shared now; ask again");
    Refused::new(Reason::NotReady, why)
}
