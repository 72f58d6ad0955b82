//! Asking clients what they say of themselves. rnicd passes the two ends of a connection on, and
//! never reads what is said.

use std::os::fd::OwnedFd;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use rnic_manager::channel::refuse_descriptors;
use rnic_manager::protocol::{Answer, Notice, Reason, Refused};

use crate::administration::Answered;
use crate::listeners::Role;
use crate::server::Server;
use crate::shared::{ClientKey, Port};

impl Server {
    /// Joins who asks to the client of a port.
    pub(crate) fn inspect(
        &mut self,
        key: ClientKey,
        number: u32,
        what: String,
        within: u32,
    ) -> Answered {
        let asking = &self.clients[key];
        let mut devices = self.devices.iter();
        let port = devices.find_map(|shared| shared.ports.get(&number));
        let may_know =
            |port: &&Port| asking.role == Role::Administrator || asking.is_user_of(&port.record);
        let seen = port.filter(may_know);
        let port = seen.ok_or_else(|| {
            let why =
                format!("you see no port {number}; `rnic-ctl port show` lists those that you see");
            Refused::new(Reason::NotPermitted, why)
        })?;
        let client = port.client.and_then(|client| self.clients.get_mut(client));
        let client = client.ok_or_else(|| {
            let why = "its client is not connected to rnicd now, which it tries again and again";
            Refused::new(Reason::NotReady, why)
        })?;
        if !client.may_be_inspected() {
            let why = "its client has not answered those who asked before; it may be stopped";
            return Err(Refused::new(Reason::NotReady, why));
        }
        let (readers, writers) = connection().map_err(|error| {
            let why = format!("rnicd cannot make a connection for the answer: {error}");
            Refused::new(Reason::Other, why)
        })?;
        let notice = Notice::Describe {
            port: number,
            what,
            within,
        };
        client.inspect(notice, writers);
        Ok((Answer::Inspecting, vec![readers]))
    }
}

/// Makes a connection. Returns the end of who reads, and that of who writes. It is of sockets: a
/// pipe can be held up at both ends by a write whose octets never come. What is sent with the
/// octets the kernel refuses, at either end.
fn connection() -> nix::Result<(OwnedFd, OwnedFd)> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let ends = socketpair(AddressFamily::Unix, SockType::Stream, None, flags)?;
    for end in [&ends.0, &ends.1] {
        // An older kernel cannot: then who has this end closes what came with it.
        refuse_descriptors(end);
    }
    Ok(ends)
}
