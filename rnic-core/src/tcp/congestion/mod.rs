//! Congestion control: how much may be in flight.
//!
//! A controller is told what happened and holds a window in octets. It knows nothing of segments, timers or of
//! how losses are found: that is the `recovery` module's.

pub(super) mod newreno;

pub(super) use newreno::NewReno;

/// New data was acknowledged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acked {
    /// How many octets.
    pub(super) octets: u64,
    /// Whether the window was used up, so that its growth has something to stand on.
    pub(super) window_used: bool,
}
