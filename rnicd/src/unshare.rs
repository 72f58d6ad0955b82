//! Removes what goes on without rnicd: programs, their maps, and the records of ports. For a host
//! on which rnicd is not to run any more.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rnic_manager::channel::Channel;
use rnic_manager::protocol;
use rnic_xdp::shared::SharingError;
use rnic_xdp::shared::{HostEnds, unshare as unshare_device};

use crate::claim::{Claim, ClaimError};
use crate::config::Config;
use crate::kept::Keeper;
use crate::places::Places;
use crate::record::{Record, Records};

/// How long to wait for an rnicd that may be there.
const PATIENCE: Duration = Duration::from_secs(1);

/// Why something is still shared.
#[derive(Debug, thiserror::Error)]
pub enum UnshareError {
    /// Another rnicd has the directories.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// rnicd serves, and would go on sharing.
    #[error("another rnicd serves {}; end it first (`systemctl stop rnicd.socket rnicd`)", path.display())]
    Running {
        /// Its socket.
        path: PathBuf,
    },
    /// The programs or maps of a device stay.
    #[error("{netdev} is still shared: {source}")]
    Device {
        /// The device.
        netdev: String,
        /// Why.
        source: SharingError,
    },
    /// A directory cannot be read or removed.
    #[error("cannot remove {}: {source}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Ends the sharing of every device that rnicd has shared under these places, and all ports. It is
/// no error if there is none.
pub fn unshare(places: &Places) -> Result<(), UnshareError> {
    // Held until all is removed. What does not exist, nobody has.
    let _state = Claim::of(&places.state)?;
    let _pins = Claim::of(&places.pins)?;
    let path = socket(places);
    if Channel::connect(&path, PATIENCE).is_ok() {
        return Err(UnshareError::Running { path });
    }
    for pins in directories(&places.pins)? {
        end_device(places, &pins)?;
        remove(&pins)?;
    }
    remove(&places.pins)?;
    end_remains(places)?;
    match fs::remove_file(places.set()) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            let path = places.set();
            return Err(UnshareError::Directory { path, source });
        }
        _ => {}
    }
    remove(&places.state.join("ports"))?;
    // The counters of the next sharing start at zero.
    remove(&places.state.join("usage"))
}

/// Removes what is left of ports that have ended, and has the keeper close all that it holds: then
/// it ends.
fn end_remains(places: &Places) -> Result<(), UnshareError> {
    let directory = places.ended();
    let records = Records::open(directory.clone()).and_then(|records| records.read());
    let mut ends = HostEnds::open().map_err(|error| failed(&directory)(io::Error::other(error)))?;
    for host_end in records
        .map_err(failed(&directory))?
        .into_iter()
        .filter_map(|record| record.ended?.host_end)
    {
        let removed = ends.remove(&host_end);
        removed.map_err(|error| failed(&directory)(io::Error::other(error)))?;
    }
    if let Some(keeper) = Keeper::find(&places.keeper()) {
        keeper.clear();
    }
    remove(&directory)
}

/// Returns where rnicd would serve. A configuration with faults must not be in the way.
fn socket(places: &Places) -> PathBuf {
    let configured = || Config::read(&places.config).map(|config| config.socket.value);
    let socket = places.socket.clone().or_else(|| configured().ok());
    socket.unwrap_or_else(|| protocol::SOCKET.into())
}

/// Ends the ports of a device, detaches its program, and removes the pins.
fn end_device(places: &Places, pins: &Path) -> Result<(), UnshareError> {
    let netdev = pins.file_name().unwrap_or_default().to_string_lossy();
    let directory = places.records(&netdev);
    let records = Records::open(directory.clone()).and_then(|records| records.read());
    let records = records.map_err(failed(&directory))?;
    let of_queue = |record: Record| Some((record.port, record.queue?));
    let queues: Vec<_> = records.into_iter().filter_map(of_queue).collect();
    let ended = unshare_device(&netdev, pins, &queues);
    ended.map_err(|source| UnshareError::Device {
        netdev: netdev.into_owned(),
        source,
    })
}

fn failed(path: &Path) -> impl Fn(io::Error) -> UnshareError {
    move |source| UnshareError::Directory {
        path: path.to_owned(),
        source,
    }
}

/// Returns what is in a directory, which need not exist.
fn directories(path: &Path) -> Result<Vec<PathBuf>, UnshareError> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed(path))?,
    };
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    paths.collect::<io::Result<_>>().map_err(failed(path))
}

/// Removes a directory with all that is in it, if it exists.
fn remove(path: &Path) -> Result<(), UnshareError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(path)(error)),
        _ => Ok(()),
    }
}
