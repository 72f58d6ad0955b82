//! What the kernel is set to in this network namespace, as far as it concerns sharing: whether it
//! forwards, and from which TCP ports it chooses for its own connections.

use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;

use tracing::{debug, warn};

const SETTINGS: &str = "/proc/sys/net";
const LOCAL: &str = "ipv4/ip_local_port_range";
const RESERVED: &str = "ipv4/ip_local_reserved_ports";

/// Returns how this host forwards for others, if it does.
pub(crate) fn forwards() -> Option<String> {
    forwards_in(Path::new(SETTINGS))
}

fn forwards_in(settings: &Path) -> Option<String> {
    for family in ["ipv4", "ipv6"] {
        let Ok(devices) = fs::read_dir(settings.join(family).join("conf")) else {
            continue;
        };
        let mut names: Vec<_> = devices.flatten().map(|entry| entry.file_name()).collect();
        names.sort();
        for name in names {
            let path = settings.join(family).join("conf").join(&name);
            let value = fs::read_to_string(path.join("forwarding")).unwrap_or_default();
            if !matches!(value.trim(), "" | "0") {
                let name = name.to_string_lossy();
                return Some(format!(
                    "this host forwards packets for others (net.{family}.conf.{name}.forwarding is {})",
                    value.trim()
                ));
            }
        }
    }
    None
}

/// Keeps the kernel from choosing these TCP ports for connections of its own. Where it already
/// chooses from others, that is for the day when somebody changes its range.
pub(crate) fn reserve(ports: &RangeInclusive<u16>) {
    let settings = Path::new(SETTINGS);
    let overlaps = chooses_from(settings, ports);
    match reserve_in(settings, ports) {
        Ok(()) => {}
        Err((wanted, error)) if overlaps => warn!(
            "the kernel chooses TCP ports from those of automatic_ports, and rnicd may not reserve them ({error}); `sysctl -w \
             net.ipv4.ip_local_reserved_ports={wanted}` does it, or choose other automatic_ports"
        ),
        Err((_, error)) => debug!("net.ipv4.ip_local_reserved_ports stays as it is: {error}"),
    }
}

/// Returns whether the kernel chooses from these ports.
fn chooses_from(settings: &Path, ports: &RangeInclusive<u16>) -> bool {
    let text = fs::read_to_string(settings.join(LOCAL)).unwrap_or_default();
    let mut ends = text.split_whitespace().map(str::parse::<u16>);
    match (ends.next(), ends.next()) {
        (Some(Ok(first)), Some(Ok(last))) => first <= *ports.end() && *ports.start() <= last,
        _ => false,
    }
}

/// Adds ports to those that the kernel does not choose. On failure, returns what it was to be set
/// to.
fn reserve_in(settings: &Path, ports: &RangeInclusive<u16>) -> Result<(), (String, io::Error)> {
    let path = settings.join(RESERVED);
    let before = fs::read_to_string(&path).unwrap_or_default();
    let before = before.trim();
    let own = format!("{}-{}", ports.start(), ports.end());
    if before
        .split(',')
        .filter_map(read_range)
        .any(|range| range.start() <= ports.start() && ports.end() <= range.end())
    {
        return Ok(());
    }
    let wanted = match before {
        "" => own,
        before => format!("{before},{own}"),
    };
    fs::write(&path, &wanted).map_err(|error| (wanted, error))
}

fn read_range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory in the place of the kernel's.
    fn settings(name: &str, files: &[(&str, &str)]) -> std::path::PathBuf {
        let name = format!("rnicd-kernel-settings-{}-{name}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        for (file, text) in files {
            let path = directory.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        directory
    }

    #[test]
    fn a_host_forwards_if_any_device_does_in_any_family() {
        let nothing = [
            ("ipv4/conf/all/forwarding", "0\n"),
            ("ipv4/conf/eth1/forwarding", "0\n"),
            ("ipv6/conf/all/forwarding", "0\n"),
        ];
        for (file, says) in [
            ("none", None),
            (
                "ipv4/conf/eth1/forwarding",
                Some("net.ipv4.conf.eth1.forwarding is 1"),
            ),
            (
                "ipv6/conf/all/forwarding",
                Some("net.ipv6.conf.all.forwarding is 1"),
            ),
        ] {
            let directory = settings("forwards", &nothing);
            fs::write(directory.join(file), "1\n").unwrap();
            let said = forwards_in(&directory);
            assert_eq!(said.is_some(), says.is_some(), "{said:?}");
            assert!(says.is_none_or(|says| said.unwrap().contains(says)));
            fs::remove_dir_all(directory).unwrap();
        }
    }

    #[test]
    fn ports_are_reserved_once_and_beside_those_of_others() {
        let ports = 61000..=65535;
        for (before, after) in [
            ("\n", "61000-65535"),
            ("8080,9000-9010\n", "8080,9000-9010,61000-65535"),
            ("8080,60000-65535\n", "8080,60000-65535\n"),
            ("61000-65534\n", "61000-65534,61000-65535"),
        ] {
            let directory = settings("reserve", &[(RESERVED, before)]);
            reserve_in(&directory, &ports).unwrap();
            reserve_in(&directory, &ports).unwrap();
            let now = fs::read_to_string(directory.join(RESERVED)).unwrap();
            assert_eq!(now, after);
            fs::remove_dir_all(directory).unwrap();
        }
        let nowhere = settings("nowhere", &[]);
        let (wanted, _) = reserve_in(&nowhere, &ports).unwrap_err();
        assert_eq!(wanted, "61000-65535");
    }

    #[test]
    fn the_ranges_of_kernel_and_rnicd_may_overlap() {
        for (local, overlaps) in [
            ("32768\t60999\n", false),
            ("32768\t61000\n", true),
            ("1024\t65535\n", true),
            ("garbage", false),
        ] {
            let directory = settings("overlap", &[(LOCAL, local)]);
            assert_eq!(
                chooses_from(&directory, &(61000..=65535)),
                overlaps,
                "{local}"
            );
            fs::remove_dir_all(directory).unwrap();
        }
    }
}
