//! rnic's rping against the kernel's TCP: a small script over an ordinary socket plays the other side
//! (`kernel_peer.py`), in both roles, through real XDP and AF_XDP on a veth pair.

mod common;

use std::process::Command;

use common::{Running, link};
use rnic_xdp::testing::{Namespace, disable_offloads, is_root};

const ROUNDS: &str = "20";
const PORT: &str = "7174";
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kernel_peer.py");

/// Two namespaces: rnic has the first, the kernel's TCP the second.
fn hosts(name: &str, mtu: u16) -> (Namespace, Namespace) {
    let (ours, kernels) = link(name, "kernels");
    for (namespace, netdev) in [(&ours, "ours"), (&kernels, "kernels")] {
        let command = format!("link set dev {netdev} mtu {mtu}");
        namespace.ip(&command).unwrap();
    }
    disable_offloads(&kernels, "kernels").unwrap();
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
    let (ours, kernels) = hosts("kc", mtu);
    let server = rping(&ours, &["-s", "-a", ours_address, "-S", size]);
    let server = Running::start(server).until_it_says("listening");
    let client = script(&kernels, "client", ours_address, size, payload);
    Running::start(client).succeed("the script as client");
    server.succeed("rping as server");
}

fn kernel_listens(kernels_address: &str, size: &str, mtu: u16, payload: &str) {
    let (ours, kernels) = hosts("kl", mtu);
    let server = script(&kernels, "server", kernels_address, size, payload);
    let server = Running::start(server).until_it_says("listening\n");
    let client = rping(&ours, &["-c", "-a", kernels_address, "-S", size]);
    Running::start(client).succeed("rping as client");
    server.succeed("the script as server");
}

#[test]
fn the_kernels_tcp_as_initiator() {
    if is_root("the_kernels_tcp_as_initiator") {
        kernel_connects("10.77.0.1", "64", 1500, "1300");
        kernel_connects("fd77::1", "30001", 1500, "1300");
    }
}

#[test]
fn the_kernels_tcp_as_responder() {
    if is_root("the_kernels_tcp_as_responder") {
        kernel_listens("10.77.0.2", "30001", 1500, "1300");
        kernel_listens("fd77::2", "64", 1500, "1300");
    }
}

/// Frames of several chunks: with an FPDU each, with many that begin and end anywhere in them, and with FPDUs that cross
/// from one to the next.
#[test]
fn the_kernels_tcp_with_a_large_mtu() {
    if is_root("the_kernels_tcp_with_a_large_mtu") {
        kernel_connects("10.77.0.1", "60001", 9000, "8900");
        kernel_listens("fd77::2", "60001", 9000, "8900");
        kernel_connects("fd77::1", "60001", 9000, "1300");
        kernel_listens("10.77.0.2", "60001", 9000, "20000");
    }
}
