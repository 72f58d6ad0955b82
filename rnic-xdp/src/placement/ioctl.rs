//! The requests of `ethtool` that netlink does not have: which fields are hashed, and rules that choose a queue.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;

use nix::libc;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use zerocopy::{FromZeros, IntoBytes};

const NO_RULES: [u32; 0] = [];

/// `struct ethtool_rx_flow_spec`
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct FlowSpec {
    pub(super) kind: u32,
    pub(super) value: Match,
    value_extension: [u32; 5],
    pub(super) mask: Match,
    mask_extension: [u32; 5],
    pub(super) queue: u64,
    pub(super) location: u32,
}

/// `union ethtool_flow_union`: 52 octets, aligned as numbers are.
#[derive(Clone, Copy, Debug, Default, FromZeros, IntoBytes)]
#[repr(C)]
pub(super) struct Match(pub(super) [u32; 13]);

/// `struct ethtool_rxnfc`, with the locations of rules behind it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Request<const RULES: usize> {
    pub(super) command: u32,
    pub(super) flow: u32,
    pub(super) data: u64,
    pub(super) rule: FlowSpec,
    pub(super) rules: u32,
    pub(super) locations: [u32; RULES],
}

impl Request<0> {
    pub(super) fn new(command: u32) -> Self {
        Self::with_locations(command, NO_RULES)
    }
}

impl<const RULES: usize> Request<RULES> {
    pub(super) fn with_locations(command: u32, locations: [u32; RULES]) -> Self {
        Self {
            command,
            flow: 0,
            data: 0,
            rule: FlowSpec::default(),
            rules: RULES as u32,
            locations,
        }
    }

    /// Asks the driver of a device in the network namespace of this thread. The answer takes the place of the question.
    pub(super) fn ask(&mut self, netdev: &str) -> io::Result<()> {
        let any: OwnedFd = socket(
            AddressFamily::Inet,
            SockType::Datagram,
            SockFlag::SOCK_CLOEXEC,
            None,
        )?;
        // SAFETY: zeroes are a valid `ifreq`.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        if netdev.len() >= request.ifr_name.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        for (to, from) in request.ifr_name.iter_mut().zip(netdev.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = ptr::from_mut(self).cast();
        // SAFETY: the kernel reads and writes a `struct ethtool_rxnfc` at `ifru_data`, which `self` is, and behind it as
        // many locations as `rules` says, which `locations` has room for.
        let result = unsafe { libc::ioctl(any.as_raw_fd(), libc::SIOCETHTOOL, &mut request) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;

    #[test]
    fn layouts_are_the_kernels() {
        assert_eq!(size_of::<Match>(), 52);
        assert_eq!(offset_of!(FlowSpec, mask), 76);
        assert_eq!(offset_of!(FlowSpec, queue), 152);
        assert_eq!(size_of::<FlowSpec>(), 168);
        assert_eq!(size_of::<Request<0>>(), 192);
        assert_eq!(offset_of!(Request<3>, rules), 184);
        assert_eq!(offset_of!(Request<3>, locations), 188);
    }
}
