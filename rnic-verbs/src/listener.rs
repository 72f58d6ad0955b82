//! Listeners and connection requests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rnic_core::connection::{ConnectionOptions, PortReservation, Refusal, Refusals};
use rnic_core::engine::{Command, Known, NetError, Peers, Prefix};
use rnic_core::ids::ListenerId;
use tracing::debug;

use crate::device::{Device, Inner, LONGEST_WAIT};
use crate::error::Error;
use crate::events::{Boxes, ListenerBox, Pending};
use crate::private_data::check_private_data;
use crate::qp::Qp;

/// A local port on which peers can connect. Dropping it closes it and drops requests that wait. Up
/// to 1024 requests wait for each worker; SYNs beyond that are dropped, so that the peers try
/// again.
#[derive(Debug)]
pub struct Listener {
    device: Device,
    id: ListenerId,
    local: SocketAddr,
    refusals: Arc<Refusals>,
    /// Makes it known by another number.
    known: Option<Known>,
}

impl Device {
    /// Listens on an address and port. Port 0 chooses a free one; an unspecified address listens on
    /// all. Fails where an IPsec policy of the host forbids unprotected connections with some of
    /// the peers ([`NetError::Protected`](rnic_core::engine::NetError::Protected)). Peers to which
    /// a later policy applies are rejected.
    pub fn listen(&self, local: SocketAddr) -> Result<Listener, Error> {
        self.listen_to(local, Peers::all())
    }

    /// Listens for some peers only. For all others the port refuses connections. The host's
    /// firewall does not apply. Fails as [`listen`](Self::listen) does.
    pub fn listen_to(&self, local: SocketAddr, peers: Peers) -> Result<Listener, Error> {
        let addressed = self.inner.reserve(local, &peers);
        let addressed = addressed.inspect_err(|why| debug!("cannot listen on {local}: {why}"))?;
        self.listen_at(addressed, &peers, false)
    }

    /// Listens as [`listen_to`](Self::listen_to) does, and lets nothing pass the port, on all
    /// addresses, that the host's IPsec policies do not protect. Unprotected SYNs are dropped. Fails
    /// if the device protects nothing
    /// ([`NetError::Unprotected`](rnic_core::engine::NetError::Unprotected)).
    pub fn listen_protected(&self, local: SocketAddr, peers: Peers) -> Result<Listener, Error> {
        let reserve = || {
            let (local, reservation) = self.inner.reserve(local, &peers)?;
            let protected = self.inner.net.require_protection(local, None)?;
            let both: PortReservation = Arc::new((reservation, protected));
            Ok((local, both))
        };
        let failed = |why: &NetError| debug!("cannot listen on {local}: {why}");
        self.listen_at(reserve().inspect_err(failed)?, &peers, true)
    }

    /// Listens at another TCP port than at that of `local`, which a TCP socket has, and tells it to
    /// peers that ask the port mapper of this host for the listener at `local`, as
    /// [`find_listener`](Self::find_listener) does. Otherwise it does what
    /// [`listen_to`](Self::listen_to) does. Fails if what has the TCP port may be for RDMA, or is
    /// another user's, or if no port mapper can tell peers.
    pub fn listen_mapped(&self, local: SocketAddr, peers: Peers) -> Result<Listener, Error> {
        let failed = |why: &NetError| debug!("cannot listen on {local}: {why}");
        let any_port = SocketAddr::new(local.ip(), 0);
        let reserved = self.inner.net.listen_to(any_port, &peers);
        let (mapped, reservation) = reserved.inspect_err(failed)?;
        let known = self.inner.net.make_known(local, mapped);
        let known = known.inspect_err(failed)?;
        debug!("who asks the port mapper for {local} is sent to {mapped}");
        let ports = &self.inner.ports;
        ports.keep(mapped, peers.clone(), &reservation);
        let mut listener = self.listen_at((mapped, reservation), &peers, false)?;
        listener.known = Some(known);
        Ok(listener)
    }

    /// Listens at a port that is reserved.
    fn listen_at(
        &self,
        (local, reservation): (SocketAddr, PortReservation),
        peers: &Peers,
        is_protected: bool,
    ) -> Result<Listener, Error> {
        let id = ListenerId(self.inner.new_listener());
        let mailbox = ListenerBox {
            is_protected,
            ..ListenerBox::default()
        };
        self.inner.router.boxes().listeners.insert(id, mailbox);
        self.inner.objects.lock().listeners.insert(id, local);
        // Dropping this removes the mailbox again if a later step fails.
        let listener = Listener {
            device: self.clone(),
            id,
            local,
            refusals: Arc::default(),
            known: None,
        };
        self.inner.send_all(|| Command::Listen {
            listener: id,
            local,
            peers: peers.clone(),
            reservation: reservation.clone(),
            refusals: listener.refusals.clone(),
        })?;
        debug!("listening on {local}");
        Ok(listener)
    }

    /// Returns the next connection request to any of these listeners of this device. Waits for
    /// `timeout` at most. Fails, once no request waits, if one of the listeners has
    /// [ended](Error::ListenerEnded).
    pub fn next_request(
        &self,
        listeners: &[Listener],
        timeout: Duration,
    ) -> Result<Option<ConnectRequest>, Error> {
        let device = &self.inner;
        // A deadline that overflows is none.
        let deadline = Instant::now().checked_add(timeout);
        loop {
            let left = deadline.map_or(LONGEST_WAIT, |at| {
                at.saturating_duration_since(Instant::now())
            });
            let found = device.wait(left, |boxes| next_of(boxes, listeners))?;
            let request = found.transpose()?.map(|pending| ConnectRequest {
                device: device.clone(),
                pending,
                decided: false,
            });
            // Dropping a request that a policy forbids rejects it.
            match request {
                Some(request) if !device.net.admits(request.local(), request.peer()) => {
                    debug!(
                        "{}: an IPsec policy of this host forbids it, or rnicd does not say that none does",
                        request.peer()
                    );
                }
                None if deadline.is_none() => {}
                request => return Ok(request),
            }
        }
    }
}

impl Device {
    /// Asks the port mapper of a peer's host (UDP port 3935) where the listener at `remote` really
    /// is, and calls `found` with that: with `remote` itself if there is no mapper, or it does not
    /// know the listener. On a shared device only hosts are asked to which the next hop is known:
    /// see [`resolves`](Self::resolves). `found` is called within some seconds, by any thread, and
    /// must not wait. If the device is closed, it is dropped.
    pub fn find_listener(
        &self,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        found: impl FnOnce(SocketAddr) + Send + 'static,
    ) {
        self.inner.net.find_listener(remote, local, Box::new(found));
    }
}

impl Inner {
    /// Reserves a port to listen on. Earlier connections keep their port reserved: a new listener
    /// shares that.
    fn reserve(
        &self,
        local: SocketAddr,
        peers: &Peers,
    ) -> Result<(SocketAddr, PortReservation), NetError> {
        let listens = self
            .objects
            .lock()
            .listeners
            .values()
            .any(|at| *at == local);
        if let Some(reservation) = self.ports.shared(local, peers)
            && !listens
        {
            return Ok((local, reservation));
        }
        let (local, reservation) = self.net.listen_to(local, peers)?;
        self.ports.keep(local, peers.clone(), &reservation);
        Ok((local, reservation))
    }
}

impl Inner {
    /// Returns whether the peer of a connection is a listener of this device. One of any address
    /// has all of this host's, of which only the connection's own is known here.
    pub(crate) fn is_own(&self, local: SocketAddr, remote: SocketAddr) -> bool {
        let objects = self.objects.lock();
        let mut at_port = objects
            .listeners
            .values()
            .filter(|at| at.port() == remote.port() && at.is_ipv4() == remote.is_ipv4());
        at_port.any(|at| {
            let any_address = at.ip().is_unspecified();
            at.ip() == remote.ip() || any_address && local.ip() == remote.ip()
        })
    }

    /// Reserves a port to connect from.
    pub(crate) fn reserve_active(
        &self,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        worker: u16,
    ) -> Result<(SocketAddr, PortReservation), NetError> {
        let reserved = self.net.active(remote, local, worker);
        match reserved {
            Err(NetError::NoRoute(..) | NetError::Other { .. }) => {
                self.reserve_own(remote, local).unwrap_or(reserved)
            }
            reserved => reserved,
        }
    }

    /// Reserves the port of a connection with a listener of this device, or returns `None` if its
    /// peer is none. No route leads there, and none is needed.
    fn reserve_own(
        &self,
        remote: SocketAddr,
        local: Option<SocketAddr>,
    ) -> Option<Result<(SocketAddr, PortReservation), NetError>> {
        let stated = local.filter(|local| !local.ip().is_unspecified());
        let port = local.map_or(0, |local| local.port());
        let local = stated.unwrap_or(SocketAddr::new(remote.ip(), port));
        if !self.is_own(local, remote) {
            return None;
        }
        // Nobody connects from the network to a port that only this connection can have. One that
        // was chosen may be shared.
        let peers = match port {
            0 => Peers::only([Prefix::new(remote.ip(), u8::MAX)]),
            _ => Peers::all(),
        };
        match self.net.listen_to(local, &peers) {
            // The listener is one of any address, and the peer is another host.
            Err(NetError::NotLocal(..)) => None,
            reserved => Some(reserved),
        }
    }
}

/// Returns the next request to any of these listeners, or why one of them gets no more.
fn next_of(boxes: &mut Boxes, listeners: &[Listener]) -> Option<Result<Pending, Error>> {
    let ids = || listeners.iter().map(|listener| listener.id);
    let request = ids().find_map(|id| boxes.listeners.get_mut(&id)?.requests.pop_front());
    let ended = || ids().find_map(|id| boxes.listeners.get(&id)?.ended.clone());
    match request {
        Some(request) => Some(Ok(request)),
        None => ended().map(|reason| Err(Error::ListenerEnded(reason))),
    }
}

impl Listener {
    /// Returns the local address and port.
    pub fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// Returns the next connection request. Waits for `timeout` at most. Fails if the listener has
    /// [ended](Error::ListenerEnded).
    pub fn next_request(&self, timeout: Duration) -> Result<Option<ConnectRequest>, Error> {
        self.device
            .next_request(std::slice::from_ref(self), timeout)
    }
}

impl Listener {
    /// Lets other peers connect than before, as [`Device::listen_to`] says it of those that are
    /// named there. Fails only if a worker has ended.
    pub fn limit(&self, peers: &Peers) -> Result<(), Error> {
        let listener = self.id;
        self.device.inner.send_all(|| Command::Limit {
            listener,
            peers: peers.clone(),
        })
    }

    /// Removes and returns the oldest of the last [`Refusals::KEPT`] peers that connected and
    /// failed before their connection request: what they sent is no MPA Request that is supported
    /// here, or none came in time.
    pub fn next_refusal(&self) -> Option<Refusal> {
        self.refusals.take()
    }

    /// Returns the number of peers that failed in this way.
    pub fn refused(&self) -> u64 {
        self.refusals.count()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.device.inner.is_forked() {
            return self.device.inner.forget();
        }
        debug!("no longer listening on {}", self.local);
        // Nobody is sent there any more.
        self.known = None;
        // A worker that has ended does not listen.
        let id = self.id;
        let _ = self.device.inner.send_all(|| Command::Unlisten(id));
        self.device.inner.router.boxes().listeners.remove(&id);
        self.device.inner.objects.lock().listeners.remove(&id);
    }
}

/// A connection request of a peer. Dropping it rejects the peer.
pub struct ConnectRequest {
    device: Arc<Inner>,
    pending: Pending,
    decided: bool,
}

impl ConnectRequest {
    /// Returns the peer's address.
    pub fn peer(&self) -> SocketAddr {
        self.pending.peer
    }

    /// Returns the local address to which it connected.
    pub fn local(&self) -> SocketAddr {
        self.pending.local
    }

    /// Returns the private data of its MPA Request.
    pub fn private_data(&self) -> &[u8] {
        &self.pending.private_data
    }

    /// Returns its IRD: Reads that it accepts at once. It is 0 if its MPA revision does not state
    /// it.
    pub fn ird(&self) -> u16 {
        self.pending.ird
    }

    /// Returns its ORD: Reads that it wants to have outstanding. It is 0 if its MPA revision does
    /// not state it.
    pub fn ord(&self) -> u16 {
        self.pending.ord
    }

    /// Returns the number of the worker that received it.
    fn worker(&self) -> usize {
        self.pending.request.engine()
    }

    /// Returns its MPA revision.
    pub fn mpa_revision(&self) -> u8 {
        self.pending.mpa_revision
    }

    /// Accepts with an idle queue pair, whose receives should be posted by now. With any other
    /// queue pair it fails, and the peer is rejected; so it does with `require_protection`, unless
    /// its listener is one of [`Device::listen_protected`]. Of the options, `crc`, `ird`, `ord`,
    /// `private_data`, `keepalive`, `user_timeout` and `remote_access` apply.
    /// [`Qp::wait_established`] returns the outcome.
    pub fn accept(mut self, qp: &mut Qp, options: ConnectionOptions) -> Result<(), Error> {
        if !Arc::ptr_eq(&self.device, qp.inner()) {
            return Err(Error::OtherDevice("queue pair"));
        }
        check_private_data(&options.private_data, self.pending.mpa_revision)?;
        if options.require_protection && !self.pending.is_protected {
            return Err(Error::Net(NetError::Unprotected {
                address: self.local(),
                reason: "its listener takes unprotected connections too (`listen_protected`)",
            }));
        }
        qp.check_idle()?;
        // A queue pair with a shared receive queue cannot move.
        let is_there = match self.device.moves_connections() {
            true => qp.worker() == self.worker(),
            false => qp.move_to(self.worker())?,
        };
        self.decided = true;
        debug!("{}: accepts {}", qp.number(), self.peer());
        qp.begin_connecting(self.local(), self.peer(), options.rc);
        let (request, engine) = (self.pending.request, qp.worker() as u16);
        let (qp, stream) = (qp.number(), qp.stream());
        let accept = if is_there {
            Command::Accept {
                request,
                qp,
                options,
            }
        } else {
            Command::AcceptElsewhere {
                engine,
                request,
                qp,
                stream,
                options,
            }
        };
        self.device.send(self.worker(), accept)
    }

    /// Rejects the peer, with private data for it. Fails with [`Error::PrivateData`] if they are
    /// longer than MPA start-up carries, and if the worker has ended.
    pub fn reject(mut self, private_data: &[u8]) -> Result<(), Error> {
        check_private_data(private_data, self.pending.mpa_revision)?;
        self.send_reject(private_data.to_vec())
    }

    fn send_reject(&mut self, private_data: Vec<u8>) -> Result<(), Error> {
        self.decided = true;
        debug!("rejects {}", self.peer());
        let reject = Command::Reject {
            request: self.pending.request,
            private_data,
        };
        self.device.send(self.worker(), reject)
    }
}

impl Drop for ConnectRequest {
    fn drop(&mut self) {
        if self.device.is_forked() {
            return self.device.forget();
        }
        if !self.decided {
            // A worker that has ended has reset its connections.
            let _ = self.send_reject(Vec::new());
        }
    }
}

impl std::fmt::Debug for ConnectRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.pending.fmt(f)
    }
}
