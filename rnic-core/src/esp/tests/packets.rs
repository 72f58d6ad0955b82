//! Packets of each mode, version and algorithm from one end to the other.

use core::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::counters::DropReason;
use crate::esp::{
    Action, Algorithm, BLOCK, Change, Demand, InboundSa, Keys, Mode, OutboundSa, Ports, Protection,
    ProtectionCounts, Request, Sa, SaId, Sealing, Selector, Template, Window,
};
use crate::in_memory::VecFrames;
use crate::memory::frames::TxFrames;
use crate::wire::checksum::{Checksums, combine, pseudo_header_v6, sum};
use crate::wire::encapsulation::UdpPorts;
use crate::wire::ethernet::MacAddr;
use crate::wire::packet::parse;
use crate::wire::prefix::Prefix;
use crate::wire::tcp::{Flags, TcpHeader};
use crate::wire::template::NetHeader;

pub(super) const ALGORITHMS: [(Algorithm, usize, usize); 10] = [
    (Algorithm::AesGcm, 20, 0),
    (Algorithm::AesGcm, 36, 0),
    (Algorithm::ChaCha20Poly1305, 36, 0),
    (Algorithm::AesGmac, 20, 0),
    (Algorithm::AesCbcHmacSha256, 16, 32),
    (Algorithm::AesCbcHmacSha256, 32, 32),
    (Algorithm::AesCbcHmacSha1, 16, 20),
    (Algorithm::AesCbcHmacSha1, 32, 20),
    (Algorithm::NullHmacSha256, 0, 32),
    (Algorithm::NullHmacSha1, 0, 20),
];

pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(super) fn keys((_, encryption, integrity): (Algorithm, usize, usize), seed: u8) -> Keys {
    Keys::new(vec![seed; encryption], vec![seed ^ 0x55; integrity])
}

/// Two hosts. The second has all that the first sends.
pub(super) struct Pair {
    pub(super) from: Protection,
    pub(super) to: Protection,
    pub(super) tx: VecFrames,
    pub(super) sa: Sa,
}

/// Selects everything between two hosts.
pub(super) fn between(local: IpAddr, remote: IpAddr) -> Selector {
    Selector {
        local: Prefix::new(local, 128),
        local_ports: Ports::ALL,
        remote: Prefix::new(remote, 128),
        remote_ports: Ports::ALL,
    }
}

impl Pair {
    /// Joins the hosts `inner` with an association between `outer`.
    pub(super) fn new(
        algorithm: (Algorithm, usize, usize),
        mode: Mode,
        inner: [&str; 2],
        outer: [&str; 2],
    ) -> Self {
        Self::encapsulated(algorithm, mode, inner, outer, None)
    }

    /// The same, with packets in UDP between these ports.
    pub(super) fn encapsulated(
        algorithm: (Algorithm, usize, usize),
        mode: Mode,
        inner: [&str; 2],
        outer: [&str; 2],
        encapsulation: Option<UdpPorts>,
    ) -> Self {
        let [local, remote] = inner.map(ip);
        let [source, destination] = outer.map(ip);
        let sa = Sa {
            id: SaId {
                spi: 0x1001,
                destination,
            },
            source,
            mode,
            algorithm: algorithm.0,
            extended: true,
            encapsulation,
            request: 7,
        };
        let keys = keys(algorithm, 9);
        let (mut from, mut to) = (Protection::default(), Protection::default());
        let template = |local, remote| Template {
            request: 7,
            mode,
            local,
            remote,
        };
        from.apply(Change::Demands(vec![Demand {
            outgoing: true,
            selector: between(local, remote),
            action: Action::Protect(template(source, destination)),
        }]));
        to.apply(Change::Demands(vec![Demand {
            outgoing: false,
            selector: between(remote, local),
            action: Action::Protect(template(destination, source)),
        }]));
        to.apply(Change::Addresses(vec![remote]));
        let outbound = OutboundSa::new(sa.clone(), &keys, 0).unwrap();
        assert!(outbound.numbers().add(1..BLOCK));
        from.apply(Change::Outbound(Arc::new(outbound)));
        let window = Window::new(64, true, 0);
        let inbound = InboundSa::new(sa.clone(), &keys, window).unwrap();
        to.apply(Change::Inbound(Arc::new(inbound)));
        Self {
            from,
            to,
            tx: VecFrames::new(64),
            sa,
        }
    }

    pub(super) fn usual() -> Self {
        let hosts = ["192.0.2.1", "192.0.2.2"];
        Self::new(ALGORITHMS[0], Mode::Transport, hosts, hosts)
    }

    /// Sends a frame. Returns what leaves, if anything does.
    pub(super) fn send(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
        let mut tx = Sealing::new(&mut self.tx, &mut self.from.sealer);
        let built = tx.allocate().unwrap();
        tx.bytes_mut(built)[..frame.len()].copy_from_slice(frame);
        tx.transmit(built, frame.len());
        tx.release(built);
        let mut sent = self.tx.take_transmitted();
        assert!(sent.len() <= 1);
        assert_eq!(self.tx.available(), self.tx.total());
        sent.pop()
    }

    /// Receives a frame. Returns what the engine gets, if anything.
    pub(super) fn receive(&mut self, frame: &[u8]) -> Result<Vec<u8>, DropReason> {
        self.to.opener.open([(frame, Checksums::None)].into_iter());
        let again = [|| (frame, Checksums::None)].into_iter();
        let frames = self.to.opener.frames(again);
        let got: Vec<_> = frames.map(|(frame, _)| frame.as_ref().to_vec()).collect();
        let drops = self.to.take_counts().drops;
        let mut reasons = drops.entries().filter(|(_, count)| *count > 0);
        match (got.into_iter().next(), reasons.next()) {
            (Some(frame), None) => Ok(frame),
            (None, Some((reason, 1))) => Err(reason),
            other => panic!("{other:?}"),
        }
    }
}

/// Makes a segment.
pub(super) fn segment(ends: [&str; 2], vlan: Option<u16>, ecn: u8, payload: &[u8]) -> Vec<u8> {
    segment_of([(ends[0], 7001), (ends[1], 7002)], vlan, ecn, payload)
}

pub(super) fn segment_of(
    [from, to]: [(&str, u16); 2],
    vlan: Option<u16>,
    ecn: u8,
    payload: &[u8],
) -> Vec<u8> {
    let net = NetHeader {
        source_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        destination_mac: MacAddr([2, 0, 0, 0, 0, 2]),
        vlan,
        source: ip(from.0),
        destination: ip(to.0),
        hop_limit: 64,
        traffic_class: 0x68 | ecn,
    };
    let header = TcpHeader {
        source_port: from.1,
        destination_port: to.1,
        flags: Flags::ACK,
        ..TcpHeader::default()
    };
    let headers = net.len() + header.len();
    let mut frame = vec![0; headers + payload.len()];
    frame[headers..].copy_from_slice(payload);
    net.write(&mut frame, &header, payload.len(), sum(payload));
    frame
}

const V4: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
const V6: [&str; 2] = ["2001:db8::1", "2001:db8::2"];

/// The ways of a packet: what is inside, and what is outside.
const WAYS: [(Mode, [&str; 2], [&str; 2]); 6] = [
    (Mode::Transport, V4, V4),
    (Mode::Transport, V6, V6),
    (Mode::Tunnel, V4, ["203.0.113.1", "203.0.113.2"]),
    (Mode::Tunnel, V6, ["2001:db8:1::1", "2001:db8:1::2"]),
    (Mode::Tunnel, V4, ["2001:db8:1::1", "2001:db8:1::2"]),
    (Mode::Tunnel, V6, ["203.0.113.1", "203.0.113.2"]),
];

const IN_UDP: UdpPorts = UdpPorts {
    source: 4500,
    destination: 4501,
};

/// Each way, as it is and in UDP.
fn all_ways() -> impl Iterator<Item = (Mode, [&'static str; 2], [&'static str; 2], Option<UdpPorts>)>
{
    let both = |(mode, inner, outer)| {
        [None, Some(IN_UDP)].map(|encapsulation| (mode, inner, outer, encapsulation))
    };
    WAYS.into_iter().flat_map(both)
}

#[test]
fn what_was_sealed_is_opened_to_the_same_frame() {
    // rfc: 5040-126, 5041-102, 5044-89
    for algorithm in ALGORITHMS {
        for (mode, inner, outer, encapsulation) in all_ways() {
            let mut pair = Pair::encapsulated(algorithm, mode, inner, outer, encapsulation);
            for len in (0..40).chain([1000, 1459, 1460]) {
                let payload: Vec<u8> = (0..len).map(|octet| octet as u8).collect();
                let vlan = (len % 2 == 1).then_some(5);
                let frame = segment(inner, vlan, 2, &payload);
                let sealed = pair.send(&frame).unwrap();
                assert!(parse(&sealed, Checksums::None).is_err());
                let opened = pair.receive(&sealed).unwrap();
                assert!(parse(&opened, Checksums::None).is_ok(), "checksums hold");
                assert_eq!(opened, frame, "{algorithm:?} {mode} {len}");
                // What fits in a link is just what the MTU says.
                let link = 14 + vlan.map_or(0, |_| 4);
                let (whole, inside) = (sealed.len() - link, frame.len() - link);
                let [local, remote] = inner.map(ip);
                let fits = |mtu: usize| {
                    let inner_mtu = pair.from.inner_mtu(local, remote, mtu as u16);
                    usize::from(inner_mtu.unwrap()) >= inside
                };
                assert!(fits(whole) && !fits(whole - 1));
            }
            let counts = pair.from.take_counts();
            assert_eq!((counts.sealed, counts.unsealed), (43, 0));
        }
    }
}

#[test]
fn numbers_are_told_apart_and_replays_are_dropped() {
    // rfc: 5040-124, 5041-100
    let mut pair = Pair::usual();
    let sealed: Vec<_> = (0..200u8)
        .map(|octet| pair.send(&segment(V4, None, 0, &[octet])).unwrap())
        .collect();
    assert!(pair.receive(&sealed[100]).is_ok());
    assert_eq!(pair.receive(&sealed[100]), Err(DropReason::EspReplayed));
    assert!(pair.receive(&sealed[50]).is_ok());
    // Behind the window of 64: with ESN it counts as a number that is far ahead.
    assert_eq!(pair.receive(&sealed[30]), Err(DropReason::EspForged));
    assert!(pair.receive(&sealed[199]).is_ok());
    assert_eq!(pair.receive(&sealed[50]), Err(DropReason::EspForged));
    // A forged packet with a number far ahead does not move the window.
    let mut forged = sealed[198].clone();
    forged[14 + 20 + 4..][..4].copy_from_slice(&0x7000_0000_u32.to_be_bytes());
    assert_eq!(pair.receive(&forged), Err(DropReason::EspForged));
    assert!(pair.receive(&sealed[198]).is_ok());
}

#[test]
fn mangled_packets_are_dropped_and_nothing_panics() {
    // rfc: 5040-125, 5041-101, 7146-4, 7146-5
    for (mode, inner, outer, encapsulation) in all_ways() {
        let pair = || Pair::encapsulated(ALGORITHMS[5], mode, inner, outer, encapsulation);
        let mut receiver = pair();
        let sealed = receiver.send(&segment(inner, None, 0, &[7; 100])).unwrap();
        for len in 0..sealed.len() {
            let cut = [(&sealed[..len], Checksums::None)];
            receiver.to.opener.open(cut.into_iter());
            assert_eq!(receiver.to.take_counts().opened, 0);
        }
        for at in 0..sealed.len() {
            // The same packet once more is no replay for it.
            let mut pair = pair();
            let mut changed = pair.send(&segment(inner, None, 0, &[7; 100])).unwrap();
            changed[at] ^= 0x41;
            if at >= sealed.len() - 100 {
                let received = pair.receive(&changed);
                assert_eq!(received, Err(DropReason::EspForged), "octet {at}");
                continue;
            }
            // Some fields in front are not authenticated, as RFC 4303 has it.
            let frames = [(&changed, Checksums::Unnecessary)];
            pair.to.opener.open(frames.into_iter());
            pair.to.take_counts();
        }
    }
}

#[test]
fn packets_in_udp_have_a_header_that_routers_and_receivers_understand() {
    for (mode, inner, outer) in WAYS {
        let mut pair = Pair::encapsulated(ALGORITHMS[0], mode, inner, outer, Some(IN_UDP));
        let sealed = pair.send(&segment(inner, None, 0, &[7; 101])).unwrap();
        let [source, destination] = outer.map(ip);
        let at = 14 + if source.is_ipv4() { 20 } else { 40 };
        let datagram = &sealed[at..];
        let word = |at: usize| u16::from_be_bytes([datagram[at], datagram[at + 1]]);
        let len = datagram.len() as u16;
        assert_eq!([word(0), word(2), word(4)], [4500, 4501, len]);
        match (source, destination) {
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let pseudo = pseudo_header_v6(source, destination, 17, len);
                assert_eq!(combine(pseudo, sum(datagram)), 0xffff);
            }
            _ => assert_eq!(word(6), 0),
        }
        // Whoever speaks to another port, or without UDP, is another.
        let mut other_port = sealed.clone();
        other_port[at + 3] ^= 1;
        assert_eq!(pair.receive(&other_port), Err(DropReason::EspUnknown));
        let mut plain = Pair::new(ALGORITHMS[0], mode, inner, outer);
        assert_eq!(plain.receive(&sealed), Err(DropReason::EspUnknown));
        let bare = plain.send(&segment(inner, None, 0, b"x")).unwrap();
        assert_eq!(pair.receive(&bare), Err(DropReason::EspUnknown));
        // A translator on the way may choose the peer's port anew.
        let mut translated = sealed.clone();
        translated[at + 1] ^= 1;
        assert!(pair.receive(&translated).is_ok());
    }
}

#[test]
fn congestion_marks_cross_a_tunnel() {
    let (inner, outer) = (V4, ["203.0.113.1", "203.0.113.2"]);
    let mut pair = Pair::new(ALGORITHMS[0], Mode::Tunnel, inner, outer);
    for (sent, mark, received) in [
        (2, 3, Some(3)),
        (2, 2, Some(2)),
        (0, 0, Some(0)),
        (0, 3, None),
        (3, 2, Some(3)),
    ] {
        let mut sealed = pair.send(&segment(inner, None, sent, b"x")).unwrap();
        crate::wire::ip::set_ecn(&mut sealed[14..], mark);
        let opened = pair.receive(&sealed);
        let ecn = opened.map(|frame| parse(&frame, Checksums::None).unwrap().ecn);
        let received = received.ok_or(DropReason::EspMalformed);
        assert_eq!(ecn, received);
    }
}

#[test]
fn without_association_or_number_nothing_leaves() {
    let mut pair = Pair::usual();
    let frame = segment(V4, None, 0, b"x");
    assert!(pair.send(&frame).is_some());
    pair.from.apply(Change::Gone(pair.sa.id));
    assert_eq!(pair.send(&frame), None);
    let ends = ["192.0.2.1:7001", "192.0.2.2:7002"].map(|end| end.parse::<SocketAddr>().unwrap());
    let [local, remote] = ends;
    let [local, remote] = [local.ip(), remote.ip()];
    let template = Template {
        request: 7,
        mode: Mode::Transport,
        local,
        remote,
    };
    assert!(template.is_met_by(&pair.sa));
    let asked = Some(Request::Acquire {
        template,
        local,
        remote,
    });
    assert_eq!(pair.from.poll_request(), asked);
    // To know the MTU is not to need the association.
    assert_eq!(pair.from.inner_mtu(local, remote, 1500), None);
    assert_eq!(pair.from.poll_request(), None);
    pair.from.ask(local, remote);
    assert_eq!(pair.from.poll_request(), asked);

    let next = OutboundSa::new(pair.sa.clone(), &keys(ALGORITHMS[0], 9), 1).unwrap();
    let next = Arc::new(next);
    pair.from.apply(Change::Outbound(next.clone()));
    assert_eq!(pair.send(&frame), None, "without a number");
    assert!(next.numbers().add(500..501));
    let sealed = pair.send(&frame).unwrap();
    assert!(pair.receive(&sealed).is_ok());
    assert_eq!(pair.send(&frame), None, "the block is used up");
    let counts = pair.from.take_counts();
    let expected = ProtectionCounts {
        sealed: 2,
        unsealed: 3,
        ..Default::default()
    };
    assert_eq!(counts, expected);
    assert!(pair.from.inner_mtu(local, remote, 1500).is_some());
    pair.from.ask(local, remote);
    assert_ne!(pair.from.poll_request(), asked, "there is one");

    // A policy that decides on nothing between these hosts needs no association.
    let demand = |request| Demand {
        outgoing: true,
        selector: between(local, remote),
        action: Action::Protect(Template {
            request,
            ..template
        }),
    };
    let mut has_way = |requests: [u32; 2]| {
        let demands = requests.map(demand).to_vec();
        pair.from.apply(Change::Demands(demands));
        pair.from.inner_mtu(local, remote, 1500).is_some()
    };
    assert!(has_way([7, 0]));
    assert!(!has_way([0, 7]));
}

#[test]
fn sealed_frames_find_room_though_all_others_are_held() {
    let mut pair = Pair::usual();
    let frame = segment(V4, None, 0, b"x");
    let mut tx = Sealing::new(&mut pair.tx, &mut pair.from.sealer);
    let mut held = Vec::new();
    while let Some(built) = tx.allocate() {
        tx.bytes_mut(built)[..frame.len()].copy_from_slice(&frame);
        held.push(built);
    }
    assert_eq!((held.len(), tx.available()), (tx.total(), 0));
    for built in held {
        assert!(tx.can_transmit());
        tx.transmit(built, frame.len());
    }
    assert_eq!(pair.tx.take_transmitted().len(), 48);
    // While the device has all frames, it takes none.
    pair.tx.hold();
    let mut tx = Sealing::new(&mut pair.tx, &mut pair.from.sealer);
    let mut sent = 0;
    while tx.can_transmit() {
        tx.transmit(crate::memory::frames::FrameId(0), frame.len());
        sent += 1;
    }
    assert_eq!(sent, 16);
}
