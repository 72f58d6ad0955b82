//! One engine's sockets, driven by a test.

#![allow(dead_code, unreachable_pub)]

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rnic_core::connection::{Accepted, PortReservation, Ready, Received, Socket, Sockets};
use rnic_core::engine::Net;
use rnic_core::ids::ListenerId;
use rnic_core::tcp::{CongestionAlgorithm, TcpFailure};
use rnic_sockets::{KernelInterface, KernelNet, KernelSocket, KernelSockets, Protocol};

/// After which a test has failed that waits for something.
const PATIENCE: Duration = Duration::from_secs(20);

pub const LISTENER: ListenerId = ListenerId(7);

/// The loopback addresses of both families, with port 0.
pub fn loopback() -> [SocketAddr; 2] {
    ["127.0.0.1:0", "[::1]:0"].map(|address| address.parse().unwrap())
}

/// Returns the network of an interface, or of all.
pub fn network(name: Option<&str>) -> KernelNet {
    let interface = KernelInterface::open(name).unwrap();
    KernelNet::new(&interface, Protocol::Tcp, CongestionAlgorithm::Cubic)
}

/// Does `what` until it yields something.
pub fn until<T>(mut what: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = what() {
            return found;
        }
        assert!(Instant::now() < end, "it does not come");
        std::thread::yield_now();
    }
}

pub struct Host {
    pub sockets: KernelSockets,
    pub net: KernelNet,
}

impl Host {
    pub fn new() -> Self {
        Self::on(None)
    }

    pub fn on(name: Option<&str>) -> Self {
        Self {
            sockets: KernelSockets::new().unwrap(),
            net: network(name),
        }
    }

    /// Sleeps until the kernel reports something, and returns that.
    pub fn sleep(&mut self) -> Vec<Ready> {
        let mut ready = Vec::new();
        let end = Instant::now() + PATIENCE;
        while ready.is_empty() {
            assert!(Instant::now() < end, "nothing becomes ready");
            let mut polled = [PollFd::new(self.sockets.as_fd(), PollFlags::POLLIN)];
            poll(&mut polled, PollTimeout::try_from(PATIENCE).unwrap()).unwrap();
            self.sockets.poll(&mut ready);
        }
        ready
    }

    /// Returns whether it would sleep now.
    pub fn sleeps(&self) -> bool {
        let mut polled = [PollFd::new(self.sockets.as_fd(), PollFlags::POLLIN)];
        poll(&mut polled, PollTimeout::ZERO).unwrap() == 0
    }

    /// Does `what`, and again each time that the kernel reports something.
    pub fn when_ready<T>(&mut self, mut what: impl FnMut() -> Option<T>) -> T {
        loop {
            if let Some(done) = what() {
                return done;
            }
            self.sleep();
        }
    }

    pub fn listen(&mut self, at: SocketAddr) -> (SocketAddr, PortReservation) {
        let (local, reservation) = self.net.listen(at).unwrap();
        self.sockets.listen(LISTENER, &reservation).unwrap();
        (local, reservation)
    }

    /// Waits for the next connection.
    pub fn accept(&mut self) -> Accepted<KernelSocket> {
        loop {
            if let Some(accepted) = self.sockets.accept(LISTENER) {
                return accepted;
            }
            let ready = self.sleep();
            assert!(ready.contains(&Ready::Listener(LISTENER)), "{ready:?}");
        }
    }

    /// Connects to a peer, and returns how that ends.
    pub fn connect(&mut self, remote: SocketAddr) -> Result<KernelSocket, TcpFailure> {
        let (_, reservation) = self.net.active(remote, None, 0).unwrap();
        let mut socket = self.sockets.connect(&reservation, remote).unwrap();
        self.sockets.watch(&socket, 1).unwrap();
        self.when_ready(|| match socket.is_connected() {
            Ok(connected) => connected.then_some(Ok(())),
            Err(failure) => Some(Err(failure)),
        })?;
        Ok(socket)
    }

    /// Receives until `len` octets are there.
    pub fn receive(&mut self, socket: &mut KernelSocket, len: usize) -> Vec<u8> {
        let mut all = vec![0; len];
        let mut there = 0;
        while there < len {
            there += self.when_ready(|| match socket.receive(&mut all[there..]).unwrap() {
                Received::Octets(octets) => Some(octets),
                Received::Nothing => None,
                Received::Closed => panic!("the stream ends after {there} octets"),
            });
        }
        all
    }

    /// Waits for the end of the stream, before which nothing comes.
    pub fn receive_end(&mut self, socket: &mut KernelSocket) -> Result<(), TcpFailure> {
        self.when_ready(|| match socket.receive(&mut [0; 64]) {
            Ok(Received::Closed) => Some(Ok(())),
            Ok(Received::Nothing) => None,
            Ok(Received::Octets(octets)) => panic!("{octets} octets came"),
            Err(failure) => Some(Err(failure)),
        })
    }
}

/// Connects a peer to a host that listens at `at`. Returns both ends, the host's being watched.
pub fn pair(host: &mut Host, at: SocketAddr) -> (KernelSocket, TcpStream) {
    let (local, _reservation) = host.listen(at);
    let peer = TcpStream::connect(local).unwrap();
    let accepted = host.accept();
    assert_eq!(accepted.local, local);
    assert_eq!(accepted.remote, peer.local_addr().unwrap());
    host.sockets.watch(&accepted.socket, 0).unwrap();
    host.sockets.unlisten(LISTENER);
    (accepted.socket, peer)
}

/// Returns a peer that listens.
pub fn listening_peer(at: SocketAddr) -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(at).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}
