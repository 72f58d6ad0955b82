//! Our chunks: which one is next, and its way to the kernel.

use crate::adaptation::ChunkKind;
use crate::connection::association::LEAST_CHUNK;
use crate::connection::{
    AssociationSocket, Associations, Connection, Context, OutgoingChunk, Phase, Transport,
};
use crate::wire::session::{CONTROL, SEGMENT, SSN_LEN, SessionControl};

use super::{Built, SctpSession};

impl<L: Associations> Connection<SctpSession<L>> {
    /// Hands chunks to the kernel, as many as it takes and `most` at most. Returns how many it took,
    /// and whether it has room for more.
    pub(crate) fn send_chunks(
        &mut self,
        staging: &mut [u8],
        socket: &mut L::Socket,
        most: u64,
        context: &mut Context<'_, '_>,
    ) -> (u64, bool) {
        let mut sent = 0;
        let Some(stream) = self.tcp.stream.filter(|_| !self.tcp.is_gone) else {
            return (0, true);
        };
        if let Phase::Streaming(streaming) = &mut self.phase {
            streaming.execute_local(self.tcp.takes_segments(), context);
        }
        // rfc: 5043-22, 5043-23 no longer than SCTP takes without cutting it, or 516 octets
        self.tcp.max_chunk = socket.max_chunk().clamp(LEAST_CHUNK, staging.len());
        let mut has_room = true;
        while sent < most && has_room {
            let Some(built) = self.next_chunk(staging, context) else {
                break;
            };
            let ssn = self.tcp.session.submitted() as u16;
            staging[..SSN_LEN].copy_from_slice(&ssn.to_be_bytes());
            let octets = &staging[..built.len];
            let chunk = OutgoingChunk {
                stream,
                protocol: match built.kind {
                    ChunkKind::Segment => SEGMENT,
                    ChunkKind::Control(_) => CONTROL,
                },
                octets,
                urgent: built.urgent,
            };
            self.tcp.liveness.on_outstanding(context.now);
            has_room = socket.send(&chunk) == Ok(true);
            if has_room {
                self.tcp.submitted(built.kind);
                sent += 1;
            } else {
                // A failure is received too.
                self.tcp.pending = Some((built, octets.to_vec()));
            }
        }
        if self.tcp.is_closed() {
            self.settle(context);
        }
        (sent, has_room)
    }

    /// Builds the next chunk that may be sent now. Its number is filled in later.
    fn next_chunk(&mut self, staging: &mut [u8], context: &mut Context<'_, '_>) -> Option<Built> {
        if let Some((built, octets)) = self.tcp.pending.take() {
            staging[..octets.len()].copy_from_slice(&octets);
            return Some(built);
        }
        if self.tcp.failure.is_some() {
            return self.last_chunk(staging);
        }
        if !self.tcp.frame.is_empty() {
            return self.tcp.build_control(staging);
        }
        let may_send = self.tcp.takes_segments();
        if may_send
            && self.loose_octets.is_empty()
            && let Phase::Streaming(stream) = &mut self.phase
        {
            let end = self.tcp.session.submitted() + 1;
            // rfc: 5043-24 no segment is longer than that
            let room = &mut staging[SSN_LEN..self.tcp.max_chunk];
            if let Some((len, urgent)) = stream.build_segment(room, end, context) {
                return Some(Built {
                    kind: ChunkKind::Segment,
                    len: SSN_LEN + len,
                    urgent,
                });
            }
            self.leave_stream(context);
        }
        if may_send && !self.loose_octets.is_empty() {
            // rfc: 5043-32 RDMAP's Terminate, in front of the session's
            let len = SSN_LEN + self.loose_octets.len();
            staging[SSN_LEN..len].copy_from_slice(&self.loose_octets);
            self.loose_octets.clear();
            return Some(Built {
                kind: ChunkKind::Segment,
                len,
                urgent: true,
            });
        }
        self.finish_sending(context);
        self.last_chunk(staging)
    }

    /// Builds the Terminate if the session is to be ended, and needs one.
    // rfc: 5043-11 this side ends with a Terminate
    fn last_chunk(&mut self, staging: &mut [u8]) -> Option<Built> {
        if !self.tcp.close_asked && self.tcp.failure.is_none() {
            return None;
        }
        if self.tcp.session.is_silent() {
            if std::mem::take(&mut self.tcp.close_asked) {
                self.tcp.enter(self.tcp.state.after_close());
                self.tcp.follow_acks();
            }
            return None;
        }
        self.tcp.put_control(&SessionControl::TERMINATE, staging)
    }
}
