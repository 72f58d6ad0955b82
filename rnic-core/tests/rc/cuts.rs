//! Segments of Writes and Read Responses end between lines of 64 octets.

use rnic_core::connection::ConnectionOptions;
use rnic_core::engine::Command;
use rnic_core::fast_paths::FastPaths;
use rnic_core::testing::simulation::Simulation;
use rnic_core::verbs::{SendWr, WrOpcode};
use rnic_core::wire::ddp::{DdpHeader, QueueNumber, Stag, TaggedOffset};
use rnic_core::wire::rdmap::{Opcode, ReadRequest};

use crate::common::*;
use crate::scene::*;

const LINE: u64 = 64;

/// Returns where the tagged segments end that the host has sent, with the L bit.
fn ends_of_segments(sim: &mut Simulation, peer: usize) -> Vec<(u64, bool)> {
    let segments = std::iter::from_fn(|| sim.raw[peer].take_ddp());
    segments
        .filter_map(|(header, payload)| match header {
            DdpHeader::Tagged(header) => {
                Some((header.offset.0 + payload.len() as u64, header.last))
            }
            DdpHeader::Untagged(_) => None,
        })
        .collect()
}

fn assert_lines_whole(ends: &[(u64, bool)], end: u64) {
    let ((last, is_last), others) = ends.split_last().unwrap();
    assert_eq!((*last, *is_last), (end, true));
    assert!(others.len() > 5);
    assert!(others.iter().all(|(end, last)| end % LINE == 0 && !last));
}

fn write_from(at: u64, options: &ConnectionOptions, fast_paths: FastPaths) -> Vec<(u64, bool)> {
    let mut sim = rc_hosts_with(fast_paths);
    let mut raw = accept_raw(&mut sim, options);
    sim.raw[raw.peer].send_ddp(nothing(), &[]);
    sim.run_now();
    let data = pattern(40_000);
    let source = sim.hosts[0].share(&data, all_rights());
    let wr = SendWr::new(1, WrOpcode::Write)
        .with_remote(Stag(7), TaggedOffset(at))
        .with_sges(&[sge(&source, data.len())])
        .unwrap();
    sim.hosts[0].post_send(&mut raw.qp, wr);
    completions(&mut sim, &mut raw.qp, 1, SECOND);
    let segments = ends_of_segments(&mut sim, raw.peer);
    sim.hosts[0].command(Command::Abort(raw.qp.number));
    sim.run_now();
    segments
}

#[test]
fn no_line_of_a_write_is_torn() {
    for at in [0, 4096, 1, 63] {
        let fast = write_from(at, &rc(), FastPaths::default());
        assert_lines_whole(&fast, at + 40_000);
        assert_eq!(write_from(at, &rc(), FastPaths::NONE), fast);
    }
    let plain = write_from(0, &ConnectionOptions::default(), FastPaths::default());
    assert!(
        !plain[0].0.is_multiple_of(LINE),
        "nothing is lost without RC"
    );
}

#[test]
fn no_line_of_a_read_response_is_torn() {
    let mut sim = rc_hosts();
    let raw = with_raw_peer(&mut sim);
    let source = sim.hosts[0].share(&pattern(40_000), all_rights());
    let request = ReadRequest {
        sink_stag: Stag(7),
        sink_offset: TaggedOffset(100),
        length: 40_000,
        source_stag: source.stag,
        source_offset: TaggedOffset(0),
    };
    let mut octets = [0; ReadRequest::LEN];
    request.emit(&mut octets);
    let header = untagged(Opcode::ReadRequest, QueueNumber::READ_REQUEST, 1, true);
    sim.raw[raw.peer].send_ddp(DdpHeader::Untagged(header), &octets);
    sim.run_now();
    assert_lines_whole(&ends_of_segments(&mut sim, raw.peer), 40_100);
}
