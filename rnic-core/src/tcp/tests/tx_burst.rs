//! Bursts: every other segment of all scripts is sent in a burst of one. These tests are about
//! several segments in a burst.

use super::ecn::capable;
use super::script::{PAYLOAD_AT, Script, Sent, plain};
use crate::tcp::BurstSegments;

impl Script {
    /// Returns the next segment as a burst of one, if it is eligible, for every other segment of a
    /// script.
    pub(super) fn next_in_burst(&mut self) -> Option<Sent> {
        let most = self.tcp.max_payload() as u64;
        let chosen = (self.queued / most).is_multiple_of(2);
        let may = chosen && self.unqueued > 0 && self.room() >= most;
        may.then(|| self.burst(1)).and_then(|mut sent| sent.pop())
    }

    /// Returns the octets that may be sent in a burst now; 0 if there can be no burst.
    fn room(&self) -> u64 {
        BurstSegments::eligible(&self.tcp, self.now).map_or(0, |burst| burst.room())
    }

    /// Sends so many segments in one burst.
    fn burst(&mut self, segments: usize) -> Vec<Sent> {
        let mut burst = BurstSegments::eligible(&self.tcp, self.now).unwrap();
        let mut sent = Vec::new();
        for _ in 0..segments {
            let len = self.unqueued.min(self.tcp.max_payload() as u64);
            self.unqueued -= len;
            let (frame, sum) = self.build(len);
            let payload = PAYLOAD_AT..PAYLOAD_AT + len as u16;
            burst.send(&mut self.tcp, self.now, frame, payload, sum, false);
            sent.push(Sent {
                header: (*burst.header()).into(),
                len,
                ecn_capable: burst.ecn_capable(),
            });
        }
        burst.commit(&mut self.tcp, self.now);
        sent
    }

    #[track_caller]
    fn expect_burst(&mut self, segments: &[&str]) {
        let sent = self.burst(segments.len());
        for (sent, text) in sent.iter().zip(segments) {
            assert_eq!(sent.show(text), *text);
        }
    }
}

#[test]
fn segments_of_a_burst_follow_each_other_and_carry_the_acknowledgment() {
    let mut t = Script::established(&plain(), "mss 1000", 60_000);
    t.write(1000);
    t.expect(". 1:1001(1000) ack 1");
    t.inject(". 1:1001(1000) ack 1001");
    t.inject(". 1001:2001(1000) ack 1001");
    // The first of a flight goes alone: the window may be smaller after a pause.
    assert_eq!(t.room(), 1000);
    t.write(2500);
    t.expect_burst(&[". 1001:2001(1000) ack 2001"]);
    assert!(t.room() >= 2000);
    t.expect_burst(&[". 2001:3001(1000) ack 2001", "P. 3001:3501(500) ack 2001"]);
    t.expect_nothing();
    t.inject(". 2001:2001(0) ack 3501");
    assert_eq!(t.tcp.acked_offset(), 3500);
    assert_eq!(t.tcp.counters().segments_sent, 2 + 1 + 3);
}

#[test]
fn a_burst_stays_within_both_windows() {
    let mut t = Script::established(&plain(), "mss 1000", 5500);
    t.write(100_000);
    t.expect(". 1:1001(1000) ack 1");
    assert_eq!(t.room(), 4500);
    let mut t = Script::established(&plain(), "mss 1000", 60_000);
    t.write(100_000);
    t.expect(". 1:1001(1000) ack 1");
    assert_eq!(t.room(), 9000, "of ten segments");
}

#[test]
fn there_is_no_burst_before_what_is_lost_or_asked_for_otherwise() {
    let mut t = Script::established(&plain(), "mss 1000,sackOK", 60_000);
    t.write(5000);
    t.expect_segments(0..5);
    assert!(t.room() >= 1000);
    t.inject(". 1:1(0) ack 1 win 60000 <sack 1001:5001>");
    assert_eq!(t.room(), 0);
    t.expect(". 1:1001(1000) ack 1");
    // Out of order: the duplicate ACK goes without data.
    let mut t = Script::established(&plain(), "mss 1000", 60_000);
    t.inject(". 1001:2001(1000) ack 1");
    t.write(1000);
    assert_eq!(t.room(), 0);
    t.expect(". 1:1(0) ack 1");
}

#[test]
fn the_first_segment_of_a_burst_tells_of_the_reduction() {
    let mut t = capable();
    t.write(100_000);
    for n in 0..10 {
        let (start, end) = (n * 1000 + 1, n * 1000 + 1001);
        t.expect(&format!("[ect0] . {start}:{end}(1000) ack 1"));
    }
    t.inject("E. 1:1(0) ack 8001");
    assert!(t.room() >= 2000);
    t.expect_burst(&[
        "[ect0] W. 10001:11001(1000) ack 1",
        "[ect0] . 11001:12001(1000) ack 1",
    ]);
}
