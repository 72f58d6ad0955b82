//! A device that clients share: the programs, maps and pins in network namespaces, with real
//! sockets.

mod bed;
mod endpoint;
mod life;
mod refusals;
mod traffic;
