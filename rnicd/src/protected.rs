//! What clients are told of what protects their ports.

use rnic_manager::protection::{Association, Demanded, Protection, Secret};
use rnic_manager::protocol::Notice;
use rnic_xdp::shared::PortAssociation;

use crate::shared::Shared;

/// Puts into words what protects a port.
pub(crate) fn protection(shared: &Shared, port: u32) -> impl Iterator<Item = Notice> {
    let now = shared.device.protection_of(port);
    let protection = Protection {
        demands: now.demands.iter().map(Demanded::from).collect(),
        addresses: now.addresses,
        associations: now.associations.iter().map(association).collect(),
    };
    let parts = protection.parts();
    let last = parts.len() - 1;
    let parts = parts.into_iter().enumerate();
    parts.map(move |(part, protection)| Notice::Protection {
        port,
        protection,
        more: part < last,
    })
}

fn association(found: &PortAssociation) -> Association {
    let (encryption, integrity) = found.keys.octets();
    Association {
        spi: found.sa.id.spi,
        source: found.sa.source,
        destination: found.sa.id.destination,
        tunnel: found.sa.mode == rnic_core::esp::Mode::Tunnel,
        algorithm: found.sa.algorithm.name().to_owned(),
        extended: found.sa.extended,
        udp: found
            .sa
            .encapsulation
            .map(|ports| (ports.source, ports.destination)),
        request: found.sa.request,
        encryption: Secret::new(encryption),
        integrity: Secret::new(integrity),
        outbound: found.is_outbound,
        dying: found.is_dying,
        age: found.age,
        window: found.window,
        received: found.received,
        first: found.first,
    }
}
