//! Markers that point anywhere: they do no harm, and in order they end their own connection.

use crate::common::*;
use crate::receiving::{connect, requiring, terminate};
use crate::stream::Writer;
use fastrand::Rng;
use rnic_core::engine::EngineConfig;
use rnic_core::testing::raw_peer::ddp;
use rnic_core::testing::simulation::{SharedRegion, Simulation};
use rnic_core::verbs::{status::WcStatus, wr::WcOpcode};

const MARKER_ERROR: (u8, u8, u8) = (2, 0, 3);

/// A peer that has written a first FPDU of 420 octets, and what it may write to: 4096 octets for
/// each FPDU.
struct Scene {
    sim: Simulation,
    raw: RawConnection,
    writer: Writer,
    region: SharedRegion,
    octets: Vec<u8>,
}

impl Scene {
    fn new() -> Self {
        let mut sim = simulation();
        let (raw, mut writer) = connect(&mut sim, true, &requiring());
        let region = sim.hosts[0].share(&[0; 3 * 4096], all_rights());
        let octets = writer.fpdu(&ddp(write_header(region.stag, 0), &[1; 394]));
        assert_eq!(octets.len(), 420);
        Self {
            sim,
            raw,
            writer,
            region,
            octets,
        }
    }

    /// Writes the next FPDU.
    fn write(&mut self, slot: u64, data: &[u8], pointer: impl Fn(usize, u16) -> u16) {
        let header = write_header(self.region.stag, slot * 4096);
        let fpdu = self.writer.fpdu_with(&ddp(header, data), pointer);
        self.octets.extend(fpdu);
    }

    /// Sends a part of the stream ahead of order.
    fn ahead(&mut self, range: std::ops::Range<usize>) {
        let peer = &mut self.sim.raw[self.raw.peer];
        peer.send_ahead(range.start as u32, &self.octets[range]);
        self.sim.run_now();
    }

    /// Returns the first octet in the slot of each FPDU.
    fn placed(&self) -> [u8; 3] {
        let content = self.region.content();
        [0, 1, 2].map(|slot| content[slot * 4096])
    }

    /// Sends the first FPDU. Checks that the error behind it ends the connection, and that other
    /// connections are not affected.
    fn ends_by(mut self, error: (u8, u8, u8)) {
        assert_eq!(terminate(&mut self.sim, self.raw.peer), None, "not yet");
        self.sim.raw[self.raw.peer].send(&self.octets[..420]);
        self.sim.run_now();
        assert_eq!(terminate(&mut self.sim, self.raw.peer), Some(error));
        assert_eq!(self.placed()[0], 1);
        self.sim.raw[self.raw.peer].close();
        assert_nothing_left(&mut self.sim);
    }
}

/// Makes the markers of the second FPDU, which begins at 420, point as `pointer` says. The third
/// FPDU is valid.
fn markers_of_the_second_point(pointer: impl Fn(usize, u16) -> u16) {
    let mut scene = Scene::new();
    scene.write(1, &[2; 1200], pointer);
    scene.write(2, &[3; 700], |_, distance| distance);
    scene.ahead(420..scene.octets.len());
    assert_eq!(
        scene.placed(),
        [0, 0, 3],
        "the third shows its own beginning"
    );
    scene.ends_by(MARKER_ERROR);
}

#[test]
#[cfg_attr(carrier_sockets, ignore = "looks at what is placed ahead of order")]
fn markers_that_point_before_the_stream() {
    markers_of_the_second_point(|_, _| 0xfffc);
    markers_of_the_second_point(|at, _| at as u16 + 4);
}

#[test]
#[cfg_attr(carrier_sockets, ignore = "looks at what is placed ahead of order")]
fn markers_that_point_to_the_lost_fpdu() {
    markers_of_the_second_point(|at, _| at as u16 - 4);
    markers_of_the_second_point(|at, _| at as u16 - 100);
}

#[test]
#[cfg_attr(carrier_sockets, ignore = "looks at what is placed ahead of order")]
fn markers_that_point_to_other_markers() {
    markers_of_the_second_point(|at, distance| if at == 1024 { 512 } else { distance });
    markers_of_the_second_point(|at, distance| if at == 1024 { 1024 } else { distance });
}

/// The reserved bits of a pointer count as zero: such a marker says that the FPDU begins behind it.
#[test]
#[cfg_attr(carrier_sockets, ignore = "looks at what is placed ahead of order")]
fn markers_that_point_into_themselves() {
    for pointer in [0, 1, 2, 3] {
        markers_of_the_second_point(|_, _| pointer);
    }
}

/// There is no pointer forward: the farthest that looks like one goes far back.
#[test]
#[cfg_attr(carrier_sockets, ignore = "looks at what is placed ahead of order")]
fn markers_that_mean_to_point_forward() {
    markers_of_the_second_point(|_, _| -4_i16 as u16);
    markers_of_the_second_point(|_, _| 0x8000);
}

#[test]
#[cfg_attr(carrier_sockets, ignore = "looks at what is placed ahead of order")]
fn markers_that_point_into_the_middle_of_their_fpdu() {
    markers_of_the_second_point(|at, distance| if at == 512 { distance - 4 } else { distance });
    markers_of_the_second_point(|at, distance| if at == 512 { distance } else { 4 });
}

/// A marker points to what was delivered long ago.
#[test]
#[cfg_attr(carrier_sockets, ignore = "looks at what is placed ahead of order")]
fn markers_that_point_to_what_was_delivered() {
    let mut scene = Scene::new();
    scene.sim.raw[scene.raw.peer].send(&scene.octets[..420]);
    scene.sim.run_now();
    assert_eq!(scene.placed(), [1, 0, 0]);
    scene.write(1, &[2; 1200], |at, _| at as u16 - 4);
    scene.write(2, &[3; 700], |_, distance| distance);
    // The first octet of the second FPDU is missing.
    let behind = scene.octets[421..].to_vec();
    scene.sim.raw[scene.raw.peer].send_ahead(1, &behind);
    scene.sim.run_now();
    assert_eq!(scene.placed(), [1, 0, 3]);
    scene.sim.raw[scene.raw.peer].send(&scene.octets[420..421]);
    scene.sim.run_now();
    let said = terminate(&mut scene.sim, scene.raw.peer);
    assert_eq!(said, Some(MARKER_ERROR));
}

/// A marker says that an FPDU begins in the data of another, and there is one. The peer may write
/// where it says, so it is placed; but the lengths of the FPDUs before contradict, and that ends
/// the stream.
#[test]
#[cfg_attr(carrier_sockets, ignore = "looks at what is placed ahead of order")]
fn a_marker_that_shows_an_fpdu_inside_of_another() {
    // rfc: 5044-85c, 5044-s18, 5044-s19
    let mut scene = Scene::new();
    let mut inner = Writer::new(true);
    let header = write_header(scene.region.stag, 2 * 4096);
    let inner = inner.fpdu(&ddp(header, &[7; 300]));
    // Behind the header of 14 octets; the marker at 512 serves both.
    let mut data = vec![2; 900];
    let at = 512 - 420 - 2 - 14;
    data[at..at + inner.len() - 4].copy_from_slice(&inner[4..]);
    scene.write(
        1,
        &data,
        |at, distance| if at == 512 { 0 } else { distance },
    );
    assert_eq!(scene.octets[512..][..inner.len()], inner);
    scene.ahead(420..scene.octets.len());
    assert_eq!(scene.placed(), [0, 0, 7]);
    scene.ends_by(MARKER_ERROR);
}

/// The outer FPDU is placed first: then no octet of it is left to be taken for another FPDU.
#[test]
#[cfg_attr(carrier_sockets, ignore = "looks at what is placed ahead of order")]
fn a_marker_that_points_into_an_early_fpdu() {
    // rfc: 5044-s19
    let mut scene = Scene::new();
    scene.write(1, &[2; 500], |_, distance| distance);
    let third = scene.octets.len();
    scene.write(2, &[3; 900], |_, distance| distance + 200);
    scene.ahead(420..third);
    assert_eq!(scene.placed(), [0, 2, 0]);
    scene.ahead(third..scene.octets.len());
    assert_eq!(scene.placed(), [0, 2, 0]);
    scene.ends_by(MARKER_ERROR);
}

/// Octets of one value, and markers that all point to the same place: nothing is an FPDU, and no
/// octet is checked often.
#[test]
fn a_window_full_of_markers_to_the_same_place() {
    let mut config = EngineConfig::default();
    config.tcp.receive_window = 256 * 1024;
    let mut sim = simulation_with(&config, 1);
    let (raw, _) = connect(&mut sim, true, &requiring());
    // Each says: an FPDU of 65,000 octets begins behind the marker at 512.
    let mut octets = vec![0; 256 * 1024];
    octets[516..518].copy_from_slice(&65_000_u16.to_be_bytes());
    for at in (1024..octets.len()).step_by(512) {
        let pointer = u16::try_from(at - 516).unwrap_or(0xfff0);
        octets[at + 2..at + 4].copy_from_slice(&pointer.to_be_bytes());
    }
    for from in (4..octets.len()).step_by(1400).rev() {
        let to = octets.len().min(from + 1400);
        sim.raw[raw.peer].send_ahead(from as u32, &octets[from..to]);
        sim.run_now();
    }
    let snapshot = sim.hosts[0].snapshot(sim.now);
    assert_eq!(snapshot.rdma.octets_placed_early, 0);
    assert!(snapshot.connections[0].buffered <= 256 * 1024);
    // In order it is found to be no FPDU.
    sim.raw[raw.peer].send(&octets[..4]);
    sim.run_now();
    let said = terminate(&mut sim, raw.peer);
    assert!(matches!(said, Some((2, 0, 2 | 3))), "{said:?}");
    sim.raw[raw.peer].close();
    assert_nothing_left(&mut sim);
}

/// Pointers, CRCs, cuts and order at random: every stream ends as its first fault says, and a
/// stream beside it goes on.
#[test]
fn random_pointers_end_their_own_stream_only() {
    for seed in 0..200 {
        let mut rng = Rng::with_seed(seed);
        let mut sim = simulation();
        let (mut raw, mut writer) = connect(&mut sim, true, &requiring());
        let (mut other, mut beside) = connect(&mut sim, false, &requiring());
        let region = sim.hosts[0].share(&[0; 4096], all_rights());
        let faulty = rng.bool();
        let pointers = std::cell::RefCell::new(Rng::with_seed(!seed));
        let (mut octets, mut fault) = (Vec::new(), None);
        for _ in 0..20 {
            let wrong = std::cell::Cell::new(false);
            let data = vec![9; rng.usize(0..2500)];
            let mut fpdu =
                writer.fpdu_with(&ddp(write_header(region.stag, 0), &data), |_, distance| {
                    let mut rng = pointers.borrow_mut();
                    if !faulty || rng.u8(..) > 20 {
                        return distance;
                    }
                    let pointer = if rng.bool() {
                        rng.u16(..)
                    } else {
                        rng.u16(0..1600)
                    };
                    wrong.set(wrong.get() || pointer & !3 != distance);
                    pointer
                });
            let mut code = wrong.get().then_some(3);
            if faulty && rng.u8(..) < 10 {
                let at = rng.usize(6..fpdu.len());
                fpdu[at] ^= 1;
                code = Some(2);
            }
            fault = fault.or(code);
            octets.extend(fpdu);
        }
        octets.extend(writer.fpdu(&ddp(send_header(1), &[])));
        sim.hosts[0].post_recv(&mut raw.qp, empty_recv(1));
        let mut segments = Vec::new();
        let mut at = 1;
        while at < octets.len() {
            let end = octets.len().min(at + rng.usize(1..1461));
            segments.push(at..end);
            at = end;
        }
        rng.shuffle(&mut segments);
        for segment in segments {
            sim.raw[raw.peer].send_ahead(segment.start as u32, &octets[segment]);
            sim.run_now();
        }
        sim.raw[raw.peer].send(&octets[..1]);
        sim.raw[raw.peer].skip(octets.len() as u32 - 1);
        sim.run_now();
        let status = match fault {
            None => WcStatus::Success,
            Some(_) => WcStatus::WrFlushed,
        };
        let said = terminate(&mut sim, raw.peer);
        if let Some(code) = fault {
            // Where a pointer shows an FPDU inside of another, the boundaries do not fit before the
            // CRC is seen.
            let fits = matches!(said, Some((2, 0, said)) if said == code || said == 3);
            assert!(fits, "seed {seed}: {said:?} for {fault:?}");
        } else {
            assert_eq!(said, None, "seed {seed}");
        }
        let received = (1, WcOpcode::Recv, status);
        assert_eq!(outcomes(&mut raw.qp), [received], "seed {seed}: {fault:?}");
        sim.hosts[0].post_recv(&mut other.qp, empty_recv(2));
        let fpdu = beside.fpdu(&ddp(send_header(1), &[]));
        sim.raw[other.peer].send(&fpdu);
        sim.run_now();
        let received = (2, WcOpcode::Recv, WcStatus::Success);
        assert_eq!(outcomes(&mut other.qp), [received], "seed {seed}");
    }
}
