//! The kernel's interface to SCTP (RFC 6458): layouts and options.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rnic_core::connection::PathFacts;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};
use tracing::debug;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use crate::sys;

/// How many streams an association asks for each way.
const STREAMS: u16 = 1024;

/// The indication of DDP.
const INDICATION: u32 = rnic_core::wire::session::INDICATION;

/// Retransmission timeouts, in milliseconds: at first, at most and at least. With those of RFC 9260
/// a lost last chunk would take a second at least.
const RTO: [u32; 3] = [300, 5000, 100];

/// Octets that the kernel may keep, if the administrator allows so many: of chunks that are to be
/// acknowledged, and that were received.
const BUFFER: usize = 4 << 20;

/// Octets of a packet that are left for control chunks: a SACK with one block.
const FOR_CONTROL: usize = 20;

/// Options of the kernel's (linux/sctp.h).
const SCTP_RTOINFO: i32 = 0;
const SCTP_ASSOCINFO: i32 = 1;
const SCTP_INITMSG: i32 = 2;
const SCTP_NODELAY: i32 = 3;
const SCTP_ADAPTATION_LAYER: i32 = 7;
const SCTP_DISABLE_FRAGMENTS: i32 = 8;
const SCTP_PEER_ADDR_PARAMS: i32 = 9;
const SCTP_EVENTS: i32 = 11;
const SCTP_STATUS: i32 = 14;
const SCTP_RECVRCVINFO: i32 = 32;
const SCTP_GET_PEER_ADDRS: i32 = 108;
const SCTP_GET_ASSOC_STATS: i32 = 112;

/// Flags of a chunk that is sent.
const UNORDERED: u16 = 1;
const SACK_IMMEDIATELY: u16 = 1 << 3;

/// Kinds of notification.
const ASSOC_CHANGE: u16 = 0x8001;
const SHUTDOWN_EVENT: u16 = 0x8005;
const ADAPTATION_INDICATION: u16 = 0x8007;

/// What has become of an association (`sac_state`).
const COMM_UP: u16 = 0;
const COMM_LOST: u16 = 1;
const RESTART: u16 = 2;
const SHUTDOWN_COMP: u16 = 3;
const CANT_STR_ASSOC: u16 = 4;

#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy, Default)]
#[repr(C)]
struct RtoInfo {
    association: i32,
    times: [u32; 3],
}

#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy, Default)]
#[repr(C)]
struct InitMsg {
    outbound: u16,
    inbound: u16,
    attempts: u16,
    timeout: u16,
}

/// Which notifications are wanted.
#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy, Default)]
#[repr(C)]
struct Events {
    data: u8,
    association: u8,
    address: u8,
    send_failure: u8,
    peer_error: u8,
    shutdown: u8,
    partial_delivery: u8,
    adaptation: u8,
}

/// What holds for an association (SCTP_ASSOCINFO). What is 0 stays as it is.
#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy, Default)]
#[repr(C)]
struct AssocInfo {
    association: i32,
    max_retransmissions: u16,
    peers_addresses: u16,
    windows: [u32; 2],
    cookie_life: u32,
}

/// What holds for the ways to a peer (`struct sctp_paddrparams`, which is packed). Without an
/// address it is all ways; what is 0 stays as it is.
#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy)]
#[repr(C)]
struct PathParameters {
    association: i32,
    address: [u8; 128],
    heartbeat_interval: u32,
    max_retransmissions: [u8; 2],
    mtu_and_sack_delay: [u8; 8],
    flags: [u8; 4],
    /// Flow label and DSCP, which older kernels do not know, are left out.
    end: [u8; 2],
}

/// After how many retransmissions in a row, heartbeats included, the kernel takes something for gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// The association.
    pub(crate) of_all: u16,
    /// Each way to the peer: there is one to each of its addresses.
    pub(crate) of_each: u16,
}

/// Room for what SCTP_GET_PEER_ADDRS tells: the association, how many addresses the peer has, and
/// these, as `sockaddr_in6` at most.
const ADDRESSES: usize = 8 + 64 * 28;

/// A heartbeat is wanted now.
const HEARTBEAT_NOW: u32 = 1 << 2;

/// What SCTP_GET_ASSOC_STATS tells, up to the packets that have come.
#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy)]
#[repr(C)]
struct Statistics {
    association: i32,
    _hole: u32,
    address: [u8; 128],
    /// Of the longest RTO, of SACKs each way, and of packets that were sent.
    before: [u64; 4],
    packets_received: u64,
    behind: [u64; 11],
}

/// What SCTP_STATUS tells.
#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy)]
#[repr(C)]
struct Status {
    association: i32,
    state: i32,
    rwnd: u32,
    unacked: u16,
    pending: u16,
    inbound: u16,
    outbound: u16,
    fragmentation_point: u32,
    path: Path,
}

/// The primary path (`struct sctp_paddrinfo`, which is packed).
#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy)]
#[repr(C)]
struct Path {
    association: i32,
    address: [u8; 128],
    state: i32,
    /// In octets.
    cwnd: u32,
    /// In milliseconds, and the next one.
    srtt: u32,
    rto: u32,
    mtu: u32,
}

#[derive(FromBytes, Immutable)]
#[repr(C)]
struct AssocChange {
    kind: u16,
    flags: u16,
    len: u32,
    state: u16,
    error: u16,
    outbound: u16,
    inbound: u16,
}

#[derive(FromBytes, Immutable)]
#[repr(C)]
struct Adaptation {
    kind: u16,
    flags: u16,
    len: u32,
    indication: u32,
}

/// What the kernel notifies of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notification {
    /// The association is up, with so many streams.
    Up { outbound: u16, inbound: u16 },
    /// The peer's adaptation indication.
    Indication(u32),
    /// The association has failed. The socket's error says how.
    Lost,
    /// It was set up anew by a peer that has lost it, with so many streams.
    Restarted { outbound: u16, inbound: u16 },
    /// The peer shuts it down.
    Closed,
    /// Something else.
    Other,
}

impl Notification {
    pub(crate) fn parse(octets: &[u8]) -> Self {
        let Ok((kind, _)) = u16::read_from_prefix(octets) else {
            return Self::Other;
        };
        match kind {
            ASSOC_CHANGE => match AssocChange::read_from_prefix(octets) {
                Ok((change, _)) => Self::of_change(&change),
                Err(_) => Self::Other,
            },
            ADAPTATION_INDICATION => match Adaptation::read_from_prefix(octets) {
                Ok((adaptation, _)) => Self::Indication(adaptation.indication),
                Err(_) => Self::Other,
            },
            SHUTDOWN_EVENT => Self::Closed,
            _ => Self::Other,
        }
    }

    fn of_change(change: &AssocChange) -> Self {
        match change.state {
            COMM_UP => Self::Up {
                outbound: change.outbound,
                inbound: change.inbound,
            },
            COMM_LOST | CANT_STR_ASSOC => Self::Lost,
            RESTART => Self::Restarted {
                outbound: change.outbound,
                inbound: change.inbound,
            },
            SHUTDOWN_COMP => Self::Closed,
            _ => Self::Other,
        }
    }
}

/// Returns whether this kernel has SCTP.
pub fn has_sctp() -> bool {
    let (kind, flags) = (SocketType::STREAM, SocketFlags::CLOEXEC);
    socket_with(AddressFamily::INET, kind, flags, Some(ipproto::SCTP)).is_ok()
}

/// Returns the options of a socket for DDP.
fn options() -> [(i32, Vec<u8>); 6] {
    // rfc: 5043-21 as many inbound streams as outbound ones
    let streams = InitMsg {
        outbound: STREAMS,
        inbound: STREAMS,
        ..InitMsg::default()
    };
    let events = Events {
        association: 1,
        shutdown: 1,
        adaptation: 1,
        ..Events::default()
    };
    let on = 1_i32.to_ne_bytes();
    [
        (SCTP_INITMSG, streams.as_bytes().into()),
        // rfc: 5043-1, 5043-28 INIT or INIT ACK has the indication
        (SCTP_ADAPTATION_LAYER, INDICATION.to_ne_bytes().into()),
        // rfc: 5043-s9 segments are not delayed so that they are bundled
        (SCTP_NODELAY, on.into()),
        // rfc: 5043-23 SCTP cuts nothing unless it is told to
        (SCTP_DISABLE_FRAGMENTS, on.into()),
        (SCTP_RECVRCVINFO, on.into()),
        (SCTP_EVENTS, events.as_bytes().into()),
    ]
}

/// Returns the flags of a chunk. `urgent`: the peer is asked to acknowledge it at once.
// rfc: 5043-25 each chunk is unordered
pub(crate) const fn chunk_flags(urgent: bool) -> u16 {
    match urgent {
        true => UNORDERED | SACK_IMMEDIATELY,
        false => UNORDERED,
    }
}

/// Prepares a socket for DDP, before it is bound.
pub(crate) fn prepare(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    for (option, value) in options() {
        sys::set_sctp(socket, option, &value)?;
    }
    let times = RtoInfo {
        association: 0,
        times: RTO,
    };
    if let Err(errno) = sys::set_sctp(socket, SCTP_RTOINFO, times.as_bytes()) {
        debug!("an association keeps the kernel's retransmission timeouts: {errno}");
    }
    for buffer in [
        rustix::net::sockopt::set_socket_send_buffer_size(socket, BUFFER),
        rustix::net::sockopt::set_socket_recv_buffer_size(socket, BUFFER),
    ] {
        if let Err(errno) = buffer {
            debug!("an association keeps the kernel's buffers: {errno}");
        }
    }
    Ok(())
}

/// Has SCTP cut what is too long for the path, or refuse it.
pub(crate) fn set_cutting(socket: BorrowedFd<'_>, cuts: bool) -> Result<(), Errno> {
    let disabled = i32::from(!cuts);
    sys::set_sctp(socket, SCTP_DISABLE_FRAGMENTS, disabled.as_bytes())
}

/// Sets the traffic class of what an association sends.
pub(crate) fn set_traffic_class(socket: BorrowedFd<'_>, like: SocketAddr, class: u8) {
    let set = match like {
        SocketAddr::V4(_) => rustix::net::sockopt::set_ip_tos(socket, class),
        SocketAddr::V6(_) => rustix::net::sockopt::set_ipv6_tclass(socket, class.into()),
    };
    if let Err(errno) = set {
        debug!("an association cannot have a traffic class: {errno}");
    }
}

/// Returns the most octets of user data that a chunk may have without being cut, beside a control
/// chunk.
pub(crate) fn max_chunk(socket: BorrowedFd<'_>) -> Result<usize, Errno> {
    Ok(beside_control(status(socket)?.fragmentation_point))
}

/// Returns whether a socket has its association, or has lost it. The kernel answers when it has no
/// work on the association under way.
pub(crate) fn is_there(socket: BorrowedFd<'_>) -> bool {
    status(socket).is_ok()
}

/// Returns what is known of the way to the peer.
pub(crate) fn path(socket: BorrowedFd<'_>) -> Result<PathFacts, Errno> {
    let Status { rwnd, path, .. } = status(socket)?;
    let millis = |millis: u32| Duration::from_millis(millis.into());
    Ok(PathFacts {
        rtt: (path.srtt != 0).then_some(millis(path.srtt)),
        rto: millis(path.rto),
        cwnd: path.cwnd.into(),
        send_window: rwnd.into(),
    })
}

/// Returns how many packets have come from the peer.
pub(crate) fn packets_received(socket: BorrowedFd<'_>) -> Result<u64, Errno> {
    let mut statistics = Statistics::new_zeroed();
    sys::get_sctp(socket, SCTP_GET_ASSOC_STATS, statistics.as_mut_bytes())?;
    Ok(statistics.packets_received)
}

/// Has a heartbeat be sent.
pub(crate) fn send_heartbeat(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut parameters = PathParameters::new_zeroed();
    parameters.flags = HEARTBEAT_NOW.to_ne_bytes();
    sys::set_sctp(socket, SCTP_PEER_ADDR_PARAMS, parameters.as_bytes())
}

/// Returns the limits of an association.
pub(crate) fn limits(socket: BorrowedFd<'_>) -> Result<Limits, Errno> {
    let mut info = AssocInfo::default();
    sys::get_sctp(socket, SCTP_ASSOCINFO, info.as_mut_bytes())?;
    let mut parameters = PathParameters::new_zeroed();
    sys::get_sctp(socket, SCTP_PEER_ADDR_PARAMS, parameters.as_mut_bytes())?;
    Ok(Limits {
        of_all: info.max_retransmissions,
        of_each: u16::from_ne_bytes(parameters.max_retransmissions),
    })
}

/// Sets them. That of the association may not be above those of its ways together, where it has
/// several.
pub(crate) fn set_limits(socket: BorrowedFd<'_>, limits: Limits) -> Result<(), Errno> {
    let mut parameters = PathParameters::new_zeroed();
    parameters.max_retransmissions = limits.of_each.to_ne_bytes();
    sys::set_sctp(socket, SCTP_PEER_ADDR_PARAMS, parameters.as_bytes())?;
    let info = AssocInfo {
        max_retransmissions: limits.of_all,
        ..AssocInfo::default()
    };
    sys::set_sctp(socket, SCTP_ASSOCINFO, info.as_bytes())
}

/// Returns how many ways an association has: one for each address of the peer. Without an answer of
/// the kernel it is 1, so that each has what all are to have.
pub(crate) fn count_ways(socket: BorrowedFd<'_>) -> u16 {
    let mut addresses = [0; ADDRESSES];
    let asked = sys::get_sctp(socket, SCTP_GET_PEER_ADDRS, &mut addresses);
    let count = asked.map_or(0, |()| {
        let [_, _, _, _, a, b, c, d, ..] = addresses;
        u32::from_ne_bytes([a, b, c, d])
    });
    u16::try_from(count).unwrap_or(u16::MAX).max(1)
}

/// Returns after how many retransmissions the peer has surely had this long to answer.
pub(crate) fn retransmissions_of(patience: Duration) -> u16 {
    let [_, at_most, at_least] = RTO.map(u64::from);
    // Until the timeout is the longest one: each doubles it.
    let growing = (at_most / at_least).ilog2() + 1;
    let whole = patience.as_millis().div_ceil(at_most.into());
    u16::try_from(whole + u128::from(growing)).unwrap_or(u16::MAX)
}

fn status(socket: BorrowedFd<'_>) -> Result<Status, Errno> {
    let mut status = Status::new_zeroed();
    sys::get_sctp(socket, SCTP_STATUS, status.as_mut_bytes())?;
    Ok(status)
}

/// Returns how much of what a packet takes is for a chunk.
// rfc: 5043-s7 a control chunk has room beside a segment
fn beside_control(longest: u32) -> usize {
    let longest = usize::try_from(longest).unwrap_or(0);
    longest.saturating_sub(FOR_CONTROL)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Octets that Linux 7.3 has given.
    #[test]
    fn notifications_are_read() {
        let up = [
            1, 0x80, 0, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 3, 3, 0, 0, 0,
        ];
        let (outbound, inbound) = (1024, 768);
        assert_eq!(
            Notification::parse(&up),
            Notification::Up { outbound, inbound }
        );
        let indication = [7, 0x80, 0, 0, 16, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0];
        assert_eq!(
            Notification::parse(&indication),
            Notification::Indication(1)
        );
        let refused = [
            1, 0x80, 0, 0, 20, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(Notification::parse(&refused), Notification::Lost);
        for len in 0..up.len() {
            Notification::parse(&up[..len]);
        }
    }

    #[test]
    fn associations_are_set_up_for_ddp() {
        // rfc: 5043-1, 5043-21, 5043-23, 5043-28, 5043-s9
        let options = options();
        let value = |option| {
            let found = options.iter().find(|(number, _)| *number == option);
            found.map(|(_, value)| &value[..]).unwrap()
        };
        assert_eq!(value(SCTP_ADAPTATION_LAYER), 1_u32.to_ne_bytes());
        let streams = value(SCTP_INITMSG);
        assert_eq!((&streams[..2], streams[4..].len()), (&streams[2..4], 4));
        assert!(streams[..2] != [0; 2]);
        assert_eq!(value(SCTP_NODELAY), 1_i32.to_ne_bytes());
        assert_eq!(value(SCTP_DISABLE_FRAGMENTS), 1_i32.to_ne_bytes());
    }

    #[test]
    fn each_chunk_is_unordered() {
        // rfc: 5043-25
        assert_eq!([false, true].map(|urgent| chunk_flags(urgent) & 1), [1, 1]);
    }

    #[test]
    fn a_sack_has_room_beside_a_segment() {
        // rfc: 5043-s7
        assert_eq!([1452, 20, 3].map(beside_control), [1432, 0, 0]);
    }

    #[test]
    fn layouts_are_those_of_the_kernel() {
        let sizes = [
            size_of::<RtoInfo>(),
            size_of::<InitMsg>(),
            size_of::<Events>(),
            size_of::<Path>(),
            size_of::<Status>(),
            size_of::<AssocInfo>(),
            size_of::<PathParameters>(),
            size_of::<Statistics>(),
        ];
        assert_eq!(sizes, [16, 8, 8, 152, 176, 20, 152, 264]);
        assert_eq!(std::mem::offset_of!(PathParameters, flags), 146);
        assert_eq!(std::mem::offset_of!(Statistics, packets_received), 168);
    }

    /// Whatever the round-trip time is, that many retransmissions take so long.
    #[test]
    fn retransmissions_last_as_long_as_a_user_timeout() {
        for seconds in [1, 2, 30, 600] {
            let patience = Duration::from_secs(seconds);
            let timeouts = (0..=retransmissions_of(patience)).map(|tries| {
                let grown = u64::from(RTO[2]) << tries.min(20);
                Duration::from_millis(grown.min(RTO[1].into()))
            });
            assert!(timeouts.sum::<Duration>() >= patience, "{seconds} s");
        }
        assert_eq!(retransmissions_of(Duration::MAX), u16::MAX);
    }
}
