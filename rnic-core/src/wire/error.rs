//! Why a frame is no packet for us.

/// Why a frame holds no TCP segment for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// The frame ends before the header or the length that the header states.
    #[error("the frame is shorter than its {0} header says")]
    Truncated(&'static str),
    /// A field contradicts the format.
    #[error("the {0} field is invalid")]
    Malformed(&'static str),
    /// Neither IPv4 nor IPv6.
    #[error("EtherType {0:#06x} is not IP")]
    NotIp(u16),
    /// Not TCP, or TCP behind IPv6 extension headers.
    #[error("IP protocol {0} is not TCP")]
    NotTcp(u8),
    /// A part of an IP datagram.
    #[error("the IP datagram is fragmented: lower the sender's MTU")]
    Fragment,
    /// Sent to a group, or from an address that no host can have (RFC 1122 section 4.2.3.10).
    #[error("the {0} address is not one host's")]
    NotUnicast(&'static str),
    /// A checksum does not match.
    #[error("the {0} checksum is wrong")]
    Checksum(&'static str),
}
