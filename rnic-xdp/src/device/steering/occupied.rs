//! Errors for a program that is in the way.

use std::io;

use super::below::above;
use super::owner::Owner;
use crate::device::error::OpenError;
use crate::device::netlink::{AttachedXdp, Link, RouteSocket, link_by_index};

/// Makes the error for a program that is in the way: one that was attached since the last look, or
/// one of the device's master. Looks up whose it is.
pub(super) fn occupied_now(link: &Link, error: io::Error) -> OpenError {
    let again = RouteSocket::open().and_then(|mut socket| link_by_index(&mut socket, link.index));
    let links = [again.ok().flatten(), above(link)];
    let mut links = links.iter().flatten();
    let found = links.find_map(|link| Some(occupied(link, link.xdp?)));
    found.unwrap_or(OpenError::Attach {
        netdev: link.name.clone(),
        source: error,
    })
}

/// Makes the error for an attached program. It advises to detach only what is not rnic's: the
/// program that rnicd attached carries its clients' data.
pub(crate) fn occupied(link: &Link, attached: AttachedXdp) -> OpenError {
    let netdev = link.name.clone();
    let program = attached.program;
    let (attachment, detach) = attached.attachment.words();
    match Owner::of(attached) {
        Owner::Hidden => OpenError::HiddenProgram {
            netdev,
            program,
            attachment,
        },
        Owner::Process(pid) => OpenError::AlreadyDriven {
            netdev,
            program,
            pid,
        },
        Owner::Sharing => OpenError::Shared { netdev, program },
        Owner::Other(name) => OpenError::OtherProgram {
            netdev,
            name,
            program,
            attachment,
            detach,
        },
    }
}
