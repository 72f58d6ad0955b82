//! rnic's rping against the kernel's TCP: a small script over an ordinary socket plays the other side
//! (`kernel_peer.py`), in both roles, through real XDP and AF_XDP on a veth pair.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rnic_xdp::testing::{Namespace, VethEnd, disable_offloads, is_root, veth_pair};

const ROUNDS: &str = "20";
const PORT: &str = "7174";
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kernel_peer.py");

/// Two namespaces: rnic has the first, the kernel's TCP the second.
fn link(name: &str) -> (Namespace, Namespace) {
    let (ours, kernels) = (Namespace::new(name).unwrap(), Namespace::new(name).unwrap());
    let end = |namespace, name, addresses| VethEnd {
        namespace,
        name,
        addresses,
    };
    veth_pair(
        end(&ours, "ours", "10.77.0.1/24 fd77::1/64"),
        end(&kernels, "kernels", "10.77.0.2/24 fd77::2/64"),
        1,
    )
    .unwrap();
    disable_offloads(&kernels, "kernels").unwrap();
    (ours, kernels)
}

fn rping(namespace: &Namespace, arguments: &[&str]) -> Command {
    let mut command = namespace.command(env!("CARGO_BIN_EXE_rnic-ctl"));
    command
        .args(["rping", "--netdev", "ours", "-p", PORT, "-C", ROUNDS, "-V"])
        .args(arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn script(namespace: &Namespace, role: &str, address: &str, size: &str) -> Command {
    let mut command = namespace.command("python3");
    command.args([SCRIPT, role, address, PORT, ROUNDS, size]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn finish(child: Child, what: &str) -> Output {
    let output = child.wait_with_output().unwrap();
    let text = |octets: &[u8]| String::from_utf8_lossy(octets).into_owned();
    assert!(
        output.status.success(),
        "{what}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    output
}

/// Starts a client that may come before its server listens: it is started anew until it does.
fn client_when_ready(mut client: impl FnMut() -> Command, what: &str) -> Output {
    for _ in 0..50 {
        let output = client().output().unwrap();
        if output.status.success() {
            return output;
        }
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(stderr.contains("refused"), "{what}: {stderr}");
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("{what}: nobody listens");
}

fn kernel_connects(ours_address: &str, size: &str) {
    let (ours, kernels) = link("kc");
    let server = rping(&ours, &["-s", "-a", ours_address, "-S", size])
        .spawn()
        .unwrap();
    client_when_ready(
        || script(&kernels, "client", ours_address, size),
        "the script as client",
    );
    finish(server, "rping as server");
}

fn kernel_listens(kernels_address: &str, size: &str) {
    let (ours, kernels) = link("kl");
    let mut server = script(&kernels, "server", kernels_address, size)
        .spawn()
        .unwrap();
    let mut said = BufReader::new(server.stdout.take().unwrap());
    let mut listening = String::new();
    said.read_line(&mut listening).unwrap();
    assert_eq!(listening, "listening\n");
    let client = rping(&ours, &["-c", "-a", kernels_address, "-S", size])
        .spawn()
        .unwrap();
    finish(client, "rping as client");
    // The script's last word has somewhere to go until it has ended.
    finish(server, "the script as server");
    drop(said);
}

#[test]
fn the_kernels_tcp_as_initiator() {
    if is_root("the_kernels_tcp_as_initiator") {
        kernel_connects("10.77.0.1", "64");
        kernel_connects("fd77::1", "30001");
    }
}

#[test]
fn the_kernels_tcp_as_responder() {
    if is_root("the_kernels_tcp_as_responder") {
        kernel_listens("10.77.0.2", "30001");
        kernel_listens("fd77::2", "64");
    }
}
