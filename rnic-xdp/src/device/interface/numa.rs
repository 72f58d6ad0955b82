//! NUMA: memory on the node of the device, and the CPUs there.
#![allow(unsafe_code)]

use std::fs;

use nix::libc;
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

use crate::device::netlink::Link;

/// The number of nodes in a mask: the most that the kernel can have.
const MAX_NODES: usize = 1024;
const WORD_BITS: usize = libc::c_ulong::BITS as usize;
const MPOL_DEFAULT: libc::c_int = 0;
const MPOL_PREFERRED: libc::c_int = 1;

/// Returns the node of a device. Returns none if the host has only one, or the device is virtual.
pub(crate) fn node_of(link: &Link) -> Option<u32> {
    let (bus, device) = link.hardware.as_ref()?;
    let node = fs::read_to_string(format!("/sys/bus/{bus}/devices/{device}/numa_node")).ok()?;
    // -1 if the firmware does not state it.
    node.trim().parse().ok()
}

/// Returns the CPUs near a device ([`InterfaceReport::numa_node`](crate::InterfaceReport)) on which
/// this thread may run (`taskset`, cpusets); if there are none, or no node is stated, all on which
/// it may run.
pub fn cpus_near(node: Option<u32>) -> Vec<usize> {
    let list = match node {
        Some(node) => format!("/sys/devices/system/node/node{node}/cpulist"),
        None => "/sys/devices/system/cpu/online".to_string(),
    };
    let near = numbers(&fs::read_to_string(list).unwrap_or_default());
    let Ok(allowed) = sched_getaffinity(Pid::from_raw(0)) else {
        return near;
    };
    let may = |cpu: &usize| allowed.is_set(*cpu).unwrap_or(false);
    let near: Vec<_> = near.into_iter().filter(may).collect();
    match near.is_empty() {
        true => (0..CpuSet::count()).filter(may).collect(),
        false => near,
    }
}

/// Returns the numbers of a list such as "0-3,8".
fn numbers(list: &str) -> Vec<usize> {
    let ranges = list.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse().ok()?..=last.parse().ok()?)
    });
    ranges.flatten().collect()
}

type Mask = [libc::c_ulong; MAX_NODES / WORD_BITS];

/// The policy by which the kernel allocates memory for this thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MemoryPolicy {
    mode: libc::c_int,
    nodes: Mask,
}

impl MemoryPolicy {
    fn preferring(node: u32) -> Option<Self> {
        let node = node as usize;
        let mut nodes = [0; MAX_NODES / WORD_BITS];
        *nodes.get_mut(node / WORD_BITS)? = 1 << (node % WORD_BITS);
        Some(Self {
            mode: MPOL_PREFERRED,
            nodes,
        })
    }

    fn of_this_thread() -> Option<Self> {
        let mut policy = Self {
            mode: MPOL_DEFAULT,
            nodes: [0; MAX_NODES / WORD_BITS],
        };
        // SAFETY: the kernel writes a number and a mask of `MAX_NODES` bits, which both have room
        // for. It is asked for the policy of the thread, and so reads no address.
        let result = unsafe {
            libc::syscall(
                libc::SYS_get_mempolicy,
                &mut policy.mode,
                policy.nodes.as_mut_ptr(),
                MAX_NODES,
                0,
                0,
            )
        };
        (result == 0).then_some(policy)
    }

    /// Sets it for this thread. Kernels without NUMA refuse, and need none.
    fn set(&self) {
        let nodes = if self.mode == MPOL_DEFAULT {
            std::ptr::null()
        } else {
            self.nodes.as_ptr()
        };
        // SAFETY: the kernel reads a mask of `MAX_NODES` bits (it does not count the last), or
        // none.
        let _ = unsafe { libc::syscall(libc::SYS_set_mempolicy, self.mode, nodes, MAX_NODES) };
    }
}

/// Runs a function whose memory is allocated on a node, as long as that has some.
pub(crate) fn on_node<T>(node: Option<u32>, make: impl FnOnce() -> T) -> T {
    let policies = node
        .and_then(MemoryPolicy::preferring)
        .zip(MemoryPolicy::of_this_thread());
    let Some((preferring, before)) = policies else {
        return make();
    };
    preferring.set();
    let made = make();
    before.set();
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_read() {
        assert_eq!(numbers("0-3,8,10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(numbers("0\n"), [0]);
        assert_eq!(numbers(""), [0; 0]);
        assert!(!cpus_near(None).is_empty());
    }

    #[test]
    fn only_cpus_that_the_process_may_use_are_near() {
        std::thread::spawn(|| {
            let all = cpus_near(None);
            for cpu in [all[0], *all.last().unwrap()] {
                let mut only = CpuSet::new();
                only.set(cpu).unwrap();
                nix::sched::sched_setaffinity(Pid::from_raw(0), &only).unwrap();
                assert_eq!(cpus_near(None), [cpu]);
                // A node of which it may use none.
                assert_eq!(cpus_near(Some(MAX_NODES as u32)), [cpu]);
            }
        })
        .join()
        .unwrap();
    }

    #[test]
    #[cfg_attr(not(numa), ignore = "needs a kernel with NUMA")]
    fn a_node_is_preferred_for_as_long_as_something_is_made_there() {
        let before = MemoryPolicy::of_this_thread().unwrap();
        let during = on_node(Some(0), MemoryPolicy::of_this_thread);
        assert_eq!(during, MemoryPolicy::preferring(0));
        assert_ne!(during, Some(before));
        assert_eq!(MemoryPolicy::of_this_thread(), Some(before));
        // No device names such a node, and nothing is changed for it.
        assert_eq!(on_node(Some(MAX_NODES as u32), || 7), 7);
        assert_eq!(on_node(None, MemoryPolicy::of_this_thread), Some(before));
    }
}
