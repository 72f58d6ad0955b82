//! DDP for a ULP other than RDMAP (RFC 5041): any queue, RsvdULP, errors, and the ends of a stream.
//! Over TCP and MPA in the simulator, and over a transport of records as RFC 5043 has it.

#[path = "../common/mod.rs"]
mod common;

mod delivery;
mod errors;
mod flow;
mod parcels;
mod records;
mod scene;
mod teardown;
