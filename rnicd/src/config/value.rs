//! The values of rules: how each is written, read, and which of two is the more generous.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use rnic_core::engine::{Peers, Prefix};
use rnic_manager::is_device_name;
use rnic_xdp::shared::ClientPeers;
use toml::de::{DeArray, DeValue};

/// A value of a rule. `Display` writes it as TOML.
pub(super) trait Value: fmt::Display + PartialEq + Clone {
    /// What a value must be, with an example: the rest of "it must be ...".
    const FORM: &'static str;

    /// Reads the value, if it is one.
    fn read(value: &DeValue<'_>) -> Option<Self>;

    /// Returns whether this can be in the list that the value is, if it is one.
    fn is_element(_: &DeValue<'_>) -> bool {
        true
    }

    /// Returns a value as TOML that a command line has in words, lists with commas between their
    /// elements. It may be none.
    fn toml(words: &str) -> String {
        toml_string(words)
    }

    /// Returns what the more generous of both allows; if each allows something that the other does
    /// not, both together.
    fn most(self, other: Self) -> Self;
}

/// A number of things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count(pub u64);

impl Value for Count {
    const FORM: &'static str = "a number from 0 to 4294967295, such as 4";

    fn read(value: &DeValue<'_>) -> Option<Self> {
        let number = value.as_integer()?;
        let count = u32::from_str_radix(number.as_str(), number.radix()).ok()?;
        Some(Self(count.into()))
    }

    fn toml(words: &str) -> String {
        match words.parse::<u32>() {
            Ok(number) => number.to_string(),
            Err(_) => toml_string(words),
        }
    }

    fn most(self, other: Self) -> Self {
        Self(self.0.max(other.0))
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Units by their names, the smallest first.
type Units = [(&'static str, u64)];

/// Reads a number and a unit.
fn scaled(text: &str, units: &Units) -> Option<u64> {
    let end = text.find(|char: char| !char.is_ascii_digit())?;
    let (number, unit) = text.split_at(end);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit.trim_start())?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

/// Writes a number in the largest unit in which it is whole.
fn write_scaled(f: &mut fmt::Formatter<'_>, number: u64, units: &Units) -> fmt::Result {
    let fits = |(_, factor): &&(&str, u64)| number.is_multiple_of(*factor);
    let (name, factor) = units.iter().rev().find(fits).unwrap_or(&units[0]);
    write!(f, "\"{}{name}\"", number / factor)
}

/// An amount of memory, in octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory(pub u64);

const OCTETS: &Units = &[
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

impl Value for Memory {
    const FORM: &'static str = "an amount of memory in B, KiB, MiB, GiB or TiB, such as \"256MiB\"";

    fn read(value: &DeValue<'_>) -> Option<Self> {
        scaled(value.as_str()?, OCTETS).map(Self)
    }

    fn most(self, other: Self) -> Self {
        Self(self.0.max(other.0))
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Zero is whole in every unit.
        let units = if self.0 == 0 { &OCTETS[..1] } else { OCTETS };
        write_scaled(f, self.0, units)
    }
}

/// Whether connections have CRCs (RFC 5044 section 4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crc {
    /// Every connection has them.
    Always,
    /// A connection does without where the programs of both sides say so.
    Optional,
}

impl Value for Crc {
    const FORM: &'static str = "\"always\" or \"optional\"";

    fn read(value: &DeValue<'_>) -> Option<Self> {
        match value.as_str()? {
            "always" => Some(Self::Always),
            "optional" => Some(Self::Optional),
            _ => None,
        }
    }

    fn most(self, other: Self) -> Self {
        match (self, other) {
            (Self::Always, Self::Always) => Self::Always,
            _ => Self::Optional,
        }
    }
}

impl fmt::Display for Crc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Always => "\"always\"",
            Self::Optional => "\"optional\"",
        })
    }
}

/// The most bits in a second, or no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate(pub Option<u64>);

const BITS: &Units = &[
    ("bit", 1),
    ("kbit", 1_000),
    ("Mbit", 1_000_000),
    ("Gbit", 1_000_000_000),
    ("Tbit", 1_000_000_000_000),
];

impl Value for Rate {
    const FORM: &'static str =
        "a rate in bit, kbit, Mbit, Gbit or Tbit each second, such as \"10Gbit\", or \"none\"";

    fn read(value: &DeValue<'_>) -> Option<Self> {
        match value.as_str()? {
            "none" => Some(Self(None)),
            // A rate of nothing would be a port that cannot send at all.
            text => scaled(text, BITS)
                .filter(|bits| *bits > 0)
                .map(Some)
                .map(Self),
        }
    }

    fn most(self, other: Self) -> Self {
        Self(self.0.zip(other.0).map(|(one, two)| one.max(two)))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("\"none\""),
            Some(bits) => write_scaled(f, bits, BITS),
        }
    }
}

/// Reads a list of strings and numbers, or `None` in the place of "all".
fn list<T>(
    value: &DeValue<'_>,
    read: impl Fn(&DeValue<'_>) -> Option<T>,
) -> Option<Option<Vec<T>>> {
    if value.as_str() == Some("all") {
        return Some(None);
    }
    let elements: &DeArray<'_> = value.as_array()?;
    let read: Option<Vec<T>> = elements
        .iter()
        .map(|element| read(element.get_ref()))
        .collect();
    read.map(Some)
}

/// Writes what [`list`] reads.
fn write_list<T: fmt::Display>(f: &mut fmt::Formatter<'_>, list: Option<&[T]>) -> fmt::Result {
    let Some(list) = list else {
        return f.write_str("\"all\"");
    };
    let elements = list.iter().map(|element| toml_string(&element.to_string()));
    write!(f, "[{}]", elements.collect::<Vec<_>>().join(", "))
}

/// Returns a list as TOML, or "all".
fn toml_list(words: &str) -> String {
    if words == "all" {
        return toml_string(words);
    }
    let elements = words.split(',').map(str::trim);
    let elements = elements.filter(|element| !element.is_empty());
    format!(
        "[{}]",
        elements.map(toml_string).collect::<Vec<_>>().join(", ")
    )
}

/// Returns a value in the words of a command line, which `Value::toml` understands.
pub fn words(value: &impl fmt::Display) -> String {
    let mut text = value.to_string();
    text.retain(|char| !matches!(char, '"' | '[' | ']' | ' '));
    text
}

/// Returns a text as TOML.
pub(super) fn toml_string(text: &str) -> String {
    toml::Value::from(text).to_string()
}

fn united<T: PartialEq>(one: Option<Vec<T>>, other: Option<Vec<T>>) -> Option<Vec<T>> {
    let (mut one, other) = one.zip(other)?;
    for element in other {
        if !one.contains(&element) {
            one.push(element);
        }
    }
    Some(one)
}

fn device(value: &DeValue<'_>) -> Option<String> {
    let name = value.as_str().filter(|name| is_device_name(name));
    name.map(str::to_owned)
}

/// The names of devices, or all devices that rnicd has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Devices(pub Option<Vec<String>>);

impl Devices {
    /// Returns whether this device is one of them.
    pub fn contains(&self, netdev: &str) -> bool {
        let names = self.0.as_ref();
        names.is_none_or(|names| names.iter().any(|name| name == netdev))
    }
}

impl Value for Devices {
    const FORM: &'static str = "a list of devices, such as [\"eth1\"], or \"all\"";

    fn read(value: &DeValue<'_>) -> Option<Self> {
        list(value, device).map(Self)
    }

    fn is_element(value: &DeValue<'_>) -> bool {
        device(value).is_some()
    }

    fn toml(words: &str) -> String {
        toml_list(words)
    }

    fn most(self, other: Self) -> Self {
        Self(united(self.0, other.0))
    }
}

impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_list(f, self.0.as_deref())
    }
}

/// Hardware queues of devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queues(pub Vec<Queue>);

/// A receive queue of a device, with the transmit queue of the same number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// The device.
    pub netdev: String,
    /// The number, from 0 on.
    pub number: u32,
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.netdev, self.number)
    }
}

fn queue(value: &DeValue<'_>) -> Option<Queue> {
    // A name can have colons.
    let (netdev, number) = value.as_str()?.rsplit_once(':')?;
    let number = u16::from_str(number).ok()?.into();
    let netdev = is_device_name(netdev).then(|| netdev.to_owned())?;
    Some(Queue { netdev, number })
}

impl Value for Queues {
    const FORM: &'static str =
        "a list of devices with the number of a queue each, such as [\"eth1:3\"], or []";

    fn read(value: &DeValue<'_>) -> Option<Self> {
        // "all" would grant more than anybody wants to: nothing polices what is sent.
        list(value, queue)?.map(Self)
    }

    fn is_element(value: &DeValue<'_>) -> bool {
        queue(value).is_some()
    }

    fn toml(words: &str) -> String {
        toml_list(words)
    }

    fn most(self, other: Self) -> Self {
        Self(united(Some(self.0), Some(other.0)).unwrap_or_default())
    }
}

impl fmt::Display for Queues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_list(f, Some(&self.0))
    }
}

/// TCP ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpPorts(pub Vec<RangeInclusive<u16>>);

impl TcpPorts {
    /// Returns whether this TCP port is one of them.
    pub fn contains(&self, port: u16) -> bool {
        self.0.iter().any(|range| range.contains(&port))
    }
}

pub(super) fn range(value: &DeValue<'_>) -> Option<RangeInclusive<u16>> {
    let (first, last) = match (value.as_integer(), value.as_str()) {
        (Some(number), _) => {
            let port = u16::from_str_radix(number.as_str(), number.radix()).ok()?;
            (port, port)
        }
        (None, Some(text)) => {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            (first.trim().parse().ok()?, last.trim().parse().ok()?)
        }
        (None, None) => return None,
    };
    (first > 0 && first <= last).then_some(first..=last)
}

impl Value for TcpPorts {
    const FORM: &'static str =
        "a list of TCP ports from 1 to 65535 and ranges, such as [7174, \"8000-8999\"]";

    fn read(value: &DeValue<'_>) -> Option<Self> {
        // "all" would hide that the ports below 1024 are among them.
        list(value, range)?.map(Self)
    }

    fn is_element(value: &DeValue<'_>) -> bool {
        range(value).is_some()
    }

    fn toml(words: &str) -> String {
        toml_list(words)
    }

    fn most(self, other: Self) -> Self {
        Self(united(Some(self.0), Some(other.0)).unwrap_or_default())
    }
}

impl fmt::Display for TcpPorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |range: &RangeInclusive<u16>| match (range.start(), range.end()) {
            (first, last) if first == last => first.to_string(),
            (first, last) => format!("\"{first}-{last}\""),
        };
        let ranges: Vec<_> = self.0.iter().map(text).collect();
        write!(f, "[{}]", ranges.join(", "))
    }
}

/// The peers with which a client may speak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedPeers(pub ClientPeers);

/// The word for the hosts in the networks of the device.
const ON_LINK: &str = "on-link";

/// An element of the list.
enum Element {
    OnLink,
    Prefix(Prefix),
}

fn element(value: &DeValue<'_>) -> Option<Element> {
    match value.as_str()? {
        ON_LINK => Some(Element::OnLink),
        text => text.parse().ok().map(Element::Prefix),
    }
}

impl AllowedPeers {
    /// Returns the hosts in the networks of the device, and no others.
    pub fn on_link() -> Self {
        Self(ClientPeers {
            on_link: true,
            listed: Peers::only([]),
        })
    }
}

impl Value for AllowedPeers {
    const FORM: &'static str = "a list of addresses, prefixes and \"on-link\", such as [\"192.0.2.0/24\", \"2001:db8::/32\"], or \"all\"";

    fn read(value: &DeValue<'_>) -> Option<Self> {
        let Some(elements) = list(value, element)? else {
            return Some(Self(Peers::all().into()));
        };
        let is_on_link = |element: &Element| matches!(element, Element::OnLink);
        let on_link = elements.iter().any(is_on_link);
        let listed = elements.into_iter().filter_map(|element| match element {
            Element::OnLink => None,
            Element::Prefix(prefix) => Some(prefix),
        });
        let listed = Peers::only(listed);
        Some(Self(ClientPeers { on_link, listed }))
    }

    fn is_element(value: &DeValue<'_>) -> bool {
        element(value).is_some()
    }

    fn toml(words: &str) -> String {
        toml_list(words)
    }

    fn most(self, other: Self) -> Self {
        let on_link = self.0.on_link || other.0.on_link;
        let lists = [self, other].map(|peers| peers.0.listed.limits().map(<[Prefix]>::to_vec));
        let [one, other] = lists;
        // Whoever may speak with all need not be told of some.
        Self(match united(one, other) {
            None => Peers::all().into(),
            Some(listed) => ClientPeers {
                on_link,
                listed: Peers::only(listed),
            },
        })
    }
}

impl fmt::Display for AllowedPeers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on_link = self.0.on_link.then(|| ON_LINK.to_owned());
        let listed = self.0.listed.limits().map(|listed| {
            let listed = listed.iter().map(Prefix::to_string);
            on_link.into_iter().chain(listed).collect::<Vec<_>>()
        });
        write_list(f, listed.as_deref())
    }
}
