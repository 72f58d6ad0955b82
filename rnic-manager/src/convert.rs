//! Values of rnic-core, to and from the form that messages have.

use std::net::SocketAddr;

use rnic_core::connection::NextHop;
use rnic_core::engine::{InUse, NetError};
use rnic_core::wire::esp::EspHeader;
use rnic_core::wire::ethernet::MacAddr;
use rnic_core::wire::icmp::{EspTooBig, TooBig};
use rnic_core::wire::tcp::Seq;

use crate::device::Untagged;
use crate::protocol::{BigPacket, BigSegment, Hop, Policy, Reason, Refused, UntaggedAddress};

impl From<NextHop> for Hop {
    fn from(hop: NextHop) -> Self {
        Self {
            source_mac: hop.source_mac.0,
            destination_mac: hop.destination_mac.0,
            vlan: hop.vlan,
            mtu: hop.mtu,
            advertised_mss: hop.advertised_mss,
        }
    }
}

impl From<Hop> for NextHop {
    fn from(hop: Hop) -> Self {
        Self {
            source_mac: MacAddr(hop.source_mac),
            destination_mac: MacAddr(hop.destination_mac),
            vlan: hop.vlan,
            mtu: hop.mtu,
            advertised_mss: hop.advertised_mss,
        }
    }
}

impl From<TooBig> for BigSegment {
    fn from(segment: TooBig) -> Self {
        Self {
            local: segment.local,
            remote: segment.remote,
            seq: segment.seq.0,
            mtu: segment.mtu,
        }
    }
}

impl From<EspTooBig> for BigPacket {
    fn from(told: EspTooBig) -> Self {
        Self {
            source: told.source,
            destination: told.destination,
            spi: told.header.spi,
            number: told.header.number,
            mtu: told.mtu,
        }
    }
}

impl From<BigPacket> for EspTooBig {
    fn from(packet: BigPacket) -> Self {
        Self {
            source: packet.source,
            destination: packet.destination,
            header: EspHeader {
                spi: packet.spi,
                number: packet.number,
            },
            mtu: packet.mtu,
        }
    }
}

impl From<BigSegment> for TooBig {
    fn from(segment: BigSegment) -> Self {
        Self {
            local: segment.local,
            remote: segment.remote,
            seq: Seq(segment.seq),
            mtu: segment.mtu,
        }
    }
}

impl UntaggedAddress {
    /// Lists the addresses whose frames arrive without a tag.
    pub fn list(untagged: &Untagged) -> Vec<Self> {
        let each = |(&address, &vlan)| Self { address, vlan };
        untagged.iter().map(each).collect()
    }

    /// Returns the addresses of a list.
    pub fn all(list: &[Self]) -> Untagged {
        let each = |each: &Self| (each.address, each.vlan);
        list.iter().map(each).collect()
    }
}

impl From<NetError> for Refused {
    fn from(error: NetError) -> Self {
        let message = error.to_string();
        match error {
            NetError::InUse(InUse { holder, .. }) => Self {
                holder,
                ..Self::new(Reason::InUse, message)
            },
            // Its number would mean nothing to clients of before. The other one is none of rnicd's.
            NetError::NoPort(_) | NetError::Unprotected { .. } => Self::new(Reason::Other, message),
            NetError::NotLocal(..) => Self::new(Reason::NotLocal, message),
            NetError::NoRoute(..) => Self::new(Reason::NoRoute, message),
            NetError::Protected { address, policy } => Self {
                policy: Some(Policy {
                    address,
                    text: policy,
                }),
                ..Self::new(Reason::Protected, message)
            },
            // The client's error says what was asked for.
            NetError::Other { reason, .. } => Self::new(Reason::Other, reason),
        }
    }
}

impl Refused {
    /// Returns the error of a client that asked for a local port, or for a port to connect to
    /// `address`, on a device.
    pub fn net_error(self, address: SocketAddr, netdev: &str) -> NetError {
        match (self.reason, self.policy) {
            (Reason::InUse, _) => {
                let holder = self.holder;
                InUse { address, holder }.into()
            }
            (Reason::NotLocal, _) => NetError::NotLocal(address, netdev.to_owned()),
            (Reason::NoRoute, _) => NetError::NoRoute(address, netdev.to_owned()),
            (Reason::Protected, Some(policy)) => NetError::Protected {
                address: policy.address,
                policy: policy.text,
            },
            _ => NetError::Other {
                address,
                reason: self.message,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use super::*;

    #[test]
    fn next_hops_and_segments_come_back_whole() {
        for vlan in [None, Some(7)] {
            let hop = NextHop {
                source_mac: MacAddr([2, 0, 0, 0, 0, 1]),
                destination_mac: MacAddr([2, 0, 0, 0, 0, 2]),
                vlan,
                mtu: 9000,
                advertised_mss: vlan.and_then(NonZeroU16::new),
            };
            assert_eq!(NextHop::from(Hop::from(hop)), hop);
        }
        let segment = TooBig {
            local: "192.0.2.1:7174".parse().unwrap(),
            remote: "[2001:db8::1]:4791".parse().unwrap(),
            seq: Seq(0xfedc_ba98),
            mtu: 1280,
        };
        assert_eq!(TooBig::from(BigSegment::from(segment)), segment);
    }

    #[test]
    fn addresses_without_tags_come_back_whole() {
        let all = [("192.0.2.1", 9), ("fe80::1", 4094)];
        let untagged: Untagged = all
            .map(|(address, vlan)| (address.parse().unwrap(), vlan))
            .into();
        let list = UntaggedAddress::list(&untagged);
        assert_eq!(UntaggedAddress::all(&list), untagged);
    }

    #[test]
    fn an_error_of_the_network_is_the_same_for_the_client() {
        let address: SocketAddr = "192.0.2.1:7174".parse().unwrap();
        let policy = || NetError::Protected {
            address: "192.0.2.9:1".parse().unwrap(),
            policy: "src 192.0.2.0/24 dst 0.0.0.0/0 dir out".to_owned(),
        };
        let other = || NetError::Other {
            address,
            reason: "no socket".to_owned(),
        };
        for (error, reason) in [
            (InUse::from(address).into(), Reason::InUse),
            (
                InUse {
                    address,
                    holder: Some("port 3".into()),
                }
                .into(),
                Reason::InUse,
            ),
            (NetError::NotLocal(address, "eth1".into()), Reason::NotLocal),
            (NetError::NoRoute(address, "eth1".into()), Reason::NoRoute),
            (policy(), Reason::Protected),
            (other(), Reason::Other),
        ] {
            let said = error.to_string();
            let refused = Refused::from(error);
            assert_eq!(refused.reason, reason);
            assert_eq!(refused.net_error(address, "eth1").to_string(), said);
        }
    }

    #[test]
    fn every_other_refusal_says_what_rnicd_said() {
        let address: SocketAddr = "192.0.2.1:7174".parse().unwrap();
        for reason in [
            Reason::Quota,
            Reason::NotPermitted,
            Reason::NoSuchDevice,
            Reason::Malformed,
            Reason::Other,
            // From an rnicd that does not say which policy.
            Reason::Protected,
        ] {
            let error = Refused::new(reason, "because; do this").net_error(address, "eth1");
            assert_eq!(
                error.to_string(),
                "cannot use 192.0.2.1:7174: because; do this"
            );
        }
    }
}
