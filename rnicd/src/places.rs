//! Where rnicd has its files.

use std::ffi::OsString;
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
    /// The command that frees the file at its standard input, as `rnicd --free` does.
    pub freer: Vec<OsString>,
}

impl Places {
    /// Returns the file that keeps what `rnic-ctl` has set.
    pub fn set(&self) -> PathBuf {
        self.state.join("rnic-ctl.toml")
    }

    /// Returns the directory of the records of ports that have ended.
    pub(crate) fn ended(&self) -> PathBuf {
        self.state.join("ended")
    }

    /// Returns the socket of the keeper: in the directory of the state, which is root's alone.
    pub(crate) fn keeper(&self) -> PathBuf {
        self.state.join("keeper.sock")
    }

    /// Returns the directory of the records of a device's ports.
    pub(crate) fn records(&self, netdev: &str) -> PathBuf {
        self.state.join("ports").join(netdev)
    }
}
