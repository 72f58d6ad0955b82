//! The examples of rnic-verbs, as programs without any right at two hosts that each have an rnicd,
//! and as root without one.

mod copy;
mod kv;
mod program;
mod rig;
mod rpc;
