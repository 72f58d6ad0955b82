//! Compiles the eBPF programs that stand in for those of a shared device; sets the cfg `root`.

use std::env;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use libbpf_cargo::SkeletonBuilder;

const PROGRAMS: &str = "ebpf/plain.bpf.c";

fn main() {
    set_root();
    let output = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("set by cargo");
    let layouts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ebpf");
    for read in [PROGRAMS, "../ebpf/steer.h"] {
        println!("cargo::rerun-if-changed={read}");
    }
    let built = SkeletonBuilder::new()
        // Nobody reads the skeleton, and a minimal toolchain has no rustfmt: only its proxy, which
        // fails. A program that is not there is none.
        .rustfmt("/nonexistent/rustfmt")
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

/// Sets the cfg `root` where root builds: without it, the tests that need root are ignored.
fn set_root() {
    println!("cargo::rerun-if-changed=build.rs");
    // Behind a user's build, `sudo -E` builds again.
    for variable in ["USER", "SUDO_USER", "HOME"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    println!("cargo::rustc-check-cfg=cfg(root)");
    if std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0) {
        println!("cargo::rustc-cfg=root");
    }
}
