//! What rnicd shows: its devices, ports, leases and users, and what happens to them.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::device::{LinkState, Mode};
use crate::refused::Reason;

/// The most octets of the objects of a page, which leaves room for the rest of the message.
const MAX_OCTETS: usize = 60 << 10;

/// The most objects of a page.
pub(crate) const MAX_OBJECTS: usize = 1024;

/// A part of a list that may be too long for a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page<T> {
    /// The objects, in order.
    pub list: Vec<T>,
    /// Whether there are others behind them.
    pub more: bool,
}

impl<T: Serialize> Page<T> {
    /// Lists as many objects as a message has room for, and at least one if there is one. Makes
    /// none but those and the next one.
    pub fn of(objects: impl IntoIterator<Item = T>) -> Self {
        let (mut list, mut octets) = (Vec::new(), 0);
        for object in objects {
            // A value that is no JSON cannot be sent either.
            octets += serde_json::to_vec(&object).map_or(0, |json| json.len() + 1);
            if !list.is_empty() && (octets > MAX_OCTETS || list.len() == MAX_OBJECTS) {
                return Self { list, more: true };
            }
            list.push(object);
        }
        Self { list, more: false }
    }
}

/// A device that rnicd shares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceState {
    /// Its name.
    pub netdev: String,
    /// Whether it can send. It is [`LinkState::Gone`] if the device waits.
    pub state: LinkState,
    /// Why clients get no ports of it now.
    #[serde(default)]
    pub fault: Option<String>,
    /// The XDP mode of the steering program. Without it, the device waits: it is to be shared, and
    /// cannot be now.
    pub mode: Option<Mode>,
    /// The MTU for which ports are made: that of the device now.
    pub mtu: u32,
    /// How many ports it has.
    pub ports: u32,
    /// How many leases its ports have.
    pub leases: u32,
    /// Who has set that it is shared.
    #[serde(default)]
    pub set_by: String,
    /// How it is to be shared.
    #[serde(default)]
    pub settings: Vec<Configured>,
    /// What became of the frames that it received.
    pub received: Vec<SteeredFrames>,
    /// What the kernel says of the device; without it, the kernel has no such device now.
    pub kernel: Option<KernelLink>,
}

/// A setting, in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configured {
    /// Its key in the configuration.
    pub key: String,
    /// Its value; a list has commas between its elements. What is too long is cut.
    pub value: String,
    /// Who has set it.
    pub set_by: String,
}

/// Frames with which the steering program did the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SteeredFrames {
    /// What it did, or why, as in `SteeringCounters` of rnic-xdp.
    pub reason: String,
    /// How many.
    pub frames: u64,
}

/// A network device in the words of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelLink {
    /// Its name.
    pub name: String,
    /// Its index.
    pub ifindex: u32,
    /// Whether it is up.
    pub up: bool,
    /// Its MTU.
    pub mtu: u32,
    /// The id of the XDP program that is attached.
    pub program: Option<u32>,
    /// How it is attached: "native", "generic", "offloaded" or "in several modes".
    pub xdp: Option<String>,
    /// Packets that it received.
    pub rx_packets: u64,
    /// Octets that it received.
    pub rx_octets: u64,
    /// Packets that were dropped on the way in.
    pub rx_dropped: u64,
    /// Packets that it sent.
    pub tx_packets: u64,
    /// Octets that it sent.
    pub tx_octets: u64,
    /// Packets that were dropped on the way out.
    pub tx_dropped: u64,
}

/// A port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortState {
    /// Its number.
    pub port: u32,
    /// Its device.
    pub netdev: String,
    /// The user of its client.
    pub uid: u32,
    /// The program of its client.
    pub program: String,
    /// The process of its client when the port was opened or came back last, as rnicd sees it: 0 if
    /// it cannot.
    pub pid: i32,
    /// Whether its client is connected to rnicd. Frames do not depend on that.
    pub connected: bool,
    /// It has ended: nothing is sent or received there. It counts until nobody has its AF_XDP
    /// socket any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ending: bool,
    /// Frames: those to be sent, and those that circulate at first.
    pub frames: u32,
    /// Octets of its UMEM that lie on hugepages: all, or none if there were not enough.
    pub huge_octets: u64,
    /// How many leases it has.
    pub leases: u32,
    /// When it was opened, in seconds since 1970-01-01 UTC.
    pub since: u64,
    /// What became of the frames that its client sent.
    pub sent: Vec<SentFrames>,
    /// The host end of its veth pair, which sends what the client receives; without it, the kernel
    /// has no such device now, or the port is a hardware queue.
    pub host_end: Option<KernelLink>,
    /// The hardware queue that it is, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueState>,
}

/// A hardware queue that a port is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueState {
    /// Its number.
    pub queue: u32,
    /// Why frames are copied; without it, they are not.
    pub copied: Option<String>,
}

/// Frames of a client with which the program on the host end did the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentFrames {
    /// What it did, or why: the name of a [`PoliceVerdict`](crate::PoliceVerdict).
    pub verdict: String,
    /// How many.
    pub frames: u64,
    /// Their octets, Ethernet headers included.
    pub octets: u64,
}

/// A lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseState {
    /// The port that has it.
    pub port: u32,
    /// What was leased.
    pub local: SocketAddr,
    /// The address and TCP port by which peers find a listener that has another one: they ask the
    /// port mapper.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known_as: Option<SocketAddr>,
    /// The device of the port.
    pub netdev: String,
    /// The user of the port's client.
    pub uid: u32,
    /// When it was leased, in seconds since 1970-01-01 UTC. It is not known of leases that are
    /// older than this rnicd.
    pub since: Option<u64>,
}

/// A Security Association of the host whose keys a port has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssociationState {
    /// The port.
    pub port: u32,
    /// The device of the port.
    pub netdev: String,
    /// The user of the port's client.
    pub uid: u32,
    /// Its Security Parameters Index.
    pub spi: u32,
    /// The receiver.
    pub destination: IpAddr,
}

/// A user that has ports or is connected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserState {
    /// Its number.
    pub uid: u32,
    /// How many connections to rnicd it has.
    pub connections: u32,
    /// What it holds, and may hold.
    pub resources: Vec<Holding>,
    /// What else it may.
    #[serde(default)]
    pub settings: Vec<Configured>,
}

/// What a user holds of a resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// The resource, by its key in the configuration.
    pub resource: String,
    /// How much it holds.
    pub held: u64,
    /// How much it may hold.
    pub limit: u64,
    /// Who has set the limit.
    pub set_by: String,
}

/// What a user has sent and received through a device, by ports that are there and by ports that
/// have ended. It grows only, as long as the system runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageState {
    /// The device.
    pub netdev: String,
    /// The user. Without it, all those who came when rnicd counted as many users apart as it does
    /// at most.
    pub uid: Option<u32>,
    /// What became of the frames that the user's clients sent.
    pub sent: Vec<SentFrames>,
    /// Frames that they received. What a port received in the last moments before its end may be
    /// missing.
    pub received_frames: u64,
    /// Octets of these frames.
    pub received_octets: u64,
}

/// rnicd itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonState {
    /// Its version.
    pub version: String,
    /// When it started, in seconds since 1970-01-01 UTC.
    pub since: u64,
}

/// What happens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A port was opened.
    PortOpened {
        /// Its number.
        port: u32,
        /// Its device.
        netdev: String,
        /// The user of its client.
        uid: u32,
        /// The process of its client.
        pid: i32,
        /// The program of its client.
        program: String,
    },
    /// A port has ended, and its leases with it.
    PortEnded {
        /// Its number.
        port: u32,
        /// Its device.
        netdev: String,
        /// Why.
        why: PortEnd,
    },
    /// A port has leased an address and TCP port.
    LeaseAdded {
        /// The port.
        port: u32,
        /// What was leased.
        local: SocketAddr,
    },
    /// A lease has ended before its port.
    LeaseEnded {
        /// The port.
        port: u32,
        /// What was leased.
        local: SocketAddr,
        /// An administrator has revoked it.
        revoked: bool,
    },
    /// An administrator has changed a setting, or had the configuration read again.
    SettingsChanged {
        /// What was changed, in words.
        what: String,
    },
    /// A device is shared from now on.
    DeviceShared {
        /// Its name.
        netdev: String,
    },
    /// Whether a device can send has changed, or it is gone or shared no more.
    DeviceChanged {
        /// Its name.
        netdev: String,
        /// What it is now.
        state: LinkState,
    },
    /// Something else of a device has changed.
    DeviceNews {
        /// Its name.
        netdev: String,
        /// What.
        news: DeviceNews,
    },
    /// The configuration was to be read again, and has faults: the old one counts.
    ReloadRefused {
        /// What is wrong with it.
        why: String,
    },
    /// A client was refused something.
    Refused {
        /// The user of the client.
        uid: u32,
        /// The process of the client.
        pid: i32,
        /// The program of the client; it is empty if the client has not said it.
        program: String,
        /// Why, for programs.
        reason: Reason,
        /// Why, for people.
        message: String,
    },
    /// The reader was too slow for some events.
    Missed {
        /// How many.
        events: u64,
    },
}

/// What has changed of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum DeviceNews {
    /// Its MTU, which ports get that are made from now on.
    Mtu {
        /// The MTU.
        mtu: u32,
    },
    /// Its MAC address.
    Mac {
        /// The address.
        mac: String,
    },
    /// This host has got an address on the device, or on a VLAN of it.
    AddressAdded {
        /// The address.
        address: IpAddr,
    },
    /// This host has lost an address on the device.
    AddressRemoved {
        /// The address.
        address: IpAddr,
    },
    /// The device does not run the steering program any more: nothing comes to clients, and nobody
    /// gets a port.
    ProgramDetached {
        /// What is in its place, or why it cannot be attached again.
        why: String,
    },
    /// The steering program was detached, and was attached again.
    ProgramAttached,
}

impl fmt::Display for DeviceNews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mtu { mtu } => write!(f, "new ports have an MTU of {mtu}"),
            Self::Mac { mac } => write!(f, "the MAC address is {mac} now"),
            Self::AddressAdded { address } => write!(f, "{address} was added"),
            Self::AddressRemoved { address } => write!(f, "{address} was removed"),
            Self::ProgramDetached { why } => {
                write!(
                    f,
                    "rnic's XDP program was detached, and clients get nothing: {why}"
                )
            }
            Self::ProgramAttached => {
                f.write_str("rnic's XDP program was detached, and is attached again")
            }
        }
    }
}

/// Why a port has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortEnd {
    /// Nobody has its socket any more.
    Left,
    /// An administrator has ended it.
    Killed,
    /// Its device is gone, or shared no more.
    DeviceGone,
    /// Anything that this version does not know.
    #[serde(other)]
    Other,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_fit_a_message_and_are_not_made_in_vain() {
        let text = "x".repeat(1000);
        let mut made = 0;
        let objects = std::iter::repeat_with(|| {
            made += 1;
            text.clone()
        });
        let page = Page::of(objects.take(10_000));
        assert!(page.more);
        // 1000 octets, two quotes and a comma.
        assert_eq!((page.list.len(), made), (61_440 / 1003, 61_440 / 1003 + 1));
        assert_eq!(Page::of(vec![0; 1025]).list.len(), 1024);
        assert!(Page::of(vec![0; 1025]).more);
        assert!(!Page::of(vec![0; 1024]).more);
        assert_eq!(Page::of([text.repeat(100)]).list.len(), 1);
        assert_eq!(
            Page::of([""; 0]),
            Page {
                list: Vec::new(),
                more: false
            }
        );
    }
}
