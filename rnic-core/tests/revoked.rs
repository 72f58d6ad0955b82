//! When an administrator revokes the lease of a local port, what uses it ends at once, and nothing
//! else.

mod common;

use std::net::{Ipv4Addr, SocketAddr};

use common::*;
use rnic_core::connection::{ConnectionOptions, EndReason, Event};
use rnic_core::engine::{Command, Peers};
use rnic_core::ids::ListenerId;
use rnic_core::testing::simulation::Simulation;
use rnic_core::verbs::status::WcStatus;

/// Where `Simulation::connect` has host 1 listen.
const PORT: u16 = 7174;

#[test]
fn a_connection_ends_and_its_requests_are_flushed() {
    for by in [0, 1] {
        let mut sim = simulation();
        let options = ConnectionOptions::default();
        let (mut active, mut passive) = sim.connect(&options).unwrap();
        let data = pattern(100_000);
        let source = sim.hosts[by].share(&data, all_rights());
        let target = sim.hosts[1 - by].share(&vec![0; data.len()], all_rights());
        let end = if by == 0 { &mut active } else { &mut passive };
        for id in 1..=20 {
            let wr = write(id, &source, target.stag, data.len());
            sim.hosts[by].post_send(end, wr);
        }
        let port = if by == 0 {
            40_000 + end.number.0 as u16
        } else {
            PORT
        };
        let lease = sim.hosts[by].socket(port);
        let now = sim.now;
        sim.hosts[by].revoke_lease(now, lease);
        assert_eq!(
            sim.hosts[by].end_of(end.number),
            Some(EndReason::Revoked { lease })
        );
        let done = outcomes(end)
            .into_iter()
            .map(|(id, _, status)| (id, status));
        let flushed = (1..=20).map(|id| (id, WcStatus::WrFlushed));
        assert_eq!(done.collect::<Vec<_>>(), flushed.collect::<Vec<_>>());
        let snapshot = sim.hosts[by].snapshot(now);
        assert!(snapshot.connections.is_empty(), "nothing is retransmitted");
        assert_eq!(sim.hosts[by].reservations(), 0);
    }
}

#[test]
fn a_listener_ends_with_its_connections_and_requests() {
    for any_address in [false, true] {
        let mut sim = simulation();
        let options = ConnectionOptions::default();
        let accepted = sim.connect(&options).unwrap().1;
        let own = sim.hosts[1].socket(PORT);
        let lease = match any_address {
            true => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), PORT),
            false => own,
        };
        let listener = ListenerId(3);
        sim.hosts[1].command(Command::Listen {
            listener,
            local: lease,
            peers: Peers::all(),
            reservation: sim.hosts[1].reservation(),
            refusals: sim.hosts[1].refusals.clone(),
        });
        let asking = sim.hosts[0].create_qp();
        sim.hosts[0].connect(&asking, 41_000, own, &options);
        let asks = |sim: &mut Simulation| sim.hosts[1].connect_requests().count() == 2;
        assert!(sim.run_until(SECOND, asks));
        let now = sim.now;
        sim.hosts[1].events.clear();
        sim.hosts[1].revoke_lease(now, lease);
        let reason = EndReason::Revoked { lease };
        let events = &sim.hosts[1].events;
        let ended = Event::ListenerEnded {
            listener,
            reason: reason.clone(),
        };
        let count = events.iter().filter(|event| **event == ended).count();
        assert_eq!(count, 1, "{events:?}");
        let gone = |event: &Event| matches!(event, Event::RequestGone { .. });
        assert!(events.iter().any(gone), "{events:?}");
        assert_eq!(sim.hosts[1].end_of(accepted.number), Some(reason));
        assert_eq!(sim.hosts[1].reservations(), 0);
        // Nothing listens there any more.
        let late = sim.hosts[0].create_qp();
        sim.hosts[0].connect(&late, 41_001, own, &options);
        sim.run_for(SECOND);
        assert!(sim.hosts[0].events.contains(&Event::Failed {
            qp: late.number,
            reason: EndReason::Refused,
        }));
    }
}

#[test]
fn what_has_another_address_or_port_goes_on() {
    let mut sim = simulation();
    let options = ConnectionOptions::default();
    let (mut active, mut passive) = sim.connect(&options).unwrap();
    let own = sim.hosts[0].socket(40_000 + active.number.0 as u16);
    let others = [
        SocketAddr::new(own.ip(), own.port() + 1),
        SocketAddr::new([10, 99, 0, 1].into(), own.port()),
        SocketAddr::new([0; 16].into(), own.port()),
        sim.hosts[1].socket(PORT),
    ];
    for lease in others {
        let now = sim.now;
        sim.hosts[0].revoke_lease(now, lease);
    }
    let data = pattern(1000);
    let source = sim.hosts[0].share(&data, all_rights());
    let target = sim.hosts[1].share(&vec![0; data.len()], all_rights());
    sim.hosts[1].post_recv(&mut passive, empty_recv(2));
    let wr = write(1, &source, target.stag, data.len());
    sim.hosts[0].post_send(&mut active, wr);
    sim.run_for(SECOND);
    assert_eq!(target.content(), data);
}
