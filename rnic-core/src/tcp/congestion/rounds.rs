//! Round trips of a connection (RFC 9406 section 4.2), and what they show: whether the congestion
//! window limited the sender, and the delivery rate.

use core::ops::Range;

use crate::time::{Instant, Span};

/// The rate at which octets reached the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveryRate {
    /// Octets per second.
    pub octets_per_second: u64,
    /// The application did not always have enough to send: the path may bear more.
    pub application_limited: bool,
}

/// Where one ACK takes all that was in flight, the sender has gone on at once if it did within this
/// time.
const PAUSE: Span = Span::from_millis(1);

/// Round trips, in offsets of the stream and times.
#[derive(Debug, Default)]
pub(in crate::tcp) struct Rounds {
    /// The round trip ends when everything before this is acknowledged.
    round_end: u64,
    /// The congestion window was full when the octets before this were sent.
    cwnd_limited_until: u64,
    /// When octets were last delivered.
    delivered_at: Instant,
    /// When the latest of the delivered segments was sent.
    delivered_sent_at: Instant,
    /// The rate sample under way.
    sample: Option<Sample>,
    last: Option<Round>,
}

/// A rate sample, as in Linux's `tcp_rate.c`: it begins when a segment is sent, and ends when that
/// segment is acknowledged. So it takes a round trip at least.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// When octets were last delivered before the segment was sent.
    prior_at: Instant,
    /// The time between the sending of what was delivered then, and of the segment.
    send_interval: Span,
    /// The offset past the segment.
    end: u64,
    /// Octets delivered since then.
    delivered: u64,
    application_limited: bool,
}

/// A rate sample that is complete.
#[derive(Clone, Copy, Debug)]
struct Round {
    delivered: u64,
    interval: Span,
    application_limited: bool,
}

/// What an acknowledgment says about round trips.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct RoundUpdate {
    /// A round trip is over, and the next one begins.
    pub(in crate::tcp) ended: bool,
    /// The congestion window limited what is acknowledged. This is remembered when sending: of ACKs
    /// that are handled in a batch, each but the first finds less in flight.
    pub(in crate::tcp) limited: bool,
}

impl Rounds {
    /// Records that new data from `before` up to `nxt` were sent. `idle`: nothing else was in
    /// flight; `full`: the congestion window has no room for more.
    pub(in crate::tcp) fn on_sent(
        &mut self,
        now: Instant,
        (before, nxt): (u64, u64),
        idle: bool,
        full: bool,
    ) {
        let goes_on =
            self.cwnd_limited_until == before && now.span_since(self.delivered_at) < PAUSE;
        let begins = idle && !goes_on;
        if begins {
            self.round_end = nxt;
            (self.delivered_at, self.delivered_sent_at) = (now, now);
            self.sample = None;
        }
        // All that is sent before the next delivery begins the same sample, and the last of it ends
        // the sample.
        if self.sample.is_none_or(|sample| sample.delivered == 0) {
            self.sample = Some(Sample {
                prior_at: self.delivered_at,
                send_interval: now.span_since(self.delivered_sent_at),
                end: nxt,
                delivered: 0,
                application_limited: begins
                    || self.sample.is_some_and(|sample| sample.application_limited),
            });
        }
        if full {
            self.cwnd_limited_until = nxt;
        }
    }

    /// Returns whether the congestion window was full when the octets from `una` on were sent.
    pub(in crate::tcp) fn was_cwnd_limited(&self, una: u64) -> bool {
        una < self.cwnd_limited_until
    }

    /// Handles an ACK that moves SND.UNA from `before` to `una`, with SND.NXT at `nxt`. It delivers
    /// `delivered` octets, the latest of which were sent at `sent_at` if that is certain.
    pub(in crate::tcp) fn on_ack(
        &mut self,
        now: Instant,
        (before, una, nxt): (u64, u64, u64),
        delivered: u64,
        sent_at: Option<Instant>,
        min_rtt: Option<Span>,
    ) -> RoundUpdate {
        let limited = self.was_cwnd_limited(before);
        let ended = una >= self.round_end && una > before;
        if ended {
            self.round_end = nxt;
        }
        if delivered > 0 {
            self.deliver(now, una, delivered, limited, min_rtt);
            self.delivered_sent_at = sent_at.unwrap_or(self.delivered_sent_at);
        }
        RoundUpdate { ended, limited }
    }

    /// Handles an ACK of all that was sent, in a single segment at `sent_at`, which ends a round
    /// trip. Returns whether the congestion window was full when it was sent.
    #[inline]
    pub(in crate::tcp) fn on_sole_ack(
        &mut self,
        now: Instant,
        acked: &Range<u64>,
        sent_at: Instant,
        min_rtt: Option<Span>,
    ) -> bool {
        let limited = self.was_cwnd_limited(acked.start);
        self.round_end = acked.end;
        let octets = acked.end - acked.start;
        self.deliver(now, acked.end, octets, limited, min_rtt);
        self.delivered_sent_at = sent_at;
        limited
    }

    /// Adds delivered octets to the rate sample, and ends it if its segment is acknowledged.
    ///
    /// ACKs may come in a burst, and so may what they clock out: the rate is measured over the
    /// longer of both intervals, and none is shorter than a round trip (as in Linux).
    #[inline]
    fn deliver(
        &mut self,
        now: Instant,
        una: u64,
        octets: u64,
        limited: bool,
        min_rtt: Option<Span>,
    ) {
        self.delivered_at = now;
        let Some(sample) = &mut self.sample else {
            return;
        };
        sample.delivered += octets;
        sample.application_limited |= !limited;
        if una < sample.end {
            return;
        }
        let interval = now.span_since(sample.prior_at).max(sample.send_interval);
        if interval > Span::ZERO && min_rtt.is_some_and(|min_rtt| interval >= min_rtt) {
            self.last = Some(Round {
                delivered: sample.delivered,
                interval,
                application_limited: sample.application_limited,
            });
        }
        self.sample = None;
    }

    /// Returns the delivery rate of the last complete sample.
    pub(in crate::tcp) fn last_rate(&self) -> Option<DeliveryRate> {
        let round = self.last?;
        let nanos = u128::from(round.interval.as_nanos().max(1));
        let rate = u128::from(round.delivered) * 1_000_000_000 / nanos;
        Some(DeliveryRate {
            octets_per_second: u64::try_from(rate).unwrap_or(u64::MAX),
            application_limited: round.application_limited,
        })
    }
}
