//! The metrics: their names, what they mean, and where their values come from.
//!
//! What is counted for users has the user and the device as labels, and is summed over the user's
//! ports: those labels are few, and no counter goes back when a port ends. Process ids and programs
//! are no labels: each new process would make new series.

use rnic_manager::LinkState;
use rnic_manager::Mode;
use rnic_manager::states::{DeviceState, KernelLink, PortState, SentFrames, UsageState, UserState};

use super::exposition::Exposition;
use super::snapshot::Snapshot;
use crate::failure::Outcome;
use crate::objects::words::Users;

/// The most users whose quotas are shown. rnicd does not count more users apart either.
const MAX_USERS: usize = 256;
/// The name of those that rnicd does not count apart, which can be no user's.
const OTHERS: &str = "(others)";

/// A name, and what it means.
type Name = (&'static str, &'static str);

const BUILD: Name = (
    "rnic_build_info",
    "The version of rnic-ctl, which says all this; always 1.",
);
const UP: Name = ("rnic_up", "Whether rnicd answers.");
const DAEMON: Name = ("rnic_daemon_info", "The version of rnicd; always 1.");
const STARTED: Name = (
    "rnic_daemon_start_time_seconds",
    "When rnicd started, in seconds since 1970-01-01 UTC.",
);
const USERS: Name = (
    "rnic_users",
    "Users that have ports or are connected to rnicd.",
);

const DEVICE: Name = (
    "rnic_device_info",
    "A device that is shared, and the XDP mode of its steering program; always 1.",
);
const DEVICE_UP: Name = (
    "rnic_device_up",
    "Whether the device can send: it is up and has a carrier.",
);
const DEVICE_MTU: Name = (
    "rnic_device_mtu_octets",
    "The MTU for which ports are made.",
);
const DEVICE_PORTS: Name = ("rnic_device_ports", "Ports of the device.");
const DEVICE_LEASES: Name = ("rnic_device_leases", "Leases of the ports of the device.");
const DEVICE_RECEIVED: Name = (
    "rnic_device_received_frames_total",
    "Frames that the device received, by what the steering program did with them.",
);
const KERNEL_RECEIVED: [Name; 3] = [
    (
        "rnic_device_kernel_received_frames_total",
        "Packets that the device received, as the kernel counts them.",
    ),
    (
        "rnic_device_kernel_received_octets_total",
        "Octets of these packets.",
    ),
    (
        "rnic_device_kernel_received_dropped_frames_total",
        "Packets that the device dropped on the way in, as the kernel counts them.",
    ),
];
const KERNEL_SENT: [Name; 3] = [
    (
        "rnic_device_kernel_sent_frames_total",
        "Packets that the device sent, as the kernel counts them.",
    ),
    (
        "rnic_device_kernel_sent_octets_total",
        "Octets of these packets.",
    ),
    (
        "rnic_device_kernel_sent_dropped_frames_total",
        "Packets that the device dropped on the way out, as the kernel counts them.",
    ),
];

const USER_SENT: [Name; 2] = [
    (
        "rnic_user_sent_frames_total",
        "Frames that the user's clients sent, by what became of them.",
    ),
    (
        "rnic_user_sent_octets_total",
        "Octets of these frames, Ethernet headers included.",
    ),
];
const USER_RECEIVED: [Name; 2] = [
    (
        "rnic_user_received_frames_total",
        "Frames that the user's clients received.",
    ),
    ("rnic_user_received_octets_total", "Octets of these frames."),
];
const USER_CONNECTIONS: Name = ("rnic_user_connections", "Connections of the user to rnicd.");
const QUOTA_USED: Name = (
    "rnic_user_quota_used",
    "What the user holds of a resource: a number, and octets of hugepages.",
);
const QUOTA_LIMIT: Name = (
    "rnic_user_quota_limit",
    "What the user may hold of a resource.",
);

const PORT_SENT: [Name; 2] = [
    (
        "rnic_port_sent_frames_total",
        "Frames that the client of the port sent, by what became of them.",
    ),
    (
        "rnic_port_sent_octets_total",
        "Octets of these frames, Ethernet headers included.",
    ),
];
const PORT_RECEIVED: [Name; 2] = [
    (
        "rnic_port_received_frames_total",
        "Frames that the client of the port received.",
    ),
    ("rnic_port_received_octets_total", "Octets of these frames."),
];
const PORT_LEASES: Name = ("rnic_port_leases", "Leases of the port.");
const PORT_STARTED: Name = (
    "rnic_port_start_time_seconds",
    "When the port was opened, in seconds since 1970-01-01 UTC. Another port may have had its number before.",
);

/// Returns the metrics as text. Without a snapshot, rnicd does not run.
pub(super) fn text(snapshot: Option<&Snapshot>, names: &mut Users) -> Outcome<String> {
    let mut out = Exposition::default();
    out.gauge(BUILD, &[("version", env!("CARGO_PKG_VERSION"))], 1);
    out.gauge(UP, &[], u64::from(snapshot.is_some()));
    if let Some(snapshot) = snapshot {
        let daemon = &snapshot.daemon;
        out.gauge(DAEMON, &[("version", &daemon.version)], 1);
        out.gauge(STARTED, &[], daemon.since);
        out.gauge(USERS, &[], snapshot.users.len() as u64);
        for device in &snapshot.devices {
            add_device(&mut out, device);
        }
        for usage in &snapshot.usage {
            let user = usage.uid.map_or(OTHERS, |uid| names.name(uid));
            add_usage(&mut out, usage, user);
        }
        for user in snapshot.users.iter().take(MAX_USERS) {
            add_user(&mut out, user, names.name(user.uid));
        }
        for port in &snapshot.ports {
            add_port(&mut out, port, names.name(port.uid));
        }
    }
    out.text()
}

fn add_device(out: &mut Exposition, state: &DeviceState) {
    let device = ("device", state.netdev.as_str());
    let up = state.state == LinkState::Active && state.fault.is_none();
    let xdp = match state.mode {
        Some(Mode::Native) => "native",
        Some(Mode::Generic { .. }) => "generic",
        // It waits.
        None => return out.gauge(DEVICE_UP, &[device], 0),
    };
    out.gauge(DEVICE, &[device, ("xdp", xdp)], 1);
    out.gauge(DEVICE_UP, &[device], u64::from(up));
    out.gauge(DEVICE_MTU, &[device], state.mtu.into());
    out.gauge(DEVICE_PORTS, &[device], state.ports.into());
    out.gauge(DEVICE_LEASES, &[device], state.leases.into());
    for steered in &state.received {
        let labels = [device, ("verdict", steered.reason.as_str())];
        out.count(DEVICE_RECEIVED, &labels, steered.frames);
    }
    if let Some(kernel) = &state.kernel {
        let received = [kernel.rx_packets, kernel.rx_octets, kernel.rx_dropped];
        let sent = [kernel.tx_packets, kernel.tx_octets, kernel.tx_dropped];
        let both = [(KERNEL_RECEIVED, received), (KERNEL_SENT, sent)];
        for (names, values) in both {
            for (name, value) in names.into_iter().zip(values) {
                out.count(name, &[device], value);
            }
        }
    }
}

fn add_usage(out: &mut Exposition, usage: &UsageState, user: &str) {
    let labels = [("device", usage.netdev.as_str()), ("user", user)];
    add_sent(out, USER_SENT, &labels, &usage.sent);
    let [frames, octets] = USER_RECEIVED;
    out.count(frames, &labels, usage.received_frames);
    out.count(octets, &labels, usage.received_octets);
}

fn add_user(out: &mut Exposition, state: &UserState, user: &str) {
    let user = ("user", user);
    out.gauge(USER_CONNECTIONS, &[user], state.connections.into());
    for holding in &state.resources {
        let labels = [user, ("resource", holding.resource.as_str())];
        out.gauge(QUOTA_USED, &labels, holding.held);
        out.gauge(QUOTA_LIMIT, &labels, holding.limit);
    }
}

fn add_port(out: &mut Exposition, state: &PortState, user: &str) {
    let number = state.port.to_string();
    let device = ("device", state.netdev.as_str());
    let labels = [device, ("port", number.as_str()), ("user", user)];
    add_sent(out, PORT_SENT, &labels, &state.sent);
    let received = state.host_end.as_ref().map(received_by_client);
    for (name, value) in PORT_RECEIVED
        .into_iter()
        .zip(received.into_iter().flatten())
    {
        out.count(name, &labels, value);
    }
    out.gauge(PORT_LEASES, &labels, state.leases.into());
    out.gauge(PORT_STARTED, &labels, state.since);
}

/// Returns frames and octets that a client has received: what the host end sends.
fn received_by_client(host_end: &KernelLink) -> [u64; 2] {
    [host_end.tx_packets, host_end.tx_octets]
}

fn add_sent(
    out: &mut Exposition,
    [frames, octets]: [Name; 2],
    labels: &[(&'static str, &str)],
    sent: &[SentFrames],
) {
    for sent in sent {
        let mut labels = labels.to_vec();
        labels.push(("verdict", sent.verdict.as_str()));
        out.count(frames, &labels, sent.frames);
        out.count(octets, &labels, sent.octets);
    }
}
