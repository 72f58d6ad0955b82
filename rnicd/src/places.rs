//! Where rnicd has its files.

use std::path::PathBuf;

/// Where things are.
#[derive(Clone, Debug)]
pub struct Places {
    /// The configuration.
    pub config: PathBuf,
    /// The socket, if not where the configuration says.
    pub socket: Option<PathBuf>,
    /// The directory of the records of ports, which does not outlive the system.
    pub state: PathBuf,
    /// The directory on a BPF file system under which the programs' maps of each device are pinned.
    pub pins: PathBuf,
}

impl Places {
    /// Returns the file that keeps what `rnic-ctl` has set.
    pub fn set(&self) -> PathBuf {
        self.state.join("rnic-ctl.toml")
    }

    /// Returns the directory of the records of a device's ports.
    pub(crate) fn records(&self, netdev: &str) -> PathBuf {
        self.state.join("ports").join(netdev)
    }
}
