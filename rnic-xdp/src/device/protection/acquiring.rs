//! Requests for associations to the host's key managers (SADB_ACQUIRE).

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rnic_core::esp::{Action, Demand, Sa, Template};
use rnic_core::time::Instant;
use tracing::{debug, info};

use crate::device::netlink::AssociationSocket;

/// How soon a key manager is asked again that has not brought an association: it may have been
/// started meanwhile. One that negotiates already need not heed that.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// How often that is done, and how soon it is asked then.
const SOON: u32 = 12;
const LATER: Duration = Duration::from_secs(60);

/// How often it is asked for what no packet needs any more: for an hour.
const TIMES: u32 = SOON + 60;

/// The most that is asked for at a time.
const MOST: usize = 64;

/// What was asked for.
struct Asked {
    template: Template,
    ends: (SocketAddr, SocketAddr),
    again_at: Instant,
    /// How often it is asked again. 0: it has come, and is not asked for anew so soon.
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
        (template, local, remote): (Template, IpAddr, IpAddr),
        now: Instant,
    ) {
        let mut all = self.0.iter_mut();
        if let Some(asked) = all.find(|asked| asked.template == template) {
            asked.left = TIMES;
            return;
        }
        if self.0.len() == MOST {
            // What has come, or was needed last the longest ago.
            let least = self
                .0
                .iter()
                .enumerate()
                .min_by_key(|(_, asked)| asked.left);
            if let Some((place, _)) = least {
                self.0.swap_remove(place);
            }
        }
        info!("asking for an IPsec association of if_id {if_id:#x} for {local} to {remote}");
        let mut asked = Asked {
            template,
            ends: (SocketAddr::new(local, 0), SocketAddr::new(remote, 0)),
            again_at: now,
            left: TIMES,
        };
        asked.ask(socket, if_id, now);
        self.0.push(asked);
    }

    /// Asks again for what has not come.
    pub(super) fn ask_again(&mut self, socket: &mut AssociationSocket, if_id: u32, now: Instant) {
        let is_past = |asked: &Asked| asked.left == 0 && now >= asked.again_at;
        self.0.retain(|asked| !is_past(asked));
        for asked in self.0.iter_mut().filter(|asked| now >= asked.again_at) {
            asked.ask(socket, if_id, now);
        }
    }

    /// Notes that an association to send with has come. If it goes at once, the next one is asked
    /// for after a pause: who takes each away is not to have a new one in each round trip.
    pub(super) fn note(&mut self, sa: &Sa, now: Instant) {
        for asked in &mut self.0 {
            if asked.template.is_met_by(sa) {
                asked.left = 0;
                asked.again_at = now + AGAIN_AFTER;
            }
        }
    }

    /// Forgets what no policy demands any more.
    pub(super) fn keep_demanded(&mut self, demands: &[Demand]) {
        let of = |template: &Template| (template.request, template.mode);
        self.0.retain(|asked| {
            demands.iter().any(|demand| match demand.action {
                Action::Protect(template) => of(&template) == of(&asked.template),
                Action::Bypass | Action::Discard => false,
            })
        });
    }
}

impl Asked {
    fn ask(&mut self, socket: &mut AssociationSocket, if_id: u32, now: Instant) {
        let is_soon = self.left > TIMES - SOON;
        self.again_at = now + if is_soon { AGAIN_AFTER } else { LATER };
        self.left -= 1;
        if let Err(why) = socket.acquire(&self.template, self.ends, if_id) {
            debug!("cannot ask for an IPsec association: {why}");
        }
    }
}
