//! Endpoints that are connected: to one another over the link, or to a raw peer.

use rnic_core::connection::ConnectionOptions;
use rnic_core::engine::Command;
use rnic_core::testing::simulation::{Simulation, TestEndpoint};
use rnic_core::wire::mpa::StartupKind;

use crate::common::*;
use crate::parcels::Parcels;

const PORT: u16 = 860;

/// Accepts the last request to a host.
pub(crate) fn accept(sim: &Simulation, host: usize, endpoint: TestEndpoint) {
    sim.hosts[host].command(Command::Accept {
        request: last_request(sim, host),
        qp: endpoint.number,
        options: ConnectionOptions::default(),
    });
    sim.hosts[host].unlisten(PORT);
}

pub(crate) fn connect(
    sim: &Simulation,
    endpoint: TestEndpoint,
    remote: std::net::SocketAddr,
    options: &ConnectionOptions,
) {
    sim.hosts[0].command(Command::Connect {
        qp: endpoint.number,
        local: sim.hosts[0].socket(40_000),
        remote,
        options: options.clone(),
        reservation: sim.hosts[0].reservation(),
    });
}

/// Connects a ULP on host 0 to one on host 1.
pub(crate) fn connect_pair(sim: &mut Simulation, layers: [&Parcels; 2]) -> [TestEndpoint; 2] {
    connect_pair_with(sim, layers, &ConnectionOptions::default())
}

/// Connects a ULP on host 0, with these options, to one on host 1.
pub(crate) fn connect_pair_with(
    sim: &mut Simulation,
    layers: [&Parcels; 2],
    options: &ConnectionOptions,
) -> [TestEndpoint; 2] {
    let ends = [0, 1].map(|host| sim.hosts[host].create_endpoint(layers[host].clone()));
    sim.hosts[1].listen(PORT);
    let remote = sim.hosts[1].socket(PORT);
    connect(sim, ends[0], remote, options);
    let limit = SECOND * 60;
    assert!(sim.run_until(limit, |sim| sim.hosts[1].connect_requests().count() > 0));
    accept(sim, 1, ends[1]);
    assert!(sim.run_until(limit, |sim| {
        (0..2).all(|host| sim.hosts[host].is_established(ends[host].number))
    }));
    ends
}

/// A raw peer that has connected to a ULP on host 0.
pub(crate) struct Raw {
    pub(crate) sim: Simulation,
    pub(crate) layer: Parcels,
    pub(crate) end: TestEndpoint,
}

impl Raw {
    pub(crate) fn new(queues: &[u32]) -> Self {
        let mut sim = simulation();
        // The decoder understands only RDMAP above DDP, and this ULP is another.
        sim.tap = None;
        let layer = Parcels::with_queues(queues);
        let end = sim.hosts[0].create_endpoint(layer.clone());
        sim.hosts[0].listen(PORT);
        sim.add_raw_peer(0, PORT);
        sim.raw[0].connect();
        sim.run_now();
        sim.raw[0].send(&request(0));
        sim.run_now();
        accept(&sim, 0, end);
        sim.run_now();
        let (kind, reply) = sim.raw[0].take_startup().expect("the host replies");
        assert_eq!((kind, reply.reject), (StartupKind::Reply, false));
        assert!(sim.hosts[0].is_established(end.number));
        Self { sim, layer, end }
    }

    /// Sends a ULPDU from the peer.
    pub(crate) fn give(&mut self, ulpdu: &[u8]) {
        let fpdu = self.sim.raw[0].fpdu(ulpdu);
        self.sim.raw[0].send(&fpdu);
        self.sim.run_now();
    }

    /// Rings the doorbell: the ULP has messages to send.
    pub(crate) fn ring(&mut self) {
        self.sim.hosts[0].ring(self.end);
        self.sim.run_now();
    }

    pub(crate) fn command(&mut self, command: Command) {
        self.sim.hosts[0].command(command);
        self.sim.run_now();
    }

    pub(crate) fn assert_nothing_left(mut self) {
        assert_nothing_left(&mut self.sim);
    }
}
