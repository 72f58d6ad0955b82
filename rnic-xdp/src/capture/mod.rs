//! Captures frames that pass the kernel by: those that the programs of a device steer and police,
//! and those that AF_XDP sockets send.
//!
//! The programs write them to rings in the kernel while one process captures. Frames of several
//! CPUs are put in their order.

use std::cell::RefCell;
use std::fs;
use std::os::linux::fs::MetadataExt;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::rc::Rc;
use std::time::{Duration, Instant};

use aya::maps::{Array, MapData};
use aya::programs::ProgramInfo;
use nix::time::{ClockId, clock_gettime};

// From the ground up: frame < wanted < layout, error < tap, sockets < this
mod error;
mod frame;
mod layout;
pub mod skeleton;
mod sockets;
mod tap;
mod wanted;

pub use error::CaptureError;
pub use frame::{Direction, Frame};
pub use tap::Lost;
pub use wanted::{Peers, Wanted};

use crate::device::netlink::{Link, RouteSocket, link_by_index, link_by_name};
use crate::device::steering::{Maps, PROGRAM_NAME, has_queue_ports, program_info};
use error::failed;
use layout::WantedOctets;
use sockets::{Place, Sockets};
use tap::{Basket, Tap, maps_of};

/// What is done with the maps of the steering program.
const OPEN_MAPS: &str = "open the maps of the attached program";
/// How soon another program of the device is noticed: it is that of a process that opens the
/// device.
const LOOK: Duration = Duration::from_millis(20);
/// How late a frame may come to its ring, in nanoseconds.
const LATE: u64 = 1_000_000;
/// The fewest octets of a ring: four of the longest frames fit.
const SMALLEST_RING: usize = 256 << 10;

/// A running capture on a device.
pub struct Capture {
    link: Link,
    wanted: WantedOctets,
    /// Whether frames are wanted that AF_XDP sockets send on the device itself.
    of_sockets: bool,
    /// Octets of a ring.
    ring: usize,
    netlink: RouteSocket,
    looked: Option<Instant>,
    /// The attached program.
    program: Option<u32>,
    programs: Option<Tap>,
    sockets: Option<(Sockets, Option<Tap>)>,
    /// What taps lost that are closed.
    lost: Lost,
    gaps: Vec<String>,
    basket: Basket,
    /// Nanoseconds from the zero of `CLOCK_MONOTONIC` to 1970-01-01 UTC.
    epoch: u64,
    /// As long as it listens nobody else captures.
    _alone: UnixListener,
}

impl Capture {
    /// Begins to capture on a device of this network namespace, with this many octets of rings for
    /// all CPUs together: as many as the next power of 2 for each, 256 KiB at least.
    pub fn open(netdev: &str, wanted: &Wanted, ring: usize) -> Result<Self, CaptureError> {
        let mut netlink = RouteSocket::open()?;
        let found = link_by_name(&mut netlink, netdev)?;
        let link = found.ok_or_else(|| CaptureError::NoSuchDevice(netdev.to_string()))?;
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let ring = (ring / cpus).next_power_of_two();
        let mut capture = Self {
            _alone: alone(&link)?,
            wanted: layout::wanted(wanted),
            of_sockets: wanted.direction != Some(Direction::Received) && wanted.port.is_none(),
            ring: ring.max(SMALLEST_RING),
            netlink,
            looked: None,
            program: None,
            programs: None,
            sockets: None,
            lost: Lost::default(),
            gaps: Vec::new(),
            basket: Rc::new(RefCell::new(Vec::new())),
            epoch: now(ClockId::CLOCK_REALTIME)? - now(ClockId::CLOCK_MONOTONIC)?,
            link,
        };
        capture.look()?;
        Ok(capture)
    }

    /// Waits for frames, no longer than stated, and returns those that have come, in the order of
    /// their times.
    pub fn next(&mut self, patience: Duration) -> Result<Vec<Frame>, CaptureError> {
        if self.looked.is_none_or(|looked| looked.elapsed() >= LOOK) {
            self.look()?;
        }
        let count = u32::try_from(self.taps().count()).unwrap_or(u32::MAX);
        match count {
            0 => std::thread::sleep(patience.min(LOOK)),
            count => {
                let each = patience.min(LOOK) / count;
                self.taps().for_each(|tap| tap.wait(each));
            }
        }
        let until = now(ClockId::CLOCK_MONOTONIC)?.saturating_sub(LATE);
        self.read()?;
        Ok(self.take(until))
    }

    /// Ends the capture. Returns the frames that had come before.
    pub fn finish(&mut self) -> Result<Vec<Frame>, CaptureError> {
        let sockets = self.sockets.iter_mut();
        let taps = sockets.filter_map(|(_, tap)| tap.as_mut());
        taps.chain(&mut self.programs).for_each(Tap::close);
        self.read()?;
        Ok(self.take(u64::MAX))
    }

    /// Returns how many frames were lost so far.
    pub fn lost(&self) -> Result<Lost, CaptureError> {
        let mut sum = self.lost;
        for tap in self.taps() {
            sum.add(tap.lost().map_err(failed("read what was lost"))?);
        }
        Ok(sum)
    }

    /// Returns what cannot be captured and why, each sentence once.
    pub fn gaps(&mut self) -> Vec<String> {
        std::mem::take(&mut self.gaps)
    }

    fn taps(&self) -> impl Iterator<Item = &Tap> {
        let sockets = self.sockets.iter();
        let sockets = sockets.filter_map(|(_, tap)| tap.as_ref());
        self.programs.iter().chain(sockets)
    }

    fn read(&self) -> Result<(), CaptureError> {
        self.taps().try_for_each(Tap::read)
    }

    /// Removes from the basket the frames up to a time of `CLOCK_MONOTONIC`, and returns them in
    /// the order of their times.
    fn take(&mut self, until: u64) -> Vec<Frame> {
        let mut basket = self.basket.borrow_mut();
        basket.sort_by_key(|frame| frame.time);
        let early = basket.partition_point(|frame| frame.time <= until);
        let mut frames: Vec<_> = basket.drain(..early).collect();
        for frame in &mut frames {
            frame.time += self.epoch;
        }
        frames
    }

    /// Follows the program of the device.
    fn look(&mut self) -> Result<(), CaptureError> {
        let link = link_by_index(&mut self.netlink, self.link.index)?;
        let link = link.ok_or_else(|| CaptureError::DeviceGone(self.link.name.clone()))?;
        let program = link.xdp.map(|attached| attached.program);
        if self.looked.is_none() || program != self.program {
            self.follow(program)?;
            self.program = program;
        }
        self.follow_sockets()?;
        self.looked = Some(Instant::now());
        Ok(())
    }

    fn follow(&mut self, program: Option<u32>) -> Result<(), CaptureError> {
        if let Some(former) = self.programs.take() {
            former.read()?;
            self.lost
                .add(former.lost().map_err(failed("read what was lost"))?);
        }
        if let Some(program) = program.and_then(ours) {
            let maps = maps_of(&program).map_err(failed(OPEN_MAPS))?;
            self.programs = Some(self.tap(&maps)?);
        }
        Ok(())
    }

    /// Makes the kernel show what sockets on the device itself send: those of a process that has it
    /// alone, or of a client that has a queue of it.
    fn follow_sockets(&mut self) -> Result<(), CaptureError> {
        if !self.of_sockets || self.sockets.is_some() {
            return Ok(());
        }
        if let Some(program) = self.program.and_then(ours) {
            let maps = maps_of(&program).map_err(failed(OPEN_MAPS))?;
            if is_shared(&maps) && !has_queue_ports(&maps).map_err(failed(OPEN_MAPS))? {
                return Ok(());
            }
        }
        let mut sockets = Sockets::attach(&self.link.name, place(&self.link)?);
        self.gaps.append(&mut sockets.gaps);
        let tap = match sockets.is_empty() {
            true => None,
            false => Some(self.tap(&sockets.maps)?),
        };
        self.sockets = Some((sockets, tap));
        Ok(())
    }

    fn tap(&self, maps: &Maps) -> Result<Tap, CaptureError> {
        Tap::open(maps, self.wanted, self.ring, &self.basket)
    }
}

impl std::fmt::Debug for Capture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Capture")
            .field("netdev", &self.link.name)
            .finish_non_exhaustive()
    }
}

impl Lost {
    fn add(&mut self, more: Self) {
        self.full += more.full;
        self.unreadable += more.unreadable;
    }
}

/// Claims what only one process can have: there is one ring for each CPU.
fn alone(link: &Link) -> Result<UnixListener, CaptureError> {
    let name = format!("rnic-capture-{}", link.index);
    let bound =
        SocketAddr::from_abstract_name(name).and_then(|address| UnixListener::bind_addr(&address));
    bound.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => CaptureError::Busy(link.name.clone()),
        _ => failed("keep others from capturing")(error),
    })
}

/// Returns a program if it is that of a device that rnic drives.
fn ours(program: u32) -> Option<ProgramInfo> {
    program_info(program).filter(|info| info.name() == PROGRAM_NAME.as_bytes())
}

/// Returns whether the steering program with these maps is for clients: its first constant says so.
fn is_shared(maps: &Maps) -> bool {
    let constants = maps.iter().find(|(name, _)| name.ends_with(".rodata"));
    let constants = constants.and_then(|(name, _)| maps.get::<Array<MapData, u32>>(name).ok());
    constants.is_some_and(|constants| constants.get(&0, 0).is_ok_and(|shared| shared != 0))
}

fn place(link: &Link) -> Result<Place, CaptureError> {
    let looked = fs::metadata("/proc/thread-self/ns/net");
    let namespace = looked.map_err(failed("look at this network namespace"))?;
    Ok(Place {
        index: link.index,
        // The kernel has 32 bits.
        netns: namespace.st_ino() as u32,
    })
}

/// Returns the time of a clock in nanoseconds.
fn now(clock: ClockId) -> Result<u64, CaptureError> {
    let time = clock_gettime(clock).map_err(|error| failed("read the clock")(error.into()))?;
    let time = Duration::from(time);
    Ok(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}
