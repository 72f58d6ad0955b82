//! The payload of segments: FPDUs of the messages that wait, one behind the other.

use crate::connection::Context;
use crate::mpa::{frame, marker};
use crate::wire::checksum;
use crate::wire::ddp::TAGGED_LEN;
use crate::wire::mpa::LENGTH_LEN;

use super::Stream;
use super::built::Built;

/// Octets of the shortest FPDU: a tagged message without payload.
const MIN_FPDU: usize = frame::fpdu_len(TAGGED_LEN);

impl Stream {
    /// Builds the payload of a segment, whose first octet stands at `start` of the stream: one FPDU
    /// with a ULPDU of at most `mulpdu` octets, and behind it those that wait already and fit
    /// whole. `summed`: the checksum of the payload is needed.
    #[inline]
    pub(in crate::connection) fn build(
        &mut self,
        payload: &mut [u8],
        start: u64,
        mulpdu: usize,
        summed: bool,
        context: &mut Context<'_, '_>,
    ) -> Built {
        if !self.may_send() {
            return Built::NOTHING;
        }
        let (len, at_rest) = match self.ddp.is_sending() {
            true => (0, false),
            false => self.build_inline(payload, mulpdu, start, context),
        };
        if !at_rest {
            return self.build_others(payload, len, start, mulpdu, summed, context);
        }
        Built {
            len: len as u16,
            sum: match summed {
                true => checksum::sum(&payload[..len]),
                false => 0,
            },
            push: len > 0,
            at_rest: true,
        }
    }

    /// Builds the rest of the payload of a segment that has `len` octets of inline messages.
    #[inline(never)]
    fn build_others(
        &mut self,
        payload: &mut [u8],
        mut len: usize,
        start: u64,
        mulpdu: usize,
        summed: bool,
        context: &mut Context<'_, '_>,
    ) -> Built {
        let mut sum = (len == 0).then_some(0);
        let mut at_rest = false;
        let push = loop {
            let room = &mut payload[len..];
            if !self.ddp.is_sending() && !self.goes_on(room.len(), len, mulpdu, context) {
                break len > 0;
            }
            let (more, sum_of_more) = self.build_fpdu(room, mulpdu, summed, context);
            if more == 0 {
                break len > 0;
            }
            len += more;
            // FPDUs have a multiple of 4 octets, so that their sums combine.
            sum = sum.zip(sum_of_more).map(|(a, b)| checksum::combine(a, b));
            let end = start + len as u64;
            if !self.handle_built(end, context) {
                break false;
            }
            let inline;
            (inline, at_rest) = self.build_inline(&mut payload[len..], mulpdu, end, context);
            if inline > 0 {
                len += inline;
                sum = None;
            }
            if at_rest {
                break true;
            }
        };
        let sum = match sum {
            _ if !summed => 0,
            Some(sum) => sum,
            None => checksum::sum(&payload[..len]),
        };
        Built {
            len: len as u16,
            sum,
            push,
            at_rest,
        }
    }

    /// Returns whether another FPDU fits a segment that holds `len` octets and has `room` left. May
    /// begin a message.
    fn goes_on(
        &mut self,
        room: usize,
        len: usize,
        mulpdu: usize,
        context: &mut Context<'_, '_>,
    ) -> bool {
        if len == 0 {
            return self.has_output(context);
        }
        // With markers each FPDU has a segment of its own, where protocol analysers find it best
        // too.
        let alone = self.has_markers() || room < MIN_FPDU;
        !alone && self.has_output(context) && self.next_fits(room, mulpdu)
    }

    /// Returns whether all that is left of the message being sent is one FPDU that fits into this
    /// room.
    // rfc: 5044-s7 segments start with FPDUs
    fn next_fits(&self, room: usize, mulpdu: usize) -> bool {
        let rest = self.ddp.remaining_len();
        rest.is_some_and(|rest| rest <= mulpdu && frame::fpdu_len(rest) <= room)
    }

    /// Builds the next FPDU in `frame`, with a ULPDU of at most `mulpdu` octets. Returns its
    /// length, and its checksum if that is needed and was computed with the CRC.
    fn build_fpdu(
        &mut self,
        frame: &mut [u8],
        mulpdu: usize,
        summed: bool,
        context: &mut Context<'_, '_>,
    ) -> (usize, Option<u16>) {
        let (room, guard) = (&mut frame[LENGTH_LEN..], context.guard);
        let upper = &mut self.user.with(context);
        let len = match self.ddp.next_segment(mulpdu, room, upper, guard) {
            Ok(Some(built)) => built.len,
            Ok(None) => return (0, None),
            Err(error) => {
                self.fail_source(&error, context);
                return (0, None);
            }
        };
        context.counters.rdma.fpdus_sent += 1;
        // rfc: 5044-58 no markers for a peer that did not ask for them
        let Some(position) = &mut self.markers else {
            return frame::seal_and_sum(frame, len, self.crc, summed);
        };
        let len = marker::seal(frame, len, *position, self.crc);
        *position += len as u64;
        (len, None)
    }

    /// Records that the FPDU just built ends at `end` of the stream. Returns whether it was the
    /// last of its message.
    fn handle_built(&mut self, end: u64, context: &mut Context<'_, '_>) -> bool {
        self.ddp.posted(end, &mut self.user.with(context))
    }
}
