//! What became of the frames that clients sent.

/// What the program does with a frame that a client sends, in the order of its checks. All but the first two drop it.
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
    /// The lengths in the IP and TCP headers do not fit the frame or each other, or something lies behind the packet.
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
    /// To an address of this host, at a port that no client has leased. It is answered with RST, unless it is one.
    Nobody,
    /// To a client of this host, at a port that it leased for other peers only, or which may not speak with this one. A SYN is answered
    /// with RST.
    Stranger,
    /// The device where it goes is gone.
    NoDevice,
}

/// The number of verdicts.
pub(super) const VERDICTS: usize = 22;

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
        }
    }
}

/// Frames and their octets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Frames.
    pub frames: u64,
    /// Octets of whole frames, Ethernet headers included.
    pub octets: u64,
}

/// What became of the frames that a client sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoliceCounters([Count; VERDICTS]);

/// The words of a value in the map of counters: frames and octets by verdict.
pub(super) type CounterWords = [u64; 2 * VERDICTS];

impl PoliceCounters {
    /// Adds the counters of all CPUs.
    pub(super) fn of(cpus: &[CounterWords]) -> Self {
        let mut sums = Self::default();
        for words in cpus {
            for (count, words) in sums.0.iter_mut().zip(words.chunks_exact(2)) {
                count.frames += words[0];
                count.octets += words[1];
            }
        }
        sums
    }

    /// Returns the count of a verdict.
    pub fn get(&self, verdict: PoliceVerdict) -> Count {
        self.0[verdict as usize]
    }

    /// Returns every verdict with its count.
    pub fn entries(&self) -> impl Iterator<Item = (PoliceVerdict, Count)> {
        PoliceVerdict::ALL.into_iter().zip(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::police_skeleton::types::police_counters;

    #[test]
    fn counters_have_the_layout_of_the_c_structure() {
        assert_eq!(size_of::<police_counters>(), size_of::<CounterWords>());
        for (index, verdict) in PoliceVerdict::ALL.into_iter().enumerate() {
            assert_eq!(verdict as usize, index);
        }
    }

    #[test]
    fn counters_of_all_cpus_are_added() {
        let mut one = [0; 2 * VERDICTS];
        one[..4].copy_from_slice(&[1, 64, 2, 128]);
        let sums = PoliceCounters::of(&[one, one]);
        let (nic, port) = (PoliceVerdict::ToNic, PoliceVerdict::ToPort);
        let count = |frames, octets| Count { frames, octets };
        assert_eq!(
            (sums.get(nic), sums.get(port)),
            (count(2, 128), count(4, 256))
        );
        let sent: Vec<_> = sums
            .entries()
            .filter(|(_, count)| count.frames > 0)
            .collect();
        assert_eq!(sent, [(nic, count(2, 128)), (port, count(4, 256))]);
    }
}
