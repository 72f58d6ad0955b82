//! What becomes of the frames that clients send.

/// What the program does with a frame that a client sends, in the order of its checks but for the
/// last two. All but the first two drop it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum PoliceVerdict {
    /// Sent to the network.
    ToNic,
    /// Turned around to a client of this host.
    ToPort,
    /// From a device that is no client's. Counted for port 0.
    Unknown,
    /// Shorter than its headers say.
    Truncated,
    /// IPv4 with options.
    Options,
    /// An IP fragment.
    Fragment,
    /// Another protocol, or IPv6 with extension headers.
    NotTcp,
    /// To a group MAC address.
    Group,
    /// From a MAC address or VLAN that is not this host's.
    SourceMac,
    /// With a VLAN priority or DSCP other than the default one.
    Priority,
    /// The lengths in the IP and TCP headers do not fit the frame or each other, or something lies
    /// behind the packet.
    Length,
    /// Longer than the MTU.
    Mtu,
    /// To an address of many hosts or of none, or with a hop limit of 0.
    Destination,
    /// From an address that is not this host's in the VLAN.
    Source,
    /// From an address and port that the client has not leased.
    NotLeased,
    /// To an address with which the client may not speak.
    Peer,
    /// Over its rate.
    Rate,
    /// From a loopback address to one that is not this host's.
    Loopback,
    /// To a MAC address that is none of a host or router that the kernel knows.
    NextHop,
    /// To an address of this host, at a port that no client has leased. It is answered with RST,
    /// unless it is one.
    Nobody,
    /// To a client of this host, at a port that it leased for other peers only, or which may not
    /// speak with this one. A SYN is answered with RST.
    Stranger,
    /// The device where it goes is gone.
    NoDevice,
    /// Unprotected, from an address and port that the client has leased for what is protected.
    Unprotected,
    /// Of ESP, with an association that is not the client's.
    NotSa,
}

/// The number of verdicts.
const VERDICTS: usize = 24;

impl PoliceVerdict {
    /// All verdicts, in the order of the counters.
    pub const ALL: [Self; VERDICTS] = [
        Self::ToNic,
        Self::ToPort,
        Self::Unknown,
        Self::Truncated,
        Self::Options,
        Self::Fragment,
        Self::NotTcp,
        Self::Group,
        Self::SourceMac,
        Self::Priority,
        Self::Length,
        Self::Mtu,
        Self::Destination,
        Self::Source,
        Self::NotLeased,
        Self::Peer,
        Self::Rate,
        Self::Loopback,
        Self::NextHop,
        Self::Nobody,
        Self::Stranger,
        Self::NoDevice,
        Self::Unprotected,
        Self::NotSa,
    ];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::ToNic => "to_nic",
            Self::ToPort => "to_port",
            Self::Unknown => "unknown",
            Self::Truncated => "truncated",
            Self::Options => "options",
            Self::Fragment => "fragment",
            Self::NotTcp => "not_tcp",
            Self::Group => "group",
            Self::SourceMac => "source_mac",
            Self::Priority => "priority",
            Self::Length => "length",
            Self::Mtu => "mtu",
            Self::Destination => "destination",
            Self::Source => "source",
            Self::NotLeased => "not_leased",
            Self::Peer => "peer",
            Self::Rate => "rate",
            Self::Loopback => "loopback",
            Self::NextHop => "next_hop",
            Self::Nobody => "nobody",
            Self::Stranger => "stranger",
            Self::NoDevice => "no_device",
            Self::Unprotected => "unprotected",
            Self::NotSa => "not_sa",
        }
    }
}
