//! Scripts in the manner of packetdrill, on virtual time, and tests of two ends against each other.

mod acknowledging;
mod closing;
mod cookie;
mod crossing;
mod duplicates;
mod ecn;
mod facts;
mod handshake;
mod hostile;
mod liveness;
mod loss;
mod network;
mod pair;
mod path_mtu;
mod rack;
mod reassembly;
mod reset;
mod scoreboard;
mod script;
mod spurious;
mod tail_probe;
mod time_wait;
mod timestamps;
mod urgent;
mod window;
mod windows;
