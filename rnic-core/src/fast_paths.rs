//! The switches of the fast paths.
//!
//! A fast path has the outcome of the ordinary way in fewer steps, in a case that is common. The
//! ordinary way is the specification: tests run an engine without fast paths beside one that has
//! them, on the same input, and compare.

/// A fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastPath {
    /// [`FastPaths::header_prediction`].
    HeaderPrediction,
    /// [`FastPaths::whole_message`].
    WholeMessage,
    /// [`FastPaths::coalesced_run`].
    CoalescedRun,
    /// [`FastPaths::sole_ack`].
    SoleAck,
    /// [`FastPaths::tx_burst`].
    TxBurst,
    /// [`FastPaths::idle_send`].
    IdleSend,
    /// [`FastPaths::inline_messages`].
    InlineMessages,
    /// [`FastPaths::tx_template`].
    TxTemplate,
}

impl FastPath {
    /// Every fast path.
    pub const ALL: [Self; 8] = [
        Self::HeaderPrediction,
        Self::WholeMessage,
        Self::CoalescedRun,
        Self::SoleAck,
        Self::TxBurst,
        Self::IdleSend,
        Self::InlineMessages,
        Self::TxTemplate,
    ];
}

/// Which fast paths an engine takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // each is a switch of its own
pub struct FastPaths {
    /// Receive: a segment with the next data of the stream, in a frame like the one before.
    pub header_prediction: bool,
    /// Receive: a frame that holds a whole message and acknowledges all that was in flight.
    pub whole_message: bool,
    /// Receive: further segments of a Write, behind one that header prediction has taken.
    pub coalesced_run: bool,
    /// Receive: the ACK of the only segment in flight, in a segment that header prediction has
    /// taken.
    pub sole_ack: bool,
    /// Transmit: segments of new data that leave one behind the other while nothing else is due.
    pub tx_burst: bool,
    /// Transmit: a short message while nothing is in flight.
    pub idle_send: bool,
    /// Transmit: messages whose octets stand in their requests, from the ring into the frame.
    pub inline_messages: bool,
    /// Transmit: segments of one long message in a burst, whose source is checked once for all of
    /// them.
    pub tx_template: bool,
}

impl Default for FastPaths {
    fn default() -> Self {
        Self::ALL
    }
}

impl FastPaths {
    /// All of them.
    pub const ALL: Self = Self {
        header_prediction: true,
        whole_message: true,
        coalesced_run: true,
        sole_ack: true,
        tx_burst: true,
        idle_send: true,
        inline_messages: true,
        tx_template: true,
    };

    /// The ordinary way alone.
    pub const NONE: Self = Self {
        header_prediction: false,
        whole_message: false,
        coalesced_run: false,
        sole_ack: false,
        tx_burst: false,
        idle_send: false,
        inline_messages: false,
        tx_template: false,
    };

    /// Returns the same switches with one turned on.
    #[must_use]
    pub fn with(mut self, path: FastPath) -> Self {
        *self.switch(path) = true;
        self
    }

    /// Returns the same switches with one turned off.
    #[must_use]
    pub fn without(mut self, path: FastPath) -> Self {
        *self.switch(path) = false;
        self
    }

    /// Returns whether any of them needs frames to be compared with the frame before.
    pub(crate) fn predict_headers(self) -> bool {
        self.header_prediction || self.whole_message
    }

    fn switch(&mut self, path: FastPath) -> &mut bool {
        match path {
            FastPath::HeaderPrediction => &mut self.header_prediction,
            FastPath::WholeMessage => &mut self.whole_message,
            FastPath::CoalescedRun => &mut self.coalesced_run,
            FastPath::SoleAck => &mut self.sole_ack,
            FastPath::TxBurst => &mut self.tx_burst,
            FastPath::IdleSend => &mut self.idle_send,
            FastPath::InlineMessages => &mut self.inline_messages,
            FastPath::TxTemplate => &mut self.tx_template,
        }
    }
}

/// How often each fast path was taken on this thread, for tests. Builds without debug assertions do
/// not count.
pub mod taken {
    use super::FastPath;
    #[cfg(debug_assertions)]
    use core::cell::Cell;

    #[cfg(debug_assertions)]
    thread_local! {
        static TAKEN: [Cell<u64>; FastPath::ALL.len()] = const { [const { Cell::new(0) }; FastPath::ALL.len()] };
    }

    /// Counts a fast path that was taken.
    #[inline(always)]
    pub(crate) fn count(path: FastPath) {
        #[cfg(debug_assertions)]
        TAKEN.with(|taken| {
            let cell = &taken[path as usize];
            cell.set(cell.get() + 1);
        });
        let _ = path;
    }

    /// Returns how often a fast path was taken on this thread; `None` in a build that does not
    /// count.
    pub fn times(path: FastPath) -> Option<u64> {
        #[cfg(debug_assertions)]
        return Some(TAKEN.with(|taken| taken[path as usize].get()));
        #[cfg(not(debug_assertions))]
        {
            let _ = path;
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_has_a_switch_of_its_own() {
        let (mut on, mut off) = (FastPaths::NONE, FastPaths::ALL);
        for (place, path) in FastPath::ALL.into_iter().enumerate() {
            assert_eq!(path as usize, place);
            assert_ne!(on.with(path), on);
            assert_ne!(off.without(path), off);
            on = on.with(path);
            off = off.without(path);
        }
        assert_eq!((on, off), (FastPaths::ALL, FastPaths::NONE));
    }
}
