//! Errors that end a stream: which Terminate goes out, what both applications are told, and that nobody else is
//! hurt. The peer is a raw one, which does wrong by the octet.

#[path = "../common/mod.rs"]
mod common;
mod decided;
mod endings;
mod messages;
mod scene;
mod segments;
mod strangers;
#[allow(dead_code)] // of it, only what writes
#[path = "../markers/stream.rs"]
mod stream;
mod table;
