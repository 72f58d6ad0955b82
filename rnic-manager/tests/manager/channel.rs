//! The transport between ends that keep to the protocol.

use std::fs::{self, File, Permissions};
use std::io::{Read, Write, pipe};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, id};
use std::thread;
use std::time::Duration;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, setsockopt, socket,
    socketpair, sockopt,
};
use nix::sys::time::TimeVal;
use nix::unistd::{Gid, Uid, geteuid, getgid, getgroups, getuid, setfsuid};
use rnic_manager::channel::{Channel, ChannelError, Peer};
use rnic_manager::dialogue::Dialogue;
use rnic_manager::protocol::{Answer, FromDaemon, MAX_MESSAGE, Message, Reply, Request};

use crate::values::{from_daemon, grant, hello, requests};

/// Long enough for any machine; only what fails waits for it.
const LONG: Duration = Duration::from_secs(60);
/// The time limit of an attempt that must fail.
const SHORT: Duration = Duration::from_millis(20);

pub(crate) fn pair() -> (OwnedFd, OwnedFd) {
    let (family, kind) = (AddressFamily::Unix, SockType::SeqPacket);
    socketpair(family, kind, None, SockFlag::SOCK_CLOEXEC).unwrap()
}

fn channels() -> (Channel, Channel) {
    let (one, other) = pair();
    (one.into(), other.into())
}

/// A socket that listens at a path of its own.
struct Listening {
    path: PathBuf,
    socket: OwnedFd,
}

impl Listening {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("rnic-{name}-{}", id()));
        let kind = SockType::SeqPacket;
        let socket = socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC, None).unwrap();
        bind(socket.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        listen(&socket, Backlog::new(0).unwrap()).unwrap();
        Self { path, socket }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[test]
fn every_message_travels_with_its_descriptors() {
    let (client, daemon) = channels();
    for (request, _) in requests() {
        client.send(&request, &[]).unwrap();
        let (received, descriptors) = daemon.receive::<Request>().unwrap();
        assert_eq!((received, descriptors.len()), (request, 0));
    }
    for (message, _) in from_daemon() {
        let count = message.descriptors();
        let (mut read, write) = pipe().unwrap();
        let passed = vec![write.as_fd(); count];
        daemon.send(&message, &passed).unwrap();
        drop(write);
        let (received, descriptors) = client.receive::<FromDaemon>().unwrap();
        assert_eq!((received, descriptors.len()), (message, count));
        for (number, descriptor) in descriptors.into_iter().enumerate() {
            let flags = fcntl(&descriptor, FcntlArg::F_GETFD).unwrap();
            let flags = FdFlag::from_bits_truncate(flags);
            assert!(flags.contains(FdFlag::FD_CLOEXEC));
            File::from(descriptor).write_all(&[number as u8]).unwrap();
        }
        let mut written = Vec::new();
        read.read_to_end(&mut written).unwrap();
        assert_eq!(written, (0..count as u8).collect::<Vec<_>>());
    }
}

#[test]
fn a_closed_connection_is_seen_by_both_ways() {
    let (client, daemon) = channels();
    drop(daemon);
    let error = client.send(&hello(), &[]).unwrap_err();
    assert!(matches!(error, ChannelError::Closed), "{error}");
    let error = client.receive::<FromDaemon>().unwrap_err();
    assert_eq!(error.to_string(), "the other end has closed the connection");
}

#[test]
fn a_full_connection_does_not_block_rnicd() {
    let (client, daemon) = channels();
    daemon.set_nonblocking().unwrap();
    let error = daemon.receive::<Request>().unwrap_err();
    assert!(matches!(error, ChannelError::TimedOut { .. }), "{error}");
    let (notice, _) = from_daemon().pop().unwrap();
    let mut sent = 0;
    let error = loop {
        match daemon.send(&notice, &[]) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, ChannelError::TimedOut { .. }), "{error}");
    assert!(sent > 0);
    // What was sent is there, whole, and nothing else.
    drop(daemon);
    for _ in 0..sent {
        assert_eq!(client.receive::<FromDaemon>().unwrap().0, notice);
    }
    let error = client.receive::<FromDaemon>().unwrap_err();
    assert!(matches!(error, ChannelError::Closed), "{error}");
}

#[test]
fn nobody_waits_for_rnicd_for_ever() {
    let listening = Listening::new("slow");
    let client = Channel::connect(&listening.path, SHORT).unwrap();
    // The connection waits for its `accept`, and is the only one that may.
    let error = Channel::connect(&listening.path, SHORT).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "rnicd at {0} did not accept a connection in time; look at the process that listens there (`ss -xlp src {0}`)",
            listening.path.display()
        )
    );
    let error = client.receive::<FromDaemon>().unwrap_err();
    assert!(error.to_string().contains("did not send a message in time"));
    let error = loop {
        if let Err(error) = client.send(&hello(), &[]) {
            break error;
        }
    };
    assert!(error.to_string().contains("did not take a message in time"));
}

#[test]
fn what_is_no_rnicd_is_named() {
    let listening = Listening::new("other");
    let answering = listening.socket.try_clone().unwrap();
    let other = thread::spawn(move || {
        let accepted = rustix::net::accept(&answering).unwrap();
        let octets = b"this is something else";
        rustix::net::send(&accepted, octets, rustix::net::SendFlags::empty()).unwrap();
        accepted
    });
    let said = Dialogue::connect(&listening.path, "test")
        .err()
        .unwrap()
        .to_string();
    other.join().unwrap();
    let start = format!("what is at {} is no rnicd: ", listening.path.display());
    assert!(said.starts_with(&start), "{said}");
    let remedy = "; start the rnicd that is to listen there, or name another socket";
    assert!(said.ends_with(remedy), "{said}");
    // No name at all.
    let said = Dialogue::connect(Path::new(""), "test")
        .err()
        .unwrap()
        .to_string();
    assert!(
        said.contains(" is no rnicd: cannot connect to it: ") && said.ends_with(remedy),
        "{said}"
    );
}

#[test]
fn who_cannot_connect_reads_why() {
    let listening = Listening::new("gone");
    let path = &listening.path;
    let connect = |path: &PathBuf| Channel::connect(path, LONG).unwrap_err().to_string();
    let name = path.display();
    fs::set_permissions(path, Permissions::from_mode(0o000)).unwrap();
    let refused = thread::scope(|scope| {
        let as_nobody = scope.spawn(|| {
            // Of this thread alone, together with root's capability to pass over permissions.
            setfsuid(Uid::from_raw(65534));
            connect(path)
        });
        as_nobody.join().unwrap()
    });
    assert_eq!(
        refused,
        format!(
            "not permitted to connect to rnicd at {name}; join its group (`ls -l {name}` shows which), or ask the administrator to"
        )
    );
    let no_daemon = format!(
        "no rnicd listens at {name}; start the rnicd that is to listen there, or name another socket"
    );
    // A socket that a process has left behind, and then none.
    let path = path.clone();
    let left = path.with_extension("left");
    fs::rename(&path, &left).unwrap();
    assert_eq!(connect(&path), no_daemon);
    drop(listening);
    fs::rename(&left, &path).unwrap();
    if geteuid().is_root() {
        assert_eq!(connect(&path), no_daemon);
    }
    fs::remove_file(&path).unwrap();
    let long = PathBuf::from("/".repeat(108));
    assert_eq!(
        connect(&long),
        format!(
            "{} cannot be the path of a Unix socket; choose one of at most 107 octets",
            long.display()
        )
    );
}

#[test]
fn a_message_too_long_is_not_sent() {
    let (client, daemon) = channels();
    let mut grant = grant();
    grant.netdev = "x".repeat(MAX_MESSAGE);
    let reply = Reply {
        id: 1,
        answer: Answer::Port(grant),
    };
    let stdin = std::io::stdin();
    let descriptors = [stdin.as_fd(), stdin.as_fd()];
    let error = daemon.send(&FromDaemon::Answer(reply), &descriptors);
    assert_eq!(
        error.unwrap_err().to_string(),
        "a message would be longer than 65536 octets; ask for less at once"
    );
    drop(daemon);
    let error = client.receive::<FromDaemon>().unwrap_err();
    assert!(matches!(error, ChannelError::Closed), "{error}");
}

#[test]
fn the_peer_is_known() {
    let (client, _daemon) = channels();
    let Peer { uid, gids, pid } = client.peer().unwrap();
    assert_eq!((uid, pid as u32), (getuid().as_raw(), id()));
    assert_eq!(gids[0], getgid().as_raw());
    let known: Vec<_> = gids.into_iter().map(Gid::from_raw).collect();
    assert!(getgroups().unwrap().iter().all(|gid| known.contains(gid)));
}

/// The other process of the next test.
#[test]
#[ignore = "a part of the next test, which runs it"]
fn connects_and_waits() {
    let path = std::env::var_os("RNIC_TEST_SOCKET").expect("the other test says where");
    let channel = Channel::connect(path.as_ref(), LONG).unwrap();
    let error = channel.receive::<FromDaemon>().unwrap_err();
    assert!(matches!(error, ChannelError::Closed), "{error}");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_peer_is_known_with_its_groups_unless_they_are_too_many() {
    let groups: Vec<u32> = (5000..6024).collect();
    assert_eq!(groups_of_a_peer("groups", &groups), groups);
    // What is more, nobody holds for it.
    let groups: Vec<u32> = (5000..6025).collect();
    assert!(groups_of_a_peer("many-groups", &groups).is_empty());
}

/// Lets a process in these groups connect. Returns those that it is known to be in, without the
/// primary one.
fn groups_of_a_peer(name: &str, groups: &[u32]) -> Vec<u32> {
    let listening = Listening::new(name);
    let list: Vec<_> = groups.iter().map(u32::to_string).collect();
    let test = std::env::current_exe().unwrap();
    let mut child = Command::new("setpriv")
        .args(["--regid", "4999", "--groups", &list.join(",")])
        .arg(test)
        .args(["--exact", "channel::connects_and_waits", "--ignored"])
        .env("RNIC_TEST_SOCKET", &listening.path)
        .spawn()
        .unwrap();
    // A child that fails to connect is not waited for any longer.
    let limit = TimeVal::new(60, 0);
    setsockopt(&listening.socket, sockopt::ReceiveTimeout, &limit).unwrap();
    let accepted = rustix::net::accept(&listening.socket).unwrap();
    let peer = Channel::from(accepted).peer().unwrap();
    assert_eq!((peer.uid, peer.pid as u32), (0, child.id()));
    assert_eq!(peer.gids[0], 4999);
    assert!(child.wait().unwrap().success());
    peer.gids[1..].to_vec()
}
