//! From TCP's octets upward: in order, early, or aside.

use crate::engine::EndReason;
use crate::tcp::StreamData;

use super::{Connection, Context, Phase};

/// What is kept aside before FPDUs flow. A start-up frame has 532 octets at most and mostly comes whole; whoever sends
/// more ahead of it must not cost a window each.
const MAX_ASIDE_IN_STARTUP: usize = 4096;

impl Connection {
    /// Takes what TCP found acceptable.
    pub(super) fn receive_data(&mut self, data: StreamData<'_>, context: &mut Context<'_, '_>) {
        if data.offset > self.tcp.receive_offset() {
            self.receive_ahead(data, context);
        } else {
            self.receive_in_order(data, context);
        }
        let missing = match &self.phase {
            Phase::Streaming(stream) => stream.missing(),
            _ => 0,
        };
        self.tcp.set_held(self.kept_aside() as u32, missing as u32);
    }

    /// Octets with a hole in front of them. FPDUs that can be recognised are placed at once; the rest is kept.
    // rfc: 5044-84
    fn receive_ahead(&mut self, data: StreamData<'_>, context: &mut Context<'_, '_>) {
        let room = self.reorder.next_start(data.offset) - data.offset;
        let whole = room >= data.bytes.len() as u64;
        let bytes = if whole {
            data.bytes
        } else {
            &data.bytes[..room as usize]
        };
        let placed = match &mut self.phase {
            Phase::Streaming(stream) if whole => {
                stream.place_early(data.offset, bytes, &mut self.reorder, context)
            }
            _ => 0,
        };
        let (start, rest) = (data.offset + placed as u64, &bytes[placed..]);
        let mut end = start;
        let held = self.reorder.held();
        if self.keep_aside(start, rest) {
            end += rest.len() as u64;
            if let Phase::Streaming(stream) = &mut self.phase {
                stream.place_marked(start..end, &mut self.reorder, context);
            }
            let more = self.reorder.held().saturating_sub(held);
            context.counters.rdma.octets_kept_aside += more as u64;
        }
        self.tcp.took(context.now, data.offset..end);
    }

    /// Keeps octets until their turn comes. Says no where there is no room: the peer sends them again.
    fn keep_aside(&mut self, start: u64, bytes: &[u8]) -> bool {
        if matches!(self.phase, Phase::Closing) {
            // Nobody waits for them.
            return true;
        }
        if self.is_starting() && self.reorder.held() + bytes.len() > MAX_ASIDE_IN_STARTUP {
            return false;
        }
        self.reorder.insert_aside(start, bytes)
    }

    /// Octets at the front of the stream, and whatever waited behind them.
    fn receive_in_order(&mut self, data: StreamData<'_>, context: &mut Context<'_, '_>) {
        let end = data.offset + data.bytes.len() as u64;
        let mut at = data.offset;
        loop {
            let early = self.reorder.early_start().unwrap_or(u64::MAX);
            if early == at {
                at = self.deliver_early(at, context);
            } else if at < end {
                let stop = end.min(early);
                let from = (at - data.offset) as usize;
                let to = (stop - data.offset) as usize;
                self.consume(&data.bytes[from..to], context);
                at = stop;
            } else if let Some((start, chunk)) = self.reorder.take_aside(at) {
                self.consume(&chunk[(at - start) as usize..], context);
                at = start + chunk.len() as u64;
            } else {
                break;
            }
        }
        self.tcp.took(context.now, data.offset..at);
    }

    /// The stream has come to an FPDU that was placed before. Says where it ends.
    fn deliver_early(&mut self, at: u64, context: &mut Context<'_, '_>) -> u64 {
        let Some(fpdu) = self.reorder.pop_early() else {
            return at;
        };
        if let Phase::Streaming(stream) = &mut self.phase {
            stream.deliver_early(&fpdu, context);
        }
        fpdu.end
    }

    /// Hands octets in order to whoever the phase says. Octets for nobody are dropped: the stream is over.
    fn consume(&mut self, mut bytes: &[u8], context: &mut Context<'_, '_>) {
        while !bytes.is_empty() {
            match &mut self.phase {
                Phase::Connecting(_) => self.receive_reply(&mut bytes, context),
                Phase::Responding { .. } => self.receive_request(&mut bytes, context),
                Phase::Waiting { .. } => {
                    let early = "the peer sent an FPDU before the MPA Reply".into();
                    return self.fail(EndReason::Startup(early), context);
                }
                Phase::Streaming(stream) => return stream.receive(bytes, None, context),
                Phase::Closing => return,
            }
        }
    }
}
