//! The pins of a shared device: its maps and programs in the BPF file system, where the next
//! process finds them.
//!
//! All lie in a directory that is named after their layout. It is made whole under another name and
//! renamed then, so that what is there is complete.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use aya::maps::MapData;
use aya::programs::ProgramInfo;
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use crate::device::error::OpenError;
use crate::device::steering::{Maps, WANTED, io_error};

/// The directory of the maps in that of a device's pins. Its number changes with `ebpf/steer.h`,
/// `ebpf/police.h` and `ebpf/capture.h`.
pub const LAYOUT: &str = "layout-5";
/// Where pins are made.
const UNFINISHED: &str = "unfinished";

/// The programs, by the names of their pins.
pub(super) const STEER: &str = "rnic_steer";
pub(super) const POLICE: &str = "rnic_police";

/// All maps of both programs.
const MAPS: [&str; 22] = [
    "steer_map",
    "steer_ports",
    "steer_links",
    "steer_untagged",
    "steer_locals",
    "steer_host",
    "steer_peers",
    "steer_clients",
    "steer_devices",
    "steer_sockets",
    "steer_counters",
    "steer_sas",
    "police_clients",
    "police_addresses",
    "police_neighbours",
    "police_more_neighbours",
    "police_peers",
    "police_counters",
    "police_sas",
    "capture_frames",
    "capture_lost",
    WANTED,
];

/// The directory of the pins of a device.
#[derive(Clone, Debug)]
pub(super) struct Pins {
    netdev: String,
    directory: PathBuf,
}

impl Pins {
    /// Looks at a directory, which need not exist. Returns an error if it is not on a BPF file
    /// system.
    pub(super) fn at(netdev: &str, directory: &Path) -> Result<Self, OpenError> {
        let there = directory.ancestors().find(|path| path.exists());
        let found = there.and_then(|path| statfs(path).ok());
        if found.is_none_or(|found| found.filesystem_type() != BPF_FS_MAGIC) {
            let path = directory.to_owned();
            return Err(OpenError::NoBpffs { path });
        }
        Ok(Self {
            netdev: netdev.to_owned(),
            directory: directory.to_owned(),
        })
    }

    /// Opens the maps that a former process pinned, if there are any.
    pub(super) fn maps(&self) -> Result<Option<Maps>, OpenError> {
        if !self.directory.exists() {
            return Ok(None);
        }
        let listed =
            fs::read_dir(&self.directory).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let listed = listed.map_err(failed("list", &self.directory))?;
        let names = listed.iter().map(|entry| entry.file_name());
        let mut names: Vec<_> = names.filter(|name| name != UNFINISHED).collect();
        names.sort();
        if let Some(other) = names.iter().find(|name| *name != LAYOUT) {
            return Err(OpenError::OtherLayout {
                netdev: self.netdev.clone(),
                path: self.directory.clone(),
                found: other.to_string_lossy().into_owned(),
                wanted: LAYOUT,
            });
        }
        if names.is_empty() {
            return Ok(None);
        }
        let mut maps = Maps::default();
        for name in MAPS {
            let path = self.path(name);
            let mut open = || -> io::Result<_> {
                let map = MapData::from_pin(&path).map_err(io_error)?;
                maps.insert(name, map.fd().as_fd().try_clone_to_owned()?);
                Ok(())
            };
            open().map_err(failed("open", &path))?;
        }
        Ok(Some(maps))
    }

    /// Begins anew. Returns the directory in which all is to be pinned.
    pub(super) fn begin(&self) -> Result<PathBuf, OpenError> {
        let unfinished = self.directory.join(UNFINISHED);
        remove(&unfinished)?;
        fs::create_dir_all(&unfinished).map_err(failed("make", &unfinished))?;
        Ok(unfinished)
    }

    /// Pins the maps beside the programs, and puts all in its place.
    pub(super) fn finish(&self, maps: &Maps) -> Result<(), OpenError> {
        let unfinished = self.directory.join(UNFINISHED);
        for (name, map) in maps.iter() {
            let path = unfinished.join(pin(name));
            let pinned = || -> io::Result<_> {
                let map = MapData::from_fd(map.try_clone()?).map_err(io_error)?;
                map.pin(&path).map_err(io::Error::other)
            };
            pinned().map_err(failed("pin a map at", &path))?;
        }
        let place = self.directory.join(LAYOUT);
        fs::rename(&unfinished, &place).map_err(failed("rename pins to", &place))
    }

    /// Puts the programs that were pinned since [`Pins::begin`] in the place of those of a former
    /// process.
    pub(super) fn replace_programs(&self, names: &[&str]) -> Result<(), OpenError> {
        let unfinished = self.directory.join(UNFINISHED);
        for name in names {
            let path = self.path(name);
            fs::rename(unfinished.join(name), &path).map_err(failed("rename a pin to", &path))?;
        }
        remove(&unfinished)
    }

    /// Returns the id of the steering program that is pinned.
    pub(super) fn program(&self) -> Option<u32> {
        let info = ProgramInfo::from_pin(self.path(STEER)).ok()?;
        Some(info.id())
    }

    /// Removes all pins.
    pub(super) fn remove(&self) -> Result<(), OpenError> {
        remove(&self.directory)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(LAYOUT).join(pin(name))
    }
}

/// Returns the name of a pin. The BPF file system allows no dots in it.
fn pin(name: &str) -> String {
    name.trim_start_matches('.').replace('.', "_")
}

/// Removes a directory with all that is in it, if it is there.
fn remove(directory: &Path) -> Result<(), OpenError> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(failed("remove", directory)(error))
        }
        _ => Ok(()),
    }
}

fn failed(doing: &'static str, path: &Path) -> impl Fn(io::Error) -> OpenError {
    move |source| OpenError::Pin {
        doing,
        path: path.to_owned(),
        source,
    }
}
