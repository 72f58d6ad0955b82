//! An engine over SCTP and a peer that plays by no rules of RFC 5043: nothing panics, every request
//! completes once, what the engine sends is numbered without a gap, and when the association is over
//! nothing of it is left.
#![no_main]

use std::collections::BTreeMap;
use std::time::Duration;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use rnic_core::connection::{AssociationSocket, ConnectionOptions, Event, OutgoingChunk};
use rnic_core::engine::{Command, EngineConfig};
use rnic_core::memory::table::Access;
use rnic_core::testing::host::associated::OverSctp;
use rnic_core::testing::link::Impairments;
use rnic_core::testing::sctp::VirtualAssociation;
use rnic_core::testing::simulation::{Simulation, TestQp};
use rnic_core::verbs::{
    sge::Sge,
    wr::{RecvWr, SendWr, WrOpcode},
};
use rnic_core::wire::session::{Body, Function, SessionChunk};

const PORT: u16 = 4420;
const REGION: usize = 4096;
/// Longer than anything the engine waits for.
const LONG: Duration = Duration::from_secs(120);

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    actions: Vec<Action<'a>>,
}

#[derive(Arbitrary, Debug)]
enum Action<'a> {
    /// Anything on a stream.
    Chunk(u8, u8, &'a [u8]),
    /// A control message with the next number of a stream, or one near to it.
    Control(u8, i8, u8, &'a [u8]),
    /// A segment, in the same way.
    Segment(u8, i8, &'a [u8]),
    /// A tagged segment for memory that is there.
    Tagged(u8, i8, u16, bool, &'a [u8]),
    Accept,
    Reject,
    PostSend(u16),
    PostReceive(u16),
    Disconnect,
    Abort,
    Wait(u8),
}

struct Scene {
    sim: Simulation<OverSctp>,
    peer: VirtualAssociation,
    qps: Vec<TestQp>,
    posted: usize,
    completed: usize,
    /// The next number on each stream, and the one that is expected of the engine.
    next: BTreeMap<u16, u16>,
    expected: BTreeMap<u16, u16>,
}

impl Scene {
    fn new() -> Self {
        let link = Impairments::default();
        let mut sim = Simulation::<OverSctp>::over(&EngineConfig::default(), link, 1);
        sim.hosts[0].listen(PORT);
        sim.run_for(Duration::from_millis(1));
        let by_hand = sim.hosts[1].machine().associations();
        let (local, remote) = (sim.hosts[1].socket(50_000), sim.hosts[0].socket(PORT));
        let peer = by_hand.connect_by_hand(local, remote);
        sim.run_for(Duration::from_millis(1));
        Self {
            sim,
            peer,
            qps: Vec::new(),
            posted: 0,
            completed: 0,
            next: BTreeMap::new(),
            expected: BTreeMap::new(),
        }
    }

    fn put(&mut self, stream: u8, protocol: u32, octets: &[u8]) {
        let chunk = OutgoingChunk {
            stream: u16::from(stream % 4),
            protocol,
            octets,
            urgent: false,
        };
        let _ = self.peer.send(&chunk);
    }

    fn numbered(&mut self, stream: u8, off: i8, protocol: u32, rest: &[u8]) {
        let next = self.next.entry(u16::from(stream % 4)).or_default();
        let ssn = next.wrapping_add_signed(off.into());
        *next = next.wrapping_add(1);
        let octets = [&ssn.to_be_bytes()[..], rest].concat();
        self.put(stream, protocol, &octets);
    }

    /// Looks at what the engine has sent.
    fn check(&mut self) {
        while let Some((stream, protocol, octets)) = self.peer.take_chunk() {
            let chunk = SessionChunk::parse(protocol, &octets).expect("the engine sends chunks");
            let expected = self.expected.entry(stream).or_default();
            assert_eq!(chunk.ssn, *expected, "stream {stream}");
            *expected = expected.wrapping_add(1);
            if let Body::Control(control) = chunk.body
                && matches!(
                    control.function,
                    Function::Terminate | Function::Reject | Function::EnhancedReject
                )
            {
                // The next session begins with 0, and so does the peer.
                self.expected.insert(stream, 0);
                self.next.insert(stream, 0);
            }
        }
        self.completed += self.qps.iter_mut().map(|qp| qp.poll().len()).sum::<usize>();
    }

    fn act(&mut self, action: &Action<'_>, sge: Sge) {
        let request = self.sim.hosts[0].connect_requests().last();
        match *action {
            Action::Chunk(stream, protocol, octets) => self.put(stream, protocol.into(), octets),
            Action::Control(stream, off, function, data) => {
                let rest = [&[0, function % 9][..], data].concat();
                self.numbered(stream, off % 3, 17, &rest);
            }
            Action::Segment(stream, off, segment) => self.numbered(stream, off % 3, 16, segment),
            Action::Tagged(stream, off, offset, last, payload) => {
                let mut segment = vec![if last { 0xc1 } else { 0x81 }, 0x40];
                segment.extend(sge.lkey.to_be_bytes());
                segment.extend(u64::from(offset % REGION as u16).to_be_bytes());
                segment.extend(payload);
                self.numbered(stream, off % 3, 16, &segment);
            }
            Action::Accept => {
                let qp = self.sim.hosts[0].create_qp();
                if let Some(request) = request {
                    self.sim.hosts[0].accept(request, &qp, &ConnectionOptions::default());
                }
                self.qps.push(qp);
            }
            Action::Reject => {
                if let Some(request) = request {
                    let private_data = Vec::new();
                    self.sim.hosts[0].command(Command::Reject {
                        request,
                        private_data,
                    });
                }
            }
            Action::PostSend(len) | Action::PostReceive(len) => {
                let Some(qp) = self.qps.last_mut() else {
                    return;
                };
                let has_room = qp.room().0.min(qp.room().1) > 1;
                if !has_room || !self.sim.hosts[0].is_established(qp.number) {
                    return;
                }
                let length = u32::from(len) % REGION as u32;
                let sges = [Sge { length, ..sge }];
                self.posted += 1;
                if matches!(action, Action::PostSend(_)) {
                    let wr = SendWr::new(1, WrOpcode::Send).with_sges(&sges);
                    let wr = wr.expect("one piece");
                    self.sim.hosts[0].post_send(qp, wr);
                } else {
                    let wr = RecvWr::new(2, &sges).expect("one piece");
                    self.sim.hosts[0].post_recv(qp, wr);
                }
            }
            Action::Disconnect | Action::Abort => {
                if let Some(qp) = self.qps.last() {
                    let number = qp.number;
                    self.sim.hosts[0].command(match action {
                        Action::Disconnect => Command::Disconnect(number),
                        _ => Command::Abort(number),
                    });
                }
            }
            Action::Wait(millis) => self.sim.run_for(Duration::from_millis(millis.into())),
        }
    }
}

fuzz_target!(|input: Input<'_>| {
    let mut scene = Scene::new();
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let region = scene.sim.hosts[0].share(&[0; REGION], rights);
    let sge = Sge {
        offset: 0,
        length: 0,
        lkey: region.stag.0,
    };
    for action in input.actions.iter().take(200) {
        scene.act(action, sge);
        scene.sim.run_for(Duration::from_millis(1));
        scene.check();
    }
    scene.peer.abort();
    scene.sim.run_for(LONG);
    scene.check();
    let connections = scene.sim.hosts[0].snapshot(scene.sim.now).connections;
    assert!(connections.is_empty(), "{connections:?}");
    assert_eq!(scene.completed, scene.posted);
    for qp in &scene.qps {
        let ended = |event: &Event| {
            matches!(event, Event::Disconnected { qp: number, .. } | Event::Failed { qp: number, .. }
                if *number == qp.number)
        };
        let is_idle = !scene.sim.hosts[0].is_established(qp.number);
        assert!(is_idle || scene.sim.hosts[0].events.iter().any(ended));
    }
});
