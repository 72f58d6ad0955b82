//! What network drivers demand of XDP and AF_XDP by their sources, and the kernel does not state.
//! `docs/nics.md` names the sources.

use std::fs;

use crate::device::netlink::Link;

/// Octets that the kernel keeps free in front of a frame in its chunk of UMEM, for XDP programs.
pub(crate) const XDP_HEADROOM: u32 = 256;
/// Ethernet header and two VLAN tags.
pub(crate) const LINK_HEADER: u32 = 14 + 2 * 4;
/// The frame check sequence, which some devices write too, and for which the kernel demands room.
const FCS: u32 = 4;
/// `struct skb_shared_info`, aligned.
const SHARED_INFO: u32 = 320;

/// What a driver demands. All numbers are octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Driver {
    name: &'static str,
    zero_copy: Chunks,
    /// The largest MTU at which it takes a program for frames of several buffers, if that is less
    /// than the device's own.
    native_mtu: Option<u32>,
    /// The largest MTU at which frames survive in receive buffers that were posted before a program
    /// was attached, if that is less than the device's own.
    old_buffers_mtu: Option<u32>,
    /// What becomes of LRO and hardware GRO when a program is attached.
    pub(crate) merging: Merging,
    /// Faults of its zero-copy mode that were seen or reported.
    pub(crate) faulty_zero_copy: bool,
}

/// The room for a frame in a chunk of UMEM in zero-copy mode. A longer frame is lost, or split into
/// what is not a frame: the kernel's own frames too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chunks {
    Room {
        /// What the device is told to write into a chunk is rounded down to a multiple of this.
        unit: u32,
        /// Of that, the device or the driver has something else for so many.
        less: u32,
        /// No device writes more.
        most: u32,
        /// The smallest chunk that is worth using.
        smallest: u32,
    },
    /// Zero-copy does not work, for this reason.
    Unusable(&'static str),
}

/// What a driver does about offloads that merge received segments, when a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Merging {
    /// It turns them off.
    TurnsOff,
    /// It refuses the program.
    Refuses,
    /// They go on ahead of the program, or the driver has not been read.
    GoesOn,
}

/// The buffer of a frame is what a chunk holds behind the headroom.
const WHOLE: Chunks = Chunks::Room {
    unit: 128,
    less: 0,
    most: u32::MAX,
    smallest: 2048,
};

/// igb, igc and the 82599 count buffers in KiB. igc, with timestamps, puts 16 octets in front of a
/// frame.
const WHOLE_KIB: Chunks = Chunks::Room {
    unit: 1024,
    less: 16,
    most: u32::MAX,
    smallest: 2048,
};

/// A driver that nobody has read: what the strictest of those that were read demands.
const UNKNOWN: Driver = Driver {
    name: "",
    zero_copy: WHOLE_KIB,
    native_mtu: None,
    old_buffers_mtu: None,
    merging: Merging::GoesOn,
    faulty_zero_copy: false,
};

const DRIVERS: [Driver; 16] = [
    Driver {
        native_mtu: Some(3046),
        faulty_zero_copy: true,
        ..driver("igb", WHOLE_KIB)
    },
    Driver {
        native_mtu: Some(1500),
        ..driver("igc", WHOLE_KIB)
    },
    Driver {
        native_mtu: Some(3046),
        merging: Merging::Refuses,
        ..driver("ixgbe", WHOLE_KIB)
    },
    Driver {
        native_mtu: Some(9702),
        faulty_zero_copy: true,
        ..driver("i40e", WHOLE)
    },
    Driver {
        native_mtu: Some(9702),
        faulty_zero_copy: true,
        ..driver("ice", ICE)
    },
    driver("idpf", WHOLE),
    Driver {
        merging: Merging::Refuses,
        ..driver("mlx5_core", WHOLE_PAGES)
    },
    Driver {
        old_buffers_mtu: Some(3506),
        merging: Merging::TurnsOff,
        ..driver("virtio_net", WHOLE)
    },
    Driver {
        native_mtu: Some(2034),
        merging: Merging::Refuses,
        ..driver("gve", WHOLE)
    },
    Driver {
        native_mtu: Some(3370),
        ..driver("nfp", NFP)
    },
    driver("rvu_nicpf", OUT_OF_RSS),
    driver("rvu_nicvf", OUT_OF_RSS),
    Driver {
        native_mtu: Some(3498),
        ..driver("ena", WHOLE)
    },
    Driver {
        native_mtu: Some(3506),
        merging: Merging::Refuses,
        ..driver("hv_netvsc", WHOLE)
    },
    Driver {
        native_mtu: Some(3506),
        ..driver("mana", WHOLE)
    },
    Driver {
        native_mtu: Some(3494),
        merging: Merging::TurnsOff,
        ..driver("vmxnet3", WHOLE)
    },
];

/// It keeps the buffers of its last ordinary configuration, which are no longer than this.
const ICE: Chunks = Chunks::Room {
    unit: 128,
    less: 0,
    most: 3456,
    smallest: 2048,
};

/// Smaller chunks than a page are mapped one by one, which its log calls slow.
const WHOLE_PAGES: Chunks = Chunks::Room {
    unit: 128,
    less: 0,
    most: u32::MAX,
    smallest: 4096,
};

/// It counts the headroom twice, and 64 octets of its own.
const NFP: Chunks = Chunks::Room {
    unit: 128,
    less: 320,
    most: u32::MAX,
    smallest: 2048,
};

const OUT_OF_RSS: Chunks = Chunks::Unusable(
    "its driver takes queues with zero-copy sockets out of RSS, so that nothing arrives",
);

const fn driver(name: &'static str, zero_copy: Chunks) -> Driver {
    Driver {
        name,
        zero_copy,
        ..UNKNOWN
    }
}

impl Driver {
    /// Returns what the driver of a device demands.
    pub(crate) fn of(link: &Link) -> Self {
        driver_name(link).map_or(UNKNOWN, |name| Self::named(&name))
    }

    pub(crate) fn named(name: &str) -> Self {
        let known = DRIVERS.iter().find(|driver| driver.name == name);
        known.copied().unwrap_or(UNKNOWN)
    }

    /// Returns the octets of a frame that a device writes into a chunk in zero-copy mode: a frame
    /// in one chunk, or each chunk of a frame in several. It is 0 for chunks that are too small for
    /// the driver.
    pub(crate) fn zero_copy_room(self, chunk: u32, several: bool) -> Result<u32, &'static str> {
        match self.zero_copy {
            Chunks::Unusable(why) => Err(why),
            Chunks::Room { smallest, .. } if chunk < smallest => Ok(0),
            Chunks::Room {
                unit, less, most, ..
            } => {
                // The kernel keeps room behind each chunk of a frame in several, for what it notes
                // about it.
                let behind = if several { SHARED_INFO } else { 0 };
                let room = (chunk - XDP_HEADROOM - behind) / unit * unit;
                Ok(room.saturating_sub(less).min(most))
            }
        }
    }

    /// Returns why the driver refuses an XDP program at an MTU, if it does so by a rule of its own.
    pub(crate) fn refuses_xdp_at(self, mtu: u32) -> Option<String> {
        let largest = self.native_mtu.filter(|largest| mtu > *largest)?;
        Some(format!(
            "{} takes XDP programs at an MTU of at most {largest}, and it is {mtu}",
            self.name
        ))
    }

    /// Returns whether frames of an MTU are lost in receive buffers that were posted before a
    /// program was attached.
    pub(crate) fn loses_in_old_buffers(self, mtu: u32) -> bool {
        self.old_buffers_mtu.is_some_and(|largest| mtu > largest)
    }
}

/// Returns the octets of the longest frame of an MTU, as a device counts them.
pub(crate) fn longest_frame(mtu: u32) -> u32 {
    mtu + LINK_HEADER + FCS
}

/// Returns the driver of a hardware device, or the kind of a virtual one.
pub(crate) fn driver_name(link: &Link) -> Option<String> {
    let of_hardware = |(bus, name): &(String, String)| {
        let driver = fs::read_link(format!("/sys/bus/{bus}/devices/{name}/driver")).ok()?;
        Some(driver.file_name()?.to_string_lossy().into_owned())
    };
    link.hardware
        .as_ref()
        .and_then(of_hardware)
        .or(link.kind.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_holds_what_the_driver_makes_of_it() {
        let rooms = |name| {
            let driver = Driver::named(name);
            [2048, 4096].map(|chunk| driver.zero_copy_room(chunk, false).unwrap())
        };
        assert_eq!(rooms("igb"), [1008, 3056]);
        assert_eq!(rooms("virtio_net"), [1792, 3840]);
        assert_eq!(rooms("ice"), [1792, 3456]);
        assert_eq!(rooms("mlx5_core"), [0, 3840]);
        assert_eq!(rooms("nfp"), [1472, 3520]);
        // A driver that nobody has read is taken for the strictest.
        assert_eq!(rooms("nosuch"), [1008, 3056]);
        assert_eq!(Driver::named("i40e").zero_copy_room(4096, true), Ok(3456));
        assert!(
            Driver::named("rvu_nicpf")
                .zero_copy_room(4096, false)
                .is_err()
        );
        assert_eq!(longest_frame(1500), 1526);
    }

    #[test]
    fn a_driver_with_a_limit_is_named_with_it() {
        let igb = Driver::named("igb");
        assert_eq!(igb.refuses_xdp_at(3046), None);
        let why = igb.refuses_xdp_at(9000).unwrap();
        for part in ["igb", "3046", "9000"] {
            assert!(why.contains(part), "{why}");
        }
        let virtio = Driver::named("virtio_net");
        assert_eq!(virtio.refuses_xdp_at(9000), None);
        assert!(virtio.loses_in_old_buffers(9000) && !virtio.loses_in_old_buffers(1500));
        assert!(!igb.loses_in_old_buffers(9000));
    }

    #[test]
    fn each_driver_stands_once_in_the_table() {
        let names = DRIVERS.map(|driver| driver.name);
        let different: std::collections::BTreeSet<_> = names.into_iter().collect();
        assert_eq!(different.len(), DRIVERS.len());
    }
}
