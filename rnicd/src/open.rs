//! Opens a device for sharing, with the ports that a former rnicd has made.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;

use rnic_xdp::OpenError;
use rnic_xdp::shared::SharedDevice;
use rnic_xdp::shared::SharingError;
use rnic_xdp::steering::ModeChoice;
use tracing::warn;

use crate::claim::Claim;
use crate::ending::{Endings, holdings};
use crate::freeing::Remains;
use crate::kept::{Keeper, Kept};
use crate::memory::Memory;
use crate::places::Places;
use crate::quota::{Quotas, Resource};
use crate::record::Records;
use crate::shared::{Lease, Port, Shared, found, lease_key};
use crate::usage::Usage;

/// What a former rnicd has held, and what holds it now.
pub(crate) struct Held<'a> {
    pub(crate) quotas: &'a Quotas,
    pub(crate) keeper: &'a Keeper,
    /// What the keeper has that nobody has claimed, by key.
    pub(crate) found: &'a mut HashMap<String, OwnedFd>,
    pub(crate) endings: &'a mut Endings,
}

impl Held<'_> {
    fn memory(&mut self, key: String) -> Option<Memory> {
        let found = self.found.remove(&key)?;
        Some(Memory::adopt(self.keeper, key, found))
    }

    /// Returns the socket that reserves what is leased: the one that was kept, or another one. If
    /// there is none, somebody else may have the TCP port.
    fn reservation(&mut self, device: &SharedDevice, port: u32, local: SocketAddr) -> Option<Kept> {
        let key = lease_key(device.netdev(), port, local);
        if let Some(found) = self.found.remove(&key) {
            return Some(self.keeper.adopt(key, found));
        }
        match device.reserve_again(local) {
            Ok(socket) => Some(self.keeper.keep(key, socket)),
            Err(error) => {
                warn!("port {port} loses {local}, which nobody has reserved: {error}");
                None
            }
        }
    }

    /// Lets go of what is left of a device: what used it has ended.
    fn let_go(&mut self, netdev: &str) {
        let of = |key: &str, kind: &str| {
            let rest = key
                .strip_prefix(kind)
                .and_then(|rest| rest.strip_prefix(netdev));
            rest.is_some_and(|rest| rest.starts_with(' '))
        };
        let keys = self
            .found
            .extract_if(|key, _| of(key, "memory ") || of(key, "lease "));
        for (key, found) in keys {
            match of(&key, "memory ") {
                true => {
                    let memory = Memory::adopt(self.keeper, key, found);
                    self.endings.free_memory(memory);
                }
                false => drop(self.keeper.adopt(key, found)),
            }
        }
    }
}

/// Opens a device, with the ports that a former rnicd has made. `pins` is the claim of the
/// directory of the pinned maps, once there is one: a BPF file system may be mounted at any time.
pub(crate) fn open(
    places: &Places,
    pins: &mut Option<Claim>,
    name: &str,
    (choice, ipsec_if_id): (ModeChoice, Option<NonZeroU32>),
    automatic_ports: RangeInclusive<u16>,
    held: &mut Held<'_>,
) -> Result<Shared, SharingError> {
    let failed = |doing| move |source| SharingError::Open(OpenError::System { doing, source });
    let has_pins = pins.as_ref().is_some_and(Claim::holds);
    if !has_pins {
        let claimed = Claim::make(&places.pins).map_err(io::Error::other);
        *pins = Some(claimed.map_err(failed("have the directory of the pinned maps"))?);
    }
    let mut device = SharedDevice::open(name, choice, ipsec_if_id, &places.pins.join(name))?;
    device.set_automatic_ports(automatic_ports);
    let records = Records::open(places.records(name));
    let records = records.map_err(failed("keep records of ports"))?;
    let usage = Usage::open(places.state.join("usage").join(format!("{name}.json")));
    let mut usage = usage.map_err(failed("read what users have sent"))?;
    let mut shared_ports = BTreeMap::new();
    let known = records
        .read()
        .map_err(failed("read the records of ports"))?;
    let there: Vec<_> = device.ports().collect();
    for record in known {
        let is_there = match &record.queue {
            Some(queue) => device.adopt_queue_port(record.port, queue)?,
            None => there.contains(&record.port),
        };
        let key = Memory::key(name, record.port);
        if !is_there {
            // It ended when no rnicd ran. What a hardware queue sent was not counted.
            let counts = record.queue.is_none();
            let sent = counts.then(|| found(name, device.port_counters(record.port)));
            let sent = sent.flatten();
            usage.see_port(record.port, sent.as_ref(), None);
            usage.end_port(record.port, record.account());
            usage.keep();
            if !held.endings.has(record.port) {
                let host_end = device.host_end_of(record.port)?;
                if let Some(host_end) = &host_end {
                    held.endings.record(&record, name, Some(host_end));
                }
                let remains = Remains {
                    _held: holdings(held.quotas, &record),
                    memory: held.memory(key),
                    record: record.clone(),
                };
                held.endings.add(remains, name, host_end);
            }
            records.forget(record.port);
            continue;
        }
        usage.add_port(record.port, record.account());
        let port = Port {
            client: None,
            held: holdings(held.quotas, &record),
            memory: held.memory(key),
            leases: Default::default(),
            follows: Default::default(),
            // Its client says so when it is back; who did not has no leases for it.
            protects: record.queue.is_none(),
            record,
        };
        shared_ports.insert(port.record.port, port);
    }
    for (number, local) in device.leases() {
        let Some(port) = shared_ports.get_mut(&number) else {
            continue;
        };
        let Some(reservation) = held.reservation(&device, number, local) else {
            // Its client is told when it comes back.
            device.release(number, local)?;
            continue;
        };
        let resource = match port.record.listeners.contains(&local) {
            true => Resource::Listeners,
            false => Resource::Connections,
        };
        let wanted = port.record.mapped.get(&local).copied().unwrap_or(local);
        let is_listener = port.record.listeners.contains(&local);
        let uid = port.record.uid;
        let mapping = is_listener.then(|| device.map(number, Some(uid), wanted, local.port()));
        let lease = Lease {
            _mapping: mapping.and_then(|mapping| found(name, mapping)),
            reservation,
            _held: held.quotas.adopt(port.record.account(), resource, 1),
            since: None,
        };
        port.leases.insert(local, lease);
    }
    // Nobody could show that such a port is its own.
    for number in there
        .into_iter()
        .filter(|number| !shared_ports.contains_key(number))
    {
        warn!("{name}: port {number} has no record and ends");
        device.remove_port(number)?;
    }
    held.let_go(name);
    Ok(Shared {
        has_more: false,
        device,
        choice,
        ipsec_if_id,
        records,
        usage,
        ports: shared_ports,
        paths: Default::default(),
    })
}
