//! What systemd and rnicd say to each other. Each part of rnicd's runs in a process of its own,
//! which has the environment that systemd would give it: this file's own tests, run by themselves.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Command, Stdio, id};
use std::time::Duration;

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, getsockname, listen,
    socket,
};
use rnic_manager::channel::{administration_socket, observation_socket};
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
        "LISTEN_FDNAMES",
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
    assert!(notify::activated_sockets().unwrap().clients.is_none());
}

#[test]
#[ignore = "a part of the next test, which runs it"]
fn has_a_socket() {
    let listening = notify::activated_sockets().unwrap().clients.unwrap();
    let address: UnixAddr = getsockname(listening.as_raw_fd()).unwrap();
    let client = unix_socket(SockType::SeqPacket);
    connect(client.as_raw_fd(), &address).unwrap();
    // It is taken once.
    assert!(notify::activated_sockets().unwrap().clients.is_none());
}

#[test]
#[ignore = "a part of the next test, which runs it"]
fn has_sockets_by_their_names() {
    let sockets = notify::activated_sockets().unwrap();
    assert!(sockets.clients.is_none());
    assert!(sockets.administrators.is_some() && sockets.observers.is_some());
}

#[test]
#[ignore = "a part of the next test, which runs it"]
fn has_a_socket_of_no_use() {
    let error = notify::activated_sockets().unwrap_err().to_string();
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
    let several = "systemd passed two sockets for clients; one unit must have FileDescriptorName=clients, with one ListenSequentialPacket= \
                   and no other Listen...=";
    with("has_a_socket_of_no_use", &socket, "2", several);
    let mut named = part("has_sockets_by_their_names");
    named.stdin(Stdio::from(socket.try_clone().unwrap()));
    named
        .env("LISTEN_FDS", "2")
        .env("LISTEN_FDNAMES", "observe:admin");
    run(named);
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
    let defaults = rnicd::config::Config::new("rnicd.toml".as_ref());
    let clients = &defaults.socket.value;
    let own = include_str!("../systemd/rnicd.socket");
    let admin = include_str!("../systemd/rnicd-admin.socket");
    let observe = include_str!("../systemd/rnicd-observe.socket");
    for (unit, path, group, mode, name) in [
        (
            own,
            clients.clone(),
            defaults.socket_group.value.as_str(),
            "0660",
            "clients",
        ),
        (
            admin,
            administration_socket(clients),
            "root",
            "0600",
            "admin",
        ),
        (
            observe,
            observation_socket(clients),
            defaults.observer_group.value.as_str(),
            "0660",
            "observe",
        ),
    ] {
        for line in [
            format!("ListenSequentialPacket={}", path.display()),
            format!("SocketGroup={group}"),
            format!("SocketMode={mode}"),
            format!("FileDescriptorName={name}"),
            "Service=rnicd.service".to_owned(),
        ] {
            assert!(unit.lines().any(|found| found == line), "{line}");
        }
    }
}

/// The words of a value.
fn words_of<'a>(text: &'a str, key: &str) -> Vec<&'a str> {
    let value = text.lines().find_map(|line| line.trim().strip_prefix(key));
    let value = value.unwrap_or_else(|| panic!("no {key}"));
    let is_part = |char: char| char.is_ascii_alphanumeric() || char == '_';
    let words = value.split(|char| !is_part(char));
    words.filter(|word| !word.is_empty()).collect()
}

/// What a hostile client makes rnicd do is bounded by the system as well.
#[test]
fn the_unit_bounds_rnicd_and_the_manifest_has_the_same_rights() {
    let unit = include_str!("../systemd/rnicd.service");
    for key in ["MemoryMax=", "TasksMax=", "LimitNOFILE=", "ProtectProc="] {
        assert_eq!(words_of(unit, key).len(), 1, "{key}");
    }
    let manifest = include_str!("../../docs/kubernetes/rnicd.yaml");
    let granted = words_of(manifest, "add: ");
    let bounded = words_of(unit, "CapabilityBoundingSet=").into_iter();
    let bounded: Vec<_> = bounded
        .map(|name| name.strip_prefix("CAP_").unwrap())
        .collect();
    assert_eq!(granted, bounded);
    let memory = manifest.split_once("limits:").map(|(_, rest)| rest);
    let memory = words_of(memory.unwrap(), "memory: ");
    assert_eq!([&memory[..], &["8Gi"]].concat(), ["8Gi", "8Gi"]);
    // Services of Kubernetes are published there.
    let listen = words_of(manifest, "listen = ");
    let ports = listen.iter().map(|port| port.parse::<u32>().unwrap());
    assert!(
        ports
            .into_iter()
            .all(|port| !(30000..=32767).contains(&port))
    );
}
