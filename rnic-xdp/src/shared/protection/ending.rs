//! The end of associations of which clients have the keys, where nobody follows them.

use std::collections::BTreeMap;

use rnic_core::esp::SaId;

use crate::device::error::OpenError;
use crate::device::netlink::AssociationSocket;
use crate::shared::programs::{SharedSteering, SharingError};

/// Ends the associations that ports have of a device that is shared no more, or whose clients have
/// none any more: they have had the keys.
pub(in crate::shared) fn end_given(steering: &SharedSteering) -> Result<(), SharingError> {
    let failed = SharingError::system("read which associations clients have");
    let mut maps = steering.associations().map_err(&failed)?;
    let mut given = BTreeMap::new();
    for map in &maps {
        let listed = map.list().map_err(&failed)?.into_iter();
        given.extend(listed.map(|(id, used)| (id, used.print)));
    }
    if given.is_empty() {
        return Ok(());
    }
    end_all(&given)?;
    for id in given.into_keys() {
        for map in &mut maps {
            // It is in one of both.
            let _ = map.remove(id);
        }
    }
    Ok(())
}

/// Ends associations of the host, if it has them with keys of these fingerprints. All are tried; the
/// error is that of the last one that failed.
pub(super) fn end_all(given: &BTreeMap<SaId, u32>) -> Result<(), OpenError> {
    if given.is_empty() {
        return Ok(());
    }
    let mut socket = AssociationSocket::open()?;
    let all = socket.read()?;
    let ours = all.iter().filter(|found| {
        let print = found.usable.as_ref().map(|(_, _, keys)| keys.print());
        found.if_id != 0 && print.is_ok() && given.get(&found.id).copied() == print.ok()
    });
    let mut result = Ok(());
    for found in ours {
        if let Err(why) = socket.end(found) {
            result = Err(why.into());
        }
    }
    result
}
