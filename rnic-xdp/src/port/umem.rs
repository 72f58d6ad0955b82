//! The memory that frames lie in: one UMEM per queue, on hugepages where there are any.
#![allow(unsafe_code)]

use std::error::Error;
use std::fs;
use std::io;
use std::num::NonZeroU32;

use nix::libc;
use xsk_rs::config::{FrameSize, QueueSize, UmemConfig};
use xsk_rs::umem::frame::FrameDesc;

use crate::error::OpenError;

/// Octets that the kernel keeps free in front of a frame, for XDP programs.
const XDP_HEADROOM: u32 = 256;
/// Ethernet header and two VLAN tags.
const LINK_HEADER: u32 = 14 + 2 * 4;
const HUGE_PAGE: u32 = 2 << 20;

/// Chunks of UMEM that hold one frame each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameLayout {
    /// Octets from one frame to the next.
    pub(crate) size: u32,
    /// The largest IP datagram that fits.
    pub(crate) max_mtu: u32,
}

impl FrameLayout {
    /// The smallest frames for a link's MTU. Frames of more than a page are not possible, so that a larger MTU
    /// is not used to the full.
    pub(crate) fn for_mtu(mtu: u32) -> Self {
        let layout = |size| Self {
            size,
            max_mtu: size - XDP_HEADROOM - LINK_HEADER,
        };
        let small = layout(2048);
        if mtu <= small.max_mtu {
            small
        } else {
            layout(4096)
        }
    }

    /// Octets of a frame that can be used.
    pub(crate) fn capacity(self) -> usize {
        (self.size - XDP_HEADROOM) as usize
    }
}

/// Sizes of a UMEM's own rings: powers of two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UmemRings {
    pub(crate) fill: u32,
    pub(crate) completion: u32,
}

/// A UMEM and its frames.
#[derive(Clone, Debug)]
pub(crate) struct Umem {
    umem: xsk_rs::Umem,
    layout: FrameLayout,
    huge: bool,
}

impl Umem {
    /// Makes a UMEM of at least `count` frames; returns the frames too.
    pub(crate) fn new(
        layout: FrameLayout,
        count: u32,
        rings: UmemRings,
        huge_pages: bool,
    ) -> Result<(Self, Vec<FrameDesc>), OpenError> {
        // munmap refuses part of a hugepage.
        let whole = count.next_multiple_of(HUGE_PAGE / layout.size);
        if huge_pages && huge_pages_are_2_mib() {
            // Without enough hugepages this fails, and ordinary pages are tried.
            if let Ok(made) = Self::make(layout, whole, rings, true) {
                return Ok(made);
            }
        }
        Self::make(layout, count, rings, false)
    }

    fn make(
        layout: FrameLayout,
        count: u32,
        rings: UmemRings,
        huge: bool,
    ) -> Result<(Self, Vec<FrameDesc>), OpenError> {
        let config = UmemConfig::builder()
            .frame_size(FrameSize::new(layout.size).map_err(|error| odd("frame size", error))?)
            .fill_queue_size(ring_size("fill ring", rings.fill)?)
            .comp_queue_size(ring_size("completion ring", rings.completion)?)
            .build()
            .map_err(|error| odd("frame size", error))?;
        let frames = NonZeroU32::new(count).ok_or(OpenError::Config {
            field: "frames",
            value: count.to_string(),
            rule: "at least one is needed",
        })?;
        let octets = count as usize * layout.size as usize;
        let made = xsk_rs::Umem::new(config, frames, huge);
        let (umem, mut descriptors) = made.map_err(|error| {
            let source = os_error(&error);
            match source.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => OpenError::NotPermitted {
                    doing: "open an AF_XDP socket",
                },
                Some(libc::ENOBUFS) => OpenError::LockedMemory { octets },
                _ => OpenError::Memory { octets, source },
            }
        })?;
        let umem = Self { umem, layout, huge };
        for descriptor in &mut descriptors {
            umem.set_len(descriptor, layout.capacity());
        }
        Ok((umem, descriptors))
    }

    /// The UMEM itself, to open sockets on.
    pub(crate) fn raw(&self) -> &xsk_rs::Umem {
        &self.umem
    }

    /// Whether it lies on hugepages.
    pub(crate) fn is_huge(&self) -> bool {
        self.huge
    }

    /// Which frame a descriptor, as the kernel returned it, is of.
    pub(crate) fn index(&self, descriptor: &FrameDesc) -> usize {
        descriptor.addr() / self.layout.size as usize
    }

    /// Says how many octets of a frame count.
    #[inline]
    pub(crate) fn set_len(&self, descriptor: &mut FrameDesc, len: usize) {
        // SAFETY: the descriptor is of this UMEM. The slice inside the cursor is not read or written: only the
        // length is set.
        unsafe { self.umem.data_mut(descriptor) }
            .cursor()
            .set_pos(len);
    }

    /// The octets of a frame that count.
    ///
    /// # Safety
    /// The descriptor must be of this UMEM, and nobody may write to the frame while the result lives: the kernel
    /// because the frame is in no ring that lets it, this process because of the caller.
    #[inline]
    pub(super) unsafe fn bytes<'a>(&'a self, descriptor: &FrameDesc) -> &'a [u8] {
        // SAFETY: the caller's promise.
        unsafe { self.umem.data(descriptor) }.contents()
    }

    /// The octets of a frame that count, to write.
    ///
    /// # Safety
    /// As for [`bytes`](Self::bytes), and nobody else may read the frame either.
    #[inline]
    pub(super) unsafe fn bytes_mut<'a>(&'a self, descriptor: &'a mut FrameDesc) -> &'a mut [u8] {
        let len = descriptor.lengths().data();
        // SAFETY: the caller's promise. The contents borrow from the UMEM's mapping, which lives as long as
        // `self`; only the cursor that xsk-rs hands out with them is shorter-lived.
        unsafe {
            let start = self.umem.data_mut(descriptor).contents_mut().as_mut_ptr();
            std::slice::from_raw_parts_mut(start, len)
        }
    }
}

/// A ring size, checked.
pub(crate) fn ring_size(field: &'static str, entries: u32) -> Result<QueueSize, OpenError> {
    QueueSize::new(entries).map_err(|_| OpenError::Config {
        field,
        value: entries.to_string(),
        rule: "it must be a power of two",
    })
}

fn odd(field: &'static str, error: impl std::fmt::Display) -> OpenError {
    OpenError::Config {
        field,
        value: error.to_string(),
        rule: "the kernel takes 2048 or 4096",
    }
}

/// The error number inside an error of xsk-rs.
pub(super) fn os_error(error: &(dyn Error + 'static)) -> io::Error {
    let number = error
        .source()
        .and_then(|source| source.downcast_ref::<io::Error>());
    match number.and_then(io::Error::raw_os_error) {
        Some(number) => io::Error::from_raw_os_error(number),
        None => io::Error::other(error.to_string()),
    }
}

fn huge_pages_are_2_mib() -> bool {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let size = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("Hugepagesize:"));
    size.is_some_and(|size| size.trim() == "2048 kB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_as_small_as_the_mtu_allows() {
        assert_eq!(FrameLayout::for_mtu(1500).size, 2048);
        assert_eq!(FrameLayout::for_mtu(1770).size, 2048);
        assert_eq!(FrameLayout::for_mtu(1771).size, 4096);
        assert_eq!(FrameLayout::for_mtu(9000).max_mtu, 3818);
        assert_eq!(FrameLayout::for_mtu(1500).capacity(), 1792);
    }
}
