//! What the values of a message must be. Senders are not trusted.

use std::net::SocketAddr;

use serde_json::Value;

use crate::device::Mode;
use crate::protocol::{
    Answer, Ask, Change, FromDaemon, Grant, Hop, Message, Notice, Protection, Refused, Reply,
    Request, UntaggedAddress,
};
use crate::states::MAX_OBJECTS;

/// The most octets of a device's name (`IFNAMSIZ` of Linux, without the zero at the end).
const MAX_NAME: usize = 15;
/// The most octets of a program's name.
const MAX_PROGRAM: usize = 256;
/// The most octets of the name or number of a user (`LOGIN_NAME_MAX` of Linux).
const MAX_USER: usize = 256;
/// The most octets of the key of a setting.
const MAX_KEY: usize = 64;
/// The most changes of settings at once.
const MAX_CHANGES: usize = 64;
/// The most octets of an explanation.
const MAX_TEXT: usize = 4096;
/// The most elements of a list. The longest, of IPv6 prefixes, fits into a message.
const MAX_LIST: usize = MAX_OBJECTS;
/// The numbers of frames and ring entries that a port can have, as in `InterfaceConfig`.
const FRAMES: std::ops::RangeInclusive<u32> = 32..=1 << 20;
/// Entries that a transmit ring may have with any number of frames. Longer ones are no longer than
/// there are frames, so that the quota of frames counts rings as well.
const SMALL_RING: u32 = 128;
/// The most chunks of a UMEM's half: eight times the most frames that circulate at first.
const MAX_CHUNKS: u32 = 8 << 20;
/// The most letters of what an inspection wants.
const MAX_WHAT: usize = 32;
/// The longest that an inspection waits, in milliseconds.
const MAX_WITHIN: u32 = 60_000;
/// The smallest MTU of an IPv4 link (RFC 791).
const MIN_MTU: u32 = 68;
/// The largest number of a queue that the steering program's maps can hold.
const MAX_QUEUE: u32 = 65_534;
/// The largest number of a VLAN (802.1Q).
const MAX_VLAN: u16 = 4094;

/// Returns whether Linux could have a network device of this name.
pub fn is_device_name(name: &str) -> bool {
    let has_shape = (1..=MAX_NAME).contains(&name.len()) && name != "." && name != "..";
    let is_allowed = |char: char| !char.is_whitespace() && !char.is_control();
    has_shape
        && name
            .chars()
            .all(|char| is_allowed(char) && !"/:".contains(char))
}

fn rule(holds: bool, text: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(text()) }
}

fn device(name: &str) -> Result<(), String> {
    rule(is_device_name(name), || {
        format!("{name:?} is no name of a network device")
    })
}

fn peer(remote: SocketAddr) -> Result<(), String> {
    rule(remote.port() != 0, || {
        format!("no peer has TCP port 0: {remote}")
    })
}

fn frames(field: &str, value: u32) -> Result<(), String> {
    let fits = value.is_power_of_two() && FRAMES.contains(&value);
    rule(fits, || {
        let (least, most) = (FRAMES.start(), FRAMES.end());
        format!("{field} is {value}; a power of two from {least} to {most} is needed")
    })
}

fn list(field: &str, len: usize) -> Result<(), String> {
    rule(len <= MAX_LIST, || {
        format!("{field} has {len} elements; {MAX_LIST} are possible")
    })
}

fn text(field: &str, text: &str, most: usize) -> Result<(), String> {
    let len = text.len();
    rule(len <= most, || {
        format!("{field} has {len} octets; {most} are possible")
    })
}

/// Checks text that stands in logs and files.
fn plain(field: &str, value: &str, most: usize) -> Result<(), String> {
    text(field, value, most)?;
    rule(!value.chars().any(char::is_control), || {
        format!("{field} has control characters")
    })
}

fn check_changes(changes: &[Change]) -> Result<(), String> {
    let count = changes.len();
    rule(count <= MAX_CHANGES, || {
        format!("changes has {count} elements; {MAX_CHANGES} are possible")
    })?;
    changes.iter().try_for_each(|change| {
        plain("key", &change.key, MAX_KEY)?;
        plain(
            "value",
            change.value.as_deref().unwrap_or_default(),
            MAX_TEXT,
        )
    })
}

fn within(field: &str, value: u32, range: std::ops::RangeInclusive<u32>) -> Result<(), String> {
    rule(range.contains(&value), || {
        let (least, most) = (range.start(), range.end());
        format!("{field} is {value}; a number from {least} to {most} is needed")
    })
}

fn inspection(what: &str, within_millis: u32) -> Result<(), String> {
    let is_word = |what: &str| what.chars().all(|char| matches!(char, 'a'..='z' | '_'));
    let fits = (1..=MAX_WHAT).contains(&what.len()) && is_word(what);
    rule(fits, || {
        format!("what is no word of at most {MAX_WHAT} small letters and underscores")
    })?;
    within("within", within_millis, 1..=MAX_WITHIN)
}

impl Message for Request {
    const TYPES: &'static [&'static str] = &[
        "hello",
        "open_port",
        "adopt",
        "listen",
        "connect",
        "map",
        "unmap",
        "locate",
        "release",
        "admit",
        "follow",
        "forget",
        "take_numbers",
        "acquire",
        "show",
        "end_port",
        "revoke",
        "monitor",
        "add_device",
        "remove_device",
        "set_device",
        "set_user",
        "reset_user",
        "inspect",
    ];

    fn descriptors(&self) -> usize {
        0
    }

    fn from_json(value: Value) -> serde_json::Result<Self> {
        serde_json::from_value(value)
    }

    fn check(&self) -> Result<(), String> {
        match &self.ask {
            Ask::Hello { version, program } => {
                within("version", *version, 1..=u32::MAX)?;
                plain("program", program, MAX_PROGRAM)
            }
            Ask::OpenPort {
                netdev,
                rx_frames,
                tx_frames,
                tx_ring,
                queue,
            } => {
                device(netdev)?;
                within("queue", queue.unwrap_or(0), 0..=MAX_QUEUE)?;
                frames("rx_frames", *rx_frames)?;
                frames("tx_frames", *tx_frames)?;
                frames("tx_ring", *tx_ring)?;
                let most = (*tx_frames).max(SMALL_RING);
                rule(*tx_ring <= most, || {
                    format!(
                        "tx_ring is {tx_ring}; at most {most} is of use with {tx_frames} tx_frames"
                    )
                })
            }
            Ask::Listen { peers, .. } => {
                let limits = peers.limits().unwrap_or_default();
                list("peers", limits.len())
            }
            Ask::Connect { remote, .. }
            | Ask::Admit { remote, .. }
            | Ask::Locate { remote, .. } => peer(*remote),
            Ask::AddDevice { netdev, changes }
            | Ask::SetDevice {
                netdev, changes, ..
            } => {
                device(netdev)?;
                check_changes(changes)
            }
            Ask::RemoveDevice { netdev, .. } => device(netdev),
            Ask::SetUser { user, changes } => {
                plain("user", user, MAX_USER)?;
                check_changes(changes)
            }
            Ask::ResetUser { user } => plain("user", user, MAX_USER),
            Ask::Inspect { what, within, .. } => inspection(what, *within),
            Ask::Map { wanted, .. } => peer(*wanted),
            Ask::Adopt { .. }
            | Ask::Unmap { .. }
            | Ask::Release { .. }
            | Ask::Follow { .. }
            | Ask::Forget { .. }
            | Ask::TakeNumbers { .. }
            | Ask::Acquire { .. }
            | Ask::Show(_)
            | Ask::EndPort { .. }
            | Ask::Revoke { .. }
            | Ask::Monitor => Ok(()),
        }
    }
}

impl Message for FromDaemon {
    const TYPES: &'static [&'static str] = &[
        "welcome",
        "port",
        "adopted",
        "lease",
        "numbers",
        "located",
        "released",
        "devices",
        "ports",
        "leases",
        "associations",
        "users",
        "usage",
        "daemon",
        "inspecting",
        "done",
        "refused",
        "next_hop",
        "link",
        "untagged",
        "too_big",
        "protected_too_big",
        "protection",
        "revoked",
        "describe",
        "event",
    ];

    fn descriptors(&self) -> usize {
        match self {
            Self::Answer(Reply { answer, .. }) => match answer {
                Answer::Port(_) => 2,
                Answer::Inspecting => 1,
                Answer::Welcome { .. }
                | Answer::Adopted
                | Answer::Lease { .. }
                | Answer::Numbers { .. }
                | Answer::Located { .. }
                | Answer::Released
                | Answer::Devices(_)
                | Answer::Ports(_)
                | Answer::Leases(_)
                | Answer::Associations(_)
                | Answer::Users(_)
                | Answer::Usage(_)
                | Answer::Daemon(_)
                | Answer::Done
                | Answer::Refused(_) => 0,
            },
            Self::Notice(Notice::Describe { .. }) => 1,
            Self::Notice(_) => 0,
        }
    }

    fn from_json(value: Value) -> serde_json::Result<Self> {
        if value.get("id").is_some() {
            return serde_json::from_value(value).map(Self::Answer);
        }
        serde_json::from_value(value).map(Self::Notice)
    }

    fn check(&self) -> Result<(), String> {
        match self {
            Self::Answer(reply) => check_answer(&reply.answer),
            Self::Notice(Notice::NextHop { hop: Some(hop), .. }) => check_hop(hop),
            Self::Notice(Notice::Untagged { addresses, .. }) => check_untagged(addresses),
            Self::Notice(Notice::Describe { what, within, .. }) => inspection(what, *within),
            Self::Notice(Notice::Protection { protection, .. }) => check_protection(protection),
            Self::Notice(_) => Ok(()),
        }
    }
}

fn check_answer(answer: &Answer) -> Result<(), String> {
    match answer {
        Answer::Welcome {
            version,
            devices,
            withheld,
        } => {
            within("version", *version, 1..=u32::MAX)?;
            list("devices", devices.len())?;
            devices.iter().try_for_each(|name| device(name))?;
            list("withheld", withheld.len())?;
            withheld.iter().try_for_each(|withheld| {
                device(&withheld.netdev)?;
                text("why", &withheld.why, MAX_TEXT)
            })
        }
        Answer::Port(grant) => check_grant(grant),
        Answer::Refused(refused) => check_refused(refused),
        Answer::Located { remote } => peer(*remote),
        Answer::Devices(page) => list("list", page.list.len()),
        Answer::Ports(page) => list("list", page.list.len()),
        Answer::Leases(page) => list("list", page.list.len()),
        Answer::Associations(page) => list("list", page.list.len()),
        Answer::Users(page) => list("list", page.list.len()),
        Answer::Usage(page) => list("list", page.list.len()),
        Answer::Numbers { first, end } => rule((1..*end).contains(first), || {
            format!("there are no numbers from {first} up to {end}")
        }),
        Answer::Adopted
        | Answer::Lease { .. }
        | Answer::Released
        | Answer::Inspecting
        | Answer::Daemon(_)
        | Answer::Done => Ok(()),
    }
}

fn check_protection(protection: &Protection) -> Result<(), String> {
    list("demands", protection.demands.len())?;
    list("addresses", protection.addresses.len())?;
    list("associations", protection.associations.len())
}

fn check_refused(refused: &Refused) -> Result<(), String> {
    text("message", &refused.message, MAX_TEXT)?;
    text(
        "holder",
        refused.holder.as_deref().unwrap_or_default(),
        MAX_TEXT,
    )?;
    let policy = refused.policy.as_ref();
    policy.map_or(Ok(()), |policy| text("policy", &policy.text, MAX_TEXT))
}

fn check_grant(grant: &Grant) -> Result<(), String> {
    device(&grant.netdev)?;
    let chunk = grant.chunk;
    rule(chunk == 2048 || chunk == 4096, || {
        format!("chunk is {chunk}; 2048 or 4096 is needed")
    })?;
    within("chunks", grant.chunks, 1..=64)?;
    within("rx_chunks", grant.rx_chunks, 1..=MAX_CHUNKS)?;
    within("tx_chunks", grant.tx_chunks, 1..=MAX_CHUNKS)?;
    for (field, entries) in [
        ("fill", grant.rings.fill),
        ("completion", grant.rings.completion),
        ("rx", grant.rings.rx),
        ("tx", grant.rings.tx),
    ] {
        let fits = entries.is_power_of_two() && entries <= MAX_CHUNKS;
        rule(fits, || {
            format!(
                "the {field} ring has {entries} entries; a power of two to {MAX_CHUNKS} is needed"
            )
        })?;
    }
    within("mtu", grant.mtu, MIN_MTU..=chunk * grant.chunks)?;
    within("link_mtu", grant.link_mtu, grant.mtu..=u32::MAX)?;
    if let Mode::Generic { reason } = &grant.mode {
        text("the reason of the mode", reason, MAX_TEXT)?;
    }
    let copied = grant.copied.as_deref().unwrap_or_default();
    text("copied", copied, MAX_TEXT)?;
    check_untagged(&grant.untagged)
}

fn check_untagged(addresses: &[UntaggedAddress]) -> Result<(), String> {
    list("untagged", addresses.len())?;
    let mut vlans = addresses.iter().map(|each| each.vlan);
    vlans.try_for_each(|vlan| within("vlan", vlan.into(), 1..=MAX_VLAN.into()))
}

fn check_hop(hop: &Hop) -> Result<(), String> {
    within("mtu", hop.mtu.into(), MIN_MTU..=u16::MAX.into())?;
    hop.vlan.map_or(Ok(()), |vlan| {
        within("vlan", vlan.into(), 1..=MAX_VLAN.into())
    })
}
