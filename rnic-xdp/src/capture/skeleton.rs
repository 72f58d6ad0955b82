//! The programs that show what AF_XDP sockets send, compiled from `ebpf/capture.bpf.c`, as
//! libbpf-cargo generates it.
#![allow(unsafe_code, missing_docs, unreachable_pub, clippy::all)]
#![allow(clippy::undocumented_unsafe_blocks)]

include!(concat!(env!("OUT_DIR"), "/capture.skel.rs"));
