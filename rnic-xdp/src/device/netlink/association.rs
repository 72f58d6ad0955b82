//! The kernel's Security Associations (xfrm states): read with their keys, counted and ended.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use nix::libc;
use rnic_core::esp::{Algorithm, Keys, Mode, SaId};
use rnic_core::wire::encapsulation::UdpPorts;
use rustix::net::netlink;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::error::NetlinkError;
use super::message::{Attributes, Builder, Message};
use super::policy::address;
use super::policy_layout::{MODE_TRANSPORT, MODE_TUNNEL, RawSelector};
use super::socket::{Groups, ReplyMode, Socket};

const NEW_SA: u16 = 0x10;
const GET_SA: u16 = 0x12;
const EXPIRE: u16 = 0x18;
const NEW_AE: u16 = 0x1e;

/// `NLM_F_REPLACE`: without it the kernel changes no counters.
const FLAG_REPLACE: u16 = 0x100;

const XFRMA_ALG_CRYPT: u16 = 2;
const XFRMA_ENCAP: u16 = 4;
const XFRMA_LTIME_VAL: u16 = 9;
const XFRMA_REPLAY_VAL: u16 = 10;
const XFRMA_ALG_AEAD: u16 = 18;
const XFRMA_ALG_AUTH_TRUNC: u16 = 20;
const XFRMA_MARK: u16 = 21;
const XFRMA_REPLAY_ESN_VAL: u16 = 23;
const XFRMA_OFFLOAD_DEV: u16 = 28;
const XFRMA_IF_ID: u16 = 31;

const FLAG_ESN: u8 = 128;

/// `struct xfrm_id`, with the family that `struct xfrm_usersa_id` has in its padding.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawId {
    destination: [u8; 16],
    spi: [u8; 4],
    protocol: u8,
    padding: [u8; 3],
}

/// `struct xfrm_usersa_info`
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawSa {
    selector: RawSelector,
    id: RawId,
    source: [u8; 16],
    /// Octets and packets, the soft limit of each ahead of the hard one; then seconds.
    limits: [u64; 8],
    /// Octets, packets, when it was added, when it was used first.
    current: [u64; 4],
    statistics: [u32; 3],
    sequence: u32,
    request: u32,
    family: u16,
    mode: u8,
    window: u8,
    flags: u8,
    padding: [u8; 7],
}

/// `struct xfrm_usersa_id`
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawSaId {
    destination: [u8; 16],
    spi: [u8; 4],
    family: u16,
    protocol: u8,
    padding: u8,
}

/// `struct xfrm_aevent_id`
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawEvent {
    id: RawSaId,
    source: [u8; 16],
    flags: u32,
    request: u32,
}

/// `struct xfrm_user_expire`
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawExpire {
    state: RawSa,
    hard: u8,
    padding: [u8; 7],
}

/// `struct xfrm_encap_tmpl`
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawEncapsulation {
    kind: u16,
    /// In network order, as the next one.
    source_port: [u8; 2],
    destination_port: [u8; 2],
    padding: u16,
    /// The address that a transport-mode peer behind a translator has there.
    original: [u8; 16],
}

/// `UDP_ENCAP_ESPINUDP`
const ESP_IN_UDP: u16 = 2;

/// Returns the ports of an encapsulation in UDP.
fn in_udp(template: &RawEncapsulation) -> Option<UdpPorts> {
    (template.kind == ESP_IN_UDP).then(|| UdpPorts {
        source: u16::from_be_bytes(template.source_port),
        destination: u16::from_be_bytes(template.destination_port),
    })
}

/// Octets of the name of an algorithm.
const NAME: usize = 64;

/// The kernel's state of the numbers of an association, in one of two forms.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Counter {
    /// `struct xfrm_replay_state`: sent, received, which of the last 32.
    Short([u32; 3]),
    /// `struct xfrm_replay_state_esn`: words of the bitmap; sent and received, lower halves, then
    /// upper ones; the window; the bitmap.
    Long([u32; 6], usize),
}

impl Counter {
    fn read(attributes: Attributes<'_>) -> Option<Self> {
        if let Some(octets) = attributes.get(XFRMA_REPLAY_ESN_VAL) {
            let (words, bitmap) = <[u32; 6]>::read_from_prefix(octets).ok()?;
            return Some(Self::Long(words, bitmap.len()));
        }
        attributes.value(XFRMA_REPLAY_VAL).map(Self::Short)
    }

    fn sent(&self) -> u64 {
        match self {
            Self::Short([sent, ..]) => (*sent).into(),
            Self::Long([_, sent, _, high, ..], _) => u64::from(*high) << 32 | u64::from(*sent),
        }
    }

    fn received(&self) -> u64 {
        match self {
            Self::Short([_, received, _]) => (*received).into(),
            Self::Long([_, _, received, _, high, _], _) => {
                u64::from(*high) << 32 | u64::from(*received)
            }
        }
    }

    /// Returns the attribute that sets both numbers, with all of the window received.
    fn attribute(&self, sent: u64, received: u64) -> (u16, Vec<u8>) {
        let [low, high] = [|number| number as u32, |number: u64| (number >> 32) as u32];
        match self {
            Self::Short(_) => {
                let words = [low(sent), low(received), u32::MAX];
                (XFRMA_REPLAY_VAL, words.as_bytes().to_vec())
            }
            Self::Long([words, .., window], bitmap) => {
                let words = [
                    *words,
                    low(sent),
                    low(received),
                    high(sent),
                    high(received),
                    *window,
                ];
                let mut octets = words.as_bytes().to_vec();
                octets.resize(octets.len() + bitmap, 0xff);
                (XFRMA_REPLAY_ESN_VAL, octets)
            }
        }
    }
}

/// What ends an association by what it has done: octets and packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    pub(crate) octets: u64,
    pub(crate) packets: u64,
}

impl Spent {
    /// Returns whether one of both has reached its limit. A limit of all ones is none.
    pub(crate) fn reaches(self, limit: Self) -> bool {
        self.octets >= limit.octets || self.packets >= limit.packets
    }

    /// Returns what is left of it when something has been done.
    pub(crate) fn without(self, done: Self) -> Self {
        Self {
            octets: self.octets.saturating_sub(done.octets),
            packets: self.packets.saturating_sub(done.packets),
        }
    }

    /// Returns as much of it as does not reach a limit.
    pub(crate) fn below(self, limit: Self) -> Self {
        let below = |spent: u64, limit: u64| spent.min(limit.saturating_sub(1));
        Self {
            octets: below(self.octets, limit.octets),
            packets: below(self.packets, limit.packets),
        }
    }
}

/// An association of the kernel.
#[derive(Clone, Debug)]
pub(crate) struct Association {
    pub(crate) id: SaId,
    pub(crate) source: IpAddr,
    pub(crate) request: u32,
    pub(crate) extended: bool,
    /// Its packets are in UDP, between these ports.
    pub(crate) encapsulation: Option<UdpPorts>,
    /// Its xfrm interface, 0 if none.
    pub(crate) if_id: u32,
    /// Its mode, algorithm and keys, or why rnic cannot use it.
    pub(crate) usable: Result<(Mode, Algorithm, Keys), String>,
    /// Numbers of its replay window.
    pub(crate) window: u32,
    /// The last number that was sent, or given away to be.
    pub(crate) sent: u64,
    /// The highest number that was received.
    pub(crate) received: u64,
    /// What it had done when it was read.
    pub(crate) spent: Spent,
    pub(crate) soft_limit: Spent,
    pub(crate) hard_limit: Spent,
    /// Seconds since 1970 when it was added.
    pub(crate) added: u64,
    raw: RawSa,
    counter: Counter,
}

impl Association {
    fn from_message(message: &Message) -> Option<Self> {
        if message.kind != NEW_SA {
            return None;
        }
        let (raw, attributes) = message.split::<RawSa>()?;
        if i32::from(raw.id.protocol) != libc::IPPROTO_ESP {
            return None;
        }
        let [soft_octets, hard_octets, soft_packets, hard_packets, ..] = raw.limits;
        let [octets, packets, added, _] = raw.current;
        let counter = Counter::read(attributes)?;
        let spent = |octets, packets| Spent { octets, packets };
        Some(Self {
            id: SaId {
                spi: u32::from_be_bytes(raw.id.spi),
                destination: address(raw.family, raw.id.destination)?,
            },
            source: address(raw.family, raw.source)?,
            request: raw.request,
            extended: raw.flags & FLAG_ESN != 0,
            encapsulation: attributes.value(XFRMA_ENCAP).as_ref().and_then(in_udp),
            if_id: attributes.value(XFRMA_IF_ID).unwrap_or(0),
            usable: usable(&raw, attributes),
            window: match &counter {
                Counter::Short(_) => raw.window.into(),
                Counter::Long([.., window], _) => *window,
            },
            sent: counter.sent(),
            received: counter.received(),
            spent: spent(octets, packets),
            soft_limit: spent(soft_octets, soft_packets),
            hard_limit: spent(hard_octets, hard_packets),
            added,
            raw,
            counter,
        })
    }

    /// Returns whether it is the same as another one was, but for what it has done.
    pub(crate) fn is_still(&self, other: &Self) -> bool {
        (
            self.id,
            self.source,
            self.request,
            self.extended,
            self.encapsulation,
            &self.usable,
        ) == (
            other.id,
            other.source,
            other.request,
            other.extended,
            other.encapsulation,
            &other.usable,
        ) && self.added == other.added
    }

    /// Returns whether another association has the same key. Both would count from the same numbers,
    /// even if the kernel or another process uses the other one.
    pub(crate) fn is_twin_of(&self, other: &Self) -> bool {
        let (Ok((_, _, one)), Ok((_, _, two))) = (&self.usable, &other.usable) else {
            return false;
        };
        (self.id, self.if_id) != (other.id, other.if_id) && one.share_with(two)
    }

    fn event(&self) -> RawEvent {
        RawEvent {
            id: RawSaId {
                destination: self.raw.id.destination,
                spi: self.raw.id.spi,
                family: self.raw.family,
                protocol: self.raw.id.protocol,
                padding: 0,
            },
            source: self.raw.source,
            flags: 0,
            request: self.request,
        }
    }
}

/// Returns mode, algorithm and keys of an association, or why rnic cannot use it.
fn usable(raw: &RawSa, attributes: Attributes<'_>) -> Result<(Mode, Algorithm, Keys), String> {
    let mode = match raw.mode {
        MODE_TRANSPORT => Mode::Transport,
        MODE_TUNNEL => Mode::Tunnel,
        other => return Err(format!("its mode is neither transport nor tunnel: {other}")),
    };
    if attributes.get(XFRMA_ENCAP).is_some() {
        let template = attributes.value(XFRMA_ENCAP);
        template
            .as_ref()
            .and_then(in_udp)
            .ok_or("it is encapsulated, and not in UDP as RFC 3948 has it, which rnic has not")?;
    }
    for (attribute, what) in [
        (XFRMA_MARK, "it is for marked packets"),
        (XFRMA_OFFLOAD_DEV, "it is offloaded to a device"),
    ] {
        if attributes.get(attribute).is_some() {
            return Err(format!("{what}, which rnic has not"));
        }
    }
    let (algorithm, keys) = algorithm(attributes)?;
    if keys.are_hidden() {
        return Err(
            "its keys are zero: the kernel hides them in lockdown (/sys/kernel/security/lockdown)"
                .into(),
        );
    }
    Ok((mode, algorithm, keys))
}

/// Returns algorithm and keys of an association, or why rnic cannot use it.
fn algorithm(attributes: Attributes<'_>) -> Result<(Algorithm, Keys), String> {
    if let Some(octets) = attributes.get(XFRMA_ALG_AEAD) {
        let (name, [_, icv], key) = named::<2>(octets).ok_or("its algorithm is malformed")?;
        let algorithm = match (name.as_str(), icv) {
            ("rfc4106(gcm(aes))", 128) => Algorithm::AesGcm,
            ("rfc4543(gcm(aes))", 128) => Algorithm::AesGmac,
            ("rfc7539esp(chacha20,poly1305)", 128) => Algorithm::ChaCha20Poly1305,
            _ => return Err(format!("rnic has no {name} with an ICV of {icv} bits")),
        };
        return Ok((algorithm, Keys::new(key.to_vec(), Vec::new())));
    }
    let crypt = attributes.get(XFRMA_ALG_CRYPT).and_then(named::<1>);
    let auth = attributes.get(XFRMA_ALG_AUTH_TRUNC).and_then(named::<2>);
    let (Some((cipher, _, key)), Some((hash, [_, icv], integrity))) = (crypt, auth) else {
        return Err("it has no encryption with an ICV".into());
    };
    let algorithm = match (cipher.as_str(), hash.as_str(), icv) {
        ("cbc(aes)", "hmac(sha256)", 128) => Algorithm::AesCbcHmacSha256,
        ("cbc(aes)", "hmac(sha1)", 96) => Algorithm::AesCbcHmacSha1,
        ("ecb(cipher_null)", "hmac(sha256)", 128) => Algorithm::NullHmacSha256,
        ("ecb(cipher_null)", "hmac(sha1)", 96) => Algorithm::NullHmacSha1,
        _ => return Err(format!("rnic has no {cipher} with {hash} of {icv} bits")),
    };
    Ok((algorithm, Keys::new(key.to_vec(), integrity.to_vec())))
}

/// Reads an algorithm: its name, `N` lengths in bits of which the first is that of its key, and the
/// key.
fn named<const N: usize>(octets: &[u8]) -> Option<(String, [u32; N], &[u8])> {
    let (name, rest) = octets.split_at_checked(NAME)?;
    let name = name.split(|octet| *octet == 0).next()?;
    let name = String::from_utf8_lossy(name).into_owned();
    let (lengths, key) = <[u32; N]>::read_from_prefix(rest).ok()?;
    let key = key.get(..(lengths[0] as usize).div_ceil(8))?;
    Some((name, lengths, key))
}

/// What has happened to the associations and policies of a host.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct News {
    /// They must be read again.
    pub(crate) changed: bool,
    /// Associations that are to be replaced.
    pub(crate) dying: Vec<SaId>,
}

/// Reads, counts and ends the associations of a network namespace.
#[derive(Debug)]
pub(crate) struct AssociationSocket {
    requests: Socket,
    news: Socket,
}

impl AssociationSocket {
    /// Opens sockets in the network namespace of this thread.
    pub(crate) fn open() -> Result<Self, NetlinkError> {
        let open = |groups| {
            Socket::open(netlink::XFRM, groups).map_err(|source| NetlinkError::Socket {
                doing: "open a socket for IPsec associations",
                source,
            })
        };
        Ok(Self {
            requests: open(Groups::NONE)?,
            news: open(Groups::ASSOCIATIONS)?,
        })
    }

    /// Reads all associations of ESP, with their keys.
    pub(crate) fn read(&mut self) -> Result<Vec<Association>, NetlinkError> {
        let doing = "list the IPsec associations";
        self.ask(doing, ReplyMode::Dump, |flags| {
            Builder::new(GET_SA, flags, &[0u8; 0])
        })
    }

    /// Reads an association again.
    pub(crate) fn read_again(&mut self, known: &Association) -> Result<Association, NetlinkError> {
        let doing = "read an IPsec association";
        let read = self.ask(doing, ReplyMode::One, |flags| {
            Builder::new(GET_SA, flags, &known.event().id)
        })?;
        let found = read.into_iter().find(|read| read.is_still(known));
        found.ok_or(NetlinkError::BadReply { doing })
    }

    fn ask(
        &mut self,
        doing: &'static str,
        reply: ReplyMode,
        build: impl Fn(u16) -> Builder,
    ) -> Result<Vec<Association>, NetlinkError> {
        let messages = self.requests.request(doing, reply, build);
        self.requests.wipe();
        let mut messages = messages?;
        let read = messages.iter().filter_map(Association::from_message);
        let read = read.collect();
        messages.iter_mut().for_each(Message::wipe);
        Ok(read)
    }

    /// Sets the last number that was sent and the highest that was received, and with `spent` what
    /// it has done.
    pub(crate) fn set_counters(
        &mut self,
        known: &Association,
        (sent, received): (u64, u64),
        spent: Option<Spent>,
    ) -> Result<(), NetlinkError> {
        let (kind, numbers) = known.counter.attribute(sent, received);
        let doing = "set the counters of an IPsec association";
        let acknowledged = ReplyMode::Acknowledgement(FLAG_REPLACE);
        let set = self.requests.request(doing, acknowledged, |flags| {
            let builder = Builder::new(NEW_AE, flags, &known.event()).attribute(kind, &numbers);
            match spent {
                None => builder,
                Some(Spent { octets, packets }) => {
                    let [.., used] = known.raw.current;
                    let lifetime = [octets, packets, known.added, used];
                    builder.attribute(XFRMA_LTIME_VAL, lifetime.as_bytes())
                }
            }
        });
        set.map(drop)
    }

    /// Tells the key managers that an association is near its end, or at it: then it is gone.
    pub(crate) fn expire(&mut self, known: &Association, hard: bool) -> Result<(), NetlinkError> {
        let doing = "tell of the end of an IPsec association";
        let fixed = RawExpire {
            state: known.raw,
            hard: hard.into(),
            padding: [0; 7],
        };
        let acknowledged = ReplyMode::Acknowledgement(0);
        let told = self.requests.request(doing, acknowledged, |flags| {
            Builder::new(EXPIRE, flags, &fixed)
        });
        told.map(drop)
    }

    /// Ends an association, as if it had reached its limits. One that is gone has ended.
    pub(crate) fn end(&mut self, known: &Association) -> Result<(), NetlinkError> {
        match self.expire(known, true) {
            Err(NetlinkError::Refused { source, .. })
                if matches!(source.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) =>
            {
                Ok(())
            }
            result => result,
        }
    }

    /// Returns what has happened since the last call.
    pub(crate) fn news(&mut self) -> io::Result<News> {
        let notifications = self.news.notifications();
        self.news.wipe();
        // Some were lost.
        let Some(mut messages) = notifications? else {
            return Ok(News {
                changed: true,
                ..News::default()
            });
        };
        let mut news = News::default();
        for message in &mut messages {
            let expired = message.split::<RawExpire>().map(|(expired, _)| expired);
            match expired.filter(|expired| message.kind == EXPIRE && expired.hard == 0) {
                Some(expired) => news.dying.extend(name(&expired.state)),
                None => news.changed = true,
            }
            message.wipe();
        }
        Ok(news)
    }
}

fn name(raw: &RawSa) -> Option<SaId> {
    Some(SaId {
        spi: u32::from_be_bytes(raw.id.spi),
        destination: address(raw.family, raw.id.destination)?,
    })
}

impl AsFd for AssociationSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.news.as_fd()
    }
}

mod acquire;

#[cfg(test)]
pub(super) mod tests;
