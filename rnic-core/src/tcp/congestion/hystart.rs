//! HyStart++ (RFC 9406): the first slow start ends when the round-trip time grows, before the queue overflows.
//!
//! A growth may be chance. So slow start goes on more slowly for some rounds, and at its old pace if the round-trip
//! time falls again.

use super::Acked;
use crate::time::Span;

/// RFC 9406 section 4.3.
const MIN_RTT_THRESHOLD: Span = Span::from_millis(4);
const MAX_RTT_THRESHOLD: Span = Span::from_millis(16);
const MIN_RTT_DIVISOR: u32 = 8;
const RTT_SAMPLES: u32 = 8;
const CSS_GROWTH_DIVISOR: u64 = 4;
const CSS_ROUNDS: u8 = 5;

/// One slow start.
#[derive(Clone, Debug, Default)]
pub(super) struct HyStart {
    /// The least round-trip times of the last round and of this one, and how many samples this one had.
    last_round: Option<Span>,
    this_round: Option<Span>,
    samples: u32,
    conservative: Option<Conservative>,
    /// Octets acknowledged that have not yet added to the window.
    rest: u64,
}

/// Conservative slow start.
#[derive(Clone, Copy, Debug)]
struct Conservative {
    /// The round-trip time that was too long.
    baseline: Span,
    /// Rounds begun, the one in which it began included.
    rounds: u8,
}

impl HyStart {
    /// Takes an acknowledgment. Returns whether slow start is over.
    pub(super) fn on_ack(&mut self, acked: &Acked) -> bool {
        if acked.round_ended {
            self.last_round = self.this_round.take();
            self.samples = 0;
            if let Some(conservative) = &mut self.conservative {
                conservative.rounds += 1;
                if conservative.rounds > CSS_ROUNDS {
                    return true;
                }
            }
        }
        if let Some(rtt) = acked.rtt {
            self.samples += 1;
            self.this_round = Some(self.this_round.map_or(rtt, |least| least.min(rtt)));
        }
        self.judge();
        false
    }

    fn judge(&mut self) {
        let Some(this) = self.this_round.filter(|_| self.samples >= RTT_SAMPLES) else {
            return;
        };
        if let Some(conservative) = self.conservative {
            if this < conservative.baseline {
                self.conservative = None;
            }
            return;
        }
        let Some(last) = self.last_round else { return };
        let threshold = (last / MIN_RTT_DIVISOR).clamp(MIN_RTT_THRESHOLD, MAX_RTT_THRESHOLD);
        if this >= last + threshold {
            self.conservative = Some(Conservative {
                baseline: this,
                rounds: 1,
            });
        }
    }

    /// What `octets` newly acknowledged add to the window. RFC 9406 puts no limit on it where the sender paces.
    pub(super) fn growth(&mut self, octets: u64) -> u64 {
        if self.conservative.is_none() {
            return octets;
        }
        self.rest += octets;
        let growth = self.rest / CSS_GROWTH_DIVISOR;
        self.rest %= CSS_GROWTH_DIVISOR;
        growth
    }
}
