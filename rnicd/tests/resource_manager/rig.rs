//! A whole rnicd on a device of its own, and clients that speak with it.

use std::collections::VecDeque;
use std::fs;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, id};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rnic_core::engine::Peers;
use rnic_manager::channel::{Channel, administration_socket};
use rnic_manager::protocol::{
    Answer, Ask, FromDaemon, Grant, Notice, Reason, Reply, Request, VERSION,
};
use rnic_xdp::testing::{Namespace, VethEnd, veth_pair};

/// How long to wait for what must happen, on a busy machine too.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// What clients may have. Two ports of the least size have 576 frames.
pub(crate) const RULES: &str = r#"
socket_group = "root"
[[device]]
name = "nic"
[defaults]
ports = 2
frames = 600
listen = ["7000-7009"]
listeners = 1
connections = 1
peers = ["10.77.0.0/24"]
"#;

/// A directory with a BPF file system in it.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("rnicd-{name}-{}", id()));
        fs::create_dir_all(path.join("bpf")).unwrap();
        let scratch = Self(path);
        let mut mount = Command::new("mount");
        mount.args(["-t", "bpf", "bpf"]).arg(scratch.path("bpf"));
        assert!(mount.status().unwrap().success());
        scratch
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.path("bpf")).status();
        let _ = fs::remove_dir_all(&self.0);
        for other in ["-admin", "-observe"] {
            let mut directory = self.0.clone().into_os_string();
            directory.push(other);
            let _ = fs::remove_dir_all(directory);
        }
    }
}

/// rnicd on a device of its own. What it leaves goes with the namespaces and the directory.
pub(crate) struct Rnicd {
    process: Child,
    pub(crate) scratch: Scratch,
    pub(crate) namespaces: [Namespace; 2],
}

impl Rnicd {
    pub(crate) fn start(name: &str) -> Self {
        let scratch = Scratch::new(name);
        let namespaces = ["rm", "rp"].map(|name| Namespace::new(name).unwrap());
        let end = |at: usize, name, addresses| VethEnd {
            namespace: &namespaces[at],
            name,
            addresses,
        };
        let (nic, peer) = (
            end(0, "nic", "10.77.0.1/24"),
            end(1, "peer", "10.77.0.2/24"),
        );
        veth_pair(nic, peer, 1).unwrap();
        // Without it, a veth takes no frames that programs redirect to its other end.
        let mut gro = namespaces[1].command("ethtool");
        assert!(
            gro.args(["-K", "peer", "gro", "on"])
                .status()
                .unwrap()
                .success()
        );
        fs::write(scratch.path("rnicd.toml"), RULES).unwrap();
        let process = run(&scratch, &namespaces[0], "shares nic");
        Self {
            process,
            scratch,
            namespaces,
        }
    }

    /// Kills it, and returns where it was.
    pub(crate) fn kill(&mut self) -> (&Scratch, &Namespace) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        (&self.scratch, &self.namespaces[0])
    }

    /// Runs another after it was killed.
    pub(crate) fn start_again(&mut self) {
        self.start_as("shares nic");
    }

    /// Runs another, which says this of itself when it is ready.
    pub(crate) fn start_as(&mut self, status: &str) {
        self.process = run(&self.scratch, &self.namespaces[0], status);
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Makes it read its configuration again. Returns when it has.
    pub(crate) fn reload(&self) {
        let systemd = notified(&self.scratch);
        let pid = Pid::from_raw(self.process.id().try_into().unwrap());
        kill(pid, Signal::SIGHUP).unwrap();
        while !receive(&systemd)
            .expect("rnicd says that it is ready")
            .starts_with("READY=1")
        {}
    }

    /// Runs the command on the same places, and returns its exit code and what it said.
    pub(crate) fn command(&self, option: &str) -> (Option<i32>, String) {
        self.command_at(&[option], &[])
    }

    /// Runs the command with some places replaced, and returns its exit code and what it said.
    pub(crate) fn command_at(
        &self,
        options: &[&str],
        replaced: &[(&str, &str)],
    ) -> (Option<i32>, String) {
        let mut command = command(&self.scratch, replaced);
        command.args(options);
        let output = self.namespaces[0].run(|| command.output()).unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), said)
    }

    pub(crate) fn client(&self) -> Client {
        self.client_of(VERSION)
    }

    /// Connects as a program that knows this version of the protocol.
    pub(crate) fn client_of(&self, version: u32) -> Client {
        Self::greet(&self.scratch.path("socket"), version)
    }

    /// Connects where administrators do.
    pub(crate) fn root(&self) -> Client {
        Self::greet(
            &administration_socket(&self.scratch.path("socket")),
            VERSION,
        )
    }

    fn greet(path: &Path, version: u32) -> Client {
        let mut client = Client::connect(path);
        let hello = Ask::Hello {
            version,
            program: "a test".into(),
        };
        let welcome = client.ask(hello).0;
        assert!(matches!(welcome, Answer::Welcome { .. }));
        client
    }
}

/// The command with all its places, some of them replaced.
fn command(scratch: &Scratch, replaced: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rnicd"));
    command.env_remove("LISTEN_FDS").env_remove("RUST_LOG");
    for (option, place) in [
        ("--config", "rnicd.toml"),
        ("--socket", "socket"),
        ("--state", "state"),
        ("--pins", "bpf/rnic"),
    ] {
        let other = replaced.iter().find(|(replaced, _)| *replaced == option);
        let place = other.map_or(place, |(_, other)| *other);
        command.arg(option).arg(scratch.path(place));
    }
    command
}

/// Runs rnicd. Returns when it is ready, and says this of itself.
fn run(scratch: &Scratch, namespace: &Namespace, status: &str) -> Child {
    let systemd = notified(scratch);
    let mut command = command(scratch, &[]);
    command.env("NOTIFY_SOCKET", scratch.path("notify"));
    let mut process = namespace.run(|| command.spawn()).unwrap();
    let (said, expected) = (receive(&systemd), format!("READY=1\nSTATUS={status}\n"));
    if said.as_ref() != Some(&expected) {
        // Nothing may stay behind.
        let _ = process.kill();
        let _ = process.wait();
        panic!("rnicd says of itself {said:?} in place of {expected:?}");
    }
    process
}

/// Listens to what rnicd says of itself from now on.
fn notified(scratch: &Scratch) -> UnixDatagram {
    let path = scratch.path("notify");
    let _ = fs::remove_file(&path);
    let systemd = UnixDatagram::bind(&path).unwrap();
    systemd.set_read_timeout(Some(SOON)).unwrap();
    systemd
}

/// Returns what rnicd says next, if it says anything.
fn receive(systemd: &UnixDatagram) -> Option<String> {
    let mut said = [0; 256];
    loop {
        match systemd.recv(&mut said) {
            Ok(len) => return Some(String::from_utf8_lossy(&said[..len]).into_owned()),
            // A signal ends a call that has a timeout.
            Err(why) if why.kind() == ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}

impl Drop for Rnicd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) struct Client {
    channel: Channel,
    asked: u64,
    notices: VecDeque<Notice>,
}

impl Client {
    pub(crate) fn connect(path: &Path) -> Self {
        let channel = Channel::connect(path, SOON).unwrap();
        Self {
            channel,
            asked: 0,
            notices: VecDeque::new(),
        }
    }

    /// Returns what rnicd tells next without being asked.
    pub(crate) fn notice(&mut self) -> Notice {
        loop {
            if let Some(notice) = self.notices.pop_front() {
                return notice;
            }
            if let (FromDaemon::Notice(notice), _) = self.channel.receive().unwrap() {
                return notice;
            }
        }
    }

    /// Asks, and does not wait for the answer.
    pub(crate) fn send(&mut self, ask: Ask) {
        self.asked += 1;
        let request = Request {
            id: self.asked,
            ask,
        };
        self.channel.send(&request, &[]).unwrap();
    }

    /// Reads up to the answer to what was asked last. Returns what rnicd told besides.
    pub(crate) fn answers(&mut self) -> Vec<Notice> {
        loop {
            match self.channel.receive().unwrap().0 {
                FromDaemon::Answer(Reply { id, .. }) if id == self.asked => break,
                FromDaemon::Answer(_) => {}
                FromDaemon::Notice(notice) => self.notices.push_back(notice),
            }
        }
        self.notices.drain(..).collect()
    }

    pub(crate) fn ask(&mut self, ask: Ask) -> (Answer, Vec<OwnedFd>) {
        self.send(ask);
        loop {
            let (message, descriptors) = self.channel.receive().unwrap();
            match message {
                FromDaemon::Answer(Reply { id, answer }) => {
                    assert_eq!(id, self.asked);
                    return (answer, descriptors);
                }
                FromDaemon::Notice(notice) => self.notices.push_back(notice),
            }
        }
    }

    /// Asks for what is refused, and returns why.
    pub(crate) fn is_refused(&mut self, ask: Ask, reason: Reason) -> String {
        match self.ask(ask).0 {
            Answer::Refused(refused) if refused.reason == reason => refused.message,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn open(&mut self) -> (Grant, Vec<OwnedFd>) {
        match self.ask(port_of_frames(32)) {
            (Answer::Port(grant), descriptors) => (grant, descriptors),
            (other, _) => panic!("{other:?}"),
        }
    }

    pub(crate) fn lease(&mut self, ask: Ask) -> SocketAddr {
        match self.ask(ask) {
            (Answer::Lease { local, .. }, _) => local,
            (other, _) => panic!("{other:?}"),
        }
    }
}

pub(crate) fn port_of_frames(frames: u32) -> Ask {
    Ask::OpenPort {
        netdev: "nic".into(),
        rx_frames: frames,
        tx_frames: frames,
        tx_ring: 32,
        queue: None,
    }
}

pub(crate) fn listen(port: u32, local: &str) -> Ask {
    Ask::Listen {
        port,
        local: local.parse().unwrap(),
        peers: Peers::all(),
    }
}

pub(crate) fn connect(port: u32, remote: &str) -> Ask {
    Ask::Connect {
        port,
        remote: remote.parse().unwrap(),
        local: None,
    }
}
