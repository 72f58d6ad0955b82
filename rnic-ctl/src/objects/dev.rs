//! `rnic-ctl dev`: the devices that rnicd shares, and how.

use clap::Subcommand;
use rnic_manager::LinkState;
use rnic_manager::Mode;
use rnic_manager::states::{Configured, DeviceState, KernelLink};

use super::access::{ObjectArgs, Style, failed};
use super::line::Line;
use super::settings::{AnySettings, Settings};
use crate::failure::{Failure, Outcome};

/// Shows the devices that rnicd shares, and changes how it does.
///
/// A line has whether the device can send, its XDP mode, its MTU, and how many ports and leases it
/// has. A device that is to be shared and cannot be now is "waiting", and one whose XDP program
/// somebody else has detached is "detached", each with the reason. With -d also what became of the
/// frames received, what the kernel says of the device, and who has set that it is shared.
///
/// What root sets with add, del and set counts at once and over rnicd.toml, until the system ends;
/// `rnicd --show-config` marks it.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Verb {
    /// Show the devices, or one of them
    #[command(visible_alias = "list", alias = "s")]
    Show {
        /// The device
        dev: Option<String>,
    },
    /// Share a device: xdp_mode can be "auto", "native" or "generic"
    Add {
        /// The device
        dev: String,
        #[command(flatten)]
        settings: AnySettings,
    },
    /// Share a device no more, also one that rnicd.toml has: `dev add` brings it back
    Del {
        /// The device
        dev: String,
        /// End its ports; without this, a device with ports stays
        #[arg(long)]
        force: bool,
    },
    /// Change how a device is shared. xdp_mode attaches the programs anew, for which there must be
    /// no ports
    Set {
        /// The device
        dev: String,
        #[command(flatten)]
        settings: Settings,
        /// End its ports if the change needs it
        #[arg(long)]
        force: bool,
    },
}

/// Runs the command.
pub(crate) fn run(args: &ObjectArgs<Verb>, style: Style) -> Outcome {
    match &args.verb {
        None => show(args, None, style),
        Some(Verb::Show { dev }) => show(args, dev.as_deref(), style),
        Some(Verb::Add { dev, settings }) => {
            let changes = settings.changes("add a device")?;
            let added = args.access.connect()?.add_device(dev, changes);
            added.map_err(failed("add a device"))
        }
        Some(Verb::Del { dev, force }) => {
            let removed = args.access.connect()?.remove_device(dev, *force);
            removed.map_err(failed("remove a device"))
        }
        Some(Verb::Set {
            dev,
            settings,
            force,
        }) => {
            let changes = settings.changes("change a device")?;
            let set = args.access.connect()?.set_device(dev, changes, *force);
            set.map_err(failed("change a device"))
        }
    }
}

fn show(args: &ObjectArgs<Verb>, wanted: Option<&str>, style: Style) -> Outcome {
    let devices = args.access.connect()?.devices();
    let mut devices = devices.map_err(failed("show the devices"))?;
    if let Some(wanted) = wanted {
        devices.retain(|device| device.netdev == wanted);
        if devices.is_empty() {
            let why =
                format!("rnicd does not share {wanted}; `rnic-ctl dev show` lists what it shares");
            return Err(Failure::operation("show the devices", why));
        }
    }
    let lines: Vec<_> = devices.iter().map(line).collect();
    args.access.print(style, &lines)
}

fn line(device: &DeviceState) -> Line {
    let (xdp, reason) = match &device.mode {
        Some(Mode::Native) => (Some("native"), None),
        Some(Mode::Generic { reason }) => (Some("generic"), Some(reason.as_str())),
        None => (None, None),
    };
    let is_open = device.mode.is_some();
    let mut line = Line::default()
        .with("dev", device.netdev.as_str())
        .with("state", state_of(device))
        .with("reason", device.fault.as_deref())
        .with("xdp", xdp)
        .detail("xdp_reason", reason)
        .with("mtu", is_open.then_some(device.mtu))
        .with("ports", device.ports)
        .with("leases", device.leases)
        .detail("set_by", device.set_by.as_str());
    for Configured { key, value, set_by } in &device.settings {
        line = line
            .detail(format!("{key}.configured"), value.as_str())
            .detail(format!("{key}.set_by"), set_by.as_str());
    }
    for steered in &device.received {
        line = line.detail(format!("received.{}", steered.reason), steered.frames);
    }
    kernel(line, "kernel", device.kernel.as_ref())
}

/// Returns how a device is in a word.
pub(super) fn state_of(device: &DeviceState) -> &'static str {
    match (&device.mode, &device.fault) {
        (None, _) => "waiting",
        (Some(_), Some(_)) => "detached",
        (Some(_), None) => state(device.state),
    }
}

/// Returns a state of a device in a word.
pub(super) fn state(state: LinkState) -> &'static str {
    match state {
        LinkState::Active => "up",
        LinkState::Inactive => "down",
        LinkState::Gone => "gone",
    }
}

/// Adds what the kernel says of a device.
pub(super) fn kernel(line: Line, key: &str, link: Option<&KernelLink>) -> Line {
    let at = |inner: &str| format!("{key}.{inner}");
    line.detail(at("dev"), link.map(|link| link.name.as_str()))
        .detail(at("ifindex"), link.map(|link| link.ifindex))
        .detail(at("up"), link.map(|link| link.up))
        .detail(at("mtu"), link.map(|link| link.mtu))
        .detail(at("xdp_program"), link.and_then(|link| link.program))
        .detail(at("xdp_mode"), link.and_then(|link| link.xdp.as_deref()))
        .detail(at("rx_packets"), link.map(|link| link.rx_packets))
        .detail(at("rx_octets"), link.map(|link| link.rx_octets))
        .detail(at("rx_dropped"), link.map(|link| link.rx_dropped))
        .detail(at("tx_packets"), link.map(|link| link.tx_packets))
        .detail(at("tx_octets"), link.map(|link| link.tx_octets))
        .detail(at("tx_dropped"), link.map(|link| link.tx_dropped))
}
