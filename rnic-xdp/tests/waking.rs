//! What wakes a sleeping worker.

mod common;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{eventually, frame, open, open_net, pair, send};
use rnic_core::engine::{EngineConfig, Net, Turn, mailbox};
use rnic_core::memory::table::StagTable;
use rnic_verbs::{ConnectionOptions, Device, Driver, Qp, QpCaps, QpState, SendRequest};
use rnic_xdp::testing::Namespace;
use rnic_xdp::{InterfaceConfig, Worker, XdpInterface, bell};

/// How long the worker may sleep. If nothing wakes it, it sleeps that long, and the test fails.
const LONG: Duration = Duration::from_secs(60);

/// The worker, driven by the test: while the test holds it, calls of the verbs take no turns.
struct Shared(Arc<Mutex<Worker>>);

impl Turn for Shared {
    fn turn(&mut self) -> bool {
        self.0.try_lock().is_ok_and(|mut worker| worker.turn())
    }

    fn is_settled(&self) -> bool {
        self.0.try_lock().is_ok_and(|worker| worker.is_settled())
    }

    fn wait(&mut self, _: Duration) {}
}

struct Rig {
    ours: Namespace,
    worker: Arc<Mutex<Worker>>,
    device: Device,
    /// An address that is steered to the worker.
    local: SocketAddr,
    _kept: Box<dyn std::any::Any>,
}

impl Rig {
    /// Returns it with an interface at the other end of its link.
    fn new() -> (Self, XdpInterface) {
        let (theirs, ours) = pair("wake", 1);
        let peer = open(&theirs, "east").unwrap();
        let (interface, net) = open_net(&ours, InterfaceConfig::new("west"));
        let (local, lease) = ours
            .run(|| net.listen("10.77.0.2:4420".parse().unwrap()))
            .unwrap();
        let (bell, waker) = bell().unwrap();
        let (host, end) = mailbox(Arc::new(StagTable::new(16, [1; 32])), 16, waker);
        let worker = ours
            .run(|| Worker::new(interface, EngineConfig::default(), [2; 32], end, bell).unwrap());
        let worker = Arc::new(Mutex::new(worker));
        let driver = Driver::Inline(Box::new(Shared(worker.clone())));
        let rig = Self {
            device: Device::new(host, Arc::new(net), driver),
            ours,
            worker,
            local,
            _kept: Box::new((lease, theirs)),
        };
        (rig, peer)
    }

    fn qp(&self) -> Qp {
        let cq = self.device.cq(16).unwrap();
        let qp = self.device.pd().qp(&cq, &cq, QpCaps::default()).unwrap();
        self.rest();
        qp
    }

    /// Runs turns until the namespace is quiet: notifications of a link that has just come up wake
    /// a worker too.
    fn settle(&self) {
        let mut worker = self.worker.lock().unwrap();
        let quiet = Duration::from_secs(3);
        eventually("quiet", || {
            while worker.turn() {}
            let started = Instant::now();
            worker.wait(quiet);
            started.elapsed() >= quiet - Duration::from_millis(1)
        });
    }

    /// Runs turns until there is nothing left to do.
    fn rest(&self) {
        let mut worker = self.worker.lock().unwrap();
        while worker.turn() {}
    }

    /// Makes the worker sleep until a turn has something to do, and calls `act` meanwhile.
    fn wakes(&self, what: &str, act: impl FnOnce() + Send) {
        self.rest();
        let mut worker = self.worker.lock().unwrap();
        let sleeper = std::fs::read_link("/proc/thread-self").unwrap();
        let stat = std::path::Path::new("/proc").join(sleeper).join("stat");
        let started = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                eventually("sleep", || {
                    let stat = std::fs::read_to_string(&stat).unwrap();
                    stat.rsplit_once(") ").unwrap().1.starts_with('S')
                });
                act();
            });
            // It may wake without anything to do.
            while !worker.turn() && started.elapsed() < LONG / 2 {
                worker.wait(LONG);
            }
        });
        assert!(started.elapsed() < LONG / 2, "{what} wakes it");
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_sleeping_worker_wakes() {
    let (rig, mut peer) = Rig::new();
    rig.settle();
    // In the error state, what is posted is flushed.
    let mut qp = rig.qp();
    qp.fail().unwrap();
    rig.rest();
    assert_eq!(qp.state(), QpState::Error);
    rig.wakes("a doorbell", || {
        qp.post_send(&SendRequest::send().inline(b"later")).unwrap();
    });
    let mut qp = rig.qp();
    let device = rig.device.clone();
    rig.wakes("a command", || drop(device.cq(16).unwrap()));

    // No host has this address: the SYN is sent again when its timer expires.
    let nobody = "neigh replace 10.77.0.99 lladdr 02:00:00:00:00:99 dev west nud permanent";
    rig.ours.ip(nobody).unwrap();
    let to = "10.77.0.99:9".parse().unwrap();
    let options = ConnectionOptions::default();
    rig.ours.run(|| qp.connect(to, None, options)).unwrap();
    rig.wakes("a timer", || {});
    drop(qp);

    let octets = frame(rig.local.port(), 10);
    rig.wakes("a frame", || {
        send(&mut peer, &octets);
        peer.tx.kick();
    });
}
