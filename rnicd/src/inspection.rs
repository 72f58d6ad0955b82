//! Asking clients what they say of themselves. rnicd passes sockets on, and never reads what is said.

use std::os::fd::OwnedFd;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use rnic_xdp::manager::protocol::{Answer, Notice, Reason, Refused};

use crate::administration::Answered;
use crate::server::Server;
use crate::shared::ClientKey;

impl Server {
    /// Joins who asks to the client of a port.
    pub(crate) fn inspect(
        &mut self,
        key: ClientKey,
        number: u32,
        what: String,
        within: u32,
    ) -> Answered {
        let uid = self.clients[key].peer.uid;
        let mut devices = self.devices.iter();
        let port = devices.find_map(|shared| shared.ports.get(&number));
        let seen = port.filter(|port| uid == 0 || uid == port.record.uid);
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
        let (theirs, ours, watch) = sockets().map_err(|error| {
            let why = format!("rnicd cannot make a socket for the answer: {error}");
            Refused::new(Reason::Other, why)
        })?;
        let notice = Notice::Describe {
            port: number,
            what,
            within,
        };
        client.inspect(notice, theirs, watch);
        Ok((Answer::Inspecting, vec![ours]))
    }
}

/// Makes the socket of the client, that of who asks, and a copy of the latter.
fn sockets() -> std::io::Result<(OwnedFd, OwnedFd, OwnedFd)> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let (theirs, ours) = socketpair(AddressFamily::Unix, SockType::Stream, None, flags)?;
    let watch = ours.try_clone()?;
    Ok((theirs, ours, watch))
}
