//! The requests of `ethtool` that netlink does not have: which fields are hashed, and rules that
//! choose a queue; and the table of queues, which it has from Linux 6.3 on.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;

use nix::libc;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use zerocopy::{FromZeros, IntoBytes};

use crate::device::netlink::RssSettings;

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
pub(super) struct RxnfcRequest<const RULES: usize> {
    pub(super) command: u32,
    pub(super) flow: u32,
    pub(super) data: u64,
    pub(super) rule: FlowSpec,
    pub(super) rules: u32,
    pub(super) locations: [u32; RULES],
}

impl RxnfcRequest<0> {
    pub(super) fn new(command: u32) -> Self {
        Self::with_locations(command, NO_RULES)
    }
}

impl<const RULES: usize> RxnfcRequest<RULES> {
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

    /// Makes a request to the driver of a device in the network namespace of this thread. The reply
    /// overwrites the request.
    pub(super) fn ask(&mut self, netdev: &str) -> io::Result<()> {
        // SAFETY: the kernel reads and writes a `struct ethtool_rxnfc`, which `self` is, and behind
        // it as many locations as `rules` says, which `locations` has room for.
        unsafe { ask(netdev, ptr::from_mut(self).cast()) }
    }
}

/// Makes a request to the driver of a device in the network namespace of this thread.
///
/// # Safety
/// `request` is a structure of `ethtool` that begins with the number of a command, and has room for
/// all that the kernel writes in reply to that.
unsafe fn ask(netdev: &str, request: *mut libc::c_char) -> io::Result<()> {
    let any: OwnedFd = socket(
        AddressFamily::Inet,
        SockType::Datagram,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    // SAFETY: zeroes are a valid `ifreq`.
    let mut argument: libc::ifreq = unsafe { std::mem::zeroed() };
    if netdev.len() >= argument.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in argument.ifr_name.iter_mut().zip(netdev.bytes()) {
        *to = from as libc::c_char;
    }
    argument.ifr_ifru.ifru_data = request;
    // SAFETY: the kernel reads and writes what `ifru_data` points to, which the caller guarantees
    // to be valid.
    let result = unsafe { libc::ioctl(any.as_raw_fd(), libc::SIOCETHTOOL, &mut argument) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

const GET_RSS: u32 = 0x46;
/// Numbers in the largest table of queues and key that are read.
const MAX_RSS: usize = 8192;

/// `struct ethtool_rxfh`, with the table of queues behind it, and the key behind that.
#[repr(C)]
struct RssRequest {
    command: u32,
    context: u32,
    /// Entries of the table.
    table: u32,
    /// Octets of the key.
    key: u32,
    function: u8,
    transformation: u8,
    reserved: [u8; 2],
    reserved_too: u32,
    config: [u32; MAX_RSS],
}

impl RssRequest {
    fn new(table: u32, key: u32) -> Box<Self> {
        Box::new(Self {
            command: GET_RSS,
            context: 0,
            table,
            key,
            function: 0,
            transformation: 0,
            reserved: [0; 2],
            reserved_too: 0,
            config: [0; MAX_RSS],
        })
    }

    fn ask(&mut self, netdev: &str) -> io::Result<()> {
        // SAFETY: the kernel reads and writes a `struct ethtool_rxfh`, which `self` is, and behind
        // it a table and a key of the lengths in the request, for which there is room: `settings`
        // is the only caller and ensures that. Of other lengths it writes none.
        unsafe { ask(netdev, ptr::from_mut(self).cast()) }
    }

    /// Reads the settings, after their lengths.
    fn settings(netdev: &str) -> io::Result<Box<Self>> {
        let mut lengths = Self::new(0, 0);
        lengths.ask(netdev)?;
        let (table, key) = (lengths.table, lengths.key);
        if table as usize + key.div_ceil(4) as usize > MAX_RSS {
            return Err(io::Error::from_raw_os_error(libc::E2BIG));
        }
        let mut request = Self::new(table, key);
        request.ask(netdev)?;
        Ok(request)
    }

    /// Returns the settings of the reply.
    fn read(&self) -> RssSettings {
        let (table, key) = self.config.split_at((self.table as usize).min(MAX_RSS));
        let key = key.as_bytes();
        RssSettings {
            function: self.function.into(),
            table: table.to_vec(),
            key: key[..(self.key as usize).min(key.len())].to_vec(),
            transformation: self.transformation.into(),
        }
    }
}

/// Returns how flows are spread over the receive queues of a device.
pub(super) fn rss(netdev: &str) -> io::Result<RssSettings> {
    RssRequest::settings(netdev).map(|reply| reply.read())
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
        assert_eq!(size_of::<RxnfcRequest<0>>(), 192);
        assert_eq!(offset_of!(RxnfcRequest<3>, rules), 184);
        assert_eq!(offset_of!(RxnfcRequest<3>, locations), 188);
        assert_eq!(offset_of!(RssRequest, function), 16);
        assert_eq!(offset_of!(RssRequest, transformation), 17);
        assert_eq!(offset_of!(RssRequest, config), 24);
    }

    #[test]
    fn a_key_stands_behind_the_table() {
        let mut reply = RssRequest::new(3, 6);
        (reply.function, reply.transformation) = (1, 2);
        reply.config[..3].copy_from_slice(&[0, 1, 7]);
        reply.config[3..].as_mut_bytes()[..8].copy_from_slice(&[9, 8, 7, 6, 5, 4, 3, 2]);
        let expected = RssSettings {
            function: 1,
            table: vec![0, 1, 7],
            key: vec![9, 8, 7, 6, 5, 4],
            transformation: 2,
        };
        assert_eq!(reply.read(), expected);
        // Lengths in a reply that exceed the room are cut.
        (reply.table, reply.key) = (u32::MAX, u32::MAX);
        assert!(reply.read().key.is_empty());
    }
}
