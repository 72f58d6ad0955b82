//! The receipt: a Control message of connections with the semantics of RC, by which a side whose
//! TCP acknowledges octets before they are placed tells what it has placed
//! (docs/design/rc-receipts.md).

use super::FlowControl;

/// Up to which octet of the peer's stream, counted from its first, all requests were carried out or
/// wait for a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt(pub u64);

impl Receipt {
    /// The first octet, where [`FlowControl`] has others.
    const KIND: u8 = 3;

    /// Reads the payload of a Control message. Returns `None` if it is none of this kind. Reserved
    /// octets are not looked at.
    pub fn parse(octets: &[u8]) -> Option<Self> {
        let octets: &[u8; FlowControl::LEN] = octets.try_into().ok()?;
        let [kind, _, _, _, _, _, _, _, offset @ ..] = *octets;
        (kind == Self::KIND).then_some(Self(u64::from_be_bytes(offset)))
    }

    /// Writes the payload, as long as that of [`FlowControl`]. Panics if `buffer` is shorter.
    pub fn emit(self, buffer: &mut [u8]) -> usize {
        buffer[..8].copy_from_slice(&[Self::KIND, 0, 0, 0, 0, 0, 0, 0]);
        buffer[8..FlowControl::LEN].copy_from_slice(&self.0.to_be_bytes());
        FlowControl::LEN
    }
}
