//! Round trips of a connection (RFC 9406 section 4.2), and what they showed: whether the window was what limited the
//! sender, and how fast the peer was reached.

use core::ops::Range;

use crate::time::{Instant, Span};

/// How fast octets reached the peer in a round trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveryRate {
    /// Octets per second.
    pub octets_per_second: u64,
    /// There was not always enough to send: the path may bear more.
    pub application_limited: bool,
}

/// Where one ACK takes all that was in flight, the sender has gone on at once if it did within this time.
const PAUSE: Span = Span::from_millis(1);

/// Offsets of the stream and times; all but the last sample are of the round trip under way.
#[derive(Debug, Default)]
pub(in crate::tcp) struct Rounds {
    /// It ends when more than this is acknowledged.
    until: u64,
    began_at: Instant,
    /// Octets that reached the peer in it.
    delivered: u64,
    application_limited: bool,
    /// The window was full when the octets before this were sent.
    cwnd_limited_until: u64,
    last: Option<Round>,
}

/// A round trip that is over.
#[derive(Clone, Copy, Debug)]
struct Round {
    delivered: u64,
    nanos: u64,
    application_limited: bool,
}

/// What an acknowledgment says about them.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct RoundUpdate {
    /// A round trip is over, and the next one begins.
    pub(in crate::tcp) ended: bool,
    /// The window limited what was sent before. It is remembered when sending: of ACKs that are handled in a batch,
    /// each but the first finds less in flight.
    pub(in crate::tcp) limited: bool,
}

impl Rounds {
    /// New data from `before` up to `nxt` was sent. `idle`: nothing was in flight; `full`: the window has no room for
    /// more.
    pub(in crate::tcp) fn on_sent(
        &mut self,
        now: Instant,
        (before, nxt): (u64, u64),
        idle: bool,
        full: bool,
    ) {
        let at_once = self.cwnd_limited_until == before && now.span_since(self.began_at) < PAUSE;
        if idle && !at_once {
            (self.until, self.began_at) = (nxt, now);
            (self.delivered, self.application_limited) = (0, true);
        }
        if full {
            self.cwnd_limited_until = nxt;
        }
    }

    /// Whether the window was full when the octets from `una` on were sent.
    pub(in crate::tcp) fn was_cwnd_limited(&self, una: u64) -> bool {
        una < self.cwnd_limited_until
    }

    /// Everything before `una` is acknowledged now, before it was up to `before`; `nxt` was sent, and `delivered` octets
    /// have reached the peer.
    pub(in crate::tcp) fn on_ack(
        &mut self,
        now: Instant,
        (before, una, nxt): (u64, u64, u64),
        delivered: u64,
    ) -> RoundUpdate {
        let limited = self.was_cwnd_limited(before);
        let ended = una >= self.until && una > before;
        self.delivered += delivered;
        self.application_limited |= !limited;
        if ended {
            self.take_sample(now.span_since(self.began_at));
            (self.until, self.began_at) = (nxt, now);
            (self.delivered, self.application_limited) = (0, !limited);
        }
        RoundUpdate { ended, limited }
    }

    /// [`on_ack`](Self::on_ack) of all that was sent: that ends a round trip. Says whether the window was full when it was sent.
    #[inline]
    pub(in crate::tcp) fn on_sole_ack(&mut self, now: Instant, acked: &Range<u64>) -> bool {
        let limited = self.was_cwnd_limited(acked.start);
        self.delivered += acked.end - acked.start;
        self.application_limited |= !limited;
        self.take_sample(now.span_since(self.began_at));
        (self.until, self.began_at) = (acked.end, now);
        (self.delivered, self.application_limited) = (0, !limited);
        limited
    }

    #[inline]
    fn take_sample(&mut self, time: Span) {
        self.last = Some(Round {
            delivered: self.delivered,
            nanos: time.as_nanos(),
            application_limited: self.application_limited,
        });
    }

    /// That of the last round trip.
    pub(in crate::tcp) fn last_rate(&self) -> Option<DeliveryRate> {
        let round = self.last?;
        let rate = u128::from(round.delivered) * 1_000_000_000 / u128::from(round.nanos.max(1));
        Some(DeliveryRate {
            octets_per_second: u64::try_from(rate).unwrap_or(u64::MAX),
            application_limited: round.application_limited,
        })
    }
}
