//! What a turn over sockets looks at.

/// What a turn looks at. Each look is a system call, so a worker that spins need not have all of them
/// in each turn.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Which sockets are ready. If not, octets are received for the connection that had some last;
    /// without one, it is looked all the same.
    pub at_all_sockets: bool,
    /// What peers have acknowledged, beside what octets come with.
    pub for_acknowledgments: bool,
    /// Whether those have that have acknowledged nothing for many looks.
    pub for_stalled: bool,
    /// What peers have sent and have no answer to, which the kernel is to acknowledge now.
    pub for_owed: bool,
}

impl Look {
    /// At everything.
    pub const EVERYWHERE: Self = Self {
        at_all_sockets: true,
        for_acknowledgments: true,
        for_stalled: true,
        for_owed: true,
    };
}
