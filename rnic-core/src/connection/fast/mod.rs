//! Fast paths: the short cuts that most frames take, in place of the ordinary way.
//!
//! The ordinary way ([`Connection::handle_segment`] for what is received, [`Connection::transmit`]
//! for what is sent) is the specification: it alone decides what is right. A fast path has the same
//! outcome with less work, in a case where nothing else has to be done. Each has one shape:
//!
//! - `eligible(&connection, ..) -> Option<Self>` checks everything, and changes nothing. It returns
//!   the proof that the path may be taken. With `None` everything is as it was, for another path or
//!   the ordinary way.
//! - `commit(self, &mut connection, ..)` makes the changes, and cannot fail, but for one reason:
//!   the program has taken away memory of its own that it had registered. What was to be placed
//!   there is placed first of all, what was to come from there is read first of all, and without
//!   success nothing is changed, for the ordinary way.
//!
//! Received, in the order in which they are tried: [`whole_message`], [`header_prediction`] and,
//! behind it, [`coalesced_run`]. Sent: [`idle_send`], and [`tx_burst`] with [`tx_template`] and
//! [`inline_messages`] for what it sends. What TCP has of a path stands in `tcp/fast/`, in a file
//! of the same name; `sole_ack` is TCP's alone. docs/design/fast-paths.md lists which case takes
//! which way, when each is eligible, and what it skips.
//!
//! [`FastPaths`](crate::fast_paths::FastPaths) switches each off.
//!
//! [`Connection::handle_segment`]: super::Connection::handle_segment
//! [`Connection::transmit`]: super::Connection::transmit

mod coalesced_run;
mod header_prediction;
mod idle_send;
mod inline_messages;
mod tx_burst;
mod tx_template;
mod whole_message;

pub(crate) use self::coalesced_run::CoalescedRun;
pub(crate) use self::header_prediction::PredictedSegment;
pub(crate) use self::idle_send::IdleSend;
pub(crate) use self::tx_burst::TxBurst;
pub(crate) use self::whole_message::WholeMessage;

use self::tx_template::TxTemplate;
