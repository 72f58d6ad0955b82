//! The chunks of the peer: their turns, and what is done with each.

use crate::adaptation::{AdaptationError, ChunkKind, Turn};
use crate::connection::{Associations, Connection, Context, EndReason, Phase};
use crate::wire::session::{Body, CONTROL_LEN, Function, SessionChunk};

use super::startup_form::frame_of;
use super::{Early, SctpSession};

impl<L: Associations> Connection<SctpSession<L>> {
    /// Receives a chunk.
    // rfc: 5043-10 what fits no pattern ends the session
    pub(crate) fn receive_chunk(
        &mut self,
        protocol: u32,
        octets: &[u8],
        context: &mut Context<'_, '_>,
    ) {
        self.tcp.liveness.on_segment(context.now);
        if let Phase::Streaming(stream) = &mut self.phase {
            stream.note_acked(self.tcp.session.acked());
        }
        if let Err(error) = self.sort_in(protocol, octets, context)
            && self.tcp.failure.is_none()
        {
            self.fail(EndReason::Session(error), context);
        }
        if let Phase::Streaming(stream) = &mut self.phase {
            stream.send_receipt(self.tcp.arrivals.in_order());
        }
        if !self.settle_acked(context) {
            self.settle(context);
        }
    }

    /// Handles a chunk and those whose turn it makes, or keeps it for later.
    // rfc: 5043-26 the order is that of DDP-SSNs
    fn sort_in(
        &mut self,
        protocol: u32,
        octets: &[u8],
        context: &mut Context<'_, '_>,
    ) -> Result<(), AdaptationError> {
        let chunk = SessionChunk::parse(protocol, octets)?;
        if let Turn::Later(at) = self.tcp.arrivals.turn(chunk.ssn)? {
            let early = self.place_early(protocol, octets, &chunk.body, context);
            return self.tcp.keep(at, early);
        }
        self.tcp.arrivals.pass();
        self.take(&chunk.body, context)?;
        while let Some(early) = self.tcp.arrivals.take_next() {
            self.tcp.kept = self.tcp.kept.saturating_sub(early.memory());
            match early {
                Early::Placed(placed) => {
                    self.tcp.session.receive(ChunkKind::Segment)?;
                    if let Phase::Streaming(stream) = &mut self.phase {
                        stream.deliver_segment(*placed, context);
                    }
                }
                Early::Aside { protocol, octets } => {
                    let chunk = SessionChunk::parse(protocol, &octets)?;
                    self.take(&chunk.body, context)?;
                }
            }
        }
        Ok(())
    }

    /// Places a segment that has come ahead of order, or has it wait.
    fn place_early(
        &mut self,
        protocol: u32,
        octets: &[u8],
        body: &Body<'_>,
        context: &mut Context<'_, '_>,
    ) -> Early {
        let mut needed = octets;
        match (&mut self.phase, body) {
            (Phase::Streaming(stream), Body::Segment(segment)) => {
                if let Some(placed) = stream.place_segment(segment, context) {
                    return Early::Placed(Box::new(placed));
                }
            }
            // Of a session that is over, only the order still counts.
            (Phase::Closing, _) => needed = &octets[..octets.len().min(CONTROL_LEN)],
            _ => {}
        }
        Early::Aside {
            protocol,
            octets: needed.into(),
        }
    }

    /// Handles a chunk in order.
    // rfc: 5043-9, 5043-10 in the order of DDP-SSNs, by the patterns
    fn take(
        &mut self,
        body: &Body<'_>,
        context: &mut Context<'_, '_>,
    ) -> Result<(), AdaptationError> {
        let kind = ChunkKind::from(body);
        // A plain Initiate has no enhanced answer (RFC 6581 section 7). Of an Accept MPA sees it.
        if kind == ChunkKind::Control(Function::EnhancedReject)
            && matches!(&self.phase, Phase::Connecting(one) if !one.initiator.is_enhanced())
        {
            return Err(AdaptationError::Pattern(kind));
        }
        self.tcp.session.receive(kind)?;
        match body {
            Body::Segment(segment) => {
                if let Phase::Streaming(stream) = &mut self.phase {
                    stream.receive_segment(segment, context);
                }
            }
            Body::Control(message) if message.function == Function::Terminate => {}
            Body::Control(message) => {
                let revision = match &self.phase {
                    Phase::Connecting(connecting) => connecting.options.mpa_revision,
                    _ => 1,
                };
                self.consume(&frame_of(message, revision), context);
            }
        }
        if self.tcp.session.peer_has_ended() {
            self.tcp.enter(self.tcp.state.after_peer_fin());
            self.tcp.follow_acks();
        }
        Ok(())
    }
}
