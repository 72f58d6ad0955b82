//! A host on virtual time: an engine, its device, and the application's ends of its queues.
//!
//! Its connections run in frames, or over the sockets of a [virtual kernel](super::kernel): the cfg
//! `carrier_sockets` chooses.

pub mod associated;
mod chosen;
pub mod framed;
mod machine;
pub mod protected;
mod queues;
pub mod socketed;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;

use crossbeam_channel::bounded;

use crate::connection::{
    AddressPair, ConnectionOptions, EndReason, Event, PortReservation, Refusals,
};
use crate::ddp::{Endpoint, EndpointUlp};
use crate::engine::{Command, Driver, EngineConfig, HostEnd, Peers, Snapshot, mailbox};
use crate::ids::{CqId, ListenerId, QpNumber, RequestId, SrqId, StreamId};
use crate::memory::{
    frames::TxFrames,
    region::{HugePages, Region},
    ring::ring,
    table::{Access, Scope, StagTable},
};
use crate::time::Instant;
use crate::verbs::{
    cq::Arming,
    qp::{QpState, QueuePair, RNR_RETRY_FOR_EVER},
    srq::{ReceiveQueue, SharedReceives, SrqBell, SrqLimit},
    wr::{RecvWr, SendWr},
};
use crate::wire::ddp::{Stag, TaggedOffset};
use crate::wire::icmp::TooBig;
use crate::wire::packet::Checksums;

pub use self::chosen::Chosen;
pub use self::machine::Machine;
use self::queues::WakeCounter;
use super::VecFrames;

pub use self::chosen::ChosenCarrier;
pub use self::machine::Neighbours;
pub use self::queues::{PD, QpSettings, SharedRegion, TestEndpoint, TestQp, TestSrq};

/// Transmit frames of a host, unless a test asks for another number.
const FRAMES: usize = 2048;

/// Queue pairs and STags of a host.
const OBJECTS: usize = 256;

/// Turns after which hosts that are busy at one time are taken to be in an endless loop.
pub(super) const MAX_TURNS: usize = 10_000;

/// One host, with what drives its engine.
pub struct Host<M = Chosen> {
    /// Its address.
    pub address: Ipv4Addr,
    /// Events that the test has not taken.
    pub events: Vec<Event>,
    /// What its listeners report of peers that failed before their Request.
    pub refusals: Arc<Refusals>,
    /// How the engine's requests for next hops are resolved.
    pub neighbours: Neighbours,
    /// How often the engine asked for a next hop.
    pub next_hop_requests: usize,
    end: HostEnd,
    machine: M,
    tx: VecFrames,
    frames: usize,
    qps: u32,
    srqs: u32,
    streams: u64,
    reservation: PortReservation,
}

impl Host {
    /// Makes a host with an address and secrets that follow from `index` and `seed`.
    pub fn new(index: u8, config: EngineConfig, seed: u64) -> Self {
        Self::over(index, config, seed)
    }
}

impl<M: Machine> Host<M> {
    /// Makes a host as [`new`](Host::new) does, over something else.
    pub fn over(index: u8, config: EngineConfig, seed: u64) -> Self {
        let mut secret = [index; 32];
        secret[..8].copy_from_slice(&seed.to_le_bytes());
        let table = Arc::new(StagTable::new(OBJECTS, secret));
        let (end, engine_end) = mailbox(table, OBJECTS as u32, Waker::noop().clone());
        let address = Ipv4Addr::new(192, 0, 2, index + 1);
        Self {
            address,
            events: Vec::new(),
            refusals: Arc::default(),
            neighbours: Neighbours::Known(9000),
            next_hop_requests: 0,
            end,
            machine: M::new(address, config, secret, engine_end),
            tx: VecFrames::new(FRAMES),
            frames: FRAMES,
            qps: 0,
            srqs: 0,
            streams: 0,
            reservation: Arc::new(()),
        }
    }

    /// Replaces the transmit frames, before anything was sent.
    pub fn set_frames(&mut self, count: usize) {
        self.tx = VecFrames::new(count);
        self.frames = count;
    }

    /// Returns its device.
    pub fn device(&mut self) -> &mut VecFrames {
        &mut self.tx
    }

    /// Handles an ICMP message that a packet of this host was too big.
    pub fn handle_too_big(&mut self, now: Instant, too_big: &TooBig) {
        self.machine.handle_too_big(now, too_big, &mut self.tx);
    }

    /// Revokes the lease of a local port.
    pub fn revoke_lease(&mut self, now: Instant, lease: SocketAddr) {
        self.machine.revoke(now, lease, &mut self.tx);
        self.take_events();
    }

    /// Makes its device complete checksums from now on.
    pub fn complete_checksums(&mut self) {
        self.tx.complete_checksums();
    }

    /// Returns how many checksums its device has completed.
    pub fn checksums_completed(&self) -> u64 {
        self.tx.completed
    }

    /// Returns how many transmit frames are in use.
    pub fn frames_in_use(&self) -> usize {
        self.frames - self.tx.available()
    }

    /// Returns how many listeners and connections hold a port.
    pub fn reservations(&self) -> usize {
        Arc::strong_count(&self.reservation) - 1
    }

    /// Returns a reservation of a port, which is counted.
    pub fn reservation(&self) -> PortReservation {
        self.reservation.clone()
    }

    /// Returns a snapshot of the engine.
    pub fn snapshot(&mut self, now: Instant) -> Snapshot {
        let (answer, answers) = bounded(1);
        self.command(Command::Snapshot(answer));
        // Commands sent before are carried out first, several in each turn.
        for _ in 0..MAX_TURNS {
            self.machine.carry_out_commands(now);
            if let Ok(snapshot) = answers.try_recv() {
                return snapshot;
            }
        }
        panic!("the engine does not answer");
    }

    /// Sends a command to the engine.
    pub fn command(&self, command: Command) {
        let command = self.machine.prepare(command);
        self.end.send(command).expect("the engine is there");
    }

    /// Returns the driver of the engine.
    pub fn driver(&self) -> &Driver<M::Carrier> {
        self.machine.driver()
    }

    /// Returns what drives the engine.
    pub fn machine(&self) -> &M {
        &self.machine
    }

    /// Returns what drives the engine, to change it.
    pub fn machine_mut(&mut self) -> &mut M {
        &mut self.machine
    }

    /// Registers new memory with content, for all of [`PD`].
    pub fn share(&self, content: &[u8], access: Access) -> SharedRegion {
        self.share_with(content, access, PD)
    }

    /// Registers new memory with content.
    pub fn share_with(
        &self,
        content: &[u8],
        access: Access,
        scope: impl Into<Scope>,
    ) -> SharedRegion {
        let region = Region::allocate_unlocked(content.len().max(1), HugePages::None)
            .expect("ordinary memory is there");
        region.write(0, content).expect("the content fits");
        let region = Arc::new(region);
        let stag = self.register(&region, 0..region.len(), access, scope);
        SharedRegion { region, stag }
    }

    /// Registers a part of a region. Its offsets begin at zero.
    pub fn register(
        &self,
        region: &Arc<Region>,
        range: Range<usize>,
        access: Access,
        scope: impl Into<Scope>,
    ) -> Stag {
        self.end
            .table
            .register(region.clone(), range, TaggedOffset(0), access, scope)
            .expect("the table has room")
    }

    /// Returns its STag table.
    pub fn table(&self) -> &StagTable {
        &self.end.table
    }

    /// Revokes a region.
    pub fn revoke(&self, stag: Stag) {
        self.end.table.revoke(stag).expect("it was registered");
    }

    /// Returns whether an STag is valid.
    pub fn is_valid(&self, stag: Stag) -> bool {
        self.end.table.is_valid(stag)
    }

    /// Creates a queue pair in state Idle.
    pub fn create_qp(&mut self) -> TestQp {
        self.create_qp_with(QpSettings::default())
    }

    /// Creates a queue pair with other settings.
    pub fn create_qp_with(&mut self, settings: QpSettings) -> TestQp {
        self.qps += 1;
        self.create_numbered_qp(QpNumber(self.qps), settings)
    }

    /// Creates a queue pair with a number that the test chooses.
    pub fn create_numbered_qp(&mut self, number: QpNumber, settings: QpSettings) -> TestQp {
        self.add_qp(number, settings, None)
    }

    /// Creates a queue pair that takes its receives from a shared queue.
    pub fn create_qp_on(&mut self, srq: &TestSrq, settings: QpSettings) -> TestQp {
        self.qps += 1;
        self.add_qp(QpNumber(self.qps), settings, Some(srq))
    }

    /// Creates a shared receive queue. Each queue pair may have `max_in_process` of its entries in
    /// process.
    pub fn create_srq(&mut self, capacity: u32, max_in_process: u32) -> TestSrq {
        let id = SrqId(self.srqs);
        self.srqs += 1;
        let (ring, consumer) = ring(capacity).expect("memory for a ring");
        let bell = Arc::<SrqBell>::default();
        self.command(Command::CreateSrq {
            srq: id,
            ring: consumer,
            bell: bell.clone(),
        });
        TestSrq {
            id,
            max_in_process,
            ring,
            bell,
        }
    }

    /// Posts a receive to a shared receive queue.
    pub fn post_shared(&self, srq: &mut TestSrq, wr: RecvWr) {
        srq.ring
            .push(wr)
            .expect("the test leaves room in the shared receive queue");
        if srq.bell.is_waited_for() {
            self.command(Command::ReceivesPosted(srq.id));
        }
    }

    /// Arms the limit of a shared receive queue.
    pub fn arm_srq(&self, srq: &TestSrq, limit: SrqLimit) {
        self.command(Command::ArmSrq { srq: srq.id, limit });
    }

    /// Creates a queue pair with a number that the test chooses, on a shared receive queue or not.
    pub fn add_qp(
        &mut self,
        number: QpNumber,
        settings: QpSettings,
        srq: Option<&TestSrq>,
    ) -> TestQp {
        let id = CqId(number.0);
        let stream = StreamId(self.streams);
        self.streams += 1;
        let (sq, sq_end) = ring(settings.ring).expect("memory for a ring");
        let (rq, rq_end) = ring(settings.ring).expect("memory for a ring");
        let receives = match srq {
            None => rq_end.into(),
            Some(srq) => {
                let capacity = srq.ring.capacity();
                ReceiveQueue::Shared(SharedReceives::new(srq.id, capacity, srq.max_in_process))
            }
        };
        let (cq_end, cq) = ring(settings.cq).expect("memory for a ring");
        let (arming, wakes) = (Arc::new(Arming::new()), Arc::new(WakeCounter::default()));
        self.command(Command::CreateCq {
            cq: id,
            producer: cq_end,
            arming: arming.clone(),
            notify: Waker::from(wakes.clone()),
        });
        self.command(Command::CreateQp(Box::new(QueuePair {
            number,
            stream,
            pd: settings.pd,
            sq: sq_end,
            rq: receives,
            send_cq: id,
            recv_cq: id,
            state: QpState::Idle,
            signal_all: settings.signal_all,
            rnr_retry: RNR_RETRY_FOR_EVER,
            is_stopped: false,
            remote_access: Access::REMOTE,
        })));
        TestQp {
            number,
            stream,
            arming,
            wakes,
            sq,
            rq,
            cq,
        }
    }

    /// Creates an endpoint with a ULP other than RDMAP.
    pub fn create_endpoint(&mut self, ulp: impl EndpointUlp + 'static) -> TestEndpoint {
        self.qps += 1;
        let number = QpNumber(self.qps);
        let stream = StreamId(self.streams);
        self.streams += 1;
        self.command(Command::CreateEndpoint(Box::new(Endpoint {
            number,
            stream,
            pd: PD,
            state: QpState::Idle,
            ulp: Box::new(ulp),
        })));
        TestEndpoint { number, stream }
    }

    /// Rings the doorbell of an endpoint: its ULP has something to send.
    pub fn ring(&self, endpoint: TestEndpoint) {
        self.end.ring(endpoint.number);
    }

    /// Destroys a queue pair and its completion queue.
    pub fn destroy_qp(&self, qp: TestQp) {
        self.command(Command::DestroyQp(qp.number));
        self.command(Command::DestroyCq(CqId(qp.number.0)));
    }

    /// Posts a work request to the send queue.
    pub fn post_send(&self, qp: &mut TestQp, wr: SendWr) {
        qp.sq
            .push(wr)
            .expect("the test leaves room in the send queue");
        self.end.ring(qp.number);
    }

    /// Posts a receive.
    pub fn post_recv(&self, qp: &mut TestQp, wr: RecvWr) {
        qp.rq
            .push(wr)
            .expect("the test leaves room in the receive queue");
        self.end.ring(qp.number);
    }

    /// Returns an address of this host.
    pub fn socket(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.address.into(), port)
    }

    /// Listens on a port.
    pub fn listen(&self, port: u16) {
        self.command(Command::Listen {
            listener: ListenerId(u32::from(port)),
            local: self.socket(port),
            peers: Peers::all(),
            reservation: self.reservation(),
            refusals: self.refusals.clone(),
        });
    }

    /// Stops listening on a port.
    pub fn unlisten(&self, port: u16) {
        self.command(Command::Unlisten(ListenerId(u32::from(port))));
    }

    /// Begins to connect a queue pair from a local port to an address.
    pub fn connect(&self, qp: &TestQp, port: u16, remote: SocketAddr, options: &ConnectionOptions) {
        self.command(Command::Connect {
            qp: qp.number,
            local: self.socket(port),
            remote,
            options: options.clone(),
            reservation: self.reservation(),
        });
    }

    /// Accepts a connection request.
    pub fn accept(&self, request: RequestId, qp: &TestQp, options: &ConnectionOptions) {
        self.command(Command::Accept {
            request,
            qp: qp.number,
            options: options.clone(),
        });
    }

    /// Sets the VLANs of local addresses whose frames arrive without their tag.
    pub fn set_untagged(&mut self, vlans: impl IntoIterator<Item = (IpAddr, u16)>) {
        self.machine.set_untagged(vlans.into_iter().collect());
    }

    /// Sets the MTU of the route from this host's address to a destination.
    pub fn set_route(&mut self, destination: IpAddr, mtu: u16) {
        let path = AddressPair {
            local: self.address.into(),
            remote: destination,
        };
        self.machine.set_path(path, mtu);
    }

    /// Resolves the next hops that the engine asks for. Returns whether there were any.
    fn resolve_next_hops(&mut self) -> bool {
        let (asked, any) = self.machine.resolve(self.neighbours);
        self.next_hop_requests += asked;
        any
    }

    /// Takes what the engine tells.
    fn take_events(&mut self) {
        let notices = std::iter::from_fn(|| self.end.events.next());
        self.events.extend(notices.map(|notice| notice.event));
    }

    /// Returns when the engine's next timer expires.
    pub fn next_timeout(&mut self) -> Option<Instant> {
        self.machine.next_timeout()
    }

    /// Runs one turn of the worker. Returns whether there was anything to do, and the frames sent.
    pub(super) fn turn(&mut self, now: Instant, frames: &[Vec<u8>]) -> (bool, Vec<Vec<u8>>) {
        let frames = frames
            .iter()
            .map(|frame| (frame.as_slice(), Checksums::None));
        self.turn_with(now, frames)
    }

    /// Runs one turn of the worker with frames of whose checksums something is known.
    pub fn turn_with<'a>(
        &mut self,
        now: Instant,
        frames: impl Iterator<Item = (&'a [u8], Checksums)> + Clone,
    ) -> (bool, Vec<Vec<u8>>) {
        let busy = self.machine.turn(now, frames, &mut self.tx) | self.resolve_next_hops();
        self.take_events();
        (busy, self.tx.take_transmitted())
    }

    /// Returns the connection requests among the events.
    pub fn connect_requests(&self) -> impl Iterator<Item = RequestId> {
        self.events.iter().filter_map(|event| match event {
            Event::ConnectRequest { request, .. } => Some(*request),
            _ => None,
        })
    }

    /// Returns whether a queue pair is established.
    pub fn is_established(&self, number: QpNumber) -> bool {
        let established =
            |event: &&Event| matches!(event, Event::Established { qp, .. } if *qp == number);
        self.events.iter().any(|event| established(&event))
    }

    /// Returns why the connection of a queue pair ended, if it has.
    pub fn end_of(&self, number: QpNumber) -> Option<EndReason> {
        self.events.iter().find_map(|event| match event {
            Event::Disconnected { qp, reason } if *qp == number => Some(reason.clone()),
            _ => None,
        })
    }

    /// Returns why the connection of a queue pair failed, if it has.
    pub fn failure_of(&self, number: QpNumber) -> Option<EndReason> {
        self.events.iter().find_map(|event| match event {
            Event::Failed { qp, reason } if *qp == number => Some(reason.clone()),
            _ => None,
        })
    }
}
