//! Queue pairs: making them, posting to them, and connecting them.

mod post;
mod sends;
mod whole;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rnic_core::connection::{ConnectionOptions, EndReason, PortReservation};
use rnic_core::engine::{Command, NetError, Peers};
use rnic_core::ids::{QpNumber, StreamId};
use rnic_core::memory::ring::{Producer, level::Level};
use rnic_core::memory::table::Access;
use rnic_core::verbs::{
    qp::{self, QueuePair},
    srq::ReceiveQueue,
    status::WcStatus,
    wr::{RecvWr, SHORT_INLINE, SHORT_SGE, SendWr},
};
use tracing::debug;

use crate::cq::{Completion, Cq, CqHandle};
use crate::device::{Device, Inner};
use crate::error::{ConnectError, Error, RequestError};
use crate::events::{ConnectionEvent, Ends, Established, QpBox};
use crate::objects::{QpFacts, ReceiveFacts};
use crate::pd::Pd;
use crate::private_data::check_private_data;
use crate::ring::ring_of;
use crate::srq::{Srq, SrqHandle};
use crate::state::{QpState, SharedState};

/// How long the reason of a failure may take to come after the completion.
const LONGEST_NEWS: Duration = Duration::from_millis(500);

/// The capacities of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpCaps {
    /// Send requests that are posted and that the engine has not taken yet (rounded up to a power
    /// of two).
    pub max_send_wr: u32,
    /// Receive requests (rounded up to a power of two).
    pub max_recv_wr: u32,
    /// Scatter/gather elements of a request, [`MAX_SGE`](crate::MAX_SGE) at most. The queues take
    /// memory for so many.
    pub max_sge: usize,
    /// Octets of inline data, [`MAX_INLINE`](crate::MAX_INLINE) at most. The send queue takes
    /// memory for so many.
    pub max_inline: usize,
    /// Every request makes a completion, also if it is unsignalled.
    pub signal_all: bool,
}

/// Scatter/gather elements that a request may have by default.
pub const DEFAULT_SGE: usize = SHORT_SGE;
/// Octets of inline data that a request may have by default.
pub const DEFAULT_INLINE: usize = SHORT_INLINE;

impl Default for QpCaps {
    fn default() -> Self {
        Self {
            max_send_wr: 128,
            max_recv_wr: 128,
            max_sge: DEFAULT_SGE,
            max_inline: DEFAULT_INLINE,
            signal_all: false,
        }
    }
}

/// A queue pair. It may move between threads, but one thread at a time uses it. Dropping it aborts
/// its connection.
#[derive(Debug)]
pub struct Qp {
    device: Device,
    number: QpNumber,
    stream: StreamId,
    /// The worker that owns it.
    worker: usize,
    caps: QpCaps,
    sq: Producer<SendWr>,
    rq: Receives,
    state: SharedState,
    /// Requests may be posted without a look at the state, which is in another cache line: the
    /// connection was established, and may have ended since, or the application has [opened](
    /// Qp::open_sends) the send queue.
    takes_sends: bool,
    /// The application decides whether requests may be posted.
    is_gated: bool,
    /// Keep the completion queues as long as completions may be written.
    _cqs: [Arc<CqHandle>; 2],
}

/// Where a queue pair's receives come from.
#[derive(Debug)]
enum Receives {
    Own(Producer<RecvWr>),
    /// Kept while the queue pair may take receives from it.
    Shared(Arc<SrqHandle>),
}

impl Pd {
    /// Makes a queue pair with these completion queues. Fails if a completion queue belongs to
    /// another device, if all queue pairs of the device are in use, if there is no memory for the
    /// queues, or if the worker has ended.
    pub fn qp(&self, send_cq: &Cq, recv_cq: &Cq, caps: QpCaps) -> Result<Qp, Error> {
        let (producer, consumer) = ring_of(caps.max_recv_wr, RecvWr::words_for(caps.max_sge))?;
        self.create_qp(
            send_cq,
            recv_cq,
            caps,
            Receives::Own(producer),
            consumer.into(),
        )
    }

    /// Makes a queue pair that takes its receives from a shared queue of this protection domain.
    /// `caps.max_recv_wr` does not apply. Fails as [`qp`](Self::qp) does, and if the shared queue
    /// belongs to another device or domain.
    pub fn qp_with_srq(
        &self,
        send_cq: &Cq,
        recv_cq: &Cq,
        srq: &Srq,
        caps: QpCaps,
    ) -> Result<Qp, Error> {
        if !srq.belongs_to(&self.device.inner) {
            return Err(Error::OtherDevice("shared receive queue"));
        }
        if srq.pd != self.id {
            return Err(Error::OtherDomain("shared receive queue"));
        }
        let receives = Receives::Shared(srq.handle.clone());
        let queue = ReceiveQueue::Shared(srq.receives());
        self.create_qp(send_cq, recv_cq, caps, receives, queue)
    }

    fn create_qp(
        &self,
        send_cq: &Cq,
        recv_cq: &Cq,
        caps: QpCaps,
        receives: Receives,
        receive_queue: ReceiveQueue,
    ) -> Result<Qp, Error> {
        let device = &self.device.inner;
        for cq in [send_cq, recv_cq] {
            // rfc: 5040-113, 5042-21 those without trust share no completion queue
            if !cq.handle.belongs_to(device) {
                return Err(Error::OtherDevice("completion queue"));
            }
        }
        let words = SendWr::words_for(caps.max_sge, caps.max_inline);
        let (sq, sq_consumer) = ring_of(caps.max_send_wr, words)?;
        let worker = match &receives {
            Receives::Own(_) => device.next_worker(),
            Receives::Shared(srq) => srq.worker,
        };
        let (number, stream) = (device.new_qp()?, device.new_stream());
        let pair = QueuePair {
            number,
            stream,
            pd: self.id,
            sq: sq_consumer,
            rq: receive_queue,
            send_cq: send_cq.handle.id,
            recv_cq: recv_cq.handle.id,
            state: qp::QpState::Idle,
            signal_all: caps.signal_all,
            rnr_retry: qp::RNR_RETRY_FOR_EVER,
            is_stopped: false,
            remote_access: Access::REMOTE,
        };
        let state = SharedState::default();
        let facts = QpFacts {
            pd: self.id,
            send_cq: send_cq.handle.id,
            recv_cq: recv_cq.handle.id,
            sq: Level::from(&sq),
            receives: match &receives {
                Receives::Own(rq) => ReceiveFacts::Own(Level::from(rq)),
                Receives::Shared(srq) => ReceiveFacts::Shared(srq.id),
            },
        };
        let mailbox = QpBox::new(stream, state.clone(), facts);
        device.router.boxes().qps.insert(number, mailbox);
        // Dropping this returns the number if a later step fails.
        let cqs = [send_cq.handle.clone(), recv_cq.handle.clone()];
        let qp = Qp {
            device: self.device.clone(),
            number,
            stream,
            worker,
            caps,
            sq,
            rq: receives,
            state,
            takes_sends: false,
            is_gated: false,
            _cqs: cqs,
        };
        device.send(worker, Command::CreateQp(Box::new(pair)))?;
        Ok(qp)
    }
}

impl Qp {
    /// Returns its number, by which completions name it.
    pub fn number(&self) -> QpNumber {
        self.number
    }

    pub(crate) fn stream(&self) -> StreamId {
        self.stream
    }

    /// Begins to connect. Fails unless the queue pair is idle.
    /// [`wait_established`](Self::wait_established) returns the outcome. Without `local`, it uses
    /// the source address of the route to the peer and any free port. A port that other connections
    /// of this device have, or had until their TIME-WAIT ends, is shared with them: what fails is a
    /// connection with both addresses and ports of one that lives
    /// ([`EndReason::InUse`](crate::EndReason::InUse)). Behind one that waits out its TIME-WAIT it
    /// begins a second after the peer's last segment, if the peer uses timestamps (RFC 6191), and
    /// fails otherwise.
    ///
    /// With [`require_protection`](ConnectionOptions::require_protection) it fails where no IPsec
    /// policy of the host protects the connection
    /// ([`NetError::Unprotected`](rnic_core::engine::NetError::Unprotected)). One with a listener of
    /// this device leaves no process, and is not protected.
    pub fn connect(
        &mut self,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        mut options: ConnectionOptions,
    ) -> Result<(), Error> {
        // A port that was named is not to be another one.
        options.own_association |= local.is_some_and(|local| local.port() != 0);
        check_private_data(&options.private_data, options.mpa_revision)?;
        self.check_idle()?;
        let mut addressed = self.port_for(remote, local);
        if options.require_protection {
            addressed = addressed.and_then(|port| self.protect(port, remote));
        }
        let (local, reservation) = addressed
            .inspect_err(|why| debug!("{}: cannot connect to {remote}: {why}", self.number))?;
        debug!(
            "{}: connects from {local} to {remote}, MPA revision {}",
            self.number, options.mpa_revision
        );
        self.begin_connecting(local, remote, options.rc);
        self.command(Command::Connect {
            qp: self.number,
            local,
            remote,
            options,
            reservation,
        })
    }

    /// Lets nothing unprotected pass a port that is reserved. A peer of this device need not be
    /// protected: nothing passes the port then, unless its listener goes at this moment.
    fn protect(
        &self,
        (local, reservation): (SocketAddr, PortReservation),
        remote: SocketAddr,
    ) -> Result<(SocketAddr, PortReservation), NetError> {
        let device = self.inner();
        let is_own = device.is_own(local, remote);
        let peer = (!is_own).then_some(remote);
        match device.net.require_protection(local, peer) {
            Ok(protected) => Ok((local, Arc::new((reservation, protected)))),
            Err(_) if is_own => Ok((local, reservation)),
            Err(why) => Err(why),
        }
    }

    /// Returns the local address and port of a new connection, reserved.
    fn port_for(
        &self,
        remote: SocketAddr,
        local: Option<SocketAddr>,
    ) -> Result<(SocketAddr, PortReservation), NetError> {
        let device = self.inner();
        let named = local.filter(|local| local.port() != 0);
        let shared = named.and_then(|local| {
            let reservation = device.ports.shared(local, &Peers::all())?;
            Some((local, reservation))
        });
        if let Some((local, reservation)) = shared {
            // There is no route to an own address, and none is needed.
            if !device.is_own(local, remote) {
                device.net.check(local, remote)?;
            }
            return Ok((local, reservation));
        }
        let worker = self.worker as u16;
        let (local, reservation) = device.reserve_active(remote, local, worker)?;
        if named.is_some() {
            device.ports.keep(local, Peers::all(), &reservation);
        }
        Ok((local, reservation))
    }

    /// Connects, and waits for the outcome. Fails as [`connect`](Self::connect) and
    /// [`wait_established`](Self::wait_established) do.
    pub fn connect_blocking(
        &mut self,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        options: ConnectionOptions,
    ) -> Result<Established, ConnectError> {
        // The engine ends the attempt itself; this is in case its worker does not run.
        let timeout = options
            .connect_timeout
            .saturating_add(Duration::from_secs(1));
        self.connect(remote, local, options)?;
        self.wait_established(timeout)
    }

    /// Waits until the connection is established or connecting has failed.
    pub fn wait_established(&mut self, timeout: Duration) -> Result<Established, ConnectError> {
        match self.next_event(timeout)? {
            Some(ConnectionEvent::Established(established)) => Ok(established),
            Some(ConnectionEvent::Rejected {
                private_data,
                peer_depths,
            }) => Err(ConnectError::Rejected {
                private_data,
                peer_depths,
            }),
            Some(
                ConnectionEvent::Failed(reason)
                | ConnectionEvent::Disconnected(reason)
                | ConnectionEvent::PeerLeft(reason),
            ) => Err(ConnectError::Failed(reason)),
            None => Err(ConnectError::TimedOut(timeout)),
        }
    }

    /// Returns the next event of the connection. Waits for it, `timeout` at most, and returns
    /// `None` after that. Fails if the device or its worker is gone.
    pub fn next_event(&mut self, timeout: Duration) -> Result<Option<ConnectionEvent>, Error> {
        self.inner().wait(timeout, |boxes| {
            boxes.qps.get_mut(&self.number)?.next_event()
        })
    }

    /// Waits until the connection has ended or connecting has failed, and returns why: the reason
    /// that failed completions do not tell. Returns `None` if neither happens within `timeout`, or
    /// if that event was read before.
    pub fn wait_ended(&mut self, timeout: Duration) -> Result<Option<EndReason>, Error> {
        loop {
            match self.next_event(timeout)? {
                Some(ConnectionEvent::Disconnected(reason) | ConnectionEvent::Failed(reason)) => {
                    return Ok(Some(reason));
                }
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }

    /// Returns the completion of a request of this queue pair if that has succeeded. Requests fail
    /// when the connection does, so the error says why it ended: that news may come a moment after
    /// the completion, and is waited for.
    pub fn check(&mut self, completion: Completion) -> Result<Completion, RequestError> {
        if completion.is_success() {
            return Ok(completion);
        }
        Err(RequestError {
            opcode: completion.opcode(),
            status: completion.status(),
            // Without a worker there is no reason to be had.
            reason: self.wait_ended(LONGEST_NEWS).ok().flatten(),
        })
    }

    /// Ends the connection in order: everything posted to the send queue so far is sent first. The
    /// outcome is a [`Disconnected`](ConnectionEvent::Disconnected) event, or
    /// [`Failed`](ConnectionEvent::Failed) if the connection is not established yet. Fails if there
    /// is no connection and no unread event.
    pub fn disconnect(&mut self) -> Result<(), Error> {
        let device = self.inner();
        if let Some(mailbox) = device.router.boxes().qps.get(&self.number) {
            match mailbox.state.get() {
                QpState::Init | QpState::Terminate | QpState::Error => {
                    return if mailbox.events.is_empty() {
                        Err(Error::NotConnected)
                    } else {
                        Ok(())
                    };
                }
                QpState::Rts => mailbox.state.set(QpState::Sqd),
                QpState::Connecting | QpState::Sqd => {}
            }
        }
        self.command(Command::Disconnect(self.number))
    }

    /// Ends the connection [in order](Self::disconnect), waits until it has ended, and returns why,
    /// as [`wait_ended`](Self::wait_ended) does. Fails as both do.
    pub fn close(mut self, timeout: Duration) -> Result<Option<EndReason>, Error> {
        self.disconnect()?;
        self.wait_ended(timeout)
    }

    /// Ends the connection at once with a RST, or with a FIN if it has [the semantics of
    /// RC](ConnectionOptions::rc). Fails only if the worker has ended.
    pub fn abort(&mut self) -> Result<(), Error> {
        self.command(Command::Abort(self.number))
    }

    /// Moves it to [`Error`](QpState::Error) from any state, as `ibv_modify_qp` does to
    /// `IBV_QPS_ERR`. What is posted completes flushed, and a connection is [aborted](Self::abort).
    /// The event is [`Disconnected`](ConnectionEvent::Disconnected).
    pub fn fail(&mut self) -> Result<(), Error> {
        self.command(Command::Fail(self.number))
    }

    /// Does as [`fail`](Self::fail), but the oldest unfinished request completes with `status`,
    /// which must be that of a failure.
    pub fn fail_as(&mut self, status: WcStatus) -> Result<(), Error> {
        let qp = self.number;
        self.command(Command::FailAs { qp, status })
    }

    /// Sets how long the peer may leave what it is owed without acknowledgment, from now on, as
    /// [`ConnectionOptions::user_timeout`] does from the beginning. Without a connection nothing is
    /// set. Fails only if the worker has ended.
    pub fn set_user_timeout(&mut self, user_timeout: Option<Duration>) -> Result<(), Error> {
        let qp = self.number;
        self.command(Command::SetUserTimeout { qp, user_timeout })
    }

    /// Sets how long requests wait for a peer that has no receive posted, on a connection with the
    /// semantics of RC ([`ConnectionOptions::rc`]): so many times the peer's
    /// [`min_rnr_timer`](ConnectionOptions::min_rnr_timer), where 0 counts as once, and a second at
    /// least. 7, the default, means for ever. When the time is over, the oldest request that is not
    /// finished completes with [`RnrRetryExceeded`](crate::WcStatus::RnrRetryExceeded), or the next
    /// one that is posted, and the connection ends. A Send has finished as soon as the peer's TCP
    /// has it: so the request that fails may be a later one than the Send that found no receive.
    /// Allowed in every state. Fails only if the worker has ended.
    pub fn set_rnr_retry(&mut self, rnr_retry: u8) -> Result<(), Error> {
        self.command(Command::SetRnrRetry {
            qp: self.number,
            rnr_retry,
        })
    }

    /// Sets what the peer may do to memory at all, from now on: rights of peers, as
    /// [`ConnectionOptions::remote_access`] does from the beginning. Without a connection nothing
    /// is set. What the peer's messages have begun to do is not taken back. Fails only if the worker
    /// has ended.
    pub fn set_remote_access(&mut self, remote_access: Access) -> Result<(), Error> {
        let qp = self.number;
        let set = |reply| Command::SetRemoteAccess {
            qp,
            remote_access,
            reply,
        };
        self.inner().ask(self.worker, Duration::MAX, set)?;
        Ok(())
    }

    /// Returns its state, as of the events that the engine has sent.
    pub fn state(&self) -> QpState {
        drop(self.inner().router.boxes());
        self.state.get()
    }

    /// Returns its capacities, as they were rounded. `max_recv_wr` is 0 if it takes its receives
    /// from a shared queue.
    pub fn caps(&self) -> QpCaps {
        let max_recv_wr = match &self.rq {
            Receives::Own(rq) => rq.capacity(),
            Receives::Shared(_) => 0,
        };
        QpCaps {
            max_send_wr: self.sq.capacity(),
            max_recv_wr,
            ..self.caps
        }
    }

    /// Returns the ends of its connection, or of its last one. `None` before it connects or
    /// accepts, and after that has failed.
    pub fn ends(&self) -> Option<Ends> {
        self.inner().router.boxes().qps.get(&self.number)?.ends
    }

    /// Fails unless it is idle. A queue pair connects once, and again only after an attempt that
    /// failed.
    pub(crate) fn check_idle(&self) -> Result<(), Error> {
        match self.state() {
            QpState::Init => Ok(()),
            state => Err(Error::NotIdle(state)),
        }
    }

    /// Moves it to Connecting, and drops the events of an earlier attempt.
    pub(crate) fn begin_connecting(&self, local: SocketAddr, remote: SocketAddr, rc: bool) {
        if let Some(mailbox) = self.inner().router.boxes().qps.get_mut(&self.number) {
            mailbox.events.clear();
            mailbox.rc = rc;
            mailbox.peer_left = false;
            mailbox.ends = Some(Ends {
                local,
                remote,
                depths: None,
            });
            mailbox.state.set(QpState::Connecting);
        }
    }

    /// Returns the number of the worker that owns it. It does not change once the queue pair is
    /// connected.
    pub fn worker(&self) -> usize {
        self.worker
    }

    /// Moves it to a worker while it is idle. Returns false if it stays, as a queue pair with a
    /// shared receive queue does.
    pub(crate) fn move_to(&mut self, worker: usize) -> Result<bool, Error> {
        if self.worker == worker {
            return Ok(true);
        }
        if matches!(self.rq, Receives::Shared(_)) {
            return Ok(false);
        }
        let qp = self.number;
        let take = |reply| Command::TakeQp { qp, reply };
        let taken = self
            .inner()
            .ask(self.worker, Duration::MAX, take)?
            .flatten();
        let taken = taken.ok_or(Error::NotIdle(self.state.get()))?;
        self.worker = worker;
        self.command(Command::CreateQp(taken))?;
        Ok(true)
    }

    fn command(&self, command: Command) -> Result<(), Error> {
        self.inner().send(self.worker, command)
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.device.inner
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        let device = self.inner();
        if device.is_forked() {
            return device.forget();
        }
        if matches!(self.state.get(), QpState::Connecting | QpState::Rts) {
            debug!("{}: destroyed, which aborts its connection", self.number);
        }
        // A worker that has ended has nothing to destroy.
        let _ = self.command(Command::DestroyQp(self.number));
        device.router.boxes().remove_qp(self.number);
        device.return_qp(self.number);
    }
}
