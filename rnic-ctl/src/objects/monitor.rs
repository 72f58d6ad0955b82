//! `rnic-ctl monitor`: what happens to the devices, ports and leases of rnicd.

use std::thread::sleep;
use std::time::Duration;

use clap::Args;
use rnic_manager::states::{DeviceNews, Event, PortEnd};
use rnic_manager::{Administrator, AskError, TimedEvent};
use serde_json::Value;

use super::access::{Access, Style, failed};
use super::dev::state;
use super::line::Line;
use super::words::{Users, time};
use crate::failure::Outcome;
use crate::interrupt::Interrupt;

const WHAT: &str = "follow what happens";
/// How soon Ctrl-C is noticed at the latest.
const PATIENCE: Duration = Duration::from_millis(200);

/// Shows what happens until Ctrl-C, as root.
///
/// It shows ports opened and ended, leases added and ended, devices that go up and down, their
/// addresses, MTU and XDP programs, settings, and what clients were refused. The first line says
/// that it listens. If it reads too slowly, a line says how many events it has missed. When rnicd
/// ends, a line says so; what happens until the next one listens is not seen.
#[derive(Clone, Debug, Args)]
pub(crate) struct MonitorArgs {
    #[command(flatten)]
    access: Access,
}

/// Runs the command.
pub(crate) fn run(args: &MonitorArgs, style: Style, interrupt: &Interrupt) -> Outcome {
    let style = args.access.style(style);
    let mut administrator = args.access.connect()?;
    administrator.monitor().map_err(failed(WHAT))?;
    style.print(&Line::default().with("event", "listening"))?;
    let mut users = Users::default();
    while !interrupt.is_signalled() {
        match administrator.next_event(PATIENCE) {
            Ok(Some(event)) => style.print(&line(&event, &mut users))?,
            Ok(None) => {}
            Err(why) => {
                let away = Line::default().with("event", "rnicd_away");
                style.print(&away.with("why", why.to_string()))?;
                let Some(again) = again(args, interrupt)? else {
                    break;
                };
                administrator = again;
                style.print(&Line::default().with("event", "listening"))?;
            }
        }
    }
    Ok(())
}

/// Waits for the next rnicd, until Ctrl-C.
fn again(args: &MonitorArgs, interrupt: &Interrupt) -> Outcome<Option<Administrator>> {
    while !interrupt.is_signalled() {
        let connected = args.access.administrator().and_then(|mut administrator| {
            administrator.monitor()?;
            Ok(administrator)
        });
        match connected {
            Ok(administrator) => return Ok(Some(administrator)),
            Err(why @ AskError::Refused(_)) => return Err(failed(WHAT)(why)),
            Err(_) => sleep(PATIENCE),
        }
    }
    Ok(None)
}

fn line((at, event): &TimedEvent, users: &mut Users) -> Line {
    let line = |event: &str| Line::default().with("event", event).with("at", time(*at));
    match event {
        Event::PortOpened {
            port,
            netdev,
            uid,
            pid,
            program,
        } => line("port_opened")
            .with("port", *port)
            .with("dev", netdev.as_str())
            .with("user", users.name(*uid))
            .with("uid", *uid)
            .with("pid", *pid)
            .with("program", program.as_str()),
        Event::PortEnded { port, netdev, why } => line("port_ended")
            .with("port", *port)
            .with("dev", netdev.as_str())
            .with("why", why_ended(*why)),
        Event::LeaseAdded { port, local } => line("lease_added")
            .with("port", *port)
            .with("lease", local.to_string()),
        Event::LeaseEnded {
            port,
            local,
            revoked,
        } => line("lease_ended")
            .with("port", *port)
            .with("lease", local.to_string())
            .with("revoked", *revoked),
        Event::SettingsChanged { what } => line("settings_changed").with("what", what.as_str()),
        Event::DeviceShared { netdev } => line("device_shared").with("dev", netdev.as_str()),
        Event::DeviceChanged { netdev, state: now } => line("device_changed")
            .with("dev", netdev.as_str())
            .with("state", state(*now)),
        Event::DeviceNews { netdev, news } => news_line(line, netdev, news),
        Event::ReloadRefused { why } => line("reload_refused").with("why", why.as_str()),
        Event::Refused {
            uid,
            pid,
            program,
            reason,
            message,
        } => line("refused")
            .with("user", users.name(*uid))
            .with("uid", *uid)
            .with("pid", *pid)
            .with("program", program.as_str())
            .with(
                "reason",
                serde_json::to_value(reason).unwrap_or(Value::Null),
            )
            .with("message", message.as_str()),
        Event::Missed { events } => line("missed").with("events", *events),
    }
}

fn news_line(line: impl Fn(&str) -> Line, netdev: &str, news: &DeviceNews) -> Line {
    let line = |event| line(event).with("dev", netdev);
    match news {
        DeviceNews::Mtu { mtu } => line("mtu_changed").with("mtu", *mtu),
        DeviceNews::Mac { mac } => line("mac_changed").with("mac", mac.as_str()),
        DeviceNews::AddressAdded { address } => {
            line("address_added").with("address", address.to_string())
        }
        DeviceNews::AddressRemoved { address } => {
            line("address_removed").with("address", address.to_string())
        }
        DeviceNews::ProgramDetached { why } => line("program_detached").with("why", why.as_str()),
        DeviceNews::ProgramAttached => line("program_attached"),
    }
}

fn why_ended(why: PortEnd) -> &'static str {
    match why {
        PortEnd::Left => "client_left",
        PortEnd::Killed => "killed",
        PortEnd::DeviceGone => "device_gone",
        PortEnd::Other => "other",
    }
}
