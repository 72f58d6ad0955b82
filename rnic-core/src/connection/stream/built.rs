//! The payload of a segment that was built.

/// The payload of a segment that was built.
#[derive(Clone, Copy, Debug)]
pub(in crate::connection) struct Built {
    pub(in crate::connection) len: u16,
    /// The checksum of its octets. Zero where it is not needed.
    pub(in crate::connection) sum: u16,
    /// Whether nothing follows for now: PSH is set.
    pub(in crate::connection) push: bool,
    /// There surely is nothing more to send: [`Stream::is_at_rest`](super::Stream::is_at_rest).
    pub(in crate::connection) at_rest: bool,
}

impl Built {
    /// There is nothing to send.
    pub(in crate::connection) const NOTHING: Self = Self {
        len: 0,
        sum: 0,
        push: false,
        at_rest: false,
    };
}
