//! What the two sides of a connection tell each other in the private data of MPA start-up, where
//! both are rnic and no program has called rdma_cm.
//!
//! | octets | content |
//! |---|---|
//! | 0-3 | `RNRC` |
//! | 4 | version, 1 |
//! | 5 | in a rejecting Reply the [reason](Refusal), else 0 |
//! | 6 | what it is for: 0 for two queue pairs, 1 to carry datagrams |
//! | 7 | 0, not looked at |
//! | 8-11 | the sender's queue pair number |
//! | 12-15 | the receiver's, as the sender knows it |
//! | 16-19 | the PSN that the sender expects first; 0 with datagrams |
//! | 20-23 | 0, not looked at |
//! | 24-39 | the sender's GID |
//!
//! Numbers are in network byte order. Octets behind these are not looked at.

/// Octets of a hello.
const LEN: usize = 40;

const MAGIC: [u8; 4] = *b"RNRC";
const VERSION: u8 = 1;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// It connects the two queue pairs.
    QueuePairs = 0,
    /// It carries datagrams between the processes of the two queue pairs.
    Datagrams = 1,
}

/// What a side says of itself, and of whom it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) kind: Kind,
    /// The sender's number.
    pub(crate) own: u32,
    /// The receiver's number.
    pub(crate) peer: u32,
    /// The PSN that the sender expects first.
    pub(crate) rq_psn: u32,
    /// The sender's GID.
    pub(crate) gid: [u8; 16],
}

/// Why a request is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Refusal {
    /// The number is nobody's.
    NoQueuePair = 1,
    /// The queue pair has another peer, or is connected.
    OtherPeer = 2,
    /// The queue pair will send with another PSN than the sender expects.
    Psn = 3,
    /// The hello is none that this side knows.
    Unknown = 4,
}

impl Hello {
    /// Returns the octets.
    pub(crate) fn octets(&self, refusal: Option<Refusal>) -> [u8; LEN] {
        let mut octets = [0; LEN];
        octets[..4].copy_from_slice(&MAGIC);
        octets[4] = VERSION;
        octets[5] = refusal.map_or(0, |reason| reason as u8);
        octets[6] = self.kind as u8;
        octets[8..12].copy_from_slice(&self.own.to_be_bytes());
        octets[12..16].copy_from_slice(&self.peer.to_be_bytes());
        octets[16..20].copy_from_slice(&self.rq_psn.to_be_bytes());
        octets[24..40].copy_from_slice(&self.gid);
        octets
    }

    /// Reads the octets of a peer. Returns `None` if they are no hello of this version.
    pub(crate) fn parse(octets: &[u8]) -> Option<Self> {
        let octets = octets.first_chunk::<LEN>()?;
        if octets[..4] != MAGIC || octets[4] != VERSION {
            return None;
        }
        let kind = match octets[6] {
            0 => Kind::QueuePairs,
            1 => Kind::Datagrams,
            _ => return None,
        };
        let number = |at: usize| {
            let [a, b, c, d] = [octets[at], octets[at + 1], octets[at + 2], octets[at + 3]];
            u32::from_be_bytes([a, b, c, d])
        };
        let mut gid = [0; 16];
        gid.copy_from_slice(&octets[24..40]);
        Some(Self {
            kind,
            own: number(8),
            peer: number(12),
            rq_psn: number(16),
            gid,
        })
    }
}

/// Returns why a peer has rejected, in words.
pub(crate) fn why(private_data: &[u8]) -> &'static str {
    if Hello::parse(private_data).is_none() {
        return "it does not say why";
    }
    match private_data[5] {
        1 => "it has no such queue pair",
        2 => "its queue pair has another peer, or a connection",
        3 => "its queue pair sends with another PSN",
        4 => "it does not know this version",
        _ => "its reason is unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: Hello = Hello {
        kind: Kind::QueuePairs,
        own: 0x0040_0001,
        peer: 0x00ff_ff02,
        rq_psn: 0x0012_3456,
        gid: [7; 16],
    };

    #[test]
    fn a_hello_is_read_as_it_was_written() {
        let octets = HELLO.octets(None);
        assert_eq!(Hello::parse(&octets), Some(HELLO));
        assert_eq!(&octets[..12], b"RNRC\x01\0\0\0\0\x40\0\x01");
        let carrying = Hello {
            kind: Kind::Datagrams,
            ..HELLO
        };
        assert_eq!(Hello::parse(&carrying.octets(None)), Some(carrying));
        let longer = [&octets[..], &[1, 2, 3]].concat();
        assert_eq!(Hello::parse(&longer), Some(HELLO));
        assert_eq!(
            why(&HELLO.octets(Some(Refusal::Psn))),
            "its queue pair sends with another PSN"
        );
    }

    #[test]
    fn what_is_no_hello_is_not_taken_for_one() {
        let octets = HELLO.octets(None);
        for short in 0..LEN {
            assert_eq!(Hello::parse(&octets[..short]), None);
        }
        for (at, bit) in [(0, 1), (1, 1), (2, 1), (3, 1), (4, 1), (6, 2)] {
            let mut other = octets;
            other[at] ^= bit;
            assert_eq!(Hello::parse(&other), None, "octet {at}");
        }
    }
}
