//! A short message that goes alone: whoever waits for the answer before posting the next has every message go so. Nothing is
//! in flight, and nothing else is to be sent. That is looked at once, and then the message goes from the ring into a frame
//! and onto the wire without asking any layer again. The frame, and what is remembered of it, are what
//! [`Connection::transmit`] would have made.

use crate::fast_paths::{FastPath, taken};
use crate::memory::frames::{PASSING_FRAMES, TxFrames};
use crate::time::Instant;

use super::{Connection, Context, Phase};

#[cfg(test)]
mod tests;

impl Connection {
    /// Sends the message that is to be sent, if it is short and goes alone; then nothing is left to be sent, and no timer
    /// was set but those of a segment in flight. Says no, and changes nothing, if not. The device has room for a frame.
    pub(crate) fn transmit_lone<F: TxFrames>(
        &mut self,
        context: &mut Context<'_, '_>,
        tx: &mut F,
    ) -> bool {
        let (Some(net), Phase::Streaming(stream)) = (self.path.template(), &mut self.phase) else {
            return decline();
        };
        let (now, tcp) = (context.now, &mut self.tcp);
        let may_send = context.fast_paths.idle_send
            && self.loose_octets.is_empty()
            && tcp.may_send_lone()
            && tx.available() > PASSING_FRAMES;
        if !may_send {
            return decline();
        }
        let Some(lone) = stream.lone(context) else {
            return decline();
        };
        let Some(frame) = tx.allocate() else {
            return decline();
        };
        let bytes = tx.bytes_mut(frame);
        let at = net.len() + tcp.data_header_len();
        let start = tcp.queued_offset();
        let (len, sum) = stream.build_lone(&lone, &mut bytes[at..], start, context);
        let header = tcp.send_lone(now, frame, at as u16, len, sum);
        let frame_len = net.write_data(bytes, &header, len, sum);
        tx.transmit(frame, frame_len);
        taken::count(FastPath::IdleSend);
        true
    }

    /// Whether the alarm goes off early enough behind [that](Self::transmit_lone).
    #[inline]
    pub(crate) fn is_armed_for_lone(&self, now: Instant) -> bool {
        let until = self.tcp.lone_waits_until(now);
        self.alarm.is_some_and(|at| at <= until)
    }
}

/// The message is left to the ordinary way. Of so many questions the compiler would else believe that most often one is
/// answered so.
#[cold]
#[inline(never)]
fn decline() -> bool {
    false
}
