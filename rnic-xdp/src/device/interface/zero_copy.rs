//! Whether frames go between the device and the UMEM without copying, and in which chunks.

use std::fmt;
use std::io;

use nix::errno::Errno;

use super::umem::FrameLayout;
use crate::device::drivers::{Driver, longest_frame};
use crate::device::netlink::XdpFeatures;

/// Whether a port copies frames between the device and the UMEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ZeroCopy {
    /// It does not copy, on any queue.
    On,
    /// It copies, for this reason.
    Off(String),
}

impl fmt::Display for ZeroCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::On => f.write_str("zero-copy"),
            Self::Off(why) => write!(f, "copy ({why})"),
        }
    }
}

impl ZeroCopy {
    /// Returns what a refusal by the kernel or the driver means.
    pub(super) fn refused(error: &io::Error) -> Self {
        let words = error.raw_os_error().map(Errno::from_raw).map(Errno::desc);
        Self::Off(match words {
            Some(words) => format!("the driver refused zero-copy: {words}"),
            None => format!("the driver refused zero-copy: {error}"),
        })
    }
}

/// Returns the layout of frames in which a device can do without copying at an MTU, or why there is
/// none. A device that writes less into a chunk than a frame needs would lose the frame, and with
/// it the kernel's own.
pub(crate) fn zero_copy_layout(
    driver: Driver,
    features: XdpFeatures,
    mtu: u32,
    multi_buffer: bool,
) -> Result<FrameLayout, String> {
    if !features.zero_copy() {
        return Err("the driver has no zero-copy".to_string());
    }
    if let Some(why) = driver.refuses_xdp_at(mtu) {
        return Err(why);
    }
    let frame = longest_frame(mtu);
    for chunk in FrameLayout::CHUNKS {
        if frame <= driver.zero_copy_room(chunk, false)? {
            return Ok(FrameLayout { chunk, chunks: 1 });
        }
    }
    let layout = FrameLayout::for_mtu(mtu);
    let room = driver.zero_copy_room(layout.chunk, true)?;
    let (needed, taken) = (frame.div_ceil(room), features.zero_copy_segments.max(1));
    if !multi_buffer || layout.chunks == 1 || needed > taken {
        return Err(format!(
            "a frame of MTU {mtu} needs {needed} buffers of {room} octets, and the driver takes {taken}"
        ));
    }
    Ok(layout)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZERO_COPY: u64 = 0x8;

    fn layout(driver: &str, segments: u32, mtu: u32) -> Result<(u32, u32), String> {
        let features = XdpFeatures::of(ZERO_COPY, segments);
        let layout = zero_copy_layout(Driver::named(driver), features, mtu, true)?;
        Ok((layout.chunk, layout.chunks))
    }

    #[test]
    fn a_full_frame_has_room_in_what_the_driver_makes_of_a_chunk() {
        assert_eq!(layout("virtio_net", 1, 1500), Ok((2048, 1)));
        assert_eq!(layout("virtio_net", 1, 1766), Ok((2048, 1)));
        assert_eq!(layout("virtio_net", 1, 1767), Ok((4096, 1)));
        assert_eq!(layout("igb", 1, 982), Ok((2048, 1)));
        assert_eq!(layout("igb", 1, 983), Ok((4096, 1)));
        assert_eq!(layout("igb", 1, 1500), Ok((4096, 1)));
        assert_eq!(layout("mlx5_core", 1, 1500), Ok((4096, 1)));
        assert_eq!(layout("nobody_has_read", 1, 1500), Ok((4096, 1)));
        assert_eq!(layout("i40e", 8, 9000), Ok((4096, 3)));
    }

    #[test]
    fn a_frame_without_room_is_copied_with_the_reason() {
        for (driver, segments, mtu, reason) in [
            ("igb", 1, 3040, "the driver takes 1"),
            ("igb", 1, 9000, "at most 3046"),
            ("virtio_net", 1, 9000, "needs 3 buffers"),
            (
                "i40e",
                2,
                9000,
                "needs 3 buffers of 3456 octets, and the driver takes 2",
            ),
            ("ice", 8, 3500, "needs 2 buffers"),
            ("rvu_nicpf", 1, 1500, "out of RSS"),
        ] {
            let why = layout(driver, segments, mtu).unwrap_err();
            assert!(why.contains(reason), "{driver} at {mtu}: {why}");
        }
        let without = zero_copy_layout(Driver::named("ena"), XdpFeatures::of(0x3, 1), 1500, true);
        assert_eq!(without, Err("the driver has no zero-copy".into()));
    }
}
