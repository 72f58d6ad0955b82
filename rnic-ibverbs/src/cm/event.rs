//! What happens to connections.
#![allow(unsafe_code, reason = "C ABI: entry points")]

use std::ffi::{CStr, c_char};

use rnic_verbs::ConnectRequest;

use crate::cm::sidr::Peer;

/// What has happened.
#[derive(Debug, Default)]
pub(super) struct EventData {
    /// RDMA_CM_EVENT_...
    pub(super) event: u32,
    /// 0, or an errno with a minus.
    pub(super) status: i32,
    pub(super) private_data: Vec<u8>,
    /// Reads that the peer wants to have outstanding.
    pub(super) responder_resources: u16,
    /// Reads that the peer accepts at once.
    pub(super) initiator_depth: u16,
    /// The request of a peer.
    pub(super) request: Option<ConnectRequest>,
    /// Of an id for datagrams: whom it may send to, if anybody.
    pub(super) peer: Option<Peer>,
    /// The number of an event that the program made itself.
    pub(super) arg: Option<u64>,
}

impl EventData {
    pub(super) fn new(event: u32, status: i32) -> Self {
        Self {
            event,
            status,
            ..Self::default()
        }
    }
}

/// The names of events, by their numbers.
const NAMES: [&CStr; 18] = [
    c"RDMA_CM_EVENT_ADDR_RESOLVED",
    c"RDMA_CM_EVENT_ADDR_ERROR",
    c"RDMA_CM_EVENT_ROUTE_RESOLVED",
    c"RDMA_CM_EVENT_ROUTE_ERROR",
    c"RDMA_CM_EVENT_CONNECT_REQUEST",
    c"RDMA_CM_EVENT_CONNECT_RESPONSE",
    c"RDMA_CM_EVENT_CONNECT_ERROR",
    c"RDMA_CM_EVENT_UNREACHABLE",
    c"RDMA_CM_EVENT_REJECTED",
    c"RDMA_CM_EVENT_ESTABLISHED",
    c"RDMA_CM_EVENT_DISCONNECTED",
    c"RDMA_CM_EVENT_DEVICE_REMOVAL",
    c"RDMA_CM_EVENT_MULTICAST_JOIN",
    c"RDMA_CM_EVENT_MULTICAST_ERROR",
    c"RDMA_CM_EVENT_ADDR_CHANGE",
    c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
    c"RDMA_CM_EVENT_ADDRINFO_RESOLVED",
    c"RDMA_CM_EVENT_ADDRINFO_ERROR",
];

#[unsafe(export_name = "rnic_cm_rdma_event_str")]
pub(crate) extern "C" fn rdma_event_str(event: u32) -> *const c_char {
    let name = NAMES.get(event as usize);
    name.unwrap_or(&c"UNKNOWN EVENT").as_ptr()
}
