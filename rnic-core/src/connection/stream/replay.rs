//! The parked segments of a stream: when parking begins, how they are received in the end, and when
//! it is over.

use crate::connection::Context;
use crate::connection::terminate::StreamError;
use crate::connection::upper::{LocalUlp, RdmapUser};
use crate::counters::RdmaCounters;
use crate::ddp::{MessageInProgress, Placed};
use crate::rdmap;

use super::parked::ParkedSegment;
use super::{Intake, Stream};

impl Stream {
    /// Returns whether requests of the peer are parked.
    pub(in crate::connection) fn is_parked(&self) -> bool {
        self.intake == Intake::Parked
    }

    /// Returns the memory that parked segments take.
    pub(in crate::connection) fn parked_octets(&self) -> usize {
        self.parked.as_ref().map_or(0, |parked| parked.memory)
    }

    /// Returns how many octets make the receive window smaller, and how many must be let in
    /// nevertheless.
    pub(in crate::connection) fn held_octets(&self, counters: &RdmaCounters) -> (usize, usize) {
        let parked = self.parked.as_ref();
        match parked.map_or(0, |parked| parked.beyond_share(counters)) {
            0 => (self.buffered(), self.missing()),
            // Nothing more is let in, or a peer could go on for ever, one FPDU at a time.
            beyond => (self.buffered() + beyond, 0),
        }
    }

    /// Begins to park: the first segment was [kept](super::parked::keep).
    #[cold]
    pub(super) fn begin_parking(&mut self, context: &mut Context<'_, '_>) {
        self.intake = Intake::Parked;
        self.choose_paths();
        context.counters.rdma.streams_parked += 1;
        context.counters.rdma.streams_parked_now += 1;
        if let LocalUlp::Rdmap(user) = &mut self.user {
            user.rdmap.set_lacks_receive(true);
        }
        self.wait_for_receive(context);
        if self.user.shares_receives() {
            // One that was posted since rings no bell.
            self.replay(1, context);
        }
    }

    /// Lets the engine call when a receive is posted to the shared queue. For a queue of its own
    /// the doorbell does.
    fn wait_for_receive(&mut self, context: &mut Context<'_, '_>) {
        if let (LocalUlp::Rdmap(RdmapUser { qp, .. }), Some(parked)) =
            (&self.user, &mut self.parked)
            && let Some(srq) = qp.rq.shared()
            && !std::mem::replace(&mut parked.waits, true)
        {
            context.srqs.wait(srq, qp.number);
        }
    }

    /// Notes that the engine calls it, because of a shared receive.
    pub(in crate::connection) fn called(&mut self) {
        if let Some(parked) = &mut self.parked {
            parked.waits = false;
        }
    }

    /// Receives what is parked, in its order, until there is no receive for it, or `most` messages
    /// have taken one. Returns whether anything was received.
    pub(in crate::connection) fn replay(
        &mut self,
        most: usize,
        context: &mut Context<'_, '_>,
    ) -> bool {
        let Some(mut parked) = self.parked.take() else {
            return false;
        };
        let (mut any, mut taken) = (false, 0);
        loop {
            let may_take = taken < most || self.has_taken_receive();
            let Some(segment) = parked.pop(may_take, &mut context.counters.rdma) else {
                break;
            };
            let outcome = match self.receive_parked(&segment, &mut parked.request, context) {
                Err(error) if error.lacks_receive() => {
                    parked.put_back(segment, &mut context.counters.rdma);
                    break;
                }
                outcome => outcome,
            };
            any = true;
            taken += usize::from(segment.takes_receive() == (true, true));
            self.conclude(outcome, context);
            if self.ended {
                self.parked = Some(parked);
                self.forget_parked(context);
                return true;
            }
        }
        self.parked = Some(parked);
        self.settle_parked(context);
        any
    }

    /// Returns whether the next message has a shared receive already: a segment of it was placed
    /// ahead of order, before the stream was parked.
    fn has_taken_receive(&self) -> bool {
        match &self.user {
            LocalUlp::Rdmap(RdmapUser { qp, .. }) => qp.rq.is_shared() && qp.rq.peek(0).is_some(),
            LocalUlp::Endpoint(_) => false,
        }
    }

    /// Receives a parked segment, which belongs to the order of the requests.
    fn receive_parked(
        &mut self,
        segment: &ParkedSegment,
        request: &mut MessageInProgress,
        context: &mut Context<'_, '_>,
    ) -> Result<(), StreamError> {
        let guard = context.guard;
        self.ddp.exchange_message(request);
        let upper = &mut self.user.receiving(context, self.acked);
        let received = match segment {
            ParkedSegment::Ulpdu(ulpdu) => self
                .ddp
                .receive(ulpdu, upper, guard)
                .map_err(|error| error.about(ulpdu)),
            ParkedSegment::Placed(placed) => self
                .ddp
                .deliver(**placed, upper, guard)
                .map(|()| 0)
                .map_err(|error| error.about_placed(placed)),
        };
        self.ddp.exchange_message(request);
        context.counters.rdma.octets_placed += u64::from(*received.as_ref().unwrap_or(&0));
        received.map(|_| ())
    }

    /// Ends the parking if nothing is parked any more. Otherwise waits for the next receive.
    fn settle_parked(&mut self, context: &mut Context<'_, '_>) {
        let Some(parked) = &mut self.parked else {
            return;
        };
        // A request and a response in progress at once: no such peer keeps the order of its own
        // messages. The stream stays as it is until one of them has ended.
        let both = parked.request.is_some() && self.ddp.is_amid_message();
        if !parked.is_empty() || both {
            return self.wait_for_receive(context);
        }
        if parked.request.is_some() {
            self.ddp.exchange_message(&mut parked.request);
        }
        self.forget_parked(context);
        if let LocalUlp::Rdmap(user) = &mut self.user {
            user.rdmap.set_lacks_receive(false);
        }
    }

    /// Parks an FPDU that was placed ahead of order, if it is a request of a parked stream. Returns
    /// whether it was parked.
    pub(super) fn parks_placed(&mut self, placed: &Placed, context: &mut Context<'_, '_>) -> bool {
        let parks = self.is_parked() && rdmap::is_request(placed.header());
        if parks {
            let segment = ParkedSegment::Placed(Box::new(*placed));
            let parked = self.parked.get_or_insert_default();
            parked.push(segment, &mut context.counters.rdma);
        }
        parks
    }

    /// Drops what is parked: it was received, or the stream is over.
    pub(in crate::connection) fn forget_parked(&mut self, context: &mut Context<'_, '_>) {
        let Some(mut parked) = self.parked.take() else {
            return;
        };
        self.intake = Intake::Usual;
        self.choose_paths();
        parked.clear(&mut context.counters.rdma);
        context.counters.rdma.streams_parked_now -= 1;
        if let LocalUlp::Rdmap(RdmapUser { qp, .. }) = &self.user
            && let Some(srq) = qp.rq.shared()
            && parked.waits
        {
            context.srqs.leave(srq, qp.number);
        }
    }
}
