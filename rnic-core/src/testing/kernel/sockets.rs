//! The sockets of the kernel, as an engine uses them.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use crate::connection::{Accepted, EndReason, PortReservation, Ready, Received, Socket, Sockets};
use crate::ids::ListenerId;
use crate::tcp::{Keepalive, TcpFacts, TcpFailure};

use super::connection::{KernelConnection, Owner};
use super::stack::{Kernel, Listening, Reserved, SharedKernel, lock};

/// The sockets of an engine in a virtual kernel.
pub struct VirtualSockets(pub(in crate::testing) SharedKernel);

/// A TCP socket of a virtual kernel.
pub struct VirtualSocket {
    kernel: SharedKernel,
    index: usize,
}

impl fmt::Debug for VirtualSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("VirtualSocket").field(&self.index).finish()
    }
}

impl VirtualSocket {
    fn with<R>(&self, call: impl FnOnce(&mut KernelConnection, &mut Kernel) -> R) -> R {
        let mut kernel = lock(&self.kernel);
        let kernel = &mut *kernel;
        // It is put back at once.
        let mut connections = std::mem::take(&mut kernel.connections);
        let result = call(&mut connections[self.index], kernel);
        kernel.connections = connections;
        result
    }
}

impl Socket for VirtualSocket {
    fn is_connected(&mut self) -> Result<bool, TcpFailure> {
        self.with(|connection, _| {
            let is_connected = connection.is_connected();
            connection.failure().map_or(Ok(is_connected), Err)
        })
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Received, TcpFailure> {
        self.with(|connection, kernel| connection.receive(into, &mut kernel.rng))
    }

    fn send(&mut self, octets: &[u8]) -> Result<usize, TcpFailure> {
        self.with(|connection, kernel| connection.send(octets, &mut kernel.rng))
    }

    fn unacknowledged(&self) -> u64 {
        self.with(|connection, _| connection.unacknowledged())
    }

    fn max_payload(&self) -> usize {
        self.with(|connection, _| connection.tcp.max_payload())
    }

    /// It does so soon by itself.
    fn acknowledge(&mut self) {}

    fn close(&mut self) {
        self.with(|connection, _| connection.close());
    }

    fn reset(&mut self) {
        self.with(|connection, _| connection.reset());
    }

    fn set_keepalive(&mut self, keepalive: Option<Keepalive>) {
        self.with(|connection, _| connection.tcp.set_keepalive(keepalive));
    }

    fn set_user_timeout(&mut self, timeout: Option<Duration>) {
        self.with(|connection, _| connection.tcp.set_user_timeout(timeout));
    }

    fn set_traffic_class(&mut self, class: u8) {
        self.with(|connection, _| connection.traffic_class = class);
    }

    fn facts(&self) -> TcpFacts {
        self.with(|connection, kernel| connection.tcp.facts(kernel.now))
    }
}

impl Drop for VirtualSocket {
    fn drop(&mut self) {
        self.with(|connection, _| connection.leave());
    }
}

impl VirtualSockets {
    fn socket(&self, index: usize) -> VirtualSocket {
        VirtualSocket {
            kernel: self.0.clone(),
            index,
        }
    }
}

/// Returns the port of a reservation.
fn port_of(reservation: &PortReservation) -> Result<SocketAddr, EndReason> {
    let reserved = reservation.downcast_ref::<Reserved>();
    reserved
        .map(|reserved| reserved.local)
        .ok_or(EndReason::Unreachable)
}

impl Sockets for VirtualSockets {
    type Socket = VirtualSocket;

    fn connect(
        &mut self,
        reservation: &PortReservation,
        remote: SocketAddr,
    ) -> Result<VirtualSocket, EndReason> {
        let local = port_of(reservation)?;
        let index = lock(&self.0).connect(local, remote)?;
        Ok(self.socket(index))
    }

    fn watch(&mut self, socket: &VirtualSocket, index: usize) -> Result<(), EndReason> {
        socket.with(|connection, _| connection.watch(index));
        Ok(())
    }

    fn unwatch(&mut self, socket: &VirtualSocket) {
        socket.with(|connection, _| connection.unwatch());
    }

    fn listen(
        &mut self,
        listener: ListenerId,
        reservation: &PortReservation,
    ) -> Result<(), EndReason> {
        let listening = Listening {
            local: port_of(reservation)?,
            queue: Default::default(),
            is_ready: false,
        };
        lock(&self.0).listeners.insert(listener, listening);
        Ok(())
    }

    fn unlisten(&mut self, listener: ListenerId) {
        lock(&self.0).unlisten(listener);
    }

    fn accept(&mut self, listener: ListenerId) -> Option<Accepted<VirtualSocket>> {
        let mut kernel = lock(&self.0);
        let index = kernel.listeners.get_mut(&listener)?.queue.pop_front()?;
        let connection = &mut kernel.connections[index];
        connection.owner = Owner::Socket;
        let key = connection.key;
        drop(kernel);
        Some(Accepted {
            socket: self.socket(index),
            local: key.local,
            remote: key.remote,
        })
    }

    fn pause(&mut self, listener: ListenerId) {
        if let Some(listening) = lock(&self.0).listeners.get_mut(&listener) {
            listening.is_ready = true;
        }
    }

    fn poll(&mut self, ready: &mut Vec<Ready>) {
        let kernel = &mut *lock(&self.0);
        for (listener, listening) in &mut kernel.listeners {
            if std::mem::take(&mut listening.is_ready) {
                ready.push(Ready::Listener(*listener));
            }
        }
        for (_, connection) in &mut kernel.connections {
            ready.extend(connection.take_ready(&mut kernel.rng));
        }
    }
}
