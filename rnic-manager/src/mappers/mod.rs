//! Questions to the port mappers of peers' hosts: where does a listener for RDMA really listen?
//!
//! Over iWARP, TCP and RDMA share the numbers of ports, and a program may want one number for both.
//! Then its RDMA listener has another TCP port, which the mapper of its host tells. Anybody may ask.

mod asker;
mod asking;
mod query;
#[cfg(test)]
mod tests;
mod watch;
mod ways;

pub use asker::Asker;
pub use asking::{Asked, Questions, Told};
pub use watch::Watch;
pub use ways::Ways;
