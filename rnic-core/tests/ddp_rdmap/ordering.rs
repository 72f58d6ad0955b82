//! The ordering rules of RFC 5040 section 5.5 and RFC 7306 sections 5.4 and 7: one test for each
//! two operations in succession, with a fence between them and without.

use rnic_core::verbs::wr::send_flags::{FENCE, SIGNALED};
use rnic_core::verbs::{RecvWr, SendWr, WcStatus, WrOpcode};
use rnic_core::wire::ddp::{Stag, TaggedOffset};
use rnic_core::wire::rdmap::{AtomicOperation, Opcode};

use crate::fixture::{BASE, End, Ulpdu, header, tagged};

/// Octets of each Write, Send and Read: several segments, each so long that it is placed ahead of
/// order.
const LEN: usize = 4000;
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
    /// Returns whether it has a response.
    fn has_response(self) -> bool {
        matches!(self, Read | Atomic)
    }

    /// Returns whether it uses up a receive of the peer.
    fn is_received(self) -> bool {
        matches!(self, Send | Immediate)
    }
}

/// Two operations in succession, on the same memory of the peer unless both write there.
struct Scene {
    a: End,
    b: End,
    kinds: [Kind; 2],
    /// Receives that completed at the peer.
    received: Vec<u64>,
}

impl Scene {
    fn new(kinds: [Kind; 2], flags: u8) -> Self {
        let (mut a, mut b) = (End::new(0, 2), End::with_markers(2, 0));
        b.fill(0, &[OLD; 20_000]);
        for (i, kind) in kinds.into_iter().enumerate() {
            let target = if i == 1 && !kinds.iter().any(|kind| kind.has_response()) {
                10_000
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
        100_000 + i * 10_000
    }

    fn sink(i: usize) -> usize {
        200_000 + i * 10_000
    }

    /// Removes and returns the segments of the next message of this side.
    fn message(&mut self) -> Vec<Ulpdu> {
        let mut segments = Vec::new();
        while let Some(ulpdu) = self.a.next_segment() {
            let last = header(&ulpdu).last();
            segments.push(ulpdu);
            if last {
                break;
            }
        }
        segments
    }

    /// Removes and returns the segments of the peer's responses, and the number of messages.
    fn responses(&mut self) -> (Vec<Ulpdu>, usize) {
        let segments = self.b.segments();
        let messages = segments.iter().filter(|ulpdu| header(ulpdu).last()).count();
        (segments, messages)
    }

    /// Checks that the peer's application was told of the first `count` operations that it is told
    /// of at all.
    fn assert_told(&mut self, count: usize) {
        let told = self.b.received_ids();
        assert!(told.iter().all(|(_, status)| *status == WcStatus::Success));
        self.received.extend(told.iter().map(|(wr_id, _)| wr_id));
        let expected: Vec<_> = (0..count as u64)
            .filter(|i| self.kinds[*i as usize].is_received())
            .collect();
        assert_eq!(self.received, expected, "after {count} of {:?}", self.kinds);
    }

    /// Checks that these segments are placed. (Messages as short as a request stay in the
    /// out-of-order queue.)
    fn assert_placed_early(&mut self) {
        let octets = match self.kinds[1] {
            // A kernel gives octets in order.
            _ if cfg!(carrier_sockets) => 0,
            Write | Send => LEN,
            Immediate | Read | Atomic => 0,
        };
        assert_eq!(self.b.placed_early(), octets as u64, "{:?}", self.kinds);
    }

    /// Returns what the response of an operation has brought.
    fn brought(&self, i: usize) -> Vec<u8> {
        let len = if self.kinds[i] == Atomic { 8 } else { LEN };
        self.a.memory(Self::sink(i), len)
    }

    /// Returns what it must bring if all operations before it are done, and none behind it.
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
        if self.kinds[i].has_response() {
            assert_eq!(self.brought(i), self.expected(i), "{i} of {:?}", self.kinds);
        }
    }

    fn assert_completed(&mut self, ids: std::ops::Range<u64>) {
        let done: Vec<_> = ids.map(|wr_id| (wr_id, WcStatus::Success)).collect();
        assert_eq!(self.a.sent_ids(), done, "{:?}", self.kinds);
    }
}

/// Counts the operations of one sort, from the first on.
fn leading(kinds: [Kind; 2], responded: bool) -> u64 {
    kinds
        .iter()
        .take_while(|kind| kind.has_response() == responded)
        .count() as u64
}

/// Lets the second message arrive before the first. `prompt`: a segment between the two arrives
/// last, so that the peer responds to the first message before the second is delivered. `acked`:
/// acknowledgments arrive before the responses, not behind them.
fn unfenced(kinds: [Kind; 2], prompt: bool, acked: bool) {
    let mut scene = Scene::new(kinds, 0);
    // Rule 13: they are sent in the order of their posting. Nothing waits for the first.
    let (one, two) = (scene.message(), scene.message());
    assert!(!one.is_empty() && !two.is_empty());
    // Rules 3 to 6 and 12, 16, 17: it may be placed ahead of order, and nothing is done or told
    // before it is in order.
    let between = prompt.then(|| tagged(Opcode::Write, true, Stag(0), 0, &[]));
    let (first, second) = (one.len(), one.len() + usize::from(prompt));
    let stream: Vec<Ulpdu> = one.iter().chain(&between).chain(&two).cloned().collect();
    let mut early = scene.b.lay_out(second, &stream);
    for which in (second..stream.len()).rev() {
        early.place(&mut scene.b, which);
    }
    scene.assert_placed_early();
    scene.assert_told(0);
    assert_eq!(scene.b.next_segment(), None);
    let (mut responses, mut count) = (Vec::new(), 0);
    if prompt {
        for which in 0..first {
            early.come(&mut scene.b, which);
        }
        scene.assert_told(1);
        (responses, count) = scene.responses();
        assert_eq!(count, usize::from(kinds[0].has_response()));
    }
    early.deliver(&mut scene.b).unwrap();
    // Rule 18: a Send is told although a Read before it has no response yet. Rule 10: in order.
    scene.assert_told(2);
    let (rest, more) = scene.responses();
    responses.extend(rest);
    count += more;
    assert_eq!(
        count,
        kinds.iter().filter(|kind| kind.has_response()).count()
    );

    // Rules 14, 15, 19: what completes here, and in which order.
    scene.assert_completed(0..0);
    let stream = scene.a.stream;
    if acked {
        scene.a.acked(stream);
        scene.assert_completed(0..leading(kinds, false));
    }
    for ulpdu in &responses {
        scene.a.receive(ulpdu).unwrap();
    }
    if acked {
        scene.assert_completed(leading(kinds, false)..2);
    } else {
        scene.assert_completed(0..leading(kinds, true));
        scene.a.acked(stream);
        scene.assert_completed(leading(kinds, true)..2);
    }
    // Rules 12, 17, 20: what was sent before it is done. (What was sent behind it may be done too:
    // a Read may see the data of a later Write.)
    scene.assert_brought(1);
    if !matches!(kinds[1], Write | Send) {
        scene.assert_brought(0);
    }
}

/// A fenced second operation waits for the response to the first, and for nothing else.
fn fenced(kinds: [Kind; 2]) {
    let mut scene = Scene::new(kinds, FENCE);
    for ulpdu in scene.message() {
        scene.b.receive(&ulpdu).unwrap();
    }
    if kinds[0].has_response() {
        assert!(scene.message().is_empty());
        let (responses, _) = scene.responses();
        for ulpdu in responses {
            assert!(
                scene.message().is_empty(),
                "the whole response is waited for"
            );
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
    let (responses, _) = scene.responses();
    for ulpdu in responses {
        scene.a.receive(&ulpdu).unwrap();
    }
    scene.assert_brought(0);
    scene.assert_brought(1);
}

macro_rules! successions {
    ($($name:ident: $first:ident, $second:ident;)*) => {$(
        // rfc: 5040-54, 5040-69, 5040-70, 5040-71, 5040-72, 5040-74, 5040-75, 5040-76, 5040-77
        // rfc: 5040-78
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
