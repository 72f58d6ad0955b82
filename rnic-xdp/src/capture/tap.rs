//! The maps by which programs show frames to a process that captures.

use std::cell::RefCell;
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::Duration;

use aya::maps::{Array, MapData, PerCpuArray};
use aya::programs::ProgramInfo;
use libbpf_rs::{MapHandle, PerfBuffer, PerfBufferBuilder};
use nix::unistd::{SysconfVar, sysconf};

use super::error::{CaptureError, bpf_error, failed};
use super::frame::Frame;
use super::layout::{self, LOSSES, NOTHING, WantedOctets};
use crate::device::steering::{Maps, WANTED, io_error};

/// The maps, by name.
const FRAMES: &str = "capture_frames";
const LOST: &str = "capture_lost";

/// Where taps put the frames that they read.
pub(super) type Basket = Rc<RefCell<Vec<Frame>>>;

/// Frames that were lost, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// The ring was full.
    pub full: u64,
    /// The kernel could not copy them, or their CPU came after the capture began.
    pub unreadable: u64,
}

/// Programs that show their frames, as long as this exists. The kernel removes the rings if the
/// process dies; the programs notice it with the next frame.
pub(super) struct Tap {
    rings: PerfBuffer<'static>,
    /// The kernel takes the rings out of the map when this is closed.
    _frames: MapHandle,
    wanted: Array<MapData, WantedOctets>,
    lost: PerCpuArray<MapData, u64>,
    /// What was lost before.
    before: Lost,
}

impl Tap {
    /// Taps the programs with these maps. Each CPU gets a ring of so many octets, a power of 2 and
    /// at least a page.
    pub(super) fn open(
        maps: &Maps,
        wanted: WantedOctets,
        ring: usize,
        basket: &Basket,
    ) -> Result<Self, CaptureError> {
        let reached = failed("reach the maps of the programs");
        let frames = maps.iter().find(|(name, _)| *name == FRAMES);
        let (_, frames) = frames.ok_or_else(|| reached(io::ErrorKind::NotFound.into()))?;
        let frames = MapData::from_fd(frames.try_clone().map_err(&reached)?)
            .and_then(|map| map.info())
            .map_err(|error| reached(io_error(error)))?;
        let frames = MapHandle::from_map_id(frames.id());
        let frames = frames.map_err(|error| reached(bpf_error(&error)))?;
        let page = sysconf(SysconfVar::PAGE_SIZE).map_err(|error| reached(error.into()))?;
        let page = page.and_then(|page| usize::try_from(page).ok());
        let basket = Rc::clone(basket);
        let rings = PerfBufferBuilder::new(&frames)
            .pages(ring / page.unwrap_or(4096))
            .sample_cb(move |_, entry: &[u8]| basket.borrow_mut().extend(layout::frame(entry)))
            .build();
        let rings =
            rings.map_err(|error| failed("make the rings for frames")(bpf_error(&error)))?;
        let mut tap = Self {
            rings,
            _frames: frames,
            wanted: maps.get(WANTED).map_err(&reached)?,
            lost: maps.get(LOST).map_err(&reached)?,
            before: Lost::default(),
        };
        tap.before = tap.counted().map_err(failed("read what was lost"))?;
        let set = tap.wanted.set(0, wanted, 0);
        set.map_err(|error| failed("tell the programs what is wanted")(io_error(error)))?;
        Ok(tap)
    }

    /// Waits until a ring has something, no longer than stated.
    pub(super) fn wait(&self, patience: Duration) {
        // It reads what there is too. A signal ends the wait early.
        let _ = self.rings.poll(patience);
    }

    /// Reads all that the rings have.
    pub(super) fn read(&self) -> Result<(), CaptureError> {
        let read = self.rings.consume();
        read.map_err(|error| failed("read the rings")(bpf_error(&error)))
    }

    /// Tells the programs to show no more.
    pub(super) fn close(&mut self) {
        // If this fails, the programs notice that the rings are gone.
        let _ = self.wanted.set(0, NOTHING, 0);
    }

    /// Returns what was lost since this tap was opened.
    pub(super) fn lost(&self) -> io::Result<Lost> {
        let now = self.counted()?;
        Ok(Lost {
            full: now.full.saturating_sub(self.before.full),
            unreadable: now.unreadable.saturating_sub(self.before.unreadable),
        })
    }

    fn counted(&self) -> io::Result<Lost> {
        let mut counts = [0; LOSSES as usize];
        for (index, count) in (0..LOSSES).zip(&mut counts) {
            let per_cpu = self.lost.get(&index, 0).map_err(io_error)?;
            *count = per_cpu.iter().sum();
        }
        let [full, unreadable] = counts;
        Ok(Lost { full, unreadable })
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.close();
    }
}

/// Opens the maps of a program.
pub(super) fn maps_of(program: &ProgramInfo) -> io::Result<Maps> {
    let ids = program.map_ids().map_err(io::Error::other)?;
    let mut maps = Maps::default();
    for id in ids.unwrap_or_default() {
        let map = MapData::from_id(id).map_err(io_error)?;
        let info = map.info().map_err(io_error)?;
        let name = String::from_utf8_lossy(info.name()).into_owned();
        maps.insert(name, map.fd().as_fd().try_clone_to_owned()?);
    }
    Ok(maps)
}
