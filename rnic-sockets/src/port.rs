//! A reserved port: the sockets that hold it until a connection or a listener has it.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use nix::sys::socket::{setsockopt, sockopt};
use rnic_core::tcp::CongestionAlgorithm;
use rnic_manager::PrivateFd;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Shutdown, SocketFlags, SocketType, bind, getsockname, listen, shutdown,
    socket_with,
};
use tracing::debug;

use crate::interface::scoped;
use crate::sctp;
use rnic_manager::Maker;

/// How many connections may wait to be accepted. The kernel takes less: `net.core.somaxconn`.
const BACKLOG: i32 = 1024;

/// How many ports to try for one that is free on all addresses.
const PORT_TRIES: u32 = 64;

/// What speaks at a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// TCP.
    #[default]
    Tcp,
    /// SCTP, for the adaptation of RFC 5043.
    Sctp,
}

/// What all sockets of a port are made with.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) protocol: Protocol,
    /// The VRF that they are bound to.
    pub(crate) vrf: Option<String>,
    pub(crate) congestion: CongestionAlgorithm,
    /// The index of the interface of link-local peers; 0 if there are none.
    pub(crate) scope: u32,
}

impl Settings {
    /// Makes a socket of a family that does not wait.
    pub(crate) fn socket(
        &self,
        like: SocketAddr,
        kind: SocketType,
        protocol: Option<rustix::net::Protocol>,
    ) -> Result<OwnedFd, Errno> {
        let family = match like {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, kind, flags, protocol)?;
        if like.is_ipv6() {
            rustix::net::sockopt::set_ipv6_v6only(&socket, true)?;
        }
        if let Some(vrf) = &self.vrf {
            let bound = setsockopt(&socket, sockopt::BindToDevice, &vrf.into());
            bound.map_err(|errno| Errno::from_raw_os_error(errno as i32))?;
        }
        Ok(socket)
    }

    /// Makes a socket that is bound. Connections that it accepts have its settings.
    pub(crate) fn bound(&self, local: SocketAddr) -> Result<(PrivateFd, SocketAddr), Errno> {
        let socket = match self.protocol {
            Protocol::Tcp => self.of_tcp(local)?,
            Protocol::Sctp => {
                let sctp = Some(rustix::net::ipproto::SCTP);
                let socket = self.socket(local, SocketType::STREAM, sctp)?;
                sctp::prepare(socket.as_fd())?;
                socket
            }
        };
        bind(&socket, &local)?;
        let local = SocketAddr::try_from(getsockname(&socket)?)?;
        Ok((socket.into(), local))
    }

    fn of_tcp(&self, local: SocketAddr) -> Result<OwnedFd, Errno> {
        let socket = self.socket(local, SocketType::STREAM, None)?;
        rustix::net::sockopt::set_socket_reuseaddr(&socket, true)?;
        rustix::net::sockopt::set_tcp_nodelay(&socket, true)?;
        // An urgent octet is one of the stream: otherwise it would be missing there.
        rustix::net::sockopt::set_socket_oobinline(&socket, true)?;
        let congestion = self.congestion.to_string();
        if let Err(errno) = rustix::net::sockopt::set_tcp_congestion(&socket, &congestion) {
            debug!(
                "{local}: the kernel's default steers the congestion window, not {congestion} \
                 (`sysctl net.ipv4.tcp_allowed_congestion_control`): {errno}"
            );
        }
        Ok(socket)
    }

    /// Makes sockets that listen at these addresses, all with one port. Port 0 chooses it. An
    /// address that the kernel does not count as this host's (yet) is left out if there are others.
    fn listening(&self, at: &[SocketAddr]) -> Result<(Listening, u16), Errno> {
        let chooses = at.iter().any(|at| at.port() == 0);
        let mut tries = if chooses { PORT_TRIES } else { 1 };
        loop {
            tries -= 1;
            match self.listening_once(at) {
                Err(Errno::ADDRINUSE) if tries > 0 => {}
                result => return result,
            }
        }
    }

    fn listening_once(&self, at: &[SocketAddr]) -> Result<(Listening, u16), Errno> {
        let mut listening = Listening::new();
        let mut port = 0;
        let mut missing = Errno::ADDRNOTAVAIL;
        for &(mut at) in at {
            if port != 0 {
                at.set_port(port);
            }
            match self.bound(at) {
                Ok((socket, local)) => {
                    listen(&socket, BACKLOG)?;
                    port = local.port();
                    listening.sockets.push(socket);
                }
                Err(errno @ Errno::ADDRNOTAVAIL) => missing = errno,
                Err(errno) => return Err(errno),
            }
        }
        match listening.sockets.is_empty() {
            true => Err(missing),
            false => Ok((listening, port)),
        }
    }
}

/// The sockets that listen at a port. All engines that have the listener share them.
#[derive(Debug)]
pub(crate) struct Listening {
    /// Names them within this process.
    pub(crate) number: u32,
    pub(crate) sockets: Vec<PrivateFd>,
    maker: Maker,
}

impl Listening {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            sockets: Vec::new(),
            maker: Maker::this(),
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if self.maker.is_forked() {
            return;
        }
        // Closing would not do while a forked process has copies.
        for socket in &self.sockets {
            let _ = shutdown(socket, Shutdown::Both);
        }
    }
}

/// A reserved port.
#[derive(Debug)]
pub(crate) struct Port {
    /// Where it listens, or connects from: one address, or each of an interface. All have one port.
    locals: Vec<SocketAddr>,
    settings: Settings,
    holders: Mutex<Holders>,
}

/// The sockets of a port.
#[derive(Debug, Default)]
struct Holders {
    /// For the first connection.
    bound: Option<PrivateFd>,
    /// For the first engine that listens.
    reserved: Option<Arc<Listening>>,
    /// What engines listen with.
    listening: Weak<Listening>,
}

impl Port {
    /// Reserves a port to listen on at these addresses, of which there is one at least.
    pub(crate) fn to_listen(settings: Settings, mut at: Vec<SocketAddr>) -> Result<Self, Errno> {
        let (listening, port) = settings.listening(&at)?;
        for at in &mut at {
            at.set_port(port);
        }
        let holders = Holders {
            reserved: Some(Arc::new(listening)),
            ..Holders::default()
        };
        Ok(Self::new(settings, at, holders))
    }

    /// Reserves a port to connect from.
    pub(crate) fn to_connect(settings: Settings, from: SocketAddr) -> Result<Self, Errno> {
        let (bound, local) = settings.bound(from)?;
        let holders = Holders {
            bound: Some(bound),
            ..Holders::default()
        };
        Ok(Self::new(settings, vec![local], holders))
    }

    fn new(settings: Settings, locals: Vec<SocketAddr>, holders: Holders) -> Self {
        Self {
            locals,
            settings,
            holders: Mutex::new(holders),
        }
    }

    fn holders(&self) -> MutexGuard<'_, Holders> {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the address and port, the first if there are several.
    pub(crate) fn local(&self) -> SocketAddr {
        self.locals[0]
    }

    /// Returns a peer's address with its scope, which a flow does not have.
    pub(crate) fn scoped(&self, remote: SocketAddr) -> SocketAddr {
        scoped(remote, self.settings.scope)
    }

    /// Returns a socket to connect with: the one that has held the port, or another.
    pub(crate) fn take_bound(&self) -> Result<PrivateFd, Errno> {
        if let Some(bound) = self.holders().bound.take() {
            return Ok(bound);
        }
        self.settings.bound(self.local()).map(|(bound, _)| bound)
    }

    /// Returns the sockets to listen with: those that hold the port, those that other engines have,
    /// or others.
    pub(crate) fn listening(&self) -> Result<Arc<Listening>, Errno> {
        let mut holders = self.holders();
        let there = holders
            .reserved
            .take()
            .or_else(|| holders.listening.upgrade());
        let listening = match there {
            Some(listening) => listening,
            None => Arc::new(self.settings.listening(&self.locals)?.0),
        };
        holders.listening = Arc::downgrade(&listening);
        Ok(listening)
    }
}

/// Returns whether what makes descriptors fails for want of room, which others may soon leave.
pub(crate) fn lacks_room(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS
    )
}

/// Returns the address that the kernel would send from to a peer.
pub(crate) fn source(
    settings: &Settings,
    from: Option<SocketAddr>,
    remote: SocketAddr,
) -> Result<SocketAddr, Errno> {
    let probe = settings.socket(remote, SocketType::DGRAM, None)?;
    if let Some(from) = from {
        bind(&probe, &from)?;
    }
    rustix::net::connect(&probe, &remote)?;
    SocketAddr::try_from(getsockname(&probe)?)
}
