//! Our own traffic, read by Wireshark's iWARP dissector: every FPDU is found, every CRC is good,
//! nothing is malformed.
//!
//! Needs tshark.

mod common;
mod support;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::*;
use rnic_core::connection::ConnectionOptions;
use rnic_core::engine::Command;
use rnic_core::testing::deep;
use rnic_core::testing::simulation::Simulation;
use support::pcap;

/// A capture file that is deleted when dropped.
struct File(PathBuf);

impl File {
    fn new(octets: &[u8]) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("rnic-dissector-{}-{number}.pcap", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, octets).unwrap();
        Self(path)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// What tshark reports about the stream of one side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Verdict {
    /// FPDUs found.
    fpdus: u64,
    /// Those of them whose CRC is good.
    good: u64,
    /// Markers that point to the length field of their FPDU.
    markers: u64,
    /// All complaints.
    complaints: String,
}

/// Dissects a capture with tshark: the streams of the initiator and of the responder, which listens
/// on port 7174.
fn dissect(path: &Path) -> [Verdict; 2] {
    let output = Process::new("tshark")
        .args(["-r", path.to_str().unwrap(), "-T", "pdml"])
        .args([
            "-o",
            "tcp.check_checksum:TRUE",
            "-o",
            "ip.check_checksum:TRUE",
        ])
        // Payloads are patterns, which tshark would take for other protocols.
        .args([
            "--disable-protocol",
            "rpcordma",
            "--disable-protocol",
            "smb_direct",
        ])
        .output()
        .expect("this test takes tshark: `ci/deps siw` installs it");
    assert!(output.status.success(), "{output:?}");
    let mut verdicts = [Verdict::default(), Verdict::default()];
    let (mut from, mut frame, mut length_at) = (0, String::new(), 0);
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let text = |name: &str| {
            let (_, rest) = line.split_once(&format!(" {name}=\""))?;
            Some(rest.split_once('"')?.0)
        };
        let number = |name| -> u64 { text(name).unwrap().parse().unwrap() };
        let name = text("name").unwrap_or_default();
        match name {
            "frame.number" => frame = text("show").unwrap().to_owned(),
            "tcp.srcport" => from = usize::from(number("show") == 7174),
            _ => {}
        }
        let verdict = &mut verdicts[from];
        let faulty = match name {
            "iwarp_mpa.ulpdulength" => {
                length_at = number("pos");
                false
            }
            "iwarp_mpa.crc_check" => {
                verdict.fpdus += 1;
                let good = text("showname").unwrap().contains("Good CRC32");
                verdict.good += u64::from(good);
                !good
            }
            // The second half of a marker.
            "iwarp_mpa.marker_fpduptr" => {
                let good = number("show") == (number("pos") - 2).saturating_sub(length_at);
                verdict.markers += u64::from(good);
                !good
            }
            "iwarp_mpa.marker_res" => text("value") != Some("0000"),
            "ip.checksum.status" | "tcp.checksum.status" => number("show") != 1,
            "_ws.malformed" => true,
            // Worse than a note.
            "_ws.expert.severity" => number("show") > 0x0040_0000,
            _ => false,
        };
        if faulty {
            let _ = writeln!(verdict.complaints, "frame {frame}: {}", line.trim());
        }
    }
    verdicts
}

/// A frame and the microsecond at which it was sent.
type Frame = (u64, Vec<u8>);

/// Traffic of every kind between two hosts of which the first and the second require markers or do
/// not: the frames, and how many FPDUs each host sent.
fn traffic(markers: [bool; 2]) -> (Vec<Frame>, [u64; 2]) {
    // Where an FPDU ends right in front of a marker, tshark takes that marker for a part of the
    // FPDU, and loses the boundaries.
    (2..500)
        .map(|first| exchange(markers, first))
        .find(|(frames, _)| !ends_at_a_marker(frames, markers))
        .expect("traffic that tshark can read")
}

/// Returns whether an FPDU of a side that sends markers ends where the next marker stands.
fn ends_at_a_marker(frames: &[Frame], markers: [bool; 2]) -> bool {
    let mut starts = [0; 2];
    frames.iter().any(|(_, frame)| {
        let from = usize::from(frame[34..36] == 7174_u16.to_be_bytes());
        let seq = u32::from_be_bytes(frame[38..42].try_into().unwrap());
        let payload = frame.len() - 34 - usize::from(frame[46] >> 4) * 4;
        if frame[47] & 2 != 0 {
            // FPDUs begin behind the SYN and a start-up frame.
            starts[from] = seq.wrapping_add(1 + 24);
        }
        let end = seq.wrapping_add(payload as u32).wrapping_sub(starts[from]);
        markers[1 - from] && payload > 24 && end.is_multiple_of(512)
    })
}

/// Exchanges messages between two hosts, the first of `first` octets.
fn exchange(markers: [bool; 2], first: usize) -> (Vec<Frame>, [u64; 2]) {
    let mut sim = simulation();
    sim.link.capture();
    let [ours, theirs] = markers.map(|markers| ConnectionOptions {
        markers,
        ..ConnectionOptions::default()
    });
    let (active, passive) = sim.connect_with(&ours, &theirs).unwrap();
    let mut qps = [active, passive];
    let regions = [0, 1].map(|host| sim.hosts[host].share(&pattern(9000), all_rights()));
    let sinks = [0, 1].map(|host| sim.hosts[host].share(&[0; 9000], all_rights()));
    let lengths = [first, 0, 1, 5, 480, 494, 500, 3001, 9000];
    for (host, peer) in [(0, 1), (1, 0)] {
        for (id, length) in (0..).zip(lengths) {
            sim.hosts[peer].post_recv(&mut qps[peer], recv(id, &sinks[peer], 9000));
            let requests = [
                write(id, &regions[host], sinks[peer].stag, length),
                read(id, &sinks[host], regions[peer].stag, length),
                send(id, &regions[host], length),
            ];
            for request in requests {
                sim.hosts[host].post_send(&mut qps[host], request);
            }
        }
    }
    let [active, passive] = &mut qps;
    completions(&mut sim, active, 4 * lengths.len(), SECOND * 10);
    completions(&mut sim, passive, 4 * lengths.len(), SECOND * 10);
    // The last FPDU: a Send that nothing waits for.
    sim.hosts[0].post_send(active, inline_send(99, b"nobody waits"));
    sim.run_for(SECOND);
    sim.hosts[0].command(Command::Abort(active.number));
    sim.run_for(SECOND * 10);
    let sent = [0, 1].map(|host| fpdus_sent(&mut sim, host));
    let frames = sim.link.captured().iter().map(|(at, frame)| {
        let micros = at.since(rnic_core::time::Instant::ZERO).as_micros();
        (micros as u64, frame.clone())
    });
    (frames.collect(), sent)
}

fn fpdus_sent(sim: &mut Simulation, host: usize) -> u64 {
    let now = sim.now;
    let rdma = sim.hosts[host].snapshot(now).rdma;
    rdma.fpdus_sent + rdma.terminates_sent
}

/// Returns what tshark reports about each side. `markers`: which side requires them.
fn verdicts(frames: &[Frame], markers: [bool; 2]) -> [Verdict; 2] {
    let taken = |frames: &[Frame]| {
        let frames = frames.iter().map(|(at, frame)| (*at, &frame[..]));
        dissect(&File::new(&pcap::write(frames)).0)
    };
    let [initiator, responder] = taken(frames);
    // As soon as one side requires markers, tshark expects them of both. So the side that sends
    // none is dissected again, without the M bit.
    let unaware: Vec<_> = frames.iter().cloned().map(without_m).collect();
    let [initiator_unaware, responder_unaware] = taken(&unaware);
    match markers {
        [true, false] => [initiator_unaware, responder],
        [false, true] => [initiator, responder_unaware],
        _ => [initiator, responder],
    }
}

/// Returns the frame, without the M bit if it has a start-up frame.
fn without_m((at, mut frame): Frame) -> Frame {
    const FLAGS_AT: usize = 16;
    let found = frame.windows(7).position(|window| window == b"MPA ID ");
    if let Some(start) = found
        && frame[start + FLAGS_AT] & 0x80 != 0
    {
        frame[start + FLAGS_AT] &= 0x7f;
        // TCP's checksum is the complement of a sum that is 0x8000 less, or 0x80 if the octet is
        // the second of its word.
        let checksum_at = 14 + 20 + 16;
        let less: u32 = if (start + FLAGS_AT).is_multiple_of(2) {
            0x8000
        } else {
            0x80
        };
        let old = u16::from_be_bytes([frame[checksum_at], frame[checksum_at + 1]]);
        let sum = u32::from(old) + less;
        let new = (sum + (sum >> 16)) as u16;
        frame[checksum_at..checksum_at + 2].copy_from_slice(&new.to_be_bytes());
    }
    (at, frame)
}

const COMBINATIONS: [[bool; 2]; 4] = [[false, false], [true, false], [false, true], [true, true]];

#[test]
fn every_fpdu_is_found_and_good() {
    // rfc: 5044-11, 5044-14, 5044-18, 5044-19, 5044-35, 5044-36a, 5044-36b
    for markers in COMBINATIONS.into_iter().take(deep(4) as usize) {
        let (frames, sent) = traffic(markers);
        let verdicts = verdicts(&frames, markers);
        for (side, verdict) in verdicts.iter().enumerate() {
            assert_eq!(verdict.complaints, "", "{markers:?}, {side}");
            let found = (verdict.fpdus, verdict.good);
            assert_eq!(found, (sent[side], sent[side]), "{markers:?}, {side}");
            // Each side sends them if the other asks.
            assert_eq!(verdict.markers > 0, markers[1 - side]);
        }
    }
}

#[test]
fn a_wrong_crc_or_marker_is_complained_of() {
    let markers = [true, true];
    let (frames, _) = traffic(markers);
    let good = &verdicts(&frames, markers)[0];
    let seq = |frame: &[u8]| u32::from_be_bytes(frame[38..42].try_into().unwrap());
    // A full segment of the initiator, and the first marker in it. Its FPDUs begin behind its SYN
    // and its Request.
    let start = seq(&frames[0].1).wrapping_add(1 + 24);
    let is_full = |(_, frame): &Frame| frame.len() > 1500;
    let full = frames.iter().position(is_full).unwrap();
    let (payload, len) = (14 + 20 + 32, frames[full].1.len());
    let position = seq(&frames[full].1).wrapping_sub(start);
    let marker = payload + position.wrapping_neg() as usize % 512;
    for (at, crcs, pointers) in [(len - 1, 1, 0), (marker + 3, 1, 1), (payload + 40, 1, 0)] {
        let mut frames = frames.clone();
        frames[full].1[at] ^= 4;
        let bad = &verdicts(&frames, markers)[0];
        let all = (bad.fpdus, bad.good + crcs, bad.markers + pointers);
        assert_eq!(all, (good.fpdus, good.good, good.markers), "octet {at}");
    }
}
