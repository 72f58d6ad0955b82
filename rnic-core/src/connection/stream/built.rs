//! What the payload of a segment has come to.

/// The payload of a segment that was built.
#[derive(Clone, Copy, Debug)]
pub(in crate::connection) struct Built {
    pub(in crate::connection) len: u16,
    /// Of its octets: their part of the checksum. Zero where nobody needs it.
    pub(in crate::connection) sum: u16,
    /// Whether nothing follows for now.
    pub(in crate::connection) push: bool,
    /// There surely is nothing more to send: [`Stream::is_at_rest`](super::Stream::is_at_rest).
    pub(in crate::connection) rests: bool,
}

impl Built {
    /// There is nothing to send.
    pub(in crate::connection) const NOTHING: Self = Self {
        len: 0,
        sum: 0,
        push: false,
        rests: false,
    };
}
