//! Loads a program and its maps into the kernel.

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use aya::maps::{Map, MapData, MapError};
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{MapCore, OpenObject};
use nix::libc;

use super::log;
use super::maps::{io_error, map_from};
use super::skeleton::SteerSkelBuilder;
use crate::device::error::OpenError;
use crate::device::process;

/// The maps of a program, by name.
#[derive(Debug, Default)]
pub(crate) struct Maps(BTreeMap<String, OwnedFd>);

impl Maps {
    /// Adds a map.
    pub(crate) fn insert(&mut self, name: impl Into<String>, map: OwnedFd) {
        self.0.insert(name.into(), map);
    }

    /// Adds the maps of a program.
    pub(crate) fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
    }

    /// Returns other descriptors of the same maps.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        let clone = |(name, map): (&String, &OwnedFd)| Ok((name.clone(), map.try_clone()?));
        self.0
            .iter()
            .map(clone)
            .collect::<io::Result<_>>()
            .map(Self)
    }

    /// Returns a map of a known type.
    pub(crate) fn get<T: TryFrom<Map, Error = MapError>>(&self, name: &str) -> io::Result<T> {
        let data = MapData::from_fd(self.0[name].try_clone()?).map_err(io_error)?;
        map_from(data)?.try_into().map_err(io_error)
    }

    /// Returns all maps, each with its name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &OwnedFd)> {
        self.0.iter().map(|(name, map)| (name.as_str(), map))
    }
}

/// A program and its maps, in the kernel but not attached.
pub(crate) struct Loaded {
    pub(crate) program: OwnedFd,
    /// All but its constants.
    pub(crate) maps: Maps,
}

/// The name of the map that holds the constants of a program ends so. Each program has its own.
const CONSTANTS: &str = ".rodata";

/// The map that says which frames somebody captures, which programs of a device have in common.
pub(crate) const WANTED: &str = ".data.capture";

/// Loads the one program of an object, with the maps that are given, and new ones otherwise. Pins
/// it if there is a path. From then on aya handles the maps.
pub(crate) fn load<'obj>(
    mut open: impl OpenSkel<'obj>,
    given: &Maps,
    pin: Option<&Path>,
) -> Result<Loaded, OpenError> {
    for mut map in open.open_object_mut().maps_mut() {
        let of_other = map.name().to_str().and_then(|name| given.0.get(name));
        if let Some(of_other) = of_other {
            map.reuse_fd(of_other.as_fd()).map_err(refused)?;
        }
    }
    let skeleton = open.load().map_err(refused)?;
    let kept = |source| OpenError::System {
        doing: "keep a program and its maps",
        source,
    };
    let mut maps = Maps::default();
    for map in skeleton.object().maps() {
        let name = map.name().to_string_lossy();
        if !name.ends_with(CONSTANTS) {
            maps.insert(name, map.as_fd().try_clone_to_owned().map_err(kept)?);
        }
    }
    let absent = || kept(io::ErrorKind::NotFound.into());
    let mut program = skeleton.object().progs_mut().next().ok_or_else(absent)?;
    if let Some(path) = pin {
        program.pin(path).map_err(refused)?;
    }
    let program = program.as_fd().try_clone_to_owned().map_err(kept)?;
    Ok(Loaded { program, maps })
}

/// Who takes the steered frames.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Use<'a> {
    /// This process alone, in its sockets: with ESP of its own or without.
    Exclusive {
        /// Whether there are associations to steer.
        esp: bool,
    },
    /// Clients, by their ports: with ESP or without.
    Shared {
        /// Where the program is pinned.
        pin: &'a Path,
        /// Whether clients have associations.
        esp: bool,
    },
}

/// The most associations that all clients of a device have, of each direction.
pub(crate) const CLIENTS_ASSOCIATIONS: u32 = 4096;

/// Loads the steering program for as many queues as stated, with the maps that are given.
pub(crate) fn load_steer(queues: u32, given: &Maps, by: Use<'_>) -> Result<Loaded, OpenError> {
    log::capture();
    let mut object: MaybeUninit<OpenObject> = MaybeUninit::uninit();
    let mut open = SteerSkelBuilder::default()
        .open(&mut object)
        .map_err(refused)?;
    let sockets = &mut open.maps.steer_sockets;
    sockets.set_max_entries(queues).map_err(refused)?;
    let pin = match by {
        Use::Exclusive { esp } => {
            let constants = open.maps.rodata_data.as_deref_mut();
            constants.expect("it has constants").steer_esp = esp.into();
            // The program's code for it is gone.
            let maps = &mut open.maps;
            if !esp {
                maps.steer_sas.set_max_entries(1).map_err(refused)?;
            }
            maps.steer_devices.set_max_entries(1).map_err(refused)?;
            maps.steer_clients.set_max_entries(1).map_err(refused)?;
            None
        }
        Use::Shared { pin, esp } => {
            let constants = open.maps.rodata_data.as_deref_mut();
            let constants = constants.expect("it has constants");
            (constants.steer_shared, constants.steer_esp) = (1, esp.into());
            // The next process may have use for it, though this one has none.
            let associations = &mut open.maps.steer_sas;
            associations
                .set_max_entries(CLIENTS_ASSOCIATIONS)
                .map_err(refused)?;
            Some(pin)
        }
    };
    load(open, given, pin)
}

/// Makes the error for a program that the kernel or libbpf does not accept, with libbpf's warnings.
pub(crate) fn refused(error: libbpf_rs::Error) -> OpenError {
    let doing = "load an XDP program";
    // libbpf keeps the words of the kernel's error, and not its number. First: without a descriptor
    // nobody sees what this process may do.
    let too_many = io::Error::from_raw_os_error(libc::EMFILE);
    if error.to_string().contains(&too_many.to_string()) {
        return OpenError::System {
            doing,
            source: too_many,
        };
    }
    let may = process::may_load_programs(process::effective_capabilities());
    if !may || error.kind() == libbpf_rs::ErrorKind::PermissionDenied {
        return OpenError::NotPermitted { doing };
    }
    OpenError::Load {
        reason: format!("{error}{}", log::captured()),
    }
}
