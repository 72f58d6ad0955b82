//! How a connection is to be set up.

use std::time::Duration;

use crate::memory::table::Access;
use crate::tcp::Keepalive;

/// How a connection is to be set up.
#[derive(Clone, Debug)]
pub struct ConnectionOptions {
    /// MPA revision to ask for, 1 (RFC 5044) or 2 (RFC 6581). A responder replies with the revision
    /// of the Request.
    pub mpa_revision: u8,
    /// Ask for CRC32c in every FPDU. It is used if either side asks, and always on a device that
    /// rnicd shares, unless its configuration lets the user's programs do without.
    pub crc: bool,
    /// Require markers in what the peer sends (RFC 5044 section 4.3): with CRCs, FPDUs that arrive
    /// ahead of order are then found and placed at once, however the stream was cut into segments.
    /// Without markers they wait in the out-of-order queue until the missing octets have come.
    /// Markers cost the receiver a copy, and not every peer can send them.
    pub markers: bool,
    /// Reads and atomics that this side accepts at once.
    pub ird: u16,
    /// Reads and atomics that this side wants to have outstanding.
    pub ord: u16,
    /// How far an initiator raises its `ird` where the responder wants more: beyond that, it
    /// refuses.
    pub max_ird: u16,
    /// Whether MPA start-up negotiates these depths. If not, this side does not state them (RFC
    /// 6581 section 9.1), and they stay as they are; the applications make sure that neither side
    /// has more outstanding than the other accepts. Depths that a peer states nevertheless are
    /// obeyed.
    pub negotiate_reads: bool,
    /// Initiator: ask for a peer-to-peer connection (RFC 6581), on which either application may
    /// send first. MPA then begins with a message of its own, which neither application sees. This
    /// needs revision 2. A responder does what the initiator asks.
    pub peer_to_peer: bool,
    /// Private data for the peer, sent in MPA start-up: 512 octets at most, 508 with revision 2.
    pub private_data: Vec<u8>,
    /// How long an initiator waits between the MPA Reply and its first FPDU. The Linux siw driver
    /// can overlook octets that reach it within about 3 ms of its Reply, or later on a busy host: if
    /// such an initiator has begun a peer-to-peer connection with a Write, and hears nothing, it
    /// sends that again, three times in the first second.
    pub first_fpdu_delay: Duration,
    /// How long the TCP and MPA start-up may take altogether.
    pub connect_timeout: Duration,
    /// The class of what is sent, as `IP_TOS` and `IPV6_TCLASS` state it for the kernel's sockets:
    /// the upper six bits, which the network may look at (RFC 2474). The two for ECN are TCP's. A
    /// responder sends its SYN-ACK in class 0, and on a shared device all is in class 0.
    pub traffic_class: u8,
    /// Send keepalive probes to a peer that has been silent for long. Without them, a Read waits
    /// for ever for a peer that is gone. `None`: as the engine's TCP settings say, by default no
    /// probes. Over SCTP the probes are heartbeats.
    pub keepalive: Option<Keepalive>,
    /// How long the peer may leave what it is owed without acknowledgment before the connection
    /// fails, as `TCP_USER_TIMEOUT` sets it for the kernel's TCP. `None`: as the engine's TCP
    /// settings say, where by default the number of retransmissions decides.
    pub user_timeout: Option<Duration>,
    /// The applications expect what InfiniBand's reliable connections (RC) do where iWARP differs.
    /// Both sides must have agreed on this, in the private data: a peer that does not know it would
    /// be sent opcodes that RFC 5040 leaves free. An initiator whose private data are a
    /// [`Hello`](crate::wire::hello::Hello) gives up where the Reply is not the answer to it. See
    /// docs/design/rc.md.
    pub rc: bool,
    /// With `rc`: how long a peer that has found no receive is to wait before it would try again,
    /// InfiniBand's min_rnr_timer, 655.36 ms at most. Here it does not try again, but it counts the
    /// time: see [`QueuePair::rnr_retry`](crate::verbs::qp::QueuePair::rnr_retry).
    pub min_rnr_timer: Duration,
    /// Over SCTP: have an association of its own. Otherwise an initiator takes a stream of an
    /// association that there is from this device to the peer's address and port, if one is free,
    /// and the connection's local port is that of the association.
    pub own_association: bool,
    /// Initiator: connect only where the host's IPsec policies protect the connection, and let
    /// nothing unprotected pass it if they change. A responder says so to its listener.
    pub require_protection: bool,
    /// What the peer may do to memory on this connection at all: remote read, write and atomic. A
    /// region must allow it, too. Anything else ends the connection with the Terminate of an access
    /// violation.
    pub remote_access: Access,
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
            traffic_class: 0,
            keepalive: None,
            user_timeout: None,
            rc: false,
            min_rnr_timer: Duration::from_millis(10),
            own_association: false,
            require_protection: false,
            remote_access: Access::REMOTE,
        }
    }
}

impl ConnectionOptions {
    /// Returns the defaults, with a connection that ends once the peer has not answered for about
    /// this long: what it owes an acknowledgment for (`user_timeout`), or probes sent to it when it
    /// is silent (`keepalive`).
    pub fn with_patience(patience: Duration) -> Self {
        Self {
            user_timeout: Some(patience),
            keepalive: Some(Keepalive {
                idle: patience / 3,
                interval: patience / 6,
                ..Keepalive::default()
            }),
            ..Self::default()
        }
    }
}
