//! Requests for associations to the host's key managers (SADB_ACQUIRE).

use std::net::SocketAddr;
use std::time::Duration;

use rnic_core::esp::{Sa, Template};
use rnic_core::time::Instant;
use tracing::{debug, info};

use crate::device::netlink::AssociationSocket;

/// How soon a key manager is asked again that has not brought an association: it may have been
/// started meanwhile. One that negotiates already need not heed that.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// How often it is asked for what no packet needs any more.
const TIMES: u32 = 12;

/// The most that is asked for at a time. Whoever connects elsewhere meanwhile asks again.
const MOST: usize = 64;

/// What was asked for.
struct Asked {
    template: Template,
    ends: (SocketAddr, SocketAddr),
    again_at: Instant,
    left: u32,
}

/// What was asked for and has not come.
#[derive(Default)]
pub(super) struct Acquiring(Vec<Asked>);

impl Acquiring {
    /// Asks for an association, unless that was done a moment ago.
    pub(super) fn ask(
        &mut self,
        socket: &mut AssociationSocket,
        if_id: u32,
        (template, ends): (Template, (SocketAddr, SocketAddr)),
        now: Instant,
    ) {
        let mut all = self.0.iter_mut();
        if let Some(asked) = all.find(|asked| asked.template == template) {
            asked.left = TIMES;
            return;
        }
        if self.0.len() == MOST {
            return;
        }
        let (local, remote) = ends;
        info!("asking for an IPsec association of if_id {if_id:#x} for {local} to {remote}");
        let mut asked = Asked {
            template,
            ends,
            again_at: now,
            left: TIMES,
        };
        asked.ask(socket, if_id, now);
        self.0.push(asked);
    }

    /// Asks again for what has not come.
    pub(super) fn ask_again(&mut self, socket: &mut AssociationSocket, if_id: u32, now: Instant) {
        self.0.retain(|asked| asked.left > 0);
        for asked in self.0.iter_mut().filter(|asked| now >= asked.again_at) {
            asked.ask(socket, if_id, now);
        }
    }

    /// Notes that an association to send with has come.
    pub(super) fn forget(&mut self, sa: &Sa) {
        self.0.retain(|asked| !asked.template.is_met_by(sa));
    }
}

impl Asked {
    fn ask(&mut self, socket: &mut AssociationSocket, if_id: u32, now: Instant) {
        self.again_at = now + AGAIN_AFTER;
        self.left -= 1;
        if let Err(why) = socket.acquire(&self.template, self.ends, if_id) {
            debug!("cannot ask for an IPsec association: {why}");
        }
    }
}
