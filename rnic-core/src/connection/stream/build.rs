//! The payload of segments: FPDUs of the messages that wait, one behind the other.

use crate::connection::Context;
use crate::mpa::{frame, marker};
use crate::wire::checksum;
use crate::wire::ddp::TAGGED_LEN;
use crate::wire::mpa::LENGTH_LEN;

use super::Stream;

/// Octets of the shortest FPDU: a tagged message of none.
const LEAST_FPDU: usize = frame::fpdu_len(TAGGED_LEN);

/// The payload of a segment that was built.
#[derive(Clone, Copy, Debug)]
pub(in crate::connection) struct Built {
    pub(in crate::connection) len: usize,
    /// Of its octets: their part of the checksum. Zero where nobody needs it.
    pub(in crate::connection) sum: u16,
    /// Whether nothing follows for now.
    pub(in crate::connection) push: bool,
    /// There surely is nothing more to send: [`Stream::is_at_rest`].
    pub(in crate::connection) rests: bool,
}

/// FPDUs of short messages that were built.
struct Short {
    len: usize,
    /// As for [`Built`].
    rests: bool,
}

impl Stream {
    /// Builds the payload of a segment, whose first octet stands at `start` of the stream, with at most `mulpdu` octets
    /// of DDP's in an FPDU: one FPDU, and behind it those that wait already and fit whole. `summed`: somebody needs its sum.
    pub(in crate::connection) fn build_segment(
        &mut self,
        payload: &mut [u8],
        mulpdu: usize,
        start: u64,
        summed: bool,
        context: &mut Context<'_, '_>,
    ) -> Built {
        let (mut len, mut sum, mut rests) = (0, Some(0), false);
        let push = loop {
            if !self.ddp.is_sending() {
                let at = start + len as u64;
                let short = self.build_short(&mut payload[len..], mulpdu, at, context);
                if short.len > 0 {
                    len += short.len;
                    sum = None;
                }
                rests = short.rests || self.user.is_at_rest();
                if rests || !self.goes_on(payload.len() - len, len, mulpdu, context) {
                    break len > 0;
                }
            }
            let (more, sum_of_more) = self.build_fpdu(&mut payload[len..], mulpdu, summed, context);
            if more == 0 {
                break len > 0;
            }
            len += more;
            // FPDUs have an even number of octets.
            sum = sum.zip(sum_of_more).map(|(a, b)| checksum::combine(a, b));
            if !self.handle_built(start + len as u64, context) {
                break false;
            }
        };
        let sum = match sum {
            _ if !summed => 0,
            Some(sum) => sum,
            None => checksum::sum(&payload[..len]),
        };
        Built {
            len,
            sum,
            push,
            rests,
        }
    }

    /// Whether another FPDU belongs into a segment that has `len` octets, and room for so many. May begin a message.
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
        // With markers each FPDU has a segment of its own, which is how analysers, too, find it best.
        let alone = self.has_markers() || room < LEAST_FPDU;
        !alone && self.has_output(context) && self.next_fits(room, mulpdu)
    }

    /// Builds FPDUs of short messages that wait, each whole, for as long as they fit. The first octet stands at `start` of
    /// the stream.
    fn build_short(
        &mut self,
        room: &mut [u8],
        mulpdu: usize,
        start: u64,
        context: &mut Context<'_, '_>,
    ) -> Short {
        let mut short = Short {
            len: 0,
            rests: false,
        };
        if self.has_markers() {
            return short;
        }
        let mut fpdus = 0;
        let upper = &mut self.user.with(context);
        while !short.rests {
            let fpdu = &mut room[short.len..];
            let most = frame::ulpdu_room(fpdu.len()).min(mulpdu);
            let Some(ulpdu) = fpdu.get_mut(LENGTH_LEN..LENGTH_LEN + most) else {
                break;
            };
            let Some(ulpdu_len) = self.ddp.next_short(ulpdu, upper) else {
                break;
            };
            short.len += frame::seal(fpdu, ulpdu_len, self.crc);
            self.ddp.posted_short(start + short.len as u64, upper);
            short.rests = upper.is_at_rest();
            fpdus += 1;
        }
        context.counters.rdma.fpdus_sent += fpdus;
        short
    }

    /// Whether all that is left of the message being sent is one FPDU that fits into this room.
    // rfc: 5044-s7
    fn next_fits(&self, room: usize, mulpdu: usize) -> bool {
        let rest = self.ddp.rest_len();
        rest.is_some_and(|rest| rest <= mulpdu && frame::fpdu_len(rest) <= room)
    }

    /// Builds the next FPDU in `frame`, with at most `mulpdu` octets of DDP's. Returns its length, and its sum if that is
    /// wanted and came with its CRC.
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
                self.ddp.cut_short();
                self.fail(&error, context);
                return (0, None);
            }
        };
        context.counters.rdma.fpdus_sent += 1;
        // rfc: 5044-58
        let Some(position) = &mut self.markers else {
            return frame::seal_and_sum(frame, len, self.crc, summed);
        };
        let len = marker::seal(frame, len, *position, self.crc);
        *position += len as u64;
        (len, None)
    }

    /// The FPDU just built ends at `end` of the stream. Says whether it was the last of its message.
    fn handle_built(&mut self, end: u64, context: &mut Context<'_, '_>) -> bool {
        self.ddp.posted(end, &mut self.user.with(context))
    }
}
