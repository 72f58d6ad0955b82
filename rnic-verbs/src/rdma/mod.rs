//! What programs know a network interface by as an RDMA device: its name, its port, its GIDs, and
//! the files that the kernel would have of it in `/sys/class/infiniband`.

mod entry;
mod lanes;
mod netdev;

pub use entry::{Entry, entries};
pub use lanes::Lanes;
pub use netdev::{Netdev, address_of, gid_of, holder, socket_address};

/// What stands for the interface in the name of a device without one.
const ANY: &str = "any";

/// The only port of a device.
pub const PORT: u8 = 1;

/// The only partition: all members, of the default one.
pub const PKEY: u16 = 0xffff;

/// The version of the firmware. Whatever a device calls itself, this tells what it is.
pub const FIRMWARE: &str = concat!("rnic ", env!("CARGO_PKG_VERSION"));

/// What devices call themselves. Programs that connect their queue pairs themselves expect
/// InfiniBand or RoCE, and some refuse any other device. The label is all that differs: what a
/// device does is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Label {
    /// What they are.
    Iwarp,
    /// What some programs want.
    Roce,
}

/// Returns the name of the device of an interface. The interface is empty where connections may
/// take any.
pub fn device_of(netdev: &str) -> String {
    let netdev = if netdev.is_empty() { ANY } else { netdev };
    format!("rnic_{netdev}")
}
