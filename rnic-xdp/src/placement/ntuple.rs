//! Rules in the device that choose the receive queue of one flow (`ethtool -N`).

use std::io;
use std::net::{IpAddr, SocketAddr};

use nix::libc;
use zerocopy::IntoBytes;

use super::ioctl::{Match, Request};

const INSERT: u32 = 0x32;
const DELETE: u32 = 0x31;
const LIST: u32 = 0x30;
const TCP_V4_FLOW: u32 = 1;
pub(super) const TCP_V6_FLOW: u32 = 5;
/// The driver is to choose where in its table a rule stands.
const ANY_LOCATION: u32 = u32::MAX;
/// Rules of others beyond which we look for no place.
const MOST_RULES: usize = 4096;

/// The kernel's name for TCP over the IP version of an address.
pub(super) fn tcp_flow(ip: IpAddr) -> u32 {
    match ip {
        IpAddr::V4(_) => TCP_V4_FLOW,
        IpAddr::V6(_) => TCP_V6_FLOW,
    }
}

/// A rule that stands until this is dropped. After a `kill -9` it stays: it names one flow, and harms no other.
#[derive(Debug)]
pub(super) struct Rule {
    netdev: String,
    location: u32,
}

impl Rule {
    /// Has a device bring the segments from `remote` to `local` to a receive queue.
    pub(super) fn insert(
        netdev: &str,
        remote: SocketAddr,
        local: SocketAddr,
        queue: u32,
    ) -> io::Result<Self> {
        let mut request = Request::new(INSERT);
        request.rule.kind = tcp_flow(local.ip());
        (request.rule.value, request.rule.mask) = flow(remote, local);
        request.rule.queue = queue.into();
        request.rule.location = ANY_LOCATION;
        let mut asked = request.ask(netdev);
        // Not every driver chooses itself, and those that do not refuse the request as senseless.
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
        asked?;
        Ok(Self {
            netdev: netdev.to_owned(),
            location: request.rule.location,
        })
    }
}

impl Drop for Rule {
    fn drop(&mut self) {
        let mut request = Request::new(DELETE);
        request.rule.location = self.location;
        // The device may have gone, or somebody has removed it before.
        let _ = request.ask(&self.netdev);
    }
}

/// The last place in the table of a device that no rule has: the first ones win over those behind, and are left to the
/// administrator.
fn free_location(netdev: &str) -> io::Result<u32> {
    let mut list = Box::new(Request::with_locations(LIST, [0; MOST_RULES]));
    list.ask(netdev)?;
    let (size, used) = (list.data as u32, list.rules as usize);
    let used = &list.locations[..used.min(MOST_RULES)];
    last_free(size, used).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOSPC))
}

fn last_free(size: u32, used: &[u32]) -> Option<u32> {
    (0..size).rev().find(|place| !used.contains(place))
}

/// What to compare of a segment, and which bits of it.
fn flow(remote: SocketAddr, local: SocketAddr) -> (Match, Match) {
    let address = |of: SocketAddr| match of {
        SocketAddr::V4(of) => of.ip().octets().to_vec(),
        SocketAddr::V6(of) => of.ip().octets().to_vec(),
    };
    // `struct ethtool_tcpip4_spec` and `ethtool_tcpip6_spec`: source before destination, addresses before ports.
    let parts = [
        address(remote),
        address(local),
        remote.port().to_be_bytes().to_vec(),
        local.port().to_be_bytes().to_vec(),
    ]
    .concat();
    let (mut value, mut mask) = (Match::default(), Match::default());
    value.0.as_mut_bytes()[..parts.len()].copy_from_slice(&parts);
    mask.0.as_mut_bytes()[..parts.len()].fill(0xff);
    (value, mask)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Namespace, VethEnd, is_root, veth_pair};

    #[test]
    fn a_rule_names_both_ends_of_a_flow() {
        let (value, mask) = flow(
            "192.0.2.1:4420".parse().unwrap(),
            "192.0.2.2:258".parse().unwrap(),
        );
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

        let (value, mask) = flow(
            "[2001:db8::1]:1".parse().unwrap(),
            "[::2]:2".parse().unwrap(),
        );
        let octets = value.0.as_bytes();
        assert_eq!(
            (octets[..2].as_ref(), octets[15], octets[31]),
            (&[0x20, 1][..], 1, 2)
        );
        assert_eq!(octets[32..36], [0, 1, 0, 2]);
        assert_eq!((mask.0.as_bytes()[35], mask.0.as_bytes()[36]), (0xff, 0));
    }

    #[test]
    fn rules_go_behind_those_of_others() {
        assert_eq!(last_free(4, &[]), Some(3));
        assert_eq!(last_free(4, &[3, 0, 2]), Some(1));
        assert_eq!(last_free(2, &[0, 1]), None);
        assert_eq!(last_free(0, &[]), None);
    }

    #[test]
    fn a_veth_takes_no_rules() {
        if !is_root("a_veth_takes_no_rules") {
            return;
        }
        let namespace = Namespace::new("rule").unwrap();
        let end = |name| VethEnd {
            namespace: &namespace,
            name,
            addresses: "",
        };
        veth_pair(end("one"), end("other"), 2).unwrap();
        let (remote, local) = ("10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap());
        let refused = namespace.run(|| Rule::insert("one", remote, local, 1).err());
        let code = refused.and_then(|error| error.raw_os_error());
        assert_eq!(code, Some(libc::EOPNOTSUPP));
        let absent = namespace.run(|| Rule::insert("absent", remote, local, 1).err());
        let code = absent.and_then(|error| error.raw_os_error());
        assert_eq!(code, Some(libc::ENODEV));
    }
}
