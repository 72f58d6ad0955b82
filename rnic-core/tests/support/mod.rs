//! What the integration tests share.

#![allow(dead_code)] // each test file uses some of it

pub(crate) mod pcap;
pub(crate) mod stream;
