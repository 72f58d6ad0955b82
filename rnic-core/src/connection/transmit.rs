//! Downward: messages become FPDUs in transmit frames, TCP decides when they go.

use std::ops::Range;

use crate::ddp::Llp;
use crate::fast_paths::{FastPath, taken};
use crate::memory::frames::{FrameId, PASSING_FRAMES, RESERVED_FRAMES, TxFrames};
use crate::tcp::{Outgoing, Payload};
use crate::wire::{checksum, packet::ECN_CAPABLE, template::HeaderTemplate};

use super::lifecycle::MpaTcp;
use super::stream::Built;
use super::{Connection, Context, Phase, Transmit};

impl Connection {
    /// Sends at most `most` frames, holding `share` of them at most until they are acknowledged. Returns how many, and what
    /// came of the last attempt.
    pub(crate) fn transmit<F: TxFrames>(
        &mut self,
        most: u64,
        share: usize,
        context: &mut Context<'_, '_>,
        tx: &mut F,
    ) -> (u64, Transmit) {
        let mut sent = 0;
        while sent < most && has_room(tx) {
            let (run, rests) = self.send_run(most - sent, share, context, tx);
            sent += run;
            if run > 0 {
                // A run leaves TCP nothing to send.
                if rests && !self.fin_asked {
                    return (sent, Transmit::Idle);
                }
                continue;
            }
            match self.poll_transmit(share, context, tx) {
                Transmit::Sent => sent += 1,
                other => return (sent, other),
            }
            // Behind an ACK there mostly is nothing.
            if self.is_at_rest(context.now) {
                return (sent, Transmit::Idle);
            }
        }
        (sent, Transmit::Sent)
    }

    /// Sends FPDUs for as long as there are any and nothing else is to be sent. Returns the number of frames, and whether
    /// there surely are no more FPDUs.
    fn send_run<F: TxFrames>(
        &mut self,
        most: u64,
        share: usize,
        context: &mut Context<'_, '_>,
        tx: &mut F,
    ) -> (u64, bool) {
        if !context.fast_paths.tx_burst {
            return (0, false);
        }
        let (Some(net), Phase::Streaming(stream)) = (self.path.template_mut(), &mut self.phase)
        else {
            return (0, false);
        };
        if stream.is_at_rest() || !self.loose_octets.is_empty() {
            return (0, false);
        }
        let (now, tcp) = (context.now, &mut self.tcp);
        let segment = tcp.max_payload();
        let most_octets = tcp.run_room(now);
        if most_octets < segment as u64 {
            return (0, false);
        }
        let at = net.len() + tcp.data_header_len();
        let mulpdu = MpaTcp::new(tcp, stream.has_markers(), stream.is_inside_message()).mulpdu();
        let held = tcp.held();
        let most = most.min(share.saturating_sub(held) as u64);
        let mut left_to_others = reserve(held);
        let completed = tx.completes_checksums();
        let (tcp_at, mut run) = (net.len(), tcp.begin_run(now));
        let headers = net.begin_run(ecn(run.ecn_capable()), run.header());
        let began = tcp.queued_offset();
        let mut builder = stream.builder(mulpdu, !completed, context);
        let (mut sent, mut end, mut rests) = (0, began, false);
        while !rests
            && sent < most
            && end - began + segment as u64 <= most_octets
            && tx.can_transmit()
            && tx.available() > left_to_others
        {
            let Some(frame) = tx.allocate() else { break };
            left_to_others = RESERVED_FRAMES;
            let bytes = tx.bytes_mut(frame);
            let built = builder.build(&mut bytes[at..at + segment], end);
            let Built { len, sum, push, .. } = built;
            rests = built.rests;
            if len == 0 {
                tx.release(frame);
                break;
            }
            let payload = at as u16..at as u16 + len;
            tcp.send_in_run(now, &mut run, frame, payload, sum, push);
            if completed {
                let frame_len = headers.write_partial(bytes, run.header(), len);
                tx.transmit_partial(frame, frame_len, tcp_at);
            } else {
                let frame_len = headers.write(bytes, run.header(), len, sum);
                tx.transmit(frame, frame_len);
            }
            end += u64::from(len);
            sent += 1;
        }
        tcp.end_run(now, run);
        if sent > 0 {
            taken::count(FastPath::TxBurst);
        }
        (sent, rests)
    }

    /// Sends at most one frame.
    fn poll_transmit<F: TxFrames>(
        &mut self,
        share: usize,
        context: &mut Context<'_, '_>,
        tx: &mut F,
    ) -> Transmit {
        let Some(header_len) = self.path.template().map(HeaderTemplate::len) else {
            return Transmit::Idle;
        };
        let starved = !self.fill(header_len, share, context, tx);
        match self.tcp.poll_transmit(context.now, tx) {
            Some(outgoing) => {
                self.emit(outgoing, tx);
                Transmit::Sent
            }
            None if starved => Transmit::Starved,
            None => Transmit::Idle,
        }
    }

    /// Gives TCP the next segment while it wants one. Says no if there was no frame to build it in.
    fn fill<F: TxFrames>(
        &mut self,
        net_header_len: usize,
        share: usize,
        context: &mut Context<'_, '_>,
        tx: &mut F,
    ) -> bool {
        if let Phase::Streaming(stream) = &mut self.phase {
            stream.execute_local(self.tcp.wants_data(), context);
        }
        while self.tcp.wants_data() {
            if !self.has_output(context) {
                // Beginning a message may have ended the stream: then its Terminate is what is left to send.
                self.leave_stream(context);
                if self.loose_octets.is_empty() {
                    break;
                }
            }
            let held = self.tcp.held();
            if held >= share {
                // What it holds is acknowledged or spilled, and then it goes on.
                break;
            }
            if tx.available() <= reserve(held) {
                return false;
            }
            let Some(frame) = tx.allocate() else {
                return false;
            };
            let at = net_header_len + self.tcp.data_header_len();
            let summed = !tx.completes_checksums();
            let payload = &mut tx.bytes_mut(frame)[at..];
            let Built { len, sum, push, .. } = self.build(payload, summed, context);
            if len == 0 {
                tx.release(frame);
                // The source of the message is gone. The Terminate that takes its place never comes to nothing.
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

    fn has_output(&mut self, context: &mut Context<'_, '_>) -> bool {
        match &mut self.phase {
            _ if !self.loose_octets.is_empty() => true,
            Phase::Streaming(stream) => stream.has_output(context),
            _ => false,
        }
    }

    /// Builds the payload of one segment: loose octets, or FPDUs. `summed`: somebody needs its sum.
    // rfc: 5044-s7
    fn build(&mut self, payload: &mut [u8], summed: bool, context: &mut Context<'_, '_>) -> Built {
        let payload = &mut payload[..self.tcp.max_payload()];
        let start = self.tcp.queued_offset();
        if !self.loose_octets.is_empty() {
            let len = payload.len().min(self.loose_octets.len());
            payload[..len].copy_from_slice(&self.loose_octets[..len]);
            self.loose_octets.drain(..len);
            self.loose_end = start + len as u64;
            return Built {
                len: len as u16,
                sum: checksum::sum(&payload[..len]),
                push: self.loose_octets.is_empty(),
                rests: false,
            };
        }
        match &mut self.phase {
            Phase::Streaming(stream) => {
                let llp = MpaTcp::new(&self.tcp, stream.has_markers(), stream.is_inside_message());
                let mut builder = stream.builder(llp.mulpdu(), summed, context);
                builder.build(payload, start)
            }
            _ => Built::NOTHING,
        }
    }

    /// Sends FIN once there is nothing else.
    fn finish_sending(&mut self, context: &mut Context<'_, '_>) {
        self.leave_stream(context);
        // A siw that finds a FIN right behind a rejecting Reply does not read the Reply.
        let heard = self.loose_octets.is_empty() && self.tcp.acked_offset() >= self.loose_end;
        if self.fin_asked && heard {
            self.tcp.close(context.now);
        }
    }

    /// Writes the headers in front of a payload and hands the frame to the device.
    fn emit<F: TxFrames>(&mut self, outgoing: Outgoing, tx: &mut F) {
        let Some(net) = self.path.template() else {
            return;
        };
        let ecn = ecn(outgoing.ecn_capable);
        let header = &outgoing.header;
        let at = net.len() + header.len();
        let (frame, len, sum, keep) = match outgoing.payload {
            Payload::Whole {
                frame,
                payload_at,
                len,
                sum,
            } if usize::from(payload_at) == at => (frame, usize::from(len), sum, true),
            // The headers have another length than when the payload was built.
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
        if tx.completes_checksums() {
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

/// How many frames a connection leaves to others that holds so many.
fn reserve(held: usize) -> usize {
    match held {
        0 => PASSING_FRAMES,
        _ => RESERVED_FRAMES,
    }
}

/// Whether another frame can be queued in the device.
pub(crate) fn has_room<F: TxFrames>(tx: &F) -> bool {
    tx.can_transmit() && tx.available() > 0
}

/// The ECN field of a packet that routers may mark (RFC 3168), or not.
fn ecn(capable: bool) -> u8 {
    if capable { ECN_CAPABLE } else { 0 }
}

/// The sum of a payload, as far as anybody needs to know it.
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
