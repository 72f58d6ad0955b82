//! What associations are for, and which port may have their keys. Who has a key can seal whatever
//! it likes with it: so it has one only if all that the host's policies protect with it is from
//! addresses and TCP ports of this host that are its own.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::RangeInclusive;

use rnic_core::engine::Prefix;
use rnic_core::esp::Ports;

use crate::device::netlink::Selected;
use crate::shared::programs::ClientPeers;

/// What the client of a port may have protected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MayProtect {
    /// From which TCP ports of this host, which it then has for nothing else.
    pub ports: Vec<RangeInclusive<u16>>,
    /// With whom.
    pub peers: ClientPeers,
}

impl MayProtect {
    /// Returns whether a TCP port is for what is protected.
    pub(super) fn contains(&self, port: u16) -> bool {
        self.ports.iter().any(|range| range.contains(&port))
    }

    /// Returns whether all these are.
    pub(super) fn covers(&self, ports: Ports) -> bool {
        let Some((first, last)) = range(ports) else {
            return ports.iter().all(|port| self.contains(port));
        };
        let mut next = u32::from(first);
        while next <= last.into() {
            let mut all = self.ports.iter();
            let Some(found) = all.find(|range| {
                let [start, end] = [range.start(), range.end()].map(|port| u32::from(*port));
                (start..=end).contains(&next)
            }) else {
                return false;
            };
            next = u32::from(*found.end()) + 1;
        }
        true
    }
}

/// Returns the first and the last of some ports, if they are all between.
fn range(ports: Ports) -> Option<(u16, u16)> {
    let free = !ports.mask;
    let first = ports.port & ports.mask;
    (free & free.wrapping_add(1) == 0).then_some((first, first | free))
}

/// Why nobody gets associations that were negotiated in no name.
pub(super) const UNNAMED: &str = "its policies have no reqid, by which it is known for whom it is";

/// A lease: the port that has it, what it is, and whether it is for what is protected alone.
pub(super) type Leased = (u32, SocketAddr, bool);

/// Leases by their TCP ports.
pub(in crate::shared) struct Leases(BTreeMap<u16, Vec<Leased>>);

impl FromIterator<Leased> for Leases {
    fn from_iter<T: IntoIterator<Item = Leased>>(leases: T) -> Self {
        let mut by_port = BTreeMap::<_, Vec<_>>::new();
        for lease in leases {
            by_port.entry(lease.1.port()).or_default().push(lease);
        }
        Self(by_port)
    }
}

impl Leases {
    /// Returns those of some TCP ports.
    fn of(&self, ports: Ports) -> impl Iterator<Item = &Leased> {
        let (first, last) = range(ports).unwrap_or((0, u16::MAX));
        let between = self.0.range(first..=last);
        let of = between.filter(move |(port, _)| ports.contains(**port));
        of.flat_map(|(_, leases)| leases)
    }

    /// Returns what each port has leased for what is protected.
    pub(super) fn protected(&self) -> BTreeMap<u32, Vec<SocketAddr>> {
        let mut by_client = BTreeMap::<_, Vec<_>>::new();
        let all = self.0.values().flatten();
        for (port, local, _) in all.filter(|(.., is_protected)| *is_protected) {
            by_client.entry(*port).or_default().push(*local);
        }
        by_client
    }
}

/// The addresses and TCP ports of this host that associations are for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scope {
    parts: Vec<(Prefix, Ports)>,
    /// Why nobody gets such associations, if that is so.
    fault: Option<String>,
}

impl Scope {
    /// Returns what the policies select that can use the associations of a request. Nobody gets
    /// those if that is more than TCP ports of single addresses.
    pub(super) fn of(request: u32, selected: &[Selected]) -> Self {
        let fault = (request == 0).then(|| UNNAMED.to_owned());
        let all = Self::that_asks(selected);
        Self {
            fault: fault.or(all.fault),
            ..all
        }
    }

    /// Returns what policies select that only have key managers asked.
    pub(super) fn that_asks(selected: &[Selected]) -> Self {
        let parts = selected
            .iter()
            .map(|each| (each.selector.local, each.selector.local_ports));
        Self {
            parts: parts.collect(),
            fault: selected.iter().find_map(fault),
        }
    }

    /// Returns whether it has a lease, which may be one of any address.
    pub(super) fn contains(&self, local: SocketAddr) -> bool {
        let is_at = |part: Prefix| match local.ip().is_unspecified() {
            true => part.is_ipv4() == local.is_ipv4(),
            false => part.contains(local.ip()),
        };
        let mut all = self.parts.iter();
        all.any(|(part, ports)| is_at(*part) && ports.contains(local.port()))
    }

    /// Returns why nobody gets such associations, if that is so.
    pub(super) fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// Fails unless all of it may be protected for a port's client, with the reason.
    pub(super) fn is_within(&self, may: &MayProtect) -> Result<(), String> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        let beyond = self.parts.iter().find(|(_, ports)| !may.covers(*ports));
        let Some((part, ports)) = beyond else {
            return Ok(());
        };
        let address = part.address();
        let which = match ports.mask {
            0 => "all TCP ports".to_owned(),
            u16::MAX => format!("TCP port {}", ports.port),
            _ => format!(
                "the TCP ports {}/{:#06x}",
                ports.port & ports.mask,
                ports.mask
            ),
        };
        Err(format!(
            "its policies select {which} of {address}, not all of which are `protected` for this user (rnicd.toml)"
        ))
    }

    /// Returns the port that has leased what it is for, if one has. Fails if that cannot be said of
    /// one alone, with the reason.
    pub(super) fn holder(&self, leases: &Leases) -> Result<Option<u32>, String> {
        let mut found = None;
        let of_parts = self.parts.iter().flat_map(|(_, ports)| leases.of(*ports));
        for (port, local, is_protected) in of_parts {
            if !self.contains(*local) {
                continue;
            }
            if !is_protected {
                return Err(format!(
                    "port {port} has leased {local} for what is not protected"
                ));
            }
            match found {
                Some(other) if other != *port => {
                    return Err(format!(
                        "ports {other} and {port} have both leased some of it"
                    ));
                }
                _ => found = Some(*port),
            }
        }
        Ok(found)
    }
}

/// Returns what is wrong with what a policy selects.
fn fault(selected: &Selected) -> Option<String> {
    let Selected {
        tcp_alone,
        optional,
        selector,
        words,
    } = selected;
    let whole = if selector.local.is_ipv4() { 32 } else { 128 };
    let why = match (optional, tcp_alone, selector.local.bits() == whole) {
        (false, true, true) => return None,
        (true, ..) => "protects where it can alone (`level use`); demand it (`level required`)",
        (_, false, _) => "selects other protocols than TCP",
        (.., false) => "selects more than one address of this host",
    };
    Some(format!("the policy \"{words}\" with its reqid {why}"))
}

#[cfg(test)]
mod tests {
    use rnic_core::engine::Peers;
    use rnic_core::esp::Selector;

    use super::*;

    const ALL: Ports = Ports::ALL;
    const ONE: Ports = Ports {
        port: 7471,
        mask: u16::MAX,
    };
    /// 40000 to 40063.
    const RANGE: Ports = Ports {
        port: 40000,
        mask: 0xffc0,
    };

    fn selected(local: &str, local_ports: Ports) -> Selected {
        Selected {
            tcp_alone: true,
            optional: false,
            selector: Selector {
                local: local.parse().unwrap(),
                local_ports,
                remote: "192.0.2.0/24".parse().unwrap(),
                remote_ports: ALL,
            },
            words: "the words".into(),
        }
    }

    fn may(ports: &[RangeInclusive<u16>]) -> MayProtect {
        MayProtect {
            ports: ports.to_vec(),
            peers: Peers::all().into(),
        }
    }

    fn leased(port: u32, local: &str, is_protected: bool) -> Leased {
        (port, local.parse().unwrap(), is_protected)
    }

    #[test]
    fn what_is_more_than_tcp_ports_of_an_address_is_for_nobody() {
        let one = || selected("192.0.2.1/32", ONE);
        let of = |request, all: &[Selected]| {
            let scope = Scope::of(request, all);
            // It may lack what it must not have.
            assert!(scope.contains("192.0.2.1:7471".parse().unwrap()));
            scope.is_within(&may(&[0..=65535]))
        };
        assert_eq!(of(1, &[one()]), Ok(()));
        // It is not known to which policies these belong.
        of(0, &[one()]).unwrap_err();
        let wide = selected("192.0.2.0/31", ONE);
        let why = of(1, &[one(), wide]).unwrap_err();
        assert!(why.contains("more than one address"), "{why}");
        let any = Selected {
            tcp_alone: false,
            ..one()
        };
        let why = of(1, &[one(), any]).unwrap_err();
        assert!(
            why.contains("other protocols") && why.contains("the words"),
            "{why}"
        );
        let optional = Selected {
            optional: true,
            ..one()
        };
        let why = of(1, &[one(), optional]).unwrap_err();
        assert!(why.contains("`level use`"), "{why}");
    }

    #[test]
    fn ranges_cover_what_they_have_together() {
        let three = may(&[20..=29, 0..=9, 5..=22]);
        let ports = |port, mask| Ports { port, mask };
        // 0 to 15, 16 to 31, and 28 and 29.
        assert!(three.covers(ports(3, 0xfff0)));
        assert!(!three.covers(ports(16, 0xfff0)));
        assert!(three.covers(ports(28, 0xfffe)));
        // 12 and 28; 14 and 30.
        assert!(three.covers(ports(12, 0xffef)));
        assert!(!three.covers(ports(14, 0xffef)));
        assert!(!may(&[0..=65534]).covers(ALL) && may(&[1..=65535, 0..=0]).covers(ALL));
    }

    #[test]
    fn all_that_policies_select_must_be_allowed() {
        let of = |all: &[Selected]| Scope::of(1, all);
        let scope = of(&[selected("192.0.2.1/32", RANGE)]);
        assert_eq!(scope.is_within(&may(&[7471..=7471, 40000..=40063])), Ok(()));
        for less in [vec![], vec![40001..=40063], vec![40000..=40062]] {
            let why = scope.is_within(&may(&less)).unwrap_err();
            assert!(why.contains("40000/0xffc0"), "{why}");
        }
        // One more policy with the reqid makes it wider for all.
        let wide = of(&[selected("192.0.2.1/32", ONE), selected("192.0.2.1/32", ALL)]);
        let why = wide.is_within(&may(&[1..=65535])).unwrap_err();
        assert!(why.contains("all TCP ports of 192.0.2.1"), "{why}");
        assert_eq!(wide.is_within(&may(&[0..=65535])), Ok(()));
    }

    #[test]
    fn one_port_alone_has_what_associations_are_for() {
        let scope = Scope::of(1, &[selected("192.0.2.1/32", RANGE)]);
        let beside = [
            leased(3, "192.0.2.1:39999", false),
            leased(3, "192.0.2.2:40000", true),
            leased(3, "[fd00::1]:40000", false),
        ];
        assert_eq!(scope.holder(&beside.into_iter().collect()), Ok(None));
        let own = [
            leased(1, "192.0.2.1:40000", true),
            leased(1, "0.0.0.0:40063", true),
        ];
        let of = |more: &[Leased]| {
            let all = [&beside[..], &own[..], more].concat();
            scope.holder(&all.into_iter().collect())
        };
        assert_eq!(of(&[]), Ok(Some(1)));
        of(&[leased(2, "192.0.2.1:40001", true)]).unwrap_err();
        of(&[leased(2, "192.0.2.1:40001", false)]).unwrap_err();
        // Nor may it say itself what it protects.
        of(&[leased(1, "192.0.2.1:40001", false)]).unwrap_err();
    }
}
