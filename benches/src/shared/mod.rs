//! A shared device: many clients at once, and a victim beside its neighbours.

// From the ground up: client, peer, process, quota < crowd, neighbour < victim
pub(crate) mod client;
pub(crate) mod crowd;
pub(crate) mod neighbour;
mod peer;
mod process;
pub(crate) mod quota;
pub(crate) mod victim;
