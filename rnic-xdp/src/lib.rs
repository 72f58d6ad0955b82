//! The device: XDP program, AF_XDP rings, worker loop, routes and neighbours.

mod automatic_ports;
mod bell;
pub mod capture;
mod clock;
mod domains;
mod drivers;
mod error;
pub mod facts;
mod icmp;
mod lingering;
mod locals;
pub mod manager;
mod netlink;
mod placement;
mod policies;
mod port;
mod process;
mod reserve;
mod routes;
pub mod sharing;
pub mod steering;
pub mod testing;
mod tx_checksum;
mod vlans;
mod worker;

pub use bell::{Bell, bell};
pub use error::OpenError;
pub use netlink::{NetlinkError, device_name};
pub use port::numa::cpus_near;
pub use port::{
    BusyPoll, Frame, GrantedPort, MadePort, MadeQueue, PortConfig, PortReport, PortShape,
    PortStatistics, QueueStatistics, RxPort, RxSide, TxSide, XdpPort, ZeroCopy, ZeroCopyChoice,
};
pub use reserve::XdpNet;
pub use rnic_manager::{Private, take_private};
pub use routes::LinkState;
pub use tx_checksum::{TxChecksum, TxOffload};
pub use vlans::Untagged;
pub use worker::Worker;

/// The steering program, compiled from `ebpf/steer.bpf.c`, as libbpf-cargo generates it.
#[allow(unsafe_code, missing_docs, unreachable_pub, clippy::all)]
#[allow(clippy::undocumented_unsafe_blocks)]
pub mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/steer.skel.rs"));
}

/// The program that says what a client may send, compiled from `ebpf/police.bpf.c`.
#[allow(unsafe_code, missing_docs, unreachable_pub, clippy::all)]
#[allow(clippy::undocumented_unsafe_blocks)]
pub mod police_skeleton {
    include!(concat!(env!("OUT_DIR"), "/police.skel.rs"));
}

/// The program on a client's end, compiled from `ebpf/port.bpf.c`.
#[allow(unsafe_code, missing_docs, unreachable_pub, clippy::all)]
#[allow(clippy::undocumented_unsafe_blocks)]
pub mod port_skeleton {
    include!(concat!(env!("OUT_DIR"), "/port.skel.rs"));
}

/// The programs that show what AF_XDP sockets send, compiled from `ebpf/capture.bpf.c`.
#[allow(unsafe_code, missing_docs, unreachable_pub, clippy::all)]
#[allow(clippy::undocumented_unsafe_blocks)]
pub mod capture_skeleton {
    include!(concat!(env!("OUT_DIR"), "/capture.skel.rs"));
}
