//! Files that arrive whole, or not at all.

use std::fs::{self, File};
use std::path::Path;

use nix::sys::signal::Signal;

use crate::program::Program;
use crate::rig::{Host, hosts};

/// More than the ring of chunks holds.
const LARGE: usize = (9 << 20) + 7;

fn name(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Starts a copy of a file of one host to a new one of the other. Returns sender and receiver.
fn start(from: &Host, to: &Host, address: &str, file: &str) -> [Program; 2] {
    let (source, target) = (from.file(file), to.file("copy"));
    let (receiver, address) = to.serve_at(address, "copy", "receive", &[name(&target)]);
    [
        from.start("copy", "send", &[&address, name(&source)]),
        receiver,
    ]
}

/// Makes a file of random octets, and copies it.
fn copy(from: &Host, to: &Host, address: &str, len: usize) {
    let mut octets = vec![0; len];
    fastrand::Rng::with_seed(len as u64).fill(&mut octets);
    fs::write(from.file("original"), &octets).unwrap();
    let programs = start(from, to, address, "original");
    let [sent, received] = programs.map(Program::finish);
    assert!(
        sent.succeeded && received.succeeded,
        "{sent:?} {received:?}"
    );
    assert!(fs::read(to.file("copy")).unwrap() == octets, "{len} octets");
    assert_nothing_else(to);
}

/// Fails if there is anything of a copy but the whole file, if that is there.
fn assert_nothing_else(host: &Host) {
    let directory = host.file("");
    let names = fs::read_dir(directory).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let others: Vec<_> = names.filter(|name| name.starts_with("copy.")).collect();
    assert_eq!(others, Vec::<String>::new());
}

/// Waits until some of a file that never ends has arrived.
fn until_under_way(host: &Host) {
    host.until("a part of the file is there", || {
        let parts = fs::read_dir(host.file("")).unwrap();
        let long = |entry: fs::DirEntry| entry.metadata().is_ok_and(|part| part.len() > 1 << 20);
        parts.map_while(Result::ok).any(long)
    });
}

/// Makes a file that takes longer than any test, and starts to copy it.
fn start_endless(from: &Host, to: &Host) -> [Program; 2] {
    let file = File::create(from.file("endless")).unwrap();
    file.set_len(1 << 40).unwrap();
    let programs = start(from, to, to.addresses[0], "endless");
    until_under_way(to);
    programs
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn files_arrive_whole() {
    let [near, far] = hosts(true);
    for len in [0, 1, (256 << 10) + 1, 4 << 20, LARGE] {
        copy(&near, &far, far.addresses[0], len);
        copy(&far, &near, near.addresses[1], len);
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_sender_that_is_killed_leaves_nothing() {
    let [near, far] = hosts(true);
    let [sender, receiver] = start_endless(&near, &far);
    sender.signal(Signal::SIGKILL);
    assert!(!sender.finish().succeeded);
    let why = receiver.fail();
    assert!(why.contains("reset") || why.contains("timed out"), "{why}");
    assert_nothing_else(&far);
    assert!(!far.file("copy").exists());
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_receiver_that_is_interrupted_leaves_nothing() {
    let [near, far] = hosts(true);
    // A file of that name stays until the new one is whole.
    fs::write(far.file("copy"), "older").unwrap();
    let [sender, receiver] = start_endless(&near, &far);
    receiver.signal(Signal::SIGINT);
    assert_eq!(receiver.fail(), "interrupted\n");
    assert_eq!(sender.fail(), "interrupted\n");
    assert_nothing_else(&far);
    assert_eq!(fs::read(far.file("copy")).unwrap(), b"older");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn root_copies_without_an_rnicd() {
    let [near, far] = hosts(false);
    copy(&near, &far, far.addresses[1], LARGE);
}
