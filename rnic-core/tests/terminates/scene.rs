//! A connection to a raw peer that makes an error, and the checks of what follows.

use crate::common::*;
use rnic_core::connection::{ConnectionOptions, EndReason};
use rnic_core::ids::PdId;
use rnic_core::memory::table::Access;
use rnic_core::testing::raw_peer::fpdu;
use rnic_core::testing::simulation::{SharedRegion, Simulation, TestQp};
use rnic_core::verbs::{status::WcStatus, wr::WcOpcode};
use rnic_core::wire::ddp::{DdpHeader, MessageOffset, Msn, QueueNumber, UntaggedHeader};
use rnic_core::wire::rdmap::{Opcode, ReadRequest, Terminate, TerminateControl};

/// Octets of each region and of each receive.
pub(crate) const LEN: usize = 64;

/// Reads that the raw peer may have outstanding.
pub(crate) const IRD: u16 = 4;

/// A connection to a raw peer, memory with different rights, and another connection that must not
/// be affected.
pub(crate) struct Scene {
    pub(crate) sim: Simulation,
    pub(crate) peer: usize,
    pub(crate) qp: TestQp,
    /// The peer has every right to it.
    pub(crate) open: SharedRegion,
    /// The peer has no right to it.
    pub(crate) shut: SharedRegion,
    /// It belongs to another protection domain.
    pub(crate) foreign: SharedRegion,
    /// The receives for its Sends.
    pub(crate) inbox: SharedRegion,
    pub(crate) bystanders: (TestQp, TestQp),
}

pub(crate) fn scene(receives: u64) -> Scene {
    let mut sim = simulation();
    let options = ConnectionOptions {
        ird: IRD,
        ..ConnectionOptions::default()
    };
    let bystanders = sim.connect(&options).unwrap();
    let RawConnection { peer, mut qp } = accept_raw(&mut sim, &options);
    let open = sim.hosts[0].share(&pattern(LEN), all_rights());
    let shut = sim.hosts[0].share(&[0; LEN], Access::LOCAL_WRITE);
    let foreign = sim.hosts[0].share_with(&[0; LEN], all_rights(), PdId(9));
    let inbox = sim.hosts[0].share(&[0; LEN], Access::LOCAL_WRITE);
    for id in 0..receives {
        let receive = recv(id, &inbox, LEN);
        sim.hosts[0].post_recv(&mut qp, receive);
    }
    sim.run_now();
    Scene {
        sim,
        peer,
        qp,
        open,
        shut,
        foreign,
        inbox,
        bystanders,
    }
}

/// What a Terminate must quote of the segment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Quotes {
    Nothing,
    Segment,
    SegmentAndRead(ReadRequest),
}

impl Scene {
    /// Sends a ULPDU that is in error, and checks the Terminate.
    pub(crate) fn wrong(self, name: &str, ulpdu: &[u8], numbers: (u8, u8, u8), quotes: Quotes) {
        let octets = fpdu(ulpdu, true);
        self.wrong_octets(name, &octets, ulpdu, numbers, quotes);
    }

    pub(crate) fn wrong_octets(
        mut self,
        name: &str,
        octets: &[u8],
        ulpdu: &[u8],
        numbers: (u8, u8, u8),
        quotes: Quotes,
    ) {
        self.sim.raw[self.peer].send(octets);
        self.sim.run_now();
        // Sending it again changes nothing.
        self.sim.raw[self.peer].send(octets);
        self.sim.run_now();
        self.assert_terminated(name, ulpdu, numbers, quotes);
        self.assert_memory_untouched(name);
        self.assert_bystanders_unhurt(name);
    }

    /// Checks that nothing was written where the peer has no right.
    pub(crate) fn assert_memory_untouched(&self, name: &str) {
        assert_eq!(self.open.content(), pattern(LEN), "{name}: open memory");
        assert_eq!(self.shut.content(), [0; LEN], "{name}: shut memory");
        assert_eq!(self.foreign.content(), [0; LEN], "{name}: foreign memory");
    }

    /// Checks that the application was told the peer's Terminate, and that nothing was sent in
    /// return.
    pub(crate) fn assert_peer_terminated(mut self, name: &str, control: TerminateControl) {
        let reason = self.sim.hosts[0].end_of(self.qp.number);
        assert!(
            matches!(&reason, Some(EndReason::TerminateReceived { control: told, .. }) if *told == control),
            "{name}: {reason:?}"
        );
        let raw = &mut self.sim.raw[self.peer];
        assert_eq!(raw.take_ulpdu(), None, "{name}: it is answered");
        assert!(raw.finished && !raw.reset, "{name}");
        assert_eq!(ends(&self.sim, 0, &self.qp), 1, "{name}");
        let rdma = self.sim.hosts[0].snapshot(self.sim.now).rdma;
        let counted = (rdma.terminates_received, rdma.terminates_sent);
        assert_eq!(counted, (1, 0), "{name}");
        self.assert_memory_untouched(name);
        self.assert_bystanders_unhurt(name);
    }

    pub(crate) fn assert_terminated(
        &mut self,
        name: &str,
        ulpdu: &[u8],
        (layer, error_type, code): (u8, u8, u8),
        quotes: Quotes,
    ) {
        let control = TerminateControl {
            layer,
            error_type,
            code,
        };
        let raw = &mut self.sim.raw[self.peer];
        let (header, payload) = raw
            .take_ddp()
            .unwrap_or_else(|| panic!("{name}: no answer"));
        let expected = untagged(Opcode::Terminate, QueueNumber::TERMINATE, 1, true);
        // rfc: 5041-71, 5041-s7, 5041-s12
        assert_eq!(header, DdpHeader::Untagged(expected), "{name}");
        let terminate = Terminate::parse(&payload).unwrap();
        assert_eq!(terminate.control, control, "{name}: {}", terminate.control);
        assert_eq!(terminate.len(), payload.len(), "{name}");
        // rfc: 5040-20, 5040-21, 5040-22, 5040-23
        let tagged = ulpdu.first().is_some_and(|first| first & 0x80 != 0);
        let header = ulpdu.get(..if tagged { 14 } else { 18 });
        let (segment, request) = match quotes {
            Quotes::Nothing => (None, None),
            Quotes::Segment => (header, None),
            Quotes::SegmentAndRead(request) => (header, Some(request)),
        };
        assert_eq!(terminate.ddp_header, segment, "{name}");
        let len = segment.map(|_| ulpdu.len() as u16);
        assert_eq!(terminate.ddp_segment_length, len, "{name}");
        let quoted = terminate
            .rdma_header
            .map(|octets| ReadRequest::parse(octets).unwrap());
        assert_eq!(quoted, request, "{name}");
        // rfc: 5040-68, 5040-85, 5041-10
        assert_eq!(raw.take_ulpdu(), None, "{name}: more after the Terminate");
        // rfc: 5040-86, 5040-s6
        assert!(raw.finished && !raw.reset, "{name}");

        let number = self.qp.number;
        let reason = self.sim.hosts[0].end_of(number);
        assert!(
            matches!(&reason, Some(EndReason::TerminateSent { control: sent, .. }) if *sent == control),
            "{name}: {reason:?}"
        );
        assert_eq!(ends(&self.sim, 0, &self.qp), 1, "{name}");
        let rdma = self.sim.hosts[0].snapshot(self.sim.now).rdma;
        assert_eq!(rdma.terminates_sent, 1, "{name}");
        self.sim.raw[self.peer].close();
        self.sim.run_now();
        let later = empty_recv(99);
        self.sim.hosts[0].post_recv(&mut self.qp, later);
        self.sim.run_now();
        let flushed = (99, WcOpcode::Recv, WcStatus::WrFlushed);
        assert_eq!(outcomes(&mut self.qp).last(), Some(&flushed), "{name}");
    }

    pub(crate) fn assert_bystanders_unhurt(&mut self, name: &str) {
        let (active, passive) = &mut self.bystanders;
        let target = self.sim.hosts[1].share(&[0; LEN], all_rights());
        self.sim.hosts[1].post_recv(passive, empty_recv(1));
        let wr = write(1, &self.open, target.stag, LEN);
        self.sim.hosts[0].post_send(active, wr);
        self.sim.hosts[0].post_send(active, inline_send(2, &[]));
        let sent = completions(&mut self.sim, active, 2, SECOND);
        assert!(
            sent.iter().all(|c| c.status() == WcStatus::Success),
            "{name}"
        );
        assert_eq!(target.content(), self.open.content(), "{name}");
        assert_eq!(ends(&self.sim, 0, active), 0, "{name}");
    }
}

/// A segment to a queue with an MSN and an MO, as the last of its message.
pub(crate) fn at(queue: u32, msn: u32, offset: u32) -> UntaggedHeader {
    UntaggedHeader {
        offset: MessageOffset(offset),
        msn: Msn(msn),
        ..untagged(Opcode::Send, QueueNumber(queue), 1, true)
    }
}
