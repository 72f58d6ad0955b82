//! One end of a connection: an engine with a queue pair, and a raw peer.

use std::collections::VecDeque;
use std::fmt::Display;
use std::sync::Arc;

use rnic_core::connection::{ConnectionOptions, EndReason};
use rnic_core::engine::Command;
use rnic_core::ids::{PdId, StreamId};
use rnic_core::memory::{
    region::{HugePages, Region},
    table::{Access, Scope, StagTable},
};
use rnic_core::mpa::startup::Rtr;
use rnic_core::testing::raw_peer::{RawPeer, enhanced_startup, fpdu};
use rnic_core::testing::simulation::{self, Host, QpSettings, Simulation, TestQp};
use rnic_core::verbs::{Completion, RecvWr, SendWr, Sge, WcOpcode, WcStatus};
use rnic_core::wire::ddp::{Stag, TaggedOffset};
use rnic_core::wire::mpa::{Enhanced, StartupKind};
use rnic_core::wire::rdmap::{Opcode, Terminate, TerminateControl};

use crate::common;

pub(crate) use crate::common::all_rights;
pub(crate) use crate::segments::{
    Ulpdu, header, pattern, payload, segment, send, tagged, ulp, untagged,
};

pub(crate) const PD: PdId = simulation::PD;
pub(crate) const OTHER_PD: PdId = PdId(8);
/// The stream of each end's connection.
pub(crate) const STREAM: StreamId = StreamId(0);
/// Octets of memory of each end.
pub(crate) const MEMORY: usize = 1 << 20;
/// The tagged offset of the first octet of memory.
pub(crate) const BASE: u64 = 0x1000;
/// The smallest MSS that an engine uses, and the MULPDU with it.
pub(crate) const SMALL_MSS: u16 = 160;
pub(crate) const SMALL_MULPDU: usize = SMALL_MSS as usize - 6;
/// Octets of payload of a full tagged segment with that MSS.
pub(crate) const SMALL_TAGGED: usize = SMALL_MULPDU - 14;
/// The distance of markers in a stream.
pub(crate) const MARKERS: u32 = 512;

/// A stream that this side has ended with a Terminate: its numbers, and what the application was
/// told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// Layer, error type and error code.
    pub(crate) numbers: (u8, u8, u8),
    pub(crate) why: String,
}

impl Refused {
    /// Checks that the application was told of this error.
    #[track_caller]
    pub(crate) fn assert_is(&self, error: impl Display) {
        assert_eq!(self.why, error.to_string());
    }
}

/// How an end is connected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Its IRD and ORD.
    pub(crate) depths: (u16, u16),
    pub(crate) qp: QpSettings,
    /// The MSS of its peer.
    pub(crate) mss: u16,
    /// Whether it requires markers of its peer: then FPDUs ahead of order are placed.
    pub(crate) markers: bool,
    /// The ready-to-receive message of a peer-to-peer connection.
    pub(crate) rtr: Rtr,
}

impl Settings {
    pub(crate) fn new(ird: u16, ord: u16) -> Self {
        Self {
            depths: (ird, ord),
            qp: QpSettings {
                ring: 64,
                cq: 512,
                signal_all: false,
                ..QpSettings::default()
            },
            mss: 1460,
            markers: false,
            rtr: Rtr::NONE,
        }
    }

    /// Sets the sizes of the queues.
    pub(crate) fn with_rings(mut self, ring: u32, cq: u32) -> Self {
        (self.qp.ring, self.qp.cq) = (ring, cq);
        self
    }

    /// Sets the smallest MSS.
    pub(crate) fn small(mut self) -> Self {
        self.mss = SMALL_MSS;
        self
    }

    pub(crate) fn with_markers(mut self) -> Self {
        self.markers = true;
        self
    }

    pub(crate) fn with_rtr(mut self, rtr: Rtr) -> Self {
        self.rtr = rtr;
        self
    }

    pub(crate) fn connect(self) -> End {
        End::connect(self)
    }
}

/// An end that has initiated the connection. Its peer acknowledges only what a test says.
pub(crate) struct End {
    pub(crate) sim: Simulation,
    pub(crate) qp: TestQp,
    pub(crate) region: Arc<Region>,
    /// The STag of all of the memory, with every right.
    pub(crate) stag: Stag,
    /// With markers: an STag for Writes that fill up the peer's stream.
    pub(crate) scratch: Option<Stag>,
    /// Segments that it has sent and the test has not taken, with where each ends in the stream.
    outbox: VecDeque<(Ulpdu, u64)>,
    /// The Terminate that it has sent.
    terminate: Option<TerminateControl>,
    /// Where the last segment ends that was sent.
    drained: u64,
    /// Where the last segment ends that the test has taken.
    pub(crate) stream: u64,
    /// Octets of FPDUs that the peer has sent.
    pub(crate) written: u32,
    sent: Vec<Completion>,
    received: Vec<Completion>,
}

impl End {
    /// Makes an end with IRD `ird` and ORD `ord`.
    pub(crate) fn new(ird: u16, ord: u16) -> Self {
        Settings::new(ird, ord).connect()
    }

    /// Makes an end that places FPDUs ahead of order.
    pub(crate) fn with_markers(ird: u16, ord: u16) -> Self {
        Settings::new(ird, ord).with_markers().connect()
    }

    fn connect(settings: Settings) -> Self {
        let mut sim = common::simulation();
        let region = Arc::new(Region::allocate_unlocked(MEMORY, HugePages::None).unwrap());
        let base = TaggedOffset(BASE);
        let table = sim.hosts[0].table();
        let stag = table
            .register(region.clone(), 0..MEMORY, base, all_rights(), PD)
            .unwrap();
        let scratch = settings.markers.then(|| {
            let right = Access::REMOTE_WRITE;
            sim.hosts[0].share(&[0; 2 * MARKERS as usize], right).stag
        });
        let qp = sim.hosts[0].create_qp_with(settings.qp);
        assert_eq!(qp.stream, STREAM);
        let (ird, ord) = settings.depths;
        let options = ConnectionOptions {
            ird,
            ord,
            markers: settings.markers,
            peer_to_peer: !settings.rtr.is_none(),
            ..ConnectionOptions::default()
        };
        sim.add_raw_peer(0, 0);
        sim.raw[0].mss = settings.mss;
        let address = sim.raw[0].address();
        sim.hosts[0].connect(&qp, 41_000, address, &options);
        sim.run_now();
        let (kind, _) = sim.raw[0].take_startup().expect("the host asks");
        assert_eq!(kind, StartupKind::Request);
        let reply = reply((ord, ird), settings.rtr);
        sim.raw[0].send(&reply);
        sim.raw[0].markers_from = settings.markers.then_some(reply.len() as u32);
        sim.run_now();
        assert!(sim.hosts[0].is_established(qp.number));
        let begun = sim.raw[0].received.len();
        sim.raw[0].acknowledges = false;
        sim.raw[0].ack_limit = Some(begun);
        Self {
            sim,
            qp,
            region,
            stag,
            scratch,
            outbox: VecDeque::new(),
            terminate: None,
            drained: begun as u64,
            stream: begun as u64,
            written: 0,
            sent: Vec::new(),
            received: Vec::new(),
        }
    }

    pub(crate) fn raw(&mut self) -> &mut RawPeer {
        &mut self.sim.raw[0]
    }

    pub(crate) fn host(&mut self) -> &mut Host {
        &mut self.sim.hosts[0]
    }

    pub(crate) fn table(&self) -> &StagTable {
        self.sim.hosts[0].table()
    }

    /// Registers part of the memory again.
    pub(crate) fn register(
        &self,
        start: usize,
        len: usize,
        access: Access,
        scope: impl Into<Scope>,
    ) -> Stag {
        let base = TaggedOffset(BASE + start as u64);
        self.table()
            .register(self.region.clone(), start..start + len, base, access, scope)
            .unwrap()
    }

    pub(crate) fn sge(&self, start: usize, len: usize) -> Sge {
        Sge {
            offset: BASE + start as u64,
            length: len as u32,
            lkey: self.stag.0,
        }
    }

    pub(crate) fn fill(&self, start: usize, octets: &[u8]) {
        self.region.write(start, octets).unwrap();
    }

    pub(crate) fn memory(&self, start: usize, len: usize) -> Vec<u8> {
        let mut octets = vec![0; len];
        self.region.read(start, &mut octets).unwrap();
        octets
    }

    pub(crate) fn post(&mut self, wr: SendWr) {
        self.sim.hosts[0].post_send(&mut self.qp, wr);
    }

    /// Posts a receive of `len` octets at `start`.
    pub(crate) fn post_receive(&mut self, wr_id: u64, start: usize, len: usize) {
        let sge = self.sge(start, len);
        self.post_receive_wr(RecvWr::new(wr_id, &[sge]).unwrap());
    }

    pub(crate) fn post_receive_wr(&mut self, wr: RecvWr) {
        self.sim.hosts[0].post_recv(&mut self.qp, wr);
    }

    /// Ends the connection in order. Returns whether this side closes, which it does when no
    /// request is left.
    pub(crate) fn closes(&mut self) -> bool {
        let number = self.qp.number;
        self.host().command(Command::Disconnect(number));
        self.work();
        self.raw().finished
    }

    /// Runs the engine, and takes what it has sent.
    pub(crate) fn work(&mut self) {
        self.sim.run_now();
        while let Some(ulpdu) = self.sim.raw[0].take_ulpdu() {
            assert_eq!(self.terminate, None, "more behind a Terminate");
            if header(&ulpdu).ulp() == ulp(Opcode::Terminate) {
                let told = Terminate::parse(payload(&ulpdu)).unwrap();
                self.terminate = Some(told.control);
            }
            self.drained += fpdu(&ulpdu, true).len() as u64;
            self.outbox.push_back((ulpdu, self.drained));
        }
        for done in self.qp.poll() {
            match done.opcode() {
                Ok(WcOpcode::Recv | WcOpcode::RecvImmediate) => self.received.push(done),
                _ => self.sent.push(done),
            }
        }
    }

    /// Removes and returns the completions of the send queue.
    pub(crate) fn sent(&mut self) -> Vec<Completion> {
        self.work();
        std::mem::take(&mut self.sent)
    }

    /// Removes the completions of the send queue, and returns their ids and statuses.
    pub(crate) fn sent_ids(&mut self) -> Vec<(u64, WcStatus)> {
        self.sent().iter().map(|c| (c.wr_id, c.status())).collect()
    }

    /// Removes and returns the completions of the receive queue.
    pub(crate) fn received(&mut self) -> Vec<Completion> {
        self.work();
        std::mem::take(&mut self.received)
    }

    pub(crate) fn received_ids(&mut self) -> Vec<(u64, WcStatus)> {
        self.received()
            .iter()
            .map(|c| (c.wr_id, c.status()))
            .collect()
    }

    /// Removes and returns the next segment that it has sent.
    pub(crate) fn next_segment(&mut self) -> Option<Ulpdu> {
        self.work();
        let (ulpdu, end) = self.outbox.pop_front()?;
        self.stream = end;
        Some(ulpdu)
    }

    /// Returns whether it has sent something that the test has not taken.
    pub(crate) fn has_sent(&mut self) -> bool {
        self.work();
        !self.outbox.is_empty()
    }

    /// Removes and returns all segments that it has sent, without further acknowledgments from the
    /// peer.
    pub(crate) fn segments(&mut self) -> Vec<Ulpdu> {
        std::iter::from_fn(|| self.next_segment()).collect()
    }

    /// Removes and returns all segments that it sends while the peer acknowledges them.
    pub(crate) fn all_segments(&mut self) -> Vec<Ulpdu> {
        let mut all = self.segments();
        loop {
            self.acked_all();
            let more = self.segments();
            if more.is_empty() {
                return all;
            }
            all.extend(more);
        }
    }

    /// Receives a segment in order from the peer.
    pub(crate) fn receive(&mut self, ulpdu: &[u8]) -> Result<(), Refused> {
        let fpdu = self.raw().fpdu(ulpdu);
        self.receive_octets(&fpdu)
    }

    /// Receives octets from the peer, which need not be one FPDU.
    pub(crate) fn receive_octets(&mut self, octets: &[u8]) -> Result<(), Refused> {
        let was_over = self.end_reason().is_some();
        self.written += octets.len() as u32;
        self.raw().send(octets);
        match self.refused() {
            Some(refused) if !was_over => Err(refused),
            _ => Ok(()),
        }
    }

    /// Returns the error that has ended the stream. Checks that a Terminate with its numbers was
    /// sent, and nothing behind it.
    pub(crate) fn refused(&mut self) -> Option<Refused> {
        self.work();
        let Some(EndReason::TerminateSent { control, error }) = self.end_reason() else {
            return None;
        };
        if self.terminate.is_none() {
            // What it has sent may fill the peer's window.
            self.acked(self.drained);
        }
        assert_eq!(self.terminate, Some(control));
        Some(Refused {
            numbers: (control.layer, control.error_type, control.code),
            why: error,
        })
    }

    /// Returns the peer's Terminate, if one has ended the stream.
    pub(crate) fn told(&mut self) -> Option<TerminateControl> {
        self.work();
        match self.end_reason()? {
            EndReason::TerminateReceived { control, .. } => Some(control),
            other => panic!("{other}"),
        }
    }

    fn end_reason(&self) -> Option<EndReason> {
        self.sim.hosts[0].end_of(self.qp.number)
    }

    /// Returns how many octets were placed ahead of order.
    pub(crate) fn placed_early(&mut self) -> u64 {
        let now = self.sim.now;
        self.host().snapshot(now).rdma.octets_placed_early
    }

    /// Acknowledges the stream up to `offset`.
    pub(crate) fn acked(&mut self, offset: u64) {
        self.work();
        self.raw().ack_limit = Some(offset as usize);
        self.raw().acknowledge();
        self.work();
    }

    /// Acknowledges all segments that the test has taken.
    pub(crate) fn acked_all(&mut self) {
        self.acked(self.stream);
    }
}

/// Makes the Reply of a peer with these depths, which accepts this ready-to-receive message.
fn reply((ird, ord): (u16, u16), rtr: Rtr) -> Vec<u8> {
    enhanced_startup(
        StartupKind::Reply,
        Enhanced {
            ird,
            ord,
            peer_to_peer: !rtr.is_none(),
            rtr_send: rtr.send,
            rtr_write: rtr.write,
            rtr_read: rtr.read,
        },
    )
}

/// Exchanges segments until neither end has any, and acknowledges them.
pub(crate) fn pump(a: &mut End, b: &mut End) {
    loop {
        let (to_b, to_a) = (a.segments(), b.segments());
        if to_b.is_empty() && to_a.is_empty() {
            return;
        }
        for ulpdu in &to_b {
            let _ = b.receive(ulpdu);
        }
        for ulpdu in &to_a {
            let _ = a.receive(ulpdu);
        }
        a.acked_all();
        b.acked_all();
    }
}
