//! What clients ask for, and the version of the protocol in which they do. Everything that they
//! send is untrusted.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rnic_core::connection::AddressPair;
use rnic_core::esp::SaId;
use rnic_manager::Token;
use rnic_manager::protocol::{
    Answer, Ask, Notice, OLDEST, PROTECTS, Reason, Refused, Reply, Request, UntaggedAddress,
    VERSION, Withheld,
};
use rnic_manager::states::Event;
use rnic_xdp::InterfaceConfig;
use tracing::debug;

use crate::administration::{Answered, release};
use crate::client::now;
use crate::devices::{cannot_share, may_protect};
use crate::leasing::{not_yours, nothing, over, path};
use crate::listeners::Role;
use crate::made::{MadePort, check_queue, frames};
use crate::memory::Memory;
use crate::quota::Resource;
use crate::record::Record;
use crate::server::Server;
use crate::shared::{ClientKey, Port};

/// The most ports of all devices: the programs' maps have room for them.
const MAX_PORTS: u32 = 1023;

impl Server {
    /// Carries out a request of a client, and answers it.
    pub(crate) fn handle(&mut self, key: ClientKey, request: Request) {
        if matches!(request.ask, Ask::Locate { .. }) {
            if let Err(refused) = self.locate(key, &request) {
                self.refuse(key, request.id, refused);
            }
            return;
        }
        let silent = matches!(
            request.ask,
            Ask::Follow { .. } | Ask::Forget { .. } | Ask::Unmap { .. } | Ask::Acquire { .. }
        );
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
        let is_observer = self.clients[key].role == Role::Observer;
        if is_observer && matches!(ask, Ask::OpenPort { .. } | Ask::Adopt { .. }) {
            let why =
                "who connects at the socket of observers gets no port; connect at that of clients";
            return Err(Refused::new(Reason::NotPermitted, why));
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
                let config = InterfaceConfig {
                    queue,
                    rx_frames,
                    tx_frames,
                    tx_ring,
                    ..InterfaceConfig::new(netdev)
                };
                self.open_port(key, &config)
            }
            Ask::Adopt {
                port,
                token,
                leases,
            } => self.adopt(key, port, token, &leases),
            Ask::Listen { port, local, peers } => self.listen(key, port, local, &peers),
            Ask::Map {
                port,
                local,
                wanted,
            } => self.map(key, port, local, wanted),
            Ask::Unmap { port, local } => self.unmap(key, port, local),
            Ask::Connect {
                port,
                remote,
                local,
            } => self.connect(key, port, remote, local),
            // Answered when the answer has come.
            Ask::Locate { .. } => nothing(),
            Ask::Release { port, local } => self.release(key, port, local),
            Ask::Admit {
                port,
                local,
                remote,
            } => self.admit_peer(key, port, local, remote),
            Ask::Follow {
                port,
                source,
                destination,
            } => self.follow(key, port, path(source, destination)),
            Ask::Forget {
                port,
                source,
                destination,
            } => {
                self.port_of(key, port)?
                    .forget(port, path(source, destination));
                nothing()
            }
            Ask::TakeNumbers {
                port,
                spi,
                destination,
            } => self.numbers(key, port, SaId { spi, destination }),
            Ask::Acquire {
                port,
                request,
                local,
                remote,
            } => self.acquire(key, (port, request), AddressPair { local, remote }),
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
        if version < OLDEST {
            let why = format!(
                "this rnicd speaks version {OLDEST} of the protocol and later ones, and this client {version}; upgrade the client"
            );
            return Err(Refused::new(Reason::Malformed, why));
        }
        let limits = self.limits(key);
        let client = &mut self.clients[key];
        let (uid, pid) = (client.peer.uid, client.peer.pid);
        debug!("{program} (pid {pid}, uid {uid}) has connected");
        client.program = Some(program);
        client.version = version;
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

    fn open_port(&mut self, key: ClientKey, config: &InterfaceConfig) -> Answered {
        let limits = self.limits(key);
        let peer = self.clients[key].peer.clone();
        let account = self.clients[key].account;
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
                format!("all {MAX_PORTS} ports are in use; close some"),
            )
        })?;
        let shared = &mut self.devices[index];
        let frames = frames(shared, config);
        // rfc: 5040-117, 5041-95, 5042-3, 5042-14 what is scarce is given out here
        // rfc: 5040-s9, 5041-s14, 5042-s7 nobody is given more than a fair share
        let quotas = &self.quotas;
        let mut held = vec![
            quotas
                .try_take(account, Resource::Ports, 1, &limits)
                .map_err(over)?,
            quotas
                .try_take(account, Resource::Frames, frames.into(), &limits)
                .map_err(over)?,
        ];
        let token = Token::random().map_err(|error| {
            Refused::new(
                Reason::Other,
                format!("the kernel has no random numbers: {error}"),
            )
        })?;
        let made = MadePort::make(shared, number, config, &limits, peer.uid)?;
        // Only now is it known where the memory lies.
        let huge_octets = made.huge_octets();
        if huge_octets > 0 {
            let taken = quotas.try_take(account, Resource::Hugepages, huge_octets, &limits);
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
            account: Some(account),
            gids: self.clients[key].gids().to_vec(),
            program,
            pid: peer.pid,
            since: now(),
            frames,
            huge_octets,
            queue: made.queue.clone(),
            ended: None,
            listeners: Default::default(),
            mapped: Default::default(),
        };
        let memory = shared.records.keep(&record).and_then(|()| made.memory());
        let memory = match memory {
            Ok(memory) => Memory::hold(&self.keeper, netdev, number, memory),
            Err(error) => {
                shared.records.forget(number);
                made.unmake(shared, number);
                let why = format!("rnicd cannot keep a record of the port: {error}");
                return Err(Refused::new(Reason::Other, why));
            }
        };
        let what = format!(
            "{netdev}: port {number} for {} (pid {}, uid {})",
            record.program, peer.pid, peer.uid
        );
        let knows = self.clients[key].version >= PROTECTS && made.queue.is_none();
        let may = may_protect(&limits, knows);
        let if_id = shared.ipsec_if_id.filter(|_| !may.ports.is_empty());
        shared.device.may_protect(number, may);
        let grant = made.grant(shared, number, (token, if_id), &limits);
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
            held,
            memory: Some(memory),
            leases: Default::default(),
            follows: Default::default(),
            protects: knows,
        };
        shared.usage.add_port(number, port.record.account());
        shared.usage.keep();
        shared.ports.insert(number, port);
        self.log(account, &what);
        self.announce(opened);
        Ok((Answer::Port(grant), made.descriptors))
    }

    /// Returns the lowest number that no port has.
    fn free_number(&self) -> Option<u32> {
        let is_free = |number: &u32| {
            let mut devices = self.devices.iter();
            !self.endings.has(*number) && !devices.any(|shared| shared.ports.contains_key(number))
        };
        (1..=MAX_PORTS).find(is_free)
    }

    /// Returns a port to the client that shows its token, with those of its leases that the client
    /// still has.
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
        // rfc: 5040-118, 5041-96, 5042-4 each client is trusted alone, even of one user
        if port.record.token != token {
            let what = format!(
                "{}: somebody else asked for port {number}",
                shared.device.netdev()
            );
            let account = self.clients[key].account;
            self.log(account, &what);
            return Err(not_yours(number));
        }
        // What an earlier connection had to say of it, if it has not ended, this one says.
        let before = port.client.replace(key).filter(|before| *before != key);
        if let Some(before) = before.and_then(|before| self.clients.get_mut(before)) {
            before.lose(number);
        }
        shared.device.watch_port(number, false);
        port.protects = self.clients[key].version >= PROTECTS && port.record.queue.is_none();
        // A process that was forked may have it now. The record can do without that.
        port.record.pid = self.clients[key].peer.pid;
        let leases: BTreeSet<_> = leases.iter().copied().collect();
        let held = port.leases.keys().copied();
        let lost: Vec<_> = held.filter(|local| !leases.contains(local)).collect();
        // Whoever revoked these may have ended before it had said so.
        let revoked = leases
            .iter()
            .filter(|local| !port.leases.contains_key(*local));
        for &local in revoked {
            self.clients[key].revoke(number, local);
        }
        let addresses = UntaggedAddress::list(shared.device.untagged());
        self.clients[key].tell(Notice::Untagged {
            port: number,
            addresses,
        });
        self.clients[key].protection_changed.insert(number);
        for &local in &lost {
            release(shared, number, local)?;
        }
        let what = format!(
            "{}: port {number} is connected again",
            shared.device.netdev()
        );
        let account = self.clients[key].account;
        self.log(account, &what);
        for local in lost {
            self.lease_ended(number, local, false);
        }
        self.say_who_may_protect();
        Ok((Answer::Adopted, Vec::new()))
    }
}

fn not_yet(port: u32) -> Refused {
    let why = format!("port {port} may be one of a device that is not shared now; ask again");
    Refused::new(Reason::NotReady, why)
}
