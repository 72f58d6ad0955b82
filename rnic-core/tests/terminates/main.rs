//! Errors that end a stream: which Terminate is sent, what both applications are told, and that
//! other connections are not affected. The peer is a raw one.

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
