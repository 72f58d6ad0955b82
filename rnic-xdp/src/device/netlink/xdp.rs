//! Attaches XDP programs over netlink. Such a program stays for as long as its device, whatever
//! becomes of the process.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::error::NetlinkError;
use super::link::{IFLA_XDP, InterfaceInfo};
use super::message::Builder;
use super::socket::{ReplyMode, RouteSocket};

const SET_LINK: u16 = 19;
const IFLA_XDP_FD: u16 = 1;
const IFLA_XDP_FLAGS: u16 = 3;
const IFLA_XDP_EXPECTED_FD: u16 = 8;

const UPDATE_IF_NOEXIST: u32 = 0x1;
const STACK: u32 = 0x2;
const DRIVER: u32 = 0x4;
const REPLACE: u32 = 0x10;

/// Where a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum XdpMode {
    /// In the driver, or not at all.
    Driver,
    /// In the kernel's stack.
    Stack,
}

/// Attaches a program to a device of this network namespace. With an expected program that one is
/// replaced, without a gap, and without one the device must have none. Without a program the
/// expected one is detached.
pub(crate) fn set_xdp(
    index: u32,
    mode: XdpMode,
    program: Option<BorrowedFd<'_>>,
    expected: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let number = |fd: Option<BorrowedFd<'_>>| fd.map_or(-1, |fd| fd.as_raw_fd()).to_ne_bytes();
    let mode = match mode {
        XdpMode::Driver => DRIVER,
        XdpMode::Stack => STACK,
    };
    let flags = match expected {
        Some(_) => mode | REPLACE,
        None => mode | UPDATE_IF_NOEXIST,
    };
    let (program, replaced, flags) = (number(program), number(expected), flags.to_ne_bytes());
    let mut inner: Vec<(u16, &[u8])> = vec![(IFLA_XDP_FD, &program), (IFLA_XDP_FLAGS, &flags)];
    if expected.is_some() {
        inner.push((IFLA_XDP_EXPECTED_FD, &replaced));
    }
    let info = InterfaceInfo::of(index);
    let mut socket = RouteSocket::open().map_err(NetlinkError::into_io)?;
    let reply = ReplyMode::Acknowledgement(0);
    let done = socket.0.request("attach an XDP program", reply, |flags| {
        Builder::new(SET_LINK, flags, &info).nested(IFLA_XDP, &inner)
    });
    done.map(drop).map_err(NetlinkError::into_io)
}
