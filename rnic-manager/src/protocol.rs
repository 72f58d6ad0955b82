//! The messages between rnicd and its clients.
//!
//! rnicd and its clients are upgraded apart: a field that the reader does not know is passed over,
//! a field that the writer does not know yet has a default, and a type that the reader does not
//! know is answered with [`Refused`] (by rnicd) or passed over (by a client); neither ends the
//! connection.

use std::net::{IpAddr, SocketAddr};

use rnic_core::engine::Peers;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use zeroize::Zeroizing;

use crate::device::LinkState;
pub use crate::grant::{BigPacket, BigSegment, Grant, Hop, RingSizes, UntaggedAddress};
use crate::peers;
pub use crate::protection::Protection;
pub use crate::refused::{Policy, Reason, Refused, Withheld};
use crate::states::{
    AssociationState, DaemonState, DeviceState, Event, LeaseState, Page, PortState, UsageState,
    UserState,
};
use crate::token::Token;
use crate::wiped::Wiped;

/// The version of this protocol.
pub const VERSION: u32 = 3;

/// The oldest version that knows leases of what is protected. Others get none.
pub const PROTECTS: u32 = 3;

/// The oldest version that is spoken. In version 1 the socket that reserves a lease's TCP port came
/// with the lease.
pub const OLDEST: u32 = 2;

/// Where rnicd listens if its configuration does not say otherwise.
pub const SOCKET: &str = "/run/rnic/rnicd.sock";

/// The most octets of a message.
pub const MAX_MESSAGE: usize = 64 << 10;

/// The most characters of what is said of a malformed message.
const MAX_REASON: usize = 256;

/// A message of one of the two directions.
pub trait Message: Serialize + Sized {
    /// The types of such messages.
    const TYPES: &'static [&'static str];

    /// Returns how many descriptors come with this message.
    fn descriptors(&self) -> usize;

    /// Reads a message of one of these types.
    fn from_json(value: Value) -> serde_json::Result<Self>;

    /// Checks the values. The error tells what is wrong with them.
    fn check(&self) -> Result<(), String>;

    /// Writes the message. It is `None` if it is longer than [`MAX_MESSAGE`].
    fn encode(&self) -> Option<Zeroizing<Vec<u8>>> {
        let mut octets = Wiped::default();
        serde_json::to_writer(&mut octets, self).ok()?;
        (octets.0.len() <= MAX_MESSAGE).then_some(octets.0)
    }

    /// Reads and checks a message.
    fn decode(octets: &[u8]) -> Result<Self, DecodeError> {
        let malformed = |id, reason: String| {
            // It can repeat a value, which can be long.
            let reason = reason.chars().take(MAX_REASON).collect();
            DecodeError::Malformed { id, reason }
        };
        let value: Value =
            serde_json::from_slice(octets).map_err(|error| malformed(0, error.to_string()))?;
        let id = value.get("id").and_then(Value::as_u64).unwrap_or(0);
        let Some(name) = value.get("type").and_then(Value::as_str) else {
            return Err(malformed(id, "it has no \"type\"".to_owned()));
        };
        if !Self::TYPES.contains(&name) {
            // Long enough for each name that there will be.
            let name = name.chars().take(32).flat_map(char::escape_debug).collect();
            return Err(DecodeError::UnknownType { id, name });
        }
        let message = Self::from_json(value).map_err(|error| malformed(id, error.to_string()))?;
        match message.check() {
            Ok(()) => Ok(message),
            Err(reason) => Err(malformed(id, reason)),
        }
    }
}

/// Why a message is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// It is no JSON object, lacks something, or has a value that cannot be.
    #[error("a message is malformed: {reason}")]
    Malformed {
        /// The `id` of the message, or 0 if it has none.
        id: u64,
        /// What is wrong.
        reason: String,
    },
    /// Its type is unknown.
    #[error(
        "messages of type \"{name}\" are unknown in version {VERSION} of this protocol; upgrade the older one of rnicd and its client"
    )]
    UnknownType {
        /// The `id` of the message, or 0 if it has none.
        id: u64,
        /// The type.
        name: String,
    },
}

impl DecodeError {
    /// Returns the answer of rnicd.
    pub fn answer(&self) -> FromDaemon {
        let (Self::Malformed { id, .. } | Self::UnknownType { id, .. }) = *self;
        let answer = Answer::Refused(Refused::new(Reason::Malformed, self.to_string()));
        FromDaemon::Answer(Reply { id, answer })
    }
}

/// What a client sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Repeated in the reply. Clients count from 1: rnicd replies to 0 if it cannot read the `id`.
    pub id: u64,
    /// What is asked for.
    #[serde(flatten)]
    pub ask: Ask,
}

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Ask {
    /// The first message of a connection, answered by `Welcome`.
    Hello {
        /// The newest version of the protocol that the client knows.
        version: u32,
        /// The name of the client's program, for the log: at most 256 octets, no control
        /// characters.
        program: String,
    },
    /// A port of a device, answered by `Port`.
    OpenPort {
        /// The device.
        netdev: String,
        /// Frames that circulate for receiving at first, as in `InterfaceConfig` of rnic-xdp.
        rx_frames: u32,
        /// Frames to send, as in `InterfaceConfig` of rnic-xdp.
        tx_frames: u32,
        /// Entries of the transmit ring.
        tx_ring: u32,
        /// A hardware queue of the device, which the port then is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        queue: Option<u32>,
    },
    /// A port that the client has from before the connection was lost, answered by `Adopted`.
    Adopt {
        /// Its number.
        port: u32,
        /// What was granted with it.
        token: Token,
        /// What the client still has of what it leased; rnicd ends the other leases of the port.
        #[serde(default)]
        leases: Vec<SocketAddr>,
    },
    /// A TCP port to listen on, answered by `Lease`.
    Listen {
        /// The port that will listen.
        port: u32,
        /// Where; TCP port 0 lets rnicd choose.
        local: SocketAddr,
        /// The peers that may connect: a list of prefixes, or null (the default) for all.
        #[serde(default, with = "peers")]
        peers: Peers,
    },
    /// A TCP port to connect from, answered by `Lease`.
    Connect {
        /// The port that will connect.
        port: u32,
        /// The peer.
        remote: SocketAddr,
        /// From where; without it, rnicd chooses the address that routes to the peer, and a TCP
        /// port.
        local: Option<SocketAddr>,
    },
    /// Tell the port mappers of peers that a listener is at another TCP port than at that of its
    /// number, which a TCP socket of the same user may have. Answered by `Done`.
    Map {
        /// The port that listens.
        port: u32,
        /// Where it listens: its lease.
        local: SocketAddr,
        /// The address and number by which peers know it.
        wanted: SocketAddr,
    },
    /// Tell them no more of a listener. Its lease stays. Answered only if it is refused.
    Unmap {
        /// The port that listened.
        port: u32,
        /// Its lease.
        local: SocketAddr,
    },
    /// Where the listener at an address really is, which the port mapper of its host knows. Answered
    /// by `Located`: at once, with the address itself, unless the next hop to the host is known.
    Locate {
        /// The port that will connect.
        port: u32,
        /// The listener.
        remote: SocketAddr,
        /// From where the port will connect; without it, rnicd chooses the address.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        local: Option<SocketAddr>,
    },
    /// The end of a lease, answered by `Released`.
    Release {
        /// The port that has it.
        port: u32,
        /// What was leased.
        local: SocketAddr,
    },
    /// Whether the host's policies let a peer connect to what is leased, as they are now. Answered
    /// by `Done`, or refused with [`Reason::Protected`].
    Admit {
        /// The port that listens.
        port: u32,
        /// Where the peer has connected to.
        local: SocketAddr,
        /// The peer.
        remote: SocketAddr,
    },
    /// Report the next hop to a destination and each of its changes, as `NextHop`. Answered only if
    /// it is refused.
    Follow {
        /// The port that sends there.
        port: u32,
        /// The address from which the port sends; without it, whichever the route prefers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        source: Option<IpAddr>,
        /// The destination.
        destination: IpAddr,
    },
    /// Report no more of the next hop to a destination. Answered only if it is refused.
    Forget {
        /// The port that sent there.
        port: u32,
        /// The address from which the port sends; without it, whichever the route prefers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        source: Option<IpAddr>,
        /// The destination.
        destination: IpAddr,
    },
    /// Sequence numbers to send with by an association of the port, answered by `Numbers`.
    TakeNumbers {
        /// The port.
        port: u32,
        /// The association's Security Parameters Index.
        spi: u32,
        /// Its receiver.
        destination: IpAddr,
    },
    /// Ask the host's key managers for an association that a policy demands for what the port
    /// sends. The port follows the next hop. Answered only if it is refused.
    Acquire {
        /// The port.
        port: u32,
        /// In the name of which the policy demands it (reqid).
        request: u32,
        /// The address from which it sends.
        local: IpAddr,
        /// The peer.
        remote: IpAddr,
    },
    /// What is there, answered by `Daemon`, `Devices`, `Ports`, `Leases`, `Associations`, `Users` or
    /// `Usage`. Root sees all; other users see their own ports and leases.
    Show(Show),
    /// Root only: the end of a port, answered by `Done` once nothing is sent or received there any
    /// more.
    EndPort {
        /// The port.
        port: u32,
    },
    /// Root only: the end of a lease, answered by `Done` once nothing is steered there and nothing
    /// is sent from there any more.
    Revoke {
        /// The port that has it.
        port: u32,
        /// What was leased.
        local: SocketAddr,
    },
    /// Root only: report each `Event` from now on, answered by `Done`.
    Monitor,
    /// Root only: share a device, answered by `Done` once it is shared.
    AddDevice {
        /// The device.
        netdev: String,
        /// How.
        #[serde(default)]
        changes: Vec<Change>,
    },
    /// Root only: share a device no more, answered by `Done`.
    RemoveDevice {
        /// The device.
        netdev: String,
        /// Whether its ports end; without it, the request is refused while there are any.
        #[serde(default)]
        force: bool,
    },
    /// Root only: change how a device is shared, answered by `Done`.
    SetDevice {
        /// The device.
        netdev: String,
        /// What to change.
        changes: Vec<Change>,
        /// Whether its ports end if the change needs it; without it, such a request is refused
        /// while there are any.
        #[serde(default)]
        force: bool,
    },
    /// Root only: change what a user may have, answered by `Done`.
    SetUser {
        /// Its name or number.
        user: String,
        /// What to change.
        changes: Vec<Change>,
    },
    /// Root only: take back all that `SetUser` has changed for a user, answered by `Done`.
    ResetUser {
        /// Its name or number.
        user: String,
    },
    /// What the client of a port says of itself, answered by `Inspecting`. Root may ask of all
    /// ports, other users of their own.
    Inspect {
        /// The port.
        port: u32,
        /// What is wanted, in words that the client knows and rnicd need not: at most 32 small
        /// letters and underscores.
        what: String,
        /// How long the answer is waited for, in milliseconds: a minute at most.
        within: u32,
    },
}

/// A change of a setting, by its key in the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The key.
    pub key: String,
    /// The value in words, lists with commas between their elements; without it, what the
    /// configuration says.
    #[serde(default)]
    pub value: Option<String>,
}

/// What to show: the objects behind the one that is named, which was the last of the page before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Show {
    /// rnicd itself.
    Daemon,
    /// Devices, by name.
    Devices {
        /// The name of a device.
        #[serde(default)]
        after: Option<String>,
    },
    /// Ports, by number.
    Ports {
        /// The number of a port.
        #[serde(default)]
        after: Option<u32>,
    },
    /// Leases, by the number of their port and by their address.
    Leases {
        /// The port and the address of a lease.
        #[serde(default)]
        after: Option<(u32, SocketAddr)>,
    },
    /// The host's associations whose keys ports have, by port, receiver and SPI. For root and
    /// observers.
    Associations {
        /// The port, the receiver and the SPI of an association.
        #[serde(default)]
        after: Option<(u32, IpAddr, u32)>,
    },
    /// Users that have ports or are connected, by number.
    Users {
        /// The number of a user.
        #[serde(default)]
        after: Option<u32>,
    },
    /// What users have sent and received, by device and user; those who are not counted apart come
    /// first.
    Usage {
        /// The device and the user.
        #[serde(default)]
        after: Option<(String, Option<u32>)>,
    },
}

/// What rnicd sends: an answer, or a notice, which has no `id`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum FromDaemon {
    /// The answer to a request.
    Answer(Reply),
    /// What nobody asked for.
    Notice(Notice),
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// That of the request.
    pub id: u64,
    /// The answer.
    #[serde(flatten)]
    pub answer: Answer,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Answer {
    /// To `Hello`.
    Welcome {
        /// The version that is spoken from here on: the newest that both know.
        version: u32,
        /// The devices of which this client may have ports.
        devices: Vec<String>,
        /// Those of which it may have ports, and gets none now.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        withheld: Vec<Withheld>,
    },
    /// To `OpenPort`, with two descriptors: the AF_XDP socket, which is bound, and the memfd of its
    /// UMEM.
    Port(Grant),
    /// To `Adopt`.
    Adopted,
    /// To `Listen` and `Connect`. The TCP socket that reserves `local` stays with rnicd, longer
    /// than the lease lasts.
    Lease {
        /// The local address and TCP port, by which the lease is known from here on.
        local: SocketAddr,
        /// Nothing may be sent from there unprotected, and nothing that is not protected arrives.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        protected: bool,
    },
    /// To `TakeNumbers`: from the first one up to another that is not among them.
    Numbers {
        /// The first one.
        first: u64,
        /// Behind the last one.
        end: u64,
    },
    /// To `Locate`.
    Located {
        /// Where to connect to: what was asked for, unless a port mapper says otherwise.
        remote: SocketAddr,
    },
    /// To `Release`.
    Released,
    /// To `Show` of devices.
    Devices(Page<DeviceState>),
    /// To `Show` of ports.
    Ports(Page<PortState>),
    /// To `Show` of leases.
    Leases(Page<LeaseState>),
    /// To `Show` of associations.
    Associations(Page<AssociationState>),
    /// To `Show` of users.
    Users(Page<UserState>),
    /// To `Show` of what users have sent and received.
    Usage(Page<UsageState>),
    /// To `Show` of rnicd itself.
    Daemon(DaemonState),
    /// To `Inspect`, with one descriptor: a pipe from which what the client says is read, until its
    /// end. rnicd has not seen it.
    Inspecting,
    /// To `Admit`, `Map`, `EndPort`, `Revoke`, `Monitor`, and whatever changes a setting.
    Done,
    /// To anything.
    Refused(Refused),
}

/// What rnicd reports without being asked for it each time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Notice {
    /// The next hop to a destination that a port follows.
    NextHop {
        /// The port.
        port: u32,
        /// The address from which the port sends; without it, whichever the route prefers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        source: Option<IpAddr>,
        /// The destination.
        destination: IpAddr,
        /// The next hop; without it, the destination is unreachable.
        hop: Option<Hop>,
    },
    /// Whether the device of a port can send.
    Link {
        /// The port.
        port: u32,
        /// Whether it can.
        state: LinkState,
    },
    /// The local addresses whose frames arrive without a tag.
    Untagged {
        /// The port.
        port: u32,
        /// All of them.
        addresses: Vec<UntaggedAddress>,
    },
    /// A router reported that a segment was too big.
    TooBig {
        /// The port that sent it.
        port: u32,
        /// The segment.
        segment: BigSegment,
    },
    /// A router reported that a packet was too big that an association has sealed.
    ProtectedTooBig {
        /// The port that has the association.
        port: u32,
        /// The packet.
        packet: BigPacket,
    },
    /// What protects what a port sends and receives. It replaces what was said before.
    Protection {
        /// The port.
        port: u32,
        /// All of it, or a part.
        protection: Protection,
        /// The next notices have other parts, up to one without this.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        more: bool,
    },
    /// A lease has ended: nothing more arrives there, and nothing is sent from there.
    Revoked {
        /// The port that had it.
        port: u32,
        /// What was leased.
        local: SocketAddr,
    },
    /// An administrator, or the user, asks what the client says of itself; with one descriptor: a
    /// pipe to write it to. It is closed without a word if the client has none to say.
    Describe {
        /// The port.
        port: u32,
        /// What is wanted.
        what: String,
        /// How long the answer is waited for, in milliseconds.
        within: u32,
    },
    /// Something has happened, for those that asked for `Monitor`.
    Event {
        /// When, in milliseconds since 1970-01-01 UTC.
        at: u64,
        /// What.
        #[serde(flatten)]
        event: Event,
    },
}
