//! What clients say of themselves: true for those of ours, bounded for any.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rnic_manager::protocol::Reason;
use rnic_manager::{Administrator, Inspected, InspectionEnd, MAX_SAID};
use rnic_verbs::resource::{ConnectionResource, QpResource, Resource};

use crate::client::{ALICE, BOB, Client};
use crate::exchange::{OCTETS, SOON, respond};
use crate::peer::{PORT, Peer, open};
use crate::rig::{PEER_NIC, Rig};

/// Enough for a client that answers, on a busy machine too.
const LONG: Duration = Duration::from_secs(20);
/// The time limit where no answer comes.
const SHORT: Duration = Duration::from_millis(100);

/// Asks as root.
fn ask(rig: &Rig, port: u32, what: &str, within: Duration) -> Inspected {
    let mut administrator = Administrator::connect(&rig.socket()).unwrap();
    let mut all = Vec::new();
    let keep = |_: &mut Administrator, answers| {
        all.extend::<Vec<_>>(answers);
        true
    };
    administrator.inspect(&[port], what, within, keep).unwrap();
    let [(of, answer)] = <[_; 1]>::try_from(all).unwrap();
    assert_eq!(of, port);
    answer
}

/// Returns what a client of ours says, without the end.
fn objects(rig: &Rig, what: &str, within: Duration) -> Vec<Resource> {
    let answer = ask(rig, 1, what, within);
    assert_eq!(answer.end, InspectionEnd::Closed);
    let lines = answer.said.split_inclusive(|&octet| octet == b'\n');
    let mut said: Vec<_> = lines
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect();
    assert_eq!(said.pop(), Some(Resource::End));
    said
}

fn queue_pair(rig: &Rig) -> QpResource {
    match objects(rig, "qp", LONG).as_slice() {
        [Resource::Qp(qp)] => qp.clone(),
        other => panic!("{other:?}"),
    }
}

fn connection(rig: &Rig, within: Duration) -> ConnectionResource {
    match objects(rig, "connection", within).as_slice() {
        [Resource::Connection(connection)] => ConnectionResource::clone(connection),
        other => panic!("{other:?}"),
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn what_a_client_says_of_its_objects_is_so() {
    let rig = Rig::new(1500, "");
    let _peer = Peer::serve(&rig.far, PEER_NIC);
    let mut client = rig.open_client(ALICE);
    let summary = |rig: &Rig| match objects(rig, "summary", LONG).as_slice() {
        [Resource::Summary(counts)] => {
            [counts.pd, counts.cq, counts.qp, counts.mr, counts.listener]
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(summary(&rig), [0; 5]);
    client.must(&format!("connect 10.9.0.2:{PORT} 10.9.0.1:6001"));
    let listens = client.must("listen 10.9.0.1:0");
    client.must("rounds 2 1");
    // The process waits for a line now: what needs no engine is said all the same.
    assert_eq!(summary(&rig), [1, 1, 1, 2, 1]);
    let qp = queue_pair(&rig);
    let at = |text: &str| Some(text.parse().unwrap());
    let remote = format!("10.9.0.2:{PORT}");
    assert_eq!((qp.local, qp.remote), (at("10.9.0.1:6001"), at(&remote)));
    assert_eq!((qp.state.as_str(), qp.sq_depth), ("RTS", 128));
    assert_eq!((qp.sq_used, qp.rq_depth, qp.srqn), (0, Some(128), None));
    assert!(qp.ird.is_some() && qp.ord.is_some());
    let [Resource::Pd(pd)] = objects(&rig, "pd", LONG)[..] else {
        panic!("not one protection domain");
    };
    assert_eq!((pd.pdn, pd.users), (qp.pdn, 3));
    let [Resource::Cq(cq)] = objects(&rig, "cq", LONG)[..] else {
        panic!("not one completion queue");
    };
    assert_eq!((cq.cqn, cq.cqn), (qp.scqn, qp.rcqn));
    assert_eq!((cq.used, cq.depth, cq.users), (0, 16, 1));
    let mrs = objects(&rig, "mr", LONG);
    assert_eq!(mrs.len(), 2);
    for mr in mrs {
        let Resource::Mr(mr) = mr else {
            panic!("{mr:?}")
        };
        assert_eq!((mr.len, mr.pdn), (Some(OCTETS as u64), qp.pdn));
        let access = "local-read,local-write,remote-read,remote-write".split(',');
        let said = mr.access.unwrap();
        assert!(
            access
                .clone()
                .all(|right| said.split(',').any(|one| one == right)),
            "{said}"
        );
        assert_eq!(said.split(',').count(), access.count());
        assert_eq!((mr.kind.as_str(), mr.page_size), ("region", Some(4096)));
    }
    let [Resource::Listener(listener)] = objects(&rig, "listener", LONG)[..] else {
        panic!("not one listener");
    };
    assert_eq!(
        (listener.local, listener.waiting),
        (listens.parse().unwrap(), 0)
    );
    assert_eq!(objects(&rig, "srq", LONG), []);
    assert_eq!(objects(&rig, "coffee", LONG), [Resource::Unknown]);
    // What ends is listed no more.
    client.must("close");
    client.must("unlisten");
    assert_eq!(summary(&rig), [0; 5]);
    client.must("drop");
    drop(client);
    rig.wait_until_clean(&[]);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn what_a_client_says_of_a_connection_is_what_its_peer_sees() {
    let rig = Rig::new(1500, "");
    let device = open(&rig.far, PEER_NIC);
    let there = format!("10.9.0.2:{PORT}").parse().unwrap();
    let listener = [rig.far.run(|| device.listen(there)).unwrap()];
    let stop = Arc::<AtomicBool>::default();
    let (driven, stopped, far) = (device.clone(), stop.clone(), rig.far.clone());
    let peer = std::thread::spawn(move || far.run(|| respond(&driven, &listener, &stopped)));
    let mut client = rig.open_client(ALICE);
    client.must(&format!("connect {there} 10.9.0.1:6001"));
    client.must("rounds 4 1");
    // Its process waits for a line, and drives nothing.
    let idle = [Resource::Idle { engines: 1 }];
    // It says so a quarter of the time before the end.
    assert_eq!(objects(&rig, "connection", LONG / 2), idle);
    client.must("listen 10.9.0.1:0");
    client.tell("serve");
    let said = connection(&rig, LONG);
    assert_eq!(
        (said.local, said.remote),
        ("10.9.0.1:6001".parse().unwrap(), there)
    );
    assert_eq!(
        (said.state.as_str(), said.phase.as_str()),
        ("Established", "streaming")
    );
    assert_eq!(said.qpn, Some(queue_pair(&rig).qpn));
    let agreed = said.mpa.unwrap();
    assert_eq!((agreed.mpa, agreed.crc), (2, true));
    assert!(!agreed.markers && !agreed.peer_markers);
    // Nothing is under way any more: both ends count the same octets.
    let snapshot = device.snapshot(SOON).unwrap().unwrap();
    let [theirs] = snapshot.connections.as_slice() else {
        panic!("{snapshot:?}");
    };
    assert_eq!((theirs.local, theirs.remote), (said.remote, said.local));
    assert_eq!(said.tcp.bytes_sent, theirs.tcp.received);
    assert_eq!(said.tcp.bytes_acked, theirs.tcp.received);
    assert_eq!(said.tcp.bytes_received, theirs.tcp.counters.octets_sent);
    let payload = 4 * OCTETS as u64;
    for octets in [said.tcp.bytes_sent, said.tcp.bytes_received] {
        assert!(
            (payload..payload + payload / 8).contains(&octets),
            "{octets}"
        );
    }
    assert!(said.tcp.rtt.is_some() && said.tcp.mss > 1000 && said.tcp.cwnd > 0);
    client.must("and");
    // Under traffic, too.
    client.tell("stream 9");
    let before = connection(&rig, LONG).tcp.bytes_sent;
    rig.until("it has sent more", || {
        (connection(&rig, LONG).tcp.bytes_sent > before + payload).then_some(())
    });
    client.must("and");
    drop(client);
    stop.store(true, Ordering::Relaxed);
    peer.join().unwrap().unwrap();
    drop(device);
    rig.wait_until_clean(&[]);
}

/// A client that has a port and none of our code.
fn stranger(rig: &Rig, uid: u32) -> (Client, u32) {
    let mut client = rig.script(uid);
    let port = client.must("open_one").parse().unwrap();
    (client, port)
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn users_are_told_of_their_own_ports() {
    let rig = Rig::new(1500, "");
    let _alice = rig.open_client(ALICE);
    let mut bob = rig.script(BOB);
    assert_eq!(bob.must("inspect 1 qp"), "refused");
    assert_eq!(bob.must("inspect 2 qp"), "refused");
    let mut alice_too = rig.script(ALICE);
    assert_eq!(alice_too.must("inspect 1 qp"), "inspecting");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_client_that_is_not_there_or_knows_nothing_is_said_so() {
    let rig = Rig::new(1500, "");
    let (mut client, port) = stranger(&rig, BOB);
    client.tell("pass_over");
    let answer = ask(&rig, port, "qp", LONG);
    assert_eq!((answer.said.len(), answer.end), (0, InspectionEnd::Closed));
    client.answer().unwrap();
    client.must("hang_up");
    rig.until("rnicd has noticed", || {
        let InspectionEnd::Refused(refused) = ask(&rig, port, "qp", SHORT).end else {
            return None;
        };
        assert_eq!(refused.reason, Reason::NotReady);
        Some(())
    });
    let InspectionEnd::Refused(refused) = ask(&rig, 77, "qp", SHORT).end else {
        panic!("there is no such port");
    };
    assert_eq!(refused.reason, Reason::NotPermitted);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_client_that_takes_nothing_holds_four_pipes() {
    let rig = Rig::new(1500, "");
    let (mut client, port) = stranger(&rig, BOB);
    let before = rig.count_descriptors();
    let end = || ask(&rig, port, "qp", SHORT).end;
    // The connections of those who asked before may take a moment to go.
    let holds = |rig: &Rig, count: usize| {
        rig.until("rnicd holds so many pipes", || {
            (rig.count_descriptors() == before + count).then_some(())
        });
    };
    // Stopped, it takes no message, of which one is on its way.
    let pid = Pid::from_raw(client.pid().try_into().unwrap());
    kill(pid, Signal::SIGSTOP).unwrap();
    for _ in 0..5 {
        assert_eq!(end(), InspectionEnd::TimedOut);
    }
    holds(&rig, 4);
    let InspectionEnd::Refused(refused) = end() else {
        panic!("it is asked once more");
    };
    assert_eq!(refused.reason, Reason::NotReady);
    kill(pid, Signal::SIGCONT).unwrap();
    client.must("ignore 5");
    // It keeps them, and rnicd has none: closing the last copy of one would wait for a write that
    // is under way there.
    holds(&rig, 0);
    assert_eq!(end(), InspectionEnd::TimedOut);
    client.must("ignore 1");
    client.must("forget");
    // What it holds goes with its connection.
    drop(client);
    rig.wait_until_clean(&[]);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_client_may_say_anything_but_not_without_end() {
    let rig = Rig::new(1500, "");
    let (mut client, port) = stranger(&rig, BOB);
    let before = rig.count_descriptors();
    client.tell(r"say \x1b[2J\x00\xff");
    let answer = ask(&rig, port, "qp", LONG);
    assert_eq!(
        (answer.said.as_slice(), answer.end),
        (&b"\x1b[2J\0\xff"[..], InspectionEnd::Closed)
    );
    client.answer().unwrap();
    client.tell("go_on");
    let answer = ask(&rig, port, "qp", LONG);
    assert_eq!(
        (answer.said.len(), answer.end),
        (MAX_SAID, InspectionEnd::TooLong)
    );
    // Others are served meanwhile, and for the client that goes on rnicd holds nothing.
    let _other = rig.open_client(ALICE);
    rig.until(
        "rnicd holds the connection and the memory of the other",
        || (rig.count_descriptors() == before + 2).then_some(()),
    );
}
