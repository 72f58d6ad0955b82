//! FPDUs that arrive ahead of order, with markers: those that a marker shows are placed at once.

use std::ops::Range;

use crate::connection::Context;
use crate::connection::reorder::{EarlyFpdu, Reorder};
use crate::mpa::marker;

use super::Stream;

impl Stream {
    /// Places FPDUs of which octets have just been queued out of order. FPDUs of which they are a part and that are whole by now are
    /// taken from there and placed, if a marker shows where they begin, or the end of an early FPDU, which a marker showed.
    /// Without markers nothing does: what looks like an FPDU may be octets of a payload. Errors are left for when their
    /// turn comes.
    // rfc: 5044-46a, 5044-46b, 5044-47, 5044-s2 out of order, an FPDU goes up where its start is certain and its CRC right
    pub(in crate::connection) fn place_marked(
        &mut self,
        new: Range<u64>,
        reorder: &mut Reorder,
        context: &mut Context<'_, '_>,
    ) {
        let Some(origin) = self.marked_from.filter(|_| self.may_place_early()) else {
            return;
        };
        // The last place that was looked at, and where what was found there ends.
        let (mut tried, mut done) = (None, 0);
        if let Some(end) = reorder.early_end(new.start) {
            tried = Some(end);
            done = self.place_from(end, &new, reorder, context);
        }
        // Markers among these octets, and the next ones on both sides: an FPDU may hold one of those only.
        let first = (new.start - origin) / marker::INTERVAL * marker::INTERVAL;
        let last = (new.end - origin).next_multiple_of(marker::INTERVAL);
        for position in (first..=last).step_by(marker::INTERVAL as usize) {
            let at = origin + position;
            let mut joined = Vec::new();
            let octets = reorder.octets(at..at + marker::MARKER_LEN as u64, &mut joined);
            let Some(marker) = octets.and_then(|octets| octets.first_chunk()) else {
                continue;
            };
            // rfc: 5044-47 its start is known by a marker, or by the lengths behind one
            let begin = marker::fpdu_start(position, *marker).map(|position| origin + position);
            if begin == tried || begin.is_none_or(|begin| begin < done) {
                continue;
            }
            tried = begin;
            if let Some(begin) = begin {
                done = self.place_from(begin, &new, reorder, context);
            }
        }
    }

    /// Places the FPDU that begins here, if octets just come have made it whole, and those that follow it. Says where
    /// they end.
    fn place_from(
        &mut self,
        begin: u64,
        new: &Range<u64>,
        reorder: &mut Reorder,
        context: &mut Context<'_, '_>,
    ) -> u64 {
        let origin = self.marked_from.unwrap_or(0);
        let mut joined = Vec::new();
        let mut at = begin;
        loop {
            let position = at - origin;
            let front = at..at + marker::PREFIX_LEN as u64;
            let Some(len) = reorder
                .octets(front, &mut joined)
                .and_then(|front| marker::fpdu_len(position, front))
            else {
                return at;
            };
            let range = at..at + len as u64;
            // An FPDU that was whole before has been looked at before.
            let looked_at = at == begin && (range.end <= new.start || new.end <= range.start);
            if looked_at || !reorder.may_verify(len) {
                return at;
            }
            let Some(fpdu) = reorder.octets(range.clone(), &mut joined) else {
                return at;
            };
            let placed = self
                .deframer
                .open_out_of_order(position, fpdu)
                .and_then(|ulpdu| {
                    let guard = context.guard;
                    let upper = &mut self.user.with(context);
                    self.ddp.place(ulpdu, upper, guard).ok()
                });
            let Some(placed) = placed else {
                reorder.refuse(len);
                return at;
            };
            let octets = u64::from(placed.payload_len());
            context.counters.rdma.octets_placed += octets;
            context.counters.rdma.octets_placed_early += octets;
            let end = range.end;
            reorder.insert_early(at, EarlyFpdu { end, placed });
            at = end;
        }
    }

    /// Before it is known whether a Send opened the connection it is not known which receive takes the next.
    fn may_place_early(&self) -> bool {
        // rfc: 5044-s2 with its place in the order
        !self.ddp.has_failed() && !self.send_may_open
    }
}
