//! Compiles the steering program and generates its skeleton.

use std::env;
use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

fn main() {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let output = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    let ebpf = manifest.join("../ebpf");
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("set by cargo");

    println!(
        "cargo:rerun-if-changed={}",
        ebpf.join("steer.bpf.c").display()
    );
    println!("cargo:rerun-if-changed={}", ebpf.join("steer.h").display());

    // <asm/types.h> is found under the architecture's directory on Debian; libbpf's own headers come with
    // libbpf-cargo, so that neither libbpf-dev nor vmlinux.h is needed.
    let built = SkeletonBuilder::new()
        .source(ebpf.join("steer.bpf.c"))
        .clang_args([
            format!("-I/usr/include/{arch}-linux-gnu"),
            "-Wall".to_string(),
            "-Werror".to_string(),
        ])
        .build_and_generate(output.join("steer.skel.rs"));
    if let Err(error) = built {
        panic!(
            "cannot build ebpf/steer.bpf.c: {error:?}\n\
             The build needs: apt install clang llvm libelf-dev zlib1g-dev linux-libc-dev"
        );
    }
}
