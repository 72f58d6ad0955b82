//! The configuration of a device on a network interface.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use rnic_core::engine::EngineConfig;
use rnic_core::memory::table::MAX_STAGS;
use rnic_manager::channel::default_socket;
use rnic_xdp::steering::ModeChoice;
use rnic_xdp::{InterfaceConfig, TxChecksum, ZeroCopyChoice};
use tracing::warn;

use crate::ipsec::Ipsec;
use crate::open_error::OpenError;
use crate::via::Via;

/// The most queue pairs that a device may be configured for: as many as STags.
const MAX_QUEUE_PAIRS: u32 = MAX_STAGS;

/// The most threads that a device may be configured for: far more than any interface has queues.
const MAX_WORKERS: u32 = 1024;

/// The configuration of a device on a network interface.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// The interface, how it is attached to, and its frames. Over TCP sockets of the kernel its
    /// name may be empty: then connections take any interface, and any address of the host. What
    /// it says of IPsec is by default what the [environment](Ipsec) says.
    pub interface: InterfaceConfig,
    /// What is to carry the connections. The default is `RNIC_VIA` of the environment, or else the
    /// best way that is there.
    pub via: Via,
    /// TCP's settings and the most connections, for each worker. `mtu`, `partial_checksums` and
    /// `marks` become those of the interface.
    pub engine: EngineConfig,
    /// Who runs the engines.
    pub driving: Driving,
    /// The most STags at once: of memory regions, windows and fast registrations together. From 1
    /// to 1048576, rounded up to a power of two.
    pub stags: u32,
    /// The most queue pairs at once, from 1 to 1048576.
    pub queue_pairs: u32,
    /// Where the daemon rnicd listens, which is asked for a port of the interface first. `None`:
    /// have the interface alone, and ask nobody. The default is `RNICD_SOCKET` of the environment,
    /// or /run/rnic/rnicd.sock.
    pub manager: Option<PathBuf>,
    /// Connect and listen unprotected even if an IPsec policy of the host demands protection.
    pub ignore_ipsec: bool,
}

/// Who runs the engines of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Driving {
    /// The application: [`Cq::poll`](crate::Cq::poll) and everything that waits run the engine.
    /// Best where cores are few.
    #[default]
    Inline,
    /// The application when it polls, as fast as if it alone drove the engine; a thread of the
    /// device while it does not, because it sleeps or computes. For a program of which nothing is
    /// known. The thread takes over at once when the application [arms](crate::Cq::arm) a
    /// completion queue, waits in a call of this crate, or sends a command, and within 200
    /// microseconds when it just stops to poll. It sleeps while nothing is to be done.
    Standby,
    /// Threads of the device. Each is a worker with an engine and a share of the receive queues.
    /// Best where cores are free.
    Threads {
        /// The most threads, from 1 to 1024. There are never more than receive queues; over TCP
        /// sockets of the kernel there are so many, up to 64, and over SCTP there is one. `None`
        /// stands for the number of CPUs.
        most: Option<u32>,
        /// How long a thread without work goes on polling before it sleeps.
        idle: Duration,
        /// Pin each thread to a CPU, of the interface's NUMA node if there are several.
        pin: bool,
    },
}

impl Driving {
    /// Returns the most workers that may be used.
    pub(crate) fn most_workers(&self) -> u32 {
        let cpus = || std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32);
        match *self {
            Self::Inline | Self::Standby => 1,
            Self::Threads { most, .. } => most.unwrap_or_else(cpus),
        }
    }
}

impl DeviceConfig {
    /// Makes the default configuration for an interface: driven inline, with 4096 STags and 1024
    /// queue pairs.
    pub fn new(netdev: impl Into<String>) -> Self {
        let mut interface = InterfaceConfig::new(netdev);
        let ipsec = Ipsec::of_environment().unwrap_or_else(|why| {
            warn!("{why}");
            Ipsec::refused()
        });
        ipsec.apply(&mut interface);
        Self {
            interface,
            via: Via::of_environment().unwrap_or_else(|why| {
                warn!("{}: {why}", Via::VARIABLE);
                Via::Best
            }),
            engine: EngineConfig::default(),
            driving: Driving::default(),
            stags: 4096,
            queue_pairs: 1024,
            manager: Some(default_socket()),
            ignore_ipsec: false,
        }
    }

    /// Makes the default configuration for an interface, driven by one thread on any CPU, which
    /// sleeps soon after it had nothing to do: for a program that also waits for other things than
    /// its device, such as files or people, and so polls too rarely.
    pub fn threaded(netdev: impl Into<String>) -> Self {
        Self {
            driving: Driving::Threads {
                most: Some(1),
                idle: Duration::from_micros(100),
                pin: false,
            },
            ..Self::new(netdev)
        }
    }

    /// Returns whether something was set that only frames have.
    pub(crate) fn wants_frames(&self) -> bool {
        let InterfaceConfig {
            queue,
            mode,
            zero_copy,
            busy_poll,
            tx_checksum,
            ipsec_if_id,
            require_protection,
            ..
        } = self.interface;
        let is_default = mode == ModeChoice::default()
            && zero_copy != ZeroCopyChoice::Require
            && tx_checksum == TxChecksum::Auto;
        let is_protected = ipsec_if_id.is_some() || require_protection;
        queue.is_some() || busy_poll || is_protected || !is_default
    }

    /// Checks the values that opening the interface does not check.
    pub(crate) fn check(&self) -> Result<(), OpenError> {
        within("stags", self.stags, 1..=MAX_STAGS)?;
        within("queue_pairs", self.queue_pairs, 1..=MAX_QUEUE_PAIRS)?;
        match self.driving {
            Driving::Threads {
                most: Some(most), ..
            } => within("driving.most", most, 1..=MAX_WORKERS),
            _ => Ok(()),
        }
    }
}

fn within(field: &'static str, value: u32, range: RangeInclusive<u32>) -> Result<(), OpenError> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(OpenError::Config {
        field,
        value,
        range,
    })
}
