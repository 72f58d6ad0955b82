//! rdma_cm: connections for programs that know addresses rather than devices.
//!
//! What the kernel does for others is done here: ids go through its states, and their events are
//! those of an iWARP device there. The manual pages of librdmacm describe the functions.

// From the ground up; each file imports only from those below it: sidr < claims, event, mapping,
// verbs < address < attempt < id < given, next_hop, route < outcome, channel < ends, request < deliver,
// table < addrinfo, children, devices, lifetime, options, qp < resolve < listen, connect < endpoint
mod address;
mod addrinfo;
mod attempt;
mod channel;
mod children;
mod claims;
mod connect;
mod deliver;
mod devices;
mod endpoint;
mod ends;
mod event;
mod given;
mod id;
mod lifetime;
mod listen;
mod mapping;
mod next_hop;
mod options;
mod outcome;
mod qp;
mod request;
mod resolve;
mod route;
mod sidr;
mod table;
mod verbs;

// What rsockets stand on.
pub(crate) use channel::{rdma_create_event_channel, rdma_destroy_event_channel};
pub(crate) use connect::{rdma_accept, rdma_connect, rdma_disconnect, rdma_reject};
pub(crate) use deliver::{rdma_ack_cm_event, rdma_get_cm_event};
pub(crate) use lifetime::{rdma_create_id, rdma_destroy_id, rdma_migrate_id};
pub(crate) use listen::rdma_listen;
pub(crate) use options::rdma_set_option;
pub(crate) use qp::{rdma_create_qp, rdma_destroy_qp};
pub(crate) use resolve::{rdma_bind_addr, rdma_resolve_addr, rdma_resolve_route};
