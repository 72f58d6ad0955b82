//! Makes a port for another process: a veth pair whose client end carries an AF_XDP socket.
//!
//! The client end lies in a network namespace without a name, which lives as long as a process has
//! the socket. Then the kernel takes socket, namespace and veth pair away, whoever else is still
//! there.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sched::{CloneFlags, unshare};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;

use super::metadata;
use super::shape::PortShape;
use super::socket::allow_in_flight;
use super::socket_spec::SocketSpec;
use super::umem::{Umem, huge_pages_are_2_mib};
use super::zero_copy::ZeroCopy;
use crate::device::error::OpenError;
use crate::device::netlink::{RouteSocket, link_by_name, make_veth, remove_link, start_silent};

/// The name of the client end in its own network namespace.
const CLIENT_END: &str = "port";

/// A port that was made for another process, which gets the socket and the memory. It exists as
/// long as somebody has the socket.
#[derive(Debug)]
pub struct MadePort {
    /// The index of the host end: frames that are redirected to it reach the socket.
    pub host_end: u32,
    /// The AF_XDP socket, bound.
    pub socket: OwnedFd,
    /// Its UMEM: a memfd that cannot change its length.
    pub umem: OwnedFd,
    /// The UMEM lies on hugepages.
    pub huge_pages: bool,
}

impl MadePort {
    /// Makes a port whose host end gets this name, in the network namespace of this thread.
    /// `attach` is called with the index of the client end and with the socket, on a thread in the
    /// namespace of the client end; it attaches what brings frames into the socket.
    pub fn make(
        host_end: &str,
        mtu: u32,
        shape: &PortShape,
        attach: impl FnOnce(u32, BorrowedFd<'_>) -> Result<(), OpenError> + Send,
    ) -> Result<Self, OpenError> {
        let memory = Memory::make(shape)?;
        let mut here = RouteSocket::open()?;
        let make = || make_in_new_namespace(&mut here, host_end, mtu, &memory, shape, attach);
        let (host_end, socket) = on_own_thread(make)?;
        Ok(Self {
            host_end,
            socket,
            umem: memory.file,
            huge_pages: memory.huge,
        })
    }
}

/// Runs a function on a thread of its own, which may change its network namespace.
fn on_own_thread<T: Send>(
    body: impl FnOnce() -> Result<T, OpenError> + Send,
) -> Result<T, OpenError> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().spawn_scoped(scope, body);
        let thread = thread.map_err(system("start a thread"))?;
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The memory of a UMEM, which another process maps as well.
pub(super) struct Memory {
    pub(super) file: OwnedFd,
    pub(super) umem: Umem,
    pub(super) huge: bool,
}

impl Memory {
    /// Makes the memory, on hugepages if there are enough.
    pub(super) fn make(shape: &PortShape) -> Result<Self, OpenError> {
        if huge_pages_are_2_mib()
            && let Ok(made) = Self::on(shape, MFdFlags::MFD_HUGETLB | MFdFlags::MFD_HUGE_2MB)
        {
            return Ok(made);
        }
        let octets = shape.octets();
        let made = Self::on(shape, MFdFlags::empty());
        made.map_err(|source| OpenError::Memory { octets, source })
    }

    fn on(shape: &PortShape, pages: MFdFlags) -> io::Result<Self> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING | pages;
        let file = memfd_create("rnic-umem", flags)?;
        ftruncate(&file, shape.octets() as i64)?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
        let huge = !pages.is_empty();
        let umem = Umem::map(&file, shape.octets(), huge)?;
        Ok(Self { file, umem, huge })
    }
}

/// Makes veth pair and socket on a thread that moves to a new network namespace for that. Returns
/// the index of the host end, and the socket.
fn make_in_new_namespace(
    here: &mut RouteSocket,
    host_end: &str,
    mtu: u32,
    memory: &Memory,
    shape: &PortShape,
    attach: impl FnOnce(u32, BorrowedFd<'_>) -> Result<(), OpenError>,
) -> Result<(u32, OwnedFd), OpenError> {
    unshare(CloneFlags::CLONE_NEWNET)
        .map_err(|errno| system("make a network namespace")(errno.into()))?;
    let namespace = File::open("/proc/thread-self/ns/net");
    let namespace = namespace.map_err(system("open a network namespace"))?;
    let mut there = RouteSocket::open()?;
    make_veth(here, host_end, (CLIENT_END, namespace.as_fd()), mtu)?;
    let made = || {
        let outer = start(here, host_end)?;
        let inner = start(&mut there, CLIENT_END)?;
        let socket = bound_socket(memory, shape)?;
        attach(inner, socket.as_fd())?;
        Ok((outer, socket))
    };
    let made = made();
    if made.is_err() {
        // Without a socket the namespace ends with this thread; the veth pair may outlive it a
        // little.
        remove(here, host_end);
    }
    made
}

/// Starts an end of a veth pair. Returns its index.
fn start(socket: &mut RouteSocket, name: &str) -> Result<u32, OpenError> {
    let link = link_by_name(socket, name)?;
    let link = link.ok_or_else(|| OpenError::NoSuchDevice {
        netdev: name.to_string(),
    })?;
    start_silent(socket, link.index)?;
    Ok(link.index)
}

/// Opens a socket on the client end, in the network namespace of this thread.
fn bound_socket(memory: &Memory, shape: &PortShape) -> Result<OwnedFd, OpenError> {
    let copies = ZeroCopy::Off("a veth always copies".into());
    let wanted = SocketSpec::of_port(CLIENT_END, 0, copies, shape);
    let socket = metadata::register(&memory.umem, &wanted, None);
    let socket = socket.map_err(|source| wanted.error(source))?;
    let bound = metadata::bind(&socket, &wanted, wanted.flags(&wanted.zero_copy).bits());
    bound.map_err(|source| wanted.error(source))?;
    allow_in_flight(socket.as_fd(), shape.octets());
    Ok(socket)
}

/// Removes a veth pair by the name of its host end, if there is one.
fn remove(here: &mut RouteSocket, host_end: &str) {
    if let Ok(Some(link)) = link_by_name(here, host_end) {
        let _ = remove_link(here, link.index);
    }
}

fn system(doing: &'static str) -> impl Fn(io::Error) -> OpenError {
    move |source| OpenError::System { doing, source }
}
