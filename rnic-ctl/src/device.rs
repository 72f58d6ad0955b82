//! Opening a device: an interface through AF_XDP, or a link in memory.

use std::net::IpAddr;
use std::time::Duration;

use std::sync::Arc;

use clap::{Args, ValueEnum};
use rnic_core::engine::{EngineConfig, Turn, links};
use rnic_core::memory::table::StagTable;
use rnic_core::tcp::{CongestionAlgorithm, TcpConfig};
use rnic_core::testing::in_memory;
use rnic_verbs::{Device, Driver, Peers, Prefix};
use rnic_xdp::steering::ModeChoice;
use rnic_xdp::{PortConfig, PortStatistics, Worker, XdpNet, XdpPort, bell, cpus_near};

use crate::failure::{Doing, Failure, Outcome};

/// Which device to open, and what drives it.
#[derive(Clone, Debug, Args)]
pub(crate) struct DeviceArgs {
    /// The network interface
    #[arg(long, value_name = "IF")]
    pub netdev: Option<String>,

    /// Drive the device by threads of its own instead of the thread that waits: better where cores are free
    #[arg(long)]
    pub thread: bool,

    /// With --thread: the most threads; they share the receive queues of the interface. The default is one for each queue, but
    /// no more than there are CPUs
    #[arg(long, value_name = "N", requires = "thread", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub workers: Option<u32>,

    /// With --thread: milliseconds without work after which a thread sleeps instead of polling
    #[arg(long, value_name = "MS", default_value_t = 10, requires = "thread", value_parser = clap::value_parser!(u64).range(..=60_000))]
    pub idle: u64,

    /// With --thread: pin each thread to a CPU, of the interface's NUMA node if there are several
    #[arg(long, requires = "thread")]
    pub pin: bool,

    /// Poll the interface instead of using its interrupts, if its driver can: for threads that never sleep
    #[arg(long)]
    pub busy_poll: bool,

    /// Server: let only peers with an address in this prefix connect. May be given several times. The host's firewall does not
    /// apply
    #[arg(long, value_name = "PREFIX")]
    pub allow: Vec<Prefix>,

    /// Connect and listen unprotected even if an IPsec policy of this host demands protection
    #[arg(long)]
    pub ignore_ipsec: bool,

    /// How to attach the XDP program
    #[arg(long, value_enum, default_value_t, value_name = "MODE")]
    pub xdp_mode: XdpMode,

    /// TCP's congestion control
    #[arg(long, value_enum, default_value_t, value_name = "ALGORITHM")]
    pub congestion: Congestion,
}

/// TCP's congestion control.
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

/// Where the XDP program is attached.
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

/// The number of STags of a device.
const STAGS: usize = 4096;
/// The number of queue pairs of a device.
const QUEUE_PAIRS: u32 = 1024;

/// An open device.
pub(crate) struct Opened {
    pub device: Device,
    /// A description for people.
    pub description: String,
    /// The counters of its queues, if it has any.
    pub queues: Option<PortStatistics>,
}

impl DeviceArgs {
    fn how(&self, workers: usize) -> String {
        match workers {
            _ if !self.thread => "driven by polling".into(),
            1 => "driven by a thread of its own".into(),
            _ => format!("driven by {workers} threads of its own"),
        }
    }

    /// Returns the peers that may connect to a server.
    pub(crate) fn peers(&self) -> Peers {
        match self.allow.as_slice() {
            [] => Peers::all(),
            prefixes => Peers::only(prefixes.iter().copied()),
        }
    }

    /// Returns the most workers that may be used.
    fn most_workers(&self) -> u32 {
        let cpus = || std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32);
        if self.thread {
            self.workers.unwrap_or_else(cpus)
        } else {
            1
        }
    }

    /// Opens the interface.
    pub(crate) fn open(&self) -> Outcome<Opened> {
        let Some(netdev) = &self.netdev else {
            let why = "no interface was named; `--netdev IF` does (`ip link` lists them)";
            return Err(Failure::usage("open a device", why));
        };
        let what = format!("open {netdev}");
        let missing = |why: &dyn std::fmt::Display| Failure::environment(&what, why);
        let config = PortConfig {
            mode: self.xdp_mode.into(),
            busy_poll: self.busy_poll,
            ..PortConfig::new(netdev)
        };
        let shares = XdpPort::open_shares(&config, self.most_workers());
        let shares = shares.map_err(|why| missing(&why))?;
        let Some(first) = shares.first() else {
            return Err(missing(&"it has no receive queue"));
        };
        let node = first.report().numa_node;
        let queues = first.statistics();
        let net = XdpNet::new(first).map_err(|why| missing(&why))?;
        let net = if self.ignore_ipsec {
            net.ignore_ipsec()
        } else {
            net
        };
        let description = format!("{}, {}", first.report(), self.how(shares.len()));

        let bells: Result<Vec<_>, _> = shares.iter().map(|_| bell()).collect();
        let (bells, wakers): (Vec<_>, Vec<_>) =
            bells.map_err(|why| missing(&why))?.into_iter().unzip();
        let table = Arc::new(StagTable::new(STAGS, secret()?));
        let (hosts, ends): (Vec<_>, Vec<_>) =
            links(&table, QUEUE_PAIRS, wakers).into_iter().unzip();
        let ends = ends.into_iter().zip(bells).collect();
        let workers = Worker::for_shares(shares, &self.engine(), secret()?, ends);
        let workers = workers.map_err(|why| missing(&why))?.into_iter();
        let turns = workers.map(|worker| Box::new(worker) as _).collect();
        let driver = self.driver(turns, node)?;
        Ok(Opened {
            device: Device::with_workers(hosts, Arc::new(net), driver),
            description,
            queues: Some(queues),
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

    /// Makes a driver of these: threads, or the application for a single one. `node` is the interface's NUMA node.
    fn driver(&self, mut turns: Vec<Box<dyn Turn>>, node: Option<u32>) -> Outcome<Driver> {
        let cpus = if self.pin {
            cpus_near(node)
        } else {
            Vec::new()
        };
        match turns.pop() {
            Some(turn) if !self.thread => Ok(Driver::Inline(turn)),
            last => {
                turns.extend(last);
                let idle = Duration::from_millis(self.idle);
                Driver::spawn_all(turns, idle, &cpus).doing("open a device")
            }
        }
    }

    /// Opens two devices of this process that are joined in memory. Returns them and the address of the second.
    pub(crate) fn open_in_memory(&self) -> Outcome<([Opened; 2], IpAddr)> {
        let (first, second) = in_memory::pair_with(&self.engine(), [secret()?, secret()?]);
        let address = second.address;
        let open = |end: in_memory::InMemoryDevice| {
            let driver = self.driver(vec![Box::new(end.worker)], None)?;
            Ok(Opened {
                device: Device::new(end.host, end.net, driver),
                description: format!("in memory, {}", self.how(1)),
                queues: None,
            })
        };
        Ok(([open(first)?, open(second)?], address))
    }
}

/// Returns unpredictable octets.
pub(crate) fn secret() -> Outcome<[u8; 32]> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed)
        .map_err(|why| Failure::environment("get random numbers from the kernel", why))?;
    Ok(seed)
}
