//! Buffers that the application has mapped: memory that the peer's `riowrite` names by an offset.

use std::ffi::c_void;

use super::buffer::Region;
use super::layout::{Iomap, Sge};
use crate::abi::{IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE};
use crate::errno::Errno;

/// A mapped buffer.
#[derive(Debug)]
pub(super) struct Mapping {
    offset: u64,
    buffer: (usize, usize),
    region: Region,
    /// The entry of the peer's list that it has, if the peer may write to it.
    index: Option<u16>,
    /// The peer has been told.
    announced: bool,
}

/// All of a socket.
#[derive(Debug, Default)]
pub(super) struct Mappings(Vec<Mapping>);

impl Mappings {
    /// Maps memory of the application, which `register` registers for an access. `entries` is how
    /// many the peer has; `None` if the peer is not to write there.
    pub(super) fn add(
        &mut self,
        register: impl FnOnce(u32) -> Result<Region, Errno>,
        start: *mut c_void,
        length: usize,
        entries: Option<u16>,
        offset: u64,
    ) -> Result<(), Errno> {
        let free = |&index: &u16| self.0.iter().all(|mapping| mapping.index != Some(index));
        let index = match entries {
            Some(entries) => Some((0..entries).find(free).ok_or(Errno::ENOMEM)?),
            None => None,
        };
        if index.is_some() && u32::try_from(length).is_err() {
            return Err(Errno::EINVAL);
        }
        let remote = if index.is_some() {
            IBV_ACCESS_REMOTE_WRITE
        } else {
            0
        };
        let region = register(IBV_ACCESS_LOCAL_WRITE | remote)?;
        self.0.push(Mapping {
            offset,
            buffer: (start as usize, length),
            region,
            index,
            announced: index.is_none(),
        });
        Ok(())
    }

    /// Removes a mapping.
    pub(super) fn remove(&mut self, start: *mut c_void, length: usize) -> Result<(), Errno> {
        let buffer = (start as usize, length);
        let at = self
            .0
            .iter()
            .position(|mapping| mapping.buffer == buffer)
            .ok_or(Errno::EINVAL)?;
        self.0.remove(at);
        Ok(())
    }

    /// Returns the oldest mapping that the peer has not been told of: its entry, and what to write
    /// there.
    pub(super) fn next_unannounced(&self) -> Option<(u16, Iomap)> {
        let mapping = self.0.iter().find(|mapping| !mapping.announced)?;
        let sge = Sge {
            addr: mapping.buffer.0 as u64,
            key: mapping.region.rkey(),
            length: mapping.buffer.1 as u32,
        };
        Some((
            mapping.index?,
            Iomap {
                offset: mapping.offset,
                sge,
            },
        ))
    }

    /// Notes that the peer has been told of it.
    pub(super) fn set_announced(&mut self, index: u16) {
        self.0
            .iter_mut()
            .filter(|mapping| mapping.index == Some(index))
            .for_each(|mapping| mapping.announced = true);
    }
}
