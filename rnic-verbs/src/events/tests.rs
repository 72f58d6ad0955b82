use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::Instant;

use rnic_core::connection::PortReservation;
use rnic_core::engine::{EngineEnd, Net, NetError, Peers, mailbox};
use rnic_core::memory::table::StagTable;

use crate::device::Device;
use crate::driver::Driver;

use super::*;

const QP: QpNumber = QpNumber(0);
const STREAM: StreamId = StreamId(7);
/// Longer than any test takes that does not hang.
const LONG: Duration = Duration::from_secs(20);

struct Nowhere;

impl Net for Nowhere {
    fn listen_to(
        &self,
        local: SocketAddr,
        _peers: &Peers,
    ) -> Result<(SocketAddr, PortReservation), NetError> {
        Err(NetError::InUse(local.into()))
    }

    fn active(
        &self,
        remote: SocketAddr,
        _local: Option<SocketAddr>,
        _engine: u16,
    ) -> Result<(SocketAddr, PortReservation), NetError> {
        Err(NetError::InUse(remote.into()))
    }
}

/// A device whose engine is the test.
fn device() -> (Device, EngineEnd) {
    let table = Arc::new(StagTable::new(1, [0; 32]));
    let (host, engine) = mailbox(table, 1, Waker::noop().clone());
    let device = Device::new(host, Arc::new(Nowhere), Driver::Thread(Box::new(())));
    let boxes = &mut device.inner.router.boxes().qps;
    boxes.insert(
        QP,
        QpBox::new(STREAM, SharedState::default(), QpFacts::for_tests()),
    );
    (device.clone(), engine)
}

fn about(stream: StreamId, event: Event) -> Notice {
    Notice {
        stream: Some(stream),
        event,
    }
}

fn next(device: &Device) -> Result<Option<ConnectionEvent>, Error> {
    device
        .inner
        .wait(LONG, |boxes| boxes.qps.get_mut(&QP)?.next_event())
}

/// One thread waits for its events; another looks into the mailboxes as they come, and so delivers
/// some of them.
#[test]
fn a_thread_that_delivers_wakes_the_pump_and_keeps_the_order() {
    const PAIRS: u32 = 10_000;
    let (device, engine) = device();
    let router = &device.inner.router;
    let over = AtomicBool::new(false);
    let numbered = |number: u32| number.to_be_bytes().to_vec();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for pair in 0..PAIRS {
                while !router.lock().pumping && !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
                // Two, so that they can overtake each other.
                for private_data in [numbered(2 * pair), numbered(2 * pair + 1)] {
                    let event = Event::Rejected {
                        qp: QP,
                        private_data,
                        peer_depths: None,
                    };
                    engine.events.tell(about(STREAM, event));
                }
                drop(router.boxes());
            }
        });
        let wrong = (0..2 * PAIRS).find_map(|number| {
            let began = Instant::now();
            let event = next(&device);
            // A thread that was not woken finds its event too, but only when its time is over.
            let woken = began.elapsed() < LONG;
            match event {
                Ok(Some(ConnectionEvent::Rejected { private_data, .. }))
                    if private_data == numbered(number) && woken =>
                {
                    None
                }
                other => Some((number, woken, other)),
            }
        });
        over.store(true, Ordering::Relaxed);
        assert!(wrong.is_none(), "{wrong:?}");
    });
}

#[test]
fn every_thread_that_waits_learns_that_the_worker_has_ended() {
    let (device, engine) = device();
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..3).map(|_| scope.spawn(|| next(&device))).collect();
        drop(engine);
        for waiter in waiters {
            assert!(matches!(waiter.join().unwrap(), Err(Error::WorkerGone(_))));
        }
    });
}

#[test]
fn an_event_of_a_dropped_queue_pair_does_not_reach_the_next_of_its_number() {
    let (device, engine) = device();
    for (stream, reason) in [(StreamId(6), EndReason::Reset), (STREAM, EndReason::Peer)] {
        let event = Event::Disconnected { qp: QP, reason };
        engine.events.tell(about(stream, event));
    }
    let expected = ConnectionEvent::Disconnected(EndReason::Peer);
    assert_eq!(next(&device).unwrap(), Some(expected));
}

#[test]
fn events_of_the_device_reach_their_reader() {
    let (device, engine) = device();
    let tell = |active| {
        let event = Event::Port { active };
        let stream = None;
        engine.events.tell(Notice { stream, event });
    };
    // Before there is a reader.
    tell(false);
    let mut events = device.async_events().unwrap();
    tell(true);
    tell(false);
    let mut names = || events.next(LONG).map(|event| event.unwrap().name());
    assert_eq!(names().unwrap(), "PORT_ACTIVE");
    assert_eq!(names().unwrap(), "PORT_ERR");
    drop(engine);
    assert_eq!(names().unwrap(), "DEVICE_FATAL");
    assert!(matches!(names(), Err(Error::WorkerGone(_))));
}

/// Most queue pairs have no events: a mailbox takes memory only while it has some.
#[test]
fn an_empty_mailbox_takes_no_memory() {
    let mut mailbox = QpBox::new(STREAM, SharedState::default(), QpFacts::for_tests());
    for _ in 0..2 {
        let event = ConnectionEvent::Failed(EndReason::Reset);
        mailbox.events.push_back(event);
    }
    assert!(mailbox.next_event().is_some());
    assert!(mailbox.next_event().is_some());
    assert_eq!(mailbox.next_event(), None);
    assert_eq!(mailbox.events.capacity(), 0);
}

/// No thread reads, and a peer connects and resets again and again.
#[test]
fn requests_that_nobody_reads_go_with_their_connections() {
    let (device, engine) = device();
    for number in 0..1000 {
        let request = RequestId(number);
        for event in [asked(request), Event::RequestGone { request }] {
            engine.events.tell(Notice {
                stream: None,
                event,
            });
        }
    }
    assert!(device.inner.router.events.is_empty());
}

/// As above, for gathered asynchronous events, and for queue pairs that end one after the other.
#[test]
fn events_that_nobody_reads_go_with_their_queue_pairs() {
    let (device, engine) = device();
    let mut events = device.async_events().unwrap();
    for _ in 0..100 {
        let reason = EndReason::Reset;
        let event = Event::Disconnected { qp: QP, reason };
        engine.events.tell(about(STREAM, event));
        for active in [false, true] {
            let (stream, event) = (None, Event::Port { active });
            engine.events.tell(Notice { stream, event });
            drop(device.inner.router.boxes());
        }
        let mut boxes = device.inner.router.boxes();
        boxes.remove_qp(QP);
        boxes.qps.insert(
            QP,
            QpBox::new(STREAM, SharedState::default(), QpFacts::for_tests()),
        );
    }
    for expected in [Some("PORT_ERR"), Some("PORT_ACTIVE"), None] {
        let event = events.next(Duration::ZERO).unwrap();
        assert_eq!(event.map(|event| event.name()), expected);
    }
}

fn asked(request: RequestId) -> Event {
    Event::ConnectRequest {
        listener: ListenerId(1),
        request,
        peer: "192.0.2.9:4420".parse().unwrap(),
        local: "192.0.2.1:4420".parse().unwrap(),
        private_data: vec![7; 512],
        ird: 0,
        ord: 0,
        mpa_revision: 1,
    }
}

/// One reader gets the events of all queue pairs in their order, none of a queue pair that is gone,
/// and none twice.
#[test]
fn one_reader_takes_the_connection_events_of_all_queue_pairs() {
    const OTHER: QpNumber = QpNumber(1);
    const OTHER_STREAM: StreamId = StreamId(8);
    let (device, engine) = device();
    let mailbox = QpBox::new(OTHER_STREAM, SharedState::default(), QpFacts::for_tests());
    device.inner.router.boxes().qps.insert(OTHER, mailbox);
    let end = |qp, stream, reason| {
        let event = Event::Disconnected { qp, reason };
        engine.events.tell(about(stream, event));
    };
    let mut all = device.connection_events().unwrap();
    assert!(device.connection_events().is_none());
    end(OTHER, OTHER_STREAM, EndReason::Peer);
    end(QP, STREAM, EndReason::Reset);
    end(QP, STREAM, EndReason::Local);
    end(OTHER, OTHER_STREAM, EndReason::TimedOut);
    let over = |reason| ConnectionEvent::Disconnected(reason);
    assert_eq!(all.take(), Some((OTHER, over(EndReason::Peer))));
    // Whoever reads an event at its queue pair has it alone.
    assert_eq!(next(&device).unwrap(), Some(over(EndReason::Reset)));
    device.inner.router.boxes().remove_qp(OTHER);
    assert_eq!(all.take(), Some((QP, over(EndReason::Local))));
    assert_eq!(all.take(), None);
    drop(all);
    assert!(device.connection_events().is_some());
}
