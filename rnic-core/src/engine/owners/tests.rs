use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;
use std::task::Wake;
use std::thread;
use std::time::Duration;

use crossbeam_channel::unbounded;

use crate::wire::{
    ethernet::MacAddr,
    packet::parse,
    tcp::{Flags, Seq, TcpHeader},
    template::NetHeader,
};

use super::*;

/// How often an engine was woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Makes the places of `count` engines of a device, all asleep.
fn engines(count: usize) -> (Vec<EnginePlace>, Vec<Arc<Woken>>, Vec<Arc<Doorbells>>) {
    let woken: Vec<_> = (0..count).map(|_| Arc::<Woken>::default()).collect();
    let doorbells: Vec<_> = (0..count).map(|_| Arc::new(Doorbells::new(1))).collect();
    let ends = woken.iter().zip(&doorbells).map(|(woken, doorbells)| {
        assert!(doorbells.prepare_to_sleep());
        let wake = Waker::from(woken.clone());
        (unbounded().0, doorbells.clone(), wake)
    });
    (places(ends), woken, doorbells)
}

fn key(port: u16) -> FlowKey {
    let end = |port| SocketAddr::new(Ipv4Addr::new(192, 0, 2, 1).into(), port);
    FlowKey::new(end(port), end(1))
}

/// Removes and returns the frames that were handed to an engine.
fn found(place: &mut EnginePlace) -> Vec<(u16, Vec<u8>, Checksums)> {
    let mut found = Vec::new();
    while let Some(parcel) = place.next() {
        let frames = parcel.1.frames();
        found.extend(frames.map(|(frame, sums)| (parcel.0, frame.to_vec(), sums)));
        place.give_back(parcel);
    }
    found
}

#[test]
fn frames_come_in_order_and_wake_once() {
    let (mut places, woken, _doorbells) = engines(3);
    let frame = |at: usize| vec![at as u8; 1 + at * 37 % 1500];
    for at in 0..100 {
        let checksums = if at % 2 == 0 {
            Checksums::None
        } else {
            Checksums::Complete(at as u16)
        };
        let handed = places[2].hand_over(1, &frame(at), checksums);
        assert_eq!(handed, HandOver::Handed);
    }
    assert_eq!(
        woken[1].0.load(Ordering::Relaxed),
        0,
        "at the end of the turn"
    );
    places[2].send_parcels();
    places[2].send_parcels();
    let counts: Vec<_> = woken.iter().map(|w| w.0.load(Ordering::Relaxed)).collect();
    assert_eq!(counts, [0, 1, 0]);
    assert!(!places[0].is_waited_for() && places[1].is_waited_for());
    let found = found(&mut places[1]);
    assert_eq!(found.len(), 100);
    for (at, (from, octets, checksums)) in found.into_iter().enumerate() {
        assert_eq!((from, octets), (2, frame(at)));
        assert_eq!(checksums == Checksums::None, at % 2 == 0);
    }
    assert!(!places[1].is_waited_for());
}

/// Frames beyond the parcels of a pair of engines are lost, and reported as lost. Other pairs are
/// not affected. Parcels that come back are used again.
#[test]
fn too_many_frames_are_lost_and_said_to_be() {
    let (mut places, ..) = engines(3);
    for _round in 0..3 {
        let outcomes: Vec<_> = (0..PARCELS * FRAMES + 7)
            .map(|_| places[0].hand_over(1, &[7; 60], Checksums::Unnecessary))
            .collect();
        let (handed, lost) = outcomes.split_at(PARCELS * FRAMES);
        assert!(handed.iter().all(|one| *one == HandOver::Handed));
        assert!(lost.iter().all(|one| *one == HandOver::Lost));
        let other = places[2].hand_over(1, &[8; 60], Checksums::Unnecessary);
        assert_eq!(other, HandOver::Handed);
        places[0].send_parcels();
        places[2].send_parcels();
        assert_eq!(found(&mut places[1]).len(), handed.len() + 1);
    }
}

/// Long frames make more parcels, not larger ones.
#[test]
fn parcels_keep_so_much_memory_and_no_more() {
    let (mut places, ..) = engines(2);
    for len in [60, 1514, 9014, 60_000, 1514] {
        let most = PARCELS * FRAMES.min((OCTETS / len).max(1));
        let frame = vec![len as u8; len];
        let handed = (0..most + 1)
            .filter(|_| places[0].hand_over(1, &frame, Checksums::Unnecessary) == HandOver::Handed);
        assert_eq!(handed.count(), most, "frames of {len}");
        places[0].send_parcels();
        let found = found(&mut places[1]);
        assert!(found.len() == most && found.iter().all(|(_, octets, _)| *octets == frame));
        let parcels: Vec<_> = places[0].links[1].empty.try_iter().collect();
        assert_eq!(parcels.len(), PARCELS);
        for parcel in parcels {
            assert!(len == 60_000 || parcel.capacity() <= OCTETS);
            let fresh = if len == 60_000 {
                Parcel::default()
            } else {
                parcel
            };
            places[1].give_back((0, fresh));
        }
    }
}

/// Runs something that must not wait for a lock.
fn without_waiting<T: Send>(what: &str, run: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let (done, outcome) = mpsc::channel();
        scope.spawn(move || done.send(run()));
        let outcome = outcome.recv_timeout(Duration::from_secs(20));
        outcome.unwrap_or_else(|_| {
            // A panic would wait for the thread, which never ends.
            eprintln!("{what} waits for a lock");
            std::process::abort()
        })
    })
}

#[test]
fn whose_a_connection_is_is_remembered_until_that_changes() {
    let (mut places, ..) = engines(2);
    let [one, other] = &mut places[..] else {
        panic!()
    };
    assert_eq!(other.claim(&key(1)), Handler::This);
    assert_eq!(one.handler(&key(1)), Handler::Other(1));
    let owners = one.owners.clone();
    let locked = owners.lock();
    let handler = without_waiting("what is known", || one.handler(&key(1)));
    assert_eq!(handler, Handler::Other(1));
    drop(locked);
    // A connection that begins does not make other engines forget anything.
    assert_eq!(one.claim(&key(2)), Handler::This);
    assert_eq!(one.claim(&key(1)), Handler::Other(1));
    let locked = owners.lock();
    let handler = without_waiting("what is known", || one.handler(&key(1)));
    assert_eq!(handler, Handler::Other(1));
    drop(locked);

    other.release(&key(1));
    assert_eq!(one.handler(&key(1)), Handler::This);
    assert_eq!(other.claim(&key(1)), Handler::This);
    assert_eq!(one.handler(&key(1)), Handler::Other(1));
    other.give_away(0, Some(key(1)), Command::Abort(crate::ids::QpNumber(0)));
    // The table has it as ours already, but it has not arrived.
    assert_eq!(one.handler(&key(1)), Handler::Nobody);
    assert_eq!(other.handler(&key(1)), Handler::Other(0));
}

/// A connection that one engine ends may be another's by now.
#[test]
fn an_engine_releases_only_what_it_has() {
    let (places, ..) = engines(2);
    let [one, other] = &places[..] else { panic!() };
    assert_eq!(other.claim(&key(1)), Handler::This);
    let before = one.owners.changes();
    one.release(&key(1));
    one.release(&key(2));
    assert_eq!(one.claim(&key(1)), Handler::Other(1));
    assert_eq!(one.owners.changes(), before, "nobody need look again");
}

/// An engine that sees the new owner in the table hands frames to it, so the command must come
/// first.
#[test]
fn an_engine_is_told_of_a_connection_before_others_see_that_it_has_it() {
    let owners = Owners::default();
    let mut told = false;
    owners.give(&key(1), 1, || {
        assert!(owners.table.try_lock().is_err(), "others see it by now");
        told = true;
    });
    assert!(told && owners.lock()[&key(1)] == 1);
}

/// A data segment of a connection.
fn frame(port: u16, seq: u32) -> Vec<u8> {
    let address = |host| IpAddr::from(Ipv4Addr::new(192, 0, 2, host));
    let net = NetHeader {
        source_mac: MacAddr([2; 6]),
        destination_mac: MacAddr([4; 6]),
        vlan: None,
        source: address(1),
        destination: address(2),
        hop_limit: 64,
        traffic_class: 0,
    };
    let header = TcpHeader {
        source_port: 1,
        destination_port: port,
        seq: Seq(seq),
        flags: Flags::ACK,
        ..TcpHeader::default()
    };
    let at = net.len() + header.len();
    let mut frame = vec![9; at + 100];
    let sum = crate::wire::checksum::sum(&frame[at..]);
    net.write(&mut frame, &header, 100, sum);
    frame
}

#[test]
fn frames_like_the_one_before_are_recognised_until_the_owner_changes() {
    let (mut places, ..) = engines(2);
    let [one, other] = &mut places[..] else {
        panic!()
    };
    let expect = |one: &mut EnginePlace, port, seq| {
        let octets = frame(port, seq);
        let packet = parse(&octets, Checksums::None).unwrap();
        let key = FlowKey::new(packet.destination, packet.source);
        assert_eq!(one.handler(&key), Handler::Other(1));
        one.expect_like(&octets, &packet, 1);
        key
    };
    for port in [80, 81] {
        let octets = frame(port, 0);
        let packet = parse(&octets, Checksums::None).unwrap();
        let key = FlowKey::new(packet.destination, packet.source);
        assert_eq!(other.claim(&key), Handler::This);
    }
    expect(one, 80, 0);
    assert_eq!(one.recognise(&frame(80, 100)), None, "one is not enough");
    let key = expect(one, 80, 100);
    let mut damaged = frame(80, 200);
    assert_eq!(one.recognise(&damaged), Some(1));
    // The owner of the connection verifies checksums.
    *damaged.last_mut().unwrap() ^= 1;
    assert_eq!(one.recognise(&damaged), Some(1));
    assert_eq!(
        one.recognise(&frame(81, 200)),
        None,
        "of another connection"
    );
    one.has_come_far = true;
    assert_eq!(one.recognise(&frame(80, 200)), None, "it goes no further");
    one.has_come_far = false;
    assert_eq!(one.recognise(&frame(80, 200)), Some(1));
    other.release(&key);
    assert_eq!(one.recognise(&frame(80, 200)), None, "that is over");
}
