//! A host with an rnicd, and a peer.

use std::fs::{self, Permissions};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio, id};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rnic_manager::Administrator;
use rnic_xdp::testing::{Namespace, VethEnd, copy_program, veth_pair};
use rnicd::serve::{Places, serve};

use crate::common::text;

/// The longest time that anything may take, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(120);

/// Where rnicd finds its files.
const DIRECTORY: &str = "RNIC_TEST_DIRECTORY";

/// rnicd, as the process that the tests start.
#[test]
#[ignore = "a part of the other tests, which run it"]
fn rnicd_serves() {
    let directory = PathBuf::from(std::env::var_os(DIRECTORY).expect("the other test says where"));
    let places = Places {
        config: directory.join("rnicd.toml"),
        socket: Some(directory.join("socket")),
        state: directory.join("state"),
        pins: directory.join("bpf"),
        // This program is not rnicd.
        freer: [
            "/proc/self/exe",
            "--exact",
            "world::memory_is_freed",
            "--ignored",
        ]
        .map(Into::into)
        .to_vec(),
    };
    serve(&places).unwrap();
}

/// The process by which rnicd frees memory.
#[test]
#[ignore = "a part of the other tests, whose rnicd runs it"]
fn memory_is_freed() {
    let file = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    rnicd::freer::free(&file).unwrap();
}

/// A host whose `nic` (10.77.0.1) rnicd shares, and a peer with `theirs` (10.77.0.2).
pub(crate) struct World {
    pub(crate) host: Namespace,
    pub(crate) peer: Namespace,
    directory: PathBuf,
    rnicd: Option<Child>,
}

impl World {
    /// Starts an rnicd with these rules.
    pub(crate) fn new(rules: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("rnic-objects-{}-{number}", id()));
        let bpf = directory.join("bpf");
        fs::create_dir_all(&bpf).unwrap();
        fs::set_permissions(&directory, Permissions::from_mode(0o755)).unwrap();
        let config = format!("socket_group = \"nogroup\"\n[[device]]\nname = \"nic\"\n{rules}");
        fs::write(directory.join("rnicd.toml"), config).unwrap();
        // Where other users may run it.
        let command = directory.join("rnic-ctl");
        copy_program(env!("CARGO_BIN_EXE_rnic-ctl"), &command);
        let mut mount = Command::new("mount");
        succeed(mount.args(["-t", "bpf", "bpf"]).arg(&bpf));
        let mut world = Self {
            host: Namespace::new("host").unwrap(),
            peer: Namespace::new("peer").unwrap(),
            directory,
            rnicd: None,
        };
        let end = |namespace, name, addresses| VethEnd {
            namespace,
            name,
            addresses,
        };
        let ends = (
            end(&world.host, "nic", "10.77.0.1/24"),
            end(&world.peer, "theirs", "10.77.0.2/24"),
        );
        veth_pair(ends.0, ends.1, 1).unwrap();
        // Then the device takes frames that are redirected to it.
        let mut gro = world.peer.command("ethtool");
        succeed(gro.args(["-K", "theirs", "gro", "on"]));
        world.rnicd = Some(world.start());
        world.until("rnicd shares the device", || {
            let mut administrator = Administrator::connect(&world.socket()).ok()?;
            let devices = administrator.devices().unwrap();
            let mut shared = devices.iter().filter(|device| device.mode.is_some());
            shared.next().map(drop)
        });
        world
    }

    fn start(&self) -> Child {
        // Not by `ip netns exec`, which hides the BPF file system.
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.host.name()));
        command.arg(std::env::current_exe().unwrap());
        command.args(["--exact", "world::rnicd_serves", "--ignored"]);
        command.env(DIRECTORY, &self.directory);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().unwrap()
    }

    /// Kills rnicd, and starts another one.
    pub(crate) fn restart(&mut self) {
        self.stop();
        self.rnicd = Some(self.start());
    }

    /// Kills rnicd.
    pub(crate) fn stop(&mut self) {
        if let Some(mut rnicd) = self.rnicd.take() {
            let _ = rnicd.kill();
            let _ = rnicd.wait();
        }
    }

    /// Sends rnicd a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let rnicd = self.rnicd.as_ref().expect("rnicd runs");
        let pid = Pid::from_raw(rnicd.id().try_into().unwrap());
        kill(pid, signal).unwrap();
    }

    /// Writes another configuration.
    pub(crate) fn configure(&self, text: &str) {
        fs::write(self.directory.join("rnicd.toml"), text).unwrap();
    }

    /// Where its files are.
    pub(crate) fn place(&self) -> String {
        self.directory.display().to_string()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.join("socket")
    }

    /// The command, as root calls it on the host.
    pub(crate) fn root(&self, line: &str) -> Command {
        let mut command = self.host.command(self.directory.join("rnic-ctl"));
        command.args(line.split_whitespace());
        command.env("RNICD_SOCKET", self.socket());
        // Help is as wide as the terminal.
        command.env("COLUMNS", "100");
        command
    }

    /// The command, as a user without any right calls it.
    pub(crate) fn user(&self, uid: u32, line: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.arg(format!("--reuid={uid}"));
        command.args(["--regid=65534", "--clear-groups", "--bounding-set=-all"]);
        command.arg("--no-new-privs");
        command.arg(self.directory.join("rnic-ctl"));
        command.args(line.split_whitespace());
        command.env("RNICD_SOCKET", self.socket());
        command
    }

    /// The command as nobody, uid 65534.
    pub(crate) fn nobody(&self, line: &str) -> Command {
        self.user(65534, line)
    }

    /// The command on the peer, which has its device for itself.
    pub(crate) fn peers(&self, line: &str) -> Command {
        let mut command = self.peer.command(self.directory.join("rnic-ctl"));
        command.args(line.split_whitespace());
        command.env("RNICD_SOCKET", "/nowhere");
        command
    }

    /// Runs the command as root, which must succeed. Returns its JSON.
    pub(crate) fn ask(&self, line: &str) -> serde_json::Value {
        let output = succeed(&mut self.root(&format!("-j {line}")));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Waits until something is there.
    pub(crate) fn until<T>(&self, what: &str, mut find: impl FnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = find() {
                return found;
            }
            assert!(Instant::now() < deadline, "{what}: it does not happen");
            sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop();
        let _ = Command::new("umount")
            .arg(self.directory.join("bpf"))
            .status();
        let _ = fs::remove_dir_all(&self.directory);
        // Those of its sockets for administrators and observers.
        for other in ["-admin", "-observe"] {
            let mut directory = self.directory.clone().into_os_string();
            directory.push(other);
            let _ = fs::remove_dir_all(directory);
        }
    }
}

/// Runs a command that must succeed.
pub(crate) fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {stdout}{stderr}");
    output
}
