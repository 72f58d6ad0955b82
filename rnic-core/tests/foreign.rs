//! Memory of the program that it takes away while it is registered: the connection that touches it
//! ends with a protection error, and no other.

mod common;

use std::sync::Arc;

use common::*;
use rnic_core::connection::{ConnectionOptions, EndReason};
use rnic_core::ids::PdId;
use rnic_core::memory::program::{PAGE, ProgramMemory, TakeAway};
use rnic_core::testing::simulation::{SharedRegion, Simulation, TestQp};
use rnic_core::verbs::sge::Sge;
use rnic_core::verbs::status::WcStatus;
use rnic_core::verbs::wr::{MAX_INLINE, MAX_SGE, RecvWr, SendWr, WcOpcode, WrOpcode};
use rnic_core::wire::ddp::TaggedOffset;
use rnic_core::wire::rdmap::AtomicOperation;

const PD: PdId = PdId(1);
/// Octets of the memory, of which the second half is taken away.
const LEN: usize = 64 * PAGE;
const HALF: usize = LEN / 2;

const WAYS: [TakeAway; 3] = [TakeAway::Unmap, TakeAway::Protect, TakeAway::Truncate];

/// Two connected hosts, memory of the program of one of them, and a second connection beside.
struct Rig {
    sim: Simulation,
    pair: (TestQp, TestQp),
    other: (TestQp, TestQp),
    pages: ProgramMemory,
    foreign: SharedRegion,
    /// Ordinary memory of the other host.
    own: SharedRegion,
}

impl Rig {
    /// `host` has the memory of the program.
    fn new(host: usize, how: TakeAway) -> Self {
        let mut sim = simulation();
        let options = ConnectionOptions {
            ird: 4,
            ord: 4,
            ..ConnectionOptions::default()
        };
        let pair = sim.connect(&options).unwrap();
        let other = sim.connect(&options).unwrap();
        let pages = ProgramMemory::map(LEN, how == TakeAway::Truncate);
        let region = Arc::new(pages.region(0, LEN, true).unwrap());
        let stag = sim.hosts[host].register(&region, 0..LEN, all_rights(), PD);
        let own = sim.hosts[1 - host].share(&pattern(LEN), all_rights());
        Self {
            sim,
            pair,
            other,
            pages,
            foreign: SharedRegion { region, stag },
            own,
        }
    }

    fn post(&mut self, wr: SendWr) {
        self.sim.hosts[0].post_send(&mut self.pair.0, wr);
        self.sim.run_for(SECOND);
    }

    /// Checks that the pair has ended with a Terminate of this side, and that the other one goes
    /// on.
    fn assert_ended(&mut self, by: usize, numbers: (u8, u8, u8)) {
        let ends = [&self.pair.0, &self.pair.1];
        match self.sim.hosts[by].end_of(ends[by].number) {
            Some(EndReason::TerminateSent { control, .. }) => {
                assert_eq!((control.layer, control.error_type, control.code), numbers)
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(
            self.sim.hosts[1 - by].end_of(ends[1 - by].number),
            Some(EndReason::TerminateReceived { .. })
        ));
        self.sim.hosts[1].post_recv(&mut self.other.1, empty_recv(1));
        self.sim.hosts[0].post_send(&mut self.other.0, inline_send(9, b""));
        self.sim.run_for(SECOND);
        let success = (9, WcOpcode::Send, WcStatus::Success);
        assert_eq!(outcomes(&mut self.other.0), [success]);
    }

    fn status(&mut self) -> Vec<WcStatus> {
        let done = outcomes(&mut self.pair.0);
        done.into_iter().map(|(_, _, status)| status).collect()
    }
}

fn at(region: &SharedRegion, offset: usize, len: usize) -> Sge {
    Sge {
        offset: offset as u64,
        length: len as u32,
        lkey: region.stag.0,
    }
}

/// A Write of any length, which takes another path each time.
#[test]
fn a_write_to_memory_that_is_gone_is_an_access_violation() {
    for how in WAYS.into_iter().chain([TakeAway::MakeReadOnly]) {
        for len in [1, 8, 60, 1000, 60_000] {
            let mut rig = Rig::new(1, how);
            let before = HALF - len / 2;
            let wr = |offset: usize| {
                SendWr::new(1, WrOpcode::Write)
                    .with_remote(rig.foreign.stag, TaggedOffset(offset as u64))
                    .with_sges(&[at(&rig.own, 0, len)])
                    .unwrap()
            };
            let (first, second) = (wr(before - len), wr(before));
            rig.post(first);
            rig.pages.take_away(HALF, how);
            rig.post(second);
            rig.assert_ended(1, (1, 1, 0));
            let mut placed = vec![0; len];
            rig.foreign.region.read(before - len, &mut placed).unwrap();
            assert!(placed == pattern(LEN)[..len]);
        }
    }
}

#[test]
fn a_receive_whose_memory_is_gone_is_a_local_protection_error() {
    for len in [60, 1000, 10_000] {
        let mut rig = Rig::new(1, TakeAway::Protect);
        let buffer = RecvWr::new(5, &[at(&rig.foreign, HALF, len)]).unwrap();
        rig.sim.hosts[1].post_recv(&mut rig.pair.1, buffer);
        rig.pages.take_away(HALF, TakeAway::Protect);
        let wr = send(1, &rig.own, len);
        rig.post(wr);
        rig.assert_ended(1, (1, 0, 0));
        let failed = (5, WcOpcode::Recv, WcStatus::LocalProtectionError);
        assert_eq!(outcomes(&mut rig.pair.1), [failed]);
    }
}

#[test]
fn a_read_into_memory_that_is_gone_is_a_local_protection_error() {
    for how in WAYS {
        let mut rig = Rig::new(0, how);
        let wr = SendWr::new(1, WrOpcode::Read)
            .with_remote(rig.own.stag, TaggedOffset(0))
            .with_sges(&[at(&rig.foreign, HALF - 10, 5000)])
            .unwrap();
        rig.pages.take_away(HALF, how);
        rig.post(wr);
        rig.assert_ended(0, (1, 1, 0));
        assert_eq!(rig.status(), [WcStatus::LocalProtectionError]);
    }
}

#[test]
fn what_is_sent_from_memory_that_is_gone_is_a_local_protection_error() {
    // A kernel takes a long message at once, with what is in front of it.
    let most = if cfg!(carrier_sockets) { 1000 } else { 100_000 };
    for len in [100, 1000, most] {
        for opcode in [WrOpcode::Write, WrOpcode::Send] {
            let mut rig = Rig::new(0, TakeAway::Unmap);
            rig.sim.hosts[1].post_recv(&mut rig.pair.1, recv(1, &rig.own, LEN));
            let wr = SendWr::new(1, opcode)
                .with_remote(rig.own.stag, TaggedOffset(0))
                .with_sges(&[at(&rig.foreign, HALF - len / 2, len)])
                .unwrap();
            rig.pages.take_away(HALF, TakeAway::Unmap);
            // What is in front of it the peer carries out.
            rig.sim.hosts[1].post_recv(&mut rig.pair.1, recv(2, &rig.own, LEN));
            let before = inline_send(0, b"before");
            rig.sim.hosts[0].post_send(&mut rig.pair.0, before);
            rig.post(wr);
            rig.assert_ended(0, (0, 0, 0));
            let statuses = [WcStatus::Success, WcStatus::LocalProtectionError];
            assert_eq!(rig.status(), statuses);
        }
    }
}

#[test]
fn a_read_of_memory_that_is_gone_is_an_access_violation() {
    for how in WAYS {
        for len in [100, 100_000] {
            let mut rig = Rig::new(1, how);
            let wr = SendWr::new(1, WrOpcode::Read)
                .with_remote(rig.foreign.stag, TaggedOffset((HALF - len / 2) as u64))
                .with_sges(&[at(&rig.own, 0, len)])
                .unwrap();
            rig.pages.take_away(HALF, how);
            rig.post(wr);
            rig.assert_ended(1, (0, 1, 2));
            assert_eq!(rig.status(), [WcStatus::RemoteAccessError]);
        }
    }
}

#[test]
fn an_atomic_on_memory_that_is_gone_is_an_access_violation() {
    for how in WAYS.into_iter().chain([TakeAway::MakeReadOnly]) {
        let mut rig = Rig::new(1, how);
        let add = AtomicOperation::FetchAdd { add: 3, mask: 0 };
        let wr = |offset: usize| {
            SendWr::atomic(1, add, at(&rig.own, 0, 8))
                .with_remote(rig.foreign.stag, TaggedOffset(offset as u64))
        };
        let (first, second) = (wr(HALF - 8), wr(HALF));
        rig.post(first);
        rig.pages.take_away(HALF, how);
        rig.post(second);
        rig.assert_ended(1, (0, 1, 2));
        let mut sum = [0; 8];
        rig.foreign.region.read(HALF - 8, &mut sum).unwrap();
        assert_eq!(u64::from_ne_bytes(sum), 3);
    }
}

/// One work request has as many Read Requests as its sink has pieces, of which the peer takes four
/// at once.
#[test]
fn a_read_into_many_pieces_makes_one_completion() {
    let mut rig = Rig::new(0, TakeAway::Unmap);
    let pieces: Vec<_> = (0..MAX_SGE)
        .map(|n| {
            at(
                &rig.foreign,
                9000 * n + 3,
                if n == 5 { 0 } else { 100 + 500 * n },
            )
        })
        .collect();
    let wr = SendWr::new(1, WrOpcode::Read)
        .with_remote(rig.own.stag, TaggedOffset(7))
        .with_sges(&pieces)
        .unwrap();
    rig.sim.hosts[0].post_send(&mut rig.pair.0, wr);
    // Behind it, what goes another way.
    rig.sim.hosts[1].post_recv(&mut rig.pair.1, empty_recv(1));
    rig.sim.hosts[0].post_send(&mut rig.pair.0, inline_send(2, b""));
    let last = read_behind(&rig);
    rig.post(last);
    let done = outcomes(&mut rig.pair.0);
    let success = WcStatus::Success;
    assert_eq!(
        done,
        [
            (1, WcOpcode::Read, success),
            (2, WcOpcode::Send, success),
            (3, WcOpcode::Read, success)
        ]
    );
    let data = pattern(LEN);
    let mut from = 7;
    for piece in &pieces {
        let mut read = vec![0; piece.length as usize];
        rig.foreign
            .region
            .read(piece.offset as usize, &mut read)
            .unwrap();
        assert!(read == data[from..from + read.len()]);
        from += read.len();
    }
}

/// A Read of one piece.
fn read_behind(rig: &Rig) -> SendWr {
    SendWr::new(3, WrOpcode::Read)
        .with_remote(rig.own.stag, TaggedOffset(0))
        .with_sges(&[at(&rig.foreign, LEN - 10, 10)])
        .unwrap()
}

#[test]
fn a_read_into_many_pieces_fails_once() {
    for gone in [0, 7, 15] {
        let mut rig = Rig::new(0, TakeAway::Unmap);
        let pieces: Vec<_> = (0..MAX_SGE)
            .map(|n| {
                at(
                    &rig.foreign,
                    if n == gone { HALF } else { 9000 * (n % 8) },
                    3000,
                )
            })
            .collect();
        let wr = SendWr::new(1, WrOpcode::Read)
            .with_remote(rig.own.stag, TaggedOffset(0))
            .with_sges(&pieces)
            .unwrap();
        rig.pages.take_away(HALF, TakeAway::Unmap);
        rig.post(wr);
        rig.assert_ended(0, (1, 1, 0));
        assert_eq!(rig.status(), [WcStatus::LocalProtectionError]);
    }
    // The peer refuses a later piece: its memory ends there.
    let mut rig = Rig::new(0, TakeAway::Unmap);
    let pieces = [0, 1, 2, 3, 4, 5].map(|n| at(&rig.foreign, 9000 * n, 3000));
    let wr = SendWr::new(1, WrOpcode::Read)
        .with_remote(rig.own.stag, TaggedOffset((LEN - 10_000) as u64))
        .with_sges(&pieces)
        .unwrap();
    rig.post(wr);
    rig.assert_ended(1, (0, 1, 1));
    assert_eq!(rig.status(), [WcStatus::RemoteAccessError]);
}

#[test]
fn long_lists_and_much_inline_data_arrive_whole() {
    let mut rig = Rig::new(0, TakeAway::Unmap);
    let data = pattern(LEN);
    rig.foreign.region.write(0, &data).unwrap();
    for (id, count) in (1..).zip(1..=MAX_SGE) {
        let pieces: Vec<_> = (0..count)
            .map(|n| at(&rig.foreign, 9000 * n, 1000 + 77 * n))
            .collect();
        let sent: Vec<_> = (0..count)
            .flat_map(|n| data[9000 * n..][..1000 + 77 * n].iter().copied())
            .collect();
        let wr = SendWr::new(id, WrOpcode::Send).with_sges(&pieces).unwrap();
        let buffers: Vec<_> = (0..MAX_SGE).map(|n| at(&rig.own, 2048 * n, 2048)).collect();
        let receive = RecvWr::new(id, &buffers).unwrap();
        rig.sim.hosts[1].post_recv(&mut rig.pair.1, receive);
        rig.post(wr);
        assert!(rig.own.content()[..sent.len()] == sent, "{count} pieces");
    }
    for len in [63, 64, 65, 100, 200, MAX_INLINE] {
        for count in [1, 9] {
            for n in 0..count {
                let wr = SendWr::new(n, WrOpcode::Write)
                    .with_remote(rig.own.stag, TaggedOffset(1000 * n))
                    .with_inline(&data[len..2 * len])
                    .unwrap();
                rig.sim.hosts[0].post_send(&mut rig.pair.0, wr);
            }
            rig.sim.run_for(SECOND);
            for n in 0..count as usize {
                assert!(rig.own.content()[1000 * n..][..len] == data[len..2 * len]);
            }
            rig.own.region.fill(0, 10_000, 0).unwrap();
        }
    }
    assert!(
        rig.status()
            .iter()
            .all(|status| *status == WcStatus::Success)
    );
}
