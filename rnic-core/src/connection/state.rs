//! The state of all layers as text, for tests that compare connections.

use std::fmt;

use super::upper::LocalUlp;
use super::{Connection, Phase, Transport};

impl<T: Transport> Connection<T> {
    /// Writes the state of each layer. Left out is what only saves a look: `between_messages` of a
    /// stream, and where the connection stands in the engine's queues.
    pub(crate) fn write_state(&self, to: &mut impl fmt::Write) -> fmt::Result {
        writeln!(to, "{:?} {:?}", self.key, self.tcp)?;
        writeln!(
            to,
            "deadline {:?} fin {} reset {} loose {:?} ending at {} early {}",
            self.deadline,
            self.fin_asked,
            self.reset_asked,
            self.loose_octets,
            self.loose_end,
            self.reorder.buffered(),
        )?;
        let Phase::Streaming(stream) = &self.phase else {
            return Ok(());
        };
        writeln!(to, "{stream:?}")?;
        if let LocalUlp::Rdmap(user) = &stream.user {
            writeln!(to, "{:?} {:?}", user.rdmap, user.outbound)?;
        }
        Ok(())
    }
}
