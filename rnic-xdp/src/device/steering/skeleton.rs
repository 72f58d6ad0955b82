//! The steering program, compiled from `ebpf/steer.bpf.c`, as libbpf-cargo generates it.
#![allow(unsafe_code, missing_docs, unreachable_pub, clippy::all)]
#![allow(clippy::undocumented_unsafe_blocks)]

include!(concat!(env!("OUT_DIR"), "/steer.skel.rs"));
