//! What programs see in `/sys/class/infiniband`: where it is, and when they see it.

use std::fmt::Write;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use nix::unistd::geteuid;
use rnic_verbs::rdma::{self, Entry};

use super::devices::Devices;
use super::surroundings::Label;
use super::tree::{Tree, own};

/// Whether programs see the devices in sysfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Sysfs {
    /// By a library that is preloaded
    Yes,
    /// As the kernel has it
    No,
}

/// Files of the hardware behind an interface that programs read: where it is, and what.
const HARDWARE: [&str; 11] = [
    "class",
    "current_link_speed",
    "current_link_width",
    "device",
    "local_cpulist",
    "local_cpus",
    "max_link_speed",
    "max_link_width",
    "subsystem_device",
    "subsystem_vendor",
    "vendor",
];

/// Ends the name of a device's directory. By the last octets of this name NCCL tells ports of one
/// PCI device from others: as if each interface were a PCI device of its own.
const FUNCTION: &str = ":00.0";

/// Makes the files for these devices, if programs are to see them, and returns their directory.
/// Programs that connect their queue pairs themselves need them, for which devices call themselves
/// RoCE.
pub(super) fn made(
    chosen: Option<Sysfs>,
    label: Option<Label>,
    devices: &Devices,
) -> Option<Result<PathBuf, String>> {
    let label = label.unwrap_or(Label::Iwarp);
    let by_label = match label {
        Label::Iwarp => Sysfs::No,
        Label::Roce => Sysfs::Yes,
    };
    (chosen.unwrap_or(by_label) == Sysfs::Yes).then(|| {
        let entries = rdma::entries(&devices.names, label.of_devices());
        let tree = tree(&entries, Path::new("/sys"));
        write(&tree, &places())
    })
}

/// Writes the files in the first of these places that takes them.
fn write(tree: &Tree, places: &[PathBuf]) -> Result<PathBuf, String> {
    let mut hasher = DefaultHasher::new();
    tree.hash(&mut hasher);
    let name = format!("sysfs-{:016x}", hasher.finish());
    let mut failures = String::new();
    for place in places {
        match own(place).and_then(|()| tree.write(place, &name)) {
            Ok(path) => return Ok(path),
            Err(why) => {
                let between = if failures.is_empty() { "" } else { ", " };
                let _ = write!(failures, "{between}{}: {why}", place.display());
            }
        }
    }
    Err(format!("no place for its files ({failures})"))
}

/// Returns the places in which this user may have files for programs, the best first.
fn places() -> Vec<PathBuf> {
    let user = geteuid();
    let mut places = Vec::new();
    if user.is_root() {
        // Programs that give up their rights see it too.
        places.push(PathBuf::from("/run/rnic"));
    }
    let running = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    places.extend(
        running
            .filter(|path| path.is_absolute())
            .map(|path| path.join("rnic")),
    );
    let temporary = std::env::temp_dir();
    places.extend(
        temporary
            .is_absolute()
            .then(|| temporary.join(format!("rnic-{user}"))),
    );
    places
}

/// Returns the files of these devices. `kernels` is the kernel's sysfs.
fn tree(entries: &[Entry], kernels: &Path) -> Tree {
    let mut tree = Tree::default();
    tree.directory("class/infiniband");
    for entry in entries {
        let name = &entry.name;
        let netdev = match &*entry.netdev {
            "" => "any",
            netdev => netdev,
        };
        let hardware = format!("devices/{netdev}{FUNCTION}");
        let device = format!("{hardware}/infiniband/{name}");
        tree.link(format!("class/infiniband/{name}"), &device);
        tree.link(format!("{device}/device"), &hardware);
        tree.link(format!("{device}/subsystem"), "class/infiniband");
        for (path, text) in &entry.files {
            tree.file(format!("{device}/{path}"), text);
        }
        let theirs = kernels.join("class/net").join(netdev);
        for (path, text) in hardware_files(&theirs) {
            tree.file(format!("{hardware}/{path}"), text);
        }
    }
    tree
}

/// Returns the files of the hardware behind an interface. Others know no NUMA node.
fn hardware_files(interface: &Path) -> Vec<(&'static str, String)> {
    let read = |name: &str| fs::read_to_string(interface.join("device").join(name)).ok();
    let node = read("numa_node").unwrap_or_else(|| "-1\n".to_owned());
    let others = HARDWARE.map(|name| Some((name, read(name)?)));
    let all = [Some(("numa_node", node))].into_iter().chain(others);
    all.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory of this test alone.
    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("rnic-sysfs-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        path
    }

    fn entry(name: &str, netdev: &str) -> Entry {
        Entry {
            name: name.to_owned(),
            netdev: netdev.to_owned(),
            files: vec![("ports/1/state".to_owned(), "4: ACTIVE\n".to_owned())],
        }
    }

    #[test]
    fn devices_are_linked_as_in_sysfs() {
        let root = directory("linked");
        let kernels = root.join("sys/class/net/eth1/device");
        fs::create_dir_all(&kernels).unwrap();
        fs::write(kernels.join("numa_node"), "1\n").unwrap();
        fs::write(kernels.join("vendor"), "0x1af4\n").unwrap();
        let entries = [entry("rnic_eth1", "eth1"), entry("rnic_any", "")];
        let tree = tree(&entries, &root.join("sys"));
        let path = write(&tree, std::slice::from_ref(&root)).unwrap();
        let class = path.join("class/infiniband");
        let read = |name: &str| fs::read_to_string(class.join(name)).ok();
        for name in ["rnic_eth1", "rnic_any"] {
            let state = read(&format!("{name}/ports/1/state"));
            assert_eq!(state.as_deref(), Some("4: ACTIVE\n"), "{name}");
            let by_class = class.join(name).join("subsystem").canonicalize().unwrap();
            assert_eq!(by_class, class.canonicalize().unwrap());
        }
        for (path, text) in [
            ("rnic_eth1/../../numa_node", Some("1\n")),
            ("rnic_eth1/device/numa_node", Some("1\n")),
            ("rnic_eth1/device/vendor", Some("0x1af4\n")),
            ("rnic_any/../../numa_node", Some("-1\n")),
            ("rnic_any/device/vendor", None),
        ] {
            assert_eq!(read(path).as_deref(), text, "{path}");
        }
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn the_first_place_that_takes_it_is_taken() {
        let root = directory("places");
        let tree = tree(&[], Path::new("/nowhere"));
        let file = root.join("file");
        fs::write(&file, "").unwrap();
        let good = root.join("good");
        let path = write(&tree, &[file.clone(), root.join("no/way"), good.clone()]).unwrap();
        assert!(path.starts_with(&good) && path.join("class/infiniband").is_dir());
        let why = write(&tree, &[file, "/proc/rnic".into()]).unwrap_err();
        assert!(why.contains("it is no directory, /proc/rnic: "), "{why}");
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn the_label_decides_unless_the_command_line_does() {
        let devices = Devices::choose(&["lo".to_owned()], None).unwrap();
        for (chosen, label) in [
            (None, None),
            (None, Some(Label::Iwarp)),
            (Some(Sysfs::No), Some(Label::Roce)),
        ] {
            assert!(
                made(chosen, label, &devices).is_none(),
                "{chosen:?} {label:?}"
            );
        }
    }
}
