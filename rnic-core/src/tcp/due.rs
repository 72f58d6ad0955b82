//! What a connection has to send.

/// What is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Nothing.
    Nothing,
    /// An acknowledgment, which may travel with data.
    Acknowledgment,
    /// A segment that `Tcp::poll_transmit` makes: data, a FIN or a probe, an acknowledgment that has
    /// to go alone, a SYN or a RST.
    Segment,
}
