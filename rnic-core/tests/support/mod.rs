//! What the integration tests share.

pub(crate) mod pcap;
pub(crate) mod stream;
