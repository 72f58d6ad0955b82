//! What rnicd says at two times, as rows with rates.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use rnic_manager::Mode;
use rnic_manager::protocol::Reason;
use rnic_manager::states::{DeviceState, PortState};
use rnic_manager::{Administrator, AskError};
use serde_json::{Value, json};

use super::connections::{Connections, Patience};
use crate::objects::dev::state_of;
use crate::objects::rates::{Sums, key};
use crate::objects::words::Users;

/// What was attempted, for failures.
pub(super) const WHAT: &str = "show the clients";

/// What rnicd says at a time.
pub(super) struct Sample {
    pub(super) at: Instant,
    /// None if the user may not see them.
    pub(super) devices: Option<Vec<DeviceState>>,
    pub(super) ports: Vec<PortState>,
    pub(super) connections: Connections,
}

impl Sample {
    /// Asks rnicd, and some of the clients.
    pub(super) fn read(
        administrator: &mut Administrator,
        mut connections: Connections,
        patience: Patience,
    ) -> Result<Self, AskError> {
        let devices = match administrator.devices() {
            Err(AskError::Refused(refused)) if refused.reason == Reason::NotPermitted => None,
            devices => Some(devices?),
        };
        let ports = administrator.ports()?;
        let at = Instant::now();
        connections.ask(administrator, &ports, patience)?;
        Ok(Self {
            at,
            devices,
            ports,
            connections,
        })
    }
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DeviceRow {
    pub(super) dev: String,
    pub(super) state: &'static str,
    pub(super) xdp: &'static str,
    pub(super) ports: u32,
    pub(super) leases: u32,
    /// None as long as there is nothing to compare with.
    pub(super) rates: Option<Sums>,
}

/// A client: a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ClientRow {
    pub(super) port: u32,
    pub(super) dev: String,
    pub(super) user: String,
    pub(super) pid: i32,
    pub(super) program: String,
    pub(super) leases: u32,
    /// None if it does not say.
    pub(super) connections: Option<u32>,
    pub(super) rates: Option<Sums>,
}

/// A user with clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct UserRow {
    pub(super) user: String,
    pub(super) clients: u32,
    pub(super) leases: u32,
    pub(super) rates: Option<Sums>,
}

/// All that is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rows {
    /// By name; None if the user may not see them.
    pub(super) devices: Option<Vec<DeviceRow>>,
    /// By number.
    pub(super) clients: Vec<ClientRow>,
    /// By name.
    pub(super) users: Vec<UserRow>,
}

impl Rows {
    /// Compares what rnicd says with what it said before, if it did.
    pub(super) fn of(now: &Sample, before: Option<&Sample>) -> Self {
        let mut names = Users::default();
        let clients = clients(now, before, &mut names);
        let mut users: BTreeMap<&str, UserRow> = BTreeMap::new();
        for client in &clients {
            let user = users.entry(&client.user).or_default();
            user.user.clone_from(&client.user);
            user.clients += 1;
            user.leases += client.leases;
            if let Some(rates) = client.rates {
                user.rates = Some(user.rates.unwrap_or_default().plus(rates));
            }
        }
        Self {
            users: users.into_values().collect(),
            devices: devices(now, before),
            clients,
        }
    }

    /// Returns them for programs.
    pub(super) fn json(&self) -> Value {
        let devices = self.devices.iter().flatten().map(|row| {
            let mut json = json!({ "dev": row.dev, "state": row.state, "xdp": row.xdp, "ports": row.ports, "leases": row.leases });
            add_rates(&mut json, row.rates);
            json
        });
        let clients = self.clients.iter().map(|row| {
            let mut json = json!({
                "port": row.port, "dev": row.dev, "user": row.user, "pid": row.pid, "program": row.program, "leases": row.leases,
                "connections": row.connections,
            });
            add_rates(&mut json, row.rates);
            json
        });
        let users = self.users.iter().map(|row| {
            let mut json =
                json!({ "user": row.user, "clients": row.clients, "leases": row.leases });
            add_rates(&mut json, row.rates);
            json
        });
        json!({
            "devices": devices.collect::<Vec<_>>(),
            "clients": clients.collect::<Vec<_>>(),
            "users": users.collect::<Vec<_>>(),
        })
    }
}

fn add_rates(json: &mut Value, rates: Option<Sums>) {
    let value = |of: fn(Sums) -> u64| rates.map_or(Value::Null, |rates| of(rates).into());
    json["rx_frames_per_second"] = value(|rates| rates.rx_frames);
    json["rx_octets_per_second"] = value(|rates| rates.rx_octets);
    json["tx_frames_per_second"] = value(|rates| rates.tx_frames);
    json["tx_octets_per_second"] = value(|rates| rates.tx_octets);
    json["dropped_frames_per_second"] = value(|rates| rates.dropped_frames);
}

fn devices(now: &Sample, before: Option<&Sample>) -> Option<Vec<DeviceRow>> {
    let rates = |device: &DeviceState| {
        let before = before?;
        let mut old = before.devices.iter().flatten();
        let old = old
            .find(|old| old.netdev == device.netdev)?
            .kernel
            .as_ref()?;
        let link = device.kernel.as_ref()?;
        // One of the same name that was made anew counts from nothing.
        let same = (old.ifindex == link.ifindex).then(|| Sums::of_device(old));
        let time = now.at - before.at;
        Some(Sums::of_device(link).rates(same.unwrap_or_default(), time))
    };
    let row = |device: &DeviceState| DeviceRow {
        dev: device.netdev.clone(),
        state: state_of(device),
        xdp: match device.mode {
            Some(Mode::Native) => "native",
            Some(Mode::Generic { .. }) => "generic",
            None => "-",
        },
        ports: device.ports,
        leases: device.leases,
        rates: rates(device),
    };
    Some(now.devices.as_ref()?.iter().map(row).collect())
}

fn clients(now: &Sample, before: Option<&Sample>, names: &mut Users) -> Vec<ClientRow> {
    let old = before.into_iter().flat_map(|before| &before.ports);
    let old: HashMap<_, _> = old.map(|port| (key(port), Sums::of(port))).collect();
    let rates = |port: &PortState| {
        let time = now.at - before?.at;
        // Nothing counts what a hardware queue sends and receives.
        if port.queue.is_some() {
            return None;
        }
        let old = old.get(&key(port)).copied().unwrap_or_default();
        Some(Sums::of(port).rates(old, time))
    };
    let ports = now.ports.iter();
    ports
        .map(|port| ClientRow {
            port: port.port,
            dev: port.netdev.clone(),
            user: names.name(port.uid).to_owned(),
            pid: port.pid,
            program: port.program.clone(),
            leases: port.leases,
            connections: now.connections.of(port),
            rates: rates(port),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rnic_manager::LinkState;
    use rnic_manager::states::{KernelLink, SentFrames};

    use super::*;

    fn link(ifindex: u32, packets: u64) -> KernelLink {
        KernelLink {
            name: "nic".into(),
            ifindex,
            up: true,
            mtu: 1500,
            program: None,
            xdp: None,
            rx_packets: packets,
            rx_octets: 100 * packets,
            rx_dropped: packets / 10,
            tx_packets: 2 * packets,
            tx_octets: 200 * packets,
            tx_dropped: 0,
        }
    }

    fn port(number: u32, uid: u32, since: u64, frames: u64) -> PortState {
        let sent = |verdict: &str, frames: u64| SentFrames {
            verdict: verdict.into(),
            frames,
            octets: 10 * frames,
        };
        PortState {
            port: number,
            netdev: "nic".into(),
            uid,
            program: "rping".into(),
            pid: 42,
            connected: true,
            ending: false,
            frames: 64,
            huge_octets: 0,
            leases: 2,
            since,
            sent: vec![sent("to_nic", frames), sent("rate", frames / 2)],
            host_end: Some(link(9, 3 * frames)),
            queue: None,
        }
    }

    fn sample(at: Instant, ports: Vec<PortState>, ifindex: u32, packets: u64) -> Sample {
        let device = DeviceState {
            netdev: "nic".into(),
            state: LinkState::Active,
            fault: None,
            mode: Some(Mode::Native),
            mtu: 1500,
            ports: ports.len() as u32,
            leases: 2,
            set_by: String::new(),
            settings: Vec::new(),
            received: Vec::new(),
            kernel: Some(link(ifindex, packets)),
        };
        let devices = Some(vec![device]);
        let connections = ports.first().map(|port| Connections::known(port, 3));
        Sample {
            at,
            devices,
            ports,
            connections: connections.unwrap_or_default(),
        }
    }

    #[test]
    fn rates_are_those_of_the_interval() {
        let start = Instant::now();
        let end = start + Duration::from_secs(2);
        let uid = 4_000_000_001;
        let before = sample(
            start,
            vec![port(1, uid, 7, 100), port(2, 0, 7, 50)],
            3,
            1000,
        );
        // Port 2 is another client's now.
        let ports = vec![port(1, uid, 7, 300), port(2, uid, 9, 40)];
        let now = sample(end, ports, 3, 1600);
        let rows = Rows::of(&now, Some(&before));
        let sums = |tx_frames, tx_octets, rx_frames, rx_octets, dropped_frames| Sums {
            tx_frames,
            tx_octets,
            rx_frames,
            rx_octets,
            dropped_frames,
        };
        let rates: Vec<_> = rows.clients.iter().map(|row| row.rates.unwrap()).collect();
        assert_eq!(
            rates,
            [
                sums(100, 1000, 600, 60_000, 50),
                sums(20, 200, 120, 12_000, 10)
            ]
        );
        let expected = UserRow {
            user: uid.to_string(),
            clients: 2,
            leases: 4,
            rates: Some(sums(120, 1200, 720, 72_000, 60)),
        };
        assert_eq!(rows.users, [expected]);
        let device = &rows.devices.as_ref().unwrap()[0];
        assert_eq!(device.rates, Some(sums(600, 60_000, 300, 30_000, 30)));
        assert_eq!(rows.json()["clients"][0]["tx_frames_per_second"], 100);
        let connections = [0, 1].map(|at: usize| rows.json()["clients"][at]["connections"].clone());
        assert_eq!(connections, [3.into(), Value::Null]);
        // A device that was made anew.
        let rows = Rows::of(&sample(end, Vec::new(), 4, 10), Some(&before));
        let device = &rows.devices.as_ref().unwrap()[0];
        assert_eq!(device.rates, Some(sums(10, 1000, 5, 500, 0)));
        assert!(rows.users.is_empty());
    }

    #[test]
    fn at_first_there_are_no_rates() {
        let rows = Rows::of(
            &sample(Instant::now(), vec![port(1, 0, 7, 100)], 3, 9),
            None,
        );
        assert_eq!(rows.clients[0].rates, None);
        assert_eq!(rows.users[0].rates, None);
        assert_eq!(
            rows.json()["devices"][0]["rx_frames_per_second"],
            Value::Null
        );
    }
}
