//! Runs: one of every other segment of all scripts, and what several segments of one have of their own.

use super::script::{PAYLOAD_AT, Script, Sent, plain};
use crate::tcp::{EcnMode, TcpConfig};

impl Script {
    /// The next segment as a run of its own, if there may be one: of those that scripts send every other is.
    pub(super) fn next_in_run(&mut self) -> Option<Sent> {
        let most = self.tcp.max_payload() as u64;
        let chosen = (self.queued / most).is_multiple_of(2);
        let may = chosen && self.unqueued > 0 && self.tcp.run_room(self.now) >= most;
        may.then(|| self.run(1)).and_then(|mut sent| sent.pop())
    }

    /// Sends so many segments of what is to be written in one run.
    fn run(&mut self, segments: usize) -> Vec<Sent> {
        let mut run = self.tcp.begin_run(self.now);
        let mut sent = Vec::new();
        for _ in 0..segments {
            let len = self.unqueued.min(self.tcp.max_payload() as u64);
            self.unqueued -= len;
            let (frame, sum) = self.build(len);
            let payload = PAYLOAD_AT..PAYLOAD_AT + len as u16;
            self.tcp
                .send_in_run(self.now, &mut run, frame, payload, sum, false);
            sent.push(Sent {
                header: (*run.header()).into(),
                len,
                ecn_capable: run.ecn_capable(),
            });
        }
        self.tcp.end_run(self.now, run);
        sent
    }

    #[track_caller]
    fn expect_run(&mut self, segments: &[&str]) {
        let sent = self.run(segments.len());
        for (sent, text) in sent.iter().zip(segments) {
            assert_eq!(sent.show(text), *text);
        }
    }
}

#[test]
fn segments_of_a_run_follow_each_other_and_carry_the_acknowledgment() {
    let mut t = Script::established(&plain(), "mss 1000", 60_000);
    t.write(1000);
    t.expect(". 1:1001(1000) ack 1");
    t.inject(". 1:1001(1000) ack 1001");
    t.inject(". 1001:2001(1000) ack 1001");
    // The first of a flight goes alone: it may find the window to be smaller.
    assert_eq!(t.tcp.run_room(t.now), 1000);
    t.write(2500);
    t.expect_run(&[". 1001:2001(1000) ack 2001"]);
    assert!(t.tcp.run_room(t.now) >= 2000);
    t.expect_run(&[". 2001:3001(1000) ack 2001", "P. 3001:3501(500) ack 2001"]);
    t.expect_nothing();
    t.inject(". 2001:2001(0) ack 3501");
    assert_eq!(t.tcp.acked_offset(), 3500);
    assert_eq!(t.tcp.counters().segments_sent, 2 + 1 + 3);
}

#[test]
fn a_run_stays_within_both_windows() {
    let mut t = Script::established(&plain(), "mss 1000", 5500);
    t.write(100_000);
    t.expect(". 1:1001(1000) ack 1");
    assert_eq!(t.tcp.run_room(t.now), 4500);
    let mut t = Script::established(&plain(), "mss 1000", 60_000);
    t.write(100_000);
    t.expect(". 1:1001(1000) ack 1");
    assert_eq!(t.tcp.run_room(t.now), 9000, "of ten segments");
}

#[test]
fn there_is_no_run_before_what_is_lost_or_asked_for_otherwise() {
    let mut t = Script::established(&plain(), "mss 1000,sackOK", 60_000);
    t.write(5000);
    t.expect_segments(0..5);
    assert!(t.tcp.run_room(t.now) >= 1000);
    t.inject(". 1:1(0) ack 1 win 60000 <sack 1001:5001>");
    assert_eq!(t.tcp.run_room(t.now), 0);
    t.expect(". 1:1001(1000) ack 1");
    // Out of order: the duplicate ACK goes without data.
    let mut t = Script::established(&plain(), "mss 1000", 60_000);
    t.inject(". 1001:2001(1000) ack 1");
    t.write(1000);
    assert_eq!(t.tcp.run_room(t.now), 0);
    t.expect(". 1:1(0) ack 1");
}

#[test]
fn the_first_segment_of_a_run_tells_of_the_reduction() {
    let config = TcpConfig {
        ecn: EcnMode::Ask,
        ..plain()
    };
    let mut t = Script::connect(&config);
    t.expect("SEW 0:0(0) <mss 1000,sackOK,wscale 0>");
    t.inject("SE. 0:0(0) ack 1 win 60000 <mss 1000,sackOK>");
    t.expect(". 1:1(0) ack 1");
    t.write(100_000);
    for n in 0..10 {
        let (start, end) = (n * 1000 + 1, n * 1000 + 1001);
        t.expect(&format!("[ect0] . {start}:{end}(1000) ack 1"));
    }
    t.inject("E. 1:1(0) ack 8001");
    assert!(t.tcp.run_room(t.now) >= 2000);
    t.expect_run(&[
        "[ect0] W. 10001:11001(1000) ack 1",
        "[ect0] . 11001:12001(1000) ack 1",
    ]);
}
