//! Connections of a device with itself, to which anything happens at any time: requests of all kinds
//! and lengths, small completion queues, few Reads at once, send queues that stop, and ends.

use std::time::{Duration, Instant};

use fastrand::Rng;
use rnic_core::testing::deep;
use rnic_verbs::{
    Completion, ConnectionOptions, Mr, QpCaps, SendRequest, Srq, SrqCaps, WcOpcode, WcStatus,
};

use crate::fixture::{SOON, Side, register, settle};
use crate::loopback::{Rig, V4, inline, plain, rc};

/// Requests of a side at most, and octets for each: of its source, of the buffer of a receive, of
/// what the peer writes, and of the sink of a Read.
const REQUESTS: usize = 40;
const ROOM: usize = 70_000;
const RECEIVES: usize = REQUESTS * ROOM;
const WRITTEN: usize = 2 * RECEIVES;
const SINKS: usize = 3 * RECEIVES;

/// One end, and what is known of it.
struct End {
    side: Side,
    /// Where its receives come from, if not from its own queue.
    srq: Option<Srq>,
    /// Memory that may be revoked.
    fleeting: Mr,
    posted: usize,
    /// The requests that take a receive, each with its length and, of a Send, its octets.
    taking: Vec<(usize, Option<Vec<u8>>)>,
    receives: usize,
    sent: Vec<(u64, WcStatus)>,
    received: Vec<(u64, WcStatus, u32)>,
}

impl End {
    fn new(rig: &Rig, random: &mut Rng, tag: u8) -> Self {
        let pd = rig.device.pd();
        let cq = rig.device.cq([4, 16, 256][random.usize(..3)]).unwrap();
        let caps = QpCaps {
            max_send_wr: 64,
            max_recv_wr: 64,
            ..QpCaps::default()
        };
        let srq = random.bool().then(|| pd.srq(SrqCaps::default()).unwrap());
        let qp = match &srq {
            Some(srq) => pd.qp_with_srq(&cq, &cq, srq, caps).unwrap(),
            None => pd.qp(&cq, &cq, caps).unwrap(),
        };
        let mr = register(&pd, 4 * RECEIVES);
        let octets = (0..RECEIVES).map(|at| (at / 7 * 3 + at) as u8 ^ tag);
        mr.write(0, &octets.collect::<Vec<_>>()).unwrap();
        Self {
            srq,
            fleeting: register(&pd, 2 * ROOM),
            side: Side { pd, cq, qp, mr },
            posted: 0,
            taking: Vec::new(),
            receives: 0,
            sent: Vec::new(),
            received: Vec::new(),
        }
    }

    fn post_receive(&mut self) -> bool {
        let buffer = self
            .side
            .mr
            .sge(RECEIVES + self.receives * ROOM, ROOM as u32);
        let number = self.receives as u64;
        let posted = match &mut self.srq {
            Some(srq) => srq.post_recv(number, &[buffer]),
            None => self.side.qp.post_recv(number, &[buffer]),
        };
        self.receives += usize::from(posted.is_ok());
        posted.is_ok()
    }

    /// Takes some completions. Returns whether there were any.
    fn take(&mut self, most: usize) -> bool {
        let mut some = vec![Completion::default(); most];
        let taken = self.side.cq.take(&mut some);
        for one in &some[..taken] {
            match one.opcode() {
                WcOpcode::Recv | WcOpcode::RecvImmediate => {
                    self.received
                        .push((one.wr_id(), one.status(), one.byte_len()));
                }
                _ => self.sent.push((one.wr_id(), one.status())),
            }
        }
        taken > 0
    }

    fn is_over(&mut self) -> bool {
        while let Ok(Some(_)) = self.side.qp.next_event(Duration::ZERO) {}
        self.side.qp.state().is_over()
    }

    /// Returns whether a request has succeeded.
    fn has_done(&self, wr_id: u64) -> bool {
        self.sent.contains(&(wr_id, WcStatus::Success))
    }
}

/// What memory has once a request is done.
struct Expected {
    /// The end that has posted it, and the one whose memory changes.
    of: usize,
    at: usize,
    wr_id: u64,
    place: usize,
    octets: Vec<u8>,
}

/// Posts a request of any kind.
fn post(ends: &mut [End; 2], one: usize, random: &mut Rng, violent: bool) -> Option<Expected> {
    let [this, that] = ends.get_disjoint_mut([one, 1 - one]).unwrap();
    if this.posted == REQUESTS {
        return None;
    }
    let longest = [1, 8, 2000, 20_000, ROOM][random.usize(..5)];
    let (place, length) = (this.posted * ROOM, random.usize(..longest));
    let mut is_fleeting = |of: &Mr| violent && random.usize(..6) == 0 && of.is_valid();
    let (from, to) = (is_fleeting(&this.fleeting), is_fleeting(&that.fleeting));
    let (source, start) = match from {
        true => (&this.fleeting, 0),
        false => (&this.side.mr, place),
    };
    let memory = [source.sge(start, length as u32)];
    let octets = source.copy(start, length).unwrap();
    let sink = [this.side.mr.sge(SINKS + place, length as u32)];
    let written = match to {
        true => that.fleeting.remote(ROOM),
        false => that.side.mr.remote(WRITTEN + place),
    };
    let wr_id = this.posted as u64;
    let expected = |at, place, octets| Expected {
        of: one,
        at,
        wr_id,
        place,
        octets,
    };
    let kind = random.usize(..6);
    let request = match kind {
        0 => SendRequest::write(written).memory(&memory),
        1 => SendRequest::write_with_immediate(written, *b"whatever").memory(&memory),
        2 | 3 => SendRequest::read(that.side.mr.remote(place)).memory(&sink),
        _ => SendRequest::send().memory(&memory),
    };
    let request = match random.usize(..4) {
        0 => request.fenced(),
        _ => request,
    };
    this.side.qp.post_send(&request.wr_id(wr_id)).ok()?;
    this.posted += 1;
    match kind {
        0 => (!to).then(|| expected(1 - one, WRITTEN + place, octets)),
        1 => {
            this.taking.push((length, None));
            None
        }
        2 | 3 => {
            let there = that.side.mr.copy(place, length).unwrap();
            Some(expected(one, SINKS + place, there))
        }
        _ => {
            this.taking.push((length, Some(octets)));
            None
        }
    }
}

/// Plays a game. Returns whether the connection ended in it.
fn play(seed: u64, violent: bool) -> bool {
    let random = &mut Rng::with_seed(seed);
    let rig = Rig::new(inline, V4);
    let options = ConnectionOptions {
        ird: random.u16(1..4),
        ord: random.u16(1..4),
        ..if random.bool() || !violent {
            rc()
        } else {
            plain()
        }
    };
    let mut ends = [1, 2].map(|tag| End::new(&rig, random, tag));
    let [near, far] = &mut ends;
    rig.join(&mut near.side, &mut far.side, &options);
    let (mut expected, mut is_ended) = (Vec::new(), false);
    for step in 0..120 {
        let one = random.usize(..2);
        let lacks = ends[1 - one].taking.len() + 3;
        let end = &mut ends[one];
        match random.usize(..if violent { 24 } else { 20 }) {
            0..=8 => expected.extend(post(&mut ends, one, random, violent)),
            9..=12 => {
                for _ in 0..random.usize(..12) {
                    rig.device.drive();
                }
            }
            13..=15 if end.receives < lacks.min(REQUESTS) => {
                end.post_receive();
            }
            16 | 17 => {
                end.take(random.usize(1..5));
            }
            18 => end.side.qp.stop_sends().unwrap(),
            19 => end.side.qp.resume_sends().unwrap(),
            20 => drop(end.fleeting.deregister()),
            21 if step > 40 => is_ended |= end.side.qp.disconnect().is_ok(),
            22 if step > 60 => is_ended |= end.side.qp.fail().is_ok(),
            23 if step > 80 => is_ended |= end.side.qp.abort().is_ok(),
            _ => {}
        }
    }
    for End { side, .. } in &mut ends {
        side.qp.resume_sends().unwrap();
        if is_ended {
            side.qp.fail().unwrap();
        }
    }
    let (start, mut idle) = (Instant::now(), 0);
    while idle < 50 {
        idle += 1;
        let is_over = is_ended || ends.iter_mut().any(End::is_over);
        for one in 0..2 {
            let lacks = ends[one].receives < ends[1 - one].taking.len();
            if lacks && !is_over && ends[one].post_receive() | ends[one].take(3) {
                idle = 0;
            }
            if ends[one].take(3) {
                idle = 0;
            }
        }
        let is_done = |end: &End| end.sent.len() == end.posted;
        let waits = !is_over && !ends.iter().all(is_done) && start.elapsed() < SOON;
        if rig.device.drive() || waits {
            idle = 0;
        }
    }
    let is_over = ends.iter_mut().any(End::is_over);
    for one in 0..2 {
        check(&mut ends, one, is_over, seed);
    }
    for change in expected {
        // What is parked at a peer that fails is done, too.
        let is_lost = options.rc && is_over && change.at != change.of;
        if ends[change.of].has_done(change.wr_id) && !is_lost {
            let mr = &ends[change.at].side.mr;
            let found = mr.copy(change.place, change.octets.len()).unwrap();
            let (of, wr_id) = (change.of, change.wr_id);
            assert!(found == change.octets, "seed {seed}: {wr_id} of {of}");
        }
    }
    let snapshot = rig.device.snapshot(SOON).unwrap().unwrap();
    let parked = (
        snapshot.rdma.streams_parked_now,
        snapshot.rdma.octets_parked_now,
    );
    assert_eq!(parked, (0, 0), "seed {seed}");
    drop(ends);
    settle(&[&rig.device]);
    is_over
}

/// Checks what an end was told: all in its order, and all if nothing has failed.
fn check(ends: &mut [End; 2], one: usize, is_over: bool, seed: u64) {
    let that = std::mem::take(&mut ends[1 - one].taking);
    let this = &mut ends[one];
    let numbers = |count: usize| (0..count as u64).collect::<Vec<_>>();
    let sent: Vec<_> = this.sent.iter().map(|(wr_id, _)| *wr_id).collect();
    if !is_over || this.is_over() {
        assert_eq!(sent, numbers(this.posted), "seed {seed}, {one}");
    }
    let failed = this.sent.iter().map(|(_, status)| *status);
    let failed = failed.filter(|status| *status != WcStatus::Success);
    assert!(
        is_over || failed.clone().count() == 0,
        "seed {seed}: {:?}",
        this.sent
    );
    let with_cause = failed.filter(|status| *status != WcStatus::WrFlushed);
    assert!(with_cause.count() <= 1, "seed {seed}: {:?}", this.sent);
    let received: Vec<_> = this.received.iter().map(|(wr_id, ..)| *wr_id).collect();
    assert_eq!(received, numbers(received.len()), "seed {seed}, {one}");
    assert!(
        is_over || received.len() >= that.len(),
        "seed {seed}, {one}"
    );
    let good = this
        .received
        .iter()
        .filter(|(_, status, _)| *status == WcStatus::Success);
    for ((wr_id, _, found), (length, octets)) in good.zip(&that) {
        assert_eq!(
            *found as usize, *length,
            "seed {seed}: receive {wr_id} of {one}"
        );
        let place = RECEIVES + *wr_id as usize * ROOM;
        if let Some(octets) = octets {
            let there = this.side.mr.copy(place, *length).unwrap();
            assert!(there == *octets, "seed {seed}: receive {wr_id} of {one}");
        }
    }
}

#[test]
fn without_an_end_everything_is_carried_out() {
    let over = (0..deep(40)).filter(|seed| play(*seed, false)).count();
    assert_eq!(over, 0);
}

#[test]
fn whatever_ends_a_connection_each_request_is_told_once() {
    let over = (0..deep(80)).filter(|seed| play(*seed, true)).count();
    assert!(over > 0);
}
