//! The addresses of a connection, and what keeps its port.

use std::any::Any;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// The two ends of a connection, as this host sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowKey {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
}

impl FlowKey {
    /// Makes the key of two ends. The scope of a link-local address, which no packet has, is left
    /// out.
    pub fn new(local: SocketAddr, remote: SocketAddr) -> Self {
        Self {
            local: without_scope(local),
            remote: without_scope(remote),
        }
    }

    /// Returns the key of the other end.
    pub(crate) fn reversed(&self) -> Self {
        Self {
            local: self.remote,
            remote: self.local,
        }
    }

    /// Returns the addresses alone.
    pub(crate) fn addresses(&self) -> AddressPair {
        AddressPair {
            local: self.local.ip(),
            remote: self.remote.ip(),
        }
    }

    /// Returns the size of the largest TCP segment in an IP packet of `mtu` octets, less options.
    pub(crate) fn mss(&self, mtu: u16) -> u16 {
        let ip_header = if self.local.is_ipv4() { 20 } else { 40 };
        mtu.saturating_sub(ip_header + 20)
    }
}

/// The addresses of a path: what the kernel chooses a route by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressPair {
    /// The address of this host.
    pub local: IpAddr,
    /// The peer's.
    pub remote: IpAddr,
}

/// Hashes as few words as possible: with many connections, every frame is looked up.
impl Hash for FlowKey {
    #[inline(always)]
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

/// Returns an address as a packet has it, without the scope of a link-local address.
pub(crate) fn without_scope(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port())
}

/// Keeps a local port reserved and steered to the engine. The engine drops it with the last
/// connection (TIME-WAIT included) or listener that uses the port.
pub type PortReservation = Arc<dyn Any + Send + Sync>;
