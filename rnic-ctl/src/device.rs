//! Opening a device: an interface through AF_XDP, or a link in memory.

use std::net::IpAddr;
use std::time::Duration;

use std::sync::Arc;

use clap::{Args, ValueEnum};
use rnic_core::engine::{EngineConfig, Turn, link};
use rnic_core::memory::table::StagTable;
use rnic_core::tcp::{CongestionAlgorithm, TcpConfig};
use rnic_core::testing::in_memory;
use rnic_verbs::{Device, Driver};
use rnic_xdp::steering::ModeChoice;
use rnic_xdp::{PortConfig, Worker, XdpNet, XdpPort, bell};

use crate::failure::{Doing, Failure, Outcome};

/// Which device, and who drives it.
#[derive(Clone, Debug, Args)]
pub(crate) struct DeviceArgs {
    /// The network interface
    #[arg(long, value_name = "IF")]
    pub netdev: Option<String>,

    /// Let a thread of its own drive the device, instead of the thread that waits for it: better where a core is free
    #[arg(long)]
    pub thread: bool,

    /// With --thread: milliseconds for which it polls without finding anything before it sleeps
    #[arg(long, value_name = "MS", default_value_t = 10, requires = "thread", value_parser = clap::value_parser!(u64).range(..=60_000))]
    pub idle: u64,

    /// How to attach the XDP program
    #[arg(long, value_enum, default_value_t, value_name = "MODE")]
    pub xdp_mode: XdpMode,

    /// What steers TCP's congestion window
    #[arg(long, value_enum, default_value_t, value_name = "ALGORITHM")]
    pub congestion: Congestion,
}

/// What steers TCP's congestion window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Congestion {
    /// CUBIC, as Linux has it
    #[default]
    Cubic,
    /// NewReno
    Reno,
}

impl From<Congestion> for CongestionAlgorithm {
    fn from(congestion: Congestion) -> Self {
        match congestion {
            Congestion::Cubic => Self::Cubic,
            Congestion::Reno => Self::NewReno,
        }
    }
}

/// How the XDP program is attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum XdpMode {
    /// In the driver, or else generic
    #[default]
    Auto,
    /// In the driver only
    Native,
    /// In the kernel's network stack: slower on NICs, and reorders a kernel peer's segments
    Generic,
}

impl From<XdpMode> for ModeChoice {
    fn from(mode: XdpMode) -> Self {
        match mode {
            XdpMode::Auto => Self::Auto,
            XdpMode::Native => Self::Native,
            XdpMode::Generic => Self::Generic,
        }
    }
}

/// STags that a device has.
const STAGS: usize = 4096;
/// Queue pairs that a device has.
const QUEUE_PAIRS: u32 = 1024;

/// An open device.
pub(crate) struct Opened {
    pub device: Device,
    /// What it is, for people.
    pub description: String,
}

impl DeviceArgs {
    fn how(&self) -> &'static str {
        if self.thread {
            "driven by a thread of its own"
        } else {
            "driven by polling"
        }
    }

    /// The interface.
    pub(crate) fn open(&self) -> Outcome<Opened> {
        let Some(netdev) = &self.netdev else {
            let why = "no interface was named; `--netdev IF` does (`ip link` lists them)";
            return Err(Failure::usage("open a device", why));
        };
        let what = format!("open {netdev}");
        let missing = |why: &dyn std::fmt::Display| Failure::environment(&what, why);
        let config = PortConfig {
            mode: self.xdp_mode.into(),
            ..PortConfig::new(netdev)
        };
        let port = XdpPort::open(&config).map_err(|why| missing(&why))?;
        let net = XdpNet::new(&port).map_err(|why| missing(&why))?;
        let (bell, waker) = bell().map_err(|why| missing(&why))?;
        let (host, end) = link(
            Arc::new(StagTable::new(STAGS, secret()?)),
            QUEUE_PAIRS,
            waker,
        );
        let description = format!("{}, {}", port.report(), self.how());
        let worker =
            Worker::new(port, self.engine(), secret()?, end, bell).map_err(|why| missing(&why))?;
        let driver = self.driver(Box::new(worker))?;
        Ok(Opened {
            device: Device::new(host, Arc::new(net), driver),
            description,
        })
    }

    fn engine(&self) -> EngineConfig {
        let tcp = TcpConfig {
            congestion: self.congestion.into(),
            ..TcpConfig::default()
        };
        EngineConfig {
            tcp,
            ..EngineConfig::default()
        }
    }

    fn driver(&self, turn: Box<dyn Turn>) -> Outcome<Driver> {
        if self.thread {
            Driver::spawn(turn, Duration::from_millis(self.idle)).doing("open a device")
        } else {
            Ok(Driver::Inline(turn))
        }
    }

    /// Two devices of this process, joined in memory, and the address of the second.
    pub(crate) fn open_in_memory(&self) -> Outcome<([Opened; 2], IpAddr)> {
        let (first, second) = in_memory::pair_with(&self.engine(), [secret()?, secret()?]);
        let address = second.address;
        let open = |end: in_memory::InMemoryDevice| {
            let driver = self.driver(Box::new(end.worker))?;
            Ok(Opened {
                device: Device::new(end.host, end.net, driver),
                description: format!("in memory, {}", self.how()),
            })
        };
        Ok(([open(first)?, open(second)?], address))
    }
}

/// Octets that nobody can guess.
pub(crate) fn secret() -> Outcome<[u8; 32]> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed)
        .map_err(|why| Failure::environment("get random numbers from the kernel", why))?;
    Ok(seed)
}
