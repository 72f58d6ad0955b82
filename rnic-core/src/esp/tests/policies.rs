//! What policies say of plain frames, and of what was protected.

use std::sync::Arc;

use super::packets::{ALGORITHMS, Pair, between, ip, keys, segment, segment_of};
use crate::counters::DropReason;
use crate::esp::{
    Action, BLOCK, Change, Concerned, Demand, InboundSa, Mode, OutboundSa, Ports, Protection,
    Request, RequiredPorts, SaId, Selector, Template, Window,
};

use crate::wire::esp::EspHeader;
use crate::wire::icmp::{EspTooBig, TooBig};
use crate::wire::tcp::Seq;

const HOSTS: [&str; 2] = ["192.0.2.1", "192.0.2.2"];

fn spi(sealed: &[u8]) -> u32 {
    EspHeader::parse(&sealed[14 + 20..]).unwrap().0.spi
}

#[test]
fn plain_frames_of_protected_ends_never_reach_the_engine() {
    let mut pair = Pair::usual();
    let plain = segment(HOSTS, None, 0, b"x");
    assert_eq!(pair.receive(&plain), Err(DropReason::Unprotected));
    // Other peers have no policy.
    let other = segment(["192.0.2.3", HOSTS[1]], None, 0, b"x");
    assert_eq!(pair.receive(&other), Ok(other.clone()));
    // Neither is what was sent by another association, or to another SPI.
    let mut sealed = pair.send(&plain).unwrap();
    sealed[14 + 20 + 3] ^= 1;
    assert_eq!(pair.receive(&sealed), Err(DropReason::EspUnknown));
    // What is no packet for us, the engine counts.
    assert!(pair.receive(&[0; 20]).is_ok());
}

/// Ends whose policies say nothing.
#[test]
fn what_is_required_goes_protected_or_not_at_all() {
    let ports = RequiredPorts::none();
    let mut pair = Pair::usual();
    let plain = segment(HOSTS, None, 0, b"x");
    let let_through = |pair: &mut Pair| {
        pair.from = Protection::new(ports.clone());
        pair.to = Protection::new(ports.clone());
        (pair.send(&plain), pair.receive(&plain))
    };
    let as_it_is = (Some(plain.clone()), Ok(plain.clone()));
    let refused = (None, Err(DropReason::Unprotected));
    assert_eq!(let_through(&mut pair), as_it_is);
    // Those of the sender, and of the receiver, which two listeners or connections may ask for.
    let required = [7001, 7002, 7002].map(|port| ports.require(port));
    assert_eq!(let_through(&mut pair), refused);
    assert_eq!(pair.from.take_counts().unsealed, 1);
    let [from, first, second] = required;
    drop(first);
    assert_eq!(let_through(&mut pair), refused);
    drop(from);
    assert_eq!(
        let_through(&mut pair),
        (Some(plain.clone()), Err(DropReason::Unprotected))
    );
    drop(second);
    assert_eq!(let_through(&mut pair), as_it_is);

    // A policy that lets packets through is none that protects.
    pair.from = Protection::new(RequiredPorts::all());
    let bypass = Demand {
        outgoing: true,
        selector: between(ip(HOSTS[0]), ip(HOSTS[1])),
        action: Action::Bypass,
    };
    pair.from.apply(Change::Demands(vec![bypass]));
    assert_eq!(pair.send(&plain), None);
}

#[test]
fn an_association_is_for_what_its_policy_selects_alone() {
    let outer = ["203.0.113.1", "203.0.113.2"];
    let mut pair = Pair::new(ALGORITHMS[0], Mode::Tunnel, HOSTS, outer);
    let [local, remote] = HOSTS.map(ip);
    // The sender is not so strict.
    let wide = Demand {
        outgoing: true,
        selector: Selector {
            local: "0.0.0.0/0".parse().unwrap(),
            remote: "0.0.0.0/0".parse().unwrap(),
            ..between(local, remote)
        },
        action: Action::Protect(Template {
            request: 7,
            mode: Mode::Tunnel,
            local: ip(outer[0]),
            remote: ip(outer[1]),
        }),
    };
    pair.from.apply(Change::Demands(vec![wide]));
    let mut arrives = |frame: &[u8]| {
        let sealed = pair.send(frame).unwrap();
        pair.receive(&sealed).map(drop)
    };
    assert_eq!(arrives(&segment(HOSTS, None, 0, b"x")), Ok(()));
    let outside = Err(DropReason::EspOutside);
    assert_eq!(
        arrives(&segment(["192.0.2.9", HOSTS[1]], None, 0, b"x")),
        outside
    );
    assert_eq!(
        arrives(&segment([HOSTS[0], "192.0.2.9"], None, 0, b"x")),
        outside
    );

    // An address within the policy that is not this host's: a gateway would forward it.
    let network = Demand {
        outgoing: false,
        selector: Selector {
            local: "192.0.2.0/24".parse().unwrap(),
            ..between(remote, local)
        },
        action: Action::Protect(Template {
            request: 7,
            mode: Mode::Tunnel,
            local: ip(outer[1]),
            remote: ip(outer[0]),
        }),
    };
    pair.to.apply(Change::Demands(vec![network]));
    let mut arrives = |frame: &[u8]| {
        let sealed = pair.send(frame).unwrap();
        pair.receive(&sealed).map(drop)
    };
    assert_eq!(arrives(&segment(HOSTS, None, 0, b"x")), Ok(()));
    assert_eq!(
        arrives(&segment([HOSTS[0], "192.0.2.9"], None, 0, b"x")),
        outside
    );
}

#[test]
fn the_first_policy_decides_by_ports_too() {
    let mut pair = Pair::usual();
    let [local, remote] = HOSTS.map(ip);
    let with_port = |port, outgoing, action| {
        let ends = between(local, remote);
        let ports = Ports { port, mask: 0xffff };
        let selector = Selector {
            remote_ports: ports,
            ..ends
        };
        Demand {
            outgoing,
            selector,
            action,
        }
    };
    let protect = Action::Protect(Template {
        request: 7,
        mode: Mode::Transport,
        local: ip("0.0.0.0"),
        remote: ip("0.0.0.0"),
    });
    pair.from.apply(Change::Demands(vec![
        with_port(22, true, Action::Bypass),
        with_port(23, true, Action::Discard),
        Demand {
            outgoing: true,
            selector: between(local, remote),
            action: protect,
        },
        with_port(7002, true, Action::Discard),
    ]));
    let to = |port| segment_of([(HOSTS[0], 7001), (HOSTS[1], port)], None, 0, b"x");
    let plain = to(22);
    assert_eq!(pair.send(&plain), Some(plain));
    assert_eq!(pair.send(&to(23)), None);
    assert_eq!(
        pair.send(&to(7002)).map(|sealed| spi(&sealed)),
        Some(0x1001)
    );
    // What is decided is decided anew with other policies.
    pair.from.apply(Change::Demands(Vec::new()));
    let plain = to(7002);
    assert_eq!(pair.send(&plain), Some(plain));
}

#[test]
fn the_youngest_association_that_is_not_dying_is_used() {
    let mut pair = Pair::usual();
    let frame = segment(HOSTS, None, 0, b"x");
    let add = |pair: &mut Pair, spi, age, request| {
        let mut sa = pair.sa.clone();
        sa.id.spi = spi;
        sa.request = request;
        let made = OutboundSa::new(sa, &keys(ALGORITHMS[0], spi as u8), age).unwrap();
        assert!(made.numbers().add(1..100));
        pair.from.apply(Change::Outbound(Arc::new(made)));
    };
    add(&mut pair, 0x2001, 5, 7);
    add(&mut pair, 0x3001, 3, 7);
    add(&mut pair, 0x4001, 9, 8);
    let used = |pair: &mut Pair| spi(&pair.send(&frame).unwrap());
    assert_eq!(used(&mut pair), 0x2001);
    let id = |spi| SaId {
        spi,
        destination: ip(HOSTS[1]),
    };
    pair.from.apply(Change::Dying(id(0x2001)));
    assert_eq!(used(&mut pair), 0x3001);
    pair.from.apply(Change::Gone(id(0x3001)));
    assert_eq!(used(&mut pair), 0x1001);
    pair.from.apply(Change::Dying(id(0x1001)));
    assert_eq!(used(&mut pair), 0x2001);
}

#[test]
fn an_association_ends_at_its_hard_limit() {
    let frame = segment(HOSTS, None, 0, b"xy");
    let protected = frame.len() as u64 - 34;
    for (packets, octets) in [(3, u64::MAX), (u64::MAX, 2 * protected + 1)] {
        let mut pair = Pair::usual();
        let limited = |spi: u32| {
            let mut sa = pair.sa.clone();
            sa.id.spi = spi;
            sa
        };
        let (sa, keys) = (limited(0x2001), keys(ALGORITHMS[0], 9));
        let made = OutboundSa::new(sa.clone(), &keys, 5).unwrap();
        made.usage().limit(packets, octets);
        assert!(made.numbers().add(1..100));
        pair.from.apply(Change::Outbound(Arc::new(made)));
        let sealed: Vec<_> = (0..3).map(|_| pair.send(&frame).unwrap()).collect();
        assert!(sealed.iter().all(|sealed| spi(sealed) == sa.id.spi));
        // What finds its end is sent again, by another one.
        assert_eq!(pair.send(&frame), None);
        assert_eq!(spi(&pair.send(&frame).unwrap()), pair.sa.id.spi);
        // Nor is it opened by one that has ended.
        let made = InboundSa::new(sa, &keys, Window::new(64, true, 0)).unwrap();
        made.usage()
            .limit(packets.min(2), octets.min(protected + 1));
        pair.to.apply(Change::Inbound(Arc::new(made)));
        let opened = sealed.iter().map(|sealed| pair.receive(sealed).is_ok());
        assert_eq!(opened.collect::<Vec<_>>(), [true, true, false]);
    }
}

#[test]
fn strangers_do_not_fill_the_memory() {
    let mut pair = Pair::usual();
    for number in 0..20_000u32 {
        let stranger = std::net::Ipv4Addr::from(0x0a00_0000 + number).to_string();
        let frame = segment([&stranger, HOSTS[1]], None, 0, b"x");
        assert!(pair.receive(&frame).is_ok());
    }
    let plain = segment(HOSTS, None, 0, b"x");
    assert_eq!(pair.receive(&plain), Err(DropReason::Unprotected));
}

#[test]
fn packets_that_wait_for_an_association_do_not_crowd_out_requests_for_numbers() {
    let mut pair = Pair::usual();
    let id = pair.sa.id;
    // From here on the association has half of a block, and asks for the next one.
    let association = OutboundSa::new(pair.sa.clone(), &keys(ALGORITHMS[0], 9), 0).unwrap();
    assert!(association.numbers().add(1..BLOCK / 2));
    pair.from.apply(Change::Outbound(Arc::new(association)));
    let other = "192.0.2.3";
    let [local, remote, missing] = [HOSTS[0], HOSTS[1], other].map(ip);
    let action = Action::Protect(Template {
        request: 7,
        mode: Mode::Transport,
        local,
        remote,
    });
    let demand = |remote| Demand {
        outgoing: true,
        selector: between(local, remote),
        action,
    };
    pair.from
        .apply(Change::Demands(vec![demand(remote), demand(missing)]));
    for _ in 0..1000 {
        assert_eq!(pair.send(&segment([HOSTS[0], other], None, 0, b"x")), None);
    }
    assert!(pair.send(&segment(HOSTS, None, 0, b"x")).is_some());
    let requests: Vec<_> = std::iter::from_fn(|| pair.from.poll_request()).collect();
    assert!(requests.contains(&Request::Numbers(id)));
    assert!(requests.len() < 100, "strangers do not fill the memory");
}

#[test]
fn no_router_has_seen_a_segment_that_is_sealed() {
    let mut pair = Pair::usual();
    let too_big = |remote| TooBig {
        local: (ip(HOSTS[0]), 7001).into(),
        remote: (ip(remote), 7002).into(),
        seq: Seq(1),
        mtu: 600,
    };
    assert!(!pair.from.heeds(&too_big(HOSTS[1])));
    assert!(pair.from.heeds(&too_big("192.0.2.3")));
    // Neither where the association is missing now.
    pair.from.apply(Change::Gone(pair.sa.id));
    assert!(!pair.from.heeds(&too_big(HOSTS[1])));
    // Nor where the policy is, and protection is required.
    pair.from = Protection::new(RequiredPorts::all());
    assert!(!pair.from.heeds(&too_big(HOSTS[1])));
}

#[test]
fn a_message_about_a_sealed_packet_is_heeded_if_that_was_sent_of_late() {
    let outer = ["203.0.113.1", "203.0.113.2"];
    let mut pair = Pair::new(ALGORITHMS[0], Mode::Tunnel, HOSTS, outer);
    let [local, remote] = HOSTS.map(ip);
    let told = |number: u64, mtu| EspTooBig {
        source: ip(outer[0]),
        destination: ip(outer[1]),
        header: EspHeader {
            spi: 0x1001,
            number: number as u32,
        },
        mtu,
    };
    let genuine = told(1, 1300);
    assert_eq!(
        pair.from.narrowed(&genuine, local, remote),
        None,
        "nothing was sent"
    );
    for _ in 0..3 {
        pair.send(&segment(HOSTS, None, 0, b"x")).unwrap();
    }
    // IPv4, ESP, IV and ICV go off, and what a packet of a multiple of 4 has behind its payload.
    let inner = Some(1300 - 20 - 8 - 8 - 16 - 2);
    for number in 1..=3 {
        let told = told(number, 1300);
        assert_eq!(pair.from.narrowed(&told, local, remote), inner);
    }
    for number in [0, 4, u64::from(u32::MAX)] {
        let told = told(number, 1300);
        assert_eq!(pair.from.narrowed(&told, local, remote), None, "{number}");
    }
    let header = genuine.header;
    for forged in [
        EspTooBig {
            source: ip("203.0.113.3"),
            ..genuine
        },
        EspTooBig {
            destination: ip("203.0.113.3"),
            ..genuine
        },
        EspTooBig {
            header: EspHeader {
                spi: 0x1002,
                ..header
            },
            ..genuine
        },
    ] {
        assert_eq!(
            pair.from.narrowed(&forged, local, remote),
            None,
            "{forged:?}"
        );
    }
    // It says nothing of other hosts, and is not believed to say that nothing fits.
    let stranger = ip("192.0.2.9");
    assert_eq!(pair.from.narrowed(&genuine, local, stranger), None);
    let least = pair.from.narrowed(&told(1, 68), local, remote);
    assert_eq!(least, Some(552 - 54));
    // Numbers go on, and the first is sent of late no more.
    for _ in 0..1 << 16 {
        pair.send(&segment(HOSTS, None, 0, b"x")).unwrap();
    }
    assert_eq!(pair.from.narrowed(&told(2, 1300), local, remote), None);
    assert_eq!(pair.from.narrowed(&told(3, 1300), local, remote), inner);
}

#[test]
fn a_change_concerns_those_that_its_association_sends_to() {
    let [peer, other] = ["192.0.2.2", "198.51.100.2"].map(ip);
    let id = |spi, destination| SaId { spi, destination };
    for (mode, expected) in [
        (Mode::Transport, Concerned::Peer(peer)),
        (Mode::Tunnel, Concerned::Anybody),
    ] {
        let hosts = ["192.0.2.1", "192.0.2.2"];
        let mut pair = Pair::new(ALGORITHMS[0], mode, hosts, hosts);
        let known = pair.sa.id;
        let make = |spi| {
            let mut sa = pair.sa.clone();
            sa.id.spi = spi;
            Arc::new(OutboundSa::new(sa, &keys(ALGORITHMS[0], 3), 1).unwrap())
        };
        let (new, again) = (make(0x2002), make(known.spi));
        let sender = &mut pair.from;
        for change in [
            Change::Outbound(new.clone()),
            Change::Outbound(again),
            Change::Dying(known),
            Change::Gone(known),
        ] {
            assert_eq!(sender.concerned(&change), expected, "{change:?}");
        }
        let unknown = Change::Gone(new.sa.id);
        assert_eq!(sender.concerned(&unknown), Concerned::Nobody);
        sender.apply(Change::Outbound(new));
        assert_eq!(sender.concerned(&unknown), expected);
        let demands = Change::Demands(Vec::new());
        assert_eq!(sender.concerned(&demands), Concerned::Anybody);
        let elsewhere = Change::Gone(id(known.spi, other));
        assert_eq!(sender.concerned(&elsewhere), Concerned::Nobody);
    }
    assert!(Concerned::Peer(peer).has(peer) && !Concerned::Peer(peer).has(other));
    assert!(Concerned::Anybody.has(other) && !Concerned::Nobody.has(other));
}
