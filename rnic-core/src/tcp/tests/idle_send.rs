//! Idle sends: in all scripts, every segment that is eligible takes this path. These tests show
//! when a segment is not.

use super::ecn::capable;
use super::script::{PAYLOAD_AT, Script, Sent, ms, plain};
use crate::tcp::IdleSegment;

impl Script {
    /// Returns the next segment as an idle send, if it is eligible and the last that is to be
    /// written.
    pub(super) fn next_idle(&mut self) -> Option<Sent> {
        let last = 0 < self.unqueued && self.unqueued < self.tcp.max_payload() as u64;
        let idle = IdleSegment::eligible(&self.tcp, self.now).filter(|_| last)?;
        let len = std::mem::take(&mut self.unqueued);
        let (frame, sum) = self.build(len);
        let (now, len_field) = (self.now, len as u16);
        let header = idle
            .commit(&mut self.tcp, now, frame, PAYLOAD_AT, len_field, sum)
            .into();
        Some(Sent {
            header,
            len,
            ecn_capable: false,
        })
    }
}

fn resting() -> Script {
    let t = Script::established(&plain(), "mss 1000,sackOK", 60_000);
    assert!(IdleSegment::eligible(&t.tcp, t.now).is_some());
    t
}

#[test]
fn a_segment_takes_the_acknowledgment_along_and_is_watched() {
    let mut t = resting();
    t.inject("P. 1:101(100) ack 1");
    t.write(100);
    t.expect("P. 1:101(100) ack 101");
    t.expect_nothing();
    // A tail probe is sent for its ACK.
    t.expect_after(ms(200), "P. 1:101(100) ack 101");
    assert_eq!(t.tcp.counters().tail_probes, 1);
}

#[test]
fn none_goes_alone_beside_others() {
    let mut t = resting();
    t.write(2000);
    t.expect(". 1:1001(1000) ack 1");
    assert!(
        IdleSegment::eligible(&t.tcp, t.now).is_none(),
        "one is in flight"
    );
    t.inject(". 1:1(0) ack 1001");
    assert!(IdleSegment::eligible(&t.tcp, t.now).is_some());
    t.queue(1000);
    assert!(
        IdleSegment::eligible(&t.tcp, t.now).is_none(),
        "one is queued"
    );
}

#[test]
fn none_goes_alone_before_a_duplicate_acknowledgment() {
    let mut t = resting();
    t.inject("P. 1:101(100) ack 1");
    t.expect(". 1:1(0) ack 101");
    t.inject("P. 1:101(100) ack 1");
    assert!(IdleSegment::eligible(&t.tcp, t.now).is_none());
    t.write(100);
    t.expect(". 1:1(0) ack 101 <sack 1:101>");
    t.expect("P. 1:101(100) ack 101");
}

#[test]
fn none_goes_alone_where_the_window_lacks_room_for_the_largest() {
    for (window, may) in [(0, false), (999, false), (1000, true)] {
        let t = Script::established(&plain(), "mss 1000", window);
        assert_eq!(
            IdleSegment::eligible(&t.tcp, t.now).is_some(),
            may,
            "{window}"
        );
    }
}

#[test]
fn none_goes_alone_before_what_is_neither_data_nor_an_acknowledgment() {
    let specials: [fn(&mut Script); 3] = [
        |t| t.tcp.probe_due = true,
        |t| t.tcp.syn_due = true,
        |t| t.tcp.abort(),
    ];
    for make_due in specials {
        let mut t = resting();
        make_due(&mut t);
        assert!(IdleSegment::eligible(&t.tcp, t.now).is_none());
    }
}

#[test]
fn none_goes_alone_where_a_side_has_closed() {
    let mut t = resting();
    t.close();
    assert!(IdleSegment::eligible(&t.tcp, t.now).is_none());
    let mut t = resting();
    t.inject("F. 1:1(0) ack 1");
    t.expect(". 1:1(0) ack 2");
    assert!(IdleSegment::eligible(&t.tcp, t.now).is_none());
}

/// Pacing counts each segment that is sent.
#[test]
fn none_goes_alone_where_it_is_paced() {
    let mut t = Script::over_path(&plain(), "mss 1000,sackOK", ms(3));
    t.write(100);
    t.expect("P. 1:101(100) ack 1");
    t.pass(ms(3));
    t.inject(". 1:1(0) ack 101");
    assert!(t.tcp.pacer.rate().is_some());
    assert!(IdleSegment::eligible(&t.tcp, t.now).is_none());
}

/// With ECN, segments say that routers may mark them.
#[test]
fn none_goes_alone_where_marks_are_used() {
    let t = capable();
    assert!(IdleSegment::eligible(&t.tcp, t.now).is_none());
}
