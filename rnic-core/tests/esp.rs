//! Two engines with ESP between them, over a link that loses, reorders, duplicates and damages, on
//! virtual time. Whatever happens to frames and associations, every octet arrives where it belongs,
//! all that is sent is protected, and no sequence number comes twice.

use std::cell::RefCell;
use std::collections::HashSet;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use rnic_core::connection::ConnectionOptions;
use rnic_core::counters::DropReason;
use rnic_core::engine::EngineConfig;
use rnic_core::esp::{Change, SaId};
use rnic_core::memory::table::Access;
use rnic_core::testing::deep;
use rnic_core::testing::host::protected::{Protected, association};
use rnic_core::testing::link::Impairments;
use rnic_core::testing::simulation::{Neighbours, SharedRegion, Simulation, TapPoint, TestQp};
use rnic_core::verbs::sge::Sge;
use rnic_core::verbs::status::WcStatus;
use rnic_core::verbs::wr::{SendWr, WrOpcode};
use rnic_core::wire::checksum::Checksums;
use rnic_core::wire::ddp::TaggedOffset;
use rnic_core::wire::esp::{self, EspHeader};
use rnic_core::wire::icmp::EspTooBig;
use rnic_core::wire::ip::IpPacket;

/// Octets of an operation.
const SLOT: usize = 20_000;

/// Operations of each side.
const OPERATIONS: usize = 24;

const LIMIT: Duration = Duration::from_secs(600);

/// Two hosts that write to each other.
struct Bed {
    sim: Simulation<Protected>,
    qps: [TestQp; 2],
    sources: [(SharedRegion, Vec<u8>); 2],
    targets: [SharedRegion; 2],
    wire: Rc<RefCell<Wire>>,
    completed: [usize; 2],
}

/// What was seen on the wire.
#[derive(Default)]
struct Wire {
    numbers: HashSet<(u32, u32, IpAddr)>,
    frames: Vec<(usize, Vec<u8>)>,
    longest: usize,
}

impl Wire {
    /// Looks at a frame that a host sends.
    fn see(&mut self, from: usize, frame: &[u8]) {
        let packet = IpPacket::of_frame(frame, Checksums::None).expect("a packet");
        assert_eq!(packet.protocol, esp::PROTOCOL, "all is protected");
        let (header, _) = EspHeader::parse(&frame[packet.payload_at..]).unwrap();
        let new = self
            .numbers
            .insert((header.spi, header.number, packet.destination));
        assert!(new, "number {} comes twice", header.number);
        self.longest = self.longest.max(frame.len());
        self.frames.push((1 - from, frame.to_vec()));
    }
}

impl Bed {
    fn new(impairments: Impairments, seed: u64) -> Self {
        let mut sim = Simulation::<Protected>::over(&EngineConfig::default(), impairments, seed);
        for host in &mut sim.hosts {
            host.neighbours = Neighbours::Known(1500);
        }
        let wire = Rc::<RefCell<Wire>>::default();
        let seen = wire.clone();
        sim.tap = Some(Box::new(move |point, frame| {
            if let TapPoint::Sent(host) = point {
                seen.borrow_mut().see(host, frame);
            }
        }));
        let options = ConnectionOptions::default();
        let (one, other) = sim.connect(&options).expect("they connect");
        let mut rng = Rng::with_seed(seed);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let len = SLOT * OPERATIONS;
        let sources = [0, 1].map(|host: usize| {
            let noise: Vec<u8> = (0..len).map(|_| rng.u8(..)).collect();
            (sim.hosts[host].share(&noise, access), noise)
        });
        let targets = [0, 1].map(|host: usize| sim.hosts[host].share(&vec![0; len], access));
        Self {
            sim,
            qps: [one, other],
            sources,
            targets,
            wire,
            completed: [0; 2],
        }
    }

    /// Has each host write all that it has to the other.
    fn post(&mut self) {
        for host in 0..2 {
            for slot in 0..OPERATIONS {
                let source = Sge {
                    offset: (slot * SLOT) as u64,
                    length: SLOT as u32,
                    lkey: self.sources[host].0.stag.0,
                };
                let offset = TaggedOffset((slot * SLOT) as u64);
                let wr = SendWr::new(slot as u64, WrOpcode::Write)
                    .with_remote(self.targets[1 - host].stag, offset)
                    .with_sges(&[source])
                    .expect("one piece");
                self.sim.hosts[host].post_send(&mut self.qps[host], wr);
            }
        }
    }

    fn poll(&mut self) -> bool {
        for host in 0..2 {
            for completion in self.qps[host].poll() {
                assert_eq!(completion.status(), WcStatus::Success);
                self.completed[host] += 1;
            }
        }
        self.completed == [OPERATIONS; 2]
    }

    /// Runs until all is written, or for some time. Returns whether it is.
    fn run(&mut self, limit: Duration) -> bool {
        let end = self.sim.now + limit;
        while !self.poll() && self.sim.now < end {
            if !self.sim.step() {
                break;
            }
        }
        self.poll()
    }

    fn check(&self) {
        for host in 0..2 {
            assert!(self.targets[1 - host].content() == self.sources[host].1);
            assert!(self.sim.hosts[host].is_established(self.qps[host].number));
        }
    }

    fn drops(&mut self, host: usize, reason: DropReason) -> u64 {
        let now = self.sim.now;
        let snapshot = self.sim.hosts[host].snapshot(now);
        snapshot.drops.of(reason)
    }

    /// Replaces the association from one host to the other.
    fn rekey(&mut self, from: usize, spi: u32, age: u64) -> SaId {
        let [sender, receiver] = [from, 1 - from].map(|host| self.sim.hosts[host].address.into());
        let sa = association(sender, receiver, spi);
        self.sim.hosts[1 - from]
            .machine_mut()
            .add_inbound(sa.clone());
        let id = sa.id;
        self.sim.hosts[from].machine_mut().add_outbound(sa, age);
        id
    }
}

#[test]
fn every_octet_arrives_whatever_the_link_does() {
    let loss = |loss, reordering, duplication, corruption| Impairments {
        loss,
        reordering,
        duplication,
        corruption,
        jitter: Duration::from_micros(300),
        delay: Duration::from_micros(50),
        ..Impairments::default()
    };
    let links = [
        loss(0, 0, 0, 0),
        loss(30, 100, 50, 10),
        loss(5, 300, 300, 30),
    ];
    for seed in 0..deep(48) {
        let mut bed = Bed::new(links[seed as usize % links.len()], seed);
        bed.post();
        assert!(bed.run(LIMIT), "seed {seed}");
        bed.check();
        let longest = bed.wire.borrow().longest;
        assert!(
            (1511..=1514).contains(&longest),
            "the MTU is used: {longest}"
        );
        let now = bed.sim.now;
        let counters = bed.sim.hosts[0].snapshot(now);
        let engine = counters.engine;
        assert_eq!(
            engine.frames_sent,
            engine.frames_sealed + engine.frames_unsealed
        );
        match seed % 3 {
            0 => {
                assert_eq!(engine.frames_received, engine.frames_opened);
                assert_eq!(counters.drops.total(), 0);
            }
            _ => assert!(bed.drops(1, DropReason::EspReplayed) > 0),
        }
    }
}

#[test]
fn replays_and_plain_segments_change_nothing() {
    let mut bed = Bed::new(Impairments::default(), 7);
    bed.post();
    assert!(bed.run(LIMIT));
    bed.check();
    let frames: Vec<_> = bed.wire.borrow().frames.clone();
    let received = |bed: &mut Bed| {
        let now = bed.sim.now;
        let hosts = &mut bed.sim.hosts;
        [0, 1].map(|host: usize| hosts[host].snapshot(now).engine.frames_received)
    };
    let before = received(&mut bed);
    let now = bed.sim.now;
    for (to, frame) in &frames {
        bed.sim.link.send(now, *to, frame.clone());
    }
    // A RST of the peer's, which anybody can send.
    for to in 0..2 {
        bed.sim.link.send(now, to, plain_reset(&bed, to));
    }
    bed.sim.run_for(Duration::from_secs(1));
    assert_eq!(received(&mut bed), before, "nothing reaches the engine");
    let dropped: u64 = (0..2)
        .map(|host| bed.drops(host, DropReason::EspReplayed))
        .sum();
    assert_eq!(dropped, frames.len() as u64);
    assert_eq!(
        [0, 1].map(|host| bed.drops(host, DropReason::Unprotected)),
        [1, 1]
    );
    bed.check();
}

/// Makes a segment that would end the connection at a host.
fn plain_reset(bed: &Bed, to: usize) -> Vec<u8> {
    use rnic_core::wire::ethernet::MacAddr;
    use rnic_core::wire::tcp::{Flags, TcpHeader};
    use rnic_core::wire::template::NetHeader;

    let ports = [40_000 + bed.qps[0].number.0 as u16, 7174];
    let net = NetHeader {
        source_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        destination_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        vlan: None,
        source: bed.sim.hosts[1 - to].address.into(),
        destination: bed.sim.hosts[to].address.into(),
        hop_limit: 64,
        traffic_class: 0,
    };
    let header = TcpHeader {
        source_port: ports[1 - to],
        destination_port: ports[to],
        flags: Flags::RST,
        ..TcpHeader::default()
    };
    let mut frame = vec![0; net.len() + header.len()];
    net.write(&mut frame, &header, 0, 0);
    frame
}

#[test]
fn a_connection_survives_rekeying_and_the_loss_of_its_associations() {
    // rfc: 5040-128, 5041-104, 5042-6, 5044-91
    let impairments = Impairments {
        loss: 5,
        reordering: 50,
        jitter: Duration::from_micros(200),
        delay: Duration::from_micros(500),
        ..Impairments::default()
    };
    let mut bed = Bed::new(impairments, 11);
    bed.post();
    let mut old = [0x100, 0x200].map(Some);
    for round in 0..100 {
        for (from, old) in old.iter_mut().enumerate() {
            let receiver = 1 - from;
            let destination = bed.sim.hosts[receiver].address.into();
            // Now and then the association is gone before there is another one.
            let gap = round % 10 == 9;
            let gone = old.take().map(|spi| SaId { spi, destination });
            if gap && let Some(id) = gone {
                bed.sim.hosts[from].machine_mut().apply(Change::Gone(id));
                bed.sim.run_for(Duration::from_millis(30));
            }
            let spi = 0x1000 + round * 2 + from as u32;
            bed.rekey(from, spi, round.into());
            *old = Some(spi);
            bed.sim.run_for(Duration::from_millis(2));
            if let Some(id) = gone {
                bed.sim.hosts[from].machine_mut().apply(Change::Gone(id));
                bed.sim.run_for(Duration::from_millis(2));
                bed.sim.hosts[receiver]
                    .machine_mut()
                    .apply(Change::Gone(id));
            }
        }
        if bed.poll() {
            bed.check();
            bed.completed = [0; 2];
            bed.post();
        }
    }
    assert!(bed.run(LIMIT));
    bed.check();
    let now = bed.sim.now;
    let unsealed: u64 = bed
        .sim
        .hosts
        .iter_mut()
        .map(|host| host.snapshot(now).engine.frames_unsealed)
        .sum();
    assert!(unsealed > 0, "some frames waited for an association");
}

#[test]
fn a_connection_begins_when_there_is_an_association() {
    let config = EngineConfig::default();
    let mut sim = Simulation::<Protected>::over(&config, Impairments::default(), 3);
    let hosts = [0, 1].map(|host: usize| IpAddr::from(sim.hosts[host].address));
    let id = SaId {
        spi: 0x100,
        destination: hosts[1],
    };
    sim.hosts[0].machine_mut().apply(Change::Gone(id));
    let (qp, peer) = (sim.hosts[0].create_qp(), sim.hosts[1].create_qp());
    sim.hosts[1].listen(7174);
    let remote = sim.hosts[1].socket(7174);
    sim.hosts[0].connect(&qp, 40_000, remote, &ConnectionOptions::default());
    sim.run_for(Duration::from_millis(500));
    assert_eq!(sim.link.sent_and_lost().0, 0);
    assert!(
        sim.hosts[0]
            .machine_mut()
            .protection
            .poll_request()
            .is_some()
    );
    sim.hosts[0]
        .machine_mut()
        .add_outbound(association(hosts[0], hosts[1], 0x100), 1);
    assert!(sim.run_until(LIMIT, |sim| sim.hosts[1].connect_requests().count() > 0));
    let request = sim.hosts[1].connect_requests().last().unwrap();
    sim.hosts[1].accept(request, &peer, &ConnectionOptions::default());
    assert!(sim.run_until(LIMIT, |sim| sim.hosts[0].is_established(qp.number)));
}

/// A link takes less than the hosts think. A router says so of the packets of ESP that it drops.
#[test]
fn a_router_that_drops_sealed_packets_is_heeded() {
    let mut bed = Bed::new(Impairments::default(), 5);
    let reports = Rc::<RefCell<Vec<EspTooBig>>>::default();
    let (wire, told) = (bed.wire.clone(), reports.clone());
    const NARROW: usize = 1300;
    bed.sim.tap = Some(Box::new(move |point, frame| {
        let TapPoint::Sent(host) = point else {
            return;
        };
        wire.borrow_mut().see(host, frame);
        let packet = IpPacket::of_frame(frame, Checksums::None).expect("a packet");
        if packet.end - packet.at > NARROW && host == 0 {
            let (header, _) = EspHeader::parse(&frame[packet.payload_at..]).unwrap();
            told.borrow_mut().push(EspTooBig {
                source: packet.source,
                destination: packet.destination,
                header,
                mtu: NARROW as u16,
            });
        }
    }));
    bed.post();
    assert!(bed.sim.run_until(LIMIT, |_| !reports.borrow().is_empty()));
    // What nobody has sent is not believed.
    let now = bed.sim.now;
    let genuine = reports.borrow()[0];
    let forged = EspTooBig {
        header: EspHeader {
            number: genuine.header.number.wrapping_add(1 << 20),
            ..genuine.header
        },
        ..genuine
    };
    let host = bed.sim.hosts[0].machine_mut();
    assert!(!host.narrow(now, &forged));
    assert!(host.narrow(now, &genuine));
    reports.borrow_mut().clear();
    assert!(bed.run(LIMIT));
    bed.check();
    assert!(
        reports.borrow().is_empty(),
        "no packet is larger from then on"
    );
    let tcp = bed.sim.hosts[0].snapshot(bed.sim.now).tcp;
    assert_eq!((tcp.mtu_reductions, tcp.timeouts), (1, 0));
    assert!(
        bed.wire.borrow().longest > NARROW,
        "the other way is as wide as before"
    );
}
