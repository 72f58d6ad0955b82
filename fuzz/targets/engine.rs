//! A whole engine, in frames or over sockets, and a peer that plays by no rules once it is
//! connected: nothing panics, what the host buffers stays within its window (and a share, where
//! messages may wait for receives), all that it sends is right, every work request completes once,
//! and nothing of the connection is left.
#![no_main]

#[path = "../../rnic-core/tests/support/decoder/mod.rs"]
mod decoder;

use std::time::Duration;

use arbitrary::Arbitrary;
use decoder::Decoder;
use libfuzzer_sys::fuzz_target;
use rnic_core::connection::{ConnectionOptions, Event};
use rnic_core::engine::{Command, EngineConfig};
use rnic_core::memory::table::Access;
use rnic_core::testing::host::framed::Framed;
use rnic_core::testing::host::socketed::OverSockets;
use rnic_core::testing::host::{Machine, SharedRegion, TestQp};
use rnic_core::testing::link::Impairments;
use rnic_core::testing::raw_peer::{RawPeer, startup};
use rnic_core::testing::simulation::{Simulation, TapPoint};
use rnic_core::verbs::{
    sge::Sge,
    wr::{RecvWr, SendWr, WrOpcode},
};
use rnic_core::wire::ddp::{
    DdpHeader, MessageOffset, Msn, QueueNumber, Stag, TaggedHeader, TaggedOffset, UntaggedHeader,
};
use rnic_core::wire::mpa::{Enhanced, StartupFrame, StartupKind};
use rnic_core::wire::rdmap::{AtomicOperation, AtomicRequest, Control, Opcode, ReadRequest};

const PORT: u16 = 4420;
const WINDOW: u32 = 16 << 10;
const REGION: usize = 4096;
/// Longer than anything the engine waits for.
const LONG: Duration = Duration::from_secs(600);

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    crc: bool,
    /// The lowest bit: with markers. The next one: with the semantics of RC. The third one: over
    /// sockets.
    options: u8,
    actions: Vec<Action<'a>>,
}

#[derive(Arbitrary, Debug)]
enum Action<'a> {
    Octets(&'a [u8]),
    Ahead(u32, &'a [u8]),
    /// Leaves a hole, or begins again further back.
    Move(i16),
    Ulpdu {
        octets: &'a [u8],
        cut: u8,
    },
    Tagged {
        control: u8,
        known: bool,
        offset: u16,
        last: bool,
        payload: &'a [u8],
    },
    Untagged {
        control: u8,
        queue: u8,
        msn: u8,
        offset: u16,
        last: bool,
        payload: &'a [u8],
    },
    /// A Read or Atomic Request for memory that is there.
    Request {
        read: bool,
        msn: u8,
        offset: u16,
        number: u64,
    },
    Window(u16),
    Acknowledge(bool),
    Finish,
    Wait(u16),
    PostSend {
        operation: u8,
        length: u16,
    },
    PostReceive(u16),
    Disconnect,
    Revoke,
}

fn request(crc: bool) -> Vec<u8> {
    startup(&StartupFrame {
        kind: StartupKind::Request,
        markers: false,
        crc,
        reject: false,
        enhanced_bit: true,
        reserved: 0,
        revision: 2,
        private_data: &[],
        enhanced: Some(Enhanced {
            ird: 4,
            ord: 4,
            ..Enhanced::default()
        }),
    })
}

/// The raw peer is connected to a queue pair of host 0. `cuts`: what is below it cuts the stream
/// where it likes.
fn connected<M: Machine>(
    crc: bool,
    markers: bool,
    rc: bool,
    cuts: bool,
) -> Option<(Simulation<M>, TestQp)> {
    let mut config = EngineConfig::default();
    config.tcp.receive_window = WINDOW;
    let mut sim = Simulation::over(&config, Impairments::default(), 1);
    let mut decoder = Decoder::default();
    decoder.rc = rc;
    decoder.unaligned = cuts;
    sim.tap = Some(Box::new(move |point, frame| match point {
        TapPoint::Sent(_) => decoder.insist(true, frame),
        TapPoint::SentRaw(_) => decoder.insist(false, frame),
        TapPoint::Arrived(_) => decoder.arrive(frame),
    }));
    let qp = sim.hosts[0].create_qp();
    sim.hosts[0].listen(PORT);
    let peer = sim.add_raw_peer(0, PORT);
    sim.raw[peer].crc = crc;
    sim.raw[peer].connect();
    sim.run_now();
    let request = request(crc);
    sim.raw[peer].send(&request);
    sim.raw[peer].markers_from = markers.then_some(request.len() as u32);
    sim.run_now();
    let asked = sim.hosts[0].events.iter().find_map(|event| match event {
        Event::ConnectRequest { request, .. } => Some(*request),
        _ => None,
    })?;
    let options = ConnectionOptions {
        crc,
        markers,
        rc,
        ..ConnectionOptions::default()
    };
    sim.hosts[0].accept(asked, &qp, &options);
    sim.hosts[0].unlisten(PORT);
    sim.run_now();
    Some((sim, qp))
}

fn local(region: &SharedRegion, length: u16) -> Sge {
    Sge {
        offset: 0,
        length: u32::from(length) % REGION as u32,
        lkey: region.stag.0,
    }
}

/// A request of the host's: `operation` stands for one.
fn posted_request(operation: u8, length: u16, region: &SharedRegion) -> SendWr {
    let data = [local(region, length)];
    let with_data = |opcode| {
        SendWr::new(1, opcode)
            .with_sges(&data)
            .expect("one buffer fits")
    };
    let add = AtomicOperation::FetchAdd { add: 1, mask: 0 };
    let wr = match operation % 5 {
        0 => with_data(WrOpcode::Write),
        1 => with_data(WrOpcode::Read),
        2 => with_data(WrOpcode::WriteImmediate),
        3 => SendWr::new(1, WrOpcode::Immediate),
        _ => SendWr::atomic(1, add, local(region, 8)),
    };
    wr.with_remote(Stag(7), TaggedOffset(0))
}

/// The peer asks for something of the host's memory.
fn request_octets(read: bool, stag: Stag, offset: u16, number: u64) -> (Opcode, Vec<u8>) {
    let offset = TaggedOffset(offset.into());
    if read {
        let request = ReadRequest {
            sink_stag: Stag(7),
            sink_offset: TaggedOffset(0),
            length: number as u32 % (2 * REGION as u32),
            source_stag: stag,
            source_offset: offset,
        };
        let mut octets = vec![0; ReadRequest::LEN];
        request.emit(&mut octets);
        return (Opcode::ReadRequest, octets);
    }
    let request = AtomicRequest {
        identifier: 1,
        stag,
        offset,
        operation: AtomicOperation::CmpSwap {
            swap: number,
            swap_mask: number.rotate_left(8),
            compare: 0,
            compare_mask: number.rotate_left(16),
        },
    };
    let mut octets = vec![0; AtomicRequest::LEN];
    request.emit(&mut octets);
    (Opcode::AtomicRequest, octets)
}

/// What the host's application has done.
#[derive(Default)]
struct Posted {
    sends: usize,
    receives: usize,
    revoked: bool,
}

fn act<M: Machine>(
    action: Action<'_>,
    sim: &mut Simulation<M>,
    qp: &mut TestQp,
    region: &SharedRegion,
    posted: &mut Posted,
) {
    let number = qp.number;
    let peer: &mut RawPeer = &mut sim.raw[0];
    match action {
        Action::Octets(octets) => peer.send(octets),
        Action::Ahead(distance, octets) => peer.send_ahead(distance % (2 * WINDOW), octets),
        Action::Move(by) => peer.skip(i32::from(by) as u32),
        Action::Ulpdu { octets, cut } => {
            let fpdu = peer.fpdu(octets);
            let (one, other) = fpdu.split_at(usize::from(cut).min(fpdu.len()));
            peer.send(one);
            peer.send(other);
        }
        Action::Tagged {
            control,
            known,
            offset,
            last,
            payload,
        } => {
            let stag = if known {
                region.stag
            } else {
                Stag(offset.into())
            };
            let offset = TaggedOffset(offset.into());
            let header = TaggedHeader {
                last,
                ulp: control,
                stag,
                offset,
            };
            peer.send_ddp(DdpHeader::Tagged(header), payload);
        }
        Action::Untagged {
            control,
            queue,
            msn,
            offset,
            last,
            payload,
        } => {
            let header = UntaggedHeader {
                last,
                ulp: control,
                ulp32: region.stag.0,
                queue: QueueNumber(queue.into()),
                msn: Msn(msn.into()),
                offset: MessageOffset(offset.into()),
            };
            peer.send_ddp(DdpHeader::Untagged(header), payload);
        }
        Action::Request {
            read,
            msn,
            offset,
            number,
        } => {
            let (opcode, octets) = request_octets(read, region.stag, offset, number);
            let header = UntaggedHeader {
                last: true,
                ulp: Control::new(opcode).into(),
                ulp32: 0,
                queue: QueueNumber::READ_REQUEST,
                msn: Msn(msn.into()),
                offset: MessageOffset(0),
            };
            peer.send_ddp(DdpHeader::Untagged(header), &octets);
        }
        Action::Window(window) => {
            peer.window = window;
            peer.acknowledge();
        }
        Action::Acknowledge(does) => peer.acknowledges = does,
        Action::Finish => peer.close(),
        Action::Wait(milliseconds) => sim.run_for(Duration::from_millis(milliseconds.into())),
        Action::PostSend { operation, length } if posted.sends < 16 => {
            posted.sends += 1;
            sim.hosts[0].post_send(qp, posted_request(operation, length, region));
        }
        Action::PostReceive(length) if posted.receives < 16 => {
            posted.receives += 1;
            let wr = RecvWr::new(2, &[local(region, length)]).expect("one buffer fits");
            sim.hosts[0].post_recv(qp, wr);
        }
        Action::Disconnect => sim.hosts[0].command(Command::Disconnect(number)),
        Action::Revoke if !posted.revoked => {
            posted.revoked = true;
            sim.hosts[0].revoke(region.stag);
        }
        Action::PostSend { .. } | Action::PostReceive(_) | Action::Revoke => {}
    }
}

fuzz_target!(|input: Input| {
    match input.options & 4 != 0 {
        false => run::<Framed>(input, false),
        true => run::<OverSockets>(input, true),
    }
});

fn run<M: Machine>(input: Input<'_>, cuts: bool) {
    let (markers, rc) = (input.options & 1 != 0, input.options & 2 != 0);
    let Some((mut sim, mut qp)) = connected::<M>(input.crc, markers, rc, cuts) else {
        panic!("an honest start-up fails");
    };
    let rights =
        Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let region = sim.hosts[0].share(&[0; REGION], rights);
    // Each octet of the window may come in an FPDU of few octets, with a record of its own.
    let parked = if rc {
        (1 << 20) + 8 * WINDOW as usize
    } else {
        0
    };
    let mut posted = Posted::default();
    for action in input.actions.into_iter().take(64) {
        act(action, &mut sim, &mut qp, &region, &mut posted);
        sim.run_now();
        for connection in sim.hosts[0].snapshot(sim.now).connections {
            assert!(
                connection.buffered <= WINDOW as usize + (64 << 10) + parked,
                "{connection:?}"
            );
        }
    }
    let number = qp.number;
    sim.hosts[0].command(Command::Abort(number));
    sim.run_for(LONG);
    assert_eq!(qp.poll().len(), posted.sends + posted.receives);
    assert!(sim.hosts[0].snapshot(sim.now).connections.is_empty());
    assert_eq!(sim.hosts[0].frames_in_use(), 0);
    assert_eq!(sim.hosts[0].reservations(), 0);
}
