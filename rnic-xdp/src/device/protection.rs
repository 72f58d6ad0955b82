//! The host's Security Associations and policies, as far as they are this process's: read,
//! followed, counted and reported. Whoever has a number of the kernel's xfrm interfaces (`if_id`)
//! that no link has is the only one to use what has that number.

mod acquiring;
#[cfg(feature = "testing")]
mod given;
mod limits;
mod numbers;
mod own;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::prctl::set_dumpable;
use rnic_core::esp::{Change, Demand, Request, Sa, SaId, Template, Usage};
use rnic_core::time::Instant;
use tracing::{debug, info, warn};

use self::acquiring::{Acquiring, ends};
#[cfg(feature = "testing")]
pub use self::given::give_association;
use self::limits::{Limits, Reached};
use self::numbers::{NumberLock, taken};
pub(crate) use self::own::Own;
use super::error::OpenError;
use super::netlink::{
    Association, AssociationSocket, Groups, NetlinkError, Policies, PolicySocket, RouteSocket,
    Spent, addresses,
};

/// How often what associations have done is reported, and requests are tried again that came to
/// nothing.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// What becomes of associations that can be used.
pub(crate) trait Uses {
    /// Begins to use one. Returns where it is counted what it does.
    fn add(&mut self, sa: Sa, found: &Association, is_outbound: bool)
    -> Result<Arc<Usage>, String>;

    /// Uses one no more.
    fn remove(&mut self, id: SaId);

    /// Takes over numbers of an association, which nobody else uses.
    fn add_numbers(&mut self, id: SaId, block: Range<u64>);

    /// Returns the highest number that was received by an association, 0 if that is not known.
    fn received(&self, id: SaId) -> u64;

    /// Takes note of any other change.
    fn tell(&mut self, change: Change);

    /// Takes note of the policies, those for other protocols than TCP among them.
    fn note_policies(&mut self, policies: &Policies);

    /// Returns whether sequence numbers are taken before somebody asks for them.
    fn takes_numbers(&self) -> bool;

    /// Returns whether what was received was known to be genuine when it was counted.
    fn counts_genuine(&self) -> bool;
}

/// The host's associations and policies of one number, and what becomes of them.
pub(crate) struct HostProtection<U> {
    if_id: NonZeroU32,
    netdev: String,
    socket: AssociationSocket,
    policies: PolicySocket,
    uses: U,
    lock: NumberLock,
    known: BTreeMap<SaId, Known>,
    /// Associations that cannot be used, of which the log has the reason, with where they begin and
    /// the request in the name of which they were negotiated.
    refused: BTreeMap<SaId, (IpAddr, u32)>,
    own: BTreeSet<IpAddr>,
    demands: Vec<Demand>,
    /// Requests for numbers that came to nothing.
    waiting: BTreeSet<SaId>,
    /// Requests for associations.
    acquiring: Acquiring,
    reads: bool,
    reports_at: Instant,
}

/// An association in use.
pub(crate) struct Known {
    pub(crate) association: Association,
    pub(crate) is_outbound: bool,
    pub(crate) usage: Arc<Usage>,
    /// What was reported last.
    reported: (Spent, u64),
    limits: Limits,
}

impl Known {
    /// Returns what the association has done, here and before.
    fn spent(&self) -> Spent {
        let before = self.association.spent;
        Spent {
            octets: before.octets + self.usage.octets(),
            packets: before.packets + self.usage.packets(),
        }
    }

    /// Returns whether it has reached a limit at which it is used no more.
    pub(crate) fn has_ended(&self) -> bool {
        self.limits.have_ended()
    }

    /// Returns whether it is one to send with as a policy demands, whatever its algorithm is.
    fn meets(&self, template: &Template) -> bool {
        let found = &self.association;
        !self.has_ended() && is_between(template, found.id, (found.source, found.request))
    }
}

/// Returns whether an association goes between the ends that a policy demands, in its name.
fn is_between(template: &Template, id: SaId, (source, request): (IpAddr, u32)) -> bool {
    let demanded = (template.local, template.remote, template.request);
    (source, id.destination, request) == demanded
}

impl<U: Uses> HostProtection<U> {
    /// Reads associations and policies in the network namespace of this thread.
    pub(crate) fn open(netdev: &str, if_id: NonZeroU32, uses: U) -> Result<Self, OpenError> {
        let absent = || OpenError::Config {
            field: "ipsec_if_id",
            value: if_id.to_string(),
            rule: "this kernel has no IPsec (CONFIG_XFRM_USER; `modprobe xfrm_user`)",
        };
        let failed = |doing| move |source| OpenError::System { doing, source };
        let mut opened = Self {
            if_id,
            netdev: netdev.to_owned(),
            policies: PolicySocket::open(Groups::NONE)?.ok_or_else(absent)?,
            socket: AssociationSocket::open()?,
            uses,
            lock: NumberLock::open()
                .map_err(failed("open the lock of the numbers of IPsec associations"))?,
            known: BTreeMap::new(),
            refused: BTreeMap::new(),
            own: BTreeSet::new(),
            demands: Vec::new(),
            waiting: BTreeSet::new(),
            acquiring: Acquiring::default(),
            reads: false,
            reports_at: Instant::ZERO,
        };
        opened.read_addresses(&mut RouteSocket::open()?)?;
        opened.read(Instant::ZERO)?;
        opened.reads = false;
        Ok(opened)
    }

    /// Returns what becomes of the associations.
    pub(crate) fn uses(&self) -> &U {
        &self.uses
    }

    /// The same, to be changed.
    pub(crate) fn uses_mut(&mut self) -> &mut U {
        &mut self.uses
    }

    /// Returns the associations in use.
    pub(crate) fn known(&self) -> &BTreeMap<SaId, Known> {
        &self.known
    }

    /// Returns the policies, those with precedence first.
    pub(crate) fn demands(&self) -> &[Demand] {
        &self.demands
    }

    /// Returns the addresses of this host.
    pub(crate) fn own(&self) -> &BTreeSet<IpAddr> {
        &self.own
    }

    /// Ends an association, as if it had reached its limits: the key managers make another one.
    /// Returns whether that was done: one that cannot be used stays.
    pub(crate) fn end(&mut self, id: SaId) -> Result<bool, NetlinkError> {
        let Some(known) = self.known.get_mut(&id) else {
            return Ok(!self.refused.contains_key(&id));
        };
        self.reads = true;
        known.limits.reach(Reached::Hard);
        self.socket.end(&known.association)?;
        known.limits.note_told();
        Ok(true)
    }

    /// Returns whether the kernel may still have an association: it had it when it was read last,
    /// whether it can be used or not, or that has to be read again.
    pub(crate) fn may_have(&self, id: SaId) -> bool {
        self.reads || self.known.contains_key(&id) || self.refused.contains_key(&id)
    }

    /// Takes numbers of an association from the kernel's counter. Tells the key managers when they
    /// come to their end.
    pub(crate) fn take_numbers(&mut self, id: SaId) -> Result<Range<u64>, String> {
        let known = self.known.get_mut(&id).ok_or("the association is gone")?;
        if known.has_ended() {
            return Err("the association has reached its limits".into());
        }
        let block = self.lock.take(&mut self.socket, &known.association)?;
        let end = block.as_ref().map(|block| block.end);
        let reached = Reached::by_numbers(end, known.association.extended);
        if known.limits.reach(reached) {
            let netdev = &self.netdev;
            let left = if reached == Reached::Hard {
                "no"
            } else {
                "few"
            };
            warn!(
                "{netdev}: {left} sequence numbers are left of the IPsec association of SPI {:#010x} to {}: the key managers are told to replace \
                 it; extended ones do not end (ESN: `flag esn`, or `-esn` in esp_proposals)",
                id.spi, id.destination
            );
            self.uses.tell(change(id, reached));
        }
        self.reads |= known.has_ended();
        tell_limit(&mut self.socket, known);
        block.ok_or_else(|| "its numbers are used up".into())
    }

    /// Follows what has changed, and reports what was done.
    pub(crate) fn follow(&mut self, routes: &mut RouteSocket, now: Instant) {
        match self.socket.news() {
            Ok(news) => {
                self.reads |= news.changed;
                for id in news.dying {
                    self.uses.tell(Change::Dying(id));
                }
            }
            Err(why) => {
                debug!("cannot follow the IPsec associations of the host: {why}");
                self.reads = true;
            }
        }
        let is_time = now >= self.reports_at;
        let mut read = match is_time {
            true => self.read_addresses(routes),
            false => Ok(()),
        };
        if self.reads && read.is_ok() {
            read = self.read(now);
        }
        // After a failure it is tried again.
        self.reads = read.is_err();
        if let Err(why) = read {
            warn!("cannot read the IPsec associations of the host: {why}");
        }
        if is_time {
            self.reports_at = now + REPORT_EVERY;
            self.report();
            for id in std::mem::take(&mut self.waiting) {
                self.add_numbers(id);
            }
            let if_id = self.if_id.get();
            self.acquiring.ask_again(&mut self.socket, if_id, now);
        }
    }

    /// Does what the worker needs.
    pub(crate) fn request(&mut self, request: Request, now: Instant) {
        match request {
            Request::Numbers(id) => self.add_numbers(id),
            Request::Acquire {
                template,
                local,
                remote,
            } if !self.has_one_for(&template) => {
                let if_id = self.if_id.get();
                for ends in ends(&self.demands, &template, local, remote) {
                    let what = (template, ends);
                    self.acquiring.ask(&mut self.socket, if_id, what, now);
                }
            }
            Request::Acquire { .. } => {}
        }
    }

    /// Returns whether there is an association to send with as a policy demands. The worker may not
    /// know of it yet. One that cannot be used counts: another one would be no better.
    fn has_one_for(&self, template: &Template) -> bool {
        let mut known = self.known.values();
        let mut refused = self.refused.iter();
        known.any(|known| known.meets(template))
            || refused.any(|(id, found)| is_between(template, *id, *found))
    }

    /// Reads the addresses of this host again, by which associations have a direction.
    fn read_addresses(&mut self, routes: &mut RouteSocket) -> Result<(), NetlinkError> {
        let own = addresses(routes)?.into_iter().map(|own| own.address);
        let own: BTreeSet<_> = own.collect();
        if own != self.own {
            let addresses = own.iter().copied().collect();
            self.uses.tell(Change::Addresses(addresses));
            self.own = own;
            self.refused.clear();
            self.reads = true;
        }
        Ok(())
    }

    /// Reads policies and associations again.
    fn read(&mut self, now: Instant) -> Result<(), NetlinkError> {
        self.read_policies()?;
        let associations = self.socket.read()?;
        self.update(&associations, now);
        Ok(())
    }

    fn read_policies(&mut self) -> Result<(), NetlinkError> {
        let policies = self.policies.read_all(self.if_id.get())?;
        self.uses.note_policies(&policies);
        let policies = policies.for_tcp();
        let mut demands = Vec::new();
        for policy in policies.by_precedence() {
            let (demand, met) = policy.demand();
            if met.is_err() {
                debug!(
                    "rnic cannot do what the IPsec policy \"{policy}\" demands, and drops what it selects"
                );
            }
            demands.push(demand);
        }
        if demands != self.demands {
            self.uses.tell(Change::Demands(demands.clone()));
            self.acquiring.keep_demanded(&demands);
            self.demands = demands;
        }
        Ok(())
    }

    /// Takes note of the associations that there are now.
    fn update(&mut self, associations: &[Association], now: Instant) {
        let if_id = self.if_id.get();
        let ours = associations.iter().filter(|found| found.if_id == if_id);
        let ours: BTreeMap<_, _> = ours.map(|found| (found.id, found)).collect();
        let is_gone = |(id, known): (&SaId, &Known)| {
            let still = ours
                .get(id)
                .is_some_and(|found| found.is_still(&known.association));
            (!still).then_some(*id)
        };
        let gone: Vec<_> = self.known.iter().filter_map(is_gone).collect();
        for id in gone {
            self.forget(id);
        }
        self.refused.retain(|id, _| ours.contains_key(id));
        for (id, found) in ours {
            if self.refused.contains_key(&id) {
                continue;
            }
            let twin = associations.iter().find(|other| found.is_twin_of(other));
            let added = match (twin, self.known.get(&id)) {
                (Some(twin), known) => {
                    if known.is_some() {
                        self.forget(id);
                    }
                    Err(format!(
                        "it has the key of SPI {:#010x}, and a key is for one association (`ip xfrm state`)",
                        twin.id.spi
                    ))
                }
                (None, Some(known)) => {
                    // It was added again as it was at first, or somebody has set its counter.
                    if known.is_outbound && found.sent < taken(found) {
                        self.add_numbers(id);
                    }
                    Ok(())
                }
                (None, None) => self.add(found, now),
            };
            if let Err(why) = added {
                warn!(
                    "{}: the IPsec association of SPI {:#010x} to {} is not used: {why}",
                    self.netdev, id.spi, id.destination
                );
                self.refused.insert(id, (found.source, found.request));
            }
        }
    }

    fn forget(&mut self, id: SaId) {
        self.known.remove(&id);
        self.waiting.remove(&id);
        self.uses.remove(id);
        info!(
            "{}: the IPsec association of SPI {:#010x} is gone",
            self.netdev, id.spi
        );
    }

    /// Begins to use an association.
    fn add(&mut self, found: &Association, now: Instant) -> Result<(), String> {
        let (mode, algorithm, _) = found.usable.as_ref().map_err(Clone::clone)?;
        let sa = Sa {
            id: found.id,
            source: found.source,
            mode: *mode,
            algorithm: *algorithm,
            extended: found.extended,
            encapsulation: found.encapsulation,
            request: found.request,
        };
        let ends = [found.source, found.id.destination].map(|end| self.own.contains(&end));
        // A core dump would have the keys.
        set_dumpable(false).map_err(|errno| format!("cannot keep it from core dumps: {errno}"))?;
        let is_outbound = match ends {
            [true, false] => true,
            [false, true] => false,
            [true, true] => return Err("both its ends are addresses of this host".into()),
            [false, false] => return Err("neither end is an address of this host".into()),
        };
        if is_outbound {
            self.acquiring.note(&sa, now);
        }
        let usage = self.uses.add(sa, found, is_outbound)?;
        let left = found.hard_limit.without(found.spent);
        usage.limit(left.packets, left.octets);
        info!(
            "{}: ESP {} by {algorithm} from {} to {}, SPI {:#010x}",
            self.netdev, mode, found.source, found.id.destination, found.id.spi
        );
        let known = Known {
            association: found.clone(),
            is_outbound,
            reported: Default::default(),
            usage,
            limits: Limits::default(),
        };
        self.known.insert(found.id, known);
        if is_outbound && self.uses.takes_numbers() {
            self.add_numbers(found.id);
        }
        Ok(())
    }

    /// Takes numbers of an association from the kernel's counter, for the worker. Without any,
    /// tries again later.
    fn add_numbers(&mut self, id: SaId) {
        if self.known.get(&id).is_none_or(Known::has_ended) {
            return;
        }
        match self.take_numbers(id) {
            Ok(block) => {
                debug!(
                    "numbers {} to {} of SPI {:#010x}",
                    block.start,
                    block.end - 1,
                    id.spi
                );
                self.uses.add_numbers(id, block);
            }
            Err(why) => {
                debug!("no numbers for SPI {:#010x}: {why}", id.spi);
                self.waiting.insert(id);
            }
        }
    }

    /// Tells the kernel what was done since the last report, and the key managers of limits that
    /// were reached.
    pub(crate) fn report(&mut self) {
        for (id, known) in &mut self.known {
            let is_genuine = known.is_outbound || self.uses.counts_genuine();
            let spent = known.spent();
            let Association {
                soft_limit,
                hard_limit,
                ..
            } = known.association;
            let reached = Reached::by(spent, [soft_limit, hard_limit], is_genuine);
            let spent = match is_genuine {
                true => spent,
                // The kernel would end it.
                false => spent.below(hard_limit),
            };
            let now = (spent, self.uses.received(*id));
            if now != known.reported {
                let reported = self.lock.report(
                    &mut self.socket,
                    &known.association,
                    (!known.is_outbound).then_some(now.1),
                    spent,
                );
                match reported {
                    Ok(()) => known.reported = now,
                    Err(why) => debug!("cannot report what SPI {:#010x} has done: {why}", id.spi),
                }
            }
            if known.limits.reach(reached) {
                self.uses.tell(change(*id, reached));
            }
            self.reads |= known.has_ended();
            tell_limit(&mut self.socket, known);
        }
    }
}

/// Returns what an association's limits mean to who uses it.
fn change(id: SaId, reached: Reached) -> Change {
    match reached {
        Reached::Hard => Change::Gone(id),
        Reached::Soft | Reached::Nothing => Change::Dying(id),
    }
}

/// Tells the key managers which limit an association has reached, unless they know.
fn tell_limit(socket: &mut AssociationSocket, known: &mut Known) {
    let told = match known.limits.untold() {
        None => return,
        Some(Reached::Hard) => socket.end(&known.association),
        Some(Reached::Soft | Reached::Nothing) => socket.expire(&known.association, false),
    };
    match told {
        Ok(()) => known.limits.note_told(),
        // It is told at the next report.
        Err(why) => debug!(
            "cannot tell of a limit of SPI {:#010x}: {why}",
            known.association.id.spi
        ),
    }
}

impl<U> AsFd for HostProtection<U> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rnic_core::esp::Mode;

    use super::*;
    use crate::device::netlink::example_association;

    #[test]
    fn what_has_reached_its_hard_limit_is_asked_for_anew() {
        let association = example_association();
        let template = Template {
            request: association.request,
            mode: Mode::Transport,
            local: association.source,
            remote: association.id.destination,
        };
        let mut known = Known {
            association,
            is_outbound: true,
            usage: Arc::default(),
            reported: Default::default(),
            limits: Limits::default(),
        };
        assert!(known.meets(&template));
        known.limits.reach(Reached::Soft);
        assert!(known.meets(&template));
        // The key managers may not have been told, and the kernel has it still.
        known.limits.reach(Reached::Hard);
        assert!(!known.meets(&template));
        let other = Template {
            request: template.request + 1,
            ..template
        };
        known.limits = Limits::default();
        assert!(!known.meets(&other));
    }
}
