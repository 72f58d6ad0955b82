//! A real rnicd: a process of its own, in a network namespace, that ends with this one.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, id};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rnic_xdp::client::Manager;
use rnic_xdp::shared::LAYOUT;

use crate::failure::Failure;

/// How long it may take to start.
const PATIENCE: Duration = Duration::from_secs(20);
/// The group that may connect.
const GROUP: &str = "nogroup";
/// The user whose ports have a rate.
pub(crate) const SLOW_USER: u32 = 65531;
/// That rate: a tenth of a million of the smallest frames in a second.
const RATE: &str = "50Mbit";

/// A running rnicd.
#[derive(Debug)]
pub(crate) struct Rnicd {
    child: Child,
    netdev: String,
    directory: PathBuf,
}

impl Rnicd {
    /// Starts one that shares a device of a network namespace, and waits until it serves. Must be
    /// called on the main thread: it ends with the thread that starts it.
    pub(crate) fn start(namespace: &str, netdev: &str) -> Result<Self, Failure> {
        let directory = std::env::temp_dir().join(format!("rnic-bench-{}-{namespace}", id()));
        fs::create_dir(&directory)?;
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755))?;
        fs::create_dir(directory.join("bpf"))?;
        fs::write(directory.join("rnicd.toml"), configuration(netdev))?;
        let child = command(namespace, &directory)?.spawn();
        let rnicd = Self {
            child: child.map_err(|error| format!("rnicd does not start: {error}"))?,
            netdev: netdev.to_owned(),
            directory,
        };
        rnicd.wait()?;
        Ok(rnicd)
    }

    /// Waits until it serves.
    fn wait(&self) -> Result<(), Failure> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if Manager::connect(&self.socket()).is_ok_and(|there| there.offers(&self.netdev)) {
                return Ok(());
            }
            sleep(Duration::from_millis(5));
        }
        let log = fs::read_to_string(self.directory.join("log")).unwrap_or_default();
        Err(format!("rnicd does not share {}; it says:\n{log}", self.netdev).into())
    }

    /// Returns where it listens.
    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.join("socket")
    }

    /// Returns where the maps of the device are pinned. The file system of pins is mounted for
    /// rnicd alone.
    pub(crate) fn maps(&self) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.child.id()));
        let pins = self.directory.join("bpf/pins");
        let inside = pins.strip_prefix("/").unwrap_or(&pins);
        root.join(inside).join(&self.netdev).join(LAYOUT)
    }
}

impl Drop for Rnicd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.directory);
        for other in ["-admin", "-observe"] {
            let mut directory = self.directory.clone().into_os_string();
            directory.push(other);
            let _ = fs::remove_dir_all(directory);
        }
    }
}

/// Returns a command that starts another in a network namespace, and ends it when the calling
/// thread ends.
pub(crate) fn command_in(namespace: &str) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{namespace}"));
    command.args(["setpriv", "--pdeathsig", "KILL"]);
    command
}

fn command(namespace: &str, directory: &Path) -> Result<Command, Failure> {
    let program = std::env::current_exe()?.with_file_name("rnicd");
    if !program.exists() {
        let program = program.display();
        return Err(format!("there is no {program}: cargo build --release -p rnicd").into());
    }
    let mut command = command_in(namespace);
    let script = "mount -t bpf bpf \"$0/bpf\" && exec \"$@\"";
    command.args(["unshare", "-m", "sh", "-c", script]);
    command.arg(directory).arg(program);
    for (option, name) in [
        ("--config", "rnicd.toml"),
        ("--socket", "socket"),
        ("--state", "state"),
        ("--pins", "bpf/pins"),
    ] {
        command.arg(option).arg(directory.join(name));
    }
    command.stderr(File::create(directory.join("log"))?);
    Ok(command)
}

/// Quotas that no measurement reaches.
fn configuration(netdev: &str) -> String {
    format!(
        "socket_group = \"{GROUP}\"\n[[device]]\nname = \"{netdev}\"\n\
         [defaults]\nports = 64\nframes = 1000000\nhugepages = \"4GiB\"\n\
         listen = [\"1024-65535\"]\nrate = \"none\"\npeers = \"all\"\n\
         [[user]]\nuid = {SLOW_USER}\nrate = \"{RATE}\"\n"
    )
}
