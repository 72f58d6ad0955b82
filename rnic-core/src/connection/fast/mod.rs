//! Fast paths: what most frames go by, in place of the ordinary way.
//!
//! The ordinary way ([`Connection::handle_segment`] for what is received, [`Connection::transmit`] for what is sent) is the
//! specification: it alone decides what is right. A fast path does the same with less, where it is known that nothing
//! else is to be done. Each has one shape:
//!
//! - `eligible(&connection, ..) -> Option<Self>` looks at everything, and changes nothing. What it returns is the proof that
//!   the path may be taken. `None`: the ordinary way, or another path, has everything as it was.
//! - `commit(self, &mut connection, ..)` makes the changes, and cannot fail.
//!
//! | path | is eligible | skips | other parts |
//! |---|---|---|---|
//! | [`whole_message`] | a segment with expected headers, just one FPDU, which is a whole Write or Send, and acknowledges the only segment in flight | all that can only be found to be nothing: losses, windows, FPDUs and messages in pieces, the end of a stream | `tcp/fast/whole_message.rs`, `tcp/fast/sole_ack.rs` |
//! | [`header_prediction`] | a segment with expected headers, the next data of the stream | reading the frame, the flow table, TCP's checks of what is the same | `wire/prediction.rs`, `tcp/fast/header_prediction.rs` |
//! | [`coalesced_run`] | frames behind that, each like the one before with the next segment of the same Write, or of the next | all but checksum, CRC and placement; TCP and DDP hear of all of them once | `wire/segment_template.rs`, `tcp/fast/coalesced_run.rs` |
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
