//! The payload of segments: FPDUs of the messages that wait, one behind the other.

use crate::connection::Context;
use crate::fast_paths::{FastPath, taken};
use crate::mpa::{frame, marker};
use crate::wire::checksum;
use crate::wire::ddp::TAGGED_LEN;
use crate::wire::mpa::LENGTH_LEN;

use super::Stream;
use super::built::Built;
use super::train::Train;

/// Octets of the shortest FPDU: a tagged message of none.
const LEAST_FPDU: usize = frame::fpdu_len(TAGGED_LEN);

/// Builds the payloads of segments that are sent one behind the other.
pub(in crate::connection) struct Builder<'s, 'c, 'g> {
    stream: &'s mut Stream,
    context: &'s mut Context<'c, 'g>,
    /// Octets of DDP's in an FPDU at most.
    mulpdu: usize,
    /// Somebody needs the sums of payloads.
    summed: bool,
    train: Option<Train<'c>>,
}

impl Builder<'_, '_, '_> {
    /// Builds the payload of the next segment, whose first octet stands at `start` of the stream.
    #[inline]
    pub(in crate::connection) fn build(&mut self, payload: &mut [u8], start: u64) -> Built {
        let Self {
            stream,
            context,
            mulpdu,
            summed,
            train,
        } = self;
        if !stream.may_send() {
            return Built::NOTHING;
        }
        if stream.ddp.is_sending() {
            if train.is_none() && context.fast_paths.tx_template {
                *train = stream.begin_train(*mulpdu, context.guard);
            }
            if let Some(train) = train
                && let Some(built) = train.build(stream, payload, *summed)
            {
                context.counters.rdma.fpdus_sent += 1;
                taken::count(FastPath::TxTemplate);
                return built;
            }
        }
        *train = None;
        self.build_segment(payload, start)
    }

    /// The same without a train: one FPDU, and behind it those that wait already and fit whole.
    fn build_segment(&mut self, payload: &mut [u8], start: u64) -> Built {
        let Short { len, rests } = match self.stream.ddp.is_sending() {
            true => Short::NONE,
            false => {
                let (stream, context) = (&mut *self.stream, &mut *self.context);
                stream.build_short(payload, self.mulpdu, start, context)
            }
        };
        if !rests {
            return self.build_others(payload, len, start);
        }
        Built {
            len: len as u16,
            sum: if self.summed {
                checksum::sum(&payload[..len])
            } else {
                0
            },
            push: len > 0,
            rests: true,
        }
    }

    /// Builds the rest of the payload of a segment that has `len` octets of short messages.
    #[inline(never)]
    fn build_others(&mut self, payload: &mut [u8], mut len: usize, start: u64) -> Built {
        let Self {
            stream,
            context,
            mulpdu,
            summed,
            ..
        } = self;
        let mut sum = (len == 0).then_some(0);
        let mut rests = false;
        let push = loop {
            let room = &mut payload[len..];
            if !stream.ddp.is_sending() && !stream.goes_on(room.len(), len, *mulpdu, context) {
                break len > 0;
            }
            let (more, sum_of_more) = stream.build_fpdu(room, *mulpdu, *summed, context);
            if more == 0 {
                break len > 0;
            }
            len += more;
            // FPDUs have an even number of octets.
            sum = sum.zip(sum_of_more).map(|(a, b)| checksum::combine(a, b));
            let end = start + len as u64;
            if !stream.handle_built(end, context) {
                break false;
            }
            let short = stream.build_short(&mut payload[len..], *mulpdu, end, context);
            if short.len > 0 {
                len += short.len;
                sum = None;
            }
            rests = short.rests;
            if rests {
                break true;
            }
        };
        let sum = match sum {
            _ if !*summed => 0,
            Some(sum) => sum,
            None => checksum::sum(&payload[..len]),
        };
        Built {
            len: len as u16,
            sum,
            push,
            rests,
        }
    }
}

/// FPDUs of short messages that were built.
struct Short {
    len: usize,
    /// As for [`Built`].
    rests: bool,
}

impl Short {
    const NONE: Self = Self {
        len: 0,
        rests: false,
    };
}

impl Stream {
    /// To build segments with FPDUs of at most `mulpdu` octets of DDP's. `summed`: somebody needs their sums.
    #[inline]
    pub(in crate::connection) fn builder<'s, 'c, 'g>(
        &'s mut self,
        mulpdu: usize,
        summed: bool,
        context: &'s mut Context<'c, 'g>,
    ) -> Builder<'s, 'c, 'g> {
        Builder {
            stream: self,
            context,
            mulpdu,
            summed,
            train: None,
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
        let mut short = Short::NONE;
        if self.has_markers() || !context.fast_paths.inline_messages {
            return short;
        }
        let mut fpdus = 0;
        let upper = &mut self.user.with(context);
        loop {
            let fpdu = &mut room[short.len..];
            let most = frame::ulpdu_room(fpdu.len()).min(mulpdu);
            let end = |ulpdu_len| start + (short.len + frame::fpdu_len(ulpdu_len)) as u64;
            let ulpdu = fpdu.get_mut(LENGTH_LEN..LENGTH_LEN + most);
            let Some(len) = ulpdu.and_then(|ulpdu| self.ddp.next_short(ulpdu, end, upper)) else {
                short.rests = upper.is_at_rest();
                break;
            };
            short.len += frame::seal(fpdu, len, self.crc);
            fpdus += 1;
            taken::count(FastPath::InlineMessages);
            if upper.is_at_rest() {
                short.rests = true;
                break;
            }
        }
        context.counters.rdma.fpdus_sent += fpdus;
        short
    }

    /// Whether all that is left of the message being sent is one FPDU that fits into this room.
    // rfc: 5044-s7
    fn next_fits(&self, room: usize, mulpdu: usize) -> bool {
        let rest = self.ddp.remaining_len();
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
                self.ddp.abort_message();
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
