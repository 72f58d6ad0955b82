//! Programs ahead of or behind functions of the kernel, which show what AF_XDP sockets send on a
//! device.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{Link, MapCore};

use super::skeleton::CaptureSkelBuilder;
use crate::device::steering::{Maps, hold_warnings};

/// In copy mode.
const COPIED: [&str; 1] = ["capture_copied"];
/// In zero-copy mode; all of them are needed.
const TAKEN: [&str; 3] = [
    "capture_batch_begins",
    "capture_descriptor_taken",
    "capture_batch_taken",
];

/// The programs, attached as long as this exists.
pub(super) struct Sockets {
    links: Vec<Link>,
    pub(super) maps: Maps,
    /// What they do not show, and why.
    pub(super) gaps: Vec<String>,
}

/// A device: its index, and the inode number of its network namespace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) index: u32,
    pub(super) netns: u32,
}

impl Sockets {
    /// Attaches as many of the programs as the kernel allows.
    pub(super) fn attach(netdev: &str, place: Place) -> Self {
        let mut sockets = Self {
            links: Vec::new(),
            maps: Maps::default(),
            gaps: Vec::new(),
        };
        hold_warnings();
        for (mode, function, programs) in [
            ("copy", "__dev_direct_xmit", &COPIED[..]),
            ("zero-copy", "xsk_tx_peek_desc", &TAKEN),
        ] {
            let before = sockets.links.len();
            if let Err(why) = programs
                .iter()
                .try_for_each(|name| sockets.add(name, place))
            {
                sockets.links.truncate(before);
                sockets.gaps.push(format!(
                    "what a process sends that has {netdev}, or a queue of it, for itself is not captured if it is in {mode} mode: this kernel has no \
                     program stand at its function {function} ({why}); what it receives is captured"
                ));
            }
        }
        sockets
    }

    /// Returns whether nothing at all is shown.
    pub(super) fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// Loads and attaches one program, with the maps that are there already.
    fn add(&mut self, name: &str, place: Place) -> Result<(), String> {
        let in_words = |error: libbpf_rs::Error| error.to_string();
        let mut object = MaybeUninit::uninit();
        let mut open = CaptureSkelBuilder::default()
            .open(&mut object)
            .map_err(in_words)?;
        let constants = open.maps.rodata_data.as_deref_mut();
        let constants = constants.expect("it has constants");
        constants.capture_ifindex = place.index;
        constants.capture_netns = place.netns;
        for mut program in open.open_object_mut().progs_mut() {
            let is_this = program.name() == name;
            program.set_autoload(is_this);
        }
        for mut map in open.open_object_mut().maps_mut() {
            let mut known = self.maps.iter();
            let known = known.find(|(name, _)| map.name() == *name);
            if let Some((_, known)) = known {
                map.reuse_fd(known.as_fd()).map_err(in_words)?;
            }
        }
        let loaded = open.load().map_err(in_words)?;
        let mut programs = loaded.object().progs_mut();
        let program = programs.find(|program| program.name() == name);
        let link = program.expect("it has this program").attach();
        self.links.push(link.map_err(in_words)?);
        for map in loaded.object().maps() {
            let name = map.name().to_string_lossy();
            // The headers that a program reads are its own.
            if !name.ends_with(".rodata") && name != "capture_headers" {
                let map = map.as_fd().try_clone_to_owned();
                let map = map.map_err(|error| error.to_string())?;
                self.maps.insert(name, map);
            }
        }
        Ok(())
    }
}
