//! What stands between two hosts, or happens to one, and must not end a connection: data arrive
//! whole, both ways.

mod common;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use common::*;
use fastrand::Rng;
use rnic_core::connection::ConnectionOptions;
use rnic_core::engine::EngineConfig;
use rnic_core::testing::link::{Impairments, rewrite};
use rnic_core::testing::simulation::{SharedRegion, Simulation, TestQp};
use rnic_core::time::Instant;
use rnic_core::verbs::status::WcStatus;
use rnic_core::wire::packet::{Checksums, parse};
use rnic_core::wire::tcp::{SackBlocks, Seq, TcpHeader};

/// Octets each way.
const LEN: usize = 2_000_000;
/// Of virtual time: longer than the longest timeouts in a row that something here causes.
const PATIENCE: Duration = Duration::from_secs(150);

/// Two hosts that send each other noise.
struct Scene {
    sim: Simulation,
    pair: [TestQp; 2],
    sources: [SharedRegion; 2],
    sinks: [SharedRegion; 2],
}

impl Scene {
    fn new(
        link: Impairments,
        middlebox: impl FnMut(Instant, usize, &mut Vec<u8>) -> bool + 'static,
    ) -> Self {
        Self::with(&EngineConfig::default(), link, middlebox)
    }

    fn with(
        config: &EngineConfig,
        link: Impairments,
        middlebox: impl FnMut(Instant, usize, &mut Vec<u8>) -> bool + 'static,
    ) -> Self {
        let mut sim = Simulation::new(config, link, 1);
        sim.link.set_middlebox(Box::new(middlebox));
        let (client, server) = sim.connect(&ConnectionOptions::default()).unwrap();
        let mut rng = Rng::with_seed(2);
        let mut noise = || (0..LEN).map(|_| rng.u8(..)).collect::<Vec<_>>();
        let sources = [0, 1].map(|host: usize| sim.hosts[host].share(&noise(), all_rights()));
        let sinks = [0, 1].map(|host: usize| sim.hosts[host].share(&vec![0; LEN], all_rights()));
        let mut scene = Self {
            sim,
            pair: [client, server],
            sources,
            sinks,
        };
        for host in [0, 1] {
            let request = write(1, &scene.sources[host], scene.sinks[1 - host].stag, LEN);
            scene.sim.hosts[host].post_send(&mut scene.pair[host], request);
        }
        scene
    }

    /// Waits until all has arrived, and returns how long that took.
    fn finish(&mut self) -> Duration {
        let started = self.sim.now;
        for host in [0, 1] {
            let done = completions(&mut self.sim, &mut self.pair[host], 1, PATIENCE);
            assert_eq!(done[0].status(), WcStatus::Success, "of host {host}");
        }
        // Completed is what the peer has acknowledged; the answer to a Read is behind its
        // placement.
        for host in [0, 1] {
            let request = read(2, &self.sinks[host], self.sources[1 - host].stag, 1);
            self.sim.hosts[host].post_send(&mut self.pair[host], request);
            let done = completions(&mut self.sim, &mut self.pair[host], 1, PATIENCE);
            assert_eq!(done[0].status(), WcStatus::Success, "of host {host}");
            let (sent, received) = (self.sources[1 - host].content(), self.sinks[host].content());
            assert!(sent == received, "host {host} has received something else");
        }
        self.sim.now.since(started)
    }
}

/// A link of some loss, in thousandths.
fn link(loss: u32) -> Impairments {
    Impairments {
        delay: Duration::from_micros(500),
        loss,
        ..Impairments::default()
    }
}

/// A middlebox that changes TCP headers, given the end to which they go and how much payload
/// follows.
fn changing(
    mut change: impl FnMut(usize, usize, &mut TcpHeader) + 'static,
) -> impl FnMut(Instant, usize, &mut Vec<u8>) -> bool + 'static {
    move |_, to, frame| {
        let packet = parse(frame, Checksums::None);
        let payload = packet.map_or(0, |packet| packet.segment.payload.len());
        rewrite(frame, |header| change(to, payload, header));
        true
    }
}

#[test]
fn timestamps_are_stripped_from_some_segments_or_all() {
    type Which = fn(usize, usize, &TcpHeader) -> bool;
    let kinds: [(&str, Which); 4] = [
        ("a SYN", |to, _, header| to == 1 && header.flags.syn()),
        ("a SYN-ACK", |to, _, header| to == 0 && header.flags.syn()),
        ("all behind the handshake", |_, _, header| {
            !header.flags.syn()
        }),
        ("acknowledgments", |_, payload, header| {
            payload == 0 && !header.flags.syn()
        }),
    ];
    for (name, which) in kinds {
        let stripped = Rc::new(RefCell::new(0));
        let count = stripped.clone();
        let middlebox = changing(move |to, payload, header| {
            if which(to, payload, header) && header.options.timestamps.take().is_some() {
                *count.borrow_mut() += 1;
            }
        });
        let took = Scene::new(link(10), middlebox).finish();
        assert!(*stripped.borrow() > 0, "{name}");
        assert!(took < SECOND * 10, "{name}: {took:?}");
    }
}

/// Shifts the blocks of a SACK option.
fn shifted(sack: &SackBlocks, by: u32) -> SackBlocks {
    let mut shifted = SackBlocks::EMPTY;
    for (left, right) in sack.iter() {
        shifted.push(Seq(left.0.wrapping_add(by)), Seq(right.0.wrapping_add(by)));
    }
    shifted
}

/// A SYN proxy answers the SYN itself, and so has sequence numbers of its own: it translates those
/// of the server ever after. Its SYN-ACK promises no window. Some do not translate the blocks of
/// SACK options.
#[test]
fn a_syn_proxy_translates_sequence_numbers_with_selective_acknowledgments_or_without() {
    const SHIFT: u32 = 0x8765_4321;
    for with_sack in [true, false] {
        let middlebox = changing(move |to, _, header| match to {
            0 => {
                header.seq = Seq(header.seq.0.wrapping_add(SHIFT));
                if header.flags.syn() {
                    header.window = 0;
                }
            }
            _ => {
                if header.flags.ack() {
                    header.ack = Seq(header.ack.0.wrapping_sub(SHIFT));
                }
                if with_sack {
                    header.options.sack = shifted(&header.options.sack, SHIFT.wrapping_neg());
                }
            }
        });
        Scene::new(link(10), middlebox).finish();
    }
}

#[test]
#[cfg_attr(carrier_sockets, ignore = "looks at our TCP; the kernel has its own")]
fn frames_beyond_a_limit_vanish_without_a_word() {
    let mut scene = Scene::new(link(0), |_, _, frame: &mut Vec<u8>| frame.len() <= 1314);
    scene.finish();
    for host in [0, 1] {
        let snapshot = scene.sim.hosts[host].snapshot(scene.sim.now);
        assert_eq!(snapshot.tcp.mtu_reductions, 1, "of host {host}");
    }
}

#[test]
fn a_window_is_closed_behind_what_is_in_flight_for_three_seconds() {
    let mut closed_at = None;
    let middlebox = move |now: Instant, to: usize, frame: &mut Vec<u8>| {
        let ack = parse(frame, Checksums::None).map(|packet| packet.segment.header);
        let is_ack = ack.is_ok_and(|header| !header.flags.syn());
        // Some round trips into the transfer.
        if to == 0 && is_ack {
            let since = *closed_at.get_or_insert(now + Duration::from_millis(10));
            if now >= since && now < since + SECOND * 3 {
                rewrite(frame, |header| header.window = 0);
            }
        }
        true
    };
    let took = Scene::new(link(0), middlebox).finish();
    assert!(took >= SECOND * 3 && took < SECOND * 10, "{took:?}");
}

#[test]
fn a_process_is_stopped_and_goes_on() {
    for seconds in [8, 45] {
        for stopped in [0, 1] {
            let mut scene = Scene::new(link(0), |_, _, _: &mut Vec<u8>| true);
            scene.sim.run_for(Duration::from_millis(4));
            scene.sim.stop(stopped);
            scene.sim.run_for(SECOND * seconds);
            for host in [0, 1] {
                assert!(
                    scene.pair[host].poll().is_empty(),
                    "it is too late to stop host {stopped}"
                );
            }
            scene.sim.resume(stopped);
            scene.finish();
        }
    }
}

/// What a firewall has seen of one end, as Linux's connection tracking counts it (`tcp_in_window`
/// of nf_conntrack_proto_tcp.c).
#[derive(Clone, Copy, Debug, Default)]
struct Tracked {
    /// The end of what it has sent, and of what it may send.
    end: Seq,
    max_end: Seq,
    /// The largest window that it has offered.
    max_window: u32,
    scale: u8,
}

fn plus(seq: Seq, by: u32) -> Seq {
    Seq(seq.0.wrapping_add(by))
}

/// How far `one` is ahead of `other`.
fn ahead(one: Seq, other: Seq) -> i32 {
    one.0.wrapping_sub(other.0) as i32
}

/// Records a segment, and returns whether it is inside the windows that both ends have shown.
fn track(ends: &mut [Tracked; 2], from: usize, header: &TcpHeader, payload: usize) -> bool {
    let flags = header.flags;
    let length = payload as u32 + u32::from(flags.syn()) + u32::from(flags.fin());
    let (seq, end) = (header.seq, plus(header.seq, length));
    let window = u32::from(header.window);
    if flags.syn() {
        ends[from] = Tracked {
            end,
            max_end: end,
            max_window: window.max(1),
            scale: header.options.window_scale.unwrap_or(0),
        };
    }
    if !flags.ack() {
        return true;
    }
    let [mut sender, mut receiver] = [ends[from], ends[1 - from]];
    let rights = header.options.sack.iter().map(|(_, right)| right);
    let sack = rights.fold(header.ack, |most, right| {
        if ahead(right, most) > 0 { right } else { most }
    });
    let is_inside = ahead(seq, sender.max_end) <= 0
        && ahead(end, sender.end) >= -(receiver.max_window as i32)
        && ahead(sack, receiver.end) <= 0
        && ahead(sack, receiver.end) >= -(sender.max_window.max(66_000) as i32);
    if !is_inside {
        return false;
    }
    let window = window << if flags.syn() { 0 } else { sender.scale };
    let beyond = ahead(sack, header.ack) as u32;
    sender.max_window = sender.max_window.max(window + beyond);
    if ahead(end, sender.end) > 0 {
        sender.end = end;
    }
    if ahead(end, sender.max_end) > 0 {
        receiver.max_window += ahead(end, sender.max_end) as u32;
    }
    if ahead(plus(sack, window), receiver.max_end) >= 0 {
        receiver.max_end = plus(sack, window.max(1));
    }
    (ends[from], ends[1 - from]) = (sender, receiver);
    true
}

#[test]
fn a_firewall_finds_nothing_outside_of_the_windows_whatever_is_lost_around_it() {
    for loss in [0, 3, 20] {
        let invalid = Rc::new(RefCell::new(Vec::new()));
        let found = invalid.clone();
        let mut ends = [Tracked::default(); 2];
        let mut rng = Rng::with_seed(3);
        let firewall = move |_: Instant, to: usize, frame: &mut Vec<u8>| {
            let packet = parse(frame, Checksums::None).unwrap().segment;
            if !track(&mut ends, 1 - to, &packet.header, packet.payload.len()) {
                found.borrow_mut().push(packet.header);
                return false;
            }
            // Ahead of it the link loses as many.
            rng.u32(0..1000) >= loss
        };
        // So small that they are used up.
        let mut config = EngineConfig::default();
        config.tcp.receive_window = 20_000;
        config.tcp.receive_window_limit = 20_000;
        Scene::with(&config, link(loss), firewall).finish();
        assert!(invalid.borrow().is_empty(), "{:?}", invalid.borrow());
    }
}
