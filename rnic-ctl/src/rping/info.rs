//! The message of rping: the address of a buffer, in network byte order.

use rnic_verbs::{RemoteAddress, Stag};
use zerocopy::byteorder::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Octets of an [`Info`].
pub(super) const INFO_LEN: usize = size_of::<RawInfo>();

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawInfo {
    address: U64,
    rkey: U32,
    size: U32,
}

/// A buffer. If it is all zero, it is a go-ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Info {
    pub address: u64,
    pub rkey: u32,
    pub size: u32,
}

impl Info {
    pub(super) fn encode(&self) -> [u8; INFO_LEN] {
        let mut octets = [0; INFO_LEN];
        let Self {
            address,
            rkey,
            size,
        } = *self;
        let raw = RawInfo {
            address: address.into(),
            rkey: rkey.into(),
            size: size.into(),
        };
        octets.copy_from_slice(raw.as_bytes());
        octets
    }

    /// Reads a message. Returns `None` if it has another length.
    pub(super) fn decode(octets: &[u8]) -> Option<Self> {
        let RawInfo {
            address,
            rkey,
            size,
        } = RawInfo::read_from_bytes(octets).ok()?;
        Some(Self {
            address: address.get(),
            rkey: rkey.get(),
            size: size.get(),
        })
    }

    pub(super) fn remote(&self) -> RemoteAddress {
        RemoteAddress {
            stag: Stag(self.rkey),
            offset: self.address,
        }
    }
}

/// Returns an rkey of the same memory that is not valid: its key octet differs.
pub(super) fn wrong_rkey(rkey: u32) -> u32 {
    rkey ^ 0x5a
}

/// Returns the text of ping number `ping`: its name, then letters that begin one further each time,
/// then a NUL.
pub(super) fn ping_text(ping: u64, size: usize) -> Vec<u8> {
    let mut text = format!("rdma-ping-{ping}: ").into_bytes();
    let letters = b'A'..=b'z';
    let begin = (ping % letters.clone().count() as u64) as usize;
    text.extend(
        letters
            .cycle()
            .skip(begin)
            .take(size.saturating_sub(text.len())),
    );
    text.truncate(size);
    if let Some(last) = text.last_mut() {
        *last = 0;
    }
    text
}

/// Returns the text in a buffer: up to its NUL.
pub(super) fn text(octets: &[u8]) -> &[u8] {
    octets.split(|&octet| octet == 0).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_on_the_wire() {
        let info = Info {
            address: 0x0102_0304_0506_0708,
            rkey: 0x1112_1314,
            size: 64,
        };
        let octets = [1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0, 0, 0, 64];
        assert_eq!(info.encode(), octets);
        assert_eq!(Info::decode(&octets), Some(info));
        assert_eq!(Info::decode(&octets[1..]), None);
        assert_eq!(Info::decode(&[0; 17]), None);
    }

    #[test]
    fn pings_look_like_rpings() {
        let first = ping_text(0, 64);
        assert_eq!(first.len(), 64);
        assert_eq!(
            text(&first),
            b"rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqr"
        );
        assert!(text(&ping_text(1, 64)).starts_with(b"rdma-ping-1: BCD"));
        // From z it goes on with A, and after the last letter the next ping begins with A again.
        assert!(text(&ping_text(57, 64)).starts_with(b"rdma-ping-57: zAB"));
        assert!(text(&ping_text(58, 64)).starts_with(b"rdma-ping-58: ABC"));
        assert_eq!(ping_text(u64::MAX, 26).len(), 26);
    }
}
