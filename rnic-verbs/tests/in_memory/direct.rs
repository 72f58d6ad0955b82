//! Connections of a device with itself, where segments need no frames.

use fastrand::Rng;
use rnic_core::testing::deep;
use rnic_verbs::{
    Completion, ConnectionOptions, Device, EndReason, RemoteAddress, SendRequest, Stag,
    TerminateControl, WcOpcode, WcStatus,
};

use crate::fixture::{SOON, Side, Threads, devices, register, settle};
use crate::loopback::{Rig, V4, exchange, inline, plain, rc};

/// Returns how many frames the engine has sent.
fn frames_sent(device: &Device) -> u64 {
    device.snapshot(SOON).unwrap().unwrap().engine.frames_sent
}

#[test]
fn no_frame_is_needed_where_nothing_is_in_front() {
    const LONG: u32 = 8 << 20;
    for options in [plain(), rc()] {
        let rig = Rig::new(inline, V4);
        let (mut near, mut far) = rig.connected(&options);
        // The first message opens the connection.
        exchange(&mut near, &mut far);
        settle(&[&rig.device]);
        let before = frames_sent(&rig.device);
        exchange(&mut near, &mut far);
        exchange(&mut far, &mut near);
        // In two pieces each, from and to odd places.
        let text: Vec<u8> = (0..300_000u32).map(|at| (at * 11 / 5) as u8).collect();
        near.mr.write(0, &text).unwrap();
        for (from, to, length) in [
            (0, 0, 1u32),
            (3, 5, 4096),
            (1, 63, 4097),
            (0, 400_001, 300_000),
        ] {
            let half = length / 2;
            let pieces = |mr: &rnic_verbs::Mr, at: usize| {
                [mr.sge(at, half), mr.sge(at + half as usize, length - half)]
            };
            far.mr.write(to, &vec![0; length as usize]).unwrap();
            let source = pieces(&near.mr, from);
            let write = SendRequest::write(far.mr.remote(to)).memory(&source);
            near.qp.post_send(&write.wr_id(9)).unwrap();
            assert_eq!(near.done().wr_id(), 9);
            let expected = &text[from..from + length as usize];
            assert!(far.mr.copy(to, length as usize).unwrap() == expected);
            let sink = pieces(&near.mr, 600_000);
            let read = SendRequest::read(far.mr.remote(to)).memory(&sink);
            near.qp.post_send(&read).unwrap();
            near.done();
            assert!(near.mr.copy(600_000, length as usize).unwrap() == expected);
            let sink = pieces(&far.mr, to);
            far.mr.write(to, &vec![0; length as usize]).unwrap();
            far.qp.post_recv(1, &sink).unwrap();
            near.qp
                .post_send(&SendRequest::send().memory(&source))
                .unwrap();
            assert_eq!((near.done().wr_id(), far.done().byte_len()), (0, length));
            assert!(far.mr.copy(to, length as usize).unwrap() == expected);
        }
        for side in [&mut near, &mut far] {
            side.mr = register(&side.pd, LONG as usize);
        }
        near.mr.write(0, &vec![5; LONG as usize]).unwrap();
        let piece = [near.mr.sge(0, LONG)];
        let write = SendRequest::write(far.mr.remote(0)).memory(&piece);
        near.qp.post_send(&write).unwrap();
        near.done();
        assert!(far.mr.copy(0, LONG as usize).unwrap() == vec![5; LONG as usize]);
        settle(&[&rig.device]);
        assert_eq!(frames_sent(&rig.device), before, "no frame was needed");
    }
}

#[test]
fn immediate_data_come_behind_their_write() {
    for options in [plain(), rc()] {
        let rig = Rig::new(inline, V4);
        let (mut near, mut far) = rig.connected(&options);
        exchange(&mut near, &mut far);
        settle(&[&rig.device]);
        let before = frames_sent(&rig.device);
        far.qp.post_recv(7, &[far.mr.sge(900_000, 64)]).unwrap();
        near.mr.write(0, &[3; 50_000]).unwrap();
        let piece = [near.mr.sge(0, 50_000)];
        let write = SendRequest::write_with_immediate(far.mr.remote(0), *b"whatever");
        near.qp.post_send(&write.memory(&piece)).unwrap();
        let told = far.done();
        assert_eq!((told.wr_id(), told.immediate()), (7, Some(*b"whatever")));
        assert_eq!(far.mr.copy(0, 50_000).unwrap(), [3; 50_000]);
        near.done();
        assert_eq!(frames_sent(&rig.device), before, "no frame was needed");
    }
}

/// What both sides find of requests of which one fails.
#[derive(Debug, PartialEq)]
struct Found {
    near: Vec<(u64, WcStatus)>,
    far: Vec<(u64, WcStatus)>,
    ends: [End; 2],
}

/// How a side ended, but for numbers that differ.
#[derive(Debug, PartialEq)]
enum End {
    Sent(TerminateControl),
    Received(TerminateControl),
    Otherwise(String),
}

fn end(side: &mut Side) -> End {
    match side.end() {
        EndReason::TerminateSent { control, .. } => End::Sent(control),
        EndReason::TerminateReceived { control, .. } => End::Received(control),
        other => End::Otherwise(other.to_string()),
    }
}

/// A side posts one request that is right, one that fails, and one more.
fn fail(near: &mut Side, far: &mut Side, wrong: &dyn Fn(&Side, &Side) -> Wrong) -> Found {
    for wr_id in [1, 2] {
        far.qp.post_recv(wr_id, &[far.mr.sge(0, 8)]).unwrap();
    }
    let piece = [near.mr.sge(0, 8)];
    let wrong = wrong(near, far);
    let pieces = [near.mr.sge(64, wrong.length)];
    let requests = [
        SendRequest::send().memory(&piece),
        wrong.request.memory(&pieces),
        SendRequest::write(far.mr.remote(0)).memory(&piece),
    ];
    for (wr_id, request) in (1..).zip(requests) {
        near.qp.post_send(&request.wr_id(wr_id)).unwrap();
    }
    let completions = |side: &mut Side, count| -> Vec<_> {
        let completed = std::iter::repeat_with(|| side.completion()).take(count);
        completed.map(|one| (one.wr_id(), one.status())).collect()
    };
    Found {
        near: completions(near, 3),
        far: completions(far, 2),
        ends: [end(near), end(far)],
    }
}

struct Wrong {
    request: SendRequest<'static>,
    length: u32,
}

#[test]
fn errors_are_those_of_frames() {
    fn wrong(request: SendRequest<'static>, length: u32) -> Wrong {
        Wrong { request, length }
    }
    fn beyond(far: &Side) -> RemoteAddress {
        far.mr.remote((1 << 20) - 4)
    }
    fn unknown(far: &Side) -> RemoteAddress {
        let stag = Stag(far.mr.remote(0).stag.0 ^ 0x100);
        let remote = far.mr.remote(0);
        RemoteAddress { stag, ..remote }
    }
    type Case = (&'static str, fn(&Side, &Side) -> Wrong);
    let cases: [Case; 11] = [
        ("Write beyond", |_, far| {
            wrong(SendRequest::write(beyond(far)), 8)
        }),
        ("long Write beyond", |_, far| {
            let near_the_end = far.mr.remote((1 << 20) - 100_000);
            wrong(SendRequest::write(near_the_end), 100_001)
        }),
        ("Write, unknown", |_, far| {
            wrong(SendRequest::write(unknown(far)), 8)
        }),
        ("Read beyond", |_, far| {
            wrong(SendRequest::read(beyond(far)), 8)
        }),
        ("Read, unknown", |_, far| {
            wrong(SendRequest::read(unknown(far)), 8)
        }),
        ("atomic, no right", |_, far| {
            wrong(SendRequest::fetch_add(far.mr.remote(0), 1), 8)
        }),
        ("atomic, odd", |_, far| {
            wrong(SendRequest::fetch_add(far.mr.remote(1), 1), 8)
        }),
        ("Send, too long", |_, _| wrong(SendRequest::send(), 9)),
        ("Send, far too long", |_, _| {
            wrong(SendRequest::send(), 100_000)
        }),
        ("invalidates nothing", |_, far| {
            let stag = unknown(far).stag;
            wrong(SendRequest::send_invalidate(stag), 8)
        }),
        ("beyond its own", |_, far| {
            wrong(SendRequest::write(far.mr.remote(0)), (1 << 20) - 63)
        }),
    ];
    for (name, case) in cases {
        for options in [plain(), rc()] {
            let direct = {
                let rig = Rig::new(inline, V4);
                let (mut near, mut far) = rig.connected(&options);
                exchange(&mut near, &mut far);
                settle(&[&rig.device]);
                fail(&mut near, &mut far, &case)
            };
            let framed = {
                let (mut near, mut far) = over_the_wire(&options);
                exchange(&mut near, &mut far);
                fail(&mut near, &mut far, &case)
            };
            assert_eq!(direct, framed, "{name}");
            assert!(direct.near[1].1 != WcStatus::Success, "{name} is wrong");
        }
    }
}

fn over_the_wire(options: &ConnectionOptions) -> (Side, Side) {
    let (near, far, address) = devices(Threads {
        near: true,
        far: true,
    });
    let listener = far.listen(address).unwrap();
    let (mut near, mut far) = (Side::new(&near), Side::new(&far));
    near.qp.connect(address, None, options.clone()).unwrap();
    let request = listener.next_request(SOON).unwrap().unwrap();
    request.accept(&mut far.qp, options.clone()).unwrap();
    near.qp.wait_established(SOON).unwrap();
    (near, far)
}

/// Requests of a side, and octets for each: of its source, of the buffer of a receive, of what the
/// peer writes, and of the sink of a Read.
const REQUESTS: usize = 20;
const ROOM: usize = 150_000;
const RECEIVES: usize = REQUESTS * ROOM;
const WRITTEN: usize = 2 * RECEIVES;
const SINKS: usize = 3 * RECEIVES;

/// What was posted, and the octets that its memory has then.
struct Posted {
    /// The side, and the place in its memory.
    at: (usize, usize),
    octets: Vec<u8>,
}

/// Messages of all kinds and lengths go both ways while receives are posted late. Those that find
/// none wait, and those behind them come in frames.
#[test]
fn messages_keep_their_order_on_whichever_way_they_go() {
    let mut parked = 0;
    for seed in 0..deep(50) {
        let mut random = Rng::with_seed(seed);
        let rig = Rig::new(inline, V4);
        let (near, far) = rig.connected(&rc());
        let mut sides = [near, far];
        for (tag, side) in (1u8..).zip(&mut sides) {
            side.mr = register(&side.pd, 4 * RECEIVES);
            let octets = (0..RECEIVES).map(|at| (at / 7 * 3 + at) as u8 ^ tag);
            side.mr.write(0, &octets.collect::<Vec<_>>()).unwrap();
        }
        let mut posted = Vec::new();
        // Of each side: requests, Sends, and receives that were posted for the peer's.
        let (mut requests, mut sends, mut receives) = ([0; 2], [0; 2], [0; 2]);
        for _ in 0..REQUESTS {
            let from = random.usize(..2);
            let [this, that] = sides.get_disjoint_mut([from, 1 - from]).unwrap();
            let (number, to) = (requests[from], 1 - from);
            let longest = [8, 2000, ROOM][random.usize(..3)];
            let (place, length) = (number * ROOM, random.usize(..longest));
            let source = [this.mr.sge(place, length as u32)];
            let sink = [this.mr.sge(SINKS + place, length as u32)];
            let (request, memory, at) = match random.usize(..4) {
                0 => {
                    let written = that.mr.remote(WRITTEN + place);
                    (SendRequest::write(written), &source, (to, WRITTEN + place))
                }
                1 => {
                    let read = SendRequest::read(that.mr.remote(place));
                    (read, &sink, (from, SINKS + place))
                }
                _ => {
                    sends[from] += 1;
                    let at = RECEIVES + (sends[from] - 1) * ROOM;
                    (SendRequest::send(), &source, (to, at))
                }
            };
            let reads = at.0 == from;
            let origin = if reads { &that.mr } else { &this.mr };
            let octets = origin.copy(place, length).unwrap();
            posted.push(Posted { at, octets });
            let request = request.memory(memory).wr_id(number as u64);
            this.qp.post_send(&request).unwrap();
            requests[from] += 1;
            for _ in 0..random.usize(..20) {
                rig.device.drive();
            }
            if random.bool() {
                post_receives(&mut sides, &sends, &mut receives);
            }
        }
        post_receives(&mut sides, &sends, &mut receives);
        settle(&[&rig.device]);
        for (one, side) in sides.iter_mut().enumerate() {
            let (mut done, mut came) = (0, 0);
            while done < requests[one] || came < receives[one] {
                let completion = side.done();
                let expected = match completion.opcode() {
                    WcOpcode::Recv => &mut came,
                    _ => &mut done,
                };
                assert_eq!(completion.wr_id(), *expected as u64, "seed {seed}");
                *expected += 1;
            }
        }
        for Posted {
            at: (one, at),
            octets,
        } in &posted
        {
            let found = sides[*one].mr.copy(*at, octets.len()).unwrap();
            assert!(found == *octets, "seed {seed}: {at} of side {one}");
        }
        let snapshot = rig.device.snapshot(SOON).unwrap().unwrap();
        parked += snapshot.rdma.streams_parked;
    }
    assert!(parked > 0, "some find no receive");
}

/// Posts a receive for each Send of the other side that has none.
fn post_receives(sides: &mut [Side; 2], sends: &[usize; 2], receives: &mut [usize; 2]) {
    for (one, side) in sides.iter_mut().enumerate() {
        for number in receives[one]..sends[1 - one] {
            let buffer = [side.mr.sge(RECEIVES + number * ROOM, ROOM as u32)];
            side.qp.post_recv(number as u64, &buffer).unwrap();
        }
        receives[one] = sends[1 - one];
    }
}

/// The first message of a connection goes in a frame, and its answer may go directly.
#[test]
fn an_answer_is_told_behind_the_request_that_it_answers() {
    for options in [plain(), rc()] {
        let rig = Rig::new(inline, V4);
        let pairs = [rig.connected(&options), over_the_wire(&options)];
        for (mut near, mut far) in pairs {
            far.qp.post_recv(1, &[far.mr.sge(0, 8)]).unwrap();
            near.qp.post_recv(2, &[near.mr.sge(0, 8)]).unwrap();
            let request = SendRequest::send().inline(b"ask").wr_id(3);
            near.qp.post_send(&request).unwrap();
            assert_eq!(far.done().wr_id(), 1);
            let answer = SendRequest::send().inline(b"answer").wr_id(4);
            far.qp.post_send(&answer).unwrap();
            assert_eq!([near.done().wr_id(), near.done().wr_id()], [3, 2]);
            assert_eq!(far.done().wr_id(), 4);
        }
    }
}

/// However many connections have something to send, a turn is short: others are to have theirs.
#[test]
fn a_turn_is_as_short_for_many_connections() {
    const MANY: usize = 40;
    let rig = Rig::new(inline, V4);
    let mut pairs: Vec<_> = (0..MANY).map(|_| rig.connected(&plain())).collect();
    for (near, far) in &mut pairs {
        let write = SendRequest::write(far.mr.remote(0)).inline(b"first");
        near.qp.post_send(&write).unwrap();
        near.done();
    }
    settle(&[&rig.device]);
    let placed = || {
        let snapshot = rig.device.snapshot(SOON).unwrap().unwrap();
        snapshot.rdma.octets_placed
    };
    let before = placed();
    for (near, far) in &mut pairs {
        let piece = [near.mr.sge(0, 1 << 20)];
        let write = SendRequest::write(far.mr.remote(0)).memory(&piece);
        near.qp.post_send(&write).unwrap();
    }
    rig.device.drive();
    // The look at it takes turns, too.
    let octets = placed() - before;
    assert!((1..=1 << 20).contains(&octets), "{octets}");
    for (near, _) in &mut pairs {
        near.done();
    }
}

/// One connection that always has something to send does not keep others from sending.
#[test]
fn connections_take_turns() {
    const MANY: usize = 5;
    let rig = Rig::new(inline, V4);
    let mut pairs: Vec<_> = (0..MANY).map(|_| rig.connected(&rc())).collect();
    for (near, far) in &mut pairs {
        exchange(near, far);
    }
    settle(&[&rig.device]);
    for (turn, (near, far)) in pairs.iter_mut().enumerate() {
        let piece = [near.mr.sge(0, 1 << 20)];
        let write = SendRequest::write(far.mr.remote(0)).memory(&piece);
        for _ in 0..if turn == MANY - 1 { 1 } else { 30 } {
            near.qp.post_send(&write).unwrap();
        }
    }
    let (last, others) = pairs.split_last_mut().unwrap();
    last.0.done();
    let mut done = 0;
    for (near, _) in others {
        done += near.cq.take(&mut [Completion::default(); 64]);
    }
    assert!(done < 4 * (MANY - 1), "{done} others are done");
}
