//! rdma_cm: connections for programs that know addresses rather than devices.
//!
//! What the kernel does for others is done here: ids go through its states, and their events are those of an iWARP device there. The
//! manual pages of librdmacm describe the functions.

// From the ground up; each file imports only from those below it.
mod address;
mod event;
mod id;
mod given;
mod verbs;
mod outcome;
mod channel;
mod request;
mod deliver;
mod table;
mod addrinfo;
mod devices;
mod lifetime;
mod options;
mod qp;
mod resolve;
mod listen;
mod connect;
mod endpoint;
