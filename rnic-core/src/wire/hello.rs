//! What the two sides of a connection tell each other in the private data of MPA start-up, where
//! both are rnic and no program has called rdma_cm.
//!
//! | octets | content |
//! |---|---|
//! | 0-3 | `RNRC` |
//! | 4 | version, 1 |
//! | 5 | in a rejecting Reply the [reason](Refusal), else 0 |
//! | 6 | what it is for: 0 for two queue pairs, 1 to carry datagrams |
//! | 7 | what the sender does about [receipts](Receipts): 1 knows them, 3 sends them too; other bits 0 |
//! | 8-11 | the sender's queue pair number |
//! | 12-15 | the receiver's, as the sender knows it |
//! | 16-19 | the PSN that the sender expects first; 0 with datagrams |
//! | 20 | 1 if it is known what the sender sends first, else 0 |
//! | 21-23 | then the PSN of that |
//! | 24-39 | the sender's GID |
//!
//! Numbers are in network byte order. Octets behind these are not looked at.

/// Octets of a hello.
const LEN: usize = 40;

const MAGIC: [u8; 4] = *b"RNRC";
const VERSION: u8 = 1;

/// PSNs have so many bits.
const PSN: u32 = 0x00ff_ffff;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// It connects the two queue pairs.
    QueuePairs = 0,
    /// It carries datagrams between the processes of the two queue pairs.
    Datagrams = 1,
}

/// What a side says of itself, and of whom it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// What the connection is for.
    pub kind: Kind,
    /// The sender's number.
    pub own: u32,
    /// The receiver's number.
    pub peer: u32,
    /// The PSN that the sender expects first.
    pub rq_psn: u32,
    /// The PSN that the sender sends first, once its program has said so.
    pub sq_psn: Option<u32>,
    /// The sender's GID.
    pub gid: [u8; 16],
    /// What the sender does about receipts.
    pub receipts: Receipts,
}

/// What a side does about [receipts](crate::wire::rdmap::Receipt), which tell what was placed where
/// TCP acknowledges octets before they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receipts {
    /// It does not know them: an older version.
    Unknown,
    /// It understands them.
    Known,
    /// It understands them, and sends them to a peer that does so too.
    Sent,
}

impl Receipts {
    const KNOWN: u8 = 1;
    const SENT: u8 = 2;

    /// Returns what a side does that sends this private data.
    pub fn stated_in(private_data: &[u8]) -> Self {
        Hello::parse(private_data).map_or(Self::Unknown, |hello| hello.receipts)
    }

    fn octet(self) -> u8 {
        match self {
            Self::Unknown => 0,
            Self::Known => Self::KNOWN,
            Self::Sent => Self::KNOWN | Self::SENT,
        }
    }

    fn of(octet: u8) -> Self {
        match (octet & Self::KNOWN != 0, octet & Self::SENT != 0) {
            (false, _) => Self::Unknown,
            (true, false) => Self::Known,
            (true, true) => Self::Sent,
        }
    }
}

/// Why a request is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// The number is nobody's.
    NoQueuePair = 1,
    /// The queue pair has another peer, or is connected.
    OtherPeer = 2,
    /// The queue pair sends, or expects, another PSN than the sender says.
    Psn = 3,
    /// The hello is none that this side knows.
    Unknown = 4,
}

impl Hello {
    /// Returns the octets.
    pub fn octets(&self, refusal: Option<Refusal>) -> [u8; LEN] {
        let mut octets = [0; LEN];
        octets[..4].copy_from_slice(&MAGIC);
        octets[4] = VERSION;
        octets[5] = refusal.map_or(0, |reason| reason as u8);
        octets[6] = self.kind as u8;
        octets[7] = self.receipts.octet();
        octets[8..12].copy_from_slice(&self.own.to_be_bytes());
        octets[12..16].copy_from_slice(&self.peer.to_be_bytes());
        octets[16..20].copy_from_slice(&self.rq_psn.to_be_bytes());
        if let Some(sq_psn) = self.sq_psn {
            octets[20..24].copy_from_slice(&sq_psn.to_be_bytes());
            octets[20] = 1;
        }
        octets[24..40].copy_from_slice(&self.gid);
        octets
    }

    /// Returns whether this is the peer's hello to one that was sent to it: for the same purpose,
    /// and with the same two numbers.
    pub fn answers(&self, asked: &Self) -> bool {
        (self.kind, self.own, self.peer) == (asked.kind, asked.peer, asked.own)
    }

    /// Reads the octets of a peer. Returns `None` if they are no hello of this version.
    pub fn parse(octets: &[u8]) -> Option<Self> {
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
            sq_psn: (octets[20] == 1).then(|| number(20) & PSN),
            gid,
            receipts: Receipts::of(octets[7]),
        })
    }
}

/// Returns why a peer has rejected, in words.
pub fn why(private_data: &[u8]) -> &'static str {
    if Hello::parse(private_data).is_none() {
        return "it does not say why";
    }
    match private_data[5] {
        1 => "it has no such queue pair",
        2 => "its queue pair has another peer, or a connection",
        3 => "its queue pair sends or expects another PSN",
        4 => "it does not know this version",
        _ => "its reason is unknown",
    }
}
