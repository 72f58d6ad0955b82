//! Receive buffers that the driver posted before the program was attached.

use tracing::warn;

use crate::device::drivers::Driver;
use crate::device::netlink::{Generic, Link, NetlinkError};

/// Lets the driver post its receive buffers anew where frames are lost in the old ones. They have
/// no room for a program in front of a frame; virtio_net copies the first buffer of such a frame to
/// make room, and drops the frame if a page does not hold both.
pub(super) fn renew(link: &Link) {
    if !Driver::of(link).loses_in_old_buffers(link.mtu) {
        return;
    }
    if let Err(error) = resize_and_restore(link.index) {
        warn!(
            "{}: frames of more than 3520 octets are lost until each receive buffer of its queues has been used once: {error}; \
             if `ethtool -g {0}` shows another RX than before, set that with `ethtool -G {0} rx N`",
            link.name
        );
    }
}

/// Changes the size of the receive rings, and restores it: the driver posts all buffers when that
/// changes.
fn resize_and_restore(link: u32) -> Result<(), NetlinkError> {
    let mut ethtool = Generic::open()?;
    let size = ethtool.receive_ring(link)?;
    ethtool.set_receive_ring(link, size / 2)?;
    ethtool.set_receive_ring(link, size)
}
