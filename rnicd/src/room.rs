//! The memory that rnicd's own control group has room for: beyond it the kernel ends rnicd. What
//! users do with memory of ports that have ended can fill it (pages that are pinned stay charged to
//! rnicd), so that quotas alone do not keep it.

use std::fs;
use std::path::{Path, PathBuf};

/// What is left for rnicd itself.
const OWN: u64 = 32 << 20;

/// Returns whether there is room for so many octets; if not, what to do about it.
pub(crate) fn check(octets: u64) -> Result<(), String> {
    let cgroup = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    match group(&cgroup).and_then(|group| left(&group)) {
        Some(left) if left < octets + OWN => Err(format!(
            "a port takes {octets} octets, and rnicd's control group has room for {}; the administrator can raise it (MemoryMax= of \
             rnicd.service, memory limits of a container), or end ports",
            left.saturating_sub(OWN)
        )),
        _ => Ok(()),
    }
}

/// Returns the directory of a process's control group, if it is one of version 2.
fn group(cgroup: &str) -> Option<PathBuf> {
    let path = cgroup.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(Path::new("/sys/fs/cgroup").join(path))
}

/// Returns the octets that a control group has left, without what the kernel would give up of
/// files. It is `None` without a limit.
fn left(group: &Path) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(group.join(name)).ok();
    let most: u64 = read("memory.max")?.trim().parse().ok()?;
    let used: u64 = read("memory.current")?.trim().parse().ok()?;
    let stat = read("memory.stat")?;
    let files = stat.lines().filter_map(|line| {
        let (name, octets) = line.split_once(' ')?;
        let is_given_up = matches!(name, "active_file" | "inactive_file");
        is_given_up.then_some(octets.parse::<u64>().ok()?)
    });
    let used = used.saturating_sub(files.sum());
    Some(most.saturating_sub(used))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_leaves_what_files_do_not_need() {
        let group = std::env::temp_dir().join(format!("rnicd-room-{}", std::process::id()));
        fs::create_dir(&group).unwrap();
        let write = |name: &str, text: &str| fs::write(group.join(name), text).unwrap();
        assert_eq!(left(&group), None);
        write("memory.max", "1000\n");
        write("memory.current", "700\n");
        write(
            "memory.stat",
            "anon 500\nactive_file 60\ninactive_file 40\n",
        );
        assert_eq!(left(&group), Some(400));
        write("memory.current", "1100\n");
        assert_eq!(left(&group), Some(0));
        write("memory.max", "max\n");
        assert_eq!(left(&group), None);
        fs::remove_dir_all(&group).unwrap();
    }

    #[test]
    fn the_group_is_that_of_version_2() {
        let both = "4:memory:/old\n0::/system.slice/rnicd.service\n";
        let found = group(both).unwrap();
        assert_eq!(
            found,
            Path::new("/sys/fs/cgroup/system.slice/rnicd.service")
        );
        assert_eq!(group("4:memory:/old\n"), None);
    }
}
