//! Two hosts that a veth pair joins, and the built examples on them.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, id};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rnic_xdp::client::Manager;
use rnic_xdp::testing::{Namespace, VethEnd, copy_program, veth_pair};

use crate::program::{Program, SOON};

/// Who runs the examples: a user that needs no entry in the list of users, and the group that may
/// connect to rnicd.
const NOBODY: &str = "65534";
/// The device of each host.
const NIC: &str = "nic";

/// A host. Nothing of it is left when it is dropped.
pub(crate) struct Host {
    namespace: Namespace,
    directory: PathBuf,
    rnicd: Option<Child>,
    /// Its address of either family.
    pub(crate) addresses: [&'static str; 2],
}

/// Returns two hosts. With `shared`, each has an rnicd, and runs programs without any right; else
/// as root.
pub(crate) fn hosts(shared: bool) -> [Host; 2] {
    match shared {
        true => hosts_with_mtu(1500),
        false => joined(1500),
    }
}

/// Returns two hosts, each with an rnicd, between which frames have this MTU. Below 1280 they have
/// no IPv6.
pub(crate) fn hosts_with_mtu(mtu: u16) -> [Host; 2] {
    let mut hosts = joined(mtu);
    hosts.iter_mut().for_each(Host::share);
    hosts
}

/// Returns two hosts that are joined by a veth pair.
fn joined(mtu: u16) -> [Host; 2] {
    let hosts = [
        Host::new(["10.9.0.1", "[fd09::1]"]),
        Host::new(["10.9.0.2", "[fd09::2]"]),
    ];
    let [one, other] = &hosts;
    let end = |host, addresses| VethEnd {
        namespace: host,
        name: NIC,
        addresses,
    };
    let ends = [
        end(&one.namespace, "10.9.0.1/24 fd09::1/64"),
        end(&other.namespace, "10.9.0.2/24 fd09::2/64"),
    ];
    veth_pair(ends[0], ends[1], 1).unwrap();
    for host in &hosts {
        // A veth takes redirected frames only if its other end has a program, or GRO.
        let mut gro = host.namespace.command("ethtool");
        gro.args(["-K", NIC, "gro", "on"]);
        assert!(gro.status().unwrap().success(), "{gro:?}");
        let mut link = host.namespace.command("ip");
        link.args(["link", "set", NIC, "mtu", &mtu.to_string()]);
        assert!(link.status().unwrap().success(), "{link:?}");
    }
    hosts
}

/// Returns where cargo has put an example.
fn built(example: &str) -> PathBuf {
    // This test is PROFILE/deps/examples-HASH.
    let test = std::env::current_exe().unwrap();
    let profile = test.parent().and_then(Path::parent).unwrap();
    let program = profile.join("examples").join(example);
    let source = format!("../rnic-verbs/examples/{example}.rs");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let age = |path: &Path| fs::metadata(path).and_then(|data| data.modified());
    assert!(
        age(&program).is_ok_and(|built| built >= age(&source).unwrap()),
        "{} is not there, or older than its source: build it with `cargo build --profile test -p rnic-verbs --examples`",
        program.display()
    );
    program
}

impl Host {
    fn new(addresses: [&'static str; 2]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("rnic-examples-{}-{number}", id()));
        let files = directory.join("files");
        fs::create_dir_all(&files).unwrap();
        fs::set_permissions(&directory, Permissions::from_mode(0o755)).unwrap();
        // Where any user may write.
        fs::set_permissions(&files, Permissions::from_mode(0o777)).unwrap();
        Self {
            namespace: Namespace::new("example").unwrap(),
            directory,
            rnicd: None,
            addresses,
        }
    }

    /// Starts an rnicd that shares the device, and waits until it does.
    fn share(&mut self) {
        let bpf = self.directory.join("bpf");
        fs::create_dir(&bpf).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "bpf", "bpf"]).arg(&bpf);
        assert!(mount.status().unwrap().success(), "{mount:?}");
        let config = self.directory.join("rnicd.toml");
        let text = format!(
            "socket_group = \"nogroup\"\n[[device]]\nname = \"{NIC}\"\n\
             [defaults]\nports = 16\nframes = 1000000\nhugepages = \"1GiB\"\n\
             listen = [\"1024-65535\"]\nrate = \"none\"\n"
        );
        fs::write(&config, text).unwrap();
        let log = File::create(self.directory.join("log")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_rnicd"));
        command.arg("--config").arg(config);
        command.arg("--socket").arg(self.socket());
        command.arg("--state").arg(self.directory.join("state"));
        command.arg("--pins").arg(bpf.join("pins")).stderr(log);
        // A process begins in the network namespace of the thread that starts it.
        self.rnicd = Some(self.namespace.run(|| command.spawn()).unwrap());
        self.until("rnicd shares the device", || {
            Manager::connect(&self.socket()).is_ok_and(|manager| manager.offers(NIC))
        });
    }

    fn socket(&self) -> PathBuf {
        self.directory.join("socket")
    }

    /// Returns the name of a file that programs of this host may read and write.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.join("files").join(name)
    }

    /// Starts an example in one of its roles: `EXAMPLE ROLE nic ARGUMENTS`.
    pub(crate) fn start(&self, example: &str, role: &str, arguments: &[&str]) -> Program {
        let program = self.directory.join(example);
        if !program.exists() {
            // Where cargo has put it, other users may not come.
            copy_program(built(example), &program);
        }
        let mut command = match self.rnicd {
            Some(_) => {
                let mut command = Command::new("setpriv");
                command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]);
                command.args(["--bounding-set=-all", "--no-new-privs"]);
                command.args(["prlimit", "--memlock=8388608:8388608"]);
                command.args(["unshare", "-Unm"]);
                command
            }
            None => {
                let mut command = Command::new("nsenter");
                command.arg(format!("--net=/run/netns/{}", self.namespace.name()));
                command
            }
        };
        command.arg(program).args([role, NIC]).args(arguments);
        command.env("RNICD_SOCKET", self.socket());
        Program::start(command)
    }

    /// Starts the server of an example at an address of this host. Returns it, and where it
    /// listens.
    pub(crate) fn serve(&self, example: &str, role: &str, more: &[&str]) -> (Program, String) {
        self.serve_at(self.addresses[0], example, role, more)
    }

    pub(crate) fn serve_at(
        &self,
        address: &str,
        example: &str,
        role: &str,
        more: &[&str],
    ) -> (Program, String) {
        let address = format!("{address}:0");
        let arguments = [&[&address[..]], more].concat();
        let mut server = self.start(example, role, &arguments);
        let address = server.address();
        (server, address)
    }

    /// Waits until so many frames have reached the device since it was made.
    pub(crate) fn until_received(&self, frames: u64) {
        let path = format!("/sys/class/net/{NIC}/statistics/rx_packets");
        let show = || {
            let mut cat = self.namespace.command("cat");
            let said = cat.arg(&path).output().unwrap().stdout;
            String::from_utf8(said).unwrap().trim().parse().unwrap_or(0)
        };
        self.until("frames have come", || show() >= frames);
    }

    /// Waits until something is so.
    pub(crate) fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let deadline = Instant::now() + SOON;
        while !is_so() {
            let log = || fs::read_to_string(self.directory.join("log"));
            assert!(Instant::now() < deadline, "not: {what}; rnicd: {:?}", log());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(mut rnicd) = self.rnicd.take() {
            let _ = rnicd.kill();
            let _ = rnicd.wait();
            let _ = Command::new("umount")
                .arg(self.directory.join("bpf"))
                .status();
        }
        let _ = fs::remove_dir_all(&self.directory);
        for other in ["-admin", "-observe"] {
            let mut directory = self.directory.clone().into_os_string();
            directory.push(other);
            let _ = fs::remove_dir_all(directory);
        }
    }
}
