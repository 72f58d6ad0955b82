//! Opening a device: an interface through AF_XDP, or a link in memory.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use clap::{Args, ValueEnum};
use rnic_core::engine::NetError;
use rnic_core::in_memory;
use rnic_verbs::{
    CongestionAlgorithm, Device, DeviceConfig, Driver, Driving, EngineConfig, Error, Ipsec,
    ModeChoice, OpenError, Peers, Prefix, TcpConfig, Via, if_id,
};
use rnic_xdp::cpus_near;

use crate::failure::{Doing, Failure, Outcome};

/// Which device to open, and what drives it.
#[derive(Clone, Debug, Args)]
pub(crate) struct DeviceArgs {
    /// The network interface. Without one, connections take TCP sockets of the kernel on any
    #[arg(long, value_name = "IF")]
    pub netdev: Option<String>,

    /// What carries the connections: `xdp`, a port of rnicd or the interface for oneself; `rnicd`, a
    /// port alone; `kernel`, TCP sockets, which need no right; `sctp`, SCTP sockets; or the `best`
    /// that is there. The default is RNIC_VIA of the environment, or else `best`
    #[arg(long, value_name = "WAY")]
    pub via: Option<Via>,

    /// Have SCTP carry the connections: `--via sctp`
    #[arg(long, conflicts_with = "via")]
    pub sctp: bool,

    /// Have this receive queue of the interface for oneself, as a port of rnicd: without copying if
    /// the driver can. An administrator must have granted it (`queues` in rnicd.toml)
    #[arg(long, value_name = "N", conflicts_with = "busy_poll", value_parser = clap::value_parser!(u32).range(..=65_534))]
    pub queue: Option<u32>,

    /// Drive the device by threads of its own instead of the thread that waits: better where cores
    /// are free
    #[arg(long)]
    pub thread: bool,

    /// Drive the device by the thread that waits, and by one of its own while that does not poll:
    /// as libibverbs does it
    #[arg(long, hide = true, conflicts_with = "thread")]
    pub standby: bool,

    /// With --thread: the most threads; they share the receive queues of the interface, or the
    /// connections over TCP sockets of the kernel. The default is one for each queue, but no more
    /// than there are CPUs
    #[arg(long, value_name = "N", requires = "thread", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub workers: Option<u32>,

    /// With --thread: milliseconds without work after which a thread sleeps instead of polling
    #[arg(long, value_name = "MS", default_value_t = 10, requires = "thread", value_parser = clap::value_parser!(u64).range(..=60_000))]
    pub idle: u64,

    /// With --thread: pin each thread to a CPU, of the interface's NUMA node if there are several
    #[arg(long, requires = "thread")]
    pub pin: bool,

    /// Poll the interface instead of using its interrupts, if its driver can: for threads that
    /// never sleep
    #[arg(long)]
    pub busy_poll: bool,

    /// Server: let only peers with an address in this prefix connect. May be given several times.
    /// The host's firewall does not apply
    #[arg(long, value_name = "PREFIX")]
    pub allow: Vec<Prefix>,

    /// Protect by ESP what the IPsec policies demand that have this number (`if_id`), with the
    /// associations that have it. The interface must be for this process alone
    #[arg(long, value_name = "NUMBER", value_parser = if_id)]
    pub ipsec_if_id: Option<NonZeroU32>,

    /// Speak protected or not at all. Needs `--ipsec-if-id`
    #[arg(long, requires = "ipsec_if_id", conflicts_with = "ignore_ipsec")]
    pub require_protection: bool,

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

/// Returns why a device could not connect or listen, and which flags set the parameters that the
/// reason names.
pub(crate) fn with_flags(why: Error) -> String {
    match why {
        Error::Net(NetError::Protected { .. }) => {
            format!("{why}; the flags are --ipsec-if-id, --via kernel, --allow and --ignore-ipsec")
        }
        why => why.to_string(),
    }
}

impl DeviceArgs {
    /// Returns the peers that may connect to a server.
    pub(crate) fn peers(&self) -> Peers {
        match self.allow.as_slice() {
            [] => Peers::all(),
            prefixes => Peers::only(prefixes.iter().copied()),
        }
    }

    /// Opens the interface.
    pub(crate) fn open(&self) -> Outcome<Device> {
        let of_environment = || Via::of_environment();
        let named = self.via.or(self.sctp.then_some(Via::Sctp));
        let via = named.map_or_else(of_environment, Ok);
        let via = via.map_err(|why| Failure::usage(format_args!("read {}", Via::VARIABLE), why))?;
        Ipsec::of_environment().map_err(|why| Failure::usage("read the environment", why))?;
        let netdev = match (&self.netdev, via) {
            (Some(netdev), _) => netdev,
            (None, via) if via.may_take_sockets() => "",
            (None, _) => {
                let why = "no interface was named; `--netdev IF` does (`ip link` lists them)";
                return Err(Failure::usage("open a device", why));
            }
        };
        let mut config = DeviceConfig {
            via,
            engine: self.engine(),
            driving: self.driving(),
            ignore_ipsec: self.ignore_ipsec,
            ..DeviceConfig::new(netdev)
        };
        config.interface.queue = self.queue;
        config.interface.mode = self.xdp_mode.into();
        config.interface.busy_poll = self.busy_poll;
        // What was not chosen is left to the environment.
        let chosen = self.ipsec_if_id;
        config.interface.ipsec_if_id = chosen.or(config.interface.ipsec_if_id);
        config.interface.require_protection |= self.require_protection;
        Device::open_with(&config).map_err(|error| match error {
            OpenError::Threads(why) => Failure::operation("open a device", why),
            why if netdev.is_empty() => Failure::environment("open a device", why),
            why => Failure::environment(format_args!("open {netdev}"), why),
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

    fn driving(&self) -> Driving {
        if self.standby {
            return Driving::Standby;
        }
        if !self.thread {
            return Driving::Inline;
        }
        Driving::Threads {
            most: self.workers,
            idle: Duration::from_millis(self.idle),
            pin: self.pin,
        }
    }

    /// Opens two devices of this process that are joined in memory. Returns them and the address of
    /// the second.
    pub(crate) fn open_in_memory(&self) -> Outcome<([Device; 2], IpAddr)> {
        let (first, second) = in_memory::pair_with(&self.engine(), [secret()?, secret()?]);
        let address = second.address;
        let open = |end: in_memory::InMemoryDevice| {
            let turn = Box::new(end.worker);
            let driver = match self.driving() {
                Driving::Inline => Driver::Inline(turn),
                Driving::Standby => Driver::standby(turn).doing("open a device")?,
                Driving::Threads { idle, pin, .. } => {
                    let cpus = if pin { cpus_near(None) } else { Vec::new() };
                    Driver::spawn_all(vec![turn], idle, &cpus).doing("open a device")?
                }
            };
            Ok(Device::new(end.host, end.net, driver))
        };
        Ok(([open(first)?, open(second)?], address))
    }
}

/// Describes a device for people: what it is on, and what drives it.
pub(crate) fn describe(device: &Device) -> String {
    let on = match (device.interface(), device.kernel()) {
        (Some(port), _) => port.report().to_string(),
        (None, Some(kernel)) => kernel.to_string(),
        (None, None) => "in memory".into(),
    };
    match device.workers() {
        _ if device.is_inline() => format!("{on}, driven by polling"),
        1 => format!("{on}, driven by a thread of its own"),
        workers => format!("{on}, driven by {workers} threads of its own"),
    }
}

/// Returns unpredictable octets.
pub(crate) fn secret() -> Outcome<[u8; 32]> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed)
        .map_err(|why| Failure::environment("get random numbers from the kernel", why))?;
    Ok(seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_are_named_here_and_the_parameters_in_the_library() {
        let why = Error::Net(NetError::Protected {
            address: "192.0.2.1:7174".parse().unwrap(),
            policy: "dir out tmpl proto esp".into(),
        });
        assert!(!why.to_string().contains("--"), "{why}");
        assert!(why.to_string().contains("`ignore_ipsec`"), "{why}");
        let said = with_flags(why);
        assert!(
            said.ends_with("--via kernel, --allow and --ignore-ipsec"),
            "{said}"
        );
    }
}
