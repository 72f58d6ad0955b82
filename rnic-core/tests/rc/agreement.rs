//! Who may be sent what RC adds to the RFCs: peers that have agreed to it in their Reply.

use rnic_core::connection::{ConnectionOptions, EndReason};
use rnic_core::testing::simulation::Simulation;
use rnic_core::wire::ddp::{DdpHeader, QueueNumber};
use rnic_core::wire::hello::{Hello, Kind};
use rnic_core::wire::mpa::StartupKind;
use rnic_core::wire::rdmap::Terminate;

use crate::common::*;
use crate::scene::*;

fn said() -> Hello {
    Hello::parse(&hello()).unwrap()
}

fn accepting(private_data: &[u8]) -> Vec<u8> {
    startup_with(StartupKind::Reply, private_data)
}

/// Connects with these options to a raw peer, which accepts with these private data.
fn connect(options: &ConnectionOptions, private_data: &[u8]) -> (Simulation, RawConnection) {
    let mut sim = rc_hosts();
    let qp = sim.hosts[0].create_qp();
    let peer = sim.add_raw_peer(0, 0);
    let address = sim.raw[peer].address();
    sim.hosts[0].connect(&qp, 41_000, address, options);
    sim.run_now();
    sim.raw[peer].take_startup().expect("the host asks");
    sim.raw[peer].send(&accepting(private_data));
    sim.run_now();
    (sim, RawConnection { peer, qp })
}

#[test]
fn a_peer_that_has_not_agreed_gets_nothing_but_a_terminate() {
    let octets = |other: Hello| other.octets(None).to_vec();
    let replies = [
        vec![],
        b"accept".to_vec(),
        hello()[..39].to_vec(),
        octets(Hello { own: 2, ..said() }),
        octets(Hello { peer: 2, ..said() }),
        octets(Hello {
            kind: Kind::Datagrams,
            ..said()
        }),
    ];
    for private_data in replies {
        let (mut sim, mut raw) = connect(&rc(), &private_data);
        let why = "the peer accepts without the semantics of RC";
        let failure = EndReason::Startup(why.into());
        assert_eq!(sim.hosts[0].failure_of(raw.qp.number), Some(failure));
        let (header, payload) = sim.raw[raw.peer].take_ddp().expect("a Terminate");
        let DdpHeader::Untagged(header) = header else {
            panic!("a tagged segment, {private_data:?}");
        };
        assert_eq!(header.queue, QueueNumber::TERMINATE, "{private_data:?}");
        let control = Terminate::parse(&payload).unwrap().control;
        assert_eq!(
            (control.layer, control.error_type, control.code),
            (2, 0, 5),
            "rfc: 6581-38"
        );
        assert!(sim.raw[raw.peer].take_ddp().is_none());
        // It may connect again.
        assert_eq!(outcomes(&mut raw.qp), []);
        let again = ConnectionOptions::default();
        let peer = sim.add_raw_peer(0, 0);
        let address = sim.raw[peer].address();
        sim.hosts[0].connect(&raw.qp, 41_001, address, &again);
        sim.run_now();
        sim.raw[peer].send(&accepting(&private_data));
        sim.run_now();
        assert!(sim.hosts[0].is_established(raw.qp.number));
    }
}

#[test]
fn a_peer_that_has_agreed_is_connected() {
    let (mut sim, mut raw) = connect(&rc(), &hello());
    assert!(sim.hosts[0].is_established(raw.qp.number));
    sim.hosts[0].post_send(&mut raw.qp, inline_send(1, b"for RC"));
    sim.run_now();
    assert!(sim.raw[raw.peer].take_ddp().is_some());
}

/// Applications may agree by private data of their own.
#[test]
fn who_asks_by_other_private_data_judges_the_reply_itself() {
    let options = ConnectionOptions {
        private_data: b"RC?".to_vec(),
        ..rc()
    };
    let (sim, raw) = connect(&options, b"RC!");
    assert!(sim.hosts[0].is_established(raw.qp.number));
}
