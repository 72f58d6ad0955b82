//! Scripts in the manner of packetdrill, on virtual time, and tests of two ends against each other.

mod acknowledging;
mod closing;
mod cookie;
mod handshake;
mod hostile;
mod liveness;
mod loss;
mod pair;
mod path_mtu;
mod reset;
mod script;
mod time_wait;
mod timestamps;
mod urgent;
mod windows;
