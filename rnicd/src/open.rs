//! Opens a device for sharing, with the ports that a former rnicd has made.

use std::collections::BTreeMap;
use std::io;

use rnic_xdp::OpenError;
use rnic_xdp::manager::SharedDevice;
use rnic_xdp::sharing::SharingError;
use rnic_xdp::steering::ModeChoice;
use tracing::warn;

use crate::claim::Claim;
use crate::places::Places;
use crate::quota::{Quotas, Resource};
use crate::record::Records;
use crate::shared::{Lease, Port, Shared, found};
use crate::usage::Usage;

/// Takes a device, with the ports that a former rnicd has made. `pins` is the claim of the directory of the pinned maps, once there is
/// one: a BPF file system may be mounted at any time.
pub(crate) fn open(
    places: &Places,
    pins: &mut Option<Claim>,
    name: &str,
    choice: ModeChoice,
    quotas: &Quotas,
) -> Result<Shared, SharingError> {
    let failed = |doing| move |source| SharingError::Open(OpenError::System { doing, source });
    let has_pins = pins.as_ref().is_some_and(Claim::holds);
    if !has_pins {
        let claimed = Claim::make(&places.pins).map_err(io::Error::other);
        *pins = Some(claimed.map_err(failed("have the directory of the pinned maps"))?);
    }
    let mut device = SharedDevice::open(name, choice, &places.pins.join(name))?;
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
        if !is_there {
            // It ended when no rnicd ran. What a hardware queue sent was not counted.
            let counts = record.queue.is_none();
            let sent = counts.then(|| found(name, device.port_counters(record.port)));
            let sent = sent.flatten();
            usage.see_port(record.port, sent.as_ref(), None);
            usage.end_port(record.port, record.uid);
            usage.keep();
            records.forget(record.port);
            continue;
        }
        usage.add_port(record.port, record.uid);
        let take = |resource, amount| quotas.adopt(record.uid, resource, amount);
        let held = vec![
            take(Resource::Ports, 1),
            take(Resource::Frames, record.frames.into()),
            take(Resource::Hugepages, record.huge_octets),
        ];
        let port = Port {
            client: None,
            _held: held,
            leases: Default::default(),
            follows: Default::default(),
            record,
        };
        shared_ports.insert(port.record.port, port);
    }
    for (number, local) in device.leases()? {
        if let Some(port) = shared_ports.get_mut(&number) {
            // Which of them listen is not known any more.
            let lease = Lease {
                _held: quotas.adopt(port.record.uid, Resource::Connections, 1),
                since: None,
            };
            port.leases.insert(local, lease);
        }
    }
    // Nobody could show that such a port is its own.
    for number in there
        .into_iter()
        .filter(|number| !shared_ports.contains_key(number))
    {
        warn!("{name}: port {number} has no record and ends");
        device.end_port(number)?;
    }
    Ok(Shared {
        device,
        choice,
        records,
        usage,
        ports: shared_ports,
        destinations: Default::default(),
    })
}
