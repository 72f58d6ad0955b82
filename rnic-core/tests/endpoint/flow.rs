//! Messages of a ULP other than RDMAP: to any queue, with its own RsvdULP, through a network that
//! loses frames.

use std::time::Duration;

use fastrand::Rng;
use rnic_core::connection::ConnectionOptions;
use rnic_core::ddp::BufferSupply;
use rnic_core::engine::{Command, EngineConfig};
use rnic_core::testing::link::Impairments;
use rnic_core::testing::raw_peer::ddp;
use rnic_core::testing::simulation::{SharedRegion, Simulation};
use rnic_core::verbs::{RecvWr, Sge};
use rnic_core::wire::ddp::{
    DdpHeader, MessageOffset, Msn, QueueNumber, TaggedHeader, TaggedOffset, UntaggedHeader,
};

use crate::common::*;
use crate::parcels::{Arrived, Parcels, page, parcel};
use crate::scene::{Raw, connect_pair, connect_pair_with};

/// Queues that RDMAP does not have, and two that it has.
pub(crate) const QUEUES: [u32; 5] = [0, 2, 4, 0x8000_0001, u32::MAX];
/// Octets of the longest parcel.
const LONGEST: usize = 20_000;
pub(crate) const PARCELS: usize = 80;
/// Octets that a receiver needs of each kind.
pub(crate) const MEMORY: usize = PARCELS * LONGEST;

/// Returns buffer `number` of a region. The number is its id.
fn buffer(region: &SharedRegion, number: usize) -> RecvWr {
    let sge = Sge {
        offset: (number * LONGEST) as u64,
        length: LONGEST as u32,
        lkey: region.stag.0,
    };
    RecvWr::new(number as u64, &[sge]).unwrap()
}

/// What one side sends, in order, and where it must arrive.
pub(crate) struct Traffic {
    region: SharedRegion,
    pages: SharedRegion,
    sent: Vec<(DdpHeader, Vec<u8>)>,
}

impl Traffic {
    /// Posts the buffers of the receiver, in two regions of [`MEMORY`] octets, and the messages of
    /// the sender.
    pub(crate) fn new(
        [region, pages]: [SharedRegion; 2],
        from: &Parcels,
        to: &Parcels,
        rng: &mut Rng,
    ) -> Self {
        let mut sent = Vec::new();
        for number in 0..PARCELS {
            let octets: Vec<u8> = (0..rng.usize(..LONGEST)).map(|_| rng.u8(..)).collect();
            let ulp = rng.u8(..0xee);
            let header = if rng.u8(..4) == 0 {
                page(pages.stag, (number * LONGEST) as u64, ulp)
            } else {
                let queue = QUEUES[rng.usize(..QUEUES.len())];
                to.post(queue, buffer(&region, number));
                parcel(queue, ulp, rng.u32(..))
            };
            assert!(from.send(header, &octets));
            sent.push((header, octets));
        }
        Self {
            region,
            pages,
            sent,
        }
    }

    /// Checks that everything has arrived as sent, in order, each once.
    pub(crate) fn check(&self, arrived: &[Arrived]) {
        let mut arrived = arrived.iter();
        let (region, pages) = (self.region.content(), self.pages.content());
        let mut msns = [0; QUEUES.len()];
        for (number, (header, octets)) in self.sent.iter().enumerate() {
            let place = number * LONGEST..number * LONGEST + octets.len();
            match header {
                DdpHeader::Tagged(header) => {
                    assert!(pages[place] == octets[..], "page {number}");
                    let mut len = 0;
                    loop {
                        let Some(Arrived::Page {
                            header: part,
                            len: more,
                        }) = arrived.next()
                        else {
                            panic!("page {number} is not where it was sent");
                        };
                        assert_eq!(part.offset.0, header.offset.0 + len);
                        assert_eq!((part.ulp, part.stag), (header.ulp, header.stag));
                        len += u64::from(*more);
                        if part.last {
                            break;
                        }
                    }
                    assert_eq!(len, octets.len() as u64);
                }
                DdpHeader::Untagged(header) => {
                    assert!(region[place] == octets[..], "parcel {number}");
                    let queue = QUEUES
                        .iter()
                        .position(|queue| *queue == header.queue.0)
                        .unwrap();
                    msns[queue] += 1;
                    let Some(Arrived::Parcel {
                        header: came,
                        length,
                        buffer,
                        ..
                    }) = arrived.next()
                    else {
                        panic!("parcel {number} is not where it was sent");
                    };
                    assert_eq!((came.queue, came.msn), (header.queue, Msn(msns[queue])));
                    assert_eq!((came.ulp, came.ulp32), (header.ulp, header.ulp32));
                    assert_eq!(
                        (*length as usize, *buffer),
                        (octets.len(), Some(number as u64))
                    );
                }
            }
        }
        assert_eq!(arrived.next(), None);
    }
}

#[test]
fn parcels_and_pages_pass_a_network_that_loses_them_both_ways() {
    // rfc: 5041-26, 5041-27, 5041-36, 5041-37, 5041-42, 5041-60, 5041-61, 5041-62, 5041-63, 5041-64
    // rfc: 5041-65
    for seed in 0..4 {
        let impairments = Impairments {
            delay: Duration::from_micros(200),
            loss: 20,
            duplication: 10,
            corruption: 5,
            reordering: 50,
            jitter: Duration::from_micros(700),
            cutting: 30,
        };
        let mut sim = Simulation::new(&EngineConfig::default(), impairments, seed);
        let layers = [Parcels::with_queues(&QUEUES), Parcels::with_queues(&QUEUES)];
        let ends = connect_pair(&mut sim, [&layers[0], &layers[1]]);
        let mut rng = Rng::with_seed(seed);
        let memory =
            |host: usize| [(); 2].map(|()| sim.hosts[host].share(&vec![0; MEMORY], all_rights()));
        let (memory0, memory1) = (memory(0), memory(1));
        let there = Traffic::new(memory1, &layers[0], &layers[1], &mut rng);
        let back = Traffic::new(memory0, &layers[1], &layers[0], &mut rng);
        for (host, end) in ends.iter().enumerate() {
            sim.hosts[host].ring(*end);
        }
        let all = |_: &mut Simulation| layers.iter().all(|l| l.state().transferred == PARCELS);
        assert!(sim.run_until(SECOND * 120, all), "seed {seed}");
        there.check(&layers[1].take_arrived());
        back.check(&layers[0].take_arrived());
        for (host, end) in ends.iter().enumerate() {
            sim.hosts[host].command(Command::Disconnect(end.number));
        }
        assert_nothing_left(&mut sim);
    }
}

/// RsvdULP on the wire, in both directions, is what the ULP has given.
#[test]
fn the_layers_own_octets_stand_in_every_segment() {
    // rfc: 5041-26, 5041-28, 5041-31, 5041-33, 5041-36, 5041-38, 5041-40, 5041-45, 5041-47, 5041-53
    // rfc: 5041-54, 5041-55
    let mut raw = Raw::new(&[0xdead_beef]);
    let region = raw.sim.hosts[0].share(&[0; 64], all_rights());
    raw.layer
        .post(0xdead_beef, RecvWr::new(5, &[sge(&region, 64)]).unwrap());
    let header = |last, offset| UntaggedHeader {
        last,
        ulp: 0xa5,
        ulp32: 0x0123_4567,
        queue: QueueNumber(0xdead_beef),
        msn: Msn(1),
        offset: MessageOffset(offset),
    };
    raw.give(&ddp(DdpHeader::Untagged(header(false, 0)), b"hello, "));
    assert_eq!(raw.layer.take_arrived(), []);
    raw.give(&ddp(DdpHeader::Untagged(header(true, 7)), b"world"));
    let arrived = Arrived::Parcel {
        header: header(true, 7),
        length: 12,
        buffer: Some(5),
        octets: Vec::new(),
    };
    assert_eq!(raw.layer.take_arrived(), [arrived]);
    assert_eq!(&region.content()[..12], b"hello, world");

    let (parcels, pages) = (pattern(5000), pattern(3000));
    raw.layer
        .send(parcel(0xdead_beef, 0x5a, 0xfedc_ba98), &parcels);
    raw.layer
        .send(page(region.stag, u64::MAX - 4000, 0x3c), &pages);
    raw.ring();
    let mut sent = Vec::new();
    while let Some((DdpHeader::Untagged(came), payload)) = raw.sim.raw[0].take_ddp() {
        let wanted = UntaggedHeader {
            last: came.last,
            ulp: 0x5a,
            ulp32: 0xfedc_ba98,
            offset: MessageOffset(sent.len() as u32),
            ..header(false, 0)
        };
        assert_eq!(came, wanted);
        sent.extend_from_slice(&payload);
        if came.last {
            break;
        }
    }
    assert!(sent == parcels);
    sent.clear();
    while let Some((DdpHeader::Tagged(came), payload)) = raw.sim.raw[0].take_ddp() {
        let offset = TaggedOffset(u64::MAX - 4000 + sent.len() as u64);
        let wanted = TaggedHeader {
            last: came.last,
            ulp: 0x3c,
            stag: region.stag,
            offset,
        };
        assert_eq!(came, wanted);
        sent.extend_from_slice(&payload);
    }
    assert!(sent == pages);
    raw.command(Command::Abort(raw.end.number));
    raw.assert_nothing_left();
}

/// Short messages may be delivered with their octets, from buffers that DDP keeps, as many as the
/// ULP has asked for.
#[test]
fn a_queue_can_have_buffers_of_ddp() {
    let mut raw = Raw::new(&[]);
    raw.layer
        .open(9, BufferSupply::Internal { count: 2, size: 8 });
    for msn in 1..6 {
        let mut header = untagged_to(9, msn);
        header.ulp32 = msn;
        let text = format!("no. {msn}");
        raw.give(&ddp(DdpHeader::Untagged(header), text.as_bytes()));
        let arrived = Arrived::Parcel {
            header,
            length: 5,
            buffer: None,
            octets: text.into_bytes(),
        };
        assert_eq!(raw.layer.take_arrived(), [arrived]);
    }
    raw.command(Command::Abort(raw.end.number));
    raw.assert_nothing_left();
}

/// The header of a parcel that is one segment, as a raw peer sends it.
pub(crate) fn untagged_to(queue: u32, msn: u32) -> UntaggedHeader {
    UntaggedHeader {
        last: true,
        ulp: 1,
        ulp32: 0,
        queue: QueueNumber(queue),
        msn: Msn(msn),
        offset: MessageOffset(0),
    }
}

/// A ULP may open queues at any time; a queue does not exist before.
#[test]
fn a_queue_is_there_from_when_it_is_opened() {
    // rfc: 5041-43, 5041-72a
    let mut raw = Raw::new(&[]);
    let region = raw.sim.hosts[0].share(&[0; 8], all_rights());
    for queue in [12, 11, u32::MAX - 1] {
        raw.layer.open(queue, BufferSupply::Posted);
        raw.layer.post(
            queue,
            RecvWr::new(queue.into(), &[sge(&region, 8)]).unwrap(),
        );
        raw.give(&ddp(DdpHeader::Untagged(untagged_to(queue, 1)), b"in time"));
        assert_eq!(raw.layer.take_arrived().len(), 1);
    }
    raw.give(&ddp(DdpHeader::Untagged(untagged_to(13, 1)), b"too soon"));
    let fault = raw.layer.state().reports[0].fault.clone();
    assert_eq!(fault.number(), (2, 1));
    assert_eq!(raw.layer.take_arrived(), []);
    raw.command(Command::Abort(raw.end.number));
    raw.assert_nothing_left();
}

/// The revision of MPA goes up through DDP, on both sides.
#[test]
fn the_layer_is_told_the_version_below() {
    // rfc: 5044-10
    for mpa_revision in [1, 2] {
        let mut sim = simulation();
        sim.tap = None;
        let layers = [Parcels::default(), Parcels::default()];
        let options = ConnectionOptions {
            mpa_revision,
            ..ConnectionOptions::default()
        };
        connect_pair_with(&mut sim, layers.each_ref(), &options);
        let told = layers.map(|layer| layer.state().llp_version);
        assert_eq!(told, [Some(mpa_revision); 2]);
    }
}
