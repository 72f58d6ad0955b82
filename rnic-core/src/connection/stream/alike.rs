//! FPDUs that are alike: behind a segment of a long message, one piece of input may hold many more
//! of it, as a call to a socket returns them. They differ in their position alone. So only that is
//! read of each, the CRC is checked, and the payload is placed. DDP and RDMAP learn of all at once,
//! as of a [coalesced run](crate::connection::fast) of frames.

use crate::connection::Context;
use crate::fast_paths::{FastPath, taken};
use crate::mpa::frame::LENGTH_LEN;
use crate::wire::fpdu_template::FpduTemplate;

use super::Stream;

/// Octets of the shortest FPDU for which it pays.
const SHORTEST: usize = 256;
/// Octets in front of RDMAP's: MPA's length, and DDP's control field with the L bit.
const ALIKE: usize = LENGTH_LEN + 1;

impl Stream {
    /// Receives FPDUs from the front of `bytes` as long as they are like `fpdu`, which was received
    /// last. The first that is not stays there.
    #[inline]
    pub(super) fn receive_alike(
        &mut self,
        fpdu: &[u8],
        bytes: &mut &[u8],
        context: &mut Context<'_, '_>,
    ) {
        // It pays if two or more follow: the second begins as this one does.
        let second = bytes
            .get(fpdu.len()..)
            .and_then(|second| second.get(..ALIKE));
        let pays = fpdu.len() >= SHORTEST && second == fpdu.get(..ALIKE);
        if pays && context.fast_paths.coalesced_run {
            self.receive_long(fpdu, bytes, context);
        }
    }

    #[inline(never)]
    fn receive_long(&mut self, fpdu: &[u8], bytes: &mut &[u8], context: &mut Context<'_, '_>) {
        let Some(mut next) = FpduTemplate::behind(fpdu) else {
            return;
        };
        let Some((mut place, messages)) = self.place_behind(fpdu, &next.header(), context.guard)
        else {
            return;
        };
        let (mut count, mut octets) = (0, 0);
        while place.len() >= next.payload_len()
            && let Some((fpdu, payload)) = next.read(bytes)
            && self.deframer.is_good(fpdu)
            && let Some(front) = place.split_front(payload.len())
            && front.write(payload).is_ok()
        {
            *bytes = &bytes[fpdu.len()..];
            next.advance();
            count += 1;
            octets += payload.len();
        }
        if count > 0 {
            taken::count(FastPath::CoalescedRun);
            // A piece of input is far shorter than 2^32 octets.
            self.pass(&messages, &next.header(), octets as u32, false);
            context.counters.rdma.fpdus_received += count;
            context.counters.rdma.octets_placed += octets as u64;
        }
    }
}
