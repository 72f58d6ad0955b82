//! Sockets whose frames can have metadata: the device, or the kernel, completes their TCP
//! checksums.
//!
//! The room for metadata is requested when the UMEM is registered. libxdp has no field for it
//! (`xsk_umem_config`), and so neither has xsk-rs. Such a socket is opened here, call by call; so
//! is one that is made for another process.
//!
//! The metadata of a frame are in front of it, in the room that the kernel keeps free there. The
//! kernel requires that room in front of every descriptor, also where the second chunk of a frame
//! begins: so this is for frames of one chunk.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::libc::{self, c_int, socklen_t};
use nix::net::if_::if_nametoindex;

use super::socket_spec::{Completer, SocketSpec};
use super::umem::Umem;

/// Octets of metadata: flags, two offsets, and later additions (`struct xsk_tx_metadata`).
pub(super) const LEN: usize = 24;

/// The offset of the checksum in a TCP header.
const CHECKSUM_IN_TCP: u16 = 16;

/// Returns the metadata that request the checksum of a TCP header at `tcp_at` of the frame.
pub(super) fn checksum_at(tcp_at: usize) -> [u8; LEN] {
    let mut metadata = [0; LEN];
    let flags = u64::from(libc::XDP_TXMD_FLAGS_CHECKSUM);
    metadata[..8].copy_from_slice(&flags.to_ne_bytes());
    metadata[8..10].copy_from_slice(&(tcp_at as u16).to_ne_bytes());
    metadata[10..12].copy_from_slice(&CHECKSUM_IN_TCP.to_ne_bytes());
    metadata
}

/// Opens a socket, registers the UMEM, with room for metadata if there is a completer, and sets the
/// rings up. [`bind`] comes next.
pub(super) fn register(
    umem: &Umem,
    wanted: &SocketSpec<'_>,
    completer: Option<Completer>,
) -> io::Result<OwnedFd> {
    let socket = open()?;
    let (start, octets) = umem.area();
    let registration = libc::xdp_umem_reg {
        addr: start as u64,
        len: octets as u64,
        chunk_size: wanted.chunk,
        headroom: 0,
        flags: completer.map_or(0, Completer::registration_flags),
        tx_metadata_len: completer.map_or(0, |_| LEN as u32),
    };
    set(&socket, libc::XDP_UMEM_REG, &registration)?;
    set(&socket, libc::XDP_UMEM_FILL_RING, &wanted.rings.fill)?;
    let completion = wanted.rings.completion;
    set(&socket, libc::XDP_UMEM_COMPLETION_RING, &completion)?;
    set(&socket, libc::XDP_RX_RING, &wanted.rx_ring)?;
    set(&socket, libc::XDP_TX_RING, &wanted.tx_ring)?;
    Ok(socket)
}

/// Opens a socket that has a receive ring and no UMEM, so that maps take it, and nothing arrives.
pub(crate) fn unbound_socket() -> io::Result<OwnedFd> {
    let socket = open()?;
    set(&socket, libc::XDP_RX_RING, &1u32)?;
    Ok(socket)
}

fn open() -> io::Result<OwnedFd> {
    // SAFETY: no memory is involved.
    let socket = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was just opened, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(socket) })
}

/// Binds a socket to its queue. If that fails, it may be tried again.
pub(super) fn bind(socket: &OwnedFd, wanted: &SocketSpec<'_>, flags: u16) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: flags,
        sxdp_ifindex: if_nametoindex(wanted.netdev)?,
        sxdp_queue_id: wanted.queue,
        sxdp_shared_umem_fd: 0,
    };
    // SAFETY: the kernel reads an address of that length.
    check(unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            size_of_val(&address) as socklen_t,
        )
    })
}

/// Sets an option of an AF_XDP socket to a value of C's: numbers, without pointers that the kernel
/// writes to.
fn set<T: Copy>(socket: &OwnedFd, option: c_int, value: &T) -> io::Result<()> {
    // SAFETY: the kernel reads a value of that length. The area that a registration names is memory
    // of the UMEM, which lives as long as the socket, and which this process accesses through raw
    // pointers.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_XDP,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as socklen_t,
        )
    })
}

fn check(result: c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
