//! What the host that builds has for tests, as cfgs: `root` if root builds, and what the kernel
//! has. Tests that need what is not there are ignored with their reason.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Sets `root`, and those of `features` that the kernel has. Some can be used, and asked for, by
/// root alone.
pub(crate) fn set(features: &[&str]) {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../xtask/build/host.rs");
    // Behind a user's build, `sudo -E` builds again.
    for variable in ["USER", "SUDO_USER", "HOME"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    let root = fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    set_if("root", root);
    for feature in features {
        let is_of_root = matches!(*feature, "ipsec" | "vlan" | "vrf" | "cut_frames");
        set_if(feature, (root || !is_of_root) && has(feature));
    }
}

fn set_if(cfg: &str, is_there: bool) {
    println!("cargo::rustc-check-cfg=cfg({cfg})");
    if is_there {
        println!("cargo::rustc-cfg={cfg}");
    }
}

fn has(feature: &str) -> bool {
    match feature {
        "ipsec" => allows("ip xfrm policy add dir out action block"),
        "vlan" => allows(
            "ip link add veth7 type veth && ip link add link veth7 name vlan7 type vlan id 7",
        ),
        "vrf" => allows("ip link add vrf7 type vrf table 7"),
        "numa" => Path::new("/proc/self/numa_maps").exists(),
        // The first socket loads the module.
        "sctp" => Path::new("/proc/net/sctp").exists() || has_module("sctp"),
        // Sockets can refuse descriptors.
        "passrights" => release() >= (6, 16),
        // Programs can be run on frames whose headers lie in several buffers.
        "cut_frames" => release() >= (6, 18),
        _ => panic!("build.rs names no feature of the kernel: {feature}"),
    }
}

/// Returns whether the kernel could load a module.
fn has_module(name: &str) -> bool {
    let mut modprobe = Command::new("/sbin/modprobe");
    modprobe.args(["--dry-run", "--quiet", name]);
    modprobe.status().is_ok_and(|status| status.success())
}

/// Returns whether a command succeeds in a network namespace of its own.
fn allows(command: &str) -> bool {
    let mut shell = Command::new("unshare");
    shell.args(["--net", "sh", "-c", command]);
    let silent = shell.stdout(Stdio::null()).stderr(Stdio::null());
    silent.status().is_ok_and(|status| status.success())
}

/// Returns the first two numbers of the kernel's version.
fn release() -> (u32, u32) {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next().and_then(|number| number.parse().ok());
    (next().unwrap_or(0), next().unwrap_or(0))
}
