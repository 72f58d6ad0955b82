//! Rules in the device that choose the receive queue of one flow (`ethtool -N`).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;

use nix::libc;
use zerocopy::IntoBytes;

use super::ioctl::{FlowSpec, Match, RxnfcRequest};
use super::records::{Flow, Record, Records};
use rnic_manager::Maker;

const INSERT: u32 = 0x32;
const DELETE: u32 = 0x31;
const LIST: u32 = 0x30;
const GET: u32 = 0x2f;
const TCP_V4_FLOW: u32 = 1;
pub(super) const TCP_V6_FLOW: u32 = 5;
/// Lets the driver choose the location of a rule in its table.
const ANY_LOCATION: u32 = u32::MAX;
/// The most rules in a table in which a free location is looked for.
const MAX_RULES: usize = 4096;

/// Returns the kernel's name for TCP over the IP version of an address.
pub(super) fn tcp_flow(ip: IpAddr) -> u32 {
    match ip {
        IpAddr::V4(_) => TCP_V4_FLOW,
        IpAddr::V6(_) => TCP_V6_FLOW,
    }
}

/// A rule in the device, removed when this is dropped. After a `kill -9` it stays until a
/// [sweep](super::records::sweep).
#[derive(Debug)]
pub(super) struct Rule {
    netdev: String,
    location: u32,
    maker: Maker,
    /// The record, dropped after the rule.
    _record: Record,
}

impl Rule {
    /// Installs a rule that brings the segments of a flow to a receive queue.
    pub(super) fn insert(
        netdev: &str,
        flow: Flow,
        queue: u32,
        records: &Records,
    ) -> io::Result<Self> {
        let record = records.add(flow)?;
        Ok(Self {
            netdev: netdev.to_owned(),
            location: insert(netdev, flow, queue)?,
            maker: Maker::this(),
            _record: record,
        })
    }
}

impl Drop for Rule {
    fn drop(&mut self) {
        if self.maker.is_forked() {
            return;
        }
        // The device may be gone, or the rule was removed already.
        let _ = delete(&self.netdev, self.location);
    }
}

/// Installs a rule that brings the segments of a flow to a receive queue. An end of it that is
/// unspecified, or has port 0, is any. The rule stays until it is removed. Returns its location.
pub(super) fn insert(netdev: &str, flow: Flow, queue: u32) -> io::Result<u32> {
    let mut request = RxnfcRequest::new(INSERT);
    request.rule = spec(flow);
    request.rule.queue = queue.into();
    request.rule.location = ANY_LOCATION;
    let mut asked = request.ask(netdev);
    // Some drivers do not choose, and refuse the request as invalid.
    let choose = |error: &io::Error| {
        matches!(
            error.raw_os_error(),
            Some(libc::EINVAL | libc::ENOSPC | libc::E2BIG)
        )
    };
    if asked.as_ref().is_err_and(choose) {
        request.rule.location = free_location(netdev)?;
        asked = request.ask(netdev);
    }
    asked.map(|()| request.rule.location)
}

/// Removes the rules that bring segments for a local address and port to a queue, from whatever
/// peers.
pub(super) fn remove_to(netdev: &str, local: SocketAddr, queue: u32) -> io::Result<()> {
    for location in used_locations(netdev)?.1 {
        let mut request = RxnfcRequest::new(GET);
        request.rule.location = location;
        request.ask(netdev)?;
        if is_to(&request.rule, local, queue) {
            delete(netdev, location)?;
        }
    }
    Ok(())
}

/// Returns whether a rule brings segments for a local address and port to a queue, as [`insert`]
/// makes it.
fn is_to(rule: &FlowSpec, local: SocketAddr, queue: u32) -> bool {
    let any: IpAddr = match local.ip() {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let remote = SocketAddr::new(any, 0);
    let expected = spec(Flow { remote, local });
    let address = if local.is_ipv4() { 4..8 } else { 16..32 };
    let port = if local.is_ipv4() { 10..12 } else { 34..36 };
    let same = |one: &Match, other: &Match, part: &Range<usize>| {
        one.0.as_bytes()[part.clone()] == other.0.as_bytes()[part.clone()]
    };
    rule.kind == expected.kind
        && rule.queue == u64::from(queue)
        && [address, port].iter().all(|part| {
            same(&rule.value, &expected.value, part) && same(&rule.mask, &expected.mask, part)
        })
}

fn delete(netdev: &str, location: u32) -> io::Result<()> {
    let mut request = RxnfcRequest::new(DELETE);
    request.rule.location = location;
    request.ask(netdev)
}

/// Removes the rules of these flows from a device.
pub(super) fn remove(netdev: &str, flows: &[Flow]) -> io::Result<()> {
    for location in used_locations(netdev)?.1 {
        let mut request = RxnfcRequest::new(GET);
        request.rule.location = location;
        request.ask(netdev)?;
        if flows.iter().any(|flow| is_of(&request.rule, *flow)) {
            delete(netdev, location)?;
        }
    }
    Ok(())
}

/// Returns whether a rule is what [`Rule::insert`] makes for a flow.
fn is_of(rule: &FlowSpec, flow: Flow) -> bool {
    let expected = spec(flow);
    rule.kind == expected.kind && rule.value.0 == expected.value.0 && rule.mask.0 == expected.mask.0
}

/// Returns the last free location in the table of a device. Earlier ones have precedence and are
/// left to the administrator.
fn free_location(netdev: &str) -> io::Result<u32> {
    let (size, used) = used_locations(netdev)?;
    last_free(size, &used).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOSPC))
}

/// Returns how many rules a device has room for, and the locations of its rules.
fn used_locations(netdev: &str) -> io::Result<(u32, Vec<u32>)> {
    let mut list = Box::new(RxnfcRequest::with_locations(LIST, [0; MAX_RULES]));
    list.ask(netdev)?;
    let used = &list.locations[..(list.rules as usize).min(MAX_RULES)];
    Ok((list.data as u32, used.to_vec()))
}

fn last_free(size: u32, used: &[u32]) -> Option<u32> {
    (0..size).rev().find(|place| !used.contains(place))
}

/// Returns the fields of a segment to compare, and their masks.
fn spec(flow: Flow) -> FlowSpec {
    let Flow { remote, local } = flow;
    let address = |of: SocketAddr| {
        let octets = match of {
            SocketAddr::V4(of) => of.ip().octets().to_vec(),
            SocketAddr::V6(of) => of.ip().octets().to_vec(),
        };
        (octets, !of.ip().is_unspecified())
    };
    let port = |of: SocketAddr| (of.port().to_be_bytes().to_vec(), of.port() != 0);
    // `struct ethtool_tcpip4_spec` and `ethtool_tcpip6_spec`: source before destination, addresses
    // before ports.
    let parts = [address(remote), address(local), port(remote), port(local)];
    let mut spec = FlowSpec::default();
    spec.kind = tcp_flow(local.ip());
    let mut at = 0;
    for (octets, counts) in parts {
        let part = at..at + octets.len();
        at = part.end;
        spec.value.0.as_mut_bytes()[part.clone()].copy_from_slice(&octets);
        spec.mask.0.as_mut_bytes()[part].fill(if counts { 0xff } else { 0 });
    }
    spec
}

#[cfg(test)]
mod tests {
    use nix::unistd::mkdtemp;

    use super::*;
    use crate::testing::{Namespace, VethEnd, veth_pair};

    fn flow(remote: &str, local: &str) -> Flow {
        Flow {
            remote: remote.parse().unwrap(),
            local: local.parse().unwrap(),
        }
    }

    #[test]
    fn a_rule_is_recognized_by_its_flow_at_any_queue_and_location() {
        let ours = flow("192.0.2.1:4420", "192.0.2.2:258");
        let mut rule = spec(ours);
        (rule.queue, rule.location) = (3, 1000);
        assert!(is_of(&rule, ours));
        assert!(!is_of(&rule, flow("192.0.2.1:4420", "192.0.2.2:259")));
        assert!(!is_of(&rule, flow("192.0.2.2:258", "192.0.2.1:4420")));
        // A rule of the administrator, for all ports of a host.
        rule.mask.0[2] = 0;
        assert!(!is_of(&rule, ours));
    }

    #[test]
    fn a_rule_for_a_local_port_is_recognized_whatever_its_peers() {
        for (local, other, any) in [
            ("192.0.2.2:258", "192.0.2.3:258", "0.0.0.0:0"),
            ("[::2]:258", "[::3]:258", "[::]:0"),
            ("0.0.0.0:258", "192.0.2.2:258", "0.0.0.0:0"),
            ("[::]:258", "[::2]:258", "[::]:0"),
        ] {
            let peer = if local.starts_with('[') {
                "[2001:db8::1]:1"
            } else {
                "192.0.2.1:1"
            };
            let to: SocketAddr = local.parse().unwrap();
            for remote in [peer, any] {
                let mut rule = spec(flow(remote, local));
                (rule.queue, rule.location) = (3, 1000);
                assert!(is_to(&rule, to, 3), "{remote} {local}");
                assert!(!is_to(&rule, to, 2), "another queue");
                assert!(!is_to(&rule, other.parse().unwrap(), 3), "{other}");
                let next = SocketAddr::new(to.ip(), 259);
                assert!(!is_to(&rule, next, 3), "another port");
            }
        }
    }

    #[test]
    fn a_rule_leaves_out_what_is_any() {
        let FlowSpec { value, mask, .. } = spec(flow("0.0.0.0:0", "192.0.2.2:258"));
        assert_eq!(
            value.0.as_bytes()[..12],
            [0, 0, 0, 0, 192, 0, 2, 2, 0, 0, 1, 2]
        );
        let counts = [0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0xff, 0xff];
        assert_eq!(mask.0.as_bytes()[..12], counts);
        let FlowSpec { mask, .. } = spec(flow("[::]:0", "[::]:258"));
        assert_eq!(mask.0.as_bytes()[..34], [0; 34]);
        assert_eq!(mask.0.as_bytes()[34..36], [0xff; 2]);
    }

    #[test]
    fn a_rule_names_both_ends_of_a_flow() {
        let FlowSpec { value, mask, .. } = spec(flow("192.0.2.1:4420", "192.0.2.2:258"));
        let expected = [
            192,
            0,
            2,
            1,
            192,
            0,
            2,
            2,
            4420u16.to_be_bytes()[0],
            0x44,
            1,
            2,
        ];
        assert_eq!(value.0.as_bytes()[..12], expected);
        assert_eq!(value.0.as_bytes()[12..], [0; 40]);
        assert_eq!(mask.0.as_bytes()[..12], [0xff; 12]);
        assert_eq!(mask.0.as_bytes()[12..], [0; 40]);

        let FlowSpec { value, mask, .. } = spec(flow("[2001:db8::1]:1", "[::2]:2"));
        let octets = value.0.as_bytes();
        assert_eq!(
            (octets[..2].as_ref(), octets[15], octets[31]),
            (&[0x20, 1][..], 1, 2)
        );
        assert_eq!(octets[32..36], [0, 1, 0, 2]);
        assert_eq!((mask.0.as_bytes()[35], mask.0.as_bytes()[36]), (0xff, 0));
    }

    #[test]
    fn the_last_free_location_is_chosen() {
        assert_eq!(last_free(4, &[]), Some(3));
        assert_eq!(last_free(4, &[3, 0, 2]), Some(1));
        assert_eq!(last_free(2, &[0, 1]), None);
        assert_eq!(last_free(0, &[]), None);
    }

    #[test]
    #[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
    fn a_veth_takes_no_rules() {
        let namespace = Namespace::new("rule").unwrap();
        let end = |name| VethEnd {
            namespace: &namespace,
            name,
            addresses: "",
        };
        veth_pair(end("one"), end("other"), 2).unwrap();
        let flow = flow("10.0.0.1:1", "10.0.0.2:2");
        let directory = mkdtemp(&std::env::temp_dir().join("rnic-rule-XXXXXX")).unwrap();
        let records = Records::open(&directory).unwrap();
        let refused = |netdev| {
            let refused = namespace.run(|| Rule::insert(netdev, flow, 1, &records).err());
            refused.and_then(|error| error.raw_os_error())
        };
        assert_eq!(refused("one"), Some(libc::EOPNOTSUPP));
        assert_eq!(refused("absent"), Some(libc::ENODEV));
        drop(records);
        // There are no records of rules that were not installed.
        assert!(!directory.exists());
    }
}
