//! A host, and what its applications have.

use std::collections::VecDeque;

use rnic_core::engine::EngineConfig;
use rnic_core::ids::PdId;
use rnic_core::memory::table::Access;
use rnic_core::testing::host::{Host, PD, QpSettings, SharedRegion, TestQp, TestSrq};
use rnic_core::verbs::{sge::Sge, wr::RecvWr};
use rnic_core::wire::checksum::sum;
use rnic_core::wire::ddp::Stag;
use rnic_core::wire::packet::Checksums;

use super::case::{Terms, Told};
use super::twist::{Twist, begin_checksum};

/// Octets of the first region of a host, and of the others.
const ROOM: usize = 64 << 10;
const LITTLE: usize = 4096;
/// Where receives are in the first region.
pub(super) const RECEIVES_AT: u64 = 48 << 10;

/// A host, and what its applications have.
pub(super) struct Side {
    pub(super) host: Host,
    pub(super) qps: Vec<TestQp>,
    pub(super) shared: Option<TestSrq>,
    pub(super) regions: [SharedRegion; 3],
    pub(super) window: Stag,
    /// Frames on their way here.
    pub(super) coming: VecDeque<Vec<u8>>,
    /// Changes of those that will be sent here, and of the how many-th.
    pub(super) armed: Vec<(usize, Twist)>,
    told: Told,
    completes_checksums: bool,
    arrived: usize,
    /// The last frame with a payload that it sent.
    pub(super) latest: Option<Vec<u8>>,
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
        let content: Vec<_> = (0..ROOM).map(|at| (at * 7 + index) as u8).collect();
        let regions = [
            host.share(&content, all),
            host.share(
                &content[..LITTLE],
                Access::LOCAL_WRITE | Access::REMOTE_READ,
            ),
            host.share_with(&content[..LITTLE], all, PdId(77)),
        ];
        let window = host
            .table()
            .allocate_window(PD)
            .expect("the table has room");
        for (number, qp) in qps.iter_mut().enumerate() {
            for at in 0..16 {
                let wr = receive(&regions[0], 100 + at + 1000 * number as u64, 12_000);
                match &mut shared {
                    Some(srq) if number == 0 => host.post_shared(srq, wr),
                    Some(_) => {}
                    None => host.post_recv(qp, wr),
                }
            }
        }
        Self {
            host,
            qps,
            shared,
            regions,
            window,
            coming: VecDeque::new(),
            armed: Vec::new(),
            told: terms.told[index],
            completes_checksums: terms.completes_checksums[index],
            arrived: 0,
            latest: None,
        }
    }

    /// The names that its memory has.
    pub(super) fn stags(&self) -> [u32; 4] {
        let [one, two, three] = self.regions.each_ref().map(|region| region.stag.0);
        [one, two, three, self.window.0]
    }

    /// A frame is sent here.
    pub(super) fn enqueue(&mut self, mut frame: Vec<u8>) {
        if frame[12..].starts_with(&[0x81, 0]) {
            // Changes are made where headers stand without; it is put back when the frame arrives.
            frame.drain(12..16);
        }
        let mut frames = vec![frame];
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
        self.coming.extend(frames);
    }

    /// The frames that arrive next, and what the device says of them.
    pub(super) fn arrive(
        &mut self,
        most: usize,
        tagged: bool,
        unfinished: bool,
    ) -> Vec<(Vec<u8>, Checksums)> {
        let most = most.min(self.coming.len());
        let frames: Vec<_> = self.coming.drain(..most).collect();
        let told = |mut frame: Vec<u8>| {
            self.arrived += 1;
            if unfinished && !self.arrived.is_multiple_of(3) {
                begin_checksum(&mut frame);
            }
            if tagged {
                frame.splice(12..12, [0x81, 0, 0, 5]);
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
        frames.into_iter().map(told).collect()
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

    /// All state that the engine and the applications have: what is counted and held, and that of each layer.
    pub(super) fn state(&self) -> [String; 2] {
        let mut layers = String::new();
        let engine = self.host.driver().engine();
        engine
            .write_state(&mut layers)
            .expect("a text takes all that is written to it");
        // The switch itself is no state of the protocol.
        let layers = layers.replace("sole_ack: true", "sole_ack: false");
        // Where the device completes checksums nobody reads the sum of a payload: a short message has it all the same.
        let layers = match self.completes_checksums {
            true => without_numbers_behind(&layers, "payload_sum: "),
            false => layers,
        };
        // All free frames are alike.
        let layers = without_numbers_behind(&layers, "FrameId(");
        let mut counters = *engine.counters();
        // Whoever waits in the line while the device has no room counts, also who has nothing to send in the end.
        counters.engine.no_transmit_frame = 0;
        // What comes behind an error, in the same batch, is dropped or buffered by when the end is seen.
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
        let host = (self.host.frames_in_use(), self.host.leases());
        [
            format!("{:?} {valid:?} {queues:?} {shared:?} {host:?}", counters),
            layers,
        ]
    }
}

/// A receive into the first region.
pub(super) fn receive(region: &SharedRegion, id: u64, len: usize) -> RecvWr {
    let piece = Sge {
        offset: RECEIVES_AT + id * 64 % 2048,
        length: len as u32,
        lkey: region.stag.0,
    };
    // Few have no room: a connection seldom survives one.
    let pieces = if id.is_multiple_of(199) {
        &[][..]
    } else {
        &[piece][..]
    };
    RecvWr::new(id, pieces).expect("one piece fits")
}

/// A text without the numbers that stand behind this.
fn without_numbers_behind(text: &str, front: &str) -> String {
    let pieces = text.split(front);
    let cut = |piece: &str| {
        piece
            .trim_start_matches(|c: char| c.is_ascii_digit())
            .to_owned()
    };
    pieces.map(cut).collect::<Vec<_>>().join(front)
}
