//! A share of one processor's time for a process: a control group with a CPU quota.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::id;

use crate::failure::Failure;

/// Where control groups are: of the second version, and the CPU controller of the first.
const UNIFIED: &str = "/sys/fs/cgroup";
const CPU: &str = "/sys/fs/cgroup/cpu";
/// How often the quota is given anew, in microseconds.
const PERIOD: u32 = 100_000;

/// A control group. It is removed when this is dropped; its process must have ended.
pub(super) struct Quota(PathBuf);

impl Quota {
    /// Limits a process to so many hundredths of one processor's time.
    pub(super) fn give(process: u32, hundredths: u32) -> Result<Self, Failure> {
        let quota = hundredths * PERIOD / 100;
        let name = format!("rnic-bench-{}", id());
        let group = match is_unified() {
            true => {
                write(&Path::new(UNIFIED).join("cgroup.subtree_control"), "+cpu")?;
                let group = Self::make(Path::new(UNIFIED).join(name))?;
                write(&group.0.join("cpu.max"), &format!("{quota} {PERIOD}"))?;
                group
            }
            false => {
                let group = Self::make(Path::new(CPU).join(name))?;
                write(&group.0.join("cpu.cfs_period_us"), &PERIOD.to_string())?;
                write(&group.0.join("cpu.cfs_quota_us"), &quota.to_string())?;
                group
            }
        };
        write(&group.0.join("cgroup.procs"), &process.to_string())?;
        Ok(group)
    }

    fn make(path: PathBuf) -> Result<Self, Failure> {
        fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// Returns whether this host has control groups with CPU quotas.
pub(crate) fn are_there() -> bool {
    is_unified() || Path::new(CPU).join("cpu.cfs_quota_us").exists()
}

fn is_unified() -> bool {
    let controllers = fs::read_to_string(Path::new(UNIFIED).join("cgroup.controllers"));
    controllers.is_ok_and(|all| all.split_whitespace().any(|one| one == "cpu"))
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    Ok(fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?)
}
