//! Receiver not ready (RNR), on connections with the semantics of RC: messages wait for receives,
//! and peers are told to wait (docs/design/rc-receiver-not-ready.md).

#[path = "../common/mod.rs"]
mod common;

mod ends;
mod hostile;
mod parking;
mod random;
mod receipts;
mod retry;
mod scene;
mod shared;
