//! Errors for a program that is in the way.

use std::io;

use super::below::above;
use super::inspect::{PROGRAM_NAME, program_info};
use crate::error::OpenError;
use crate::netlink::{AttachedXdp, Link, RouteSocket, link_by_index};

/// Makes the error for a program that is in the way: one that was attached since the last look, or one of the device's master. Looks
/// up its name.
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

/// Makes the error for an attached program.
pub(crate) fn occupied(link: &Link, attached: AttachedXdp) -> OpenError {
    let netdev = link.name.clone();
    let program = attached.program;
    let name = program_info(program).map_or("?".to_string(), |info| {
        String::from_utf8_lossy(info.name()).into_owned()
    });
    if name == PROGRAM_NAME {
        return OpenError::AlreadyDriven { netdev, program };
    }
    let (attachment, detach) = attached.attachment.words();
    OpenError::OtherProgram {
        netdev,
        name,
        program,
        attachment,
        detach,
    }
}
