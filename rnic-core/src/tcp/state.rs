//! The states of a connection (RFC 9293 section 3.3.2). LISTEN is the engine's: a listener holds no
//! connection.

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Our SYN is out.
    SynSent,
    /// Both SYNs are out, ours is not acknowledged.
    SynReceived,
    /// Open both ways.
    Established,
    /// We have closed; our FIN is not acknowledged.
    FinWait1,
    /// We have closed, the peer has not.
    FinWait2,
    /// The peer has closed, we have not.
    CloseWait,
    /// Both have closed at the same time; our FIN is not acknowledged.
    Closing,
    /// The peer closed first, then we; our FIN is not acknowledged.
    LastAck,
    /// Both have closed; late segments are answered for a while.
    TimeWait,
    /// No connection (any more).
    Closed,
}

impl State {
    /// Returns whether the SYNs are not exchanged yet.
    pub(super) const fn is_opening(self) -> bool {
        matches!(self, Self::SynSent | Self::SynReceived)
    }

    /// Returns whether the application may still add data.
    pub(super) const fn may_queue(self) -> bool {
        matches!(self, Self::Established | Self::CloseWait)
    }

    /// Returns whether data or FIN may be in flight.
    pub(super) const fn may_send(self) -> bool {
        matches!(
            self,
            Self::Established | Self::CloseWait | Self::FinWait1 | Self::Closing | Self::LastAck
        )
    }

    /// Returns the state after CLOSE by the application.
    pub(crate) const fn after_close(self) -> Self {
        match self {
            Self::SynSent => Self::Closed,
            Self::Established => Self::FinWait1,
            Self::CloseWait => Self::LastAck,
            other => other,
        }
    }

    /// Returns the state after the peer's FIN has been taken in order.
    pub(crate) const fn after_peer_fin(self) -> Self {
        match self {
            Self::Established => Self::CloseWait,
            Self::FinWait1 => Self::Closing,
            Self::FinWait2 => Self::TimeWait,
            other => other,
        }
    }

    /// Returns the state after our FIN has been acknowledged.
    pub(crate) const fn after_fin_acked(self) -> Self {
        match self {
            Self::FinWait1 => Self::FinWait2,
            Self::Closing => Self::TimeWait,
            Self::LastAck => Self::Closed,
            other => other,
        }
    }
}
