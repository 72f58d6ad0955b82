//! The programs on their devices, attached over netlink.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use aya::maps::MapData;

use crate::device::error::OpenError;
use crate::device::netlink::{AttachedXdp, Link, XdpAttachment, XdpMode, set_xdp};
use crate::device::steering::{
    Maps, Mode, ModeChoice, attach_error, attach_in_mode, io_error, occupied, program_info,
};

/// Attaches a program to a device that has none.
pub(super) fn attach(
    link: &Link,
    choice: ModeChoice,
    program: BorrowedFd<'_>,
) -> Result<Mode, OpenError> {
    if let Some(attached) = link.xdp {
        return Err(occupied(link, attached));
    }
    let attach_in = |mode| set_xdp(link.index, mode, Some(program), None);
    attach_in_mode(link, choice, attach_in).map(|((), mode)| mode)
}

/// Puts a program in the place of one that uses our maps, without a gap. Returns its mode.
pub(super) fn replace(
    link: &Link,
    attached: AttachedXdp,
    maps: &Maps,
    program: Option<BorrowedFd<'_>>,
) -> Result<Mode, OpenError> {
    let Some((expected, mode)) = expected(attached, maps).map_err(system)? else {
        return Err(occupied(link, attached));
    };
    let set = set_xdp(link.index, mode, program, Some(expected.as_fd()));
    set.map_err(|error| attach_error(link, error))?;
    Ok(match mode {
        XdpMode::Driver => Mode::Native,
        XdpMode::Stack => Mode::Generic {
            reason: "as a former process attached its program".to_string(),
        },
    })
}

/// Returns whether an attached program uses any of our maps: nobody else's does. It need not be one
/// that we can replace.
pub(super) fn is_ours(attached: AttachedXdp, maps: &Maps) -> io::Result<bool> {
    let info = program_info(attached.program);
    let used = info.map(|info| info.map_ids()).transpose();
    let used = used
        .map_err(io::Error::other)?
        .flatten()
        .unwrap_or_default();
    for (_, map) in maps.iter() {
        if used.contains(&id_of(map)?) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the attached program and its mode if it uses our maps.
fn expected(attached: AttachedXdp, maps: &Maps) -> io::Result<Option<(OwnedFd, XdpMode)>> {
    let mode = match attached.attachment {
        XdpAttachment::Native => XdpMode::Driver,
        XdpAttachment::Generic => XdpMode::Stack,
        XdpAttachment::Offloaded | XdpAttachment::Several => return Ok(None),
    };
    let Some(info) = program_info(attached.program) else {
        return Ok(None);
    };
    let ids = info
        .map_ids()
        .map_err(io::Error::other)?
        .unwrap_or_default();
    if !ids.contains(&table_id(maps)?) {
        return Ok(None);
    }
    let program = info.fd().map_err(io::Error::other)?;
    Ok(Some((program.as_fd().try_clone_to_owned()?, mode)))
}

/// Returns the id of the map of entries, which both programs use.
fn table_id(maps: &Maps) -> io::Result<u32> {
    let mut all = maps.iter();
    let (_, table) = all
        .find(|(name, _)| *name == "steer_map")
        .expect("it has all maps");
    id_of(table)
}

fn id_of(map: &OwnedFd) -> io::Result<u32> {
    let map = MapData::from_fd(map.try_clone()?).map_err(io_error)?;
    Ok(map.info().map_err(io_error)?.id())
}

fn system(source: io::Error) -> OpenError {
    OpenError::System {
        doing: "look at the attached XDP program",
        source,
    }
}
