//! The kernel's layouts of policies.

use std::net::{IpAddr, SocketAddr};

use nix::libc;
use rnic_core::esp::{Mode, Template};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub(super) const XFRMA_TMPL: u16 = 5;

pub(super) const DIRECTION_IN: u8 = 0;
pub(super) const DIRECTION_OUT: u8 = 1;

pub(super) const MODE_TRANSPORT: u8 = 0;
pub(super) const MODE_TUNNEL: u8 = 1;

/// `struct xfrm_selector`
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct RawSelector {
    pub(super) destination: [u8; 16],
    pub(super) source: [u8; 16],
    pub(super) destination_port: [u8; 2],
    pub(super) destination_port_mask: [u8; 2],
    pub(super) source_port: [u8; 2],
    pub(super) source_port_mask: [u8; 2],
    pub(super) family: u16,
    pub(super) destination_len: u8,
    pub(super) source_len: u8,
    pub(super) protocol: u8,
    pub(super) padding: [u8; 3],
    pub(super) link: i32,
    pub(super) user: u32,
}

/// `struct xfrm_userpolicy_info`
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct RawPolicy {
    pub(super) selector: RawSelector,
    pub(super) lifetime: [u64; 12],
    pub(super) priority: u32,
    pub(super) index: u32,
    pub(super) direction: u8,
    pub(super) action: u8,
    pub(super) flags: u8,
    pub(super) share: u8,
    pub(super) padding: u32,
}

/// `struct xfrm_user_tmpl`
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct RawTemplate {
    pub(super) destination: [u8; 16],
    pub(super) spi: u32,
    pub(super) protocol: u8,
    pub(super) padding: [u8; 3],
    pub(super) family: u16,
    pub(super) padding_too: u16,
    pub(super) source: [u8; 16],
    pub(super) request: u32,
    pub(super) mode: u8,
    pub(super) share: u8,
    pub(super) optional: u8,
    pub(super) padding_at_last: u8,
    pub(super) algorithms: [u32; 3],
}

/// Returns the family of an address, and its octets as the kernel has them.
fn words(address: IpAddr) -> (u16, [u8; 16]) {
    let mut octets = [0; 16];
    match address {
        IpAddr::V4(address) => {
            octets[..4].copy_from_slice(&address.octets());
            (libc::AF_INET as u16, octets)
        }
        IpAddr::V6(address) => (libc::AF_INET6 as u16, address.octets()),
    }
}

impl RawSelector {
    /// Selects the segments that this host sends between two ends. A port of 0 is any.
    pub(super) fn of_segments(local: SocketAddr, remote: SocketAddr) -> Self {
        let (family, source) = words(local.ip());
        let (_, destination) = words(remote.ip());
        let len = if local.is_ipv4() { 32 } else { 128 };
        let mask = |port: u16| if port == 0 { [0; 2] } else { [0xff; 2] };
        Self {
            destination,
            source,
            destination_port: remote.port().to_be_bytes(),
            destination_port_mask: mask(remote.port()),
            source_port: local.port().to_be_bytes(),
            source_port_mask: mask(local.port()),
            family,
            destination_len: len,
            source_len: len,
            protocol: libc::IPPROTO_TCP as u8,
            padding: [0; 3],
            link: 0,
            user: 0,
        }
    }
}

impl RawPolicy {
    /// Makes a policy for what is sent.
    pub(super) fn outgoing(selector: RawSelector) -> Self {
        let mut lifetime = [0; 12];
        // Octets and packets without a limit.
        lifetime[..4].fill(u64::MAX);
        Self {
            selector,
            lifetime,
            priority: 0,
            index: 0,
            direction: DIRECTION_OUT,
            action: 0,
            flags: 0,
            share: 0,
            padding: 0,
        }
    }
}

impl From<&Template> for RawTemplate {
    /// Makes the template of what is sent.
    fn from(template: &Template) -> Self {
        let (family, source) = words(template.local);
        let (_, destination) = words(template.remote);
        Self {
            destination,
            spi: 0,
            protocol: libc::IPPROTO_ESP as u8,
            padding: [0; 3],
            family,
            padding_too: 0,
            source,
            request: template.request,
            mode: match template.mode {
                Mode::Transport => MODE_TRANSPORT,
                Mode::Tunnel => MODE_TUNNEL,
            },
            share: 0,
            optional: 0,
            padding_at_last: 0,
            // Which they are is the key manager's choice.
            algorithms: [u32::MAX; 3],
        }
    }
}
