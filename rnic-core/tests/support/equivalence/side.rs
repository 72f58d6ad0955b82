//! A host, and what its applications have.

use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;

use rnic_core::engine::EngineConfig;
use rnic_core::ids::PdId;
use rnic_core::memory::table::Access;
use rnic_core::testing::host::{Host, PD, QpSettings, TestQp, TestSrq};
use rnic_core::verbs::{sge::Sge, wr::RecvWr};
use rnic_core::wire::checksum::sum;
use rnic_core::wire::ddp::Stag;
use rnic_core::wire::packet::Checksums;

use super::case::{Terms, Told};
use super::memory::{Memory, PARTS};
use super::seen::Frame;
use super::twist::{Twist, begin_checksum};

/// Where receives are in the first region.
pub(super) const RECEIVES_AT: u64 = 48 << 10;

/// A host, and what its applications have.
pub(super) struct Side {
    pub(super) host: Host,
    pub(super) qps: Vec<TestQp>,
    /// How many requests of each were posted, and completed.
    pub(super) requests: Vec<(u64, u64)>,
    pub(super) shared: Option<TestSrq>,
    pub(super) memory: Memory,
    /// The regions that its parts are.
    pub(super) regions: [Stag; 3],
    pub(super) window: Stag,
    /// Frames on their way here.
    pub(super) coming: VecDeque<Frame>,
    /// Changes of those that will be sent here, and of the how many-th.
    pub(super) armed: Vec<(usize, Twist)>,
    told: Told,
    completes_checksums: bool,
    arrived: usize,
    /// The device keeps frames.
    holds: bool,
    /// The last frame with a payload that it sent.
    pub(super) latest: Option<Frame>,
}

impl Side {
    pub(super) fn new(index: usize, terms: &Terms, config: EngineConfig) -> Self {
        let mut host = Host::new(index as u8, config, 7);
        // Where frames are short, what a connection may hold depends on how many wait in the line.
        host.set_frames(if terms.connections > 1 {
            2048
        } else {
            terms.frames[index]
        });
        if terms.completes_checksums[index] {
            host.complete_checksums();
        }
        let settings = QpSettings {
            ring: 64,
            cq: terms.cq,
            signal_all: terms.signal_all,
            ..QpSettings::default()
        };
        let mut shared = terms.shared_receives[index].then(|| host.create_srq(64, 32));
        let mut qps: Vec<_> = (0..terms.connections)
            .map(|_| match &shared {
                Some(srq) => host.create_qp_on(srq, settings),
                None => host.create_qp_with(settings),
            })
            .collect();
        let all = Access::LOCAL_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_WRITE
            | Access::REMOTE_ATOMIC
            | Access::MW_BIND;
        let memory = Memory::new(index);
        let register =
            |part: usize, access, pd| host.register(&memory.0, PARTS[part].clone(), access, pd);
        let regions = [
            register(0, all, PD),
            register(1, Access::LOCAL_WRITE | Access::REMOTE_READ, PD),
            register(2, all, PdId(77)),
        ];
        let window = host
            .table()
            .allocate_window(PD)
            .expect("the table has room");
        for (number, qp) in qps.iter_mut().enumerate() {
            for at in 0..16 {
                let wr = receive(regions[0], 100 + at + 1000 * number as u64, 12_000);
                match &mut shared {
                    Some(srq) if number == 0 => host.post_shared(srq, wr),
                    Some(_) => {}
                    None => host.post_recv(qp, wr),
                }
            }
        }
        Self {
            host,
            requests: vec![(0, 0); qps.len()],
            qps,
            shared,
            memory,
            regions,
            window,
            coming: VecDeque::new(),
            armed: Vec::new(),
            told: terms.told[index],
            completes_checksums: terms.completes_checksums[index],
            arrived: 0,
            holds: false,
            latest: None,
        }
    }

    /// The names that its memory has.
    pub(super) fn stags(&self) -> [u32; 4] {
        let [one, two, three] = self.regions;
        [one.0, two.0, three.0, self.window.0]
    }

    /// A frame is sent here.
    pub(super) fn enqueue(&mut self, mut frame: Frame) {
        if frame[12..].starts_with(&[0x81, 0]) {
            // Changes are made where headers stand without; it is put back when the frame arrives.
            Frame::make_mut(&mut frame).drain(12..16);
        }
        if self.armed.is_empty() {
            self.coming.push_back(frame);
            return;
        }
        let mut frames = vec![Rc::unwrap_or_clone(frame)];
        let stags = self.stags();
        self.armed.retain_mut(|(ahead, twist)| {
            if *ahead > 0 {
                *ahead -= 1;
                return true;
            }
            frames = std::mem::take(&mut frames)
                .into_iter()
                .flat_map(|frame| twist.change(frame, &stags))
                .collect();
            false
        });
        self.coming.extend(frames.into_iter().map(Rc::new));
    }

    /// The frames that arrive next, and what the device says of them.
    pub(super) fn arrive(
        &mut self,
        most: usize,
        tagged: bool,
        unfinished: bool,
    ) -> Vec<(Frame, Checksums)> {
        let most = most.min(self.coming.len());
        let told = |mut frame: Frame| {
            self.arrived += 1;
            if unfinished && !self.arrived.is_multiple_of(3) {
                begin_checksum(Frame::make_mut(&mut frame));
            }
            if tagged {
                Frame::make_mut(&mut frame).splice(12..12, [0x81, 0, 0, 5]);
            }
            let checksums = match self.told {
                Told::Verify => Checksums::None,
                Told::Summed => Checksums::Complete(sum(&frame)),
                Told::Vouched => Checksums::Unnecessary,
                Told::Mixed if self.arrived.is_multiple_of(4) => Checksums::Unnecessary,
                Told::Mixed if self.arrived % 4 == 1 => Checksums::None,
                Told::Mixed => Checksums::Complete(sum(&frame)),
            };
            (frame, checksums)
        };
        self.coming.drain(..most).map(told).collect()
    }

    /// Makes the device keep frames until they are completed.
    ///
    /// It has room for all of them. Where it is full the ordinary path has built further segments
    /// already, and executed the local requests between them; a burst does so when there is room
    /// again. Of several connections the first one gets the room that there is.
    pub(super) fn hold(&mut self) {
        self.holds = true;
        self.host.device().set_queue_len(usize::MAX);
        self.host.device().hold();
    }

    /// Makes the device take so many frames at a time.
    pub(super) fn limit_queue(&mut self, len: usize) {
        if !self.holds {
            self.host.device().set_queue_len(len);
        }
    }

    pub(super) fn post_receive(&mut self, connection: usize, wr: RecvWr) {
        match &mut self.shared {
            Some(srq) if srq.posted() < 64 => self.host.post_shared(srq, wr),
            None if self.qps[connection].room().1 > 0 => {
                self.host.post_recv(&mut self.qps[connection], wr);
            }
            _ => {}
        }
    }

    /// What is counted and held.
    pub(super) fn holdings(&self) -> impl fmt::Debug + PartialEq {
        let mut counters = *self.host.driver().engine().counters();
        // Whoever waits in the line while the device has no room counts, also who has nothing to
        // send in the end.
        counters.engine.no_transmit_frame = 0;
        // What comes behind an error, in the same batch, is dropped or buffered by when the end is
        // seen.
        if counters.rdma.terminates_sent > 0 {
            counters.rdma.octets_buffered = 0;
        }
        let valid = self.stags().map(|stag| self.host.is_valid(Stag(stag)));
        let queues: Vec<_> = self
            .qps
            .iter()
            .map(|qp| (qp.room(), qp.notified()))
            .collect();
        let shared = self.shared.as_ref().map(TestSrq::posted);
        // Not how many checksums the device completed: a short message leaves with its own.
        let host = (self.host.frames_in_use(), self.host.reservations());
        (counters, valid, queues, shared, host)
    }

    /// Writes the state of each layer of each connection.
    pub(super) fn write_state(&self, to: &mut String) {
        let engine = self.host.driver().engine();
        engine
            .write_state(to)
            .expect("a text takes all that is written to it");
    }

    /// Behind what in its [state](Self::write_state) words may be any.
    pub(super) fn free_in_state(&self) -> &'static [&'static str] {
        // The switch itself is no state of the protocol, and all free frames are alike. Where the
        // device completes checksums nobody reads the sum of a payload: a short message has it all
        // the same.
        const FREE: &[&str] = &["sole_ack: ", "FrameId(", "payload_sum: "];
        match self.completes_checksums {
            true => FREE,
            false => &FREE[..2],
        }
    }
}

/// A receive into the first region.
pub(super) fn receive(region: Stag, id: u64, len: usize) -> RecvWr {
    let piece = Sge {
        offset: RECEIVES_AT + id * 64 % 2048,
        length: len as u32,
        lkey: region.0,
    };
    let front = Sge {
        length: 24,
        ..piece
    };
    let behind = Sge {
        offset: piece.offset + 100,
        ..piece
    };
    // Few have no room, or are nowhere: a connection seldom survives one.
    let nowhere = Sge {
        lkey: region.0 ^ 1,
        ..piece
    };
    let pieces = match id {
        id if id.is_multiple_of(199) => &[][..],
        id if id.is_multiple_of(211) => &[nowhere],
        id if id.is_multiple_of(5) => &[front, behind],
        _ => &[piece],
    };
    RecvWr::new(id, pieces).expect("two pieces fit")
}
