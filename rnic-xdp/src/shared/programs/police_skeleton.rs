//! The program that says what a client may send, compiled from `ebpf/police.bpf.c`, as
//! libbpf-cargo generates it.
#![allow(unsafe_code, missing_docs, unreachable_pub, clippy::all)]
#![allow(clippy::undocumented_unsafe_blocks)]

include!(concat!(env!("OUT_DIR"), "/police.skel.rs"));
