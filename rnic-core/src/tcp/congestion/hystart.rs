//! HyStart++ (RFC 9406): the first slow start ends when the round-trip time grows, before the queue
//! overflows.
//!
//! A growth may be chance. So slow start goes on more slowly for some rounds, and at its old pace
//! if the round-trip time falls again.

use super::Acked;
use crate::time::Span;

/// RFC 9406 section 4.3.
const MIN_RTT_THRESH: Span = Span::from_millis(4);
const MAX_RTT_THRESH: Span = Span::from_millis(16);
const MIN_RTT_DIVISOR: u32 = 8;
const N_RTT_SAMPLE: u32 = 8;
const CSS_GROWTH_DIVISOR: u64 = 4;
const CSS_ROUNDS: u8 = 5;

/// One slow start.
#[derive(Clone, Debug, Default)]
pub(super) struct HyStart {
    /// lastRoundMinRTT, currentRoundMinRTT and rttSampleCount.
    last_round_min_rtt: Option<Span>,
    current_round_min_rtt: Option<Span>,
    rtt_sample_count: u32,
    css: Option<Css>,
    /// Acknowledged octets that have not yet added to the window.
    remainder: u64,
}

/// Conservative slow start.
#[derive(Clone, Copy, Debug)]
struct Css {
    /// cssBaselineMinRtt: the round-trip time that was too long.
    css_baseline_min_rtt: Span,
    /// Rounds begun, the one in which it began included.
    rounds: u8,
}

impl HyStart {
    /// Handles an acknowledgment. Returns whether slow start is over.
    pub(super) fn on_ack(&mut self, acked: &Acked) -> bool {
        if acked.round_ended {
            self.last_round_min_rtt = self.current_round_min_rtt.take();
            self.rtt_sample_count = 0;
            if let Some(css) = &mut self.css {
                css.rounds += 1;
                if css.rounds > CSS_ROUNDS {
                    return true;
                }
            }
        }
        if let Some(rtt) = acked.rtt {
            self.rtt_sample_count += 1;
            self.current_round_min_rtt = Some(
                self.current_round_min_rtt
                    .map_or(rtt, |least| least.min(rtt)),
            );
        }
        self.judge();
        false
    }

    fn judge(&mut self) {
        let Some(this) = self
            .current_round_min_rtt
            .filter(|_| self.rtt_sample_count >= N_RTT_SAMPLE)
        else {
            return;
        };
        if let Some(css) = self.css {
            if this < css.css_baseline_min_rtt {
                self.css = None;
            }
            return;
        }
        let Some(last) = self.last_round_min_rtt else {
            return;
        };
        let rtt_thresh = (last / MIN_RTT_DIVISOR).clamp(MIN_RTT_THRESH, MAX_RTT_THRESH);
        if this >= last + rtt_thresh {
            self.css = Some(Css {
                css_baseline_min_rtt: this,
                rounds: 1,
            });
        }
    }

    /// Returns what `octets` newly acknowledged add to the window. RFC 9406 puts no limit on it
    /// where the sender paces.
    pub(super) fn growth(&mut self, octets: u64) -> u64 {
        if self.css.is_none() {
            return octets;
        }
        self.remainder += octets;
        let growth = self.remainder / CSS_GROWTH_DIVISOR;
        self.remainder %= CSS_GROWTH_DIVISOR;
        growth
    }
}
