//! CUBIC (RFC 9438). In its terms: windows in segments, times in seconds.

use super::Acked;
use crate::time::{Instant, Span};

/// RFC 9438 sections 4.6 and 5.
const BETA_CUBIC: f64 = 0.7;
const C: f64 = 0.4;
/// alpha_cubic: makes the window as large on average as that of a Reno that halves it (section
/// 4.3).
const ALPHA_CUBIC: f64 = 3.0 * (1.0 - BETA_CUBIC) / (1.0 + BETA_CUBIC);

#[derive(Clone, Debug, Default)]
pub(super) struct Cubic {
    /// W_max: where the window was reduced last, or less if it was reduced lower than the time
    /// before.
    w_max: Option<f64>,
    /// cwnd_prior: where it really was.
    cwnd_prior: f64,
    epoch: Option<Epoch>,
    /// Growth of less than an octet that is left over.
    fraction: f64,
}

/// A congestion avoidance stage.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    /// When it began, later by the time in which the window was not used.
    epoch_start: Instant,
    /// The last acknowledgment.
    last: Instant,
    /// The window at the start is `max` - C K^3.
    w_max: f64,
    k: f64,
    /// W_est: the window of a Reno.
    w_est: f64,
}

impl Epoch {
    /// Returns W_cubic, the window at a time after the start (section 4.2).
    fn w_cubic(&self, time: Span) -> f64 {
        C * (time.as_secs_f64() - self.k).powi(3) + self.w_max
    }
}

impl Cubic {
    /// Returns what an acknowledgment adds to the window, all in octets.
    pub(super) fn growth(&mut self, window: u64, mss: u64, acked: &Acked) -> u64 {
        let mss = mss as f64;
        let segments = acked.octets as f64 / mss;
        let growth = self.growth_in_segments(window as f64 / mss, segments, acked) * mss;
        let octets = (growth + self.fraction).floor();
        self.fraction += growth - octets;
        octets as u64
    }

    fn growth_in_segments(&mut self, window: f64, segments: f64, acked: &Acked) -> f64 {
        let (cwnd_prior, now) = (self.cwnd_prior, acked.now);
        let epoch = self.epoch(window, now);
        epoch.last = now;
        // Section 4.3.
        let alpha = if epoch.w_est < cwnd_prior {
            ALPHA_CUBIC
        } else {
            1.0
        };
        epoch.w_est += alpha * segments / window;
        let time = now.span_since(epoch.epoch_start);
        if epoch.w_cubic(time) < epoch.w_est {
            return (epoch.w_est - window).clamp(0.0, segments);
        }
        // Sections 4.4 and 4.5: what W_cubic will be when the segments sent now are acknowledged.
        let target = epoch.w_cubic(time + acked.srtt);
        let target = target.clamp(window, 1.5 * window);
        (target - window) / window * segments
    }

    /// Returns the congestion avoidance stage, and begins one if there is none. Without a reduction
    /// before, or with a window that has grown past it since, the window is at its plateau (section
    /// 4.8).
    fn epoch(&mut self, window: f64, now: Instant) -> &mut Epoch {
        let w_max = self.w_max.unwrap_or(window).max(window);
        self.epoch.get_or_insert_with(|| Epoch {
            epoch_start: now,
            last: now,
            w_max,
            k: ((w_max - window) / C).cbrt(),
            w_est: window,
        })
    }

    /// Handles a congestion event with `flight` octets in flight, and returns the new ssthresh
    /// (section 4.6).
    pub(super) fn reduce(&mut self, window: u64, flight: u64, mss: u64) -> u64 {
        let window = window as f64 / mss as f64;
        // Fast convergence (section 4.7): the share has become smaller, and a new flow may need
        // even more room.
        let w_max = match self.w_max {
            Some(max) if window < max => window * (1.0 + BETA_CUBIC) / 2.0,
            _ => window,
        };
        (self.w_max, self.cwnd_prior, self.epoch) = (Some(w_max), window, None);
        (flight as f64 * BETA_CUBIC).round() as u64
    }

    /// Forgets the plateau after a timeout: the window finds it anew (section 4.8).
    pub(super) fn forget(&mut self) {
        (self.w_max, self.epoch) = (None, None);
    }

    /// Converts to a segment size that has changed by `factor`.
    pub(super) fn resize(&mut self, factor: f64) {
        self.w_max = self.w_max.map(|max| max / factor);
        self.cwnd_prior /= factor;
        self.epoch = None;
    }

    /// Ends the congestion avoidance stage; the next has the same plateau.
    pub(super) fn begin_anew(&mut self) {
        self.epoch = None;
    }

    /// Handles an ACK that came while the window was not used: the time since the last ACK does not
    /// count (section 5.8).
    pub(super) fn pause(&mut self, now: Instant) {
        if let Some(epoch) = &mut self.epoch {
            epoch.epoch_start = epoch.epoch_start + now.span_since(epoch.last);
            epoch.last = now;
        }
    }

    /// Skips a time in which nothing was sent, which does not count either.
    pub(super) fn skip(&mut self, idle: Span) {
        if let Some(epoch) = &mut self.epoch {
            epoch.epoch_start = epoch.epoch_start + idle;
            epoch.last = epoch.last + idle;
        }
    }
}
