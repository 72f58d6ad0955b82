//! Follows the kernel's interfaces: changes of a link and of addresses become asynchronous events
//! of the contexts.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};
use rnic_verbs::rdma::Netdev;

use crate::abi::*;
use crate::adapter::{Adapter, adapters};
use crate::asynchronous::of_port;
use crate::dispatch::spawn;
use crate::errno::Errno;

/// RTMGRP_LINK, RTMGRP_IPV4_IFADDR and RTMGRP_IPV6_IFADDR of linux/rtnetlink.h.
const GROUPS: u32 = 0x1 | 0x10 | 0x100;

/// Starts to follow the interfaces, unless this process does.
pub(crate) fn start() {
    static FOLLOWS: AtomicU32 = AtomicU32::new(0);
    let process = std::process::id();
    if FOLLOWS.swap(process, Ordering::AcqRel) == process {
        return;
    }
    // Without it, events of the port do not come: queries say how it is all the same.
    let Ok(socket) = open() else { return };
    let known: Vec<_> = adapters().iter().map(|a| (a, a.interface())).collect();
    let _ = spawn("rnic-ports", move || follow(&socket, known));
}

fn open() -> Result<OwnedFd, Errno> {
    let socket = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkRoute,
    )?;
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, GROUPS))?;
    Ok(socket)
}

/// Compares each interface with how it was, each time when the kernel tells of any change.
fn follow(socket: &OwnedFd, mut known: Vec<(&'static Adapter, Netdev)>) {
    let mut message = [0; 4096];
    loop {
        match recv(socket.as_raw_fd(), &mut message, MsgFlags::empty()) {
            // Messages that did not fit the socket's buffer are made up for: all is read anew.
            Ok(_) | Err(Errno::ENOBUFS | Errno::EINTR) => {}
            Err(_) => return,
        }
        for (adapter, before) in &mut known {
            let now = adapter.interface();
            if now.is_active != before.is_active {
                let event = match now.is_active {
                    true => IBV_EVENT_PORT_ACTIVE,
                    false => IBV_EVENT_PORT_ERR,
                };
                of_port(adapter, event);
            }
            if now.addresses != before.addresses {
                of_port(adapter, IBV_EVENT_GID_CHANGE);
            }
            *before = now;
        }
    }
}
