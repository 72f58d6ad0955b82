//! Two hosts that a veth pair joins: one has an rnicd and its clients, the other the peer.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, id};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rnic_xdp::client::Manager;
use rnic_xdp::testing::{Namespace, VethEnd, copy_program, veth_pair};

use crate::client::{Client, GROUP, Home};
use crate::exchange::SOON;

/// The shared device, and the peer's.
pub(crate) const NIC: &str = "nic";
pub(crate) const PEER_NIC: &str = "peer0";
/// A VLAN on both.
pub(crate) const VLAN: u16 = 7;

/// How long rnicd may take to start. Attaching a program waits for the kernel's RCU, which took 30 s
/// where clients had all CPUs.
const START: Duration = Duration::from_secs(150);

/// Where its BPF file system is mounted.
const BPFFS: &str = "bpf";

/// All that a test needs. Nothing of it is left when it is dropped.
pub(crate) struct Rig {
    rnicd: Option<Child>,
    /// What rnicd had open before it had any client.
    pub(crate) descriptors: usize,
    pub(crate) host: Arc<Namespace>,
    pub(crate) far: Arc<Namespace>,
    directory: PathBuf,
}

impl Rig {
    /// Starts rnicd on a device of this MTU. `rules` are added to its configuration.
    pub(crate) fn new(mtu: u32, rules: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("rnicd-{}-{number}", id()));
        let new = || Arc::new(Namespace::new("share").unwrap());
        let (host, far) = (new(), new());
        join(&host, &far, mtu, 1);
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(&directory, Permissions::from_mode(0o755)).unwrap();
        // Where this program lies, other users may not come.
        copy_program(std::env::current_exe().unwrap(), directory.join("client"));
        mount(&directory.join(BPFFS));
        let mut rig = Self {
            rnicd: None,
            descriptors: 0,
            host,
            far,
            directory,
        };
        rig.configure(rules);
        rig.start();
        rig.descriptors = rig.count_descriptors();
        rig
    }

    /// Makes the devices again after they were removed.
    pub(crate) fn join(&self, mtu: u32) {
        join(&self.host, &self.far, mtu, 1);
    }

    /// Makes the devices anew with room for a number of queues, of which one is in use, and rnicd,
    /// too.
    pub(crate) fn have_queues(&mut self, most: u32) {
        self.kill();
        self.host.ip("link del dev nic").unwrap();
        join(&self.host, &self.far, 1500, most);
        self.set_queues(1);
        self.start();
    }

    /// Sets the number of queues on which the device receives, and on which the peer sends. With a
    /// program it must not have fewer.
    pub(crate) fn set_queues(&self, count: u32) {
        let count = count.to_string();
        for (namespace, netdev, way) in [(&self.host, NIC, "rx"), (&self.far, PEER_NIC, "tx")] {
            let mut ethtool = namespace.command("ethtool");
            ethtool.args(["-L", netdev, way, &count]);
            assert!(ethtool.status().unwrap().success(), "{ethtool:?}");
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Returns where rnicd listens.
    pub(crate) fn socket(&self) -> PathBuf {
        self.path("socket")
    }

    /// Returns where the maps of the shared device are pinned.
    pub(crate) fn pins(&self) -> PathBuf {
        self.path(BPFFS).join("pins").join(NIC)
    }

    /// Returns where the records of ports are.
    pub(crate) fn records(&self) -> PathBuf {
        self.path("state").join("ports").join(NIC)
    }

    /// Adds a VLAN to both devices, with addresses.
    pub(crate) fn add_vlan(&self) {
        for (namespace, name, last) in [(&self.host, NIC, 1), (&self.far, PEER_NIC, 2)] {
            let vlan = format!("{name}.{VLAN}");
            let add = format!("link add link {name} name {vlan} type vlan id {VLAN}");
            namespace.ip(&add).unwrap();
            let address = format!("addr add 10.9.{VLAN}.{last}/24 dev {vlan}");
            namespace.ip(&address).unwrap();
            namespace.ip(&format!("link set dev {vlan} up")).unwrap();
        }
    }

    /// Writes the configuration, with defaults that are wide where the rules do not say it.
    pub(crate) fn configure(&self, rules: &str) {
        let rules = widened(rules);
        let text = format!("socket_group = \"{GROUP}\"\n[[device]]\nname = \"{NIC}\"\n{rules}");
        self.write_configuration(&text);
    }

    /// Writes a configuration as it is.
    pub(crate) fn write_configuration(&self, text: &str) {
        fs::write(self.path("rnicd.toml"), text).unwrap();
    }

    /// Returns what rnicd has said since it was first started.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap()
    }

    /// Starts rnicd, and waits until it serves.
    pub(crate) fn start(&mut self) {
        self.launch();
        self.until_within(START, "rnicd serves", || self.shares_device().then_some(()));
    }

    /// Starts rnicd.
    pub(crate) fn launch(&mut self) {
        assert!(self.rnicd.is_none(), "rnicd runs already");
        let mut command = self.command();
        command
            .env("RUST_LOG", "info,rnicd::requests=debug")
            .stderr(append(&self.path("log")));
        // A process begins in the network namespace of the thread that starts it.
        let child = self.host.run(|| command.spawn()).unwrap();
        self.rnicd = Some(child);
    }

    /// Returns the command line of rnicd with the places of this test.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rnicd"));
        command
            .arg("--config")
            .arg(self.path("rnicd.toml"))
            .arg("--socket")
            .arg(self.socket())
            .arg("--state")
            .arg(self.path("state"))
            .arg("--pins")
            .arg(self.path(BPFFS).join("pins"));
        command
    }

    /// Returns whether rnicd offers the device.
    pub(crate) fn shares_device(&self) -> bool {
        Manager::connect(&self.socket()).is_ok_and(|manager| manager.offers(NIC))
    }

    /// Ends rnicd with SIGKILL.
    pub(crate) fn kill(&mut self) {
        let mut rnicd = self.rnicd.take().unwrap();
        rnicd.kill().unwrap();
        rnicd.wait().unwrap();
    }

    /// Sends rnicd a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// Returns its process id.
    pub(crate) fn pid(&self) -> Pid {
        let rnicd = self.rnicd.as_ref().expect("rnicd runs");
        Pid::from_raw(rnicd.id().try_into().unwrap())
    }

    /// Returns how many descriptors rnicd has open, without those of connections that were closed
    /// before.
    pub(crate) fn count_descriptors(&self) -> usize {
        // It has noticed the end of earlier connections once it has answered on a later one.
        let _later = Manager::connect(&self.socket()).unwrap();
        let open = fs::read_dir(format!("/proc/{}/fd", self.pid()));
        open.unwrap().count() - 1
    }

    /// Limits how many descriptors rnicd may have open.
    pub(crate) fn limit_descriptors(&self, most: usize) {
        let mut command = Command::new("prlimit");
        command.args([format!("--pid={}", self.pid()), format!("--nofile={most}:")]);
        assert!(command.status().unwrap().success(), "{command:?}");
    }

    /// Starts a client of a user in a container.
    pub(crate) fn client(&self, uid: u32) -> Client {
        self.client_in(Home::Container, uid)
    }

    /// Starts a client of a user.
    pub(crate) fn client_in(&self, home: Home, uid: u32) -> Client {
        let program = self.path("client");
        let arguments = ["--exact", "play::client", "--ignored", "--nocapture"];
        let program = [program.as_os_str()].into_iter();
        let program: Vec<_> = program.chain(arguments.map(OsStr::new)).collect();
        let start = || Client::start(&program, &self.socket(), uid, home);
        self.host.run(start)
    }

    /// Starts a client of a user that has none of our code, and no manners.
    pub(crate) fn script(&self, uid: u32) -> Client {
        self.script_in(Home::Container, uid)
    }

    /// The same, anywhere.
    pub(crate) fn script_in(&self, home: Home, uid: u32) -> Client {
        let script = [include_str!("rings.py"), include_str!("script.py")].concat();
        let program = ["python3", "-c", &script].map(OsStr::new);
        Client::start(&program, &self.socket(), uid, home)
    }

    /// Starts a client of a user that has opened the device.
    pub(crate) fn open_client(&self, uid: u32) -> Client {
        let mut client = self.client(uid);
        client.must(&format!("open {NIC}"));
        client
    }

    /// Returns the MAC address of a device.
    pub(crate) fn mac(&self, namespace: &Namespace, netdev: &str) -> String {
        let link = namespace.ip(&format!("-o link show dev {netdev}")).unwrap();
        let mac = link.split_once("link/ether ").unwrap().1;
        mac.split(' ').next().unwrap().to_owned()
    }

    /// Returns the keepers that serve rnicd or wait for the next one.
    pub(crate) fn keepers(&self) -> Vec<Pid> {
        let path = self.path("state").join("keeper.sock");
        let arguments = format!("rnicd\0--keep\0{}\0", path.display()).into_bytes();
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let is_keeper = |pid: &i32| {
            let read = fs::read(format!("/proc/{pid}/cmdline"));
            read.is_ok_and(|line| line == arguments)
        };
        pids.filter(is_keeper).map(Pid::from_raw).collect()
    }

    /// Ends the keeper with SIGKILL, and waits until it is gone.
    pub(crate) fn kill_keeper(&self) {
        let keepers = self.keepers();
        assert_eq!(keepers.len(), 1);
        kill(keepers[0], Signal::SIGKILL).unwrap();
        self.until("the keeper has ended", || {
            (!self.keepers().contains(&keepers[0])).then_some(())
        });
    }

    /// Waits until rnicd has said something.
    pub(crate) fn until_log(&self, text: &str) {
        self.until(&format!("rnicd says {text:?}"), || {
            self.log().contains(text).then_some(())
        });
    }

    /// Waits until something is so, and returns it. If it never is, the test fails with what rnicd
    /// has said.
    pub(crate) fn until<T>(&self, what: &str, find: impl FnMut() -> Option<T>) -> T {
        self.until_within(SOON, what, find)
    }

    fn until_within<T>(
        &self,
        time: Duration,
        what: &str,
        mut find: impl FnMut() -> Option<T>,
    ) -> T {
        let deadline = Instant::now() + time;
        loop {
            if let Some(found) = find() {
                return found;
            }
            if Instant::now() > deadline {
                panic!("it never is so that {what}; rnicd:\n{}", self.log());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(mut rnicd) = self.rnicd.take() {
            let _ = rnicd.kill();
            let _ = rnicd.wait();
        }
        if std::thread::panicking() {
            let log = fs::read_to_string(self.path("log")).unwrap_or_default();
            let lines: Vec<_> = log.lines().collect();
            let (before, last) = lines.split_at(lines.len().saturating_sub(60));
            let bad = before
                .iter()
                .filter(|line| !line.contains(" INFO ") && !line.contains(" DEBUG "));
            bad.for_each(|line| eprintln!("{line}"));
            eprintln!("the last that rnicd said:\n{}", last.join("\n"));
        }
        let _ = Command::new("umount").arg(self.path(BPFFS)).status();
        let _ = fs::remove_dir_all(&self.directory);
        // Those of its sockets for administrators and observers.
        for other in ["-admin", "-observe"] {
            let mut directory = self.directory.clone().into_os_string();
            directory.push(other);
            let _ = fs::remove_dir_all(directory);
        }
    }
}

/// Adds to rules what lets these tests choose TCP ports and peers, and send as fast as they can.
fn widened(rules: &str) -> String {
    const WIDE: [&str; 3] = [
        "listen = [\"1024-65535\"]\n",
        "rate = \"none\"\n",
        "peers = \"all\"\n",
    ];
    const DEFAULTS: &str = "[defaults]\n";
    let (before, after) = match rules.split_once(DEFAULTS) {
        Some((before, after)) => (before, after),
        None => ("", rules),
    };
    let says = |line: &&str| {
        let (key, _) = line.split_once('=').unwrap();
        !after.split("[[").next().unwrap().contains(key)
    };
    let wide: String = WIDE.into_iter().filter(says).collect();
    // Without defaults of their own, the rules begin with tables.
    match rules.contains(DEFAULTS) {
        true => {
            let (own, tables) = after.split_at(after.find("[[").unwrap_or(after.len()));
            format!("{before}{DEFAULTS}{own}{wide}{tables}")
        }
        false => format!("{DEFAULTS}{wide}{rules}"),
    }
}

/// Joins the hosts, with addresses of both families.
fn join(host: &Namespace, far: &Namespace, mtu: u32, queues: u32) {
    let end = |namespace, name, addresses| VethEnd {
        namespace,
        name,
        addresses,
    };
    let near = end(host, NIC, "10.9.0.1/24 fd09::1/64");
    let other = end(far, PEER_NIC, "10.9.0.2/24 fd09::2/64");
    veth_pair(near, other, queues).unwrap();
    // A veth sends what programs redirect to it only to an end that has a program, or GRO.
    let mut gro = far.command("ethtool");
    gro.args(["-K", PEER_NIC, "gro", "on"]);
    assert!(gro.status().unwrap().success(), "{gro:?}");
    for (namespace, name) in [(host, NIC), (far, PEER_NIC)] {
        namespace
            .ip(&format!("link set dev {name} mtu {mtu}"))
            .unwrap();
    }
}

fn mount(directory: &Path) {
    fs::create_dir(directory).unwrap();
    let mut command = Command::new("mount");
    command.args(["-t", "bpf", "bpf"]).arg(directory);
    assert!(command.status().unwrap().success(), "{command:?}");
}

fn append(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.append(true).create(true).open(path).unwrap()
}
