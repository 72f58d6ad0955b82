//! The scoreboard against a simple model: one record for each segment, and every question answered
//! by a search of all.

use core::time::Duration;

use proptest::prelude::*;

use crate::memory::frames::TxFrames;
use crate::tcp::{scoreboard::AckOutcome, send::Sender, sent_segment::Fate};
use crate::testing::VecFrames;
use crate::time::Instant;
use crate::wire::tcp::SackBlocks;

use super::script::{OUR_ISN, ms};

#[derive(Clone, Debug)]
enum Step {
    /// Queues segments of these lengths and sends them.
    Send(Vec<u16>),
    /// Acknowledges up to the segment boundary at this share of what is in flight, plus some
    /// octets.
    Acknowledge(u64, u64),
    /// SACKs ranges between boundaries, in several blocks.
    Sack(Vec<(u64, u64)>),
    /// What was sent before the segment at this share is lost if it was sent this long ago.
    Overdue(u64, u64),
    LoseHead,
    Timeout,
    Resend(u8),
    Undo,
    /// Cuts the first segment that waits to be retransmitted, after so many octets.
    Cut(u16),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let share = || 0_u64..100;
    prop_oneof![
        6 => prop::collection::vec(1_u16..1000, 1..6).prop_map(Step::Send),
        2 => (share(), 0_u64..50).prop_map(|(at, plus)| Step::Acknowledge(at / 3, plus / 25 * plus)),
        6 => prop::collection::vec((share(), share()), 1..4).prop_map(Step::Sack),
        4 => (share(), 0_u64..30).prop_map(|(at, ago)| Step::Overdue(at, ago)),
        1 => Just(Step::LoseHead),
        1 => Just(Step::Timeout),
        5 => (1_u8..8).prop_map(Step::Resend),
        1 => Just(Step::Undo),
        1 => (1_u16..900).prop_map(Step::Cut),
        5 => (1_u64..10).prop_map(Step::Wait),
    ]
}

#[derive(Clone, Debug, PartialEq)]
struct Record {
    start: u64,
    end: u64,
    sent_at: Instant,
    again: bool,
    fate: Fate,
}

impl Record {
    fn sending(&self) -> (Instant, u64) {
        (self.sent_at, self.end)
    }
}

#[derive(Default)]
struct Model {
    una: u64,
    nxt: u64,
    records: Vec<Record>,
}

impl Model {
    fn octets(&self, fate: Fate) -> u64 {
        let with = self.records.iter().filter(|record| record.fate == fate);
        with.map(|record| record.end - record.start).sum()
    }

    /// Returns the segment boundary at so many hundredths of what is in flight.
    fn border(&self, share: u64) -> u64 {
        let index = self.records.len() * share as usize / 100;
        self.records
            .get(index)
            .map_or(self.nxt, |record| record.start)
            .max(self.una)
    }
}

struct Bench {
    send: Sender,
    frames: VecFrames,
    now: Instant,
    model: Model,
}

impl Bench {
    fn new() -> Self {
        Self {
            send: Sender::new(OUR_ISN),
            frames: VecFrames::new(2000),
            now: Instant::ZERO + ms(1000),
            model: Model::default(),
        }
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Send(lens) => lens.iter().for_each(|&len| self.send_one(len)),
            Step::Acknowledge(share, plus) => self.acknowledge(*share, *plus),
            Step::Sack(blocks) => self.sack(blocks),
            Step::Overdue(share, ago) => self.overdue(*share, ms(*ago)),
            Step::LoseHead => {
                self.send.mark_head_lost();
                if let Some(head) = self.model.records.first_mut()
                    && !head.again
                    && head.fate == Fate::InFlight
                {
                    head.fate = Fate::Lost;
                }
            }
            Step::Timeout => self.timeout(),
            Step::Resend(count) => (0..*count).for_each(|_| self.resend()),
            Step::Undo => {
                self.send.unmark_lost();
                for record in &mut self.model.records {
                    if record.fate == Fate::Lost {
                        record.fate = Fate::InFlight;
                    }
                }
            }
            Step::Cut(at) => self.cut(*at),
            Step::Wait(millis) => self.now = self.now + ms(*millis),
        }
    }

    fn send_one(&mut self, len: u16) {
        let Some(frame) = self.frames.allocate() else {
            return;
        };
        self.send.queue(frame, 0, len, 0);
        self.send.mark_sent(self.now, len);
        let start = self.model.nxt;
        self.model.nxt += u64::from(len);
        self.model.records.push(Record {
            start,
            end: self.model.nxt,
            sent_at: self.now,
            again: false,
            fate: Fate::InFlight,
        });
    }

    fn acknowledge(&mut self, share: u64, plus: u64) {
        let ack = (self.model.border(share) + plus).min(self.model.nxt);
        if ack <= self.model.una {
            return;
        }
        let mut outcome = AckOutcome::default();
        self.send.acknowledge(ack, &mut self.frames, &mut outcome);
        assert_eq!(outcome.acked, ack - self.model.una);
        self.model.una = ack;
        self.model.records.retain(|record| record.end > ack);
        if let Some(head) = self.model.records.first_mut() {
            head.start = head.start.max(ack);
        }
    }

    fn sack(&mut self, shares: &[(u64, u64)]) {
        let mut blocks = SackBlocks::EMPTY;
        let mut ranges = Vec::new();
        for &(a, b) in shares {
            let range = self.model.border(a.min(b))..self.model.border(a.max(b));
            // An empty block, and one inside of the second (a D-SACK), mean something else.
            let nested = ranges.len() == 1 && {
                let first: &core::ops::Range<u64> = &ranges[0];
                range.start <= first.start && first.end <= range.end
            };
            if !range.is_empty() && !nested {
                blocks.push(self.send.seq(range.start), self.send.seq(range.end));
                ranges.push(range);
            }
        }
        let mut outcome = AckOutcome::default();
        let before = self.model.octets(Fate::Sacked);
        self.send.apply_sack(&blocks, &mut outcome);
        for range in ranges {
            for record in &mut self.model.records {
                if range.start <= record.start && record.end <= range.end {
                    record.fate = Fate::Sacked;
                }
            }
        }
        let sacked = self.model.octets(Fate::Sacked) - before;
        assert_eq!((outcome.delivered, outcome.sacked), (sacked, sacked > 0));
        assert_eq!(outcome.dsack, None);
    }

    fn overdue(&mut self, share: u64, patience: Duration) {
        let border = self.model.border(share);
        let Some(latest) = self
            .model
            .records
            .iter()
            .find(|record| record.start >= border)
        else {
            return;
        };
        let latest = latest.sending();
        let (lost, more) = self
            .send
            .mark_overdue_lost(self.now, latest, patience.into());
        let mut expected = (0, false);
        for record in &mut self.model.records {
            if record.fate == Fate::InFlight && record.sending() < latest {
                if record.sent_at + patience <= self.now {
                    record.fate = Fate::Lost;
                    expected.0 += 1;
                } else {
                    expected.1 = true;
                }
            }
        }
        assert_eq!((lost, more), expected);
    }

    fn timeout(&mut self) {
        let now = self.now;
        let early = |sent_at: Instant| sent_at + ms(5) <= now;
        self.send.mark_lost_on_timeout(early);
        let records = &mut self.model.records;
        if records
            .first()
            .is_some_and(|head| head.fate == Fate::Sacked)
        {
            for record in records
                .iter_mut()
                .filter(|record| record.fate == Fate::Sacked)
            {
                record.fate = Fate::InFlight;
            }
        }
        for (index, record) in records.iter_mut().enumerate() {
            if record.fate == Fate::InFlight && (index == 0 || early(record.sent_at)) {
                record.fate = Fate::Lost;
            }
        }
    }

    /// Retransmits the lowest lost segment. Time passes, because the model does not know which of
    /// two retransmissions of the same time came first.
    fn resend(&mut self) {
        self.now = self.now + Duration::from_nanos(1);
        let lost = self
            .model
            .records
            .iter_mut()
            .find(|record| record.fate == Fate::Lost);
        let next = self
            .send
            .next_lost()
            .map(|(index, segment)| (index, segment.start, segment.len));
        assert_eq!(
            next.map(|next| next.1),
            lost.as_ref().map(|record| record.start)
        );
        if let (Some((index, _, len)), Some(record)) = (next, lost) {
            self.send.mark_retransmitted(self.now, index, len);
            (record.fate, record.again, record.sent_at) = (Fate::InFlight, true, self.now);
        }
    }

    fn cut(&mut self, at: u16) {
        let Some((index, segment)) = self.send.next_lost() else {
            return;
        };
        let (start, len) = (segment.start, segment.len);
        if at >= len {
            return;
        }
        self.send.split(index, at, [0, 0]);
        let cut = start + u64::from(at);
        let head = &mut self.model.records[index];
        let tail = Record {
            start: cut,
            ..head.clone()
        };
        head.end = cut;
        self.model.records.insert(index + 1, tail);
    }

    fn check(&self) {
        let model = &self.model;
        let held: Vec<_> = self
            .send
            .segments
            .iter()
            .map(|segment| Record {
                start: segment.start,
                end: segment.end(),
                sent_at: segment.sent_at,
                again: segment.retransmitted,
                fate: segment.fate,
            })
            .collect();
        assert_eq!(held, model.records);
        assert_eq!(self.send.sacked(), model.octets(Fate::Sacked));
        assert_eq!(self.send.pipe(), model.octets(Fate::InFlight));
        assert_eq!(self.send.has_lost(), model.octets(Fate::Lost) > 0);
        let sacked = model
            .records
            .iter()
            .filter(|record| record.fate == Fate::Sacked);
        assert_eq!(self.send.sacked_segments(), sacked.count());
        // Pieces share the frame of the segment that was cut.
        let frames = self.send.segments.iter().filter(|s| s.part.ends_frame());
        assert_eq!(self.frames.available(), 2000 - frames.count());
    }
}

proptest! {
    #[test]
    fn agrees_with_a_record_for_each_segment(steps in prop::collection::vec(step(), 1..80)) {
        let mut bench = Bench::new();
        for step in &steps {
            bench.take(step);
            bench.check();
        }
        for frame in bench.send.take_frames() {
            bench.frames.release(frame);
        }
        prop_assert_eq!(bench.frames.available(), 2000);
    }
}

#[test]
fn a_segment_sent_a_third_time_is_not_lost_by_what_was_sent_after_the_second() {
    let mut bench = Bench::new();
    for step in [
        Step::Send(vec![100, 100, 100]),
        Step::Wait(10),
        Step::Timeout,
        Step::Resend(2),
        Step::Wait(10),
        Step::Timeout,
        Step::Resend(1),
        // What was sent before the second segment's second transmission.
        Step::Overdue(34, 0),
    ] {
        bench.take(&step);
        bench.check();
    }
}
