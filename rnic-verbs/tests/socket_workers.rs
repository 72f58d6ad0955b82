//! Devices of several workers over TCP sockets of the kernel. The first worker accepts connections.
//! Each then moves to the worker that has its queue pair.

use std::net::SocketAddr;
use std::time::Duration;

use rnic_verbs::{
    Access, ConnectionOptions, Cq, Device, DeviceConfig, Driving, Listener, Mr, Pd, Qp, QpCaps,
    QpState, SendRequest, SrqCaps, Via,
};

const WORKERS: usize = 3;
const SOON: Duration = Duration::from_secs(60);

fn open(workers: usize, queue_pairs: u32) -> Device {
    let device = Device::open_with(&DeviceConfig {
        via: Via::Kernel,
        queue_pairs,
        driving: Driving::Threads {
            most: Some(workers as u32),
            idle: Duration::from_millis(1),
            pin: false,
        },
        ..DeviceConfig::new("lo")
    });
    let device = device.unwrap();
    assert_eq!(device.workers(), workers);
    assert_eq!(device.kernel().unwrap().ignored(), None);
    device
}

fn listen(device: &Device) -> Listener {
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    device.listen(any).unwrap()
}

/// One side of many connections: all complete to one queue.
struct Side {
    device: Device,
    pd: Pd,
    cq: Cq,
    mr: Mr,
}

impl Side {
    fn new() -> Self {
        let device = open(WORKERS, 16);
        let pd = device.pd();
        Self {
            cq: device.cq(64).unwrap(),
            mr: pd.allocate(4096, Access::LOCAL_WRITE).unwrap(),
            pd,
            device,
        }
    }

    fn qp(&self) -> Qp {
        self.pd.qp(&self.cq, &self.cq, QpCaps::default()).unwrap()
    }

    /// Waits for so many completions, all successes, and returns their identifiers in order.
    fn completions(&mut self, count: usize) -> Vec<u64> {
        let mut ids = Vec::new();
        while ids.len() < count {
            assert!(self.cq.wait(SOON).unwrap(), "only {ids:?}");
            while let Some(completion) = self.cq.poll_one() {
                assert!(completion.is_success(), "{completion:?}");
                ids.push(completion.wr_id());
            }
        }
        ids.sort();
        ids
    }

    /// Returns how many connections each worker has.
    fn connections(&self) -> Vec<usize> {
        let snapshots = (0..WORKERS).map(|worker| self.device.snapshot_of(worker, SOON));
        let snapshots = snapshots.map(|snapshot| snapshot.unwrap().unwrap());
        snapshots.map(|one| one.connections.len()).collect()
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

#[test]
fn connections_are_at_the_workers_of_their_queue_pairs() {
    let (mut near, mut far) = (Side::new(), Side::new());
    let listener = listen(&far.device);
    let mut pairs: Vec<_> = (0..2 * WORKERS).map(|_| (near.qp(), far.qp())).collect();
    for (number, (ours, theirs)) in pairs.iter_mut().enumerate() {
        join(&listener, ours, theirs);
        assert_eq!(
            (ours.worker(), theirs.worker()),
            (number % WORKERS, number % WORKERS)
        );
    }
    for side in [&near, &far] {
        assert_eq!(side.connections(), [2; WORKERS]);
    }
    let all: Vec<u64> = (0..pairs.len() as u64).collect();
    for round in 0..20 {
        for (number, (ours, theirs)) in (0u64..).zip(&mut pairs) {
            let text = [round + number as u8; 60];
            let send = SendRequest::send().inline(&text).wr_id(number);
            theirs
                .post_recv(number, &[far.mr.sge(number as usize * 64, 64)])
                .unwrap();
            ours.post_send(&send).unwrap();
        }
        assert_eq!(far.completions(pairs.len()), all);
        assert_eq!(near.completions(pairs.len()), all);
        for (number, (ours, theirs)) in (0u64..).zip(&mut pairs) {
            let place = number as usize * 64;
            assert_eq!(far.mr.copy(place, 60).unwrap(), [round + number as u8; 60]);
            let send = SendRequest::send().inline(b"back").wr_id(number);
            ours.post_recv(number, &[near.mr.sge(place, 64)]).unwrap();
            theirs.post_send(&send).unwrap();
        }
        assert_eq!(near.completions(pairs.len()), all);
        assert_eq!(far.completions(pairs.len()), all);
    }
    for (number, (ours, theirs)) in pairs.iter_mut().enumerate() {
        let (closer, other) = match number % 2 {
            0 => (ours, theirs),
            _ => (theirs, ours),
        };
        closer.disconnect().unwrap();
        assert!(closer.wait_ended(SOON).unwrap().is_some());
        assert!(other.wait_ended(SOON).unwrap().is_some());
    }
}

#[test]
fn queue_pairs_that_share_receives_accept_at_their_worker() {
    let (mut near, mut far) = (Side::new(), Side::new());
    let listener = listen(&far.device);
    let mut workers = Vec::new();
    for _ in 0..WORKERS {
        let mut srq = far.pd.srq(SrqCaps::default()).unwrap();
        let shared = far
            .pd
            .qp_with_srq(&far.cq, &far.cq, &srq, QpCaps::default());
        let (mut ours, mut theirs) = (near.qp(), shared.unwrap());
        join(&listener, &mut ours, &mut theirs);
        srq.post_recv(7, &[far.mr.sge(0, 64)]).unwrap();
        ours.post_send(&SendRequest::send().inline(b"shared").wr_id(8))
            .unwrap();
        assert_eq!(far.completions(1), [7]);
        assert_eq!(near.completions(1), [8]);
        workers.push(theirs.worker());
    }
    workers.sort();
    assert_eq!(workers, [0, 1, 2]);
}

/// A peer may be gone before its connection has moved, or meanwhile.
#[test]
fn peers_that_leave_while_they_are_accepted_are_told() {
    let (near, far) = (Side::new(), Side::new());
    let listener = listen(&far.device);
    for round in 0..60 {
        let (mut ours, mut theirs) = (near.qp(), far.qp());
        let options = ConnectionOptions::default;
        ours.connect(listener.local_address(), None, options())
            .unwrap();
        let request = listener.next_request(SOON).unwrap().expect("a request");
        if round % 3 == 0 {
            drop(ours);
            request.accept(&mut theirs, options()).unwrap();
        } else {
            request.accept(&mut theirs, options()).unwrap();
            drop(ours);
        }
        assert!(theirs.wait_ended(SOON).unwrap().is_some());
    }
    // Those that were there are gone from all workers.
    for side in [&near, &far] {
        while side.connections() != [0; WORKERS] {
            std::thread::yield_now();
        }
    }
}

/// Both ends of a connection are at workers of one device.
#[test]
fn a_device_connects_to_its_own_listener() {
    let mut side = Side::new();
    let listener = listen(&side.device);
    let mut pairs: Vec<_> = (0..WORKERS).map(|_| (side.qp(), side.qp())).collect();
    for (ours, theirs) in &mut pairs {
        join(&listener, ours, theirs);
        theirs.post_recv(1, &[side.mr.sge(0, 64)]).unwrap();
        ours.post_send(&SendRequest::send().inline(b"own").wr_id(2))
            .unwrap();
        assert_eq!(side.completions(2), [1, 2]);
    }
}

/// A queue pair that is destroyed leaves what it has accepted to no other one, not even to one that
/// gets its number at its worker.
#[test]
fn a_new_queue_pair_does_not_get_the_connection_of_one_before_it() {
    let near = Side::new();
    let device = open(2, 2);
    let (pd, cq) = (device.pd(), device.cq(64).unwrap());
    let make = || pd.qp(&cq, &cq, QpCaps::default());
    let listener = listen(&device);
    let _first = make().unwrap();
    let mut second = make().unwrap();
    for _ in 0..50 {
        let mut ours = near.qp();
        let options = ConnectionOptions::default;
        ours.connect(listener.local_address(), None, options())
            .unwrap();
        let request = listener.next_request(SOON).unwrap().expect("a request");
        // There is no number left: only the turn of the workers goes on.
        assert!(make().is_err());
        request.accept(&mut second, options()).unwrap();
        drop(second);
        second = make().unwrap();
        assert_eq!(second.worker(), 1);
        // Else it is rejected.
        if ours.wait_established(SOON).is_ok() {
            assert!(ours.wait_ended(SOON).unwrap().is_some());
        }
        assert_eq!(second.state(), QpState::Init);
    }
}
