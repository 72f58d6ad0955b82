//! TCP's part of each fast path. The contract stands in `connection/fast/mod.rs`, the list of all
//! of them in docs/design/fast-paths.md.
//!
//! `eligible` makes the proof of a path, and changes nothing; `commit` consumes it, and cannot
//! fail. [`Tcp::receive`] and [`Tcp::poll_transmit`] are the ordinary way: they decide what is
//! right.
//!
//! [`Tcp::receive`]: super::Tcp::receive
//! [`Tcp::poll_transmit`]: super::Tcp::poll_transmit

mod coalesced_run;
mod header_prediction;
mod idle_send;
mod sole_ack;
mod tx_burst;
mod whole_message;

pub use self::coalesced_run::CoalescedSegments;
pub use self::header_prediction::{Acknowledged, NextData};
pub use self::idle_send::IdleSegment;
pub use self::tx_burst::BurstSegments;
pub use self::whole_message::DataWithSoleAck;

pub(super) use self::sole_ack::SoleAck;
