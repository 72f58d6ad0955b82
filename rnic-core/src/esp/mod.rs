//! ESP (RFC 4303) below the engine: received frames are opened before the engine handles them, and
//! frames that it sends are sealed on their way to the device. What policies say of plain frames is
//! enforced here too. Neither the engine nor its fast paths know of it.
//!
//! The Security Associations are the host's: a key manager negotiates them. The worker applies
//! them as [`Change`]s, with sequence numbers that no other process uses.
//!
//! Without an association, none of this is on the way of a frame.

mod change;
mod cipher;
mod facts;
mod flow;
mod inbound;
mod numbers;
mod open;
mod protection;
mod replay;
mod required;
mod sa;
mod seal;
mod selector;

pub use change::{Change, Request};
pub use cipher::{Algorithm, Keys, UnusableKey};
pub use facts::{KnownProtection, ProtectionFacts, ProtectionState, SaFacts};
pub use numbers::{BLOCK, Numbers};
pub use open::{Opened, Opener};
pub use protection::{Concerned, Protection, ProtectionCounts};
pub use replay::{LARGEST_WINDOW, SMALLEST_WINDOW, Top, USUAL_WINDOW, Window};
pub use required::{Required, RequiredPorts};
pub use sa::{InboundSa, Mode, OutboundSa, Sa, SaId, Usage};
pub use seal::{Sealer, Sealing};
pub use selector::{Action, Demand, Ports, Selector, Template};

#[cfg(test)]
mod tests;
