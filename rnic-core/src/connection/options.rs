//! How a connection is to be set up.

use std::time::Duration;

use crate::tcp::Keepalive;

/// How a connection is to be set up.
#[derive(Clone, Debug)]
pub struct ConnectionOptions {
    /// MPA revision to ask for, 1 (RFC 5044) or 2 (RFC 6581). A responder answers what was asked.
    pub mpa_revision: u8,
    /// Ask for CRC32c in every FPDU. It is used if either side asks.
    pub crc: bool,
    /// Require markers in what the peer sends (RFC 5044 section 4.3): with CRCs, FPDUs that arrive ahead of order are then
    /// found and placed at once, however the stream was cut into segments; without markers they wait in the out-of-order queue until what is
    /// missing has come. Markers cost the receiver a copy, and not every peer can send them.
    pub markers: bool,
    /// Reads and atomics that this side accepts at once.
    pub ird: u16,
    /// Reads and atomics that this side wants to have outstanding.
    pub ord: u16,
    /// How far an initiator raises its `ird` where the responder wants more: beyond that, it refuses.
    pub max_ird: u16,
    /// Whether the exchange settles these depths. If not, they are not stated (RFC 6581 section 9.1), they stay as they
    /// are, and the applications see to it that neither side has more outstanding than the other accepts. What a peer
    /// states all the same holds.
    pub negotiate_reads: bool,
    /// Initiator: ask for a peer-to-peer connection (RFC 6581), on which either application may send first. MPA then
    /// begins with a message of its own, which neither application sees. Takes revision 2. A responder does what it is
    /// asked.
    pub peer_to_peer: bool,
    /// Handed to the peer during MPA start-up: 512 octets at most, 508 with revision 2.
    pub private_data: Vec<u8>,
    /// How long an initiator waits between the MPA Reply and its first FPDU. The Linux siw driver can
    /// overlook octets that reach it within about 3 ms of its Reply.
    pub first_fpdu_delay: Duration,
    /// How long the TCP and MPA start-up may take altogether.
    pub connect_timeout: Duration,
    /// Ask a peer that has been silent for long whether it is there: a Read would else wait for ever for one that has
    /// gone. `None`: as the engine's TCP settings say, which is not to ask by default.
    pub keepalive: Option<Keepalive>,
    /// How long the peer may leave what it is owed without acknowledgment before the connection fails, as
    /// `TCP_USER_TIMEOUT` sets it for the kernel's TCP. `None`: as the engine's TCP settings say, where by default the
    /// number of retransmissions decides.
    pub user_timeout: Option<Duration>,
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        Self {
            mpa_revision: 2,
            crc: true,
            markers: false,
            ird: 16,
            ord: 16,
            max_ird: 128,
            negotiate_reads: true,
            peer_to_peer: false,
            private_data: Vec::new(),
            first_fpdu_delay: Duration::ZERO,
            connect_timeout: Duration::from_secs(10),
            keepalive: None,
            user_timeout: None,
        }
    }
}
