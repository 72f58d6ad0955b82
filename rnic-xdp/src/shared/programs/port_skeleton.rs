//! The program on a client's end, compiled from `ebpf/port.bpf.c`, as libbpf-cargo generates it.
#![allow(unsafe_code, missing_docs, unreachable_pub, clippy::all)]
#![allow(clippy::undocumented_unsafe_blocks)]

include!(concat!(env!("OUT_DIR"), "/port.skel.rs"));
