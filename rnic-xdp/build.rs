//! Compiles the eBPF programs and generates their skeletons, and says what the host has for tests.

use std::env;
use std::path::{Path, PathBuf};

use libbpf_cargo::SkeletonBuilder;

#[path = "../xtask/build/host.rs"]
mod host;
#[path = "../xtask/build/rustfmt.rs"]
mod rustfmt;

/// Names of programs in `ebpf/`.
const PROGRAMS: [&str; 4] = ["steer", "police", "port", "capture"];

fn main() {
    host::set(&["ipsec", "vlan", "vrf", "numa", "cut_frames"]);
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let ebpf = manifest.join("../ebpf");
    println!("cargo::rerun-if-changed={}", ebpf.display());
    for name in PROGRAMS {
        build(&ebpf, name);
    }
}

fn build(ebpf: &Path, name: &str) {
    let output = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("set by cargo");
    // <asm/types.h> is found under the architecture's directory on Debian; libbpf's own headers
    // come with libbpf-cargo, so that neither libbpf-dev nor vmlinux.h is needed.
    let built = SkeletonBuilder::new()
        .rustfmt(rustfmt::stand_in(&output))
        .source(ebpf.join(format!("{name}.bpf.c")))
        .clang_args([
            format!("-I/usr/include/{arch}-linux-gnu"),
            "-Wall".to_string(),
            "-Werror".to_string(),
        ])
        .build_and_generate(output.join(format!("{name}.skel.rs")));
    if let Err(error) = built {
        panic!(
            "cannot build ebpf/{name}.bpf.c: {error:?}\n\
             The build needs: apt install clang llvm libelf-dev zlib1g-dev linux-libc-dev"
        );
    }
}
