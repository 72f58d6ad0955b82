//! What the two ends agreed on in their SYNs.

use core::cmp::Ordering;
use core::time::Duration;

use super::TcpConfig;
use crate::time::{Instant, Span};
use crate::wire::tcp::{TcpOptions, Timestamps};

/// The segment size of a peer that states none (RFC 9293 section 3.7.1).
const DEFAULT_MSS: u16 = 536;
/// The least segment size of ours, and of a path: the smallest FPDU that MPA may be limited to (RFC
/// 5044 section 4.3) fits beside the timestamps.
pub(super) const MIN_MSS: u16 = 160;
/// The least segment size of a peer, as in Linux: what says less is no host, as more headers than
/// data would cost us time.
const MIN_PEER_MSS: u16 = 48;
/// After this time without a segment the peer's clock may have wrapped (RFC 7323 section 5.5).
const TIMESTAMP_LIFETIME: Duration = Duration::from_secs(24 * 24 * 3600);
/// Octets of the timestamps option, padded.
const TIMESTAMPS_LEN: u16 = 12;
/// Octets of the header without options.
const HEADER_LEN: u16 = 20;

/// Options in use.
#[derive(Debug)]
pub(super) struct Negotiated {
    /// The largest payload with a header of 20 octets.
    pub(super) mss: u16,
    pub(super) sack: bool,
    pub(super) scaling: bool,
    timestamps: Option<TimestampState>,
}

/// Timestamps of a connection that uses them.
#[derive(Debug)]
struct TimestampState {
    /// Added to our clock.
    offset: u32,
    /// The peer's timestamp to echo (TS.Recent), and when it came.
    recent: u32,
    recent_at: Instant,
}

impl Negotiated {
    /// Returns what we offer.
    pub(super) fn offer(config: &TcpConfig) -> Self {
        let state = TimestampState {
            offset: config.timestamp_offset,
            recent: 0,
            recent_at: Instant::ZERO,
        };
        Self {
            mss: config.mss.max(MIN_MSS),
            sack: config.sack,
            scaling: true,
            timestamps: config.timestamps.then_some(state),
        }
    }

    /// Limits segments to `mss` octets. Returns the limit, of which the least is for headers.
    pub(super) fn limit_mss(&mut self, mss: u16) -> u16 {
        let limit = mss.max(MIN_MSS);
        self.mss = self.mss.min(limit);
        limit
    }

    /// Keeps of the offer what the peer's SYN agrees to.
    pub(super) fn settle(&mut self, now: Instant, peer: &TcpOptions) {
        // RFC 9293 section 3.7.1 (MUST-16): no segment is larger than the peer takes.
        let theirs = peer.mss.unwrap_or(DEFAULT_MSS);
        self.mss = self.mss.min(theirs.max(MIN_PEER_MSS));
        self.sack &= peer.sack_permitted;
        self.scaling &= peer.window_scale.is_some();
        match (&mut self.timestamps, peer.timestamps) {
            (Some(state), Some(theirs)) => (state.recent, state.recent_at) = (theirs.value, now),
            _ => self.timestamps = None,
        }
    }

    /// Returns the most payload that a data segment takes.
    pub(super) fn max_payload(&self) -> u16 {
        self.mss
            - if self.timestamps.is_some() {
                TIMESTAMPS_LEN
            } else {
                0
            }
    }

    /// Returns the octets of payload that are built at a time. Where the peer's segments are
    /// smaller, they are cut when they are sent: an FPDU need not fit one (RFC 5044 section 4.5).
    pub(super) fn built_payload(&self) -> u16 {
        self.max_payload().max(MIN_MSS - TIMESTAMPS_LEN)
    }

    /// Returns whether what is built fits a segment.
    #[inline(always)]
    pub(super) fn fits_whole(&self) -> bool {
        self.mss >= MIN_MSS
    }

    /// Returns the number of octets of the header of a data segment.
    pub(super) fn data_header_len(&self) -> u16 {
        HEADER_LEN + (self.mss - self.max_payload())
    }

    /// Returns our timestamps option now, if timestamps are in use.
    pub(super) fn stamp(&self, now: Instant) -> Option<Timestamps> {
        let state = self.timestamps.as_ref()?;
        Some(Timestamps {
            value: state.clock(now),
            echo: state.recent,
        })
    }

    /// Returns whether a segment is older than what has been received, by its timestamp (PAWS, RFC
    /// 7323 section 5). A segment without a timestamp passes, as it does in Linux: some middleboxes
    /// remove the option.
    #[inline]
    pub(super) fn is_old(&self, now: Instant, theirs: Option<Timestamps>) -> bool {
        let (Some(state), Some(theirs)) = (&self.timestamps, theirs) else {
            return false;
        };
        let behind = theirs.value.wrapping_sub(state.recent).cast_signed() < 0;
        behind && now.since(state.recent_at) < TIMESTAMP_LIFETIME
    }

    /// Compares options of the peer's, by their timestamp, with what has been received: greater if
    /// they are newer, equal if that cannot be told.
    pub(super) fn age_of(&self, options: &TcpOptions) -> Ordering {
        let (Some(state), Some(theirs)) = (&self.timestamps, options.timestamps) else {
            return Ordering::Equal;
        };
        theirs
            .value
            .wrapping_sub(state.recent)
            .cast_signed()
            .cmp(&0)
    }

    /// Returns when the peer's last timestamp arrived, if timestamps are in use.
    pub(super) fn heard_at(&self) -> Option<Instant> {
        self.timestamps.as_ref().map(|state| state.recent_at)
    }

    /// Remembers the timestamp to echo, from a segment that reaches the last acknowledged octet
    /// (RFC 7323 section 4.3).
    #[inline]
    pub(super) fn remember(&mut self, now: Instant, theirs: Option<Timestamps>) {
        if let (Some(state), Some(theirs)) = (&mut self.timestamps, theirs) {
            (state.recent, state.recent_at) = (theirs.value, now);
        }
    }

    /// Returns our timestamp that a segment echoes, if timestamps are in use.
    pub(super) fn echo(&self, options: &TcpOptions) -> Option<Echo> {
        let (state, theirs) = (self.timestamps.as_ref()?, options.timestamps?);
        (theirs.echo != 0).then_some(Echo {
            offset: state.offset,
            value: theirs.echo,
        })
    }

    /// Returns the round-trip time by the timestamp that the peer echoes. `None` if it is none of
    /// ours.
    pub(super) fn round_trip(&self, now: Instant, options: &TcpOptions) -> Option<Span> {
        let (state, theirs) = (self.timestamps.as_ref()?, options.timestamps?);
        let millis = state.clock(now).wrapping_sub(theirs.echo);
        // A day is beyond belief: the echo is bogus, or was never set.
        (theirs.echo != 0 && millis < 86_400_000).then(|| Span::from_millis(u64::from(millis)))
    }
}

impl TimestampState {
    fn clock(&self, now: Instant) -> u32 {
        clock(self.offset, now)
    }
}

/// Returns the clock of the option, which wraps by design.
fn clock(offset: u32, now: Instant) -> u32 {
    (now.as_millis() as u32).wrapping_add(offset)
}

/// A timestamp of ours that came back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Echo {
    offset: u32,
    value: u32,
}

impl Echo {
    /// Returns whether it was sent before `at`, as far as its clock can tell.
    pub(super) fn is_before(self, at: Instant) -> bool {
        let ahead = self.value.wrapping_sub(clock(self.offset, at));
        ahead.cast_signed() < 0
    }
}
