//! Requests for associations to the host's key managers (SADB_ACQUIRE).

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rnic_core::esp::{Action, Demand, Ports, Sa, Template};
use rnic_core::time::Instant;
use tracing::{debug, info};

use crate::device::netlink::{AssociationSocket, NetlinkError};

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

/// Between which ends something is to be protected. A port of 0 is any.
pub(super) type Ends = (SocketAddr, SocketAddr);

/// Returns the ends to name to key managers for what goes between two hosts and may use associations
/// of a template: those of each policy that names no request, by which alone they find what they
/// are to negotiate (pluto), or of the first one.
pub(super) fn ends(
    demands: &[Demand],
    template: &Template,
    local: IpAddr,
    remote: IpAddr,
) -> Vec<Ends> {
    let single = |ports: Ports| match ports.mask {
        u16::MAX => ports.port,
        _ => 0,
    };
    let is_for = |demand: &&Demand| match demand.action {
        Action::Protect(demanded) => {
            let selects = demand.selector.selects_some(local, remote);
            demand.outgoing
                && selects
                && demanded.between(local, remote) == template.between(local, remote)
        }
        Action::Bypass | Action::Discard => false,
    };
    let found = demands.iter().filter(is_for).map(|demand| {
        let [here, there] = [demand.selector.local_ports, demand.selector.remote_ports].map(single);
        (SocketAddr::new(local, here), SocketAddr::new(remote, there))
    });
    match template.request {
        0 => found.collect(),
        _ => found.take(1).collect(),
    }
}

/// Who is asked.
pub(super) trait KeyManagers {
    /// Asks for an association for what goes between two ends. Whether somebody listens is not
    /// known.
    fn acquire(
        &mut self,
        template: &Template,
        ends: (SocketAddr, SocketAddr),
        if_id: u32,
    ) -> Result<(), NetlinkError>;
}

impl KeyManagers for AssociationSocket {
    fn acquire(
        &mut self,
        template: &Template,
        ends: (SocketAddr, SocketAddr),
        if_id: u32,
    ) -> Result<(), NetlinkError> {
        Self::acquire(self, template, ends, if_id)
    }
}

/// What was asked for.
struct Asked {
    template: Template,
    ends: Ends,
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
        managers: &mut impl KeyManagers,
        if_id: u32,
        (template, ends): (Template, Ends),
        now: Instant,
    ) {
        let mut all = self.0.iter_mut();
        if let Some(asked) = all.find(|asked| (asked.template, asked.ends) == (template, ends)) {
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
        let [local, remote] = [ends.0.ip(), ends.1.ip()];
        info!("asking for an IPsec association of if_id {if_id:#x} for {local} to {remote}");
        let mut asked = Asked {
            template,
            ends,
            again_at: now,
            left: TIMES,
        };
        asked.ask(managers, if_id, now);
        self.0.push(asked);
    }

    /// Asks again for what has not come.
    pub(super) fn ask_again(&mut self, managers: &mut impl KeyManagers, if_id: u32, now: Instant) {
        let is_past = |asked: &Asked| asked.left == 0 && now >= asked.again_at;
        self.0.retain(|asked| !is_past(asked));
        for asked in self.0.iter_mut().filter(|asked| now >= asked.again_at) {
            asked.ask(managers, if_id, now);
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
    fn ask(&mut self, managers: &mut impl KeyManagers, if_id: u32, now: Instant) {
        let is_soon = self.left > TIMES - SOON;
        self.again_at = now + if is_soon { AGAIN_AFTER } else { LATER };
        self.left -= 1;
        if let Err(why) = managers.acquire(&self.template, self.ends, if_id) {
            debug!("cannot ask for an IPsec association: {why}");
        }
    }
}

#[cfg(test)]
mod tests {
    use rnic_core::engine::Prefix;
    use rnic_core::esp::{Algorithm, Mode, SaId, Selector};

    use super::*;

    const IF_ID: u32 = 7;

    /// Who was asked for what, by the request of its template.
    #[derive(Default)]
    struct Heard(Vec<u32>);

    impl KeyManagers for Heard {
        fn acquire(
            &mut self,
            template: &Template,
            _: (SocketAddr, SocketAddr),
            if_id: u32,
        ) -> Result<(), NetlinkError> {
            assert_eq!(if_id, IF_ID);
            self.0.push(template.request);
            Ok(())
        }
    }

    impl Heard {
        fn take(&mut self) -> Vec<u32> {
            std::mem::take(&mut self.0)
        }
    }

    const LOCAL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const REMOTE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

    fn template(request: u32) -> Template {
        Template {
            request,
            mode: Mode::Transport,
            local: LOCAL,
            remote: REMOTE,
        }
    }

    fn sa(request: u32) -> Sa {
        Sa {
            id: SaId {
                spi: 9,
                destination: REMOTE,
            },
            source: LOCAL,
            mode: Mode::Transport,
            algorithm: Algorithm::AesGcm,
            extended: true,
            encapsulation: None,
            request,
        }
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    fn ask(acquiring: &mut Acquiring, heard: &mut Heard, request: u32, seconds: u64) {
        let ends = (SocketAddr::new(LOCAL, 0), SocketAddr::new(REMOTE, 0));
        let what = (template(request), ends);
        acquiring.ask(heard, IF_ID, what, at(seconds));
    }

    /// Returns the seconds from `from` up to `to` in which something is asked for again.
    fn asked_again(acquiring: &mut Acquiring, from: u64, to: u64) -> Vec<u64> {
        let is_asked = |seconds: &u64| {
            let mut heard = Heard::default();
            acquiring.ask_again(&mut heard, IF_ID, at(*seconds));
            !heard.0.is_empty()
        };
        (from..to).filter(is_asked).collect()
    }

    #[test]
    fn what_does_not_come_is_asked_for_often_at_first_and_for_an_hour() {
        let (mut acquiring, mut heard) = (Acquiring::default(), Heard::default());
        ask(&mut acquiring, &mut heard, 1, 0);
        assert_eq!(heard.take(), [1]);
        // What waits for it does not make it come sooner.
        ask(&mut acquiring, &mut heard, 1, 1);
        assert_eq!(heard.take(), [0; 0]);
        // That was needed again, so it begins anew: the first of the twelve was at once.
        let soon: Vec<_> = (1..=12).map(|time| 5 * time).collect();
        let late: Vec<_> = (0..60).map(|time| 65 + 60 * time).collect();
        let all = [soon, late].concat();
        assert_eq!(asked_again(&mut acquiring, 0, 10_000), all);
        // Who needs it then asks at once.
        ask(&mut acquiring, &mut heard, 1, 10_000);
        assert_eq!(heard.take(), [1]);
    }

    #[test]
    fn who_takes_each_away_does_not_get_one_in_each_round_trip() {
        let (mut acquiring, mut heard) = (Acquiring::default(), Heard::default());
        ask(&mut acquiring, &mut heard, 1, 0);
        acquiring.note(&sa(2), at(0));
        acquiring.note(&sa(1), at(2));
        heard.take();
        // It has come, and is gone at once: for five seconds nothing is asked for.
        ask(&mut acquiring, &mut heard, 1, 3);
        assert_eq!(heard.take(), [0; 0]);
        assert_eq!(asked_again(&mut acquiring, 3, 12), [7]);
        // If nobody needs it meanwhile, it is forgotten, and asked for at once the next time.
        acquiring.note(&sa(1), at(13));
        assert_eq!(asked_again(&mut acquiring, 13, 1000), [0; 0]);
        ask(&mut acquiring, &mut heard, 1, 1000);
        assert_eq!(heard.take(), [1]);
    }

    #[test]
    fn of_too_many_the_one_is_dropped_that_is_needed_least() {
        let (mut acquiring, mut heard) = (Acquiring::default(), Heard::default());
        let most = u32::try_from(MOST).unwrap();
        for request in 1..=most {
            ask(&mut acquiring, &mut heard, request, 0);
        }
        assert_eq!(asked_again(&mut acquiring, 0, 6), [5]);
        // All but one are needed still.
        for request in (1..=most).filter(|request| *request != 5) {
            ask(&mut acquiring, &mut heard, request, 6);
        }
        heard.take();
        ask(&mut acquiring, &mut heard, 100, 6);
        ask(&mut acquiring, &mut heard, 6, 6);
        assert_eq!(heard.take(), [100]);
        ask(&mut acquiring, &mut heard, 5, 6);
        assert_eq!(heard.take(), [5]);
        assert_eq!(acquiring.0.len(), MOST);
        // What has come goes first.
        acquiring.note(&sa(9), at(6));
        ask(&mut acquiring, &mut heard, 101, 6);
        assert_eq!(heard.take(), [101]);
        ask(&mut acquiring, &mut heard, 9, 6);
        assert_eq!(heard.take(), [9]);
    }

    #[test]
    fn a_policy_without_a_request_is_known_by_its_ends() {
        let all: Prefix = "0.0.0.0/0".parse().unwrap();
        let one = |port| Ports {
            port,
            mask: u16::MAX,
        };
        let range = Ports {
            port: 40000,
            mask: 0xffc0,
        };
        let demand = |request, outgoing, local_ports, remote_ports| Demand {
            outgoing,
            selector: Selector {
                local: all,
                local_ports,
                remote: all,
                remote_ports,
            },
            action: Action::Protect(template(request)),
        };
        let demands = |request| {
            [
                demand(request, true, one(7471), Ports::ALL),
                demand(request, false, one(5), one(5)),
                demand(request, true, range, one(7471)),
                demand(request + 1, true, one(6), one(6)),
            ]
        };
        let named = |request| -> Vec<_> {
            let all = ends(&demands(request), &template(request), LOCAL, REMOTE);
            let ports = all.into_iter();
            ports
                .map(|(local, remote)| (local.port(), remote.port()))
                .collect()
        };
        assert_eq!(named(0), [(7471, 0), (0, 7471)]);
        assert_eq!(named(1), [(7471, 0)]);
    }

    #[test]
    fn what_no_policy_demands_any_more_is_forgotten() {
        let (mut acquiring, mut heard) = (Acquiring::default(), Heard::default());
        for request in [1, 2] {
            ask(&mut acquiring, &mut heard, request, 0);
        }
        let all: Prefix = "0.0.0.0/0".parse().unwrap();
        let demand = Demand {
            outgoing: true,
            selector: Selector {
                local: all,
                local_ports: Ports::ALL,
                remote: all,
                remote_ports: Ports::ALL,
            },
            action: Action::Protect(template(2)),
        };
        acquiring.keep_demanded(&[demand]);
        heard.take();
        acquiring.ask_again(&mut heard, IF_ID, at(5));
        assert_eq!(heard.take(), [2]);
    }
}
