//! FPDUs that arrive out of order, with markers: those whose start a marker shows are placed at
//! once.

use std::ops::Range;

use crate::connection::Context;
use crate::connection::reorder::{EarlyFpdu, Reorder};
use crate::mpa::marker;

use super::{Intake, Stream};

impl Stream {
    /// Places FPDUs that octets queued just now have made whole. An FPDU is taken from the queue
    /// and placed if its start is certain: a marker shows it, or it follows an early FPDU. Without
    /// markers no start is certain: what looks like an FPDU may be octets of a payload. Errors are
    /// left until the FPDU's turn comes.
    // rfc: 5044-46a, 5044-46b, 5044-47, 5044-s2 out of order, start and CRC must be certain
    pub(in crate::connection) fn place_marked(
        &mut self,
        new: Range<u64>,
        reorder: &mut Reorder,
        context: &mut Context<'_, '_>,
    ) {
        let Some(origin) = self.marked_from.filter(|_| self.may_place_early()) else {
            return;
        };
        // The last start that was tried, and where the FPDUs found from there end.
        let (mut tried, mut done) = (None, 0);
        if let Some(end) = reorder.early_end(new.start) {
            tried = Some(end);
            done = self.place_from(end, &new, reorder, context);
        }
        // The markers among these octets, and the next one on each side: an FPDU may hold only one
        // of those.
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

    /// Places the FPDU that begins here, if the new octets have made it whole, and those that
    /// follow it. Returns where they end.
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
            // An FPDU that was whole before was tried before.
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

    /// Returns whether FPDUs may be placed early. They may not before it is known whether a Send
    /// opened the connection: it decides which receive the next Send takes. Nor may they while
    /// requests in front of them are parked.
    fn may_place_early(&self) -> bool {
        // rfc: 5044-s2 with its place in the order
        !self.ddp.has_failed() && self.intake == Intake::Usual
    }
}
