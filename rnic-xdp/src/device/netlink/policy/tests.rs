//! Policies in the layout of the kernel's header, and those of this kernel, if it has IPsec.

use super::*;
use crate::device::netlink::message::parse;
use crate::testing::Namespace;

/// A message as `linux/xfrm.h` describes it, octet by octet.
struct Raw {
    direction: u8,
    source: (&'static str, u8),
    destination: (&'static str, u8),
    destination_port: u16,
    protocol: u8,
    priority: u32,
    action: u8,
    /// Protocol, mode and whether it is optional.
    templates: Vec<(u8, u8, u8)>,
}

impl Raw {
    fn protecting(source: (&'static str, u8), destination: (&'static str, u8)) -> Self {
        Self {
            direction: DIRECTION_OUT,
            source,
            destination,
            destination_port: 0,
            protocol: 0,
            priority: 10,
            action: 0,
            templates: vec![(50, 0, 0)],
        }
    }

    fn message(&self) -> Builder {
        let octets = |address: &str| match address.parse().unwrap() {
            IpAddr::V4(address) => [&address.octets()[..], &[0; 12]].concat(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        let family = if self.source.0.contains(':') {
            10u16
        } else {
            2
        };
        let mut fixed = [octets(self.destination.0), octets(self.source.0)].concat();
        fixed.extend(self.destination_port.to_be_bytes());
        fixed.extend(if self.destination_port == 0 {
            [0; 2]
        } else {
            [0xff; 2]
        });
        fixed.extend([0; 4]);
        fixed.extend(family.to_ne_bytes());
        fixed.extend([self.destination.1, self.source.1, self.protocol, 0, 0, 0]);
        fixed.extend([0; 8]);
        assert_eq!(fixed.len(), 56, "struct xfrm_selector");
        fixed.extend([0xff; 64]);
        fixed.extend([0; 32]);
        fixed.extend(self.priority.to_ne_bytes());
        fixed.extend(7u32.to_ne_bytes());
        fixed.extend([self.direction, self.action, 0, 0]);
        fixed.resize(168, 0);
        let fixed: [u8; 168] = fixed.try_into().unwrap();
        let mut templates = Vec::new();
        for (protocol, mode, optional) in &self.templates {
            templates.extend([0; 20]);
            templates.extend([*protocol, 0, 0, 0]);
            templates.extend([0; 4 + 16 + 4]);
            templates.extend([*mode, 0, *optional, 0]);
            templates.extend([0xff; 12]);
        }
        assert_eq!(
            templates.len(),
            64 * self.templates.len(),
            "struct xfrm_user_tmpl"
        );
        let builder = Builder::new(NEW_POLICY, 0, &fixed);
        match templates.len() {
            0 => builder,
            _ => builder.attribute(XFRMA_TMPL, &templates),
        }
    }

    fn read(&self) -> Option<Policy> {
        read(self.message())
    }
}

fn read(message: Builder) -> Option<Policy> {
    Policy::from_message(&parse(&message.finish(1))[0], 0)
}

fn at(address: &str) -> SocketAddr {
    address.parse().unwrap()
}

fn only(prefixes: &[&str]) -> Peers {
    Peers::only(prefixes.iter().map(|prefix| prefix.parse().unwrap()))
}

const HERE: (&str, u8) = ("192.0.2.0", 24);
const THERE: (&str, u8) = ("198.51.100.0", 24);

#[test]
fn what_may_use_associations_counts_for_their_requests() {
    let policy = Raw {
        templates: vec![(50, 0, 0), (108, 0, 1)],
        ..Raw::protecting(HERE, THERE)
    };
    let wide = Raw {
        templates: vec![(50, 0, 1)],
        ..Raw::protecting(HERE, THERE)
    };
    // It goes in the clear for rnic, and can be protected by a peer.
    let wide = wide.read().unwrap();
    assert_eq!(wide.action, Action::Pass);
    let mut policies = Policies(vec![policy.read().unwrap(), wide]);
    for policy in &mut policies.0 {
        policy.optional.iter_mut().for_each(|request| *request += 5);
    }
    // One that has key managers asked alone is for no associations yet.
    assert_eq!(policies.by_request().into_keys().collect::<Vec<_>>(), [5]);
    assert_eq!(policies.that_ask().len(), 1);
    if let Action::Protect(layers) = &mut policies.0[0].action {
        layers[0].source = [192, 0, 2, 1].into();
    }
    assert_eq!(policies.that_ask(), []);
    let found = policies.by_request();
    let optional = |request| -> Vec<bool> {
        let all = found[&request].iter();
        all.map(|selected| selected.optional).collect()
    };
    assert_eq!(found.keys().copied().collect::<Vec<_>>(), [0, 5]);
    assert_eq!((optional(0), optional(5)), (vec![false], vec![true, true]));
}

#[test]
fn a_policy_is_read_as_the_kernels_header_lays_it_out() {
    let policy = Raw {
        destination_port: 4420,
        protocol: 6,
        ..Raw::protecting(HERE, THERE)
    };
    let policy = policy.read().unwrap();
    assert_eq!(
        policy.to_string(),
        "src 192.0.2.0/24 dst 198.51.100.0/24 dport 4420 dir out priority 10 tmpl proto esp mode transport"
    );
    assert!(policy.selects(at("192.0.2.1:50000"), at("198.51.100.9:4420")));
    assert!(!policy.selects(at("192.0.2.1:50000"), at("198.51.100.9:4421")));
    assert!(!policy.selects(at("192.0.3.1:50000"), at("198.51.100.9:4420")));
    assert!(!policy.selects(at("192.0.2.1:50000"), at("198.51.101.9:4420")));

    let incoming = Raw {
        direction: DIRECTION_IN,
        templates: vec![(51, 1, 0), (50, 1, 1)],
        ..Raw::protecting(("2001:db8:1::", 48), ("2001:db8:2::1", 128))
    };
    let incoming = incoming.read().unwrap();
    assert_eq!(
        incoming.to_string(),
        "src 2001:db8:1::/48 dst 2001:db8:2::1 dir in priority 10 tmpl proto ah mode tunnel"
    );
    assert!(incoming.selects(at("[2001:db8:2::1]:1"), at("[2001:db8:1::7]:2")));
}

#[test]
fn what_is_not_for_connections_of_this_host_is_left_out() {
    let base = || Raw::protecting(HERE, THERE);
    assert!(base().read().is_some());
    for other in [
        Raw {
            direction: 2,
            ..base()
        },
        Raw {
            direction: 3,
            ..base()
        },
    ] {
        assert_eq!(other.read(), None);
    }
    // Who asks what associations are for gets all.
    let of = |protocol| Raw { protocol, ..base() }.read().unwrap();
    for (protocol, is_for_tcp, alone) in [(0, true, false), (6, true, true), (17, false, false)] {
        assert_eq!(of(protocol).is_for_tcp_alone(), alone);
        let left = Policies(vec![of(protocol)]).for_tcp();
        assert_eq!(!left.0.is_empty(), is_for_tcp, "{protocol}");
    }
    assert_eq!(
        read(base().message().attribute(XFRMA_IF_ID, &1u32.to_ne_bytes())),
        None
    );
    let marked: Vec<u8> = [1u32, 1]
        .iter()
        .flat_map(|half| half.to_ne_bytes())
        .collect();
    assert_eq!(read(base().message().attribute(XFRMA_MARK, &marked)), None);
    // A mark of zero with a mask selects packets without a mark, such as ours.
    let unmarked: Vec<u8> = [0, u32::MAX]
        .iter()
        .flat_map(|half: &u32| half.to_ne_bytes())
        .collect();
    assert!(read(base().message().attribute(XFRMA_MARK, &unmarked)).is_some());
    // A message that is cut off yields a policy or none, and no panic.
    let whole = base().message().finish(1);
    for len in 0..whole.len() {
        let mut cut = whole[..len].to_vec();
        if let Some(stated) = cut.get_mut(..4) {
            stated.copy_from_slice(&(len as u32).to_ne_bytes());
        }
        for message in parse(&cut) {
            let _ = Policy::from_message(&message, 0);
        }
    }
}

#[test]
fn the_first_policy_decides() {
    let demand = Raw::protecting(HERE, ("0.0.0.0", 0)).read().unwrap();
    let pass = |priority, destination| {
        let raw = Raw {
            priority,
            templates: vec![(50, 0, 1)],
            ..Raw::protecting(HERE, destination)
        };
        raw.read().unwrap()
    };
    let (local, remote) = (at("192.0.2.1:1"), at("198.51.100.9:2"));
    let found = |policies: &[&Policy]| {
        let policies = Policies(policies.iter().copied().cloned().collect());
        policies
            .on_connection(&[3], local, remote, |_| false)
            .is_some()
    };
    assert!(found(&[&demand]));
    assert!(found(&[&pass(11, THERE), &demand]));
    assert!(!found(&[&pass(9, THERE), &demand]));
    // Of two policies with the same priority either may precede.
    assert!(found(&[&pass(10, THERE), &demand]));
    assert!(found(&[&pass(9, ("203.0.113.0", 24)), &demand]));
    // The other direction has policies of its own.
    let incoming = Raw {
        direction: DIRECTION_IN,
        action: ACTION_BLOCK,
        ..Raw::protecting(THERE, HERE)
    };
    assert!(found(&[
        &pass(9, THERE),
        &demand,
        &incoming.read().unwrap()
    ]));
    let elsewhere = Policy {
        link: Some(4),
        ..demand.clone()
    };
    assert!(!found(&[&elsewhere]));
    assert!(found(&[&Policy {
        link: Some(3),
        ..demand
    }]));
}

#[test]
fn a_listener_is_refused_for_peers_that_a_policy_is_for() {
    let demand = Raw::protecting(HERE, THERE).read().unwrap();
    let pass = Raw {
        priority: 9,
        templates: Vec::new(),
        ..Raw::protecting(HERE, ("198.51.100.128", 25))
    };
    let policies = Policies(vec![demand, pass.read().unwrap()]);
    let refused = |local, peers: &Peers| {
        policies
            .on_listener(&[], at(local), peers, |_| false)
            .is_some()
    };
    assert!(refused("192.0.2.1:4420", &Peers::all()));
    assert!(refused("0.0.0.0:4420", &Peers::all()));
    assert!(!refused("192.0.3.1:4420", &Peers::all()));
    assert!(!refused("[::]:4420", &Peers::all()));
    assert!(!refused(
        "192.0.2.1:4420",
        &only(&["203.0.113.0/24", "2001:db8::/32"])
    ));
    assert!(refused(
        "192.0.2.1:4420",
        &only(&["203.0.113.0/24", "198.51.0.0/16"])
    ));
    // Some of the peers are allowed to connect.
    assert!(!refused("192.0.2.1:4420", &only(&["198.51.100.200"])));
    assert!(!refused("0.0.0.0:4420", &only(&["198.51.100.192/26"])));
    assert!(refused("192.0.2.1:4420", &only(&["198.51.100.1"])));
}

#[test]
fn a_listener_needs_each_policy_met() {
    let demand = |destination| Raw::protecting(HERE, destination).read().unwrap();
    let policies = Policies(vec![demand(THERE), demand(("203.0.113.0", 24))]);
    let own = Policies(vec![demand(THERE)]);
    let is_met = |policy: &Policy| own.protect_all_of(policy);
    let found = policies.on_listener(&[], at("192.0.2.1:4420"), &Peers::all(), is_met);
    assert_eq!(found, Some(&policies.0[1]));
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
#[cfg_attr(all(root, not(ipsec)), ignore = "needs a kernel with IPsec")]
fn the_kernels_policies_are_read_and_followed() {
    let namespace = Namespace::new("xfrm").unwrap();
    let socket = namespace.run(|| PolicySocket::open(Groups::POLICIES).unwrap());
    let mut socket = socket.unwrap();
    assert_eq!(socket.read(0).unwrap().demands().count(), 0);
    assert!(!socket.has_changed());
    let add = "xfrm policy add src 192.0.2.0/24 dst 198.51.100.0/24 proto tcp dport 4420 dir out priority 7 \
               tmpl proto esp mode transport";
    namespace.ip(add).unwrap();
    namespace
        .ip("xfrm policy add src ::/0 dst fd00::/8 dir in action block")
        .unwrap();
    namespace
        .ip("xfrm policy add src ::/0 dst ::/0 dir fwd action block")
        .unwrap();
    assert!(socket.has_changed());
    let mut demands: Vec<_> = socket
        .read(0)
        .unwrap()
        .demands()
        .map(ToString::to_string)
        .collect();
    demands.sort();
    let expected = [
        "src 192.0.2.0/24 dst 198.51.100.0/24 dport 4420 dir out priority 7 tmpl proto esp mode transport",
        "src ::/0 dst fd00::/8 dir in priority 0 action block",
    ];
    assert_eq!(demands, expected);
    namespace.ip("xfrm policy flush").unwrap();
    assert!(socket.has_changed());
    namespace.ip("xfrm policy setdefault out block").unwrap();
    let read = socket.read(0).unwrap();
    let policy = read
        .on_connection(&[], at("192.0.2.1:1"), at("192.0.2.2:2"), |_| false)
        .unwrap();
    assert_eq!(policy.to_string(), "default out block");
}

#[test]
fn policies_of_an_xfrm_interface_are_demands_of_rnics_own() {
    use crate::device::netlink::demand::Unmet;
    use rnic_core::esp::{Action as EspAction, Mode};

    let with = |if_id: u32, raw: &Raw| raw.message().attribute(XFRMA_IF_ID, &if_id.to_ne_bytes());
    let own = |raw: Raw| Policy::from_message(&parse(&with(7, &raw).finish(1))[0], 7);
    let raw = || Raw::protecting(HERE, THERE);
    assert!(own(raw()).is_some());
    assert_eq!(
        Policy::from_message(&parse(&with(8, &raw()).finish(1))[0], 7),
        None
    );
    assert_eq!(
        Policy::from_message(&parse(&raw().message().finish(1))[0], 7),
        None
    );

    let demand = |raw: Raw| own(raw).unwrap().demand();
    let (protect, met) = demand(raw());
    assert!(protect.outgoing && met.is_ok());
    let EspAction::Protect(template) = protect.action else {
        panic!("{protect:?}")
    };
    assert_eq!(template.mode, Mode::Transport);
    let pass = Raw {
        templates: Vec::new(),
        ..raw()
    };
    assert_eq!(demand(pass).0.action, EspAction::Bypass);
    let block = Raw {
        action: ACTION_BLOCK,
        ..raw()
    };
    assert_eq!(demand(block).0.action, EspAction::Discard);
    // What rnic cannot do, it drops: AH, two layers, BEET.
    for templates in [
        vec![(51, 0, 0)],
        vec![(50, 0, 0), (50, 1, 0)],
        vec![(50, 4, 0)],
    ] {
        let (demand, met) = demand(Raw { templates, ..raw() });
        assert_eq!((demand.action, met), (EspAction::Discard, Err(Unmet)));
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
#[cfg_attr(all(root, not(ipsec)), ignore = "needs a kernel with IPsec")]
fn of_policies_with_one_priority_the_older_one_decides_as_in_the_kernel() {
    let namespace = Namespace::new("xfrm-age").unwrap();
    let socket = namespace.run(|| PolicySocket::open(Groups::NONE).unwrap());
    let mut socket = socket.unwrap();
    for policy in [
        "src 192.0.0.0/16 dst 192.0.2.0/24 dir out action block if_id 7",
        "src 192.0.2.0/24 dst 192.0.2.0/24 dir out if_id 7",
    ] {
        namespace.ip(&format!("xfrm policy add {policy}")).unwrap();
    }
    let first = |socket: &mut PolicySocket| {
        let policies = socket.read(7).unwrap();
        policies.by_precedence()[0].action.clone()
    };
    assert_eq!(first(&mut socket), Action::Block);
    // One that is replaced keeps its age.
    let replaced = "src 192.0.0.0/16 dst 192.0.2.0/24 dir out action block if_id 7";
    namespace
        .ip(&format!("xfrm policy update {replaced}"))
        .unwrap();
    assert_eq!(first(&mut socket), Action::Block);
}

#[test]
fn what_may_pass_on_one_link_may_not_pass_on_the_others() {
    let pass = Policy {
        link: Some(3),
        ..Raw {
            priority: 1,
            templates: Vec::new(),
            ..Raw::protecting(HERE, THERE)
        }
        .read()
        .unwrap()
    };
    let protect = Raw::protecting(HERE, THERE).read().unwrap();
    let block = Policy {
        link: Some(3),
        action: Action::Block,
        ..pass.clone()
    };
    let first = |policy: Policy| {
        let policies = Policies(vec![policy, protect.clone()]);
        policies.by_precedence()[0].action.clone()
    };
    assert_eq!(first(pass), protect.action);
    assert_eq!(first(block), Action::Block);
}

#[test]
fn each_direction_is_protected_by_its_own_policies() {
    let (local, remote) = (at("192.0.2.1:1"), at("198.51.100.9:2"));
    let out = || Raw::protecting(HERE, THERE);
    let incoming = || Raw {
        direction: DIRECTION_IN,
        ..Raw::protecting(THERE, HERE)
    };
    let policies = |raw: Vec<Raw>| Policies(raw.iter().filter_map(Raw::read).collect());
    let both_ways = |raw, remote| {
        let policies = policies(raw);
        [true, false].map(|outgoing| policies.protect(outgoing, local, remote))
    };
    assert_eq!(both_ways(vec![out(), incoming()], remote), [true, true]);
    assert_eq!(both_ways(vec![out()], remote), [true, false]);
    assert_eq!(both_ways(vec![incoming()], remote), [false, true]);
    let elsewhere = at("203.0.113.1:2");
    assert_eq!(both_ways(vec![out(), incoming()], elsewhere), [false; 2]);
    // One that lets through has precedence.
    let pass = || Raw {
        priority: 1,
        templates: Vec::new(),
        ..incoming()
    };
    let pass = |raw: Vec<Raw>| {
        [raw, vec![pass()]]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
    };
    assert_eq!(
        both_ways(pass(vec![out(), incoming()]), remote),
        [true, false]
    );
    // That one leaves nothing to be negotiated, as one that blocks does not.
    let can = |raw| policies(raw).can_protect(local, remote);
    assert!(can(vec![out(), incoming()]) && can(vec![out()]));
    assert!(!can(vec![incoming()]) && !can(pass(vec![out(), incoming()])));

    let narrow = Raw::protecting(("192.0.2.1", 32), THERE).read().unwrap();
    assert!(policies(vec![out()]).protect_all_of(&narrow));
    let wide = Raw::protecting(("192.0.0.0", 16), THERE).read().unwrap();
    assert!(!policies(vec![out()]).protect_all_of(&wide));
    assert!(!policies(vec![incoming()]).protect_all_of(&narrow));
    // A part of it is let through.
    let some = |priority, destination_port| Raw {
        priority,
        destination_port,
        templates: Vec::new(),
        ..Raw::protecting(HERE, ("198.51.100.128", 25))
    };
    assert!(!policies(vec![out(), some(1, 0)]).protect_all_of(&narrow));
    assert!(!policies(vec![out(), some(1, 80)]).protect_all_of(&narrow));
    assert!(policies(vec![out(), some(11, 0)]).protect_all_of(&narrow));
    let elsewhere = Raw {
        destination: ("203.0.113.0", 24),
        ..some(1, 0)
    };
    assert!(policies(vec![out(), elsewhere]).protect_all_of(&narrow));
}
