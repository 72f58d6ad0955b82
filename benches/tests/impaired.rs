//! Our engine against the kernel's TCP through the impairment box: each direction, each role, every
//! octet checked; then what tshark and the RFCs say of the captures.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, id};

const CHECK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../ci/tcp-check");

/// A directory that is gone when dropped, unless the test has failed.
struct Captures(PathBuf);

impl Captures {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("rnic-{name}-{}", id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}

impl Drop for Captures {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

fn text(output: &Output) -> String {
    let text = |octets: &[u8]| String::from_utf8_lossy(octets).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// Two runs of each point, one for each role, and their captures.
fn run(captures: &Captures, arguments: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rnic-bench"));
    command.args(["impaired", "--alone", "--repetitions", "2"]);
    command.args(["--delay", "50", "--rate", "2000", "--captures"]);
    let output = command.arg(&captures.0).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
}

fn check(files: &[PathBuf]) -> Output {
    Command::new(CHECK).args(files).output().unwrap()
}

fn transfer_and_check(name: &str, captures: usize, arguments: &[&str]) {
    let directory = Captures::new(name);
    run(&directory, arguments);
    let files = directory.files();
    assert_eq!(files.len(), captures);
    let said = check(&files);
    assert!(said.status.success(), "{}", text(&said));
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn every_octet_arrives_at_each_loss_rate_and_tshark_finds_no_fault() {
    let arguments = ["--size", "6M", "--loss", "0,0.01,0.1,1,3"];
    transfer_and_check("loss", 20, &arguments);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn every_octet_arrives_although_frames_are_reordered_and_duplicated() {
    let arguments = [
        "--size",
        "3M",
        "--loss",
        "0.5",
        "--reorder",
        "3",
        "--duplicate",
        "1",
        "--delay",
        "300",
    ];
    transfer_and_check("reorder", 4, &arguments);
}

/// The kernel's segments begin and end anywhere in FPDUs.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn every_octet_arrives_in_segments_that_do_not_keep_to_fpdus() {
    let arguments = [
        "--size",
        "3M",
        "--loss",
        "1",
        "--sender",
        "kernel",
        "--payload",
        "1001",
    ];
    transfer_and_check("cut", 2, &arguments);
}

/// Flips a bit of the last octet of the first IPv4 packet of a capture.
fn damage(file: &Path) {
    const FILE_HEADER: usize = 24;
    const RECORD_HEADER: usize = 16;
    let mut octets = std::fs::read(file).unwrap();
    let mut at = FILE_HEADER;
    loop {
        let len = octets[at + 8..at + 12].try_into().unwrap();
        let frame = at + RECORD_HEADER;
        at = frame + u32::from_ne_bytes(len) as usize;
        if octets[frame + 12..frame + 14] == [8, 0] {
            octets[at - 1] ^= 1;
            return std::fs::write(file, octets).unwrap();
        }
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn the_check_finds_a_damaged_segment() {
    let directory = Captures::new("damage");
    run(
        &directory,
        &["--size", "100K", "--loss", "0", "--sender", "ours"],
    );
    let files = directory.files();
    assert!(check(&files).status.success());
    damage(&files[0]);
    let said = check(&files);
    assert!(!said.status.success());
    assert!(text(&said).contains("its status is 0"), "{}", text(&said));
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn both_arrive_when_both_send_at_once() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rnic-bench"));
    command.args(["impaired", "--share", "--repetitions", "1", "--loss", "0"]);
    let output = command.args(["--size", "96M"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let stdout = String::from_utf8_lossy(&output.stdout);
    let figures: Vec<f64> = stdout
        .lines()
        .next_back()
        .map(|line| {
            line.split_whitespace()
                .skip(1)
                .map(|figure| figure.parse().unwrap())
        })
        .unwrap()
        .collect();
    let [ours, kernels, _] = figures[..] else {
        panic!("{stdout}");
    };
    assert!(ours > 0.0 && kernels > 0.0, "{stdout}");
}
