//! Rules, and the limits that follow from them.

use std::fmt;

use super::fault::Setting;
use super::table::{Reader, Table};
use super::value::{AllowedPeers, Count, Crc, Devices, Memory, Queues, Rate, TcpPorts, Value};

/// What a user may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The devices of which it may have ports.
    pub devices: Setting<Devices>,
    /// The hardware queues that it may have as ports.
    pub queues: Setting<Queues>,
    /// The most ports.
    pub ports: Setting<Count>,
    /// The most frames of all its ports.
    pub frames: Setting<Count>,
    /// The TCP ports on which it may listen.
    pub listen: Setting<TcpPorts>,
    /// The TCP ports that it has for what the host's IPsec policies protect, and for nothing else.
    pub protected: Setting<TcpPorts>,
    /// The most listeners.
    pub listeners: Setting<Count>,
    /// The most TCP ports to connect from.
    pub connections: Setting<Count>,
    /// The most that each of its ports sends in a second.
    pub rate: Setting<Rate>,
    /// The peers with which it may speak.
    pub peers: Setting<AllowedPeers>,
    /// The most memory of hugepages for frames. Ordinary pages, where there are no free hugepages,
    /// do not count.
    pub hugepages: Setting<Memory>,
    /// Whether its programs may do without CRCs.
    pub crc: Setting<Crc>,
}

/// Those of a host with users who do not know each other: what more somebody needs, a rule gives.
/// The TCP ports are those of `rnic-ctl rping` and rping, of `rnic-ctl perf`, perftest and qperf.
/// These defaults stand nowhere else in the code; `rnicd.toml` shows them, and a test compares.
impl Default for Limits {
    fn default() -> Self {
        Self {
            devices: Setting::built_in(Devices(None)),
            queues: Setting::built_in(Queues(Vec::new())),
            ports: Setting::built_in(Count(4)),
            // Of four ports as `InterfaceConfig` makes them by default.
            frames: Setting::built_in(Count(32_768)),
            listen: Setting::built_in(TcpPorts(vec![7174..=7174, 18500..=19999])),
            protected: Setting::built_in(TcpPorts(Vec::new())),
            listeners: Setting::built_in(Count(64)),
            connections: Setting::built_in(Count(1024)),
            rate: Setting::built_in(Rate(Some(1_000_000_000))),
            peers: Setting::built_in(AllowedPeers::on_link()),
            // These frames in chunks of 4 KiB.
            hugepages: Setting::built_in(Memory(128 << 20)),
            // rfc: 5044-30 CRCs are the default
            crc: Setting::built_in(Crc::Always),
        }
    }
}

impl Limits {
    /// Returns these limits, but what a rule says where it says anything.
    pub fn overruled_by(self, rule: &Rule) -> Self {
        fn or<T: Clone>(rule: &Option<Setting<T>>, limit: Setting<T>) -> Setting<T> {
            rule.clone().unwrap_or(limit)
        }
        Self {
            devices: or(&rule.devices, self.devices),
            queues: or(&rule.queues, self.queues),
            ports: or(&rule.ports, self.ports),
            frames: or(&rule.frames, self.frames),
            listen: or(&rule.listen, self.listen),
            protected: or(&rule.protected, self.protected),
            listeners: or(&rule.listeners, self.listeners),
            connections: or(&rule.connections, self.connections),
            rate: or(&rule.rate, self.rate),
            peers: or(&rule.peers, self.peers),
            hugepages: or(&rule.hugepages, self.hugepages),
            crc: or(&rule.crc, self.crc),
        }
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Rule::from(self.clone()).fmt(f)
    }
}

/// What a rule says: nothing of the keys that it does not have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// See [`Limits::devices`].
    pub devices: Option<Setting<Devices>>,
    /// See [`Limits::queues`].
    pub queues: Option<Setting<Queues>>,
    /// See [`Limits::ports`].
    pub ports: Option<Setting<Count>>,
    /// See [`Limits::frames`].
    pub frames: Option<Setting<Count>>,
    /// See [`Limits::listen`].
    pub listen: Option<Setting<TcpPorts>>,
    /// See [`Limits::protected`].
    pub protected: Option<Setting<TcpPorts>>,
    /// See [`Limits::listeners`].
    pub listeners: Option<Setting<Count>>,
    /// See [`Limits::connections`].
    pub connections: Option<Setting<Count>>,
    /// See [`Limits::rate`].
    pub rate: Option<Setting<Rate>>,
    /// See [`Limits::peers`].
    pub peers: Option<Setting<AllowedPeers>>,
    /// See [`Limits::hugepages`].
    pub hugepages: Option<Setting<Memory>>,
    /// See [`Limits::crc`].
    pub crc: Option<Setting<Crc>>,
}

impl From<Limits> for Rule {
    fn from(limits: Limits) -> Self {
        Self {
            devices: Some(limits.devices),
            queues: Some(limits.queues),
            ports: Some(limits.ports),
            frames: Some(limits.frames),
            listen: Some(limits.listen),
            protected: Some(limits.protected),
            listeners: Some(limits.listeners),
            connections: Some(limits.connections),
            rate: Some(limits.rate),
            peers: Some(limits.peers),
            hugepages: Some(limits.hugepages),
            crc: Some(limits.crc),
        }
    }
}

impl Rule {
    /// The keys of a rule.
    pub(super) const KEYS: [&'static str; 12] = [
        "devices",
        "queues",
        "ports",
        "frames",
        "listen",
        "protected",
        "listeners",
        "connections",
        "rate",
        "peers",
        "hugepages",
        "crc",
    ];

    pub(super) fn read(reader: &mut Reader<'_>, table: &Table<'_, '_>) -> Self {
        Self {
            devices: table.value(reader, "devices"),
            queues: table.value(reader, "queues"),
            ports: table.value(reader, "ports"),
            frames: table.value(reader, "frames"),
            listen: table.value(reader, "listen"),
            protected: table.value(reader, "protected"),
            listeners: table.value(reader, "listeners"),
            connections: table.value(reader, "connections"),
            rate: table.value(reader, "rate"),
            peers: table.value(reader, "peers"),
            hugepages: table.value(reader, "hugepages"),
            crc: table.value(reader, "crc"),
        }
    }

    /// Returns a value of a key as TOML that a command line has in words.
    pub(super) fn toml(key: &str, words: &str) -> Option<String> {
        Some(match key {
            "devices" => Devices::toml(words),
            "queues" => Queues::toml(words),
            "ports" | "frames" | "listeners" | "connections" => Count::toml(words),
            "listen" | "protected" => TcpPorts::toml(words),
            "rate" => Rate::toml(words),
            "peers" => AllowedPeers::toml(words),
            "hugepages" => Memory::toml(words),
            "crc" => Crc::toml(words),
            _ => return None,
        })
    }

    /// Returns what this rule says, and else what another one says.
    pub fn over(self, other: Self) -> Self {
        Self {
            devices: self.devices.or(other.devices),
            queues: self.queues.or(other.queues),
            ports: self.ports.or(other.ports),
            frames: self.frames.or(other.frames),
            listen: self.listen.or(other.listen),
            protected: self.protected.or(other.protected),
            listeners: self.listeners.or(other.listeners),
            connections: self.connections.or(other.connections),
            rate: self.rate.or(other.rate),
            peers: self.peers.or(other.peers),
            hugepages: self.hugepages.or(other.hugepages),
            crc: self.crc.or(other.crc),
        }
    }

    /// Removes a key from the rule.
    pub(super) fn forget(&mut self, key: &str) {
        match key {
            "devices" => self.devices = None,
            "queues" => self.queues = None,
            "ports" => self.ports = None,
            "frames" => self.frames = None,
            "listen" => self.listen = None,
            "protected" => self.protected = None,
            "listeners" => self.listeners = None,
            "connections" => self.connections = None,
            "rate" => self.rate = None,
            "peers" => self.peers = None,
            "hugepages" => self.hugepages = None,
            "crc" => self.crc = None,
            _ => {}
        }
    }

    /// Returns the most generous of both, key by key.
    pub fn most(self, other: Self) -> Self {
        fn most<T: Value>(
            one: Option<Setting<T>>,
            other: Option<Setting<T>>,
        ) -> Option<Setting<T>> {
            let (one, other) = match (one, other) {
                (Some(one), Some(other)) => (one, other),
                (one, other) => return one.or(other),
            };
            let value = one.value.clone().most(other.value.clone());
            Some(match value {
                value if value == one.value => one,
                value if value == other.value => other,
                value => Setting {
                    value,
                    origin: one.origin.join(other.origin),
                },
            })
        }
        Self {
            devices: most(self.devices, other.devices),
            queues: most(self.queues, other.queues),
            ports: most(self.ports, other.ports),
            frames: most(self.frames, other.frames),
            listen: most(self.listen, other.listen),
            protected: most(self.protected, other.protected),
            listeners: most(self.listeners, other.listeners),
            connections: most(self.connections, other.connections),
            rate: most(self.rate, other.rate),
            peers: most(self.peers, other.peers),
            hugepages: most(self.hugepages, other.hugepages),
            crc: most(self.crc, other.crc),
        }
    }
}

/// As TOML: a line for each key; in the alternate form with what was set while rnicd runs.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn line<T: Value>(
            f: &mut fmt::Formatter<'_>,
            key: &str,
            setting: &Option<Setting<T>>,
        ) -> fmt::Result {
            match setting {
                Some(setting) => {
                    write!(f, "{key} = {}", setting.value)?;
                    setting.origin.end_line(f)
                }
                None => Ok(()),
            }
        }
        line(f, "devices", &self.devices)?;
        line(f, "queues", &self.queues)?;
        line(f, "ports", &self.ports)?;
        line(f, "frames", &self.frames)?;
        line(f, "listen", &self.listen)?;
        line(f, "protected", &self.protected)?;
        line(f, "listeners", &self.listeners)?;
        line(f, "connections", &self.connections)?;
        line(f, "rate", &self.rate)?;
        line(f, "peers", &self.peers)?;
        line(f, "hugepages", &self.hugepages)?;
        line(f, "crc", &self.crc)
    }
}
