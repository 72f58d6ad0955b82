//! Control messages in RDMAP: what they change for the requester, and when they are sent.

use std::time::Duration;

use super::message::Outbound;
use super::receiver_not_ready::FlowState;
use super::{News, Rdmap, RdmapError, Urgent};
use crate::time::Instant;
use crate::verbs::{QueuePair, cq::CqTable};
use crate::wire::ddp::{DdpHeader, QueueNumber};
use crate::wire::rdmap::{Readiness, Receipt};

impl Rdmap {
    /// Keeps the semantics of RC, and knows its opcodes: the peers have agreed on that. The peer is asked to wait for `min_rnr_timer` where it finds no
    /// receive. The [queue](super::FLOW_CONTROL_QUEUE) of Control messages must be open.
    pub fn keep_rc(&mut self, min_rnr_timer: Duration) {
        self.requester.rc = true;
        self.flow = Some(Box::new(FlowState::new(min_rnr_timer)));
    }

    /// Returns whether a Control message has its place in the queue of this segment.
    pub(super) fn has_flow_control(&self, header: &DdpHeader) -> bool {
        let in_queue = matches!(header, DdpHeader::Untagged(header)
            if header.queue == QueueNumber::FLOW_CONTROL);
        in_queue && self.flow.is_some()
    }

    pub(super) fn handle_flow_control(&mut self, octets: &[u8]) -> Result<(), RdmapError> {
        let Some(flow) = &mut self.flow else {
            return Ok(());
        };
        if flow.receipts.told.is_some()
            && let Some(Receipt(offset)) = Receipt::parse(octets)
        {
            self.news = Some(Box::new(News::Receipt(offset)));
            return Ok(());
        }
        match flow.receive(octets).map_err(RdmapError::Malformed)? {
            None => return Ok(()),
            Some(Readiness::NotReady) => self.requester.pause(),
            Some(Readiness::Ready) => self.requester.resume(),
        }
        self.news = Some(Box::new(News::FlowControl));
        Ok(())
    }

    /// Makes the message that is sent before all others.
    #[cold]
    pub(super) fn urgent_message(&mut self, urgent: Urgent) -> Option<Outbound> {
        match urgent {
            Urgent::Rtr(rtr) => {
                self.requester.begin_rtr(rtr);
                // What the peer is to be told of our receives has waited for this message.
                self.urgent = self.flow.is_some().then_some(Urgent::FlowControl);
                // rfc: 6581-31 the message that was agreed on
                Some(rtr.message())
            }
            Urgent::FlowControl => {
                let flow = self.flow.as_mut()?;
                let message = flow.next_message();
                self.urgent = flow.has_message().then_some(Urgent::FlowControl);
                message
            }
        }
    }

    /// Returns, once, whether the peer has told that it can take no more, or can again.
    pub fn take_flow_control(&mut self) -> bool {
        let is_flow = |news: &mut Box<News>| matches!(**news, News::FlowControl);
        self.news.take_if(is_flow).is_some()
    }

    /// Notes whether a message of the peer waits for a receive. The peer is told.
    pub fn set_lacks_receive(&mut self, lacks: bool) {
        if let Some(flow) = &mut self.flow
            && flow.set_lacks_receive(lacks)
        {
            self.urgent.get_or_insert(Urgent::FlowControl);
        }
    }

    /// Returns whether the peer has told that it has no receive for us.
    pub fn is_peer_not_ready(&self) -> bool {
        let flow = self.flow.as_ref();
        flow.is_some_and(|flow| flow.is_peer_not_ready())
    }

    /// Returns until when the requester waits for the peer's receives, if it does and has a limit.
    /// The wait begins with the first call.
    pub fn rnr_deadline(&mut self, now: Instant, rnr_retry: u8) -> Option<Instant> {
        self.flow.as_mut()?.deadline(now, rnr_retry)
    }

    /// Begins the wait for the peer's receives again, under another `rnr_retry`.
    pub fn wait_again(&mut self) {
        if self.is_peer_not_ready() {
            self.requester.pause();
        }
    }

    /// Handles that the wait for the peer's receives is over. The oldest request that is not
    /// finished fails. Returns false if there is none: then the next one that is posted fails.
    pub fn rnr_exceeded(&mut self, qp: &mut QueuePair, cqs: &mut CqTable) -> bool {
        self.requester.not_ready(qp, cqs)
    }
}
