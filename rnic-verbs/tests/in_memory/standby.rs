//! Devices that a thread drives while the application does not.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CpuSet, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;
use rnic_core::engine::{Sleeper, SplitTurn, Turn};
use rnic_core::in_memory::{InMemoryDevice, InMemoryWorker, pair};
use rnic_verbs::{
    AsyncEvent, Completion, ConnectionEvent, ConnectionOptions, Device, Driver, EndReason, Error,
    QpCaps, SendRequest, WcOpcode,
};

use crate::fixture::{PORT, SOON, Side, join};

/// A worker that counts its turns, and panics on request.
struct Watched {
    worker: InMemoryWorker,
    turns: Arc<AtomicU64>,
    doomed: Arc<AtomicBool>,
}

impl Turn for Watched {
    fn turn(&mut self) -> bool {
        assert!(!self.doomed.load(Ordering::Relaxed), "as the test wants it");
        self.turns.fetch_add(1, Ordering::Relaxed);
        self.worker.turn()
    }

    fn is_settled(&self) -> bool {
        self.worker.is_settled()
    }

    fn wait(&mut self, _: Duration) {
        unreachable!("nobody sleeps with the engine");
    }
}

impl SplitTurn for Watched {
    fn begin_sleep(&mut self, at_most: Duration) -> Option<Duration> {
        self.worker.begin_sleep(at_most)
    }

    fn sleeper(&mut self) -> Arc<dyn Sleeper> {
        self.worker.sleeper()
    }
}

/// A device, and what the test sees of its worker.
struct Standing {
    device: Device,
    turns: Arc<AtomicU64>,
    doomed: Arc<AtomicBool>,
}

fn open(end: InMemoryDevice) -> Standing {
    let (turns, doomed) = (Arc::default(), Arc::default());
    let watched = Watched {
        worker: end.worker,
        turns: Arc::clone(&turns),
        doomed: Arc::clone(&doomed),
    };
    let driver = Driver::standby(Box::new(watched)).unwrap();
    Standing {
        device: Device::new(end.host, end.net, driver),
        turns,
        doomed,
    }
}

fn devices() -> (Standing, Standing, SocketAddr) {
    let (near, far) = pair([[1; 32], [2; 32]]);
    let address = SocketAddr::new(far.address, PORT);
    (open(near), open(far), address)
}

/// A waker that sends a message.
struct Told(Sender<()>);

impl Wake for Told {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(());
    }
}

fn told() -> (Waker, Receiver<()>) {
    let (sender, receiver) = unbounded();
    (Waker::from(Arc::new(Told(sender))), receiver)
}

#[test]
fn a_peer_is_served_while_the_application_does_nothing() {
    let (near, far, address) = devices();
    let listener = far.device.listen(address).unwrap();
    let (mut near, mut far) = (Side::new(&near.device), Side::new(&far.device));
    join(&mut near, &mut far, &listener);
    near.mr.write(0, b"over there").unwrap();
    for round in 0..100 {
        let there = far.mr.remote(64 * round);
        let here = [near.mr.sge(0, 10)];
        near.qp
            .post_send(&SendRequest::write(there).memory(&here))
            .unwrap();
        near.done();
        let back = [near.mr.sge(1024, 10)];
        near.qp
            .post_send(&SendRequest::read(there).memory(&back))
            .unwrap();
        near.done();
        let mut octets = [0; 10];
        near.mr.read(1024, &mut octets).unwrap();
        assert_eq!(&octets, b"over there");
    }
}

/// The last request of the application is its last call.
#[test]
fn what_is_posted_is_sent_although_nobody_polls() {
    let (near, far, address) = devices();
    let listener = far.device.listen(address).unwrap();
    let (mut near, mut far) = (Side::new(&near.device), Side::new(&far.device));
    join(&mut near, &mut far, &listener);
    for round in 1..=100u8 {
        // It polled a moment ago, more or less.
        for _ in 0..round {
            assert!(near.cq.poll_one().is_none());
        }
        let there = far.mr.remote(0);
        let write = SendRequest::write(there).inline(std::slice::from_ref(&round));
        near.qp.post_send(&write.unsignaled()).unwrap();
        eventually("the octet comes", || {
            let mut octet = [0];
            far.mr.read(0, &mut octet).unwrap();
            octet == [round]
        });
    }
}

fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + SOON;
    while !done() {
        assert!(Instant::now() < until, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn a_sleeping_application_is_woken_by_its_waker() {
    let (near, far, address) = devices();
    let listener = far.device.listen(address).unwrap();
    let far_device = far.device;
    let (mut near, mut far) = (Side::new(&near.device), Side::new(&far_device));
    let (waker, woken) = told();
    far.cq = far_device.cq_notifying(64, waker).unwrap();
    far.qp = far.pd.qp(&far.cq, &far.cq, QpCaps::default()).unwrap();
    assert!(far.cq.is_in_use());
    join(&mut near, &mut far, &listener);
    for round in 0..100u64 {
        far.qp.post_recv(round, &[far.mr.sge(0, 64)]).unwrap();
        far.cq.arm(false);
        assert!(far.cq.poll_one().is_none());
        let message = SendRequest::send().inline(b"wake up");
        near.qp.post_send(&message).unwrap();
        woken.recv_timeout(SOON).unwrap();
        assert_eq!(far.cq.poll_one().unwrap().wr_id(), round);
        near.done();
    }
    // Not for each message: only when it was armed.
    far.qp.post_recv(100, &[far.mr.sge(0, 64)]).unwrap();
    far.qp.post_recv(101, &[far.mr.sge(0, 64)]).unwrap();
    far.cq.arm(true);
    let message = SendRequest::send().inline(b"sleep on");
    near.qp.post_send(&message).unwrap();
    near.done();
    let solicited = SendRequest::send().inline(b"wake up").solicited();
    near.qp.post_send(&solicited).unwrap();
    woken.recv_timeout(SOON).unwrap();
    eventually("both are there", || {
        far.cq.poll_one().is_some_and(|done| done.wr_id() == 101)
    });
    assert!(matches!(far.cq.wait(SOON), Err(Error::NoChannel)));
    drop(far);
    // The end of the queue is no notification.
    assert!(woken.is_empty());
}

#[test]
fn a_device_without_work_sleeps() {
    let (near, far, address) = devices();
    let listener = far.device.listen(address).unwrap();
    let mut sides = (Side::new(&near.device), Side::new(&far.device));
    join(&mut sides.0, &mut sides.1, &listener);
    let turns = || near.turns.load(Ordering::Relaxed) + far.turns.load(Ordering::Relaxed);
    // Delayed ACKs and their like are over soon. A thread that polls goes on.
    eventually("no more turns", || {
        let before = turns();
        std::thread::sleep(Duration::from_millis(200));
        turns() == before
    });
}

/// The thread must not take a CPU again and again that both share: see `WATCH_CROWDED`.
#[test]
fn a_poller_without_a_spare_cpu_is_left_alone() {
    // Other tests may come to this thread, which would stay on its CPU.
    std::thread::spawn(poll_on_one_cpu).join().unwrap();
}

fn poll_on_one_cpu() {
    const POLLED: Duration = Duration::from_secs(1);
    let mut only = CpuSet::new();
    only.set(sched_getcpu().unwrap()).unwrap();
    // The thread of the device inherits it.
    sched_setaffinity(Pid::from_raw(0), &only).unwrap();
    let (near, _far, _) = devices();
    let mut side = Side::new(&near.device);
    let started = Instant::now();
    while started.elapsed() < POLLED {
        assert!(side.cq.poll_one().is_none());
    }
    // It sleeps for 3.2 ms at a time, and a few times less at the beginning.
    let most = started.elapsed().as_micros() as u64 / 3200 + 20;
    let sleeps = sleeps_of("rnic-standby");
    assert!(!sleeps.is_empty());
    for sleeps in sleeps {
        assert!(sleeps <= most, "it slept {sleeps} times, not {most}");
    }
}

/// Returns how many times each thread of this name has slept that may run on one CPU alone.
fn sleeps_of(name: &str) -> Vec<u64> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let status = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.ok()?.path().join("status")).ok()
    };
    let field = |status: &str, key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        Some(line.trim().to_owned())
    };
    let is_it = |status: &String| {
        field(status, "Name:").as_deref() == Some(name)
            && field(status, "Cpus_allowed_list:").is_some_and(|cpus| cpus.parse::<u32>().is_ok())
    };
    let sleeps = |status: String| field(&status, "voluntary_ctxt_switches:")?.parse().ok();
    tasks
        .filter_map(status)
        .filter(is_it)
        .filter_map(sleeps)
        .collect()
}

#[test]
fn a_dispatcher_is_woken_for_events_and_reads_them() {
    let (near, far, address) = devices();
    let (waker, woken) = told();
    far.device.on_events(waker.clone()).unwrap();
    // Once at first.
    woken.recv_timeout(SOON).unwrap();
    assert!(matches!(
        far.device.on_events(waker),
        Err(Error::EventsWatched)
    ));
    let mut events = far.device.async_events().unwrap();
    let listener = far.device.listen(address).unwrap();
    let (mut near, mut side) = (Side::new(&near.device), Side::new(&far.device));
    near.qp
        .connect(address, None, ConnectionOptions::default())
        .unwrap();
    let request = loop {
        woken.recv_timeout(SOON).unwrap();
        if let Some(request) = listener.next_request(Duration::ZERO).unwrap() {
            break request;
        }
    };
    request
        .accept(&mut side.qp, ConnectionOptions::default())
        .unwrap();
    let mut next = || loop {
        woken.recv_timeout(SOON).unwrap();
        if let Some(event) = side.qp.next_event(Duration::ZERO).unwrap() {
            break event;
        }
    };
    assert!(matches!(next(), ConnectionEvent::Established(_)));
    near.qp.wait_established(SOON).unwrap();
    near.qp.abort().unwrap();
    assert_eq!(next(), ConnectionEvent::Disconnected(EndReason::Reset));
    let fatal = events.next(Duration::ZERO).unwrap();
    assert!(matches!(fatal, Some(AsyncEvent::QpFatal { .. })));

    // The end of the engine is one too.
    while woken.try_recv().is_ok() {}
    far.doomed.store(true, Ordering::Relaxed);
    let (notify, notified) = told();
    // This command wakes it.
    let cq = far.device.cq_notifying(1, notify);
    woken.recv_timeout(SOON).unwrap();
    eventually("the end is told", || {
        matches!(
            events.next(Duration::ZERO),
            Ok(Some(AsyncEvent::DeviceFatal))
        )
    });
    if let Ok(cq) = cq {
        notified.recv_timeout(SOON).unwrap();
        assert!(cq.has_ended());
    }
    assert!(matches!(
        side.qp.next_event(SOON),
        Err(Error::WorkerGone(_))
    ));
}

/// How a thread waits for a completion.
#[derive(Clone, Copy)]
enum Way {
    Polls,
    Waits,
    /// On the descriptor of the channel.
    Sleeps,
}

fn completion(side: &mut Side, way: Way) -> Completion {
    let until = Instant::now() + SOON;
    let done = match way {
        Way::Waits => side.completion(),
        Way::Polls => loop {
            match side.cq.poll_one() {
                Some(done) => break done,
                None => assert!(Instant::now() < until, "something completes"),
            }
        },
        Way::Sleeps => loop {
            side.cq.arm(false);
            if let Some(done) = side.cq.poll_one() {
                break done;
            }
            let mut fds = [PollFd::new(side.cq.as_fd(), PollFlags::POLLIN)];
            let millis = SOON.as_millis() as u16;
            assert_eq!(poll(&mut fds, PollTimeout::from(millis)), Ok(1));
            side.cq.acknowledge();
        },
    };
    assert!(done.is_success(), "{done:?}");
    done
}

/// Threads that poll, wait and sleep, that post, make, connect and destroy, all at once. One that
/// is forgotten waits in vain.
#[test]
fn threads_of_all_kinds_share_a_device() {
    const PEERS: u16 = 6;
    const CONNECTIONS: usize = 5;
    const ROUNDS: u8 = 100;
    let (near, far, address) = devices();
    let (near, far) = (&near.device, &far.device);
    std::thread::scope(|scope| {
        for number in 0..PEERS {
            let ways = [Way::Polls, Way::Waits, Way::Sleeps];
            let (server, client) = (ways[number as usize % 3], ways[number as usize / 3 % 3]);
            let address = SocketAddr::new(address.ip(), PORT + number);
            let listener = far.listen(address).unwrap();
            scope.spawn(move || {
                for _ in 0..CONNECTIONS {
                    let mut side = Side::new(far);
                    side.qp.post_recv(0, &[side.mr.sge(0, 64)]).unwrap();
                    let request = listener.next_request(SOON).unwrap().unwrap();
                    request
                        .accept(&mut side.qp, ConnectionOptions::default())
                        .unwrap();
                    for _ in 0..ROUNDS {
                        let len = completion(&mut side, server).byte_len();
                        side.qp.post_recv(0, &[side.mr.sge(0, 64)]).unwrap();
                        let back = [side.mr.sge(0, len)];
                        let send = SendRequest::send().memory(&back).unsignaled();
                        side.qp.post_send(&send).unwrap();
                    }
                    assert_eq!(side.end(), EndReason::Peer);
                }
            });
            scope.spawn(move || {
                for _ in 0..CONNECTIONS {
                    let mut side = Side::new(near);
                    side.qp
                        .connect_blocking(address, None, ConnectionOptions::default())
                        .unwrap();
                    for round in 0..ROUNDS {
                        let sent = [round, number as u8];
                        side.qp.post_recv(1, &[side.mr.sge(0, 64)]).unwrap();
                        let send = SendRequest::send().inline(&sent).unsignaled();
                        side.qp.post_send(&send).unwrap();
                        assert_eq!(completion(&mut side, client).opcode(), WcOpcode::Recv);
                        let mut back = [0; 2];
                        side.mr.read(0, &mut back).unwrap();
                        assert_eq!(back, sent);
                    }
                    side.qp.disconnect().unwrap();
                    assert_eq!(side.end(), EndReason::Local);
                }
            });
        }
    });
}
