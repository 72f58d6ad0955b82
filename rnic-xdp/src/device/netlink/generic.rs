//! Generic netlink: the `ethtool` and `netdev` families, for queue counts and XDP features.

use rustix::net::netlink;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::error::NetlinkError;
use super::link::{Link, named};
use super::message::{Attributes, Builder, Message};
use super::socket::{Groups, ReplyMode, Socket};

const CONTROL_FAMILY: u16 = 0x10;
const CONTROL_GET_FAMILY: u8 = 3;
const CONTROL_FAMILY_ID: u16 = 1;
const CONTROL_FAMILY_NAME: u16 = 2;

const ETHTOOL_HEADER: u16 = 1;
const ETHTOOL_HEADER_DEV_INDEX: u16 = 1;
const ETHTOOL_LINKMODES_GET: u8 = 4;
const ETHTOOL_LINKMODES_SPEED: u16 = 5;
const ETHTOOL_FEATURES_GET: u8 = 11;
const ETHTOOL_FEATURES_ACTIVE: u16 = 4;
const ETHTOOL_BITSET_BITS: u16 = 3;
const ETHTOOL_BITSET_BITS_BIT: u16 = 1;
const ETHTOOL_BITSET_BIT_NAME: u16 = 2;
const ETHTOOL_BITSET_NOMASK: u16 = 1;
const ETHTOOL_RINGS_GET: u8 = 15;
const ETHTOOL_RINGS_SET: u8 = 16;
const ETHTOOL_RINGS_RX: u16 = 6;
const ETHTOOL_CHANNELS_GET: u8 = 17;
const ETHTOOL_CHANNELS_RX_COUNT: u16 = 6;
const ETHTOOL_CHANNELS_TX_COUNT: u16 = 7;
const ETHTOOL_CHANNELS_COMBINED_COUNT: u16 = 9;

const ETHTOOL_RSS_GET: u8 = 38;
const ETHTOOL_RSS_FUNCTION: u16 = 3;
const ETHTOOL_RSS_TABLE: u16 = 4;
const ETHTOOL_RSS_KEY: u16 = 5;
const ETHTOOL_RSS_TRANSFORMATION: u16 = 6;

const NETDEV_DEV_GET: u8 = 1;
const NETDEV_DEV_IFINDEX: u16 = 1;
const NETDEV_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_DEV_XDP_ZC_MAX_SEGS: u16 = 4;
const NETDEV_DEV_XSK_FEATURES: u16 = 6;
const NETDEV_QUEUE_GET: u8 = 10;
const NETDEV_QUEUE_ID: u16 = 1;
const NETDEV_QUEUE_IFINDEX: u16 = 2;
const NETDEV_QUEUE_TYPE: u16 = 3;
const NETDEV_QUEUE_TYPE_RX: u32 = 0;
const NETDEV_QUEUE_NAPI_ID: u16 = 4;

/// `struct genlmsghdr`
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct GenericHeader {
    command: u8,
    version: u8,
    reserved: u16,
}

impl GenericHeader {
    fn new(command: u8) -> Self {
        Self {
            command,
            version: 1,
            reserved: 0,
        }
    }
}

/// Queues in use, as `ethtool -l` counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Channels {
    pub(crate) rx: u32,
    pub(crate) tx: u32,
}

/// A queue, and the kernel's instance that polls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueNapi {
    /// A receive queue; otherwise a transmit queue.
    pub(crate) receives: bool,
    pub(crate) queue: u32,
    pub(crate) napi: u32,
}

/// How a device spreads flows over its receive queues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RssSettings {
    /// Bits of hash functions: 1 is Toeplitz.
    pub(crate) function: u32,
    /// The queue of each hash, modulo the length.
    pub(crate) table: Vec<u32>,
    /// The key of the hash; empty if the driver does not state it.
    pub(crate) key: Vec<u8>,
    /// Bits of what is done to the fields before hashing.
    pub(crate) transformation: u32,
}

/// The XDP features that a driver reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct XdpFeatures {
    mask: u64,
    /// The features for AF_XDP sockets, with bits of their own.
    sockets: u64,
    /// The most frames of a packet in zero-copy mode.
    pub(crate) zero_copy_segments: u32,
}

impl XdpFeatures {
    #[cfg(test)]
    pub(crate) fn of(mask: u64, zero_copy_segments: u32) -> Self {
        Self {
            mask,
            sockets: 0,
            zero_copy_segments,
        }
    }

    /// Returns whether programs run in the driver.
    pub(crate) fn native(self) -> bool {
        self.mask & 0x1 != 0
    }

    /// Returns whether frames can be redirected to sockets.
    pub(crate) fn redirect(self) -> bool {
        self.mask & 0x2 != 0
    }

    /// Returns whether it sends frames that programs redirect to it.
    pub(crate) fn transmits_redirected(self) -> bool {
        self.mask & 0x4 != 0
    }

    /// Returns whether AF_XDP works without copying.
    pub(crate) fn zero_copy(self) -> bool {
        self.mask & 0x8 != 0
    }

    /// Returns whether received packets may have several buffers.
    pub(crate) fn multi_buffer(self) -> bool {
        self.mask & 0x20 != 0
    }

    /// Returns whether it completes checksums of frames that AF_XDP sockets send (Linux 6.8).
    pub(crate) fn tx_checksum(self) -> bool {
        self.sockets & 0x2 != 0
    }
}

/// A generic netlink socket.
#[derive(Debug)]
pub(crate) struct Generic(Socket);

impl Generic {
    /// Opens a socket in the network namespace of this thread.
    pub(crate) fn open() -> Result<Self, NetlinkError> {
        Socket::open(netlink::GENERIC, Groups::NONE)
            .map(Self)
            .map_err(|source| NetlinkError::Socket {
                doing: "open a generic socket",
                source,
            })
    }

    fn family(&mut self, name: &str) -> Result<u16, NetlinkError> {
        let doing = "find a generic netlink family";
        let header = GenericHeader::new(CONTROL_GET_FAMILY);
        let messages = self.0.request(doing, ReplyMode::One, |flags| {
            Builder::new(CONTROL_FAMILY, flags, &header).string(CONTROL_FAMILY_NAME, name)
        })?;
        first(&messages, |attributes| attributes.value(CONTROL_FAMILY_ID))
            .ok_or(NetlinkError::BadReply { doing })
    }

    fn ethtool(
        &mut self,
        doing: &'static str,
        command: u8,
        link: u32,
    ) -> Result<Vec<Message>, NetlinkError> {
        let family = self.family("ethtool")?;
        self.0.request(doing, ReplyMode::One, |flags| {
            about(family, flags, command, link)
        })
    }

    /// Returns the speed of a link in megabits per second, or `None` if that is not known. Fails
    /// with EOPNOTSUPP if the driver does not state it.
    fn speed(&mut self, link: u32) -> Result<Option<u32>, NetlinkError> {
        let messages = self.ethtool("read the speed", ETHTOOL_LINKMODES_GET, link)?;
        Ok(first(&messages, read_speed))
    }

    /// Returns the number of descriptors in a receive ring. Fails with EOPNOTSUPP if the driver
    /// does not state it.
    pub(crate) fn receive_ring(&mut self, link: u32) -> Result<u32, NetlinkError> {
        let doing = "read the size of the receive rings";
        let messages = self.ethtool(doing, ETHTOOL_RINGS_GET, link)?;
        first(&messages, |attributes| attributes.value(ETHTOOL_RINGS_RX))
            .ok_or(NetlinkError::BadReply { doing })
    }

    /// Sets the number of descriptors in each receive ring. Fails with EOPNOTSUPP if the driver
    /// cannot.
    pub(crate) fn set_receive_ring(&mut self, link: u32, size: u32) -> Result<(), NetlinkError> {
        let family = self.family("ethtool")?;
        let doing = "set the size of the receive rings";
        self.0
            .request(doing, ReplyMode::Acknowledgement(0), |flags| {
                about(family, flags, ETHTOOL_RINGS_SET, link)
                    .attribute(ETHTOOL_RINGS_RX, &size.to_ne_bytes())
            })
            .map(drop)
    }

    /// Returns the number of queues in use. Fails with EOPNOTSUPP if the driver does not support
    /// it.
    pub(crate) fn channels(&mut self, link: u32) -> Result<Channels, NetlinkError> {
        let doing = "read the queue counts";
        let messages = self.ethtool(doing, ETHTOOL_CHANNELS_GET, link)?;
        let read = |attributes: Attributes<'_>| {
            let combined = attributes
                .value(ETHTOOL_CHANNELS_COMBINED_COUNT)
                .unwrap_or(0);
            let count = |kind| attributes.value::<u32>(kind).unwrap_or(0);
            Some(Channels {
                rx: combined + count(ETHTOOL_CHANNELS_RX_COUNT),
                tx: combined + count(ETHTOOL_CHANNELS_TX_COUNT),
            })
        };
        first(&messages, read).ok_or(NetlinkError::BadReply { doing })
    }

    /// Returns how flows are spread over receive queues (Linux 6.3 and later). Fails with
    /// EOPNOTSUPP if the driver does not support it.
    pub(crate) fn rss(&mut self, link: u32) -> Result<RssSettings, NetlinkError> {
        let doing = "read how flows are spread over queues";
        let messages = self.ethtool(doing, ETHTOOL_RSS_GET, link)?;
        first(&messages, |attributes| Some(read_rss(attributes)))
            .ok_or(NetlinkError::BadReply { doing })
    }

    /// Returns the names of the offloads that are on, as `ethtool -k` shows them in its long form.
    pub(crate) fn active_features(&mut self, link: u32) -> Result<Vec<String>, NetlinkError> {
        let doing = "read the offloads";
        let messages = self.ethtool(doing, ETHTOOL_FEATURES_GET, link)?;
        let read = |attributes: Attributes<'_>| {
            let active = attributes.nested(ETHTOOL_FEATURES_ACTIVE)?;
            active.get(ETHTOOL_BITSET_NOMASK)?; // a plain list: what is listed is on
            let bits = active.nested(ETHTOOL_BITSET_BITS)?.iter();
            let names = bits
                .filter(|(kind, _)| *kind == ETHTOOL_BITSET_BITS_BIT)
                .filter_map(|(_, bit)| Attributes::new(bit).string(ETHTOOL_BITSET_BIT_NAME));
            Some(names.collect())
        };
        first(&messages, read).ok_or(NetlinkError::BadReply { doing })
    }

    /// Returns the NAPI instance of each queue that has one, by which calls can poll it (Linux 6.8
    /// and later).
    pub(crate) fn napi_ids(&mut self, link: u32) -> Result<Vec<QueueNapi>, NetlinkError> {
        let doing = "read the NAPI ids of queues";
        let family = self.family("netdev")?;
        let header = GenericHeader::new(NETDEV_QUEUE_GET);
        let messages = self.0.request(doing, ReplyMode::Dump, |flags| {
            Builder::new(family, flags, &header)
                .attribute(NETDEV_QUEUE_IFINDEX, &link.to_ne_bytes())
        })?;
        let queues = messages.iter().filter_map(|message| {
            let (_, attributes) = message.split::<GenericHeader>()?;
            queue_napi(attributes)
        });
        Ok(queues.collect())
    }

    /// Returns the XDP features of a device (Linux 6.3 and later).
    pub(crate) fn xdp_features(&mut self, link: u32) -> Result<XdpFeatures, NetlinkError> {
        let doing = "read the XDP features";
        let family = self.family("netdev")?;
        let header = GenericHeader::new(NETDEV_DEV_GET);
        let messages = self.0.request(doing, ReplyMode::One, |flags| {
            Builder::new(family, flags, &header).attribute(NETDEV_DEV_IFINDEX, &link.to_ne_bytes())
        })?;
        first(&messages, read_xdp_features).ok_or(NetlinkError::BadReply { doing })
    }
}

/// Begins a request of the `ethtool` family about a device.
fn about(family: u16, flags: u16, command: u8, link: u32) -> Builder {
    let index = link.to_ne_bytes();
    Builder::new(family, flags, &GenericHeader::new(command))
        .nested(ETHTOOL_HEADER, &[(ETHTOOL_HEADER_DEV_INDEX, &index)])
}

/// Reads the speed of a link. Drivers have 0 or all ones where they do not know it, the latter in
/// 16 bits or in 32.
fn read_speed(attributes: Attributes<'_>) -> Option<u32> {
    let speed = attributes.value(ETHTOOL_LINKMODES_SPEED)?;
    (!matches!(speed, 0 | 0xffff | u32::MAX)).then_some(speed)
}

/// Reads a queue, if it has a NAPI instance.
fn queue_napi(attributes: Attributes<'_>) -> Option<QueueNapi> {
    let napi = attributes.value(NETDEV_QUEUE_NAPI_ID)?;
    (napi != 0).then_some(QueueNapi {
        receives: attributes.value(NETDEV_QUEUE_TYPE) == Some(NETDEV_QUEUE_TYPE_RX),
        queue: attributes.value(NETDEV_QUEUE_ID)?,
        napi,
    })
}

fn read_xdp_features(attributes: Attributes<'_>) -> Option<XdpFeatures> {
    Some(XdpFeatures {
        mask: attributes.value(NETDEV_DEV_XDP_FEATURES)?,
        sockets: attributes.value(NETDEV_DEV_XSK_FEATURES).unwrap_or(0),
        zero_copy_segments: attributes.value(NETDEV_DEV_XDP_ZC_MAX_SEGS).unwrap_or(1),
    })
}

fn read_rss(attributes: Attributes<'_>) -> RssSettings {
    let number = |kind| attributes.value(kind).unwrap_or(0);
    let table = attributes.get(ETHTOOL_RSS_TABLE).unwrap_or(&[]);
    let entries = table.chunks_exact(size_of::<u32>());
    RssSettings {
        function: number(ETHTOOL_RSS_FUNCTION),
        table: entries
            .filter_map(|entry| u32::read_from_bytes(entry).ok())
            .collect(),
        key: attributes.get(ETHTOOL_RSS_KEY).unwrap_or_default().to_vec(),
        transformation: number(ETHTOOL_RSS_TRANSFORMATION),
    }
}

fn first<T>(messages: &[Message], read: impl Fn(Attributes<'_>) -> Option<T>) -> Option<T> {
    let (_, attributes) = messages.first()?.split::<GenericHeader>()?;
    read(attributes)
}

/// Returns the speed of a device in megabits per second, if its driver knows it. The device is one
/// of the network namespace of this thread.
pub fn link_speed(name: &str) -> Option<u32> {
    let link = named(name)?;
    Generic::open().ok()?.speed(link.index).ok()?
}

/// Returns the receive queues in use, as ethtool counts them, or those allocated if the driver does
/// not report it.
pub(crate) fn rx_queues(link: &Link) -> u32 {
    let counted = Generic::open().and_then(|mut socket| socket.channels(link.index));
    match counted {
        Ok(channels) if channels.rx > 0 => channels.rx,
        _ => link.rx_queues.max(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::netlink::message::parse;

    #[test]
    fn a_table_and_its_key_are_read() {
        let table: Vec<u8> = [3u32, 1, 2].iter().flat_map(|q| q.to_ne_bytes()).collect();
        let reply = Builder::new(40, 0, &GenericHeader::new(ETHTOOL_RSS_GET))
            .nested(ETHTOOL_HEADER, &[(ETHTOOL_HEADER_DEV_INDEX, &[7, 0, 0, 0])])
            .attribute(ETHTOOL_RSS_FUNCTION, &1u32.to_ne_bytes())
            .attribute(ETHTOOL_RSS_TABLE, &table)
            .attribute(ETHTOOL_RSS_KEY, &[9, 8, 7])
            .attribute(ETHTOOL_RSS_TRANSFORMATION, &2u32.to_ne_bytes())
            .finish(1);
        let found = first(&parse(&reply), |attributes| Some(read_rss(attributes))).unwrap();
        let expected = RssSettings {
            function: 1,
            table: vec![3, 1, 2],
            key: vec![9, 8, 7],
            transformation: 2,
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn a_speed_that_is_not_known_is_none() {
        let speed = |speed: u32| {
            let reply = Builder::new(40, 0, &GenericHeader::new(ETHTOOL_LINKMODES_GET))
                .attribute(ETHTOOL_LINKMODES_SPEED, &speed.to_ne_bytes());
            first(&parse(&reply.finish(1)), read_speed)
        };
        assert_eq!(speed(25_000), Some(25_000));
        assert_eq!([0, 0xffff, u32::MAX].map(speed), [None; 3]);
    }

    #[test]
    fn xdp_and_socket_features_are_read_apart() {
        let device = |xdp: u64, sockets: Option<u64>| {
            let message = Builder::new(40, 0, &GenericHeader::new(NETDEV_DEV_GET))
                .attribute(NETDEV_DEV_XDP_FEATURES, &xdp.to_ne_bytes());
            let message = match sockets {
                Some(sockets) => message.attribute(NETDEV_DEV_XSK_FEATURES, &sockets.to_ne_bytes()),
                None => message,
            };
            first(&parse(&message.finish(1)), read_xdp_features).unwrap()
        };
        assert!(device(0x1, Some(0x7)).tx_checksum());
        assert!(device(0x1, Some(0x2)).tx_checksum());
        assert!(!device(0x2, Some(0x5)).tx_checksum());
        assert!(!device(0xff, None).tx_checksum());
        assert!(!device(0x2, Some(0xff)).native());
    }

    #[test]
    fn receive_queues_with_a_napi_id_are_found() {
        let queue = |number: u32, kind: u32, id: Option<u32>| {
            let message = Builder::new(40, 0, &GenericHeader::new(NETDEV_QUEUE_GET))
                .attribute(NETDEV_QUEUE_ID, &number.to_ne_bytes())
                .attribute(NETDEV_QUEUE_TYPE, &kind.to_ne_bytes());
            let message = match id {
                Some(id) => message.attribute(NETDEV_QUEUE_NAPI_ID, &id.to_ne_bytes()),
                None => message,
            };
            first(&parse(&message.finish(1)), queue_napi)
        };
        let expected = |receives| QueueNapi {
            receives,
            queue: 3,
            napi: 8193,
        };
        assert_eq!(queue(3, 0, Some(8193)), Some(expected(true)));
        assert_eq!(queue(3, 1, Some(8193)), Some(expected(false)));
        assert_eq!(queue(3, 0, Some(0)), None);
        assert_eq!(queue(3, 0, None), None);
    }
}
