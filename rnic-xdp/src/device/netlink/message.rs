//! Netlink messages and attributes: building and reading, in host byte order.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};
use zeroize::Zeroize;

const ALIGNMENT: usize = 4;
const ATTRIBUTE_HEADER_LEN: usize = 4;
/// The two flag bits above an attribute's type.
const ATTRIBUTE_TYPE_MASK: u16 = 0x3fff;
const NESTED: u16 = 0x8000;

const fn aligned(len: usize) -> usize {
    len.next_multiple_of(ALIGNMENT)
}

/// `struct nlmsghdr`
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Header {
    pub(crate) len: u32,
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) sequence: u32,
    pub(crate) port: u32,
}

pub(crate) const HEADER_LEN: usize = size_of::<Header>();

/// A message being built: header, a fixed part, attributes.
pub(crate) struct Builder {
    octets: Vec<u8>,
}

impl Builder {
    pub(crate) fn new(kind: u16, flags: u16, fixed: &(impl IntoBytes + Immutable)) -> Self {
        let header = Header {
            len: 0,
            kind,
            flags,
            sequence: 0,
            port: 0,
        };
        let mut octets = header.as_bytes().to_vec();
        octets.extend_from_slice(fixed.as_bytes());
        octets.resize(aligned(octets.len()), 0);
        Self { octets }
    }

    pub(crate) fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        push_attribute(&mut self.octets, kind, value);
        self
    }

    /// Adds attributes that are built already.
    pub(crate) fn attributes(mut self, octets: &[u8]) -> Self {
        self.octets.extend_from_slice(octets);
        self
    }

    pub(crate) fn address(self, kind: u16, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => self.attribute(kind, &address.octets()),
            IpAddr::V6(address) => self.attribute(kind, &address.octets()),
        }
    }

    pub(crate) fn string(self, kind: u16, value: &str) -> Self {
        let mut octets = value.as_bytes().to_vec();
        octets.push(0);
        self.attribute(kind, &octets)
    }

    /// Makes an attribute that holds others, given as (type, value).
    pub(crate) fn nested(self, kind: u16, inner: &[(u16, &[u8])]) -> Self {
        let mut octets = Vec::new();
        for (kind, value) in inner {
            push_attribute(&mut octets, *kind, value);
        }
        self.attribute(kind | NESTED, &octets)
    }

    /// Says which netlink socket sends it: the kernel does not look, others answer there.
    pub(crate) fn from(mut self, port: u32) -> Self {
        self.octets[12..16].copy_from_slice(&port.to_ne_bytes());
        self
    }

    pub(crate) fn finish(mut self, sequence: u32) -> Vec<u8> {
        let len = self.octets.len() as u32;
        self.octets[0..4].copy_from_slice(&len.to_ne_bytes());
        self.octets[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.octets
    }
}

/// Returns an attribute, to be put into another one.
pub(crate) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut octets = Vec::new();
    push_attribute(&mut octets, kind, value);
    octets
}

fn push_attribute(octets: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let len = (ATTRIBUTE_HEADER_LEN + value.len()) as u16;
    octets.extend_from_slice(&len.to_ne_bytes());
    octets.extend_from_slice(&kind.to_ne_bytes());
    octets.extend_from_slice(value);
    octets.resize(aligned(octets.len()), 0);
}

/// A received message.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) sequence: u32,
    payload: Vec<u8>,
}

impl Message {
    /// Overwrites it: it has keys.
    pub(crate) fn wipe(&mut self) {
        self.payload.zeroize();
    }

    /// Returns the fixed part, and the attributes after it.
    pub(crate) fn split<T: FromBytes + KnownLayout + Immutable>(
        &self,
    ) -> Option<(T, Attributes<'_>)> {
        let (fixed, _) = T::read_from_prefix(&self.payload).ok()?;
        let rest = self.payload.get(aligned(size_of::<T>())..).unwrap_or(&[]);
        Some((fixed, Attributes { octets: rest }))
    }
}

/// Cuts a datagram into its messages. Drops a malformed rest.
pub(crate) fn parse(mut octets: &[u8]) -> Vec<Message> {
    let mut messages = Vec::new();
    while let Ok((header, _)) = Header::read_from_prefix(octets) {
        let len = header.len as usize;
        let Some(payload) = octets.get(HEADER_LEN..len) else {
            break;
        };
        messages.push(Message {
            kind: header.kind,
            flags: header.flags,
            sequence: header.sequence,
            payload: payload.to_vec(),
        });
        octets = octets.get(aligned(len)..).unwrap_or(&[]);
    }
    messages
}

/// Attributes of a message, or of another attribute.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attributes<'a> {
    octets: &'a [u8],
}

impl<'a> Attributes<'a> {
    pub(crate) fn new(octets: &'a [u8]) -> Self {
        Self { octets }
    }

    /// Returns the attributes as (type, value).
    pub(crate) fn iter(self) -> impl Iterator<Item = (u16, &'a [u8])> {
        let mut rest = self.octets;
        std::iter::from_fn(move || {
            let (header, _) = <[u16; 2]>::read_from_prefix(rest).ok()?;
            let [len, kind] = header;
            let value = rest.get(ATTRIBUTE_HEADER_LEN..usize::from(len))?;
            rest = rest.get(aligned(usize::from(len))..).unwrap_or(&[]);
            Some((kind & ATTRIBUTE_TYPE_MASK, value))
        })
    }

    pub(crate) fn get(self, kind: u16) -> Option<&'a [u8]> {
        self.iter()
            .find(|(found, _)| *found == kind)
            .map(|(_, value)| value)
    }

    pub(crate) fn nested(self, kind: u16) -> Option<Attributes<'a>> {
        self.get(kind).map(|octets| Attributes { octets })
    }

    /// Returns an integer or another plain value.
    pub(crate) fn value<T: FromBytes>(self, kind: u16) -> Option<T> {
        T::read_from_prefix(self.get(kind)?)
            .ok()
            .map(|(value, _)| value)
    }

    pub(crate) fn string(self, kind: u16) -> Option<String> {
        let octets = self.get(kind)?;
        let text = octets.split(|octet| *octet == 0).next()?;
        Some(String::from_utf8_lossy(text).into_owned())
    }

    /// Returns an IP address, by its length.
    pub(crate) fn address(self, kind: u16) -> Option<IpAddr> {
        let octets = self.get(kind)?;
        if let Ok(four) = <[u8; 4]>::try_from(octets) {
            return Some(Ipv4Addr::from(four).into());
        }
        <[u8; 16]>::try_from(octets)
            .ok()
            .map(|octets| Ipv6Addr::from(octets).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_built_can_be_read() {
        let octets = Builder::new(7, 1, &[1u8, 2, 3, 4, 5])
            .string(1, "eth0")
            .nested(2, &[(3, &9u32.to_ne_bytes()), (4, &[1])])
            .address(5, Ipv4Addr::LOCALHOST.into())
            .finish(42);
        let messages = parse(&octets);
        assert_eq!(messages.len(), 1);
        assert_eq!((messages[0].kind, messages[0].sequence), (7, 42));
        let (fixed, attributes) = messages[0].split::<[u8; 5]>().unwrap();
        assert_eq!(fixed, [1, 2, 3, 4, 5]);
        assert_eq!(attributes.string(1).as_deref(), Some("eth0"));
        let inner = attributes.nested(2).unwrap();
        assert_eq!(inner.value::<u32>(3), Some(9));
        assert_eq!(inner.value::<u8>(4), Some(1));
        assert_eq!(attributes.address(5), Some(Ipv4Addr::LOCALHOST.into()));
        assert_eq!(attributes.get(6), None);
    }

    #[test]
    fn lengths_that_lie_end_the_list() {
        let mut octets = Builder::new(7, 1, &[0u8; 4])
            .attribute(1, &[1; 4])
            .finish(0);
        octets[HEADER_LEN + 4] = 200;
        let (_, attributes) = parse(&octets)[0]
            .clone()
            .split::<[u8; 4]>()
            .map(|(f, a)| (f, a.iter().count()))
            .unwrap();
        assert_eq!(attributes, 0);
        octets[0] = 255;
        assert!(parse(&octets).is_empty());
        octets[0] = 3;
        assert!(parse(&octets).is_empty());
    }
}
