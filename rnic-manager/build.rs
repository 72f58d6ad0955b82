//! Sets the cfg `root` where root builds: without it, the tests that need root are ignored.

use std::os::unix::fs::MetadataExt;

fn main() {
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
