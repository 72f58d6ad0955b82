//! The peer on the network: it has an interface to itself, and serves all who connect.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rnic_verbs::{Device, DeviceConfig};
use rnic_xdp::testing::Namespace;

use crate::exchange::{Outcome, respond};

/// The TCP port where it listens, at all its addresses.
pub(crate) const PORT: u16 = 4420;

/// A peer that listens on an interface of its own.
pub(crate) struct Peer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Outcome<usize>>>,
}

/// Opens an interface of a namespace for this process alone.
pub(crate) fn open(namespace: &Namespace, netdev: &str) -> Device {
    let config = DeviceConfig {
        manager: None,
        ..DeviceConfig::new(netdev)
    };
    namespace.run(|| Device::open_with(&config)).unwrap()
}

impl Peer {
    /// Serves on an interface, on a thread of its own.
    pub(crate) fn serve(namespace: &Arc<Namespace>, netdev: &str) -> Self {
        let device = open(namespace, netdev);
        let listen = |address: &str| {
            let address = SocketAddr::new(address.parse().unwrap(), PORT);
            namespace.run(|| device.listen(address)).unwrap()
        };
        let listeners = ["0.0.0.0", "::"].map(listen);
        let stop = Arc::<AtomicBool>::default();
        let stopped = stop.clone();
        let namespace = namespace.clone();
        let serve = move || namespace.run(|| respond(&device, &listeners, &stopped));
        let thread = Some(std::thread::spawn(serve));
        Self { stop, thread }
    }

    /// Ends it. Returns how many have connected.
    pub(crate) fn end(mut self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().unwrap();
        thread.join().unwrap().unwrap()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // What it failed with, the test that still has it sees.
            let _ = thread.join();
        }
    }
}
