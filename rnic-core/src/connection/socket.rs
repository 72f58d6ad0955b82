//! Connections over TCP sockets of the host's kernel: what the kernel's side must offer.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use crate::ids::ListenerId;
use crate::tcp::{Keepalive, TcpFacts, TcpFailure};

use super::{EndReason, PortReservation};

/// A TCP socket of the kernel. No call waits. When it is dropped, it is closed: the kernel still
/// sends what it has taken.
pub trait Socket: fmt::Debug + Send {
    /// Returns whether the connection is established. It fails if connecting has failed.
    fn is_connected(&mut self) -> Result<bool, TcpFailure>;

    /// Receives octets in order, as many as there are and fit.
    fn receive(&mut self, into: &mut [u8]) -> Result<Received, TcpFailure>;

    /// Hands octets to the kernel. Returns how many it took: fewer if it has no room for more now.
    fn send(&mut self, octets: &[u8]) -> Result<usize, TcpFailure>;

    /// Returns how many octets the kernel has taken and the peer has not acknowledged. Those of a
    /// connection that has failed stay so.
    fn unacknowledged(&self) -> u64;

    /// Returns the most octets of payload of a segment, as the path is now.
    fn max_payload(&self) -> usize;

    /// Acknowledges what was received, if that was not done, without waiting for octets to send.
    fn acknowledge(&mut self);

    /// Closes our stream behind all that was sent. The peer's stays open.
    fn close(&mut self);

    /// Ends the connection with a RST, behind an acknowledgment of all that was received.
    fn reset(&mut self);

    /// Sets when a silent peer is probed.
    fn set_keepalive(&mut self, keepalive: Option<Keepalive>);

    /// Sets how long the peer may leave octets unacknowledged.
    fn set_user_timeout(&mut self, timeout: Option<Duration>);

    /// Sets the traffic class (RFC 2474) of what is sent.
    fn set_traffic_class(&mut self, class: u8);

    /// Returns what the kernel knows of the connection. Fields that it does not tell are zero.
    fn facts(&self) -> TcpFacts;
}

/// What receiving yields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// So many octets, one at least.
    Octets(usize),
    /// There are none now.
    Nothing,
    /// The peer has closed its stream, and there are no more.
    Closed,
}

/// A connection that a peer has opened.
#[derive(Debug)]
pub struct Accepted<S> {
    /// Its socket.
    pub socket: S,
    /// The address that the peer has connected to.
    pub local: SocketAddr,
    /// The peer's.
    pub remote: SocketAddr,
}

/// What a socket, or one that listens, can do now that it could not do before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// A connection, by the number with which it is [watched](Sockets::watch).
    Connection {
        /// Its number.
        index: usize,
        /// Octets have come.
        readable: bool,
        /// The peer has closed its stream, perhaps behind octets, or the connection has failed.
        ended: bool,
        /// It is connected, or has room for octets again, or has failed.
        writable: bool,
    },
    /// Peers may have connected to a listener.
    Listener(ListenerId),
}

/// The sockets of an engine.
pub trait Sockets: Send + 'static {
    /// A connection's socket.
    type Socket: Socket;

    /// Begins to connect from a reserved port.
    fn connect(
        &mut self,
        reservation: &PortReservation,
        remote: SocketAddr,
    ) -> Result<Self::Socket, EndReason>;

    /// Reports from now on when a socket becomes [`Ready`], by this number, each time once. What is
    /// ready already is reported too.
    fn watch(&mut self, socket: &Self::Socket, index: usize) -> Result<(), EndReason>;

    /// Reports no more of a socket, which goes to another engine.
    fn unwatch(&mut self, socket: &Self::Socket);

    /// Lets peers connect to a reserved port.
    fn listen(
        &mut self,
        listener: ListenerId,
        reservation: &PortReservation,
    ) -> Result<(), EndReason>;

    /// Lets no more peers connect to it. Those that were not accepted are reset.
    fn unlisten(&mut self, listener: ListenerId);

    /// Has a listener wait a moment until it is reported again. Peers wait in the kernel's queue.
    fn pause(&mut self, listener: ListenerId);

    /// Returns the next connection that a peer has opened to a listener, if there is one.
    fn accept(&mut self, listener: ListenerId) -> Option<Accepted<Self::Socket>>;

    /// Adds what has become ready to `ready`, without waiting.
    fn poll(&mut self, ready: &mut Vec<Ready>);
}
