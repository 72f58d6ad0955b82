//! The ordering rules of RFC 5040 section 5.5 and RFC 7306 sections 5.4 and 7: one test for each two operations in
//! succession, and what Invalidate, fences and large Reads have to do with it.

use rnic_core::ddp::Placed;
use rnic_core::memory::table::{Access, Scope};
use rnic_core::rdmap::RdmapError;
use rnic_core::verbs::wr::send_flags::{FENCE, SIGNALED};
use rnic_core::verbs::{RecvWr, SendWr, WcStatus, WrOpcode};
use rnic_core::wire::ddp::{DdpHeader, DdpSegment, Stag, TaggedOffset};
use rnic_core::wire::rdmap::AtomicOperation;

use crate::fixture::{BASE, End, PD, Refused, STREAM, Ulpdu, pattern, pump};

/// Octets of each Write, Send and Read: several segments.
const LEN: usize = 304;
const MULPDU: usize = 60;
/// What the peer's memory holds before.
const OLD: u8 = 0xee;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Write,
    Send,
    Immediate,
    Read,
    Atomic,
}
use Kind::{Atomic, Immediate, Read, Send, Write};

impl Kind {
    /// Whether the peer answers it.
    fn is_answered(self) -> bool {
        matches!(self, Read | Atomic)
    }

    /// Whether it uses up a receive of the peer's.
    fn is_received(self) -> bool {
        matches!(self, Send | Immediate)
    }
}

/// Two operations in succession, on the same memory of the peer's unless both bring data there.
struct Scene {
    a: End,
    b: End,
    kinds: [Kind; 2],
    /// Receives that completed at the peer.
    received: Vec<u64>,
}

impl Scene {
    fn new(kinds: [Kind; 2], flags: u8) -> Self {
        let (mut a, mut b) = (End::new(0, 2), End::new(2, 0));
        b.fill(0, &[OLD; 2000]);
        for (i, kind) in kinds.into_iter().enumerate() {
            let target = if i == 1 && !kinds.iter().any(|kind| kind.is_answered()) {
                1000
            } else {
                0
            };
            let wr_id = i as u64;
            a.fill(Self::source(i), &[i as u8 + 1; LEN]);
            match kind {
                Send => b.post_receive(wr_id, target, LEN),
                Immediate => b.post_receive_wr(RecvWr::new(wr_id, &[]).unwrap()),
                Write | Read | Atomic => {}
            }
            let wr = match kind {
                Write => SendWr::new(wr_id, WrOpcode::Write)
                    .with_sges(&[a.sge(Self::source(i), LEN)])
                    .unwrap(),
                Send => SendWr::new(wr_id, WrOpcode::Send)
                    .with_sges(&[a.sge(Self::source(i), LEN)])
                    .unwrap(),
                Immediate => SendWr::new(wr_id, WrOpcode::Immediate),
                Read => SendWr::new(wr_id, WrOpcode::Read)
                    .with_sges(&[a.sge(Self::sink(i), LEN)])
                    .unwrap(),
                Atomic => {
                    let one = AtomicOperation::FetchAdd { add: 1, mask: 0 };
                    SendWr::atomic(wr_id, one, a.sge(Self::sink(i), 8))
                }
            };
            let flags = if i == 1 { flags } else { 0 };
            a.post(
                wr.with_remote(b.stag, TaggedOffset(BASE + target as u64))
                    .with_flags(SIGNALED | flags),
            );
        }
        Self {
            a,
            b,
            kinds,
            received: Vec::new(),
        }
    }

    fn source(i: usize) -> usize {
        10_000 + i * 1000
    }

    fn sink(i: usize) -> usize {
        20_000 + i * 1000
    }

    /// The segments of the next message of this side.
    fn message(&mut self) -> Vec<Ulpdu> {
        let mut segments = Vec::new();
        while let Some(ulpdu) = self.a.next_segment(MULPDU) {
            let last = is_last(&ulpdu);
            segments.push(ulpdu);
            if last {
                break;
            }
        }
        segments
    }

    /// What the peer sends now, and how many messages that is.
    fn answers(&mut self) -> (Vec<Ulpdu>, usize) {
        let segments: Vec<_> = std::iter::from_fn(|| self.b.next_segment(MULPDU)).collect();
        let messages = segments.iter().filter(|ulpdu| is_last(ulpdu)).count();
        (segments, messages)
    }

    /// The peer's application has been told of the first `count` operations, as far as they tell it something.
    fn assert_told(&mut self, count: usize) {
        let told = self.b.received_ids();
        assert!(told.iter().all(|(_, status)| *status == WcStatus::Success));
        self.received.extend(told.iter().map(|(wr_id, _)| wr_id));
        let expected: Vec<_> = (0..count as u64)
            .filter(|i| self.kinds[*i as usize].is_received())
            .collect();
        assert_eq!(self.received, expected, "after {count} of {:?}", self.kinds);
    }

    /// What an operation with an answer brought.
    fn brought(&self, i: usize) -> Vec<u8> {
        let len = if self.kinds[i] == Atomic { 8 } else { LEN };
        self.a.memory(Self::sink(i), len)
    }

    /// What it must bring, if what was asked before it is done and nothing behind it is.
    fn expected(&self, i: usize) -> Vec<u8> {
        let mut memory = match self.kinds[0] {
            Write | Send if i == 1 => vec![1; LEN],
            _ => vec![OLD; LEN],
        };
        if i == 1 && self.kinds[0] == Atomic {
            let value = u64::from_ne_bytes([OLD; 8]) + 1;
            memory[..8].copy_from_slice(&value.to_ne_bytes());
        }
        if self.kinds[i] == Atomic {
            memory.truncate(8);
        }
        memory
    }

    fn assert_brought(&self, i: usize) {
        if self.kinds[i].is_answered() {
            assert_eq!(self.brought(i), self.expected(i), "{i} of {:?}", self.kinds);
        }
    }

    fn assert_completed(&mut self, ids: std::ops::Range<u64>) {
        let done: Vec<_> = ids.map(|wr_id| (wr_id, WcStatus::Success)).collect();
        assert_eq!(self.a.sent_ids(), done, "{:?}", self.kinds);
    }
}

fn is_last(ulpdu: &[u8]) -> bool {
    match DdpSegment::parse(ulpdu).unwrap().header {
        DdpHeader::Tagged(header) => header.last,
        DdpHeader::Untagged(header) => header.last,
    }
}

/// How many of them, from the first on, are of one sort.
fn leading(kinds: [Kind; 2], answered: bool) -> u64 {
    kinds
        .iter()
        .take_while(|kind| kind.is_answered() == answered)
        .count() as u64
}

/// All segments of the second message come before those of the first. `prompt`: the peer answers the first message
/// before the second is delivered. `acked`: acknowledgements come before the answers, not behind them.
fn unfenced(kinds: [Kind; 2], prompt: bool, acked: bool) {
    let mut scene = Scene::new(kinds, 0);
    // Rule 13: they are sent in the order of their posting. Nothing waits for the first.
    let (one, two) = (scene.message(), scene.message());
    assert!(!one.is_empty() && !two.is_empty());
    // Rules 3 to 6 and 12, 16, 17: it may be placed early, and nothing is done or told before its turn.
    let early: Vec<Placed> = two
        .iter()
        .map(|ulpdu| scene.b.place(ulpdu).unwrap())
        .collect();
    scene.assert_told(0);
    assert_eq!(scene.b.next_message(), Ok(None));
    for ulpdu in &one {
        scene.b.receive(ulpdu).unwrap();
    }
    scene.assert_told(1);
    let (mut answers, mut count) = (Vec::new(), 0);
    if prompt {
        (answers, count) = scene.answers();
        assert_eq!(count, usize::from(kinds[0].is_answered()));
    }
    for placed in early {
        scene.b.deliver(placed).unwrap();
    }
    // Rule 18: a Send is told though a Read before it is not answered. Rule 10: in order.
    scene.assert_told(2);
    let (rest, more) = scene.answers();
    answers.extend(rest);
    count += more;
    assert_eq!(
        count,
        kinds.iter().filter(|kind| kind.is_answered()).count()
    );

    // Rules 14, 15, 19: what completes here, and in which order.
    scene.assert_completed(0..0);
    let stream = scene.a.stream;
    if acked {
        scene.a.acked(stream);
        scene.assert_completed(0..leading(kinds, false));
    }
    for ulpdu in &answers {
        scene.a.receive(ulpdu).unwrap();
    }
    if acked {
        scene.assert_completed(leading(kinds, false)..2);
    } else {
        scene.assert_completed(0..leading(kinds, true));
        scene.a.acked(stream);
        scene.assert_completed(leading(kinds, true)..2);
    }
    // Rules 12, 17, 20: what was sent before it is done. (What is behind it may be: the data of a later Write may
    // come back.)
    scene.assert_brought(1);
    if !matches!(kinds[1], Write | Send) {
        scene.assert_brought(0);
    }
}

/// A fenced second operation waits for the answer to the first, and for nothing else.
fn fenced(kinds: [Kind; 2]) {
    let mut scene = Scene::new(kinds, FENCE);
    for ulpdu in scene.message() {
        scene.b.receive(&ulpdu).unwrap();
    }
    if kinds[0].is_answered() {
        assert!(scene.message().is_empty());
        let (answers, _) = scene.answers();
        for ulpdu in answers {
            assert!(scene.message().is_empty(), "the whole answer is waited for");
            scene.a.receive(&ulpdu).unwrap();
        }
        scene.assert_brought(0);
    }
    let second = scene.message();
    assert!(!second.is_empty());
    for ulpdu in second {
        scene.b.receive(&ulpdu).unwrap();
    }
    scene.assert_told(2);
    let (answers, _) = scene.answers();
    for ulpdu in answers {
        scene.a.receive(&ulpdu).unwrap();
    }
    scene.assert_brought(0);
    scene.assert_brought(1);
}

macro_rules! successions {
    ($($name:ident: $first:ident, $second:ident;)*) => {$(
        // rfc: 5040-54, 5040-69, 5040-70, 5040-71, 5040-72, 5040-74, 5040-75, 5040-76, 5040-77, 5040-78
        // rfc: 7306-28, 7306-37, 7306-42, 7306-43, 7306-44, 7306-45, 7306-49
        #[test]
        fn $name() {
            for prompt in [false, true] {
                unfenced([$first, $second], prompt, true);
                unfenced([$first, $second], prompt, false);
            }
            fenced([$first, $second]);
        }
    )*};
}

successions! {
    a_write_then_a_write: Write, Write;
    a_write_then_a_send: Write, Send;
    a_write_then_immediate_data: Write, Immediate;
    a_write_then_a_read: Write, Read;
    a_write_then_an_atomic: Write, Atomic;
    a_send_then_a_write: Send, Write;
    a_send_then_a_send: Send, Send;
    a_send_then_immediate_data: Send, Immediate;
    a_send_then_a_read: Send, Read;
    a_send_then_an_atomic: Send, Atomic;
    immediate_data_then_a_write: Immediate, Write;
    immediate_data_then_a_send: Immediate, Send;
    immediate_data_then_immediate_data: Immediate, Immediate;
    immediate_data_then_a_read: Immediate, Read;
    immediate_data_then_an_atomic: Immediate, Atomic;
    a_read_then_a_write: Read, Write;
    a_read_then_a_send: Read, Send;
    a_read_then_immediate_data: Read, Immediate;
    a_read_then_a_read: Read, Read;
    a_read_then_an_atomic: Read, Atomic;
    an_atomic_then_a_write: Atomic, Write;
    an_atomic_then_a_send: Atomic, Send;
    an_atomic_then_immediate_data: Atomic, Immediate;
    an_atomic_then_a_read: Atomic, Read;
    an_atomic_then_an_atomic: Atomic, Atomic;
}

fn write(end: &End, wr_id: u64, to: Stag, len: usize) -> SendWr {
    SendWr::new(wr_id, WrOpcode::Write)
        .with_sges(&[end.sge(Scene::source(0), len)])
        .unwrap()
        .with_remote(to, TaggedOffset(BASE))
}

fn read(end: &End, wr_id: u64, from: Stag, len: usize) -> SendWr {
    SendWr::new(wr_id, WrOpcode::Read)
        .with_sges(&[end.sge(Scene::sink(0), len)])
        .unwrap()
        .with_remote(from, TaggedOffset(BASE))
}

fn invalidate(wr_id: u64, stag: Stag) -> SendWr {
    let mut wr = SendWr::new(wr_id, WrOpcode::SendInvalidate);
    wr.invalidate_stag = stag.0;
    wr
}

/// Two ends, and memory of the second that the first may do anything with, and invalidate.
fn with_lent_memory() -> (End, End, Stag) {
    let (a, mut b) = (End::new(0, 4), End::new(4, 0));
    let all = crate::fixture::all_rights();
    let stag = b.register(0, 10_000, all, Scope::Stream(PD, STREAM));
    b.post_receive(7, 50_000, 100);
    (a, b, stag)
}

#[test]
fn an_stag_is_invalid_when_the_send_that_asks_for_it_is_told_and_not_before() {
    // rfc: 5040-60
    let (mut a, mut b, stag) = with_lent_memory();
    a.fill(Scene::source(0), &pattern(1, 3000));
    a.post(write(&a, 1, stag, 3000));
    a.post(invalidate(2, stag));
    let segments: Vec<_> = std::iter::from_fn(|| a.next_segment(1000)).collect();
    let (send, write) = segments.split_last().unwrap();
    // The Send comes first; the Write behind it on the wire still finds its memory.
    let early = b.place(send).unwrap();
    for ulpdu in write {
        assert!(b.table.is_valid(stag));
        b.receive(ulpdu).unwrap();
    }
    assert!(b.table.is_valid(stag) && b.received().is_empty());
    b.deliver(early).unwrap();
    assert!(!b.table.is_valid(stag));
    assert_eq!(b.received_ids(), [(7, WcStatus::Success)]);
    assert_eq!(b.memory(0, 3000), pattern(1, 3000));
}

#[test]
fn nothing_behind_an_invalidation_reaches_the_memory() {
    for is_read in [false, true] {
        let (mut a, mut b, stag) = with_lent_memory();
        a.post(invalidate(1, stag));
        let request = if is_read { read } else { write };
        a.post(request(&a, 2, stag, 100));
        pump(&mut a, &mut b, 1000);
        assert!(b.refused.is_some());
        assert_eq!(b.received_ids(), [(7, WcStatus::Success)]);
        assert_eq!(b.memory(0, 100), [0; 100]);
        a.flush();
        // Rule 9: that a Write is complete here says nothing of the peer's memory.
        let acknowledged = a.sent_ids();
        let wrong = if is_read {
            WcStatus::RemoteAccessError
        } else {
            WcStatus::Success
        };
        assert_eq!(acknowledged, [(1, WcStatus::Success), (2, wrong)]);
    }
}

/// A Send may be told before an earlier Read is answered (rule 18), and then takes the Read's memory away: who does not
/// want that fences it.
#[test]
fn a_read_before_an_invalidation_needs_a_fence() {
    for fence in [FENCE, 0] {
        let (mut a, mut b, stag) = with_lent_memory();
        b.fill(0, &pattern(2, 5000));
        a.post(read(&a, 1, stag, 5000));
        a.post(invalidate(2, stag).with_flags(SIGNALED | fence));
        if fence == 0 {
            for _ in 0..2 {
                let ulpdu = a.next_segment(1000).unwrap();
                b.receive(&ulpdu).unwrap();
            }
            let error = b.next_message().unwrap_err();
            assert!(matches!(error, RdmapError::ReadSource { .. }));
            continue;
        }
        pump(&mut a, &mut b, 1000);
        assert_eq!((a.refused, b.refused), (None, None));
        assert_eq!(a.memory(Scene::sink(0), 5000), pattern(2, 5000));
        let done = [(1, WcStatus::Success), (2, WcStatus::Success)];
        assert_eq!(a.sent_ids(), done);
        assert!(!b.table.is_valid(stag));
    }
}

/// Messages of both sides take turns; within a direction each is whole before the next (RFC 5041 section 5.3).
#[test]
fn large_reads_both_ways_with_sends_between_them() {
    const LARGE: usize = 200_000;
    let (mut a, mut b) = (End::new(2, 2), End::new(2, 2));
    let (from_a, from_b) = (pattern(3, LARGE), pattern(4, LARGE));
    for (end, source) in [(&mut a, &from_a), (&mut b, &from_b)] {
        end.fill(0, source);
        for i in 0..3 {
            end.post_receive(i, 900_000 + i as usize * 100, 100);
        }
    }
    let stags = [b.stag, a.stag];
    for (end, peer) in [&mut a, &mut b].into_iter().zip(stags) {
        for i in 0..3 {
            let half = LARGE / 2;
            let sink = end.sge(300_000 + i % 2 * half, half);
            let wr = SendWr::new(i as u64, WrOpcode::Read)
                .with_sges(&[sink])
                .unwrap()
                .with_remote(peer, TaggedOffset(BASE + (i % 2 * half) as u64));
            end.post(wr);
            end.post(SendWr::new(10 + i as u64, WrOpcode::Send));
        }
    }
    pump(&mut a, &mut b, 1400);
    for (end, theirs) in [(&mut a, &from_b), (&mut b, &from_a)] {
        assert_eq!(end.refused, None);
        assert!(end.memory(300_000, LARGE) == *theirs);
        let done: Vec<_> = end.sent_ids().iter().map(|(wr_id, _)| *wr_id).collect();
        assert_eq!(done, [0, 10, 1, 11, 2, 12]);
        assert_eq!(end.received().len(), 3);
        assert!(end.rdmap.is_idle(&end.qp));
    }
}

/// A peer that sends segments of other messages between those of a Read Response is understood.
#[test]
fn a_read_response_with_other_messages_between_its_segments() {
    let mut end = End::new(0, 1);
    let octets = pattern(5, 300);
    end.post(
        SendWr::new(1, WrOpcode::Read)
            .with_sges(&[end.sge(0, 300)])
            .unwrap(),
    );
    end.messages();
    end.post_receive(7, 1000, 100);
    let part =
        |i: usize| crate::requester::response(&end, i == 2, i * 100, &octets[i * 100..][..100]);
    let parts = [part(0), part(1), part(2)];
    let write = crate::fixture::tagged(
        rnic_core::wire::rdmap::Opcode::Write,
        true,
        end.stag,
        BASE + 2000,
        b"between",
    );
    end.receive(&parts[0]).unwrap();
    end.receive(&crate::fixture::send(1, b"hello")).unwrap();
    end.receive(&parts[1]).unwrap();
    end.receive(&write).unwrap();
    assert!(end.sent().is_empty());
    end.receive(&parts[2]).unwrap();
    assert_eq!(end.sent_ids(), [(1, WcStatus::Success)]);
    assert_eq!(end.memory(0, 300), octets);
    assert_eq!(end.memory(2000, 7), b"between");
    assert_eq!(end.received_ids(), [(7, WcStatus::Success)]);
}

/// Depths that do not fit the load hold requests back; they never fail them (RFC 5040 section 6.1).
#[test]
fn a_queue_full_of_reads_and_atomics_flows_through_a_depth_of_one() {
    // rfc: 5040-82, 5040-83, 7306-34
    for (ird, ord) in [(1, 1), (2, 2), (5, 3)] {
        let (mut a, mut b) = (End::new(0, ord), End::new(ird, 0));
        b.fill(0, &pattern(6, 1000));
        for i in 0..60 {
            a.post(match i % 3 {
                0 => read(&a, i, b.stag, 1000),
                1 => read(&a, i, b.stag, 0),
                _ => {
                    let one = AtomicOperation::FetchAdd { add: 1, mask: 0 };
                    SendWr::atomic(i, one, a.sge(Scene::sink(1), 8))
                        .with_remote(b.stag, TaggedOffset(BASE + 2000))
                }
            });
        }
        pump(&mut a, &mut b, 200);
        assert_eq!((a.refused, b.refused), (None, None));
        let done: Vec<_> = (0..60).map(|i| (i, WcStatus::Success)).collect();
        assert_eq!(a.sent_ids(), done);
        let last = a.memory(Scene::sink(1), 8).try_into().unwrap();
        assert_eq!(u64::from_ne_bytes(last), 19);
    }
}

/// Operations without octets name no memory, and still have their place in every order.
#[test]
fn operations_without_octets_keep_their_places() {
    // rfc: 5040-43, 5040-44, 5041-57, 5041-58
    let (mut a, mut b) = (End::new(0, 1), End::new(1, 0));
    b.post_receive_wr(RecvWr::new(7, &[]).unwrap());
    b.post_receive_wr(RecvWr::new(8, &[]).unwrap());
    let nowhere = Stag(0x0bad_0bad);
    let far = TaggedOffset(u64::MAX);
    for (wr_id, opcode) in [
        (0, WrOpcode::Read),
        (1, WrOpcode::Write),
        (2, WrOpcode::Send),
        (3, WrOpcode::Read),
        (4, WrOpcode::Send),
    ] {
        a.post(SendWr::new(wr_id, opcode).with_remote(nowhere, far));
    }
    // The Read waits for its answer's place in the depth, and all behind it waits with it.
    let sent: Vec<_> = std::iter::from_fn(|| a.next_segment(MULPDU)).collect();
    assert_eq!(sent.len(), 3);
    for ulpdu in &sent {
        b.receive(ulpdu).unwrap();
    }
    a.acked(a.stream);
    assert!(a.sent().is_empty());
    pump(&mut a, &mut b, MULPDU);
    assert_eq!((a.refused, b.refused), (None, None));
    let done: Vec<_> = (0..5).map(|i| (i, WcStatus::Success)).collect();
    assert_eq!(a.sent_ids(), done);
    let lengths: Vec<_> = b
        .received()
        .iter()
        .map(|done| (done.wr_id, done.byte_len))
        .collect();
    assert_eq!(lengths, [(7, 0), (8, 0)]);
}

/// The right to write does not outlast its revocation, whatever is on its way.
#[test]
fn a_read_whose_sink_is_gone_ends_the_stream() {
    let mut end = End::new(0, 1);
    let sink = end.register(0, 100, Access::LOCAL_WRITE, PD);
    let mut sge = end.sge(0, 100);
    sge.lkey = sink.0;
    end.post(SendWr::new(1, WrOpcode::Read).with_sges(&[sge]).unwrap());
    end.messages();
    end.table.revoke(sink).unwrap();
    let ulpdu = crate::fixture::tagged(
        rnic_core::wire::rdmap::Opcode::ReadResponse,
        true,
        sink,
        BASE,
        &[1; 100],
    );
    assert!(matches!(end.receive(&ulpdu), Err(Refused::Ddp(_))));
    assert_eq!(end.memory(0, 100), [0; 100]);
}
