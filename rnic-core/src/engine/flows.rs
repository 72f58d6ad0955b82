//! Finding a connection by its addresses.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher};
use std::net::{IpAddr, SocketAddr};

use siphasher::sip::SipHasher13;

/// The two ends of a connection, as this host sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowKey {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
}

impl FlowKey {
    /// The two ends, without what is a matter of this host alone (the scope of a link-local address).
    pub fn new(local: SocketAddr, remote: SocketAddr) -> Self {
        Self {
            local: plain(local),
            remote: plain(remote),
        }
    }

    /// The largest TCP segment in an IP packet of `mtu` octets, less options.
    pub(crate) fn mss(&self, mtu: u16) -> u16 {
        let ip_header = if self.local.is_ipv4() { 20 } else { 40 };
        mtu.saturating_sub(ip_header + 20)
    }
}

/// In few words: where many connections take turns, each frame is looked up.
impl Hash for FlowKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let words = |address: IpAddr| match address {
            IpAddr::V4(address) => u128::from(address.to_bits()),
            IpAddr::V6(address) => address.to_bits(),
        };
        let [local, remote] = [self.local, self.remote].map(|end| words(end.ip()));
        if self.local.is_ipv4() {
            // Two addresses of 32 bits.
            state.write_u64((local << 32 | remote) as u64);
        } else {
            state.write_u128(local);
            state.write_u128(remote);
        }
        let ports = [self.local.port(), self.remote.port()].map(u32::from);
        state.write_u32(ports[0] << 16 | ports[1]);
    }
}

/// An address as a packet has it.
pub(crate) fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port())
}

/// Hashes with a secret, so that a peer cannot choose ports that collide.
#[derive(Clone)]
pub struct Keyed {
    k0: u64,
    k1: u64,
}

impl Keyed {
    /// With this secret, which must be unpredictable.
    pub fn new(secret: &[u8; 16]) -> Self {
        let (k0, k1) = secret.split_at(8);
        let word = |bytes: &[u8]| {
            bytes
                .iter()
                .fold(0, |word, byte| word << 8 | u64::from(*byte))
        };
        Self {
            k0: word(k0),
            k1: word(k1),
        }
    }
}

impl Keyed {
    /// Another secret that follows from this one.
    pub(crate) fn derive(&self, purpose: &str) -> Self {
        let word = |number: u8| self.hash_one((purpose, number));
        Self {
            k0: word(0),
            k1: word(1),
        }
    }
}

impl BuildHasher for Keyed {
    type Hasher = SipHasher13;
    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.k0, self.k1)
    }
}

/// Connections by their addresses, and the one found last.
pub struct Flows {
    by_key: HashMap<FlowKey, usize, Keyed>,
    last: Option<(FlowKey, usize)>,
}

impl Flows {
    /// Without connections.
    pub fn new(hasher: Keyed) -> Self {
        Self {
            by_key: HashMap::with_hasher(hasher),
            last: None,
        }
    }

    /// The number of a connection.
    pub fn find(&mut self, key: &FlowKey) -> Option<usize> {
        if let Some((last, index)) = &self.last
            && last == key
        {
            return Some(*index);
        }
        let index = *self.by_key.get(key)?;
        self.last = Some((*key, index));
        Some(index)
    }

    pub(crate) fn contains(&self, key: &FlowKey) -> bool {
        self.by_key.contains_key(key)
    }

    /// Adds a connection by its number.
    pub fn insert(&mut self, key: FlowKey, index: usize) {
        self.by_key.insert(key, index);
    }

    pub(crate) fn remove(&mut self, key: &FlowKey) {
        self.by_key.remove(key);
        self.last = None;
    }
}
