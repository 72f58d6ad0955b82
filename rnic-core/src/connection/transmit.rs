//! Downward: messages become FPDUs in transmit frames, TCP decides when they go.

use crate::ddp::Llp;
use crate::memory::frames::{FrameId, TxFrames};
use crate::tcp::{Outgoing, Payload};
use crate::wire::checksum;

use super::lifecycle::MpaTcp;
use super::{Connection, Context, Phase, Transmit};

/// Frames that data leaves to acknowledgements, so that a stalled sender can still hear its peer.
const RESERVED_FRAMES: usize = 32;

impl Connection {
    /// Sends at most one frame.
    pub(crate) fn poll_transmit<F: TxFrames>(
        &mut self,
        context: &mut Context<'_, '_>,
        tx: &mut F,
    ) -> Transmit {
        let Some(header_len) = self.path.len() else {
            return Transmit::Idle;
        };
        let starved = !self.fill(header_len, context, tx);
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
        context: &mut Context<'_, '_>,
        tx: &mut F,
    ) -> bool {
        if let Phase::Streaming(stream) = &mut self.phase {
            stream.carry_out_local(self.tcp.wants_data(), context);
        }
        while self.tcp.wants_data() {
            if !self.has_output(context) {
                // Beginning a message may have ended the stream: then its Terminate is what is left to send.
                self.leave_stream(context);
                if self.loose_octets.is_empty() {
                    break;
                }
            }
            if tx.available() <= RESERVED_FRAMES {
                return false;
            }
            let Some(frame) = tx.allocate() else {
                return false;
            };
            let at = net_header_len + self.tcp.data_header_len();
            let len = self.build(at, tx.bytes_mut(frame), context);
            if len == 0 {
                tx.release(frame);
                // The source of the message is gone. The Terminate that takes its place never comes to nothing.
                self.leave_stream(context);
                if self.loose_octets.is_empty() {
                    break;
                }
                continue;
            }
            self.queue(frame, at, len, context, tx);
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

    /// Builds the payload of one segment at `at` in a frame: loose octets, or one FPDU. Returns its length.
    // rfc: 5044-s7
    fn build(&mut self, at: usize, frame: &mut [u8], context: &mut Context<'_, '_>) -> usize {
        let payload = &mut frame[at..];
        if !self.loose_octets.is_empty() {
            let len = self.tcp.max_payload().min(self.loose_octets.len());
            payload[..len].copy_from_slice(&self.loose_octets[..len]);
            self.loose_octets.drain(..len);
            return len;
        }
        match &mut self.phase {
            Phase::Streaming(stream) => {
                let llp = MpaTcp::new(&self.tcp, stream.has_markers(), stream.held());
                stream.build_fpdu(payload, llp.mulpdu(), context)
            }
            _ => 0,
        }
    }

    fn queue<F: TxFrames>(
        &mut self,
        frame: FrameId,
        at: usize,
        len: usize,
        context: &mut Context<'_, '_>,
        tx: &F,
    ) {
        let sum = checksum::sum(&tx.bytes(frame)[at..at + len]);
        let end = self.tcp.queue(frame, at as u16, len as u16, sum);
        let complete = match &mut self.phase {
            Phase::Streaming(stream) => stream.handle_queued(end, context),
            _ => {
                self.loose_end = end;
                self.loose_octets.is_empty()
            }
        };
        if complete {
            self.tcp.push();
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
        let Some(net) = self.path.header(outgoing.ecn_capable) else {
            return;
        };
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
            Payload::None => {
                let Some(frame) = tx.allocate() else { return };
                (frame, 0, 0, false)
            }
        };
        let len = net.write(tx.bytes_mut(frame), header, len, sum);
        tx.transmit(frame, len);
        if !keep {
            tx.release(frame);
        }
    }
}

/// Copies a piece of a kept frame into a fresh one, to be sent once.
fn copy_piece<F: TxFrames>(
    tx: &mut F,
    source: FrameId,
    range: std::ops::Range<usize>,
    at: usize,
) -> Option<(FrameId, usize, u16, bool)> {
    let copy = tx.allocate()?;
    let len = range.len();
    tx.copy(source, range, copy, at);
    let sum = checksum::sum(&tx.bytes(copy)[at..at + len]);
    Some((copy, len, sum, false))
}
