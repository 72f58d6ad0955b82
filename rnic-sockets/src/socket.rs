//! One connection: a TCP socket of the kernel that never waits.

use std::borrow::Cow;
use std::cell::Cell;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt};
use rnic_core::connection::{Received, Socket};
use rnic_core::tcp::{Keepalive, State, TcpFacts, TcpFailure};
use rnic_manager::PrivateFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use tracing::debug;

use crate::sys;
use rnic_manager::Maker;

/// The payload of a segment before the peer has said what it takes (RFC 9293 section 3.7.1).
const DEFAULT_PAYLOAD: usize = 536;

/// The least that the kernel segments by (`TCP_MIN_SND_MSS` with its 40 octets of options).
const MIN_PAYLOAD: usize = 88;

/// The most, which no IP packet exceeds.
const MAX_PAYLOAD: usize = u16::MAX as usize;

/// How often the payload of a segment is asked for until the kernel is asked again.
const ASKED_ANEW: u16 = 1024;

/// The most that the kernel takes as keepalive times, in seconds, and as number of probes.
const MAX_KEEPALIVE: u64 = 32767;
const MAX_PROBES: u8 = 127;

/// A connection over a TCP socket of the kernel. See [`Socket`] for what the calls do.
///
/// Dropping it closes both directions. Where octets of the peer were not received, the kernel then
/// sends a RST, and not all that it has taken (RFC 2525 section 2.17).
#[derive(Debug)]
pub struct KernelSocket {
    /// None once it was reset.
    fd: Option<PrivateFd>,
    is_ipv4: bool,
    is_connected: bool,
    /// Our stream was closed.
    is_closed: bool,
    /// The kernel tells it once.
    failure: Option<TcpFailure>,
    payload: Cell<usize>,
    /// How often it may be asked for until it is read again.
    asks_left: Cell<u16>,
    maker: Maker,
}

impl KernelSocket {
    /// Makes a connection of a socket that connects to a peer, or is connected.
    pub(crate) fn new(fd: PrivateFd, remote: SocketAddr, is_connected: bool) -> Self {
        Self {
            fd: Some(fd),
            is_ipv4: remote.is_ipv4(),
            is_connected,
            is_closed: false,
            failure: None,
            payload: Cell::new(DEFAULT_PAYLOAD),
            asks_left: Cell::new(0),
            maker: Maker::this(),
        }
    }

    /// Returns the descriptor, or fails if the connection was reset by this side.
    pub(crate) fn fd(&self) -> Result<BorrowedFd<'_>, TcpFailure> {
        let fd = self.fd.as_ref().ok_or(TcpFailure::Aborted)?;
        Ok(fd.as_fd())
    }

    /// Notes and returns how the connection failed. The first failure counts.
    fn failed(&mut self, errno: Errno) -> TcpFailure {
        *self.failure.get_or_insert_with(|| failure_of(errno))
    }

    /// Returns how the connection failed, if it did, or else `other`.
    fn unless_failed<T>(&self, other: T) -> Result<T, TcpFailure> {
        self.failure.map_or(Ok(other), Err)
    }

    /// Does something that the kernel may not let it do. It goes without it then.
    fn try_to(&self, what: &str, act: impl FnOnce(BorrowedFd<'_>) -> Result<(), Errno>) {
        if let Ok(fd) = self.fd()
            && let Err(errno) = act(fd)
        {
            debug!("a connection cannot {what}: {errno}");
        }
    }

    /// Returns the name of what steers the congestion window: the kernel's own choice where it did
    /// not permit ours. It has none once the connection was reset.
    fn congestion(&self) -> Cow<'static, str> {
        let name = self.fd().ok().map(rustix::net::sockopt::tcp_congestion);
        name.and_then(Result::ok).map_or(Cow::default(), Cow::Owned)
    }
}

impl Socket for KernelSocket {
    fn is_connected(&mut self) -> Result<bool, TcpFailure> {
        if self.is_connected {
            return self.unless_failed(true);
        }
        let fd = self.fd()?;
        // In this order: a connection that has ended has its error before that.
        let state = sys::tcp_info(fd).map(|info| info.state());
        let error = rustix::net::sockopt::socket_error(fd).and_then(|error| error);
        match (state, error) {
            (_, Err(errno)) => Err(self.failed(errno)),
            (Ok(State::SynSent | State::SynReceived), _) => Ok(false),
            // The error was told before.
            (Err(_) | Ok(State::Closed), _) => Err(self.failed(Errno::CONNRESET)),
            (Ok(_), _) => {
                self.is_connected = true;
                Ok(true)
            }
        }
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Received, TcpFailure> {
        if into.is_empty() {
            return self.unless_failed(Received::Nothing);
        }
        let fd = self.fd()?;
        // What came before a failure is received first.
        match retried(|| rustix::net::recv(fd, &mut *into, RecvFlags::DONTWAIT)) {
            Ok((0, _)) => self.unless_failed(Received::Closed),
            Ok((octets, _)) => Ok(Received::Octets(octets)),
            Err(Errno::AGAIN) => self.unless_failed(Received::Nothing),
            Err(errno) => Err(self.failed(errno)),
        }
    }

    fn send(&mut self, octets: &[u8]) -> Result<usize, TcpFailure> {
        let fd = self.fd()?;
        if octets.is_empty() || self.is_closed {
            return self.unless_failed(0);
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match retried(|| rustix::net::send(fd, octets, flags)) {
            Ok(octets) => Ok(octets),
            Err(Errno::AGAIN) => self.unless_failed(0),
            Err(errno) => Err(self.failed(errno)),
        }
    }

    fn unacknowledged(&self) -> u64 {
        let Ok(fd) = self.fd() else {
            return 0;
        };
        // The FIN is the last one to be acknowledged. What a connection had outstanding when it failed
        // the kernel still counts.
        let outstanding = sys::unacknowledged(fd).unwrap_or(u64::MAX);
        outstanding.saturating_sub(self.is_closed.into())
    }

    fn max_payload(&self) -> usize {
        if let Some(left) = self.asks_left.get().checked_sub(1) {
            self.asks_left.set(left);
            return self.payload.get();
        }
        if self.is_connected
            && let Ok(fd) = self.fd()
            && let Ok(mss) = getsockopt(&fd, sockopt::TcpMaxSeg)
        {
            self.payload.set(payload_of(mss));
            self.asks_left.set(ASKED_ANEW - 1);
        }
        self.payload.get()
    }

    fn acknowledge(&mut self) {
        self.try_to("acknowledge at once", |fd| {
            rustix::net::sockopt::set_tcp_quickack(fd, true)
        });
    }

    fn close(&mut self) {
        // A connection that is not established ends by this.
        self.try_to("close its stream", |fd| {
            rustix::net::shutdown(fd, Shutdown::Write)
        });
        self.is_closed = true;
    }

    fn reset(&mut self) {
        // A RST has no acknowledgment that kernels look at: one that is delayed goes out before it.
        self.acknowledge();
        // This sends the RST. Closing would not while a forked process has a copy.
        self.try_to("send a RST", |fd| rustix::net::connect_unspec(fd));
        self.try_to("end without lingering", |fd| {
            rustix::net::sockopt::set_socket_linger(fd, Some(Duration::ZERO))
        });
        self.fd = None;
        self.failure.get_or_insert(TcpFailure::Aborted);
    }

    fn set_keepalive(&mut self, keepalive: Option<Keepalive>) {
        use rustix::net::sockopt;
        self.try_to("keep alive", |fd| {
            if let Some(keepalive) = keepalive {
                let count = keepalive.count.clamp(1, MAX_PROBES);
                sockopt::set_tcp_keepidle(fd, whole_seconds(keepalive.idle))?;
                sockopt::set_tcp_keepintvl(fd, whole_seconds(keepalive.interval))?;
                sockopt::set_tcp_keepcnt(fd, count.into())?;
            }
            sockopt::set_socket_keepalive(fd, keepalive.is_some())
        });
    }

    fn set_user_timeout(&mut self, timeout: Option<Duration>) {
        // 0 is the kernel's own choice.
        let millis = timeout.map_or(0, |timeout| {
            timeout.as_millis().clamp(1, i32::MAX as u128) as u32
        });
        self.try_to("have a user timeout", |fd| {
            rustix::net::sockopt::set_tcp_user_timeout(fd, millis)
        });
    }

    fn set_traffic_class(&mut self, class: u8) {
        let is_ipv4 = self.is_ipv4;
        self.try_to("have a traffic class", |fd| match is_ipv4 {
            true => rustix::net::sockopt::set_ip_tos(fd, class),
            false => rustix::net::sockopt::set_ipv6_tclass(fd, class.into()),
        });
    }

    /// The kernel counts octets by segments, but for `unacked` and the two streams' offsets, where
    /// SYN and FIN may count as octets.
    fn facts(&self) -> TcpFacts {
        let info = self.fd().ok().and_then(|fd| sys::tcp_info(fd).ok());
        let ip_header = if self.is_ipv4 { 20 } else { 40 };
        let info = info.unwrap_or_default();
        info.facts(self.unacknowledged(), ip_header, self.congestion())
    }
}

impl Drop for KernelSocket {
    fn drop(&mut self) {
        // Closing would not end the connection while a forked process has a copy. In that process
        // the connection is its parent's.
        if let Some(fd) = &self.fd
            && !self.maker.is_forked()
        {
            let _ = rustix::net::shutdown(fd, Shutdown::Both);
        }
    }
}

/// Calls until no signal interrupts it.
pub(crate) fn retried<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

/// Returns the failure of a connection for which the kernel has an error.
pub(crate) fn failure_of(errno: Errno) -> TcpFailure {
    match errno {
        Errno::CONNREFUSED => TcpFailure::Refused,
        Errno::CONNRESET | Errno::PIPE | Errno::NOTCONN => TcpFailure::Reset,
        Errno::TIMEDOUT
        | Errno::HOSTUNREACH
        | Errno::NETUNREACH
        | Errno::HOSTDOWN
        | Errno::NETDOWN => TcpFailure::TimedOut,
        errno => {
            debug!("a connection ends, for its socket fails: {errno}");
            TcpFailure::Reset
        }
    }
}

/// Returns the payload of segments of which the kernel's are, in whole words of MPA.
fn payload_of(mss: u32) -> usize {
    let mss = usize::try_from(mss).unwrap_or(MAX_PAYLOAD);
    mss.clamp(MIN_PAYLOAD, MAX_PAYLOAD) & !3
}

/// Returns a time that the kernel takes for keepalive, not shorter if possible.
fn whole_seconds(time: Duration) -> Duration {
    let rounded_up = time.as_secs() + u64::from(time.subsec_nanos() != 0);
    Duration::from_secs(rounded_up.clamp(1, MAX_KEEPALIVE))
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    #[test]
    fn the_payload_is_read_again_after_many_questions() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let remote = listener.local_addr().unwrap();
        let stream = std::net::TcpStream::connect(remote).unwrap();
        let socket = KernelSocket::new(OwnedFd::from(stream).into(), remote, true);
        let now = socket.max_payload();
        assert_ne!(now, DEFAULT_PAYLOAD);
        // As if the path had changed since.
        socket.payload.set(88);
        for _ in 1..ASKED_ANEW {
            assert_eq!(socket.max_payload(), 88);
        }
        assert_eq!(socket.max_payload(), now);
    }

    #[test]
    fn the_congestion_window_is_steered_by_what_the_kernel_says() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let remote = listener.local_addr().unwrap();
        let permitted = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
        let permitted = std::fs::read_to_string(permitted).unwrap();
        for name in permitted.split_whitespace() {
            let stream = std::net::TcpStream::connect(remote).unwrap();
            rustix::net::sockopt::set_tcp_congestion(&stream, name).unwrap();
            let mut socket = KernelSocket::new(OwnedFd::from(stream).into(), remote, true);
            assert_eq!(socket.facts().congestion, name);
            socket.reset();
            assert_eq!(socket.facts().congestion, "");
        }
    }

    #[test]
    fn payloads_are_whole_words_within_bounds() {
        for (mss, payload) in [
            (1448, 1448),
            (1447, 1444),
            (8960, 8960),
            (65483, 65480),
            (100_000, 65532),
            (48, 88),
            (0, 88),
        ] {
            assert_eq!(payload_of(mss), payload, "{mss}");
        }
    }

    #[test]
    fn keepalive_times_are_what_the_kernel_takes() {
        for (time, seconds) in [(0, 1), (1, 1), (1000, 1), (1001, 2), (u64::MAX, 32767)] {
            assert_eq!(
                whole_seconds(Duration::from_millis(time)).as_secs(),
                seconds
            );
        }
    }

    #[test]
    fn errors_of_the_kernel_are_failures() {
        for (errno, failure) in [
            (Errno::CONNREFUSED, TcpFailure::Refused),
            (Errno::CONNRESET, TcpFailure::Reset),
            (Errno::PIPE, TcpFailure::Reset),
            (Errno::TIMEDOUT, TcpFailure::TimedOut),
            (Errno::HOSTUNREACH, TcpFailure::TimedOut),
            (Errno::NETUNREACH, TcpFailure::TimedOut),
            (Errno::NOMEM, TcpFailure::Reset),
        ] {
            assert_eq!(failure_of(errno), failure, "{errno}");
        }
    }
}
