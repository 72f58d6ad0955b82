//! Which paths lie in `/sys/class/infiniband`.

/// The directories on the way there.
const WAY: [&[u8]; 3] = [b"sys", b"class", b"infiniband"];

/// How deep the directory lies in the tree.
const CLASS: usize = 2;

/// How deep the directory of a device lies: its entry in the class is a link to it,
/// `devices/DEVICE/infiniband/NAME`.
const DEVICE: usize = 4;

/// A link in the directory of a device, to that of its hardware: `devices/DEVICE`.
const HARDWARE: (&[u8], usize) = (b"device", 2);

/// A path in the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Below<'a> {
    /// What follows the directory, with the slash in front.
    pub(crate) rest: &'a [u8],
    /// The entry that it goes through.
    pub(crate) entry: Option<&'a [u8]>,
}

impl<'a> Below<'a> {
    /// Splits a path, if it leads to the directory or below it.
    pub(crate) fn of(path: &'a [u8]) -> Option<Self> {
        let rest = behind(path)?;
        let mut entry = None;
        let (mut depth, mut is_class) = (CLASS, true);
        for word in rest.split(|octet| *octet == b'/') {
            match word {
                b"" | b"." => continue,
                // Not above the tree.
                b".." => depth = depth.checked_sub(1)?,
                name if is_class => {
                    entry = Some(name);
                    depth = DEVICE;
                }
                name if name == HARDWARE.0 && depth == DEVICE => depth = HARDWARE.1,
                _ => depth += 1,
            }
            is_class = false;
        }
        // What lies higher has more entries in the kernel's tree.
        (depth >= CLASS).then_some(Self { rest, entry })
    }
}

/// Returns what follows `/sys/class/infiniband`.
fn behind(path: &[u8]) -> Option<&[u8]> {
    let mut rest = path;
    for word in WAY {
        rest = without_slashes(rest)?.strip_prefix(word)?;
    }
    matches!(rest, [] | [b'/', ..]).then_some(rest)
}

/// Returns what follows the slashes at the front, of which there must be one. `/.` is none.
fn without_slashes(path: &[u8]) -> Option<&[u8]> {
    let mut rest = path.strip_prefix(b"/")?;
    loop {
        rest = match rest {
            [b'/', rest @ ..] | [b'.', b'/', rest @ ..] => rest,
            _ => return Some(rest),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(path: &str) -> Option<(&str, Option<&str>)> {
        let text = |octets| str::from_utf8(octets).unwrap();
        let below = Below::of(path.as_bytes())?;
        Some((text(below.rest), below.entry.map(text)))
    }

    #[test]
    fn the_directory_is_found_however_it_is_written() {
        for (path, rest) in [
            ("/sys/class/infiniband", ""),
            ("/sys/class/infiniband/", "/"),
            ("//sys///class//infiniband//", "//"),
            ("/./sys/././class/./infiniband/.", "/."),
        ] {
            assert_eq!(split(path), Some((rest, None)), "{path}");
        }
        for (path, rest) in [
            ("/sys/class/infiniband/a", "/a"),
            ("/sys/class/infiniband/./a/", "/./a/"),
            (
                "/sys/class/infiniband//a/ports/1/state",
                "//a/ports/1/state",
            ),
            ("/sys//class/infiniband/a/../..", "/a/../.."),
            (
                "/sys/class/infiniband/a/device/numa_node",
                "/a/device/numa_node",
            ),
        ] {
            assert_eq!(split(path), Some((rest, Some("a"))), "{path}");
        }
    }

    #[test]
    fn others_are_not_taken_for_it() {
        for path in [
            "",
            "/",
            "/sys",
            "/sys/class",
            "/sys/class/infiniband_verbs",
            "/sys/class/infiniband_verbs/uverbs0",
            "/sys/class/infiniban",
            "/sys/class/.infiniband",
            "/sys/classinfiniband",
            "/sys/class/net/../infiniband",
            "/sys/class/..infiniband",
            "/sys.class/infiniband",
            "/run/sys/class/infiniband",
            "sys/class/infiniband",
            "./sys/class/infiniband",
            "infiniband",
        ] {
            assert_eq!(split(path), None, "{path}");
        }
    }

    #[test]
    fn what_lies_above_the_devices_is_the_kernels() {
        for path in [
            "/sys/class/infiniband/..",
            "/sys/class/infiniband/../..",
            "/sys/class/infiniband/../../..",
            "/sys/class/infiniband/../../../etc/passwd",
            "/sys/class/infiniband/a/../../..",
            "/sys/class/infiniband/a/../../../..",
            "/sys/class/infiniband/a/../../../../../../etc/passwd",
            "/sys/class/infiniband/a/device/..",
            "/sys/class/infiniband/a/device/../../../etc/passwd",
        ] {
            assert_eq!(split(path), None, "{path}");
        }
        // As a link to a device says it.
        let path = "/sys/class/infiniband/../../devices/d/infiniband/a";
        assert_eq!(split(path), Some(("/../../devices/d/infiniband/a", None)));
    }
}
