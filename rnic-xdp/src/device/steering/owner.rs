//! Whose program is attached to a device.

use std::fs;
use std::path::Path;

use libbpf_rs::query::LinkInfoIter;

use super::inspect::{PROGRAM_NAME, program_info};
use crate::device::netlink::{AttachedXdp, RouteSocket, link_by_name};

/// Whose an attached program is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// Only root may know.
    Hidden,
    /// A process of rnic that has the device for itself, with its id if it can be seen.
    Process(Option<u32>),
    /// rnicd, whether it runs now or not.
    Sharing,
    /// Other software. The name of the program.
    Other(String),
}

impl Owner {
    /// Finds out whose a program is.
    pub(crate) fn of(attached: AttachedXdp) -> Self {
        let program = attached.program;
        let Some(info) = program_info(program) else {
            return Self::Hidden;
        };
        if info.name() != PROGRAM_NAME.as_bytes() {
            return Self::Other(String::from_utf8_lossy(info.name()).into_owned());
        }
        // A process that has a device for itself attaches by a link, and rnicd over netlink.
        match LinkInfoIter::default().any(|link| link.prog_id == program) {
            true => Self::Process(holder(program)),
            false => Self::Sharing,
        }
    }
}

/// Returns whether rnicd shares a device of this network namespace, or has shared it and its
/// program is there. Only root learns that.
pub fn is_shared(netdev: &str) -> bool {
    let link = RouteSocket::open().and_then(|mut socket| link_by_name(&mut socket, netdev));
    let attached = link.ok().flatten().and_then(|link| link.xdp);
    attached.is_some_and(|attached| Owner::of(attached) == Owner::Sharing)
}

/// Returns a process that has the link of a program, if this one may see it.
fn holder(program: u32) -> Option<u32> {
    let wanted = format!("prog_id:\t{program}\n");
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let numbers = processes.filter_map(|process| process.file_name().to_str()?.parse().ok());
    numbers.into_iter().find(|pid| has_link(*pid, &wanted))
}

fn has_link(pid: u32, wanted: &str) -> bool {
    let directory = Path::new("/proc").join(pid.to_string()).join("fdinfo");
    let files = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut texts = files.filter_map(|file| fs::read_to_string(file.path()).ok());
    texts.any(|text| text.contains("link_type:") && text.contains(wanted))
}
