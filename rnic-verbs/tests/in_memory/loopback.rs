//! Connections of a device with itself: nothing goes to the network.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rnic_core::engine::{EngineConfig, Turn};
use rnic_core::in_memory::{InMemoryDevice, pair, pair_of_workers};
use rnic_verbs::{
    Access, ConnectError, ConnectionOptions, Device, Driver, EndReason, HugePages, Listener,
    QpCaps, QpState, Region, RemoteAddress, SendRequest, SrqCaps, Stag, WcStatus,
};

use crate::fixture::{PORT, SOON, Side, open, register, settle};

pub(crate) const V4: &str = "192.0.2.1";
const V6: &str = "2001:db8::1";

pub(crate) fn plain() -> ConnectionOptions {
    ConnectionOptions::default()
}

pub(crate) fn rc() -> ConnectionOptions {
    ConnectionOptions {
        rc: true,
        ..plain()
    }
}

pub(crate) fn inline(end: InMemoryDevice) -> Device {
    open(end, false)
}

fn threaded(end: InMemoryDevice) -> Device {
    open(end, true)
}

fn standby(end: InMemoryDevice) -> Device {
    let driver = Driver::standby(Box::new(end.worker)).unwrap();
    Device::new(end.host, end.net, driver)
}

/// A device with a listener, and the device at the other end of the wire.
pub(crate) struct Rig {
    listener: Listener,
    pub(crate) device: Device,
    other: Device,
}

impl Rig {
    pub(crate) fn new(open: fn(InMemoryDevice) -> Device, address: &str) -> Self {
        let (one, other) = pair([[1; 32], [2; 32]]);
        let device = open(one);
        let local = SocketAddr::new(address.parse().unwrap(), PORT);
        Self {
            listener: device.listen(local).unwrap(),
            device,
            other: inline(other),
        }
    }

    fn at(&self) -> SocketAddr {
        self.listener.local_address()
    }

    /// Connects two queue pairs of the device.
    pub(crate) fn join(&self, near: &mut Side, far: &mut Side, options: &ConnectionOptions) {
        near.qp.connect(self.at(), None, options.clone()).unwrap();
        let request = self.listener.next_request(SOON).unwrap().unwrap();
        assert_eq!(request.local(), self.at());
        assert_eq!(request.peer().ip(), self.at().ip());
        request.accept(&mut far.qp, options.clone()).unwrap();
        near.qp.wait_established(SOON).unwrap();
    }

    pub(crate) fn connected(&self, options: &ConnectionOptions) -> (Side, Side) {
        let (mut near, mut far) = (Side::new(&self.device), Side::new(&self.device));
        self.join(&mut near, &mut far, options);
        (near, far)
    }
}

impl Drop for Rig {
    /// Nothing was on the wire.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let other = self.other.snapshot(SOON).unwrap().unwrap();
            assert_eq!(other.engine.frames_received, 0);
        }
    }
}

#[test]
fn every_operation_works_between_two_queue_pairs_of_a_device() {
    for open in [inline, threaded, standby] {
        for (address, options) in [(V4, plain()), (V4, rc()), (V6, plain()), (V6, rc())] {
            let rig = Rig::new(open, address);
            let (mut near, mut far) = rig.connected(&options);
            exchange(&mut near, &mut far);
            exchange(&mut near, &mut far);
        }
    }
}

/// Sends, Writes, Reads and adds.
pub(crate) fn exchange(near: &mut Side, far: &mut Side) {
    let text: Vec<u8> = (0..100_000u32).map(|at| (at * 7 / 3) as u8).collect();
    near.mr.write(0, &text).unwrap();
    let piece = [near.mr.sge(0, 100_000)];
    let write = SendRequest::write(far.mr.remote(3)).memory(&piece).wr_id(1);
    near.qp.post_send(&write).unwrap();
    assert_eq!(near.done().wr_id(), 1);
    assert_eq!(far.mr.copy(3, 100_000).unwrap(), text);

    let sink = [near.mr.sge(200_000, 100_000)];
    let read = SendRequest::read(far.mr.remote(3)).memory(&sink).wr_id(2);
    near.qp.post_send(&read).unwrap();
    assert_eq!(near.done().wr_id(), 2);
    assert_eq!(near.mr.copy(200_000, 100_000).unwrap(), text);

    far.qp.post_recv(3, &[far.mr.sge(300_000, 10)]).unwrap();
    let hello = SendRequest::send().inline(b"hello").wr_id(4);
    near.qp.post_send(&hello).unwrap();
    assert_eq!((far.done().wr_id(), near.done().wr_id()), (3, 4));
    assert_eq!(far.mr.copy(300_000, 5).unwrap(), b"hello");
    near.qp.post_recv(5, &[near.mr.sge(400_000, 10)]).unwrap();
    let back = SendRequest::send().inline(b"back").wr_id(6);
    far.qp.post_send(&back).unwrap();
    assert_eq!((near.done().wr_id(), far.done().wr_id()), (5, 6));
    assert_eq!(near.mr.copy(400_000, 4).unwrap(), b"back");

    let region = Region::allocate_unlocked(8, HugePages::None).unwrap();
    let access = Access::REMOTE_ATOMIC;
    let number = far.pd.register(&Arc::new(region), access).unwrap();
    number.atomic(0).unwrap().store(40, Ordering::Release);
    let found = [near.mr.sge(0, 8)];
    let add = SendRequest::fetch_add(number.remote(0), 2).memory(&found);
    near.qp.post_send(&add).unwrap();
    near.done();
    assert_eq!(near.mr.atomic(0).unwrap().load(Ordering::Acquire), 40);
    assert_eq!(number.atomic(0).unwrap().load(Ordering::Acquire), 42);
}

#[test]
fn eight_megabytes_go_both_ways_on_two_connections_at_once() {
    const LEN: u32 = 8 << 20;
    for open in [inline, threaded, standby] {
        for options in [plain(), rc()] {
            let rig = Rig::new(open, V4);
            let mut pairs = [rig.connected(&options), rig.connected(&options)];
            for (tag, (near, far)) in (1u8..).zip(&mut pairs) {
                for (side, tag) in [(near, tag), (far, tag + 10)] {
                    side.mr = register(&side.pd, 2 * LEN as usize);
                    side.mr.write(0, &vec![tag; LEN as usize]).unwrap();
                }
            }
            for (near, far) in &mut pairs {
                let there = [&far.mr, &near.mr].map(|mr| mr.remote(LEN as usize));
                for (from, to) in [near, far].into_iter().zip(there) {
                    let piece = [from.mr.sge(0, LEN)];
                    let write = SendRequest::write(to).memory(&piece);
                    from.qp.post_send(&write).unwrap();
                }
            }
            for (tag, (near, far)) in (1u8..).zip(&mut pairs) {
                near.done();
                far.done();
                for (side, tag) in [(near, tag + 10), (far, tag)] {
                    let came = side.mr.copy(LEN as usize, LEN as usize).unwrap();
                    assert!(came.iter().all(|octet| *octet == tag));
                }
            }
        }
    }
}

#[test]
fn a_wrong_stag_is_found_out_as_from_any_peer() {
    for options in [plain(), rc()] {
        let rig = Rig::new(inline, V4);
        let (mut near, mut far) = rig.connected(&options);
        let nowhere = RemoteAddress {
            stag: Stag(0),
            ..far.mr.remote(0)
        };
        near.qp
            .post_send(&SendRequest::write(nowhere).inline(b"x"))
            .unwrap();
        assert_eq!(near.completion().status(), WcStatus::RemoteAccessError);
        for side in [&mut near, &mut far] {
            let reason = side.end();
            assert!(reason.to_string().contains("STag"), "{reason}");
        }
        // The port is free for the next.
        let (mut near, mut far) = rig.connected(&options);
        exchange(&mut near, &mut far);
    }
}

/// With requests that wait, and while frames are on their way.
#[test]
fn both_ends_can_be_destroyed_in_either_order() {
    for options in [plain(), rc()] {
        for turns in 0..6 {
            for near_first in [true, false] {
                let rig = Rig::new(inline, V4);
                let (mut near, far) = rig.connected(&options);
                let piece = [near.mr.sge(0, 1 << 20)];
                let write = SendRequest::write(far.mr.remote(0)).memory(&piece);
                near.qp.post_send(&write).unwrap();
                for _ in 0..turns {
                    rig.device.drive();
                }
                let (first, mut second) = if near_first { (near, far) } else { (far, near) };
                drop(first);
                if turns % 2 == 0 {
                    settle(&[&rig.device]);
                    second.qp.fail().unwrap();
                    settle(&[&rig.device]);
                    assert_eq!(second.qp.state(), QpState::Error);
                }
                drop(second);
                settle(&[&rig.device]);
                let left = rig.device.snapshot(SOON).unwrap().unwrap().connections;
                let open = |state: &str| !state.starts_with("TimeWait");
                assert!(!left.iter().any(|one| open(&one.state)), "{left:?}");
                let (mut near, mut far) = rig.connected(&options);
                exchange(&mut near, &mut far);
            }
        }
    }
}

#[test]
fn the_device_can_go_while_frames_wait() {
    for open in [inline, threaded, standby] {
        let rig = Rig::new(open, V4);
        let (mut near, far) = rig.connected(&plain());
        let piece = [near.mr.sge(0, 1 << 20)];
        let write = SendRequest::write(far.mr.remote(0)).memory(&piece);
        near.qp.post_send(&write).unwrap();
        rig.device.drive();
    }
}

#[test]
fn a_listener_of_any_address_and_a_chosen_port_do_too() {
    let (one, other) = pair([[1; 32], [2; 32]]);
    let device = inline(one);
    let any = SocketAddr::new("0.0.0.0".parse().unwrap(), PORT);
    let rig = Rig {
        listener: device.listen(any).unwrap(),
        device,
        other: inline(other),
    };
    let own = SocketAddr::new(V4.parse().unwrap(), PORT);
    let here = SocketAddr::new(own.ip(), 1234);
    let (mut near, mut far) = (Side::new(&rig.device), Side::new(&rig.device));
    near.qp.connect(own, Some(here), plain()).unwrap();
    let request = rig.listener.next_request(SOON).unwrap().unwrap();
    assert_eq!((request.peer(), request.local()), (here, own));
    request.accept(&mut far.qp, plain()).unwrap();
    near.qp.wait_established(SOON).unwrap();
    exchange(&mut near, &mut far);
    // From the same port to another listener, and from the listener's port to itself.
    let second = SocketAddr::new(own.ip(), PORT + 1);
    let listener = rig.device.listen(second).unwrap();
    let (mut near, mut far) = (Side::new(&rig.device), Side::new(&rig.device));
    near.qp.connect(second, Some(here), plain()).unwrap();
    let request = listener.next_request(SOON).unwrap().unwrap();
    request.accept(&mut far.qp, plain()).unwrap();
    near.qp.wait_established(SOON).unwrap();
    exchange(&mut near, &mut far);
    let mut alone = Side::new(&rig.device);
    let failed = alone.qp.connect_blocking(second, Some(second), plain());
    assert!(
        matches!(failed, Err(ConnectError::Failed(EndReason::InUse))),
        "{failed:?}"
    );
}

#[test]
fn a_rejected_connection_and_a_listener_that_closes_are_told() {
    let rig = Rig::new(inline, V4);
    let mut near = Side::new(&rig.device);
    near.qp.connect(rig.at(), None, plain()).unwrap();
    let request = rig.listener.next_request(SOON).unwrap().unwrap();
    request.reject(b"no").unwrap();
    let failed = near.qp.wait_established(SOON);
    assert!(matches!(failed, Err(ConnectError::Rejected { .. })));
    let mut near = Side::new(&rig.device);
    let listener = rig.device.listen((rig.at().ip(), 77).into()).unwrap();
    near.qp
        .connect(listener.local_address(), None, plain())
        .unwrap();
    settle(&[&rig.device]);
    drop(listener);
    let failed = near.qp.wait_established(SOON);
    assert!(matches!(failed, Err(ConnectError::Failed(_))), "{failed:?}");
}

/// Queue pairs of a shared receive queue stay at their worker: frames go between the workers.
#[test]
fn queue_pairs_of_several_workers_reach_each_other() {
    const WORKERS: usize = 3;
    let config = EngineConfig::default();
    let (one, _other) = pair_of_workers(&config, [[1; 32], [2; 32]], WORKERS, &Arc::default());
    let address = SocketAddr::new(one.address, PORT);
    let turns = one.workers.into_iter();
    let turns = turns.map(|worker| Box::new(worker) as Box<dyn Turn>);
    let driver = Driver::spawn_all(turns.collect(), Duration::from_millis(1), &[]).unwrap();
    let device = Device::with_workers(one.hosts, one.net, driver);
    let listener = device.listen(address).unwrap();
    let pd = device.pd();
    let srq = pd.srq(SrqCaps::default()).unwrap();
    let mut pairs = Vec::new();
    for number in 0..2 * WORKERS {
        let (mut near, mut far) = (Side::new(&device), Side::new(&device));
        if number % 2 == 1 {
            let cq = device.cq(16).unwrap();
            let caps = QpCaps::default();
            far.qp = pd.qp_with_srq(&cq, &cq, &srq, caps).unwrap();
            (far.cq, far.mr) = (cq, register(&pd, 1 << 20));
        }
        near.qp.connect(address, None, plain()).unwrap();
        let request = listener.next_request(SOON).unwrap().unwrap();
        request.accept(&mut far.qp, plain()).unwrap();
        near.qp.wait_established(SOON).unwrap();
        pairs.push((near, far));
    }
    assert!(
        pairs
            .iter()
            .any(|(near, far)| near.qp.worker() != far.qp.worker())
    );
    for (tag, (near, far)) in (1u8..).zip(&mut pairs) {
        let octets = vec![tag; 500_000];
        near.mr.write(0, &octets).unwrap();
        let piece = [near.mr.sge(0, 500_000)];
        let write = SendRequest::write(far.mr.remote(0)).memory(&piece);
        near.qp.post_send(&write).unwrap();
        near.done();
        assert_eq!(far.mr.copy(0, 500_000).unwrap(), octets);
    }
}
