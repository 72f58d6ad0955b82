use super::*;
use crate::memory::ring::{Producer, ring};

const SRQ: SrqId = SrqId(2);
const CAPACITY: u32 = 16;
const FIRST: QpNumber = QpNumber(10);
const SECOND: QpNumber = QpNumber(11);

/// A shared queue with `posted` receives, numbered from 0.
fn table(posted: u64) -> (SrqTable, Producer<RecvWr>) {
    let (mut producer, consumer) = ring(CAPACITY).unwrap();
    for wr_id in 0..posted {
        producer.push(RecvWr::new(wr_id, &[]).unwrap()).unwrap();
    }
    let mut table = SrqTable::new();
    table.add(SRQ, consumer, Arc::default()).unwrap();
    (table, producer)
}

fn stream(max_in_process: u32) -> SharedReceives {
    SharedReceives::new(SRQ, CAPACITY, max_in_process)
}

/// Which receive stands ready for the message that comes `ahead` after the next.
fn ready(queue: &ReceiveQueue, ahead: u32) -> Option<u64> {
    queue.peek(ahead).map(|receive| receive.wr_id)
}

fn limit(left: u32) -> SrqLimit {
    SrqLimit { left, share: None }
}

#[test]
fn receives_go_out_as_messages_begin_and_stay_by_their_number() {
    let (mut srqs, _producer) = table(8);
    let (mut first, mut second) = (stream(8), stream(8));
    // The third message of one stream, then the first of the other, then the first of the one.
    let mut arrive = |shared: &mut SharedReceives, qp, ahead| {
        // Further segments of a message take nothing more.
        for _ in 0..2 {
            assert_eq!(shared.provide(qp, ahead, &mut srqs), None);
        }
    };
    arrive(&mut first, FIRST, 2);
    arrive(&mut second, SECOND, 0);
    arrive(&mut first, FIRST, 0);
    let (mut first, mut second) = (ReceiveQueue::Shared(first), ReceiveQueue::Shared(second));
    assert_eq!(
        [0, 1, 2, 3].map(|n| ready(&first, n)),
        [Some(2), None, Some(0), None]
    );
    assert_eq!(
        (ready(&second, 0), first.len(), second.len()),
        (Some(1), 2, 1)
    );
    // One message is delivered: the others move up.
    assert_eq!(first.pop().map(|receive| receive.wr_id), Some(2));
    assert_eq!([0, 1].map(|n| ready(&first, n)), [None, Some(0)]);
    // The stream ends: what it holds comes back, once; what it does not hold stays.
    assert_eq!(first.pop_unused().map(|receive| receive.wr_id), Some(0));
    assert_eq!((first.pop_unused(), first.is_empty()), (None, true));
    assert_eq!(second.pop_unused().map(|receive| receive.wr_id), Some(1));
    let ReceiveQueue::Shared(second) = &mut second else {
        unreachable!()
    };
    second.provide(SECOND, 0, &mut srqs);
    assert_eq!(second.taken.front().unwrap().unwrap().wr_id, 3);
}

#[test]
fn a_stream_has_no_more_in_process_than_it_may() {
    // rfc: 5042-15 a stream that takes more than its share of shared receives is detected
    let (mut srqs, _producer) = table(8);
    let mut shared = stream(3);
    assert_eq!(shared.provide(FIRST, 2, &mut srqs), None);
    let told = SrqEvent::HighWater {
        srq: SRQ,
        qp: FIRST,
        in_process: 1,
    };
    assert_eq!(shared.provide(FIRST, 3, &mut srqs), Some(told));
    assert_eq!(shared.provide(FIRST, 4, &mut srqs), None, "told once");
    let mut queue = ReceiveQueue::Shared(shared);
    assert_eq!((queue.peek(3), queue.len()), (None, 1));
    // It moves on, and the message is near enough.
    queue.pop();
    let ReceiveQueue::Shared(shared) = &mut queue else {
        unreachable!()
    };
    shared.provide(FIRST, 2, &mut srqs);
    assert_eq!(queue.len(), 2);
}

#[test]
fn a_message_from_long_ago_is_no_high_water() {
    let (mut srqs, _producer) = table(8);
    let mut shared = stream(3);
    assert_eq!(shared.provide(FIRST, u32::MAX, &mut srqs), None);
    assert!(!shared.told_high_water && shared.taken.is_empty());
}

#[test]
fn the_limit_is_told_once_with_who_took_most() {
    let (mut srqs, mut producer) = table(8);
    let (mut first, mut second) = (stream(8), stream(8));
    first.provide(FIRST, 0, &mut srqs);
    assert_eq!(srqs.arm(SRQ, limit(4)), None, "7 are left");
    first.provide(FIRST, 1, &mut srqs);
    second.provide(SECOND, 0, &mut srqs);
    assert_eq!(second.provide(SECOND, 1, &mut srqs), None, "4 are left");
    let told = |left, taken, greediest| SrqEvent::LimitReached {
        srq: SRQ,
        left,
        taken,
        greediest,
    };
    let news = second.provide(SECOND, 2, &mut srqs);
    assert_eq!(news, Some(told(3, 4, Some((SECOND, 3)))));
    assert_eq!(second.provide(SECOND, 3, &mut srqs), None, "told once");
    // Armed while it is low, it tells at once, and counts anew.
    assert_eq!(srqs.arm(SRQ, limit(4)), Some(told(2, 0, None)));
    assert_eq!(srqs.arm(SRQ, limit(0)), None);
    for wr_id in 8..10 {
        producer.push(RecvWr::new(wr_id, &[]).unwrap()).unwrap();
    }
    assert_eq!(srqs.arm(SRQ, limit(4)), None);
    let news = first.provide(FIRST, 2, &mut srqs);
    assert_eq!(news, Some(told(3, 1, Some((FIRST, 1)))));
}

#[test]
fn what_is_left_of_a_low_queue_is_for_those_who_took_less() {
    // rfc: 5040-122, 5041-98, 5042-15 a stream that takes more than its share is detected
    let (mut srqs, mut producer) = table(8);
    let (mut greedy, mut modest) = (stream(8), stream(8));
    let share = SrqLimit {
        left: 4,
        share: Some(3),
    };
    assert_eq!(srqs.arm(SRQ, share), None);
    for ahead in 0..4 {
        assert_eq!(greedy.provide(FIRST, ahead, &mut srqs), None, "not low yet");
    }
    assert!(modest.provide(SECOND, 0, &mut srqs).is_some(), "it is low");
    let exceeded = SrqEvent::ShareExceeded {
        srq: SRQ,
        qp: FIRST,
        taken: 4,
    };
    assert_eq!(greedy.provide(FIRST, 4, &mut srqs), Some(exceeded));
    assert_eq!(greedy.provide(FIRST, 4, &mut srqs), None, "told once");
    assert_eq!(ReceiveQueue::Shared(greedy).peek(4), None);
    for ahead in 1..3 {
        modest.provide(SECOND, ahead, &mut srqs);
    }
    let exceeded = SrqEvent::ShareExceeded {
        srq: SRQ,
        qp: SECOND,
        taken: 3,
    };
    assert_eq!(modest.provide(SECOND, 3, &mut srqs), Some(exceeded));
    assert_eq!(modest.len(), 3, "there is one left, but not for it");
    // The application has posted more and armed again: everybody begins anew.
    producer.push(RecvWr::new(8, &[]).unwrap()).unwrap();
    srqs.arm(SRQ, share);
    modest.provide(SECOND, 3, &mut srqs);
    assert_eq!(modest.len(), 4);
}

#[test]
fn numbers_are_checked_and_a_queue_that_is_gone_is_empty() {
    let (mut srqs, _producer) = table(1);
    let consumer = || ring(CAPACITY).unwrap().1;
    assert_eq!(
        srqs.add(SRQ, consumer(), Arc::default()),
        Err(SrqError::Exists(SRQ))
    );
    let large = SrqId(MAX_SRQS);
    assert_eq!(
        srqs.add(large, consumer(), Arc::default()),
        Err(SrqError::Number(large))
    );
    srqs.remove(SRQ);
    let mut shared = stream(1);
    assert_eq!(shared.provide(FIRST, 0, &mut srqs), None);
    assert_eq!((shared.len(), srqs.arm(SRQ, limit(1))), (0, None));
}

#[test]
fn streams_wait_in_their_order_and_are_called_only_where_there_is_a_receive() {
    let (mut ring, consumer) = ring(CAPACITY).unwrap();
    let bell = Arc::<SrqBell>::default();
    let mut srqs = SrqTable::new();
    srqs.add(SRQ, consumer, bell.clone()).unwrap();
    let receive = || RecvWr::new(1, &[]).unwrap();
    assert!(!bell.is_waited_for());
    for qp in [SECOND, FIRST, QpNumber(12)] {
        srqs.wait(SRQ, qp);
    }
    srqs.leave(SRQ, FIRST);
    assert_eq!(srqs.waiting(SRQ), 0, "there is none");
    ring.push(receive()).unwrap();
    // Who posts rings once, until somebody waits anew.
    assert_eq!([(); 2].map(|()| bell.is_waited_for()), [true, false]);
    assert_eq!(srqs.waiting(SRQ), 2);
    assert_eq!(srqs.next_waiting(SRQ), Some(SECOND));
    srqs.wait(SRQ, SECOND);
    assert!(bell.is_waited_for());
    let rest = [(); 3].map(|()| srqs.next_waiting(SRQ));
    assert_eq!(rest, [Some(QpNumber(12)), Some(SECOND), None]);
    assert_eq!(srqs.waiting(SRQ), 0, "nobody waits");
    // A queue that is gone has nothing, and nobody who waits.
    srqs.remove(SRQ);
    srqs.wait(SRQ, FIRST);
    srqs.leave(SRQ, FIRST);
    assert_eq!((srqs.waiting(SRQ), srqs.next_waiting(SRQ)), (0, None));
}
