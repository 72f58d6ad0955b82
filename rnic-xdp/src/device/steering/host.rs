//! This host's own addresses, which entries for any address are for, and the networks of a shared
//! device: in the maps where the programs look them up, and the first of each family where they
//! compare.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use aya::maps::{Array, HashMap, MapData};
use rnic_core::engine::Prefix;
use zerocopy::{Immutable, IntoBytes};

use super::layout::{self, AddressOctets};
use super::load::Maps;
use super::maps::io_error;

/// Addresses of each family with which the programs compare.
const FIRST: usize = 2;

/// The octets of a value in the map.
type HostOctets = [u8; 80];

/// `struct steer_host`. What there is not is all ones, which is no host's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoBytes, Immutable)]
#[repr(C)]
struct Values {
    own_v4: [[u8; 4]; FIRST],
    own_v6: [[u8; 16]; FIRST],
    network_v4: [u8; 4],
    mask_v4: [u8; 4],
    network_v6: [u8; 16],
    mask_v6: [u8; 16],
}

const NOTHING: Values = Values {
    own_v4: [[0xff; 4]; FIRST],
    own_v6: [[0xff; 16]; FIRST],
    network_v4: [0xff; 4],
    mask_v4: [0xff; 4],
    network_v6: [0xff; 16],
    mask_v6: [0xff; 16],
};

/// The maps.
pub(super) struct Host {
    first: Array<MapData, HostOctets>,
    values: Values,
    locals: HashMap<MapData, AddressOctets, u32>,
    /// What that map has.
    known: BTreeSet<AddressOctets>,
}

impl Host {
    /// Opens the maps, which may have what a former process knew.
    pub(super) fn new(maps: &Maps) -> io::Result<Self> {
        let locals: HashMap<_, AddressOctets, u32> = maps.get("steer_locals")?;
        let known = locals.keys().collect::<Result<_, _>>().map_err(io_error)?;
        let mut host = Self {
            first: maps.get("steer_host")?,
            values: NOTHING,
            locals,
            known,
        };
        // Until it is known again, the other map and the trie have it.
        host.write(NOTHING)?;
        Ok(host)
    }

    /// Sets which addresses this host has, those first that are looked for most.
    pub(super) fn set_locals(&mut self, addresses: &[IpAddr]) -> io::Result<()> {
        let wanted: BTreeSet<_> = addresses.iter().map(|ip| layout::address(*ip)).collect();
        for new in wanted.difference(&self.known.clone()) {
            self.locals.insert(new, 1, 0).map_err(io_error)?;
            self.known.insert(*new);
        }
        let mut values = Values {
            own_v4: NOTHING.own_v4,
            own_v6: NOTHING.own_v6,
            ..self.values
        };
        let four = addresses.iter().filter_map(|ip| match ip {
            IpAddr::V4(ip) => Some(ip.octets()),
            IpAddr::V6(_) => None,
        });
        let six = addresses.iter().filter_map(|ip| match ip {
            IpAddr::V6(ip) => Some(ip.octets()),
            IpAddr::V4(_) => None,
        });
        values
            .own_v4
            .iter_mut()
            .zip(four)
            .for_each(|(to, ip)| *to = ip);
        values
            .own_v6
            .iter_mut()
            .zip(six)
            .for_each(|(to, ip)| *to = ip);
        self.write(values)?;
        for old in self.known.clone().difference(&wanted) {
            self.locals.remove(old).map_err(io_error)?;
            self.known.remove(old);
        }
        Ok(())
    }

    /// Sets in which networks the device is: of each family one counts here, the first.
    pub(super) fn set_networks(&mut self, networks: &[Prefix]) -> io::Result<()> {
        // The programs may read a value that is half written: the network changes only while it is
        // a single address.
        let narrow = Values {
            mask_v4: NOTHING.mask_v4,
            mask_v6: NOTHING.mask_v6,
            ..self.values
        };
        let mut values = Values {
            network_v4: NOTHING.network_v4,
            network_v6: NOTHING.network_v6,
            ..narrow
        };
        let of = |is_ipv4| {
            networks
                .iter()
                .find(move |network| network.is_ipv4() == is_ipv4)
        };
        let (four, six) = (of(true), of(false));
        if let Some(IpAddr::V4(address)) = four.map(|network| network.address()) {
            values.network_v4 = address.octets();
        }
        if let Some(IpAddr::V6(address)) = six.map(|network| network.address()) {
            values.network_v6 = address.octets();
        }
        let wide = Values {
            mask_v4: four.map_or(values.mask_v4, |network| mask_v4(network.bits()).octets()),
            mask_v6: six.map_or(values.mask_v6, |network| mask_v6(network.bits()).octets()),
            ..values
        };
        if wide == self.values {
            return Ok(());
        }
        [narrow, values, wide]
            .into_iter()
            .try_for_each(|values| self.write(values))
    }

    fn write(&mut self, values: Values) -> io::Result<()> {
        let mut octets: HostOctets = [0; 80];
        octets.copy_from_slice(values.as_bytes());
        self.first.set(0, octets, 0).map_err(io_error)?;
        self.values = values;
        Ok(())
    }
}

fn mask_v4(bits: u8) -> Ipv4Addr {
    let rest = 32 - u32::from(bits.min(32));
    u32::MAX.checked_shl(rest).unwrap_or(0).into()
}

fn mask_v6(bits: u8) -> Ipv6Addr {
    let rest = 128 - u32::from(bits.min(128));
    u128::MAX.checked_shl(rest).unwrap_or(0).into()
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;
    use crate::device::steering::skeleton::types::steer_host;

    #[test]
    fn values_have_the_layout_of_the_c_structure() {
        assert_eq!(size_of::<steer_host>(), size_of::<Values>());
        for (ours, theirs) in [
            (offset_of!(Values, own_v6), offset_of!(steer_host, own_v6)),
            (
                offset_of!(Values, network_v4),
                offset_of!(steer_host, network_v4),
            ),
            (offset_of!(Values, mask_v4), offset_of!(steer_host, mask_v4)),
            (
                offset_of!(Values, network_v6),
                offset_of!(steer_host, network_v6),
            ),
            (offset_of!(Values, mask_v6), offset_of!(steer_host, mask_v6)),
        ] {
            assert_eq!(ours, theirs);
        }
    }

    #[test]
    fn masks_have_as_many_bits_as_the_prefix() {
        let four = [0, 1, 24, 32].map(|bits| mask_v4(bits).to_bits());
        assert_eq!(four, [0, 1 << 31, 0xffff_ff00, u32::MAX]);
        let six = [0, 64, 128].map(|bits| mask_v6(bits).to_bits());
        assert_eq!(six, [0, u128::MAX << 64, u128::MAX]);
    }
}
