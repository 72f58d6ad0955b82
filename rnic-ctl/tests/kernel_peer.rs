//! rnic's rping against the kernel's TCP: a small script over an ordinary socket plays the other
//! side (`kernel_peer.py`), in both roles, through real XDP and AF_XDP on a veth pair.

mod common;

use std::process::Command;

use common::{Running, link, text};
use rnic_xdp::testing::{Namespace, disable_offloads};

const ROUNDS: &str = "20";
const PORT: &str = "7174";
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kernel_peer.py");

/// Two namespaces: rnic has the first, the kernel's TCP the second, with the offloads that a veth
/// has by default.
fn hosts(name: &str, mtu: u16) -> (Namespace, Namespace) {
    let (ours, kernels) = link(name, "kernels");
    for (namespace, netdev) in [(&ours, "ours"), (&kernels, "kernels")] {
        let command = format!("link set dev {netdev} mtu {mtu}");
        namespace.ip(&command).unwrap();
    }
    (ours, kernels)
}

fn rping(namespace: &Namespace, arguments: &[&str]) -> Command {
    let mut command = namespace.command(env!("CARGO_BIN_EXE_rnic-ctl"));
    command
        .args(["rping", "--netdev", "ours", "-p", PORT, "-C", ROUNDS, "-V"])
        .args(arguments);
    command
}

/// `payload`: octets in a DDP segment.
fn script(namespace: &Namespace, role: &str, address: &str, size: &str, payload: &str) -> Command {
    let mut command = namespace.command("python3");
    command.args([SCRIPT, role, address, PORT, ROUNDS, size, payload]);
    command
}

fn kernel_connects(ours_address: &str, size: &str, mtu: u16, payload: &str) {
    kernel_connects_between(&hosts("kc", mtu), ours_address, size, payload);
}

fn kernel_connects_between(
    (ours, kernels): &(Namespace, Namespace),
    ours_address: &str,
    size: &str,
    payload: &str,
) {
    let server = rping(ours, &["-s", "-a", ours_address, "-S", size]);
    let server = Running::start(server).until_it_says("listening");
    let client = script(kernels, "client", ours_address, size, payload);
    Running::start(client).succeed("the script as client");
    server.succeed("rping as server");
}

fn kernel_listens(kernels_address: &str, size: &str, mtu: u16, payload: &str) {
    kernel_listens_between(&hosts("kl", mtu), kernels_address, size, payload);
}

fn kernel_listens_between(
    (ours, kernels): &(Namespace, Namespace),
    kernels_address: &str,
    size: &str,
    payload: &str,
) {
    let server = script(kernels, "server", kernels_address, size, payload);
    let server = Running::start(server).until_it_says("listening\n");
    let client = rping(ours, &["-c", "-a", kernels_address, "-S", size]);
    Running::start(client).succeed("rping as client");
    server.succeed("the script as server");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn the_kernels_tcp_as_initiator() {
    kernel_connects("10.77.0.1", "64", 1500, "1300");
    kernel_connects("fd77::1", "30001", 1500, "1300");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn the_kernels_tcp_as_responder() {
    kernel_listens("10.77.0.2", "30001", 1500, "1300");
    kernel_listens("fd77::2", "64", 1500, "1300");
}

/// Frames of several chunks: with an FPDU each, with many that begin and end anywhere in them, and
/// with FPDUs that cross from one to the next.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn the_kernels_tcp_with_a_large_mtu() {
    kernel_connects("10.77.0.1", "60001", 9000, "8900");
    kernel_listens("fd77::2", "60001", 9000, "8900");
    kernel_connects("fd77::1", "60001", 9000, "1300");
    kernel_listens("10.77.0.2", "60001", 9000, "20000");
}

/// What the wire carries is what the kernel would put on a NIC without offloads.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn the_kernels_tcp_without_offloads() {
    let hosts = hosts("ko", 1500);
    disable_offloads(&hosts.1, "kernels").unwrap();
    kernel_connects_between(&hosts, "fd77::1", "30001", "1300");
    kernel_listens_between(&hosts, "10.77.0.2", "30001", "1300");
}

/// The kernel answers, with a RST whose checksum is partial.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn where_nobody_listens_the_kernel_refuses() {
    let (ours, _kernels) = hosts("kr", 1500);
    for address in ["10.77.0.2", "fd77::2"] {
        let client = rping(&ours, &["-c", "-a", address]);
        let output = Running::start(client).finish("rping as client");
        let said = text(&output.stderr);
        assert!(!output.status.success(), "{address}");
        assert!(said.contains("connection refused"), "{address}: {said}");
    }
}

/// A server without an address accepts clients of both families.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_server_listens_on_both_families() {
    let (ours, kernels) = hosts("kb", 1500);
    for address in ["10.77.0.1", "fd77::1"] {
        let server = rping(&ours, &["-s"]);
        let server =
            Running::start(server).until_it_says("listening on 0.0.0.0:7174 and [::]:7174");
        let client = script(&kernels, "client", address, "64", "1300");
        Running::start(client).succeed("the script as client");
        server.succeed("rping as server");
    }
}
