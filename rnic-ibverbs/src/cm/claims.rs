//! The addresses that ids of this process have: from when one is bound until it is destroyed,
//! whatever becomes of its connection, as in the kernel's rdma_cm. Ids of peers that have connected
//! claim nothing.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;

use crate::errno::{Errno, lock};

/// Who has which port.
static CLAIMED: Mutex<Option<HashMap<u16, Vec<Holder>>>> = Mutex::new(None);

/// Returns the lock of the claims, which a child makes new.
pub(super) fn renewed() -> &'static Mutex<impl Default> {
    &CLAIMED
}

/// An id that has an address.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Holder {
    ip: IpAddr,
    /// It shares the port with others that do.
    shares: bool,
}

impl Holder {
    fn excludes(self, other: Self) -> bool {
        let same = self.ip == other.ip || self.ip.is_unspecified() || other.ip.is_unspecified();
        same && self.ip.is_ipv4() == other.ip.is_ipv4() && !(self.shares && other.shares)
    }
}

/// An address that an id has until this is dropped.
#[derive(Debug)]
pub(super) struct Claim {
    port: u16,
    holder: Holder,
}

impl Claim {
    /// Fails if another id has the address, and one of both does not share it.
    pub(super) fn new(address: SocketAddr, shares: bool) -> Result<Self, Errno> {
        let ip = address.ip();
        let holder = Holder { ip, shares };
        let mut claimed = lock(&CLAIMED);
        let holders = claimed.get_or_insert_default().entry(address.port());
        let holders = holders.or_default();
        if holders.iter().any(|other| other.excludes(holder)) {
            return Err(Errno::EADDRINUSE);
        }
        holders.push(holder);
        Ok(Self {
            port: address.port(),
            holder,
        })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claimed = lock(&CLAIMED);
        let Some(ports) = claimed.as_mut() else {
            return;
        };
        let Some(holders) = ports.get_mut(&self.port) else {
            return;
        };
        if let Some(place) = holders.iter().position(|holder| *holder == self.holder) {
            holders.swap_remove(place);
        }
        if holders.is_empty() {
            ports.remove(&self.port);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_one_id_unless_all_share_it() {
        let claim = |text: &str, shares| Claim::new(text.parse().unwrap(), shares);
        let first = claim("192.0.2.1:9001", false).unwrap();
        assert_eq!(
            claim("192.0.2.1:9001", false).unwrap_err(),
            Errno::EADDRINUSE
        );
        assert_eq!(
            claim("192.0.2.1:9001", true).unwrap_err(),
            Errno::EADDRINUSE
        );
        assert_eq!(claim("0.0.0.0:9001", false).unwrap_err(), Errno::EADDRINUSE);
        let _others = [
            claim("192.0.2.2:9001", false).unwrap(),
            claim("192.0.2.1:9002", false).unwrap(),
            claim("[::]:9001", false).unwrap(),
        ];
        drop(first);
        let shared = claim("192.0.2.1:9001", true).unwrap();
        let _again = claim("192.0.2.1:9001", true).unwrap();
        drop(shared);
        assert_eq!(
            claim("192.0.2.1:9001", false).unwrap_err(),
            Errno::EADDRINUSE
        );
    }
}
