//! Values that are read while they change.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use nix::sys::signal::Signal;

use crate::program::{Program, SOON};
use crate::rig::{hosts, hosts_with_mtu};

/// The longest value that fits a record.
const LONGEST: usize = 1008;
/// Keys that two writers change without a pause.
const CONTESTED: [&str; 4] = ["a", "b", "c", "d"];

fn put(client: &mut Program, key: &str, value: &str) -> String {
    client.tell(&format!("put {key} {value}"));
    client.line()
}

fn get(client: &mut Program, key: &str) -> String {
    client.tell(&format!("get {key}"));
    client.line()
}

/// Tells the writers to stop when it is dropped, also by a test that has failed.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Puts values of one letter each until it is told to stop.
fn write(client: &mut Program, letters: std::ops::RangeInclusive<char>, stop: &AtomicBool) {
    let mut letters = letters.cycle();
    while !stop.load(Ordering::Relaxed) {
        for key in CONTESTED {
            let value = letters.next().unwrap().to_string().repeat(LONGEST);
            assert_eq!(put(client, key, &value), "done");
        }
    }
}

/// Gets the contested values many times, and fails if one is not what one put wrote.
fn read(client: &mut Program) {
    for _ in 0..100 {
        client.tell(&format!("get {}", CONTESTED.repeat(8).join(" ")));
        for _ in 0..8 * CONTESTED.len() {
            let line = client.line();
            let (_, value) = line.split_once(" = ").unwrap();
            let first = &value[..1];
            assert_eq!(value, first.repeat(LONGEST), "torn");
        }
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn no_value_is_torn() {
    // A record is read in several pieces: so a Read often meets a put, however busy this host is.
    let [near, far] = hosts_with_mtu(576);
    let (_server, address) = near.serve("kv", "serve", &[]);
    let client = |host: &crate::rig::Host| host.start("kv", "client", &[&address]);
    let (mut one, mut other) = (client(&far), client(&near));
    for key in CONTESTED {
        assert_eq!(put(&mut one, key, &"a".repeat(LONGEST)), "done");
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let one = scope.spawn(|| write(&mut one, 'a'..='m', &stop));
        let other = scope.spawn(|| write(&mut other, 'n'..='z', &stop));
        let stop = Stop(&stop);
        // Until puts have been met in the middle: else nothing would be shown.
        let until = Instant::now() + SOON;
        let mut met = 0;
        while met == 0 && Instant::now() < until && !one.is_finished() && !other.is_finished() {
            let mut reader = client(&far);
            read(&mut reader);
            let said = reader.succeed().errors;
            let count = said.strip_suffix(" Reads met a put\n").unwrap();
            met = count.parse::<usize>().unwrap();
        }
        drop(stop);
        one.join().unwrap();
        other.join().unwrap();
        assert!(met > 0, "no Read has met a put");
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn clients_read_what_was_put() {
    let [near, far] = hosts(true);
    let (server, address) = far.serve_at(far.addresses[1], "kv", "serve", &[]);
    let mut writer = near.start("kv", "client", &[&address]);
    let keys: Vec<String> = (0..200).map(|n| format!("key-{n}")).collect();
    for (n, key) in keys.iter().enumerate() {
        assert_eq!(put(&mut writer, key, &format!("value-{n}")), "done");
        assert_eq!(get(&mut writer, key), format!("{key} = value-{n}"));
    }
    // Many more than Reads may be outstanding, also from the server's own host.
    for host in [&near, &far] {
        let mut reader = host.start("kv", "client", &[&address]);
        reader.tell(&format!("get {}", keys.join(" ")));
        let mut found: Vec<String> = keys.iter().map(|_| reader.line()).collect();
        found.sort();
        let mut expected: Vec<_> = (0..200).map(|n| format!("key-{n} = value-{n}")).collect();
        expected.sort();
        assert_eq!(found, expected);
        assert_eq!(get(&mut reader, "nobody"), "nobody is not there");
        reader.succeed();
    }
    let longest = "x".repeat(LONGEST);
    assert_eq!(put(&mut writer, "key-0", &longest), "done");
    assert_eq!(get(&mut writer, "key-0"), format!("key-0 = {longest}"));
    // Sooner or later a bucket is full, which the server says.
    let mut full = (0..5000).map(|n| (n, put(&mut writer, &format!("more-{n}"), "v")));
    let (n, said) = full.find(|(_, said)| said != "done").unwrap();
    assert_eq!(said, "the bucket of this key is full");
    let key = format!("more-{n}");
    assert_eq!(get(&mut writer, &key), format!("{key} is not there"));
    writer.tell(&format!("put long {longest}x"));
    assert!(writer.fail().contains("too long"));
    server.signal(Signal::SIGTERM);
    assert!(!server.finish().succeeded);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_server_that_is_gone_ends_its_clients() {
    let [near, far] = hosts(true);
    let (server, address) = near.serve("kv", "serve", &[]);
    let mut client = far.start("kv", "client", &[&address]);
    assert_eq!(put(&mut client, "colour", "blue"), "done");
    server.signal(Signal::SIGKILL);
    assert!(!server.finish().succeeded);
    client.tell("get colour");
    let why = client.fail();
    assert!(why.contains("reset") || why.contains("timed out"), "{why}");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn root_has_the_interface_alone() {
    let [near, far] = hosts(false);
    let (_server, address) = near.serve("kv", "serve", &[]);
    let mut client = far.start("kv", "client", &[&address]);
    assert_eq!(put(&mut client, "colour", "blue"), "done");
    assert_eq!(get(&mut client, "colour"), "colour = blue");
    client.succeed();
}
