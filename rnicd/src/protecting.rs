//! What clients ask for of the host's Security Associations: sequence numbers, and associations that
//! are not there.

use rnic_core::connection::AddressPair;
use rnic_core::esp::SaId;
use rnic_manager::protocol::{Answer, Reason, Refused};

use crate::administration::Answered;
use crate::leasing::nothing;
use crate::server::Server;
use crate::shared::ClientKey;

impl Server {
    /// Hands a client sequence numbers of an association that it has.
    pub(crate) fn numbers(&mut self, key: ClientKey, port: u32, id: SaId) -> Answered {
        self.rest_after(key, port);
        let shared = self.port_of(key, port)?;
        let taken = shared.device.take_numbers(port, id);
        let (first, end) = taken.map_err(|why| {
            let why = format!("no sequence numbers of SPI {:#010x}: {why}", id.spi);
            Refused::new(Reason::Other, why)
        })?;
        Ok((Answer::Numbers { first, end }, Vec::new()))
    }

    /// Asks the host's key managers for an association to where a client is about to send.
    pub(crate) fn acquire(
        &mut self,
        key: ClientKey,
        (number, name): (u32, u32),
        path: AddressPair,
    ) -> Answered {
        self.rest_after(key, number);
        let shared = self.port_of(key, number)?;
        let port = shared.ports.get(&number);
        // What is followed is limited, and so is what is asked for.
        if !port.is_some_and(|port| port.follows.contains(&path)) {
            let AddressPair { local, remote } = path;
            let why =
                format!("port {number} does not follow the next hop from {local} to {remote}");
            return Err(Refused::new(Reason::Other, why));
        }
        let ends = (path.local, path.remote);
        shared.device.acquire(number, name, ends);
        nothing()
    }

    /// Lets a client rest that makes the kernel look something up, as all do who follow next hops.
    fn rest_after(&mut self, key: ClientKey, port: u32) {
        let account = self.owner_of(key, port);
        let rest = self.users.look_up(account);
        self.clients[key].rest(rest);
    }
}
