//! Compiles the eBPF programs that stand in for those of a shared device, and says what the host has for tests.

use std::env;
use std::path::{Path, PathBuf};

use libbpf_cargo::SkeletonBuilder;

#[path = "../xtask/build/host.rs"]
mod host;
#[path = "../xtask/build/rustfmt.rs"]
mod rustfmt;

const PROGRAMS: &str = "ebpf/plain.bpf.c";

fn main() {
    host::set(&[]);
    let output = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("set by cargo");
    let layouts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ebpf");
    for read in [PROGRAMS, "../ebpf/steer.h"] {
        println!("cargo::rerun-if-changed={read}");
    }
    let built = SkeletonBuilder::new()
        .rustfmt(rustfmt::stand_in(&output))
        .source(PROGRAMS)
        .clang_args([
            format!("-I/usr/include/{arch}-linux-gnu"),
            format!("-I{}", layouts.display()),
            "-Wall".to_string(),
            "-Werror".to_string(),
        ])
        .build_and_generate(output.join("plain.skel.rs"));
    if let Err(error) = built {
        panic!(
            "cannot build benches/{PROGRAMS}: {error:?}\n\
             The build needs: apt install clang llvm libelf-dev zlib1g-dev linux-libc-dev"
        );
    }
}
