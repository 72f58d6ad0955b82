//! The objects of a device in the form in which its process describes them to `rnic-ctl`: a JSON
//! object on each line. Either side may be of another version: a field that is missing has a
//! default, and one that is not known is passed over.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

mod tcp;

pub use tcp::TcpResource;

/// What a process says of its device. The last line is [`End`](Self::End): without it, something is
/// missing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Resource {
    /// The device, of which rnicd knows nothing.
    Device(DeviceResource),
    /// How many objects there are.
    Summary(Summary),
    /// A protection domain.
    Pd(PdResource),
    /// A memory region or window.
    Mr(MrResource),
    /// A completion queue.
    Cq(CqResource),
    /// A queue pair.
    Qp(QpResource),
    /// A shared receive queue.
    Srq(SrqResource),
    /// A listener.
    Listener(ListenerResource),
    /// A connection.
    Connection(Box<ConnectionResource>),
    /// Engines that nobody drives now: nothing is known of their connections.
    Idle {
        /// How many.
        engines: u32,
    },
    /// It does not know what was asked for.
    Unknown,
    /// All was said.
    End,
    /// Something that this version does not know.
    #[serde(other)]
    Newer,
}

/// A device that is no port of rnicd.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceResource {
    /// Its interface: `any` for all of the host.
    pub netdev: String,
    /// What carries its connections: `tcp` or `sctp` sockets of the kernel, or `xdp`.
    pub via: String,
    /// The name of the program.
    pub program: String,
}

/// How many objects there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Summary {
    /// Protection domains.
    pub pd: u32,
    /// Completion queues.
    pub cq: u32,
    /// Queue pairs.
    pub qp: u32,
    /// Shared receive queues.
    pub srq: u32,
    /// Memory regions and windows.
    pub mr: u32,
    /// Listeners.
    pub listener: u32,
    /// Queue pairs that are connected. A version that did not say it has none.
    pub connected: Option<u32>,
}

/// A protection domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PdResource {
    /// Its number.
    pub pdn: u32,
    /// Queue pairs, shared receive queues and registrations that belong to it.
    pub users: u32,
}

/// A memory region or window.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MrResource {
    /// Its number: the low bits of the index of its STag. The rest, which peers have to guess, is
    /// not said.
    pub mrn: u32,
    /// `region`, `fast` (for fast registrations) or `window`.
    pub kind: String,
    /// Its protection domain.
    pub pdn: u32,
    /// The octets that it opens, while it is valid.
    pub len: Option<u64>,
    /// What may be done to them.
    pub access: Option<String>,
    /// The pages of the memory, in octets. A window has none of its own.
    pub page_size: Option<u64>,
}

/// A completion queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CqResource {
    /// Its number.
    pub cqn: u32,
    /// Completions that have not been polled.
    pub used: u32,
    /// Completions that it has room for.
    pub depth: u32,
    /// Queue pairs that complete there.
    pub users: u32,
}

/// A queue pair.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct QpResource {
    /// Its number.
    pub qpn: u32,
    /// Its state, as ibverbs calls it.
    pub state: String,
    /// The local address of its connection, or of the last one.
    pub local: Option<SocketAddr>,
    /// The peer's.
    pub remote: Option<SocketAddr>,
    /// Its protection domain.
    pub pdn: u32,
    /// The completion queue of its send queue.
    pub scqn: u32,
    /// The completion queue of its receive queue.
    pub rcqn: u32,
    /// The shared receive queue that it takes its receives from.
    pub srqn: Option<u32>,
    /// Requests in the send queue that the engine has not taken.
    pub sq_used: u32,
    /// Requests that the send queue has room for.
    pub sq_depth: u32,
    /// Requests in its own receive queue.
    pub rq_used: Option<u32>,
    /// Requests that its own receive queue has room for.
    pub rq_depth: Option<u32>,
    /// Reads of the peer that this side takes at once, once connected.
    pub ird: Option<u16>,
    /// Reads that this side may have outstanding, once connected.
    pub ord: Option<u16>,
}

/// A shared receive queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SrqResource {
    /// Its number.
    pub srqn: u32,
    /// Its protection domain.
    pub pdn: u32,
    /// Requests that are posted.
    pub used: u32,
    /// Requests that it has room for.
    pub depth: u32,
    /// Queue pairs that take their receives from it.
    pub users: u32,
}

/// A listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenerResource {
    /// Where it listens.
    pub local: SocketAddr,
    /// Connection requests that wait for the application.
    #[serde(default)]
    pub waiting: u32,
}

/// A connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConnectionResource {
    /// The local address.
    pub local: SocketAddr,
    /// The peer's.
    pub remote: SocketAddr,
    /// TCP's state.
    #[serde(default)]
    pub state: String,
    /// The phase of the protocols above TCP.
    #[serde(default)]
    pub phase: String,
    /// The queue pair, once there is one.
    #[serde(default)]
    pub qpn: Option<u32>,
    /// The worker that has it, where the device has several.
    #[serde(default)]
    pub worker: Option<u32>,
    /// What was agreed on in MPA start-up, while FPDUs flow.
    #[serde(default)]
    pub mpa: Option<MpaResource>,
    /// What protects it by ESP, if anything of rnic does or has to.
    #[serde(default)]
    pub protection: Option<ProtectionResource>,
    /// TCP.
    #[serde(default)]
    pub tcp: TcpResource,
}

/// What the ends of a connection have agreed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MpaResource {
    /// The revision of MPA.
    pub mpa: u8,
    /// Whether FPDUs have CRCs.
    pub crc: bool,
    /// Whether this side sends markers.
    pub markers: bool,
    /// Whether the peer sends markers.
    pub peer_markers: bool,
    /// Reads of the peer that this side takes at once.
    pub ird: Option<u16>,
    /// Reads that this side may have outstanding.
    pub ord: Option<u16>,
}

/// What protects a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProtectionResource {
    /// `esp`; `one-way`: one direction goes as it is; `missing`: there is no association now, and
    /// nothing passes; `dropped`: nothing passes by the host's policies.
    pub state: String,
    /// Whether it is protected or not at all, whatever the policies say.
    pub required: bool,
    /// What is protected of a packet: `transport` or `tunnel`.
    pub mode: Option<String>,
    /// By what, as the kernel calls it.
    pub algorithm: Option<String>,
    /// The Security Parameters Index of what is sent.
    pub spi_out: Option<u32>,
    /// Those of what may arrive: two for a while when keys are changed.
    pub spi_in: Vec<u32>,
}
