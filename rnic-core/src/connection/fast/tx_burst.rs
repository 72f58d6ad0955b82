//! Transmit burst: segments of new data leave one behind the other, while there are FPDUs and
//! nothing else is to be sent.
//!
//! How much may leave is computed once; the headers are written once, and copied; TCP counts the
//! segments once, behind the last.

use crate::connection::stream::Built;
use crate::connection::{Connection, Context, Phase};
use crate::ddp::Llp;
use crate::fast_paths::{FastPath, taken};
use crate::memory::frames::{RESERVED_FRAMES, TxFrames, frames_for_others};
use crate::tcp::BurstSegments;
use crate::wire::packet::ecn_field;

use super::TxTemplate;
use crate::connection::lifecycle::MpaTcp;

/// The proof that FPDUs may leave in a burst, if there are any.
pub(crate) struct TxBurst {
    segments: BurstSegments,
}

impl TxBurst {
    /// Returns the proof if there may be an FPDU to send, and nothing else to send.
    pub(crate) fn eligible(connection: &Connection, context: &Context<'_, '_>) -> Option<Self> {
        let (Some(_), Phase::Streaming(stream)) = (connection.path.template(), &connection.phase)
        else {
            return None;
        };
        let on = context.fast_paths.tx_burst;
        if !on || stream.is_at_rest() || !connection.loose_octets.is_empty() {
            return None;
        }
        let segments = BurstSegments::eligible(&connection.tcp, context.now)?;
        Some(Self { segments })
    }

    /// Sends at most `most` segments, while there are FPDUs, frames and room. Holds at most `share`
    /// frames until they are acknowledged. Returns the number of frames, and whether there surely
    /// are no more FPDUs.
    pub(crate) fn commit<F: TxFrames>(
        self,
        connection: &mut Connection,
        most: u64,
        share: usize,
        context: &mut Context<'_, '_>,
        tx: &mut F,
    ) -> (u64, bool) {
        let (Some(net), Phase::Streaming(stream)) =
            (connection.path.template_mut(), &mut connection.phase)
        else {
            return (0, false);
        };
        let (now, tcp, mut burst) = (context.now, &mut connection.tcp, self.segments);
        let segment = tcp.max_payload();
        let at = net.len() + tcp.data_header_len();
        let mulpdu = MpaTcp::new(tcp, stream.has_markers(), stream.is_inside_message()).mulpdu();
        let held = tcp.held();
        let most = most.min(share.saturating_sub(held) as u64);
        let mut left_to_others = frames_for_others(held);
        let completed = tx.completes_checksums();
        let tcp_at = net.len();
        let headers = net.begin_burst(ecn_field(burst.ecn_capable()), burst.header());
        let began = tcp.queued_offset();
        let (mut sent, mut end, mut at_rest) = (0, began, false);
        let mut template: Option<TxTemplate<'_>> = None;
        while !at_rest
            && sent < most
            && end - began + segment as u64 <= burst.room()
            && tx.can_transmit()
            && tx.available() > left_to_others
        {
            let Some(frame) = tx.allocate() else { break };
            left_to_others = RESERVED_FRAMES;
            let bytes = tx.bytes_mut(frame);
            let payload = &mut bytes[at..at + segment];
            if template.is_none() && context.fast_paths.tx_template && stream.ddp.is_sending() {
                template = TxTemplate::eligible(stream, mulpdu, context.guard);
            }
            let next = match &mut template {
                Some(template) if template.has_next() => {
                    template.commit_next(stream, payload, !completed)
                }
                _ => None,
            };
            let built = match next {
                Some(built) => {
                    context.counters.rdma.fpdus_sent += 1;
                    taken::count(FastPath::TxTemplate);
                    built
                }
                None => {
                    template = None;
                    stream.build(payload, end, mulpdu, !completed, context)
                }
            };
            let Built { len, sum, push, .. } = built;
            at_rest = built.at_rest;
            if len == 0 {
                tx.release(frame);
                break;
            }
            let payload = at as u16..at as u16 + len;
            burst.send(tcp, now, frame, payload, sum, push);
            if completed {
                let frame_len = headers.write_partial(bytes, burst.header(), len);
                tx.transmit_partial(frame, frame_len, tcp_at);
            } else {
                let frame_len = headers.write(bytes, burst.header(), len, sum);
                tx.transmit(frame, frame_len);
            }
            end += u64::from(len);
            sent += 1;
        }
        burst.commit(tcp, now);
        if sent > 0 {
            taken::count(FastPath::TxBurst);
        }
        (sent, at_rest)
    }
}
