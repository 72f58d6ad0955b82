//! The sockets of one engine: connects, accepts, and tells what is ready.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use rnic_core::connection::{Accepted, Associations, EndReason, PortReservation, Ready, Sockets};
use rnic_core::ids::ListenerId;
use rnic_core::tcp::TcpFailure;
use rnic_manager::{Private, PrivateFd};
use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with, getsockname};
use tracing::{debug, warn};

use crate::association::KernelAssociation;
use crate::port::{Listening, Port, lacks_room};
use crate::sctp;
use crate::socket::{KernelSocket, retried};

/// What an event's data has besides a number: it is of sockets that listen.
const OF_LISTENER: u64 = 1 << 63;

/// The data of the timer's event.
const OF_TIMER: u64 = u64::MAX;

/// How many events are taken from the kernel at once, and how often in a turn. The rest stay there
/// for the next.
const EVENTS: usize = 64;
const ROUNDS: usize = 16;

/// How long a listener pauses for which there is no room, or no descriptor.
const PAUSE: Duration = Duration::from_millis(100);

/// The sockets of one engine. What it sleeps on is readable if something is ready.
#[derive(Debug)]
pub struct KernelSockets {
    /// Listeners by the [number](Listening::number) of their sockets.
    listeners: HashMap<u32, Listener>,
    numbers: HashMap<ListenerId, u32>,
    events: Vec<EpollEvent>,
    /// Dropped before the descriptors are closed.
    _noted: [Private; 2],
    /// Goes off when listeners that paused may go on.
    timer: TimerFd,
    epoll: Epoll,
}

/// Sockets that listen.
#[derive(Debug)]
struct Listener {
    listening: Arc<Listening>,
    /// Who listens with them: usually one.
    ids: Vec<ListenerId>,
    /// There was no room for a connection, or no descriptor.
    pauses: bool,
}

impl KernelSockets {
    /// Makes the sockets of an engine.
    pub fn new() -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
        epoll.add(&timer, EpollEvent::new(EpollFlags::EPOLLIN, OF_TIMER))?;
        Ok(Self {
            listeners: HashMap::new(),
            numbers: HashMap::new(),
            events: vec![EpollEvent::empty(); EVENTS],
            _noted: [Private::new(&epoll.0.as_fd()), Private::new(&timer.as_fd())],
            timer,
            epoll,
        })
    }

    fn listener(&mut self, id: ListenerId) -> Option<&mut Listener> {
        self.listeners.get_mut(self.numbers.get(&id)?)
    }

    /// Has the kernel report sockets that listen.
    fn watch_listening(&self, listening: &Listening) -> Result<(), Errno> {
        let event = event_of(listening.number, EpollFlags::EPOLLIN);
        for socket in &listening.sockets {
            if let Err(errno) = self.epoll.add(socket, event) {
                self.forget_listening(listening);
                return Err(Errno::from_raw_os_error(errno as i32));
            }
        }
        Ok(())
    }

    fn forget_listening(&self, listening: &Listening) {
        for socket in &listening.sockets {
            let _ = self.epoll.delete(socket);
        }
    }

    /// Has a listener pause, or go on.
    fn set_pause(epoll: &Epoll, listener: &mut Listener, pauses: bool) {
        let reports = if pauses {
            EpollFlags::empty()
        } else {
            EpollFlags::EPOLLIN
        };
        listener.pauses = pauses;
        for socket in &listener.listening.sockets {
            let mut event = event_of(listener.listening.number, reports);
            if let Err(errno) = epoll.modify(socket, &mut event) {
                debug!("a listener cannot be paused: {errno}");
            }
        }
    }

    /// Has a listener pause whose peers cannot be let in now. Reporting them all the time would keep
    /// the engine from sleeping. Returns whether it did not pause before.
    fn pause_one(&mut self, id: ListenerId) -> bool {
        let epoll = &self.epoll;
        let number = self.numbers.get(&id);
        let listener = number.and_then(|number| self.listeners.get_mut(number));
        let Some(listener) = listener.filter(|found| !found.pauses) else {
            return false;
        };
        Self::set_pause(epoll, listener, true);
        let once = Expiration::OneShot(PAUSE.into());
        if let Err(errno) = self.timer.set(once, TimerSetTimeFlags::empty()) {
            debug!("no timer: {errno}; a listener does not pause");
            Self::set_pause(epoll, listener, false);
        }
        true
    }

    /// Has all listeners go on.
    fn go_on(&mut self) {
        let _ = self.timer.unset();
        for listener in self
            .listeners
            .values_mut()
            .filter(|listener| listener.pauses)
        {
            Self::set_pause(&self.epoll, listener, false);
        }
    }

    /// Adds what an event says.
    fn take(&mut self, event: EpollEvent, ready: &mut Vec<Ready>) {
        let (data, events) = (event.data(), event.events());
        if data == OF_TIMER {
            return self.go_on();
        }
        if data & OF_LISTENER != 0 {
            let listener = self.listeners.get(&(data as u32));
            let ids = listener.into_iter().flat_map(|listener| &listener.ids);
            return ready.extend(ids.map(|id| Ready::Listener(*id)));
        }
        let failed = EpollFlags::EPOLLERR | EpollFlags::EPOLLHUP;
        let ended = EpollFlags::EPOLLRDHUP | failed;
        let writable = EpollFlags::EPOLLOUT | failed;
        ready.push(Ready::Connection {
            index: data as usize,
            readable: events.intersects(EpollFlags::EPOLLIN),
            ended: events.intersects(ended),
            writable: events.intersects(writable),
        });
    }
}

/// What connections of TCP and associations of SCTP have in common.
impl KernelSockets {
    /// Begins to connect from a reserved port. `prepare` has the socket before.
    fn begin_connecting(
        reservation: &PortReservation,
        remote: SocketAddr,
        prepare: impl FnOnce(BorrowedFd<'_>),
    ) -> Result<(PrivateFd, SocketAddr), EndReason> {
        let port = port_of(reservation)?;
        let failed = |errno| {
            debug!("cannot connect from {} to {remote}: {errno}", port.local());
            reason_of(errno)
        };
        let socket = port.take_bound().map_err(failed)?;
        prepare(socket.as_fd());
        let remote = port.scoped(remote);
        match rustix::net::connect(&socket, &remote) {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok((socket, remote)),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// Has the kernel report a connected socket by this number.
    fn watch_connection(
        &self,
        fd: Result<BorrowedFd<'_>, TcpFailure>,
        index: usize,
    ) -> Result<(), EndReason> {
        let events = EpollFlags::EPOLLIN
            | EpollFlags::EPOLLOUT
            | EpollFlags::EPOLLRDHUP
            | EpollFlags::EPOLLET;
        let fd = fd.map_err(|_| EndReason::Local)?;
        let added = self.epoll.add(fd, EpollEvent::new(events, index as u64));
        added.map_err(|errno| {
            warn!("cannot watch a connection: {errno} (`sysctl fs.epoll.max_user_watches`)");
            EndReason::Unreachable
        })
    }

    fn begin_listening(
        &mut self,
        id: ListenerId,
        reservation: &PortReservation,
    ) -> Result<(), EndReason> {
        let port = port_of(reservation)?;
        let failed = |errno| {
            debug!("cannot listen on {}: {errno}", port.local());
            reason_of(errno)
        };
        let listening = port.listening().map_err(failed)?;
        let number = listening.number;
        if !self.listeners.contains_key(&number) {
            self.watch_listening(&listening).map_err(failed)?;
        }
        let listener = self.listeners.entry(number).or_insert(Listener {
            listening,
            ids: Vec::new(),
            pauses: false,
        });
        listener.ids.push(id);
        self.numbers.insert(id, number);
        Ok(())
    }

    fn end_listening(&mut self, id: ListenerId) {
        let Some(number) = self.numbers.remove(&id) else {
            return;
        };
        let Some(listener) = self.listeners.get_mut(&number) else {
            return;
        };
        listener.ids.retain(|other| *other != id);
        if listener.ids.is_empty()
            && let Some(listener) = self.listeners.remove(&number)
        {
            self.forget_listening(&listener.listening);
        }
    }

    /// Returns the next socket that a peer has connected to a listener, if there is one.
    fn accept_from(&mut self, id: ListenerId) -> Option<Accepted<PrivateFd>> {
        let listening = self.listener(id)?.listening.clone();
        for socket in &listening.sockets {
            match accepted(socket) {
                Ok(Some(accepted)) => return Some(accepted),
                Ok(None) => {}
                // The kernel says so even if no peer waits.
                Err(errno) if lacks_room(errno) && !is_waited_for(socket) => {}
                Err(errno) if lacks_room(errno) => {
                    if self.pause_one(id) {
                        warn!(
                            "peers wait at a listener: {errno}; close connections, or let the \
                             process have more descriptors (`ulimit -n`)"
                        );
                    }
                    return None;
                }
                Err(errno) => debug!("cannot accept a connection: {errno}"),
            }
        }
        None
    }

    fn poll_ready(&mut self, ready: &mut Vec<Ready>) {
        for _ in 0..ROUNDS {
            // A signal does not interrupt what does not wait.
            let taken = self.epoll.wait(&mut self.events, EpollTimeout::ZERO);
            let taken = taken.unwrap_or(0);
            for at in 0..taken {
                self.take(self.events[at], ready);
            }
            if taken < EVENTS {
                return;
            }
        }
    }
}

impl Sockets for KernelSockets {
    type Socket = KernelSocket;

    fn connect(
        &mut self,
        reservation: &PortReservation,
        remote: SocketAddr,
    ) -> Result<KernelSocket, EndReason> {
        let (socket, remote) = Self::begin_connecting(reservation, remote, |_| {})?;
        Ok(KernelSocket::new(socket, remote, false))
    }

    fn watch(&mut self, socket: &KernelSocket, index: usize) -> Result<(), EndReason> {
        self.watch_connection(socket.fd(), index)
    }

    fn unwatch(&mut self, socket: &KernelSocket) {
        if let Ok(fd) = socket.fd() {
            let _ = self.epoll.delete(fd);
        }
    }

    fn listen(&mut self, id: ListenerId, reservation: &PortReservation) -> Result<(), EndReason> {
        self.begin_listening(id, reservation)
    }

    fn unlisten(&mut self, id: ListenerId) {
        self.end_listening(id);
    }

    fn pause(&mut self, listener: ListenerId) {
        self.pause_one(listener);
    }

    fn accept(&mut self, id: ListenerId) -> Option<Accepted<KernelSocket>> {
        let accepted = self.accept_from(id)?;
        Some(Accepted {
            socket: KernelSocket::new(accepted.socket, accepted.remote, true),
            local: accepted.local,
            remote: accepted.remote,
        })
    }

    fn poll(&mut self, ready: &mut Vec<Ready>) {
        self.poll_ready(ready);
    }
}

impl Associations for KernelSockets {
    type Socket = KernelAssociation;

    fn connect(
        &mut self,
        reservation: &PortReservation,
        remote: SocketAddr,
        traffic_class: u8,
    ) -> Result<KernelAssociation, EndReason> {
        let prepare = |fd: BorrowedFd<'_>| sctp::set_traffic_class(fd, remote, traffic_class);
        let (socket, _) = Self::begin_connecting(reservation, remote, prepare)?;
        Ok(KernelAssociation::new(socket))
    }

    fn watch(&mut self, socket: &KernelAssociation, index: usize) -> Result<(), EndReason> {
        self.watch_connection(socket.fd(), index)
    }

    fn listen(&mut self, id: ListenerId, reservation: &PortReservation) -> Result<(), EndReason> {
        self.begin_listening(id, reservation)
    }

    fn unlisten(&mut self, id: ListenerId) {
        self.end_listening(id);
    }

    fn pause(&mut self, listener: ListenerId) {
        self.pause_one(listener);
    }

    fn accept(&mut self, id: ListenerId) -> Option<Accepted<KernelAssociation>> {
        let accepted = self.accept_from(id)?;
        Some(Accepted {
            socket: KernelAssociation::new(accepted.socket),
            local: accepted.local,
            remote: accepted.remote,
        })
    }

    fn poll(&mut self, ready: &mut Vec<Ready>) {
        self.poll_ready(ready);
    }
}

impl AsFd for KernelSockets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}

/// Returns the port of a reservation.
fn port_of(reservation: &PortReservation) -> Result<Arc<Port>, EndReason> {
    reservation.clone().downcast().map_err(|_| {
        warn!("a port was not reserved by KernelNet: this is an error of rnic");
        EndReason::Unreachable
    })
}

fn event_of(number: u32, events: EpollFlags) -> EpollEvent {
    EpollEvent::new(events, OF_LISTENER | u64::from(number))
}

/// Accepts the next connection that can be had, if there is one.
fn accepted(listening: &PrivateFd) -> Result<Option<Accepted<PrivateFd>>, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    loop {
        let (socket, remote) = match retried(|| acceptfrom_with(listening, flags)) {
            Ok((socket, remote)) => (PrivateFd::from(socket), remote),
            Err(Errno::AGAIN) => return Ok(None),
            // This one has failed already. There may be others behind.
            Err(errno) if is_of_connection(errno) => continue,
            Err(errno) => return Err(errno),
        };
        let ends = remote.and_then(|remote| {
            let local = getsockname(&socket).ok()?;
            Some((local.try_into().ok()?, remote.try_into().ok()?))
        });
        if let Some((local, remote)) = ends {
            return Ok(Some(Accepted {
                socket,
                local,
                remote,
            }));
        }
    }
}

/// Returns whether a peer waits to be accepted.
fn is_waited_for(listening: &PrivateFd) -> bool {
    let mut polled = [PollFd::new(listening.as_fd(), PollFlags::POLLIN)];
    poll(&mut polled, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

/// Returns whether an error of accepting is that of the connection (accept(2), "Error handling").
fn is_of_connection(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::CONNABORTED
            | Errno::NETDOWN
            | Errno::PROTO
            | Errno::NOPROTOOPT
            | Errno::HOSTDOWN
            | Errno::NONET
            | Errno::HOSTUNREACH
            | Errno::NETUNREACH
            | Errno::TIMEDOUT
            | Errno::PERM
    )
}

/// Returns why a connection or a listener ends before it has begun.
fn reason_of(errno: Errno) -> EndReason {
    match errno {
        Errno::CONNREFUSED => EndReason::Refused,
        Errno::CONNRESET => EndReason::Reset,
        Errno::TIMEDOUT => EndReason::TimedOut,
        // EADDRNOTAVAIL: a connection between the two addresses and ports exists.
        Errno::ADDRINUSE | Errno::ADDRNOTAVAIL => EndReason::InUse,
        _ => EndReason::Unreachable,
    }
}
