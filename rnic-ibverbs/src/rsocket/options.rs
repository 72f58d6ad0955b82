//! `rsetsockopt`, `rgetsockopt` and `rfcntl`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::libc::*;

use super::config::{LONGEST_QUEUE, SHORTEST_QUEUE};
use super::endpoint::MAX_INLINE;
use super::keepalive;
use super::layout::sayable_iomaps;
use super::socket::{Phase, Socket};
use crate::errno::{Errno, lock};

/// The level of the options below, which rsocket(7) describes.
const SOL_RDMA: i32 = 0x10000;
const RDMA_SQSIZE: i32 = 0;
const RDMA_RQSIZE: i32 = 1;
const RDMA_INLINE: i32 = 2;
const RDMA_IOMAPSIZE: i32 = 3;
const RDMA_ROUTE: i32 = 4;

const RDMA_OPTION_ID_TOS: i32 = 0;
const RDMA_OPTION_ID_REUSEADDR: i32 = 1;
const RDMA_OPTION_ID_AFONLY: i32 = 2;

/// What rdma-core answers to TCP_MAXSEG where it knows no path record, of which iWARP has none.
const SEGMENT: i32 = 2048;
const TCP_ESTABLISHED: u8 = 1;
const TCP_CLOSE: u8 = 7;

/// Sets an option.
pub(super) fn set(socket: &Arc<Socket>, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
    let number = || {
        Ok::<_, Errno>(i32::from_ne_bytes(
            *value.first_chunk().ok_or(Errno::EINVAL)?,
        ))
    };
    match (level, name) {
        (SOL_SOCKET, SO_REUSEADDR) => {
            let on = number()?;
            tell(socket, RDMA_OPTION_ID_REUSEADDR, on)?;
            lock(&socket.options).reuse_address = on != 0;
        }
        (SOL_SOCKET, SO_RCVBUF) => {
            let octets = number()?.max(0) as u32;
            if socket.endpoint.get().is_none() {
                lock(&socket.sizes).set_receive_buffer(octets);
            }
        }
        (SOL_SOCKET, SO_SNDBUF) => {
            let octets = number()?.max(0) as u32;
            if socket.endpoint.get().is_none() {
                lock(&socket.sizes).set_send_buffer(octets);
            }
        }
        (SOL_SOCKET, SO_LINGER) => {
            let seconds = value
                .get(4..8)
                .and_then(<[u8]>::first_chunk)
                .ok_or(Errno::EINVAL)?;
            let seconds = i32::from_ne_bytes(*seconds).max(0) as u32;
            lock(&socket.options).linger = (number()? != 0).then_some(seconds);
        }
        (SOL_SOCKET, SO_KEEPALIVE) => {
            let on = number()? != 0;
            lock(&socket.options).keep_alive = on;
            schedule_probes(socket)?;
        }
        (SOL_SOCKET, SO_OOBINLINE) => lock(&socket.options).oob_inline = number()? != 0,
        (IPPROTO_TCP, TCP_KEEPIDLE) => {
            let seconds = u32::try_from(number()?)
                .ok()
                .filter(|&seconds| seconds > 0)
                .ok_or(Errno::EINVAL)?;
            lock(&socket.options).keep_idle = seconds;
            schedule_probes(socket)?;
        }
        // TCP itself decides when a probe, or a segment, has failed, and how long segments are.
        (IPPROTO_TCP, TCP_KEEPCNT | TCP_KEEPINTVL | TCP_MAXSEG) => {
            number()?;
        }
        // Nothing is held back in any case.
        (IPPROTO_TCP, TCP_NODELAY) => lock(&socket.options).no_delay = number()? != 0,
        (IPPROTO_IP, IP_TOS) => {
            let octet = number()?;
            let identifier = lock(&socket.identifier);
            identifier.set_option(RDMA_OPTION_ID_TOS, &[octet as u8])?;
            lock(&socket.options).type_of_service = octet;
        }
        (IPPROTO_IPV6, IPV6_V6ONLY) => {
            let on = number()?;
            tell(socket, RDMA_OPTION_ID_AFONLY, on)?;
            lock(&socket.options).v6_only = on != 0;
        }
        (SOL_RDMA, _) => set_size(socket, name, number()?.max(0) as u32)?,
        _ => return Err(Errno::EOPNOTSUPP),
    }
    Ok(())
}

fn tell(socket: &Socket, option: i32, value: i32) -> Result<(), Errno> {
    lock(&socket.identifier).set_option(option, &value.to_ne_bytes())
}

fn schedule_probes(socket: &Arc<Socket>) -> Result<(), Errno> {
    let options = *lock(&socket.options);
    keepalive::set(socket, options.keep_alive.then(|| idle(options.keep_idle)))
}

fn idle(seconds: u32) -> u32 {
    if seconds == 0 {
        keepalive::system_idle()
    } else {
        seconds
    }
}

fn set_size(socket: &Socket, name: i32, value: u32) -> Result<(), Errno> {
    if !matches!(lock(&socket.flow).phase, Phase::Opened | Phase::Listening) {
        return Err(Errno::EINVAL);
    }
    let queue = value.clamp(SHORTEST_QUEUE.into(), LONGEST_QUEUE.into()) as u16;
    let mut sizes = lock(&socket.sizes);
    match name {
        RDMA_SQSIZE => sizes.send_queue = queue,
        RDMA_RQSIZE => sizes.receive_queue = queue,
        RDMA_INLINE => sizes.inline = value.min(MAX_INLINE as u32) as u16,
        RDMA_IOMAPSIZE => sizes.iomaps = sayable_iomaps(value),
        // RDMA_ROUTE too: iWARP's routes are the kernel's.
        _ => return Err(Errno::EOPNOTSUPP),
    }
    Ok(())
}

/// Returns the value of an option.
pub(super) fn get(socket: &Socket, level: i32, name: i32) -> Result<Vec<u8>, Errno> {
    let options = *lock(&socket.options);
    let sizes = *lock(&socket.sizes);
    let number = match (level, name) {
        (SOL_SOCKET, SO_TYPE) => SOCK_STREAM,
        (SOL_SOCKET, SO_DOMAIN) => socket.domain,
        (SOL_SOCKET, SO_ACCEPTCONN) => (lock(&socket.flow).phase == Phase::Listening).into(),
        (SOL_SOCKET, SO_ERROR) => lock(&socket.flow)
            .error
            .take()
            .map_or(0, |error| error as i32),
        (SOL_SOCKET, SO_REUSEADDR) => options.reuse_address.into(),
        (SOL_SOCKET, SO_KEEPALIVE) => options.keep_alive.into(),
        (SOL_SOCKET, SO_OOBINLINE) => options.oob_inline.into(),
        (SOL_SOCKET, SO_RCVBUF) => sizes.receive_buffer as i32,
        (SOL_SOCKET, SO_SNDBUF) => sizes.send_buffer as i32,
        (SOL_SOCKET, SO_LINGER) => {
            let linger = [
                i32::from(options.linger.is_some()),
                options.linger.unwrap_or(0) as i32,
            ];
            return Ok(linger.map(i32::to_ne_bytes).concat());
        }
        (IPPROTO_TCP, TCP_KEEPIDLE) => idle(options.keep_idle) as i32,
        (IPPROTO_TCP, TCP_KEEPCNT | TCP_KEEPINTVL) => 1,
        (IPPROTO_TCP, TCP_NODELAY) => options.no_delay.into(),
        (IPPROTO_TCP, TCP_MAXSEG) => SEGMENT,
        (IPPROTO_TCP, TCP_INFO) => return Ok(information(socket)),
        (IPPROTO_IP, IP_TOS) => options.type_of_service,
        (IPPROTO_IPV6, IPV6_V6ONLY) => options.v6_only.into(),
        (SOL_RDMA, RDMA_SQSIZE) => sizes.send_queue.into(),
        (SOL_RDMA, RDMA_RQSIZE) => sizes.receive_queue.into(),
        (SOL_RDMA, RDMA_INLINE) => sizes.inline.into(),
        (SOL_RDMA, RDMA_IOMAPSIZE) => sizes.iomaps.into(),
        // There are no path records.
        (SOL_RDMA, RDMA_ROUTE) => return Ok(Vec::new()),
        _ => return Err(Errno::EOPNOTSUPP),
    };
    Ok(number.to_ne_bytes().to_vec())
}

/// Returns `struct tcp_info` with the state alone, as rdma-core does: rdma_cm says nothing else of
/// the connection's TCP.
fn information(socket: &Socket) -> Vec<u8> {
    let mut information = vec![0; size_of::<tcp_info>()];
    let connected = lock(&socket.flow).phase == Phase::Connected;
    information[0] = if connected {
        TCP_ESTABLISHED
    } else {
        TCP_CLOSE
    };
    information
}

/// fcntl(2) with those commands that sockets have.
pub(super) fn fcntl(socket: &Socket, command: i32, value: i64) -> Result<i32, Errno> {
    match command {
        F_GETFL => Ok(O_RDWR
            | if socket.is_nonblocking() {
                O_NONBLOCK
            } else {
                0
            }),
        F_SETFL => {
            socket
                .nonblocking
                .store(value as i32 & O_NONBLOCK != 0, Ordering::Relaxed);
            Ok(0)
        }
        F_GETFD => Ok(lock(&socket.options).descriptor_flags),
        F_SETFD => {
            lock(&socket.options).descriptor_flags = value as i32;
            Ok(0)
        }
        _ => Err(Errno::EOPNOTSUPP),
    }
}
