//! What an administrator is told of a connection, against what becomes of its packets.

use core::net::SocketAddr;
use std::sync::Arc;

use super::packets::{ALGORITHMS, between, ip, keys, segment, segment_of};
use crate::counters::DropReason;
use crate::esp::{
    Action, BLOCK, Change, Demand, InboundSa, KnownProtection, Mode, OutboundSa, Protection,
    ProtectionState, RequiredPorts, Sa, SaId, Sealing, Template, Window,
};
use crate::in_memory::VecFrames;
use crate::memory::frames::TxFrames;
use crate::wire::checksum::Checksums;
use crate::wire::esp::{EspHeader, PROTOCOL};

const HOSTS: [&str; 2] = ["192.0.2.1", "192.0.2.2"];

type Told = Option<(ProtectionState, Option<u32>, Vec<u32>)>;

/// One end, and what is known of it.
struct End {
    known: KnownProtection,
    protection: Protection,
    required: RequiredPorts,
}

impl End {
    fn new() -> Self {
        let required = RequiredPorts::none();
        Self {
            known: KnownProtection::default(),
            protection: Protection::new(required.clone()),
            required,
        }
    }

    fn apply(&mut self, change: Change) {
        self.known.note(&change);
        self.protection.apply(change);
    }

    /// Sets the policies for both directions.
    fn demand(&mut self, sent: Action, received: Action) {
        let [local, remote] = HOSTS.map(ip);
        let demand = |outgoing, action| Demand {
            outgoing,
            selector: between(local, remote),
            action,
        };
        let both = vec![demand(true, sent), demand(false, received)];
        self.apply(Change::Demands(both));
    }

    /// Adds an association to the other end, or from there.
    fn add(&mut self, spi: u32, is_outbound: bool) -> SaId {
        let mut ends = HOSTS.map(ip);
        if !is_outbound {
            ends.reverse();
        }
        let [source, destination] = ends;
        let sa = Sa {
            id: SaId { spi, destination },
            source,
            mode: Mode::Transport,
            algorithm: ALGORITHMS[0].0,
            extended: true,
            encapsulation: None,
            request: 7,
        };
        let (id, keys) = (sa.id, keys(ALGORITHMS[0], spi as u8));
        if is_outbound {
            let made = OutboundSa::new(sa, &keys, spi.into()).unwrap();
            assert!(made.numbers().add(1..BLOCK));
            self.apply(Change::Outbound(Arc::new(made)));
        } else {
            let made = InboundSa::new(sa, &keys, Window::new(64, true, 0)).unwrap();
            self.apply(Change::Inbound(Arc::new(made)));
        }
        id
    }

    /// Returns the state that is told, with the SPIs.
    fn told(&self) -> Told {
        let [local, remote] = HOSTS.map(ip);
        let [local, remote] = [(local, 7001), (remote, 7002)].map(SocketAddr::from);
        let required = self.required.contains(local.port());
        let facts = self.known.facts(local, remote, required);
        facts.map(|facts| {
            assert_eq!(facts.required, required);
            let inbound = facts.inbound.iter().map(|sa| sa.spi).collect();
            (facts.state, facts.outbound.map(|sa| sa.spi), inbound)
        })
    }

    /// Looks at what becomes of a segment of each direction, and returns what is told.
    fn tried(&mut self) -> Told {
        let told = self.told();
        let state = told.as_ref().map(|(state, ..)| *state);
        let outbound = told.as_ref().and_then(|(_, outbound, _)| *outbound);
        match (self.send(), state) {
            (Some(sent), _) if sent[23] == PROTOCOL => {
                let (header, _) = EspHeader::parse(&sent[14 + 20..]).unwrap();
                assert_eq!(outbound, Some(header.spi));
            }
            (Some(_), state) => assert!(
                matches!(state, None | Some(ProtectionState::OneWay)) && outbound.is_none(),
                "a plain segment was sent: {state:?}"
            ),
            (None, state) => assert!(
                matches!(
                    state,
                    Some(ProtectionState::Missing | ProtectionState::Dropped)
                ) && outbound.is_none(),
                "nothing was sent: {state:?}"
            ),
        }
        let is_taken = self.takes_plain();
        match state {
            None => assert!(is_taken),
            Some(ProtectionState::OneWay) => assert_eq!(is_taken, outbound.is_some()),
            Some(_) => assert!(!is_taken),
        }
        told
    }

    fn send(&mut self) -> Option<Vec<u8>> {
        let frame = segment(HOSTS, None, 0, b"x");
        let mut frames = VecFrames::new(64);
        let mut tx = Sealing::new(&mut frames, &mut self.protection.sealer);
        let built = tx.allocate().unwrap();
        tx.bytes_mut(built)[..frame.len()].copy_from_slice(&frame);
        tx.transmit(built, frame.len());
        frames.take_transmitted().pop()
    }

    fn takes_plain(&mut self) -> bool {
        let segment = segment_of([(HOSTS[1], 7002), (HOSTS[0], 7001)], None, 0, b"x");
        let opener = &mut self.protection.opener;
        opener.open([(&segment, Checksums::None)].into_iter());
        let drops = self.protection.take_counts().drops;
        drops.entries().all(|(reason, count)| {
            assert!(count == 0 || reason == DropReason::Unprotected);
            count == 0
        })
    }
}

#[test]
fn what_is_told_is_what_becomes_of_packets() {
    let mut end = End::new();
    assert_eq!(end.tried(), None);
    let [local, remote] = HOSTS.map(ip);
    let protect = Action::Protect(Template {
        request: 7,
        mode: Mode::Transport,
        local,
        remote,
    });
    end.demand(protect, protect);
    assert_eq!(end.tried(), Some((ProtectionState::Missing, None, vec![])));
    end.add(3, true);
    let one_missing = Some((ProtectionState::Missing, Some(3), vec![]));
    assert_eq!(end.told(), one_missing);
    let first = end.add(2, false);
    assert_eq!(end.tried(), Some((ProtectionState::Esp, Some(3), vec![2])));

    // New keys: the younger association seals, until it is to be replaced itself.
    end.add(4, false);
    let young = end.add(5, true);
    assert_eq!(
        end.tried(),
        Some((ProtectionState::Esp, Some(5), vec![2, 4]))
    );
    end.apply(Change::Gone(first));
    end.apply(Change::Dying(young));
    assert_eq!(end.tried(), Some((ProtectionState::Esp, Some(3), vec![4])));

    end.demand(protect, Action::Bypass);
    assert_eq!(
        end.tried(),
        Some((ProtectionState::OneWay, Some(3), vec![]))
    );
    end.demand(Action::Bypass, protect);
    assert_eq!(end.tried(), Some((ProtectionState::OneWay, None, vec![4])));
    end.demand(Action::Discard, Action::Discard);
    let dropped = Some((ProtectionState::Dropped, None, vec![]));
    assert_eq!(end.tried(), dropped);
    end.demand(Action::Bypass, Action::Bypass);
    assert_eq!(end.tried(), None);
    let required = end.required.require(7001);
    assert_eq!(end.tried(), dropped);
    drop(required);
    assert_eq!(end.tried(), None);
}

#[test]
fn what_leaves_no_process_is_not_told_of() {
    let mut end = End::new();
    let protect = Action::Discard;
    end.demand(protect, protect);
    assert!(end.tried().is_some());
    let [local, remote] = HOSTS.map(|host| SocketAddr::new(ip(host), 7001));
    end.apply(Change::Addresses(vec![local.ip(), remote.ip()]));
    assert_eq!(end.known.facts(local, remote, true), None);
}
