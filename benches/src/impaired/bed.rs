//! Two hosts and the box between them, in three network namespaces.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

use rnic_xdp::testing::{Namespace, VethEnd, disable_offloads, veth_pair};

use super::forwarder::{Account, Forwarder};
use super::lane::Impairments;
use crate::failure::Failure;

/// One of the two hosts.
pub(crate) struct ImpairedHost {
    namespace: Namespace,
    pub(crate) netdev: &'static str,
    pub(crate) address: Ipv4Addr,
    mac: &'static str,
}

impl ImpairedHost {
    /// Runs a function on a thread in the host's namespace. Sockets that it opens stay in that
    /// namespace.
    pub(crate) fn run<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        self.namespace.run(body)
    }

    pub(crate) fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.address.into(), port)
    }

    /// Joins it to the box, without offloads: the wire carries what the kernel would give to a NIC
    /// without them.
    fn join(&self, middle: &Namespace, port: &str) -> Result<(), Failure> {
        let address = format!("{}/24", self.address);
        let end = |namespace, name, addresses| VethEnd {
            namespace,
            name,
            addresses,
        };
        veth_pair(
            end(&self.namespace, self.netdev, &address),
            end(middle, port, ""),
            1,
        )?;
        self.namespace.ip(&format!(
            "link set dev {} address {}",
            self.netdev, self.mac
        ))?;
        // Without IPv6, which sends packets on its own.
        for (namespace, netdev) in [(&self.namespace, self.netdev), (middle, port)] {
            namespace.ip(&format!("link set dev {netdev} addrgenmode none"))?;
            namespace.ip(&format!("-6 addr flush dev {netdev}"))?;
        }
        disable_offloads(&self.namespace, self.netdev)?;
        disable_offloads(middle, port)?;
        Ok(())
    }

    /// Adds the neighbour entry of the other host, so that no ARP passes the box.
    fn knows(&self, other: &Self) -> Result<(), Failure> {
        self.namespace.ip(&format!(
            "neigh replace {} lladdr {} dev {} nud permanent",
            other.address, other.mac, self.netdev
        ))?;
        Ok(())
    }
}

/// The hosts: rnic is on the left, the kernel on the right, or on both sides.
pub(crate) struct ImpairedBed {
    pub(crate) left: ImpairedHost,
    pub(crate) right: ImpairedHost,
    middle: Namespace,
}

/// The interfaces of the box.
const PORTS: [&str; 2] = ["box-left", "box-right"];

impl ImpairedBed {
    /// Makes the namespaces and interfaces. Dropping it removes them.
    pub(crate) fn new() -> Result<Self, Failure> {
        let host = |netdev, last, mac| -> Result<ImpairedHost, Failure> {
            Ok(ImpairedHost {
                namespace: Namespace::new("bench")?,
                netdev,
                address: Ipv4Addr::new(10, 77, 20, last),
                mac,
            })
        };
        let bed = Self {
            left: host("left", 1, "02:00:00:4d:14:01")?,
            right: host("right", 2, "02:00:00:4d:14:02")?,
            middle: Namespace::new("bench")?,
        };
        bed.left.join(&bed.middle, PORTS[0])?;
        bed.right.join(&bed.middle, PORTS[1])?;
        bed.left.knows(&bed.right)?;
        bed.right.knows(&bed.left)?;
        Ok(bed)
    }

    /// Runs a function while the box passes frames, impaired in either direction. Also returns the
    /// counters of the frames from the left and from the right.
    pub(crate) fn while_impaired<T>(
        &self,
        impairments: Impairments,
        seed: u64,
        capture: Option<&Path>,
        body: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<(T, [Account; 2]), Failure> {
        let stop = &AtomicBool::new(false);
        let (opened, is_open) = mpsc::channel();
        let pass = move || {
            let forwarder = Forwarder::open(PORTS, [impairments; 2], seed, capture)?;
            // The thread that runs `body` waits for this.
            let _ = opened.send(());
            forwarder.run(stop)
        };
        thread::scope(|scope| {
            let running = scope.spawn(|| self.middle.run(pass));
            let outcome = match is_open.recv() {
                Ok(()) => body(),
                Err(_) => Err("the box does not open".into()),
            };
            stop.store(true, Ordering::Release);
            let accounts = running
                .join()
                .unwrap_or_else(|_| Err("the box panicked".into()));
            let accounts = accounts?;
            Ok((outcome?, accounts))
        })
    }
}
