//! What protects what a port sends and receives, as messages have it.

use std::fmt;
use std::net::IpAddr;

use rnic_core::esp::{Action, Algorithm, Demand, Keys, Mode, Ports, Sa, SaId, Selector, Template};
use rnic_core::wire::encapsulation::UdpPorts;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::Zeroizing;

/// All that protects a port now. It replaces what was said before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Protection {
    /// The policies that concern it, those with precedence first.
    pub demands: Vec<Demanded>,
    /// Addresses of this host.
    pub addresses: Vec<IpAddr>,
    /// Its associations.
    pub associations: Vec<Association>,
}

/// So much of it fits a message.
const DEMANDS: usize = 48;
const ADDRESSES: usize = 256;
const ASSOCIATIONS: usize = 48;

impl Protection {
    /// Cuts it into parts that fit a message, of which there is one at least.
    pub fn parts(mut self) -> Vec<Self> {
        let mut parts = Vec::new();
        loop {
            parts.push(Self {
                demands: front(&mut self.demands, DEMANDS),
                addresses: front(&mut self.addresses, ADDRESSES),
                associations: front(&mut self.associations, ASSOCIATIONS),
            });
            if self == Self::default() {
                return parts;
            }
        }
    }

    /// Adds the next part.
    pub fn extend(&mut self, next: Self) {
        self.demands.extend(next.demands);
        self.addresses.extend(next.addresses);
        self.associations.extend(next.associations);
    }
}

fn front<T>(all: &mut Vec<T>, most: usize) -> Vec<T> {
    all.drain(..most.min(all.len())).collect()
}

/// A policy: [`Demand`] as JSON has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Demanded {
    /// It is for what this host sends.
    pub outgoing: bool,
    /// Addresses of this host: a prefix.
    pub local: String,
    /// Its TCP ports: one, and the bits that count.
    pub local_ports: (u16, u16),
    /// Addresses of peers.
    pub remote: String,
    /// Their TCP ports.
    pub remote_ports: (u16, u16),
    /// What becomes of it.
    pub action: Done,
}

/// What becomes of what a policy selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Done {
    /// It goes as it is.
    Bypass,
    /// It is dropped.
    Discard,
    /// It is protected by one of these associations.
    Protect {
        /// Their reqid.
        request: u32,
        /// In tunnel mode, not transport mode.
        tunnel: bool,
        /// The end of a tunnel on this host.
        local: IpAddr,
        /// The end of a tunnel at the peer.
        remote: IpAddr,
    },
}

/// A Security Association of ESP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Association {
    /// Its Security Parameters Index.
    pub spi: u32,
    /// The sender.
    pub source: IpAddr,
    /// The receiver.
    pub destination: IpAddr,
    /// In tunnel mode, not transport mode.
    pub tunnel: bool,
    /// By the kernel's names.
    pub algorithm: String,
    /// Sequence numbers have 64 bits.
    pub extended: bool,
    /// The ports of UDP of the sender and the receiver, if its packets are in UDP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp: Option<(u16, u16)>,
    /// Its reqid.
    pub request: u32,
    /// The key for encryption, with its salt.
    pub encryption: Secret,
    /// The key for the ICV, where that has one of its own.
    pub integrity: Secret,
    /// The port sends with it, and does not receive.
    pub outbound: bool,
    /// Another one is to be used as soon as there is one.
    #[serde(default)]
    pub dying: bool,
    /// When the kernel got it, in seconds since 1970: the youngest is used.
    pub age: u64,
    /// Numbers of its replay window.
    pub window: u32,
    /// The highest number that was received before.
    pub received: u64,
    /// The first sequence numbers to send with, from one up to another that is not among them. They
    /// are said again, and are to be used once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<(u64, u64)>,
}

/// A key. It is zeroed when this is dropped, and never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Takes over a key.
    pub fn new(octets: &[u8]) -> Self {
        Self(Zeroizing::new(octets.to_vec()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = Zeroizing::new(String::with_capacity(2 * self.0.len()));
        for octet in self.0.iter() {
            for digit in [octet >> 4, octet & 15] {
                text.push(DIGITS[usize::from(digit)].into());
            }
        }
        serializer.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Zeroizing::new(String::deserialize(deserializer)?);
        let digit = |octet: u8| match octet {
            b'0'..=b'9' => Some(octet - b'0'),
            b'a'..=b'f' => Some(octet - b'a' + 10),
            _ => None,
        };
        let pairs = text.as_bytes().chunks(2).map(|pair| match *pair {
            [high, low] => Some(digit(high)? << 4 | digit(low)?),
            _ => None,
        });
        let octets: Option<Vec<u8>> = pairs.collect();
        let octets =
            octets.ok_or_else(|| serde::de::Error::custom("a key is no hexadecimal text"))?;
        Ok(Self(Zeroizing::new(octets)))
    }
}

fn pair(ports: Ports) -> (u16, u16) {
    (ports.port, ports.mask)
}

impl From<&Demand> for Demanded {
    fn from(demand: &Demand) -> Self {
        let Selector {
            local,
            local_ports,
            remote,
            remote_ports,
        } = demand.selector;
        Self {
            outgoing: demand.outgoing,
            local: local.to_string(),
            local_ports: pair(local_ports),
            remote: remote.to_string(),
            remote_ports: pair(remote_ports),
            action: match demand.action {
                Action::Bypass => Done::Bypass,
                Action::Discard => Done::Discard,
                Action::Protect(template) => Done::Protect {
                    request: template.request,
                    tunnel: template.mode == Mode::Tunnel,
                    local: template.local,
                    remote: template.remote,
                },
            },
        }
    }
}

impl Demanded {
    /// Returns the policy. Returns `None` if its prefixes are none.
    pub fn demand(&self) -> Option<Demand> {
        let ports = |(port, mask)| Ports { port, mask };
        Some(Demand {
            outgoing: self.outgoing,
            selector: Selector {
                local: self.local.parse().ok()?,
                local_ports: ports(self.local_ports),
                remote: self.remote.parse().ok()?,
                remote_ports: ports(self.remote_ports),
            },
            action: match self.action {
                Done::Bypass => Action::Bypass,
                Done::Discard => Action::Discard,
                Done::Protect {
                    request,
                    tunnel,
                    local,
                    remote,
                } => Action::Protect(Template {
                    request,
                    mode: mode(tunnel),
                    local,
                    remote,
                }),
            },
        })
    }
}

impl Association {
    /// Returns its name.
    pub fn id(&self) -> SaId {
        SaId {
            spi: self.spi,
            destination: self.destination,
        }
    }

    /// Returns it with its keys. Returns `None` if its algorithm is unknown.
    pub fn sa(&self) -> Option<(Sa, Keys)> {
        let sa = Sa {
            id: self.id(),
            source: self.source,
            mode: mode(self.tunnel),
            algorithm: Algorithm::of_name(&self.algorithm)?,
            extended: self.extended,
            encapsulation: self.udp.map(|(source, destination)| UdpPorts {
                source,
                destination,
            }),
            request: self.request,
        };
        let [encryption, integrity] = [&self.encryption, &self.integrity];
        Some((sa, Keys::new(encryption.0.to_vec(), integrity.0.to_vec())))
    }
}

fn mode(tunnel: bool) -> Mode {
    match tunnel {
        true => Mode::Tunnel,
        false => Mode::Transport,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::MAX_MESSAGE;

    fn association() -> Association {
        Association {
            spi: 0x1001,
            source: [192, 0, 2, 1].into(),
            destination: [192, 0, 2, 2].into(),
            tunnel: false,
            algorithm: "rfc4106(gcm(aes))".into(),
            extended: true,
            udp: Some((4500, 65535)),
            request: 7,
            encryption: Secret::new(&[0x0f; 20]),
            integrity: Secret::new(&[]),
            outbound: true,
            dying: false,
            age: 1,
            window: 1024,
            received: 0,
            first: Some((65536, u64::MAX)),
        }
    }

    #[test]
    fn what_is_said_is_read_and_keys_are_not_shown() {
        let said = Protection {
            demands: Vec::new(),
            addresses: vec!["fd00::1".parse().unwrap()],
            associations: vec![association()],
        };
        let text = serde_json::to_string(&said).unwrap();
        assert!(text.contains(&"0f".repeat(20)), "{text}");
        assert_eq!(serde_json::from_str::<Protection>(&text).unwrap(), said);
        assert!(!format!("{said:?}").contains("15, 15"), "{said:?}");
        for bad in ["0", "0g", "0F"] {
            serde_json::from_str::<Secret>(&format!("\"{bad}\"")).unwrap_err();
        }
    }

    #[test]
    fn parts_fit_a_message_and_make_the_whole() {
        let demand = Demanded {
            outgoing: true,
            local: format!("{}/128", "ffff:".repeat(8).trim_end_matches(':')),
            local_ports: (65535, 65535),
            remote: format!("{}/128", "ffff:".repeat(8).trim_end_matches(':')),
            remote_ports: (65535, 65535),
            action: Done::Protect {
                request: u32::MAX,
                tunnel: false,
                local: [0xffff; 8].into(),
                remote: [0xffff; 8].into(),
            },
        };
        let association = Association {
            spi: u32::MAX,
            source: [0xffff; 8].into(),
            destination: [0xffff; 8].into(),
            algorithm: "authenc(hmac(sha256),cbc(aes))".into(),
            encryption: Secret::new(&[0xff; 36]),
            integrity: Secret::new(&[0xff; 32]),
            age: u64::MAX,
            window: u32::MAX,
            received: u64::MAX,
            first: Some((u64::MAX, u64::MAX)),
            ..association()
        };
        let whole = Protection {
            demands: vec![demand; 500],
            addresses: vec![[0xffff; 8].into(); 256],
            associations: vec![association; 1000],
        };
        let parts = whole.clone().parts();
        assert_eq!(parts.len(), 1000_usize.div_ceil(ASSOCIATIONS));
        let mut together = Protection::default();
        for part in parts {
            let octets = serde_json::to_vec(&part).unwrap().len();
            assert!(octets < MAX_MESSAGE - 100, "{octets}");
            together.extend(part);
        }
        assert_eq!(together, whole);
        assert_eq!(Protection::default().parts(), [Protection::default()]);
    }

    #[test]
    fn policies_and_associations_read_back() {
        let (sa, keys) = association().sa().unwrap();
        assert_eq!(
            (sa.id.spi, sa.mode, keys.octets().0.len()),
            (0x1001, Mode::Transport, 20)
        );
        let unknown = Association {
            algorithm: "rot13".into(),
            ..association()
        };
        assert!(unknown.sa().is_none());
        let template = Template {
            request: 7,
            mode: Mode::Tunnel,
            local: [192, 0, 2, 1].into(),
            remote: [192, 0, 2, 2].into(),
        };
        for action in [Action::Bypass, Action::Discard, Action::Protect(template)] {
            let demand = Demand {
                outgoing: true,
                selector: Selector {
                    local: "192.0.2.1/32".parse().unwrap(),
                    local_ports: Ports {
                        port: 7471,
                        mask: 0xffff,
                    },
                    remote: "192.0.2.0/24".parse().unwrap(),
                    remote_ports: Ports::ALL,
                },
                action,
            };
            assert_eq!(Demanded::from(&demand).demand(), Some(demand));
        }
    }
}
