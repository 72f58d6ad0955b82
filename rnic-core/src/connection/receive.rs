//! What happens to received octets above TCP: they are delivered in order, placed early, or queued
//! out of order.

use crate::counters::DropReason;
use crate::tcp::StreamData;

use super::{Connection, Context, Phase, Transport};

/// How far ahead of RCV.NXT octets are queued before FPDUs flow. A start-up frame has 532 octets at
/// most and mostly comes whole. A peer that sends more out of order must not use up memory for a
/// whole window.
const MAX_AHEAD_IN_STARTUP: u64 = 4096;

impl Connection {
    /// Receives the octets that TCP found acceptable.
    pub(super) fn receive_data(
        &mut self,
        data: StreamData<'_>,
        context: &mut Context<'_, '_>,
    ) -> Result<(), DropReason> {
        if data.offset > self.tcp.receive_offset() {
            self.receive_ahead(data, context)?;
        } else {
            self.receive_in_order(data, context);
        }
        self.update_buffered(context);
        Ok(())
    }

    /// Queues octets that have a hole in front of them, and places FPDUs among them that a marker
    /// shows.
    // rfc: 5044-84 TCP recovers from loss and reordering before FPDUs flow, too
    fn receive_ahead(
        &mut self,
        data: StreamData<'_>,
        context: &mut Context<'_, '_>,
    ) -> Result<(), DropReason> {
        let range = data.offset..data.offset + data.bytes.len() as u64;
        let ahead = range.end - self.tcp.receive_offset();
        if self.is_starting() && ahead > MAX_AHEAD_IN_STARTUP {
            // They are not marked as received, so the peer sends them again.
            return Err(DropReason::StartupOutOfOrder);
        }
        // Once the stream is over they are not needed.
        if !matches!(self.phase, Phase::Closing) {
            // rfc: 5044-84 TCP recovers from loss and reordering before FPDUs flow, too
            self.reorder.keep(data.offset, data.bytes);
            context.counters.rdma.octets_buffered += data.bytes.len() as u64;
        }
        if let Phase::Streaming(stream) = &mut self.phase {
            stream.place_marked(range.clone(), &mut self.reorder, context);
        }
        self.tcp.mark_received(context.now, range);
        Ok(())
    }

    /// Receives octets in order, and then those that waited behind them.
    fn receive_in_order(&mut self, data: StreamData<'_>, context: &mut Context<'_, '_>) {
        self.consume(data.bytes, context);
        let mut at = data.offset + data.bytes.len() as u64;
        loop {
            if let Some(octets) = self.reorder.take_queued(at) {
                self.consume(&octets, context);
                at += octets.len() as u64;
            } else if let Some(fpdu) = self.reorder.take_early(at) {
                if let Phase::Streaming(stream) = &mut self.phase {
                    stream.deliver_early(fpdu.end - at, fpdu.placed, context);
                }
                at = fpdu.end;
            } else {
                break;
            }
        }
        self.tcp.mark_received(context.now, data.offset..at);
    }
}

impl<T: Transport> Connection<T> {
    /// Tells TCP how many octets in order are kept.
    pub(crate) fn update_buffered(&mut self, context: &Context<'_, '_>) {
        // What is out of order is not subtracted from the window: the peer was already allowed to
        // send it.
        let (buffered, missing) = match &self.phase {
            Phase::Streaming(stream) => stream.held_octets(&context.counters.rdma),
            _ => (0, 0),
        };
        self.tcp.set_buffered(buffered as u32, missing as u32);
    }

    /// Hands octets in order to the layer that the phase names. When the stream is over they are
    /// dropped.
    pub(super) fn consume(&mut self, mut bytes: &[u8], context: &mut Context<'_, '_>) {
        while !bytes.is_empty() {
            match &mut self.phase {
                Phase::Connecting(_) => self.receive_reply(&mut bytes, context),
                Phase::Responding { .. } => self.receive_request(&mut bytes, context),
                Phase::Waiting { .. } => self.receive_early(&mut bytes, context),
                Phase::Streaming(stream) => {
                    return match T::ACKNOWLEDGES_EARLY {
                        true => stream.receive_acknowledged(bytes, context),
                        false => stream.receive(bytes, None, context),
                    };
                }
                Phase::Closing => return,
            }
        }
    }
}
