//! Redirects that check nothing, in the place of the programs of a shared device: what the kernel's
//! chain costs alone.

use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Xdp, XdpFlags};

use self::skeleton::PlainSkelBuilder;
use crate::failure::Failure;

/// The programs, compiled from `benches/ebpf/plain.bpf.c`.
#[allow(unsafe_code, missing_docs, unreachable_pub, clippy::all)]
#[allow(clippy::undocumented_unsafe_blocks)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/plain.skel.rs"));
}

/// How the host ends of ports are called: this, the device's index, a hyphen and the port's number.
const HOST_END: &str = "rnic";

/// Both programs, with the maps of a shared device.
#[derive(Debug)]
pub(crate) struct Plain {
    inwards: OwnedFd,
    outwards: OwnedFd,
}

impl Plain {
    /// Loads the programs. The maps are pinned in a directory.
    pub(crate) fn load(maps: &Path) -> Result<Self, Failure> {
        let mut object = MaybeUninit::uninit();
        let mut open = PlainSkelBuilder::default().open(&mut object)?;
        for mut map in open.open_object_mut().maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            map.reuse_pinned_map(maps.join(name))?;
        }
        let loaded = open.load()?;
        Ok(Self {
            inwards: loaded.progs.plain_in.as_fd().try_clone_to_owned()?,
            outwards: loaded.progs.plain_out.as_fd().try_clone_to_owned()?,
        })
    }

    /// Replaces the program of the shared device. To be called in its network namespace.
    pub(crate) fn replace_steer(&self, netdev: &str) -> Result<(), Failure> {
        replace(netdev, &self.inwards)
    }

    /// Replaces the programs of all ports that there are. To be called in the network namespace of
    /// their host ends.
    pub(crate) fn replace_police(&self) -> Result<(), Failure> {
        // The directory of the thread's namespace, not of the process's.
        let devices = fs::read_to_string("/proc/thread-self/net/dev")?;
        let names = devices.lines().filter_map(|line| line.split_once(':'));
        let mut ports = 0;
        for (name, _) in names {
            let name = name.trim();
            if is_host_end(name) {
                replace(name, &self.outwards)?;
                ports += 1;
            }
        }
        // Otherwise police would be measured in their place.
        if ports == 0 {
            return Err("there is no port whose program could be replaced".into());
        }
        Ok(())
    }
}

fn is_host_end(name: &str) -> bool {
    let numbers = name
        .strip_prefix(HOST_END)
        .and_then(|rest| rest.split_once('-'));
    numbers
        .is_some_and(|(device, port)| device.parse::<u32>().is_ok() && port.parse::<u32>().is_ok())
}

fn replace(netdev: &str, program: &OwnedFd) -> Result<(), Failure> {
    let index = nix::net::if_::if_nametoindex(netdev)?;
    Xdp::new(program.as_fd()).attach(index as i32, XdpFlags::DRV_MODE)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_ends_are_told_from_the_shared_device() {
        assert!(is_host_end("rnic5-12"));
        for other in ["rnic-client", "rnic5", "rnicx-1", "lo"] {
            assert!(!is_host_end(other), "{other}");
        }
    }
}
