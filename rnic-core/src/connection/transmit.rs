//! The send side: messages become FPDUs in transmit frames, and TCP decides when these leave.

use std::ops::Range;

use crate::ddp::Llp;
use crate::memory::frames::{FrameId, TxFrames, frames_for_others};
use crate::memory::parcel::Parcel;
use crate::tcp::{Outgoing, Payload};
use crate::wire::checksum;
use crate::wire::packet::{Checksums, ecn_field};
use crate::wire::template::HeaderTemplate;

use super::fast::TxBurst;
use super::lifecycle::MpaTcp;
use super::stream::Built;
use super::{Connection, Context, Phase, Transmit, Transport};

impl Connection {
    /// Sends at most `most` frames, and holds at most `share` until they are acknowledged. If their
    /// path leads back, they are copied to `back`. Returns how many were sent, and the outcome of
    /// the last attempt.
    pub(crate) fn transmit<F: TxFrames>(
        &mut self,
        most: u64,
        share: usize,
        context: &mut Context<'_, '_>,
        tx: &mut F,
        back: &mut Option<Parcel>,
    ) -> (u64, Transmit) {
        let mut sent = 0;
        while sent < most && has_room(tx) {
            if let Some(burst) = TxBurst::eligible(self, context) {
                let (frames, at_rest) = burst.commit(self, most - sent, share, context, tx);
                sent += frames;
                // A burst leaves TCP nothing to send.
                if frames > 0 && at_rest && !self.fin_asked {
                    return (sent, Transmit::Nothing);
                }
                if frames > 0 {
                    continue;
                }
            }
            match self.poll_transmit(share, context, tx, back) {
                Transmit::Sent => sent += 1,
                other => return (sent, other),
            }
            // Behind a mere ACK there mostly is nothing.
            if self.is_at_rest(context.now) {
                return (sent, Transmit::Nothing);
            }
        }
        (sent, Transmit::Sent)
    }

    /// Sends at most one frame.
    fn poll_transmit<F: TxFrames>(
        &mut self,
        share: usize,
        context: &mut Context<'_, '_>,
        tx: &mut F,
        back: &mut Option<Parcel>,
    ) -> Transmit {
        let Some(header_len) = self.path.any_template().map(HeaderTemplate::len) else {
            return Transmit::Nothing;
        };
        let starved = !self.fill(header_len, share, context, tx);
        match self.tcp.poll_transmit(context.now, tx) {
            Some(outgoing) => {
                self.emit(outgoing, tx, back);
                Transmit::Sent
            }
            None if starved => Transmit::Starved,
            None => Transmit::Nothing,
        }
    }

    /// Hands segments to TCP while it wants them. Returns false if there was no frame to build one
    /// in.
    fn fill<F: TxFrames>(
        &mut self,
        net_header_len: usize,
        share: usize,
        context: &mut Context<'_, '_>,
        tx: &mut F,
    ) -> bool {
        if let Phase::Streaming(stream) = &mut self.phase {
            stream.execute_local(self.tcp.wants_data(context.now), context);
        }
        while self.tcp.wants_data(context.now) {
            if !self.has_output(context) {
                // Beginning a message may have ended the stream: then its Terminate is left to
                // send.
                self.leave_stream(context);
                if self.loose_octets.is_empty() {
                    break;
                }
            }
            let held = self.tcp.held();
            if held >= share {
                // It goes on when frames that it holds are acknowledged or spilled.
                break;
            }
            if tx.available() <= frames_for_others(held) {
                return false;
            }
            let Some(frame) = tx.allocate() else {
                return false;
            };
            let at = net_header_len + self.tcp.data_header_len();
            let summed = !tx.completes_checksums() && !self.path.leads_back();
            let payload = &mut tx.bytes_mut(frame)[at..];
            let Built { len, sum, push, .. } = self.build(payload, summed, context);
            if len == 0 {
                tx.release(frame);
                // The source of the message was revoked. The Terminate that is sent instead always
                // has octets.
                self.leave_stream(context);
                if self.loose_octets.is_empty() {
                    break;
                }
                continue;
            }
            self.tcp.queue(frame, at as u16, len, sum);
            if push {
                self.tcp.push();
            }
        }
        self.finish_sending(context);
        true
    }

    /// Writes the headers in front of a payload and hands the frame to the device, or copies it to
    /// `back`.
    fn emit<F: TxFrames>(&mut self, outgoing: Outgoing, tx: &mut F, back: &mut Option<Parcel>) {
        let Some(net) = self.path.any_template() else {
            return;
        };
        let ecn = ecn_field(outgoing.ecn_capable);
        let header = &outgoing.header;
        let at = net.len() + header.len();
        let (frame, len, sum, keep) = match outgoing.payload {
            Payload::Whole {
                frame,
                payload_at,
                len,
                sum,
            } if usize::from(payload_at) == at => (frame, usize::from(len), sum, true),
            // The length of the headers has changed since the payload was built.
            Payload::Whole {
                frame: source,
                payload_at,
                len,
                ..
            } => {
                let from = usize::from(payload_at);
                let Some(copy) = copy_piece(tx, source, from..from + usize::from(len), at) else {
                    return;
                };
                copy
            }
            Payload::Part {
                frame: source,
                range,
            } => {
                let Some(copy) = copy_piece(tx, source, range, at) else {
                    return;
                };
                copy
            }
            Payload::Spilled(range) => {
                let Some(frame) = tx.allocate() else { return };
                let octets = self.tcp.spilled(range);
                let payload = at..at + octets.len();
                tx.bytes_mut(frame)[payload.clone()].copy_from_slice(octets);
                (frame, octets.len(), sum_of(tx, frame, payload), false)
            }
            Payload::None => {
                let Some(frame) = tx.allocate() else { return };
                (frame, 0, 0, false)
            }
        };
        if let Some(back) = back {
            let len = net.write_partial(tx.bytes_mut(frame), ecn, header, len);
            // It does not leave this process.
            back.add(&tx.bytes(frame)[..len], Checksums::Unnecessary);
        } else if tx.completes_checksums() {
            let len = net.write_partial(tx.bytes_mut(frame), ecn, header, len);
            tx.transmit_partial(frame, len, net.len());
        } else {
            let len = net.write(tx.bytes_mut(frame), ecn, header, len, sum);
            tx.transmit(frame, len);
        }
        if !keep {
            tx.release(frame);
        }
    }
}

impl<T: Transport> Connection<T> {
    pub(super) fn has_output(&mut self, context: &mut Context<'_, '_>) -> bool {
        match &mut self.phase {
            _ if !self.loose_octets.is_empty() => true,
            Phase::Streaming(stream) => stream.has_output(context),
            _ => false,
        }
    }

    /// Builds the payload of one segment: loose octets, or FPDUs. `summed`: the checksum of the
    /// payload is needed.
    // rfc: 5044-s7 segments start with FPDUs
    fn build(&mut self, payload: &mut [u8], summed: bool, context: &mut Context<'_, '_>) -> Built {
        let payload = &mut payload[..self.tcp.max_payload()];
        self.build_at(self.tcp.queued_offset(), payload, summed, context)
    }

    /// Builds the payload of a segment that stands at `start` in our stream. `payload` is as long as
    /// a segment may be.
    #[inline(always)]
    pub(super) fn build_at(
        &mut self,
        start: u64,
        payload: &mut [u8],
        summed: bool,
        context: &mut Context<'_, '_>,
    ) -> Built {
        if !self.loose_octets.is_empty() {
            let len = payload.len().min(self.loose_octets.len());
            payload[..len].copy_from_slice(&self.loose_octets[..len]);
            self.loose_octets.drain(..len);
            self.loose_end = start + len as u64;
            return Built {
                len: len as u16,
                sum: checksum::sum(&payload[..len]),
                push: self.loose_octets.is_empty(),
                at_rest: false,
            };
        }
        match &mut self.phase {
            Phase::Streaming(stream) => {
                let llp = MpaTcp::new(&self.tcp, stream.has_markers(), stream.is_inside_message());
                stream.build(payload, start, llp.mulpdu(), summed, context)
            }
            _ => Built::NOTHING,
        }
    }

    /// Sends FIN, or RST, once there is nothing else.
    pub(super) fn finish_sending(&mut self, context: &mut Context<'_, '_>) {
        self.leave_stream(context);
        // FIN waits until a rejecting Reply is acknowledged: siw does not read a Reply with a FIN
        // right behind it.
        let heard = self.loose_octets.is_empty() && self.tcp.acked_offset() >= self.loose_end;
        if self.reset_asked && heard {
            self.reset_asked = false;
            self.tcp.abort();
        } else if self.fin_asked && heard {
            self.tcp.close(context.now);
        }
    }
}

/// Returns whether another frame can be queued in the device.
pub(crate) fn has_room<F: TxFrames>(tx: &F) -> bool {
    tx.can_transmit() && tx.available() > 0
}

/// Returns the checksum of a payload, or 0 where the device computes it.
fn sum_of<F: TxFrames>(tx: &F, frame: FrameId, payload: Range<usize>) -> u16 {
    match tx.completes_checksums() {
        true => 0,
        false => checksum::sum(&tx.bytes(frame)[payload]),
    }
}

/// Copies a piece of a kept frame into a fresh one, to be sent once.
fn copy_piece<F: TxFrames>(
    tx: &mut F,
    source: FrameId,
    range: Range<usize>,
    at: usize,
) -> Option<(FrameId, usize, u16, bool)> {
    let copy = tx.allocate()?;
    let len = range.len();
    tx.copy(source, range, copy, at);
    let sum = sum_of(tx, copy, at..at + len);
    Some((copy, len, sum, false))
}
