//! What systemd and rnicd say to each other. Each part of rnicd's runs in a process of its own, which has the environment that
//! systemd would give it: this file's own tests, run by themselves.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Command, Stdio, id};
use std::time::Duration;

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, getsockname, listen,
    socket,
};
use rnicd::notify;

/// A command that runs a part of this file's by itself.
fn part(name: &str) -> Command {
    let mut command = Command::new("sh");
    // systemd passes sockets from descriptor 3 on, and says which process they are for.
    command.args([
        "-c",
        r#"LISTEN_PID=${OTHER_PID:-$$} exec "$0" "$@" 3<&0 4<&0"#,
    ]);
    command.arg(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--ignored"]);
    for variable in [
        "NOTIFY_SOCKET",
        "WATCHDOG_USEC",
        "WATCHDOG_PID",
        "LISTEN_FDS",
    ] {
        command.env_remove(variable);
    }
    command
}

fn run(mut command: Command) {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
}

#[test]
#[ignore = "a part of the next test, which runs it"]
fn says_everything() {
    notify::ready("2 devices").unwrap();
    notify::status("3 clients").unwrap();
    notify::alive().unwrap();
    notify::reloading().unwrap();
    notify::ready("2 devices").unwrap();
    notify::stopping().unwrap();
}

#[test]
fn systemd_hears_what_rnicd_says() {
    let path = std::env::temp_dir().join(format!("rnicd-notify-{}", id()));
    let systemd = UnixDatagram::bind(&path).unwrap();
    let mut rnicd = part("says_everything");
    rnicd.env("NOTIFY_SOCKET", &path);
    run(rnicd);
    std::fs::remove_file(&path).unwrap();
    systemd.set_nonblocking(true).unwrap();
    let mut heard = Vec::new();
    let mut octets = [0; 1024];
    while let Ok(len) = systemd.recv(&mut octets) {
        heard.push(String::from_utf8(octets[..len].to_vec()).unwrap());
    }
    let (reloading, time) = heard[3].split_once("MONOTONIC_USEC=").unwrap();
    assert!(time.trim_end().parse::<u64>().unwrap() > 0);
    heard[3] = reloading.to_owned();
    assert_eq!(
        heard,
        [
            "READY=1\nSTATUS=2 devices\n",
            "STATUS=3 clients\n",
            "WATCHDOG=1\n",
            "RELOADING=1\n",
            "READY=1\nSTATUS=2 devices\n",
            "STOPPING=1\n",
        ]
    );
}

#[test]
fn without_systemd_nothing_is_said_and_nothing_fails() {
    run(part("says_everything"));
    run(part("has_no_watchdog"));
    run(part("has_no_socket"));
}

#[test]
#[ignore = "a part of another test, which runs it"]
fn has_no_watchdog() {
    assert_eq!(notify::watchdog_interval(), None);
}

#[test]
#[ignore = "a part of the next test, which runs it"]
fn has_a_watchdog() {
    assert_eq!(notify::watchdog_interval(), Some(Duration::from_secs(15)));
}

#[test]
fn the_watchdog_is_fed_twice_as_often_as_it_bites() {
    let mut watched = part("has_a_watchdog");
    watched.env("WATCHDOG_USEC", "30000000");
    run(watched);
    let mut other = part("has_no_watchdog");
    other
        .env("WATCHDOG_USEC", "30000000")
        .env("WATCHDOG_PID", "1");
    run(other);
}

fn unix_socket(kind: SockType) -> OwnedFd {
    socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC, None).unwrap()
}

#[test]
#[ignore = "a part of another test, which runs it"]
fn has_no_socket() {
    assert!(notify::activated_socket().unwrap().is_none());
}

#[test]
#[ignore = "a part of the next test, which runs it"]
fn has_a_socket() {
    let listening = notify::activated_socket().unwrap().unwrap();
    let address: UnixAddr = getsockname(listening.as_raw_fd()).unwrap();
    let client = unix_socket(SockType::SeqPacket);
    connect(client.as_raw_fd(), &address).unwrap();
    // It is taken once.
    assert!(notify::activated_socket().unwrap().is_none());
}

#[test]
#[ignore = "a part of the next test, which runs it"]
fn has_a_socket_of_no_use() {
    let error = notify::activated_socket().unwrap_err().to_string();
    assert_eq!(error, std::env::var("RNICD_TEST_ERROR").unwrap());
}

#[test]
fn the_socket_of_systemd_is_used() {
    let bound = |kind| {
        let path: PathBuf = std::env::temp_dir().join(format!("rnicd-activation-{}", id()));
        let socket = unix_socket(kind);
        bind(socket.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        (socket, path)
    };
    let with = |name: &str, socket: &OwnedFd, count: &str, error: &str| {
        let mut rnicd = part(name);
        rnicd.stdin(Stdio::from(socket.try_clone().unwrap()));
        rnicd
            .env("LISTEN_FDS", count)
            .env("RNICD_TEST_ERROR", error);
        run(rnicd);
    };
    let (socket, path) = bound(SockType::SeqPacket);
    let no_use = "what systemd passed is not a Unix socket that listens for sequential packets";
    let remedy = "rnicd.socket needs ListenSequentialPacket=";
    let deaf = format!("{no_use} (it does not listen); {remedy}");
    with("has_a_socket_of_no_use", &socket, "1", &deaf);
    listen(&socket, Backlog::new(1).unwrap()).unwrap();
    with("has_a_socket", &socket, "1", "");
    let several = "systemd passed 2 sockets; rnicd.socket must have one ListenSequentialPacket= and no other Listen...=";
    with("has_a_socket_of_no_use", &socket, "2", several);
    // For another process.
    let mut other = part("has_no_socket");
    other.stdin(Stdio::from(socket));
    other.env("LISTEN_FDS", "1").env("OTHER_PID", "1");
    run(other);
    std::fs::remove_file(&path).unwrap();
    let (stream, path) = bound(SockType::Stream);
    let kind =
        format!("{no_use} (fd 3 is not a valid Unix socket for sequential packets); {remedy}");
    with("has_a_socket_of_no_use", &stream, "1", &kind);
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn the_units_say_what_the_defaults_are() {
    let socket = include_str!("../systemd/rnicd.socket");
    let defaults = rnicd::config::Config::new("rnicd.toml".as_ref());
    for line in [
        format!("ListenSequentialPacket={}", defaults.socket.value.display()),
        format!("SocketGroup={}", defaults.socket_group.value),
    ] {
        assert!(socket.lines().any(|found| found == line), "{line}");
    }
}
