//! Scripts in the manner of packetdrill, on virtual time, and tests of two ends against each other.

mod handshake;
mod script;
