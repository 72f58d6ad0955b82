//! rnic with a peer whose chunks a test makes itself, from the RFC's figures.

use rnic_core::adaptation::{AdaptationError, ChunkKind};
use rnic_core::connection::{ConnectionOptions, EndReason, Event};
use rnic_core::engine::{Command, EngineConfig};
use rnic_core::testing::raw_peer::ddp;
use rnic_core::testing::sctp::{VirtualAssociation, VirtualAssociations};
use rnic_core::testing::simulation::TestQp;
use rnic_core::verbs::status::WcStatus;
use rnic_core::wire::session::Function;

use crate::common::{all_rights, outcome, pattern, recv, send, send_header, write_header};
use crate::{SECOND, Sessions, sessions};

const SEGMENT: u32 = 16;
const CONTROL: u32 = 17;
const PORT: u16 = 7174;

/// A control message: DDP-SSN, function code, private data.
fn control(ssn: u16, function: u16, private_data: &[u8]) -> Vec<u8> {
    [
        &ssn.to_be_bytes()[..],
        &function.to_be_bytes(),
        private_data,
    ]
    .concat()
}

/// A segment chunk.
fn segment(ssn: u16, segment: &[u8]) -> Vec<u8> {
    [&ssn.to_be_bytes()[..], segment].concat()
}

/// A whole Send message.
fn message(ssn: u16, msn: u32, payload: &[u8]) -> Vec<u8> {
    segment(ssn, &ddp(send_header(msn), payload))
}

/// Returns all that has come to the peer: stream, protocol and octets.
fn taken(sim: &mut Sessions, peer: &mut VirtualAssociation) -> Vec<(u16, u32, Vec<u8>)> {
    sim.run_for(SECOND / 10);
    std::iter::from_fn(|| peer.take_chunk()).collect()
}

/// Has host 0 connect to a peer that accepts by hand on stream 0.
pub(crate) fn accepted_by_hand(
    sim: &mut Sessions,
    by_hand: &VirtualAssociations,
) -> (TestQp, VirtualAssociation) {
    let (qp, mut peer) = asked(sim, by_hand);
    peer.put_chunk(0, CONTROL, &control(0, 6, &[0, 16, 0, 16]));
    sim.run_for(SECOND / 10);
    assert!(sim.hosts[0].is_established(qp.number));
    (qp, peer)
}

/// Has host 0 ask such a peer, and checks its Initiate.
fn asked(sim: &mut Sessions, by_hand: &VirtualAssociations) -> (TestQp, VirtualAssociation) {
    let qp = sim.hosts[0].create_qp();
    let remote = sim.hosts[1].socket(PORT);
    let options = ConnectionOptions {
        private_data: b"hello".to_vec(),
        ..ConnectionOptions::default()
    };
    sim.hosts[0].connect(&qp, 40_000 + qp.number.0 as u16, remote, &options);
    sim.run_for(SECOND / 100);
    let mut peer = by_hand.accept_by_hand().unwrap();
    let initiate = control(0, 5, b"\x00\x10\x00\x10hello");
    assert_eq!(taken(sim, &mut peer), [(0, CONTROL, initiate)]);
    (qp, peer)
}

/// A peer that listens by hand on host 1.
fn passive_peer() -> (Sessions, VirtualAssociations) {
    let sim = sessions();
    let by_hand = sim.hosts[1].machine().associations();
    by_hand.listen_by_hand(sim.hosts[1].socket(PORT));
    (sim, by_hand)
}

/// A peer on host 1 with an association to host 0, which listens.
fn active_peer(config: &EngineConfig) -> (Sessions, VirtualAssociation) {
    let link = rnic_core::testing::link::Impairments::default();
    let mut sim = Sessions::over(config, link, 1);
    sim.hosts[0].listen(PORT);
    sim.run_for(SECOND / 100);
    let by_hand = sim.hosts[1].machine().associations();
    let (local, remote) = (sim.hosts[1].socket(50_000), sim.hosts[0].socket(PORT));
    let peer = by_hand.connect_by_hand(local, remote);
    sim.run_for(SECOND / 10);
    (sim, peer)
}

/// Accepts the last request at host 0.
fn accept(sim: &mut Sessions) -> TestQp {
    let qp = sim.hosts[0].create_qp();
    let request = sim.hosts[0].connect_requests().last().unwrap();
    let options = ConnectionOptions {
        private_data: b"welcome".to_vec(),
        ..ConnectionOptions::default()
    };
    sim.hosts[0].accept(request, &qp, &options);
    qp
}

const TERMINATE: [u8; 2] = [0, 4];

#[test]
fn a_session_is_initiated_used_and_terminated() {
    // rfc: 5043-2, 5043-3, 5043-11
    let (mut sim, by_hand) = passive_peer();
    let (mut qp, mut peer) = accepted_by_hand(&mut sim, &by_hand);
    let data = pattern(10);
    let here = sim.hosts[0].share(&data, all_rights());
    sim.hosts[0].post_send(&mut qp, send(1, &here, 10));
    sim.hosts[0].post_send(&mut qp, send(2, &here, 10));
    sim.hosts[0].command(Command::Disconnect(qp.number));
    let expected = [
        (0, SEGMENT, message(1, 1, &data)),
        (0, SEGMENT, message(2, 2, &data)),
        (0, CONTROL, [[0, 3], TERMINATE].concat()),
    ];
    assert_eq!(taken(&mut sim, &mut peer), expected);
    // A peer need not answer. Then the stream is not used again.
    sim.run_for(SECOND * 6);
    assert_eq!(sim.hosts[0].end_of(qp.number), Some(EndReason::Local));
    assert!(
        qp.poll()
            .iter()
            .all(|one| outcome(one).2 == WcStatus::Success)
    );
}

#[test]
fn segments_are_placed_as_they_come_and_delivered_in_order() {
    // rfc: 5043-26
    let (mut sim, by_hand) = passive_peer();
    let (mut qp, mut peer) = accepted_by_hand(&mut sim, &by_hand);
    let memory = sim.hosts[0].share(&[0; 20], all_rights());
    let got = sim.hosts[0].share(&[0; 20], all_rights());
    sim.hosts[0].post_recv(&mut qp, recv(7, &got, 20));
    let written = |offset, octets: &[u8]| ddp(write_header(memory.stag, offset), octets);
    peer.put_chunk(0, SEGMENT, &message(3, 1, b"told"));
    peer.put_chunk(0, SEGMENT, &segment(2, &written(4, b"second")));
    sim.run_for(SECOND / 10);
    assert_eq!(memory.content()[..10], *b"\0\0\0\0second");
    assert!(qp.poll().is_empty());
    peer.put_chunk(0, SEGMENT, &segment(1, &written(0, b"1st ")));
    sim.run_for(SECOND / 10);
    assert_eq!(memory.content()[..10], *b"1st second");
    assert_eq!((qp.poll().len(), &got.content()[..4]), (1, &b"told"[..]));
}

/// What comes before the Accept waits for it.
#[test]
fn segments_may_overtake_the_accept() {
    let (mut sim, by_hand) = passive_peer();
    let (mut qp, mut peer) = asked(&mut sim, &by_hand);
    let got = sim.hosts[0].share(&[0; 20], all_rights());
    sim.hosts[0].post_recv(&mut qp, recv(7, &got, 20));
    peer.put_chunk(0, SEGMENT, &message(1, 1, b"early"));
    sim.run_for(SECOND / 10);
    assert!(!sim.hosts[0].is_established(qp.number));
    peer.put_chunk(0, CONTROL, &control(0, 6, &[0, 16, 0, 16]));
    sim.run_for(SECOND / 10);
    assert!(sim.hosts[0].is_established(qp.number));
    assert_eq!((qp.poll().len(), &got.content()[..5]), (1, &b"early"[..]));
}

#[test]
fn a_peer_in_the_active_role_is_served() {
    // rfc: 5043-3, 5043-6, 6581-8
    for (code, answer, depths) in [(1, 2, &[][..]), (5, 6, &[0, 4, 0, 2][..])] {
        let (mut sim, mut peer) = active_peer(&EngineConfig::default());
        let asks = [depths, b"please"].concat();
        peer.put_chunk(9, CONTROL, &control(0, code, &asks));
        sim.run_for(SECOND / 10);
        let private_data = sim.hosts[0].events.iter().find_map(|event| match event {
            Event::ConnectRequest { private_data, .. } => Some(private_data.clone()),
            _ => None,
        });
        assert_eq!(private_data.as_deref(), Some(&b"please"[..]));
        let mut qp = accept(&mut sim);
        let accept = taken(&mut sim, &mut peer);
        let (stream, protocol, octets) = &accept[0];
        assert_eq!(
            (*stream, *protocol, &octets[..4]),
            (9, CONTROL, &[0, 0, 0, answer][..])
        );
        assert_eq!(&octets[4 + depths.len()..], b"welcome");
        let got = sim.hosts[0].share(&[0; 20], all_rights());
        sim.hosts[0].post_recv(&mut qp, recv(7, &got, 20));
        peer.put_chunk(9, SEGMENT, &message(1, 1, b"data"));
        peer.put_chunk(9, CONTROL, &control(2, 4, &[]));
        assert_eq!(taken(&mut sim, &mut peer), [(9, CONTROL, vec![0, 1, 0, 4])]);
        assert_eq!(got.content()[..4], *b"data");
        assert_eq!(sim.hosts[0].end_of(qp.number), Some(EndReason::Peer));
        // The next session on the stream begins with 0 again.
        peer.put_chunk(9, CONTROL, &control(0, code, &asks));
        sim.run_for(SECOND / 10);
        assert_eq!(sim.hosts[0].connect_requests().count(), 2);
    }
}

/// A peer may begin the next session as soon as it has our Terminate, and has answered none.
#[test]
fn an_initiate_behind_our_terminate_begins_the_next_session() {
    // rfc: 5043-8
    let (mut sim, mut peer) = active_peer(&EngineConfig::default());
    peer.put_chunk(0, CONTROL, &control(0, 1, &[]));
    sim.run_for(SECOND / 10);
    let qp = accept(&mut sim);
    sim.run_for(SECOND / 10);
    sim.hosts[0].command(Command::Disconnect(qp.number));
    assert_eq!(taken(&mut sim, &mut peer).last().unwrap().2, [0, 1, 0, 4]);
    peer.put_chunk(0, CONTROL, &control(0, 1, &[]));
    sim.run_for(SECOND / 10);
    assert_eq!(sim.hosts[0].connect_requests().count(), 2);
    assert_eq!(sim.hosts[0].end_of(qp.number), Some(EndReason::Local));
}

/// RFC 6581 section 7 has enhanced data in Initiate and Accept alone.
#[test]
fn an_enhanced_reject_has_private_data_alone() {
    // rfc: 6581-7
    for said in [&b""[..], b"no", b"not now"] {
        let (mut sim, by_hand) = passive_peer();
        let (_qp, mut peer) = asked(&mut sim, &by_hand);
        peer.put_chunk(0, CONTROL, &control(0, 7, said));
        assert_eq!(taken(&mut sim, &mut peer), []);
        let rejected = sim.hosts[0].events.iter().find_map(|event| match event {
            Event::Rejected { private_data, .. } => Some(private_data.as_slice()),
            _ => None,
        });
        assert_eq!(rejected, Some(said));
    }
    for (code, answer) in [(1, 3), (5, 7)] {
        let (mut sim, mut peer) = active_peer(&EngineConfig::default());
        peer.put_chunk(0, CONTROL, &control(0, code, &[0, 4, 0, 2]));
        sim.run_for(SECOND / 10);
        let request = sim.hosts[0].connect_requests().last().unwrap();
        sim.hosts[0].command(Command::Reject {
            request,
            private_data: b"no".to_vec(),
        });
        let rejection = (0, CONTROL, control(0, answer, b"no"));
        assert_eq!(taken(&mut sim, &mut peer), [rejection]);
    }
}

/// Only an enhanced Initiate has an enhanced answer.
#[test]
fn an_enhanced_answer_to_a_plain_initiate_ends_the_session() {
    // rfc: 5043-10
    for code in [6, 7] {
        let (mut sim, by_hand) = passive_peer();
        let qp = sim.hosts[0].create_qp();
        let remote = sim.hosts[1].socket(PORT);
        let options = ConnectionOptions {
            mpa_revision: 1,
            ..ConnectionOptions::default()
        };
        sim.hosts[0].connect(&qp, 40_001, remote, &options);
        sim.run_for(SECOND / 100);
        let mut peer = by_hand.accept_by_hand().unwrap();
        let initiate = (0, CONTROL, control(0, 1, &[]));
        assert_eq!(taken(&mut sim, &mut peer), [initiate]);
        peer.put_chunk(0, CONTROL, &control(0, code, &[0, 1, 0, 1]));
        let terminate = (0, CONTROL, control(1, 4, &[]));
        assert_eq!(taken(&mut sim, &mut peer), [terminate], "code {code}");
        assert!(sim.hosts[0].failure_of(qp.number).is_some());
    }
}

/// Has a session of the active peer meet a chunk that does not fit, and returns how it ended.
fn broken(accepts: bool, protocol: u32, octets: &[u8]) -> EndReason {
    let (mut sim, mut peer) = active_peer(&EngineConfig::default());
    peer.put_chunk(0, CONTROL, &control(0, 1, &[]));
    sim.run_for(SECOND / 10);
    let qp = accepts.then(|| accept(&mut sim));
    taken(&mut sim, &mut peer);
    peer.put_chunk(0, protocol, octets);
    let answer = taken(&mut sim, &mut peer);
    let ssn = u16::from(accepts);
    assert_eq!(answer, [(0, CONTROL, control(ssn, 4, &[]))], "{octets:?}");
    let gone = |event: &Event| matches!(event, Event::RequestGone { .. });
    match qp {
        Some(qp) => sim.hosts[0].end_of(qp.number).unwrap(),
        None if sim.hosts[0].events.iter().any(gone) => EndReason::Local,
        None => panic!("{:?}", sim.hosts[0].events),
    }
}

#[test]
fn a_chunk_that_fits_no_pattern_ends_the_session() {
    // rfc: 5043-4, 5043-5, 5043-9, 5043-10, 6581-10
    let pattern = |kind| EndReason::Session(AdaptationError::Pattern(kind));
    let data = ddp(send_header(1), b"early");
    assert_eq!(broken(false, SEGMENT, &segment(1, &data)), EndReason::Local);
    for (code, function) in [
        (1, Function::Initiate),
        (2, Function::Accept),
        (3, Function::Reject),
    ] {
        let ended = broken(true, CONTROL, &control(1, code, &[]));
        assert_eq!(ended, pattern(ChunkKind::Control(function)));
    }
    for octets in [
        control(1, 8, &[]),
        control(1, 4, b"more"),
        control(1, 5, &[0; 3]),
        control(1, 2, &[0; 513]),
        vec![0, 1, 0],
    ] {
        let ended = broken(true, CONTROL, &octets);
        let is_malformed = matches!(ended, EndReason::Session(AdaptationError::Chunk(_)));
        assert!(is_malformed, "{ended:?}");
    }
    let ended = broken(true, 18, &segment(1, &data));
    assert!(matches!(
        ended,
        EndReason::Session(AdaptationError::Chunk(_))
    ));
    // A number twice.
    let ended = broken(true, SEGMENT, &segment(0, &data));
    assert_eq!(ended, EndReason::Session(AdaptationError::Repeated(0)));
}

#[test]
fn chunks_ahead_of_a_missing_one_are_kept_within_bounds() {
    // rfc: 5043-s8
    let (mut sim, mut peer) = active_peer(&EngineConfig::default());
    peer.put_chunk(0, CONTROL, &control(0, 1, &[]));
    sim.run_for(SECOND / 10);
    let qp = accept(&mut sim);
    taken(&mut sim, &mut peer);
    // For a receive that is not there: it cannot be placed. Number 1 never comes.
    let mut number = 2;
    while sim.hosts[0].end_of(qp.number).is_none() {
        assert!(number < 10_000);
        let octets = message(number, 5, &[7; 1400]);
        peer.put_chunk(0, SEGMENT, &octets);
        number += 1;
        sim.run_for(SECOND / 1000);
    }
    let ended = sim.hosts[0].end_of(qp.number);
    assert_eq!(
        ended,
        Some(EndReason::Session(AdaptationError::TooFarAhead))
    );
    assert!(number > 4000);
}

#[test]
fn sessions_beyond_the_backlog_are_refused_by_a_terminate() {
    // rfc: 5043-7, 5043-12, 5043-13, 5043-14
    let config = EngineConfig {
        backlog: 2,
        ..EngineConfig::default()
    };
    let (mut sim, mut peer) = active_peer(&config);
    for stream in 0..4 {
        peer.put_chunk(stream, CONTROL, &control(0, 1, &[]));
    }
    let refused = |stream| (stream, CONTROL, control(0, 4, &[]));
    assert_eq!(taken(&mut sim, &mut peer), [refused(2), refused(3)]);
    assert_eq!(sim.hosts[0].connect_requests().count(), 2);
    // Those that wait are not concerned.
    accept(&mut sim);
    assert_eq!(taken(&mut sim, &mut peer).len(), 1);
}

/// Where nobody listens on an association, a session is refused too, and what begins none.
#[test]
fn what_is_for_no_session_is_refused() {
    // rfc: 5043-10
    let (mut sim, by_hand) = passive_peer();
    let (_qp, mut peer) = accepted_by_hand(&mut sim, &by_hand);
    peer.put_chunk(3, CONTROL, &control(0, 1, &[]));
    peer.put_chunk(4, SEGMENT, &message(0, 1, b"lost"));
    let refused = |stream| (stream, CONTROL, control(0, 4, &[]));
    assert_eq!(taken(&mut sim, &mut peer), [refused(3), refused(4)]);
    peer.put_chunk(3, CONTROL, &control(1, 4, &[]));
    assert_eq!(taken(&mut sim, &mut peer), []);
}

/// A peer whose SCTP is not for DDP gets nothing of it.
#[test]
fn without_the_indication_of_ddp_there_is_no_ddp() {
    // rfc: 5043-29, 5043-30, 5043-31, 5043-s3
    for indication in [None, Some(0), Some(2)] {
        let (mut sim, by_hand) = passive_peer();
        by_hand.set_indication(indication, 16);
        let qp = sim.hosts[0].create_qp();
        let remote = sim.hosts[1].socket(PORT);
        sim.hosts[0].connect(&qp, 40_001, remote, &ConnectionOptions::default());
        sim.run_for(SECOND / 10);
        let failure = sim.hosts[0].failure_of(qp.number);
        assert_eq!(failure, Some(EndReason::NoAdaptation), "{indication:?}");
        let mut peer = by_hand.accept_by_hand().unwrap();
        assert_eq!((peer.take_chunk(), peer.is_over()), (None, true));

        let mut sim = sessions();
        sim.hosts[0].listen(PORT);
        sim.run_for(SECOND / 100);
        let by_hand = sim.hosts[1].machine().associations();
        by_hand.set_indication(indication, 16);
        let (local, remote) = (sim.hosts[1].socket(50_000), sim.hosts[0].socket(PORT));
        let mut peer = by_hand.connect_by_hand(local, remote);
        sim.run_for(SECOND / 10);
        assert_eq!((peer.take_chunk(), peer.is_over()), (None, true));
        assert_eq!(sim.hosts[0].connect_requests().count(), 0);
    }
}

/// An Initiate that is not answered is given up, but its Terminate never overtakes it.
#[test]
fn a_session_that_is_given_up_is_terminated_behind_its_initiate() {
    // rfc: 5043-17, 5043-18
    let (mut sim, by_hand) = passive_peer();
    let associations = sim.hosts[0].machine().associations();
    associations.hold_stream(Some(0));
    let qp = sim.hosts[0].create_qp();
    let remote = sim.hosts[1].socket(PORT);
    sim.hosts[0].connect(&qp, 40_001, remote, &ConnectionOptions::default());
    sim.run_for(SECOND / 100);
    let mut peer = by_hand.accept_by_hand().unwrap();
    sim.hosts[0].command(Command::Abort(qp.number));
    assert_eq!(taken(&mut sim, &mut peer), []);
    assert_eq!(sim.hosts[0].failure_of(qp.number), Some(EndReason::Local));
    associations.hold_stream(None);
    let came = taken(&mut sim, &mut peer);
    let came: Vec<_> = came.iter().map(|(_, _, octets)| &octets[..4]).collect();
    assert_eq!(came, [[0, 0, 0, 5], [0, 1, 0, 4]]);
}

/// A stream of which a chunk may still come is not used again.
#[test]
fn the_stream_of_a_peer_that_did_not_end_is_not_used_again() {
    // rfc: 5043-19
    let (mut sim, by_hand) = passive_peer();
    let (first, mut peer) = accepted_by_hand(&mut sim, &by_hand);
    // It keeps the association.
    let second = sim.hosts[0].create_qp();
    let remote = sim.hosts[1].socket(PORT);
    sim.hosts[0].connect(&second, 40_002, remote, &ConnectionOptions::default());
    assert_eq!(taken(&mut sim, &mut peer)[0].0, 1);
    peer.put_chunk(1, CONTROL, &control(0, 6, &[0, 16, 0, 16]));
    sim.run_for(SECOND / 10);
    assert!(sim.hosts[0].is_established(second.number));
    sim.hosts[0].command(Command::Disconnect(first.number));
    sim.run_for(SECOND * 6);
    taken(&mut sim, &mut peer);
    let third = sim.hosts[0].create_qp();
    sim.hosts[0].connect(&third, 40_003, remote, &ConnectionOptions::default());
    assert_eq!(taken(&mut sim, &mut peer)[0].0, 2);
}
