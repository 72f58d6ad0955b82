//! XDP modes: in the driver, or in the kernel's stack.

use std::io;

use nix::libc;
pub use rnic_manager::Mode;

use super::below::Below;
use super::buffers;
use super::occupied::occupied_now;
use super::stack::{Stack, for_kernels, joins_kernels};
use crate::device::drivers::Driver;
use crate::device::error::OpenError;
use crate::device::netlink::{Link, NetlinkError, XdpMode};

/// Which XDP mode to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModeChoice {
    /// Native, or generic if the driver has no XDP.
    #[default]
    Auto,
    /// In the driver only.
    Native,
    /// In the kernel's stack: works with every device, slower on real NICs.
    Generic,
}

impl ModeChoice {
    /// Returns the choice of a mode and no other.
    pub(crate) fn only(mode: &Mode) -> Self {
        match mode {
            Mode::Native => Self::Native,
            Mode::Generic { .. } => Self::Generic,
        }
    }
}

/// Attaches a program by `attach_in`, in the first mode that the choice and the device allow.
/// Returns what that made.
pub(crate) fn attach_in_mode<T>(
    link: &Link,
    choice: ModeChoice,
    attach_in: impl Fn(XdpMode) -> io::Result<T>,
) -> Result<(T, Mode), OpenError> {
    let below = Below::of(link)?;
    let reason = match (choice, &below) {
        (ModeChoice::Generic, _) => "as configured".to_string(),
        (ModeChoice::Auto, Some(below)) => below.reason(),
        (ModeChoice::Native, Some(below)) => {
            return Err(OpenError::IsMaster {
                netdev: link.name.clone(),
                reason: below.reason(),
                below: below.names(),
            });
        }
        (ModeChoice::Native | ModeChoice::Auto, None) => match attach_in(XdpMode::Driver) {
            Ok(attached) => {
                buffers::renew(link);
                return Ok((attached, Mode::Native));
            }
            Err(error) if choice == ModeChoice::Auto && means_no_native(&error) => {
                no_native(link, &error)
            }
            Err(error) => return Err(attach_error(link, error)),
        },
    };
    let reason = with_losses(link, reason)?;
    match attach_in(XdpMode::Stack) {
        Ok(attached) => Ok((attached, Mode::Generic { reason })),
        Err(error) => Err(attach_error(link, error)),
    }
}

/// Adds to the reason for the generic mode what is lost in it.
fn with_losses(link: &Link, reason: String) -> Result<String, NetlinkError> {
    let stack = Stack::below(link)?;
    let of_kernels = || joins_kernels(link).then(|| for_kernels(&link.name));
    let all = [stack.losses(), stack.doubts(), of_kernels()].into_iter();
    Ok(all.flatten().fold(reason, |reason, (lost, remedy)| {
        format!("{reason}; {lost}: {remedy}")
    }))
}

/// Linux' own "operation not supported", which some drivers return.
const ENOTSUPP: i32 = 524;

fn means_no_native(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EOPNOTSUPP | libc::EINVAL | ENOTSUPP)
    )
}

/// Explains why a program does not run in the driver.
fn no_native(link: &Link, error: &io::Error) -> String {
    let limit = Driver::of(link).refuses_xdp_at(link.mtu);
    limit.unwrap_or_else(|| format!("its driver refuses native XDP: {error}"))
}

/// Makes the error for a program that could not be attached.
pub(crate) fn attach_error(link: &Link, error: io::Error) -> OpenError {
    let netdev = link.name.clone();
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => OpenError::NotPermitted {
            doing: "attach an XDP program",
        },
        Some(libc::EBUSY | libc::EEXIST) => occupied_now(link, error),
        Some(libc::ENOSPC) => OpenError::TooFewQueues { netdev },
        Some(libc::ERANGE) => OpenError::MtuTooLarge {
            netdev,
            mtu: link.mtu,
        },
        Some(libc::ENODEV) => OpenError::NoSuchDevice { netdev },
        _ if means_no_native(&error) => OpenError::NoNative {
            netdev,
            reason: no_native(link, &error),
        },
        _ => OpenError::Attach {
            netdev,
            source: error,
        },
    }
}
