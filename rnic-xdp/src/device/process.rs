//! What this process may do.

use std::fs;

pub(crate) const CAP_SYS_ADMIN: u32 = 21;
pub(crate) const CAP_PERFMON: u32 = 38;
pub(crate) const CAP_BPF: u32 = 39;

/// Returns the capabilities in effect, a bit each.
pub(crate) fn effective_capabilities() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0)
}

pub(crate) fn has(capabilities: u64, bit: u32) -> bool {
    capabilities >> bit & 1 != 0
}

/// Returns whether these are what the kernel demands for our programs. Without CAP_PERFMON its
/// verifier refuses what they do with pointers, and says so in words of its own.
pub(crate) fn may_load_programs(capabilities: u64) -> bool {
    let both = has(capabilities, CAP_BPF) && has(capabilities, CAP_PERFMON);
    both || has(capabilities, CAP_SYS_ADMIN)
}
