//! What RFC 5041 section 8.3.2 demands of the Privileged Resource Manager, asked of a whole rnicd over its socket.

use std::fs;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, id};
use std::time::Duration;

use rnic_core::engine::Peers;
use rnic_xdp::manager::Token;
use rnic_xdp::manager::channel::Channel;
use rnic_xdp::manager::protocol::{
    Answer, Ask, FromDaemon, Grant, Reason, Reply, Request, VERSION,
};
use rnic_xdp::testing::{Namespace, VethEnd, is_root, veth_pair};

/// How long to wait for what must happen, on a busy machine too.
const SOON: Duration = Duration::from_secs(60);

/// What clients may have. Two ports of the least size have 576 frames.
const RULES: &str = r#"
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
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("rnicd-{name}-{}", id()));
        fs::create_dir_all(path.join("bpf")).unwrap();
        let scratch = Self(path);
        let mut mount = Command::new("mount");
        mount.args(["-t", "bpf", "bpf"]).arg(scratch.path("bpf"));
        assert!(mount.status().unwrap().success());
        scratch
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.path("bpf")).status();
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// rnicd on a device of its own. What it leaves goes with the namespaces and the directory.
struct Rnicd {
    process: Child,
    scratch: Scratch,
    _namespaces: [Namespace; 2],
}

impl Rnicd {
    fn start(name: &str) -> Self {
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
        let ready = scratch.path("notify");
        let systemd = UnixDatagram::bind(&ready).unwrap();
        systemd.set_read_timeout(Some(SOON)).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_rnicd"));
        command
            .env("NOTIFY_SOCKET", &ready)
            .env_remove("LISTEN_FDS");
        for (option, place) in [
            ("--config", "rnicd.toml"),
            ("--socket", "socket"),
            ("--state", "state"),
            ("--pins", "bpf/rnic"),
        ] {
            command.arg(option).arg(scratch.path(place));
        }
        let process = namespaces[0].run(|| command.spawn()).unwrap();
        let rnicd = Self {
            process,
            scratch,
            _namespaces: namespaces,
        };
        let mut said = [0; 256];
        let len = systemd
            .recv(&mut said)
            .expect("rnicd says that it is ready");
        let said = String::from_utf8_lossy(&said[..len]);
        assert_eq!(said, "READY=1\nSTATUS=shares nic\n");
        rnicd
    }

    fn client(&self) -> Client {
        let mut client = Client::connect(&self.scratch.path("socket"));
        let hello = Ask::Hello {
            version: VERSION,
            program: "a test".into(),
        };
        let welcome = client.ask(hello).0;
        assert!(matches!(welcome, Answer::Welcome { devices, .. } if devices == ["nic"]));
        client
    }
}

impl Drop for Rnicd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

struct Client {
    channel: Channel,
    asked: u64,
}

impl Client {
    fn connect(path: &Path) -> Self {
        let channel = Channel::connect(path, SOON).unwrap();
        Self { channel, asked: 0 }
    }

    fn ask(&mut self, ask: Ask) -> (Answer, Vec<OwnedFd>) {
        self.asked += 1;
        let request = Request {
            id: self.asked,
            ask,
        };
        self.channel.send(&request, &[]).unwrap();
        loop {
            let (message, descriptors) = self.channel.receive().unwrap();
            if let FromDaemon::Answer(Reply { id, answer }) = message {
                assert_eq!(id, self.asked);
                return (answer, descriptors);
            }
        }
    }

    /// Asks for what is refused, and returns why.
    fn is_refused(&mut self, ask: Ask, reason: Reason) -> String {
        match self.ask(ask).0 {
            Answer::Refused(refused) if refused.reason == reason => refused.message,
            other => panic!("{other:?}"),
        }
    }

    fn open(&mut self) -> (Grant, Vec<OwnedFd>) {
        match self.ask(port_of_frames(32)) {
            (Answer::Port(grant), descriptors) => (grant, descriptors),
            (other, _) => panic!("{other:?}"),
        }
    }

    fn lease(&mut self, ask: Ask) -> (SocketAddr, Vec<OwnedFd>) {
        match self.ask(ask) {
            (Answer::Lease { local }, descriptors) => (local, descriptors),
            (other, _) => panic!("{other:?}"),
        }
    }
}

fn port_of_frames(frames: u32) -> Ask {
    Ask::OpenPort {
        netdev: "nic".into(),
        rx_frames: frames,
        tx_frames: frames,
        tx_ring: 32,
    }
}

fn listen(port: u32, local: &str) -> Ask {
    Ask::Listen {
        port,
        local: local.parse().unwrap(),
        peers: Peers::all(),
    }
}

fn connect(port: u32, remote: &str) -> Ask {
    Ask::Connect {
        port,
        remote: remote.parse().unwrap(),
        local: None,
    }
}

/// What clients share (ports of a device, frames, TCP ports) is given out by rnicd, and to none more than its share.
// rfc: 5040-117, 5041-95, 5042-3, 5042-14 scarce resources are given out by the resource manager
// rfc: 5040-s9, 5041-s14, 5042-s7 nobody is given more than a fair share
#[test]
fn nobody_gets_more_than_its_share() {
    if !is_root("nobody_gets_more_than_its_share") {
        return;
    }
    let rnicd = Rnicd::start("share");
    let mut client = rnicd.client();
    let too_many = client.is_refused(port_of_frames(1 << 16), Reason::Quota);
    assert!(
        too_many.contains("may hold frames = 600 (set by "),
        "{too_many}"
    );
    let (first, of_first) = client.open();
    let (second, _of_second) = client.open();
    assert_ne!(first.port, second.port);
    // The shares are those of the user, not of the connection.
    let third = rnicd.client().is_refused(port_of_frames(32), Reason::Quota);
    assert!(
        third.starts_with("user root (uid 0) may hold ports = 2 (set by ")
            && third.contains("holds 2 and wants 1 more"),
        "{third}"
    );

    let low = client.is_refused(listen(first.port, "10.77.0.1:80"), Reason::NotPermitted);
    assert!(
        low.starts_with("uid 0 may listen on [\"7000-7009\"], not on 80"),
        "{low}"
    );
    let (local, _reserved) = client.lease(listen(first.port, "10.77.0.1:7000"));
    let more = client.is_refused(listen(first.port, "10.77.0.1:7001"), Reason::Quota);
    assert!(more.contains("may hold listeners = 1"), "{more}");
    let release = Ask::Release {
        port: first.port,
        local,
    };
    assert_eq!(client.ask(release).0, Answer::Released);
    let (_, _listening) = client.lease(listen(second.port, "10.77.0.1:7001"));

    let far = client.is_refused(connect(first.port, "10.78.0.2:7000"), Reason::NotPermitted);
    assert!(
        far.starts_with("uid 0 may not connect to 10.78.0.2"),
        "{far}"
    );
    let (_, _connecting) = client.lease(connect(first.port, "10.77.0.2:7000"));
    let more = client.is_refused(connect(first.port, "10.77.0.2:7000"), Reason::Quota);
    assert!(more.contains("may hold connections = 1"), "{more}");

    // The kernel takes a port away when its socket is closed. Then there is room for another.
    drop(of_first);
    let again = std::iter::repeat_with(|| client.ask(port_of_frames(32)).0);
    let until = std::time::Instant::now() + SOON;
    let mut again = again.take_while(|_| std::time::Instant::now() < until);
    assert!(again.any(|answer| matches!(answer, Answer::Port(_))));
}

/// Two connections of one user are as strange to each other as those of two users.
// rfc: 5040-118, 5041-96, 5042-4 the resource manager assumes no trust
#[test]
fn a_client_gets_nothing_of_another() {
    if !is_root("a_client_gets_nothing_of_another") {
        return;
    }
    let rnicd = Rnicd::start("trust");
    let mut owner = rnicd.client();
    let (grant, _of_owner) = owner.open();
    let (local, _reserved) = owner.lease(listen(grant.port, "10.77.0.1:7000"));
    let port = grant.port;
    let mut stranger = rnicd.client();
    let destination = "10.77.0.2".parse().unwrap();
    let adopt = |token| Ask::Adopt {
        port,
        token,
        leases: vec![local],
    };
    for ask in [
        listen(port, "10.77.0.1:7001"),
        connect(port, "10.77.0.2:7000"),
        Ask::Release { port, local },
        Ask::Follow { port, destination },
        Ask::Forget { port, destination },
        adopt(Token::random().unwrap()),
    ] {
        let why = stranger.is_refused(ask, Reason::NotPermitted);
        assert_eq!(why, format!("port {port} is not one of this connection"));
    }
    // The owner still has it all; whoever shows its token is the owner.
    assert_eq!(owner.ask(Ask::Release { port, local }).0, Answer::Released);
    assert_eq!(stranger.ask(adopt(grant.token)).0, Answer::Adopted);
    stranger.lease(listen(port, "10.77.0.1:7001"));
}
