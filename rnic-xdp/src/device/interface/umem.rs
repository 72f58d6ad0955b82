//! The memory of frames: one UMEM per queue, on hugepages if there are any.
#![allow(unsafe_code)]

use std::error::Error;
use std::fs;
use std::io;
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::{ptr, slice};

use memmap2::{MmapOptions, MmapRaw};
use nix::libc;
use xsk_rs::config::{FrameSize, QueueSize, UmemConfig};
use xsk_rs::umem::frame::FrameDesc;

use super::children;
use crate::device::drivers::{LINK_HEADER, XDP_HEADROOM};
use crate::device::error::OpenError;

const HUGE_PAGE: u32 = 2 << 20;

/// The layout of frames in chunks of UMEM.
///
/// A frame to be sent is contiguous in as many adjacent chunks as it needs. A received one
/// continues in each of its chunks after the headroom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameLayout {
    /// Octets from one chunk to the next.
    pub(crate) chunk: u32,
    /// Chunks of the longest frame.
    pub(crate) chunks: u32,
}

impl FrameLayout {
    /// The sizes of a chunk, the smallest first. The kernel has none of more than a page.
    pub(crate) const CHUNKS: [u32; 2] = [2048, 4096];
    /// The most chunks of a frame: the kernel copies it to a packet with a linear part and 17
    /// fragments.
    pub(super) const MAX_CHUNKS: u32 = 17;

    /// Returns the smallest chunks for a link's MTU, and as many as it needs.
    pub(crate) fn for_mtu(mtu: u32) -> Self {
        let small = Self::in_one_chunk(mtu);
        if mtu <= small.max_mtu() {
            return small;
        }
        let octets = u64::from(mtu) + u64::from(XDP_HEADROOM + LINK_HEADER);
        Self {
            chunks: octets
                .div_ceil(u64::from(small.chunk))
                .min(u64::from(Self::MAX_CHUNKS)) as u32,
            ..small
        }
    }

    /// Returns the layout without frames of several chunks. A larger MTU is not used in full.
    pub(crate) fn in_one_chunk(mtu: u32) -> Self {
        let [small, large] = Self::CHUNKS.map(|chunk| Self { chunk, chunks: 1 });
        if mtu <= small.max_mtu() { small } else { large }
    }

    /// Returns the number of octets from one frame to be sent to the next.
    pub(crate) fn stride(self) -> usize {
        self.chunk as usize * self.chunks as usize
    }

    /// Returns the number of octets of a frame to be sent.
    pub(crate) fn capacity(self) -> usize {
        self.stride() - XDP_HEADROOM as usize
    }

    /// Returns the largest IP datagram that fits.
    pub(crate) fn max_mtu(self) -> u32 {
        self.chunk * self.chunks - XDP_HEADROOM - LINK_HEADER
    }
}

/// Returns the largest MTU that is used in full without frames of several chunks.
pub(crate) fn largest_mtu_in_one_chunk() -> u32 {
    FrameLayout::in_one_chunk(u32::MAX).max_mtu()
}

/// Sizes of a UMEM's own rings: powers of two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UmemRings {
    pub(crate) fill: u32,
    pub(crate) completion: u32,
}

/// A UMEM.
#[derive(Clone, Debug)]
pub(crate) struct Umem {
    memory: Memory,
    /// Where its mapping begins, and how long it is.
    start: usize,
    octets: usize,
    huge: bool,
}

/// The owner of the mapping.
#[derive(Clone, Debug)]
enum Memory {
    /// The kernel knows it as a UMEM.
    Registered(xsk_rs::Umem),
    /// A socket registers it when it is opened.
    Plain(#[allow(dead_code)] Arc<MmapRaw>),
}

impl Umem {
    /// Makes a UMEM of at least `count` chunks.
    pub(crate) fn new(
        layout: FrameLayout,
        count: u32,
        rings: UmemRings,
        huge_pages: bool,
    ) -> Result<Self, OpenError> {
        Self::on_pages(layout, count, huge_pages, |count, huge| {
            Self::make(layout, count, rings, huge)
        })
    }

    /// Makes one for a socket that is not opened by xsk-rs and registers it.
    pub(super) fn unregistered(
        layout: FrameLayout,
        count: u32,
        huge_pages: bool,
    ) -> Result<Self, OpenError> {
        Self::on_pages(layout, count, huge_pages, |count, huge| {
            let octets = count as usize * layout.chunk as usize;
            let mut options = MmapOptions::new();
            if huge {
                options.huge(Some(HUGE_PAGE.ilog2() as u8));
            }
            let map = options.len(octets).populate().map_anon();
            let map = map.map_err(|source| OpenError::Memory { octets, source })?;
            Ok(Self::plain(map.into(), octets, huge))
        })
    }

    /// Maps one whose memory another process may map too. `memory` must have the octets for as long
    /// as it is mapped: nobody may be able to shorten it.
    pub(super) fn map(memory: &OwnedFd, octets: usize, huge: bool) -> io::Result<Self> {
        let map = MmapOptions::new().len(octets).populate().map_raw(memory)?;
        Ok(Self::plain(map, octets, huge))
    }

    fn plain(map: MmapRaw, octets: usize, huge: bool) -> Self {
        let start = map.as_mut_ptr().expose_provenance();
        Self::with(Memory::Plain(Arc::new(map)), (start, octets), huge)
    }

    fn with(memory: Memory, (start, octets): (usize, usize), huge: bool) -> Self {
        // SAFETY: it is this mapping, which `memory` owns.
        unsafe { children::do_not_get(start, octets) };
        Self {
            memory,
            start,
            octets,
            huge,
        }
    }

    /// Allocates chunks, on hugepages if there are any, with more chunks to fill the last page.
    fn on_pages(
        layout: FrameLayout,
        count: u32,
        huge_pages: bool,
        make: impl Fn(u32, bool) -> Result<Self, OpenError>,
    ) -> Result<Self, OpenError> {
        // munmap refuses part of a hugepage.
        let whole = count.next_multiple_of(HUGE_PAGE / layout.chunk);
        if huge_pages && huge_pages_are_2_mib() {
            // Without enough hugepages this fails, and ordinary pages are tried.
            if let Ok(made) = make(whole, true) {
                return Ok(made);
            }
        }
        make(count, false)
    }

    fn make(
        layout: FrameLayout,
        count: u32,
        rings: UmemRings,
        huge: bool,
    ) -> Result<Self, OpenError> {
        let config = UmemConfig::builder()
            .frame_size(
                FrameSize::new(layout.chunk).map_err(|error| refused_size("frame size", error))?,
            )
            .fill_queue_size(ring_size("fill ring", rings.fill)?)
            .comp_queue_size(ring_size("completion ring", rings.completion)?)
            .build()
            .map_err(|error| refused_size("frame size", error))?;
        let frames = NonZeroU32::new(count).ok_or(OpenError::Config {
            field: "frames",
            value: count.to_string(),
            rule: "at least one is needed",
        })?;
        let octets = count as usize * layout.chunk as usize;
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
        let start = descriptors
            .first_mut()
            .map_or(0, |first| start(&umem, first));
        Ok(Self::with(Memory::Registered(umem), (start, octets), huge))
    }

    /// Returns the UMEM for xsk-rs to open a socket on. Returns `None` if the socket is to register
    /// it.
    pub(super) fn registered(&self) -> Option<&xsk_rs::Umem> {
        match &self.memory {
            Memory::Registered(umem) => Some(umem),
            Memory::Plain(_) => None,
        }
    }

    /// Returns where it begins in this process, and how long it is.
    pub(super) fn area(&self) -> (usize, usize) {
        (self.start, self.octets)
    }

    /// Returns whether it lies on hugepages.
    pub(crate) fn is_huge(&self) -> bool {
        self.huge
    }

    /// Returns `len` octets at an address, in any number of chunks.
    ///
    /// # Safety
    /// They must be of this UMEM, and must not be written to while the result lives: the kernel
    /// because the chunks are in no ring that lets it, this process because of the caller.
    #[inline]
    pub(super) unsafe fn run(&self, address: usize, len: usize) -> &[u8] {
        debug_assert!(address + len <= self.octets);
        // SAFETY: the octets are of the mapping, which lives as long as `self`; the rest is the
        // caller's promise.
        unsafe { slice::from_raw_parts(self.at(address), len) }
    }

    /// Returns `len` octets at an address to write to.
    ///
    /// # Safety
    /// Nobody else may read or write them while the result lives.
    #[inline]
    #[allow(clippy::mut_from_ref)] // the caller's promise
    pub(super) unsafe fn run_mut(&self, address: usize, len: usize) -> &mut [u8] {
        debug_assert!(address + len <= self.octets);
        // SAFETY: as for `run`.
        unsafe { slice::from_raw_parts_mut(self.at(address), len) }
    }

    fn at(&self, address: usize) -> *mut u8 {
        // The kernel made the mapping: whatever it covers may be reached from its address.
        ptr::with_exposed_provenance_mut(self.start + address)
    }
}

/// Returns where the mapping of a UMEM begins, by one of its descriptors.
fn start(umem: &xsk_rs::Umem, descriptor: &mut FrameDesc) -> usize {
    let address = descriptor.addr();
    // SAFETY: the descriptor is of this UMEM, and no octet is read or written: only the address
    // counts.
    let data = unsafe { umem.data_mut(descriptor) }
        .contents_mut()
        .as_mut_ptr();
    data.expose_provenance() - address
}

/// Checks a ring size.
pub(crate) fn ring_size(field: &'static str, entries: u32) -> Result<QueueSize, OpenError> {
    QueueSize::new(entries).map_err(|_| OpenError::Config {
        field,
        value: entries.to_string(),
        rule: "it must be a power of two",
    })
}

fn refused_size(field: &'static str, error: impl std::fmt::Display) -> OpenError {
    OpenError::Config {
        field,
        value: error.to_string(),
        rule: "the kernel takes 2048 or 4096",
    }
}

/// Returns the error number inside an error of xsk-rs.
pub(super) fn os_error(error: &(dyn Error + 'static)) -> io::Error {
    let number = error
        .source()
        .and_then(|source| source.downcast_ref::<io::Error>());
    match number.and_then(io::Error::raw_os_error) {
        Some(number) => io::Error::from_raw_os_error(number),
        None => io::Error::other(error.to_string()),
    }
}

pub(super) fn huge_pages_are_2_mib() -> bool {
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
        let layout = |mtu| {
            let layout = FrameLayout::for_mtu(mtu);
            assert!(
                layout.max_mtu() >= mtu.min(0xffff),
                "{mtu}: {}",
                layout.max_mtu()
            );
            (layout.chunk, layout.chunks)
        };
        assert_eq!(layout(1500), (2048, 1));
        assert_eq!(layout(1770), (2048, 1));
        assert_eq!(layout(1771), (4096, 1));
        assert_eq!(layout(3818), (4096, 1));
        assert_eq!(layout(3819), (4096, 2));
        assert_eq!(layout(9000), (4096, 3));
        assert_eq!(layout(65535), (4096, 17));
        assert_eq!(layout(u32::MAX), (4096, 17));
        assert_eq!(FrameLayout::in_one_chunk(9000).max_mtu(), 3818);
        assert_eq!(FrameLayout::for_mtu(1500).capacity(), 1792);
    }
}
