//! `rnic-ctl capture` on a device that a process has for itself, and how the command ends.

mod common;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::{Running, link, text};
use rnic_xdp::testing::{Namespace, disable_offloads};

/// The longest time that anything may take, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(120);

fn rnic_ctl(namespace: &Namespace, line: &str) -> Command {
    let mut command = namespace.command(env!("CARGO_BIN_EXE_rnic-ctl"));
    command.args(line.split_whitespace());
    command.env("RNICD_SOCKET", "/nowhere");
    command
}

/// A file that is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let name = format!("rnic-capture-{name}-{}.pcapng", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// Waits until a capture has begun to write it.
    fn until_begun(&self) {
        let deadline = Instant::now() + PATIENCE;
        while !fs::metadata(&self.0).is_ok_and(|file| file.len() > 0) {
            assert!(
                Instant::now() < deadline,
                "no capture writes {}",
                self.path()
            );
            sleep(Duration::from_millis(10));
        }
    }

    /// Returns the segments to the server that have octets or begin a connection.
    fn segments(&self) -> Vec<String> {
        let mut tshark = Command::new("tshark");
        let filter = "tcp.dstport == 7174 && (tcp.len > 0 || tcp.flags.syn == 1)";
        tshark.args(["-r", self.path(), "-Y", filter, "-T", "fields"]);
        for field in [
            "frame.len",
            "tcp.srcport",
            "tcp.seq_raw",
            "tcp.len",
            "tcp.payload",
        ] {
            tshark.args(["-e", field]);
        }
        let output = tshark.output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout).lines().map(str::to_owned).collect()
    }

    /// Counts the frames that match a filter of Wireshark's.
    fn count(&self, filter: &str) -> u64 {
        let mut tshark = Command::new("tshark");
        let output = tshark
            .args(["-r", self.path(), "-Y", filter])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout).lines().count() as u64
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Starts a server that has `ours` for itself.
fn server(hosts: &(Namespace, Namespace), mode: &str) -> Running {
    let line = format!("rping -s -a 10.77.0.1 --netdev ours --xdp-mode {mode}");
    Running::start(rnic_ctl(&hosts.0, &line)).until_it_says("listening on")
}

/// Lets the kernel of the peer talk to it. The server has received everything when it ends the
/// connection.
fn talk(hosts: &(Namespace, Namespace)) {
    let script = "import socket
connection = socket.create_connection(('10.77.0.1', 7174), 60)
connection.sendall(b'no MPA Request' * 300)
try:
    connection.recv(1)
except ConnectionResetError:
    pass";
    let mut python = hosts.1.command("python3");
    let said = python.args(["-c", script]).output().unwrap();
    assert!(said.status.success(), "{}", text(&said.stderr));
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn what_a_process_receives_that_has_the_device_for_itself_is_captured() {
    for mode in ["native", "generic"] {
        let hosts = link("excl", "theirs");
        disable_offloads(&hosts.1, "theirs").unwrap();
        let (here, there) = (Scratch::new(mode), Scratch::new("tcpdump"));
        let _server = server(&hosts, mode);
        let line = format!("capture -i ours -Q in -w {}", here.path());
        let capture = Running::start(rnic_ctl(&hosts.0, &line));
        let mut tcpdump = hosts.1.command("tcpdump");
        tcpdump.args(["-i", "theirs", "-U", "--immediate-mode", "-w", there.path()]);
        let tcpdump = Running::start(tcpdump);
        here.until_begun();
        there.until_begun();
        talk(&hosts);
        tcpdump.interrupt();
        tcpdump.finish("tcpdump");
        capture.interrupt();
        let said = capture.finish("the capture");
        let sent = there.segments();
        assert!(sent.len() > 3, "{mode}: {sent:?}");
        assert_eq!(here.segments(), sent, "{mode}: {}", text(&said.stderr));
        let all = here.count("frame.packet_flags_direction == 1");
        let last = format!("{all} frames captured, 0 lost\n");
        assert!(
            text(&said.stderr).ends_with(&last),
            "{}",
            text(&said.stderr)
        );
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_process_that_opens_the_device_later_is_captured() {
    let hosts = link("later", "theirs");
    let line = "capture -i ours -Q in -c 3 -w -";
    let mut capture = rnic_ctl(&hosts.0, line);
    let mut capture = capture.stdout(Stdio::piped()).spawn().unwrap();
    // It reads as a live view does, until the capture ends by itself.
    let mut tshark = Command::new("tshark");
    tshark.args(["-r", "-", "-T", "fields", "-e", "ip.dst"]);
    tshark.stdin(capture.stdout.take().unwrap());
    let tshark = Running::start(tshark);
    while capture.try_wait().unwrap().is_none() {
        let _server = server(&hosts, "native");
        talk(&hosts);
    }
    assert!(capture.wait().unwrap().success());
    assert_eq!(tshark.succeed("tshark"), "10.77.0.1\n".repeat(3));
}

/// Runs a capture of a device with traffic until it ends by itself.
fn ended(hosts: &(Namespace, Namespace), line: &str, stdout: Stdio) -> Output {
    let mut command = rnic_ctl(&hosts.0, line);
    let mut capture = command
        .stdout(stdout)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(command);
    while capture.try_wait().unwrap().is_none() {
        let _server = server(hosts, "native");
        talk(hosts);
    }
    capture.wait_with_output().unwrap()
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn every_end_has_its_code() {
    let hosts = link("ends", "theirs");
    for (line, code, words) in [
        ("capture -i eth9 -w /dev/null", 3, "no network device eth9"),
        ("capture -i ours -w /nowhere/file", 1, "write /nowhere/file"),
        ("capture -i ours -w /dev/full", 1, "No space left on device"),
        ("-j capture -i ours -w -", 2, "name a file"),
        ("capture -i ours", 2, "--write"),
        ("capture -i ours -w /dev/null -a 5", 2, "duration:SECONDS"),
        (
            "capture -i ours -w /dev/null -a duration:0.1",
            0,
            "0 frames captured, 0 lost",
        ),
        (
            "-j capture -i ours -w /dev/null -a duration:0.1 -Q in",
            0,
            "\"frames\":0",
        ),
    ] {
        let output = rnic_ctl(&hosts.0, line).output().unwrap();
        let said = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{line}: {said}");
        assert!(said.contains(words), "{line}: {said}");
    }
    let full = ended(&hosts, "capture -i ours -w - -Q in -c 2", Stdio::null());
    assert!(
        text(&full.stderr).contains("2 frames captured"),
        "{}",
        text(&full.stderr)
    );
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let unread = ended(&hosts, "capture -i ours -w - -Q in", writer.into());
    assert_eq!(unread.status.code(), Some(141), "{}", text(&unread.stderr));
    let file = Scratch::new("term");
    let line = format!("capture -i ours -Q in -w {}", file.path());
    let capture = Running::start(rnic_ctl(&hosts.0, &line));
    file.until_begun();
    let mut kill = Command::new("kill");
    assert!(
        kill.arg(capture.id().to_string())
            .status()
            .unwrap()
            .success()
    );
    capture.succeed("SIGTERM");
    assert_eq!(file.count("frame"), 0);
}
