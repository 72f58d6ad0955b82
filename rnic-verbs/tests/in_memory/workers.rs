//! Devices of several workers: what they share, and frames that arrive at the wrong one.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rnic_core::engine::{EngineConfig, Turn};
use rnic_core::in_memory::{InMemoryWorker, InMemoryWorkers, pair_of_workers};
use rnic_verbs::{
    AsyncEvent, ConnectionOptions, Cq, Device, Driver, Error, Listener, Mr, Pd, Qp, QpCaps,
    SendRequest, SrqCaps,
};

use crate::fixture::{PORT, SOON, register};

const WORKERS: usize = 3;

/// Two devices of several workers. What worker n of one side sends arrives at worker n + `shift` of
/// the other.
struct Rig {
    near: Device,
    far: Device,
    listener: Listener,
    shift: Arc<AtomicUsize>,
}

fn open(end: InMemoryWorkers, turn: fn((usize, InMemoryWorker)) -> Box<dyn Turn>) -> Device {
    let turns = end.workers.into_iter().enumerate().map(turn).collect();
    let driver = Driver::spawn_all(turns, Duration::from_millis(1), &[]).unwrap();
    Device::with_workers(end.hosts, end.net, driver)
}

#[test]
fn a_thread_that_cannot_be_pinned_is_an_error() {
    let absent = 1023;
    let shift = Arc::default();
    let config = EngineConfig::default();
    let (near, _far) = pair_of_workers(&config, [[1; 32], [2; 32]], 1, &shift);
    let turns = near.workers.into_iter();
    let turns = turns.map(|worker| Box::new(worker) as Box<dyn Turn>);
    let driver = Driver::spawn_all(turns.collect(), Duration::from_millis(1), &[absent]);
    let error = driver.err().unwrap();
    assert!(matches!(error, Error::Pin { cpu, .. } if cpu == absent));
    assert!(error.to_string().contains("taskset"), "{error}");
}

fn rig() -> Rig {
    let shift = Arc::new(AtomicUsize::new(0));
    let config = EngineConfig::default();
    let (near, far) = pair_of_workers(&config, [[1; 32], [2; 32]], WORKERS, &shift);
    let address = SocketAddr::new(far.address, PORT);
    let plain = |(_, worker)| Box::new(worker) as Box<dyn Turn>;
    let (near, far) = (open(near, plain), open(far, plain));
    let listener = far.listen(address).unwrap();
    Rig {
        near,
        far,
        listener,
        shift,
    }
}

/// One side of many connections: all complete to one queue.
struct WorkerSide {
    pd: Pd,
    cq: Cq,
    mr: Mr,
}

impl WorkerSide {
    fn new(device: &Device) -> Self {
        let pd = device.pd();
        Self {
            cq: device.cq(64).unwrap(),
            mr: register(&pd, 1 << 16),
            pd,
        }
    }

    fn qp(&self) -> Qp {
        self.pd.qp(&self.cq, &self.cq, QpCaps::default()).unwrap()
    }

    /// Waits for `count` completions, all successes, and returns their identifiers.
    fn completions(&mut self, count: usize) -> Vec<u64> {
        let mut names = Vec::new();
        while names.len() < count {
            assert!(self.cq.wait(SOON).unwrap(), "only {names:?}");
            let completion = self.cq.poll_one().unwrap();
            assert!(completion.is_success(), "{completion:?}");
            names.push(completion.wr_id());
        }
        names.sort();
        names
    }
}

fn join(listener: &Listener, near: &mut Qp, far: &mut Qp) {
    let options = ConnectionOptions::default;
    near.connect(listener.local_address(), None, options())
        .unwrap();
    let request = listener.next_request(SOON).unwrap().expect("a request");
    request.accept(far, options()).unwrap();
    near.wait_established(SOON).unwrap();
    far.wait_established(SOON).unwrap();
}

fn each(device: &Device, of: fn(rnic_core::engine::Snapshot) -> u64) -> Vec<u64> {
    (0..device.workers())
        .map(|worker| of(device.snapshot_of(worker, SOON).unwrap().unwrap()))
        .collect()
}

#[test]
fn queue_pairs_of_all_workers_share_memory_and_a_completion_queue() {
    let rig = rig();
    let (mut near, mut far) = (WorkerSide::new(&rig.near), WorkerSide::new(&rig.far));
    let mut pairs: Vec<_> = (0..2 * WORKERS).map(|_| (near.qp(), far.qp())).collect();
    for (ours, theirs) in &mut pairs {
        join(&rig.listener, ours, theirs);
        assert_eq!(theirs.worker(), ours.worker(), "where its request came");
    }
    // Round by round, everything comes to another worker.
    for round in 0..WORKERS as u64 {
        rig.shift.store(round as usize, Ordering::Relaxed);
        for (number, (ours, theirs)) in (0u64..).zip(&mut pairs) {
            let piece = [far.mr.sge(number as usize * 64, 64)];
            theirs.post_recv(number, &piece).unwrap();
            let text = [b'a' + number as u8 + round as u8; 60];
            let send = SendRequest::send().inline(&text).wr_id(number);
            ours.post_send(&send).unwrap();
        }
        let all: Vec<u64> = (0..pairs.len() as u64).collect();
        assert_eq!(far.completions(pairs.len()), all);
        assert_eq!(near.completions(pairs.len()), all);
        for number in 0..pairs.len() {
            let mut found = [0; 60];
            far.mr.read(number * 64, &mut found).unwrap();
            assert_eq!(found, [b'a' + number as u8 + round as u8; 60]);
        }
        // The same queue with other rings, of every worker.
        far.cq.resize(32 << round).unwrap();
        assert_eq!(far.cq.capacity(), 32 << round);
    }
    for device in [&rig.near, &rig.far] {
        let received = each(device, |one| one.tcp.segments_received);
        assert!(received.iter().all(|count| *count > 6), "{received:?}");
        let handed = each(device, |one| one.engine.handed_over);
        assert!(handed.iter().all(|count| *count > 0), "{handed:?}");
        let connections = device.snapshot(SOON).unwrap().unwrap().connections;
        assert_eq!(connections.len(), pairs.len());
    }
}

#[test]
fn a_shared_receive_queue_serves_connections_that_came_to_any_worker() {
    let rig = rig();
    let (mut near, mut far) = (WorkerSide::new(&rig.near), WorkerSide::new(&rig.far));
    let mut srq = far.pd.srq(SrqCaps::default()).unwrap();
    let mut pairs = Vec::new();
    for number in 0..2 * WORKERS {
        let mut ours = near.qp();
        let caps = QpCaps::default();
        let mut theirs = far.pd.qp_with_srq(&far.cq, &far.cq, &srq, caps).unwrap();
        join(&rig.listener, &mut ours, &mut theirs);
        let piece = [far.mr.sge(number * 64, 64)];
        srq.post_recv(number as u64, &piece).unwrap();
        pairs.push((ours, theirs));
    }
    let workers: Vec<_> = pairs.iter().map(|(_, theirs)| theirs.worker()).collect();
    assert!(workers.iter().all(|worker| *worker == workers[0]));
    for (number, (ours, _)) in (0u64..).zip(&mut pairs) {
        let send = SendRequest::send().inline(b"hello").wr_id(number);
        ours.post_send(&send).unwrap();
    }
    let all: Vec<u64> = (0..pairs.len() as u64).collect();
    assert_eq!(far.completions(pairs.len()), all);
    assert_eq!(near.completions(pairs.len()), all);
    assert_eq!(each(&rig.far, |one| one.tcp.resets_sent), [0; WORKERS]);
}

/// A worker that dies when it has something to do.
struct Mortal(InMemoryWorker);

impl Turn for Mortal {
    fn turn(&mut self) -> bool {
        assert!(!self.0.turn(), "a fault of a worker, as this test wants it");
        false
    }

    fn is_settled(&self) -> bool {
        self.0.is_settled()
    }

    fn wait(&mut self, at_most: Duration) {
        self.0.wait(at_most);
    }
}

#[test]
fn the_end_of_one_worker_is_told() {
    let config = EngineConfig::default();
    let (near, _far) = pair_of_workers(&config, [[1; 32], [2; 32]], WORKERS, &Arc::default());
    let near = open(near, |(number, worker)| match number {
        1 => Box::new(Mortal(worker)),
        _ => Box::new(worker),
    });
    let mut events = near.async_events().unwrap();
    // Its command goes to all workers.
    let cq = near.cq(16).unwrap();
    assert_eq!(events.next(SOON).unwrap(), Some(AsyncEvent::DeviceFatal));
    assert!(matches!(cq.wait(SOON), Err(Error::WorkerGone(_))));
}
