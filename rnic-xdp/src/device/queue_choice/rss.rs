//! Receive side scaling: how a device spreads flows over its receive queues, and so which queue a
//! flow comes to.

use std::net::{IpAddr, SocketAddr};

use super::ioctl::{self, RxnfcRequest};
use super::ntuple::tcp_flow;
use super::toeplitz::{Fields, Symmetry, hash, input};
use crate::device::netlink::{Generic, Link, NetlinkError, RssSettings};

const GET_FIELDS: u32 = 0x29;
const FIELD_SOURCE: u64 = 1 << 4;
const FIELD_DESTINATION: u64 = 1 << 5;
const FIELD_SOURCE_PORT: u64 = 1 << 6;
const FIELD_DESTINATION_PORT: u64 = 1 << 7;
const TOEPLITZ: u32 = 1;
const SYMMETRIC_XOR: u32 = 1;
const SYMMETRIC_OR_XOR: u32 = 2;

/// Why the queue of a flow cannot be predicted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UnpredictableQueue {
    #[error("the driver does not report its table of queues: {0}")]
    NoTable(#[from] NetlinkError),
    #[error("the driver reports its table of queues, but not the key of its hash")]
    NoKey,
    #[error("the device hashes by another function than Toeplitz's")]
    Function,
    #[error("the device hashes fields that rnic does not know")]
    Fields,
}

/// How a device chooses the queue of TCP segments of one IP version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rss {
    table: Vec<u32>,
    key: Vec<u8>,
    fields: Fields,
    symmetry: Symmetry,
}

impl Rss {
    /// Reads it as configured now. The administrator may change it.
    pub(crate) fn read(link: &Link, ip: IpAddr) -> Result<Self, UnpredictableQueue> {
        // Older kernels have only the ioctl. Both fail if the driver does not support it.
        let read = Generic::open()?.rss(link.index);
        let settings = read.or_else(|error| ioctl::rss(&link.name).map_err(|_| error))?;
        let mut request = RxnfcRequest::new(GET_FIELDS);
        request.flow = tcp_flow(ip);
        // Drivers that cannot change the fields do not report them: they hash addresses and ports.
        let everything =
            FIELD_SOURCE | FIELD_DESTINATION | FIELD_SOURCE_PORT | FIELD_DESTINATION_PORT;
        let fields = request
            .ask(&link.name)
            .map_or(everything, |()| request.data);
        Self::from_settings(settings, fields)
    }

    pub(super) fn from_settings(
        settings: RssSettings,
        fields: u64,
    ) -> Result<Self, UnpredictableQueue> {
        // 0: the driver has one function and does not report it.
        if settings.function & !TOEPLITZ != 0 {
            return Err(UnpredictableQueue::Function);
        }
        if settings.key.is_empty() {
            return Err(UnpredictableQueue::NoKey);
        }
        let symmetry = match settings.transformation {
            0 => Symmetry::None,
            SYMMETRIC_XOR => Symmetry::Xor,
            SYMMETRIC_OR_XOR => Symmetry::OrXor,
            _ => return Err(UnpredictableQueue::Fields),
        };
        let known = FIELD_SOURCE | FIELD_DESTINATION | FIELD_SOURCE_PORT | FIELD_DESTINATION_PORT;
        if fields & !known != 0 || settings.table.is_empty() {
            return Err(UnpredictableQueue::Fields);
        }
        Ok(Self {
            table: settings.table,
            key: settings.key,
            fields: Fields {
                source: fields & FIELD_SOURCE != 0,
                destination: fields & FIELD_DESTINATION != 0,
                source_port: fields & FIELD_SOURCE_PORT != 0,
                destination_port: fields & FIELD_DESTINATION_PORT != 0,
            },
            symmetry,
        })
    }

    /// Returns the receive queue of segments from `remote` to `local`.
    pub(crate) fn queue(&self, remote: SocketAddr, local: SocketAddr) -> u32 {
        let hash = hash(&self.key, &input(remote, local, self.fields, self.symmetry));
        self.table[hash as usize % self.table.len()]
    }

    /// Returns whether all flows come to this queue.
    pub(crate) fn is_all(&self, queue: u32) -> bool {
        self.table.iter().all(|each| *each == queue)
    }

    /// Returns whether another local port can bring a flow to one of these queues.
    pub(crate) fn can_reach(&self, wanted: impl Fn(u32) -> bool) -> bool {
        self.fields.destination_port && self.table.iter().any(|queue| wanted(*queue))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn settings() -> RssSettings {
        RssSettings {
            function: TOEPLITZ,
            table: vec![0, 1, 2, 3],
            key: (1..=40).collect(),
            transformation: 0,
        }
    }

    #[test]
    fn what_is_not_understood_is_not_guessed() {
        let read = Rss::from_settings;
        assert!(read(settings(), 0xf0).is_ok());
        let change = |change: fn(&mut RssSettings)| {
            let mut changed = settings();
            change(&mut changed);
            read(changed, 0xf0)
        };
        assert!(change(|rss| rss.function = 0).is_ok());
        assert!(matches!(
            change(|rss| rss.function = 2),
            Err(UnpredictableQueue::Function)
        ));
        assert!(matches!(
            change(|rss| rss.key.clear()),
            Err(UnpredictableQueue::NoKey)
        ));
        assert!(matches!(
            change(|rss| rss.transformation = 4),
            Err(UnpredictableQueue::Fields)
        ));
        assert!(matches!(
            change(|rss| rss.table.clear()),
            Err(UnpredictableQueue::Fields)
        ));
        // Layer 2, VLAN or the like.
        assert!(matches!(
            read(settings(), 0xf2),
            Err(UnpredictableQueue::Fields)
        ));
    }

    #[test]
    fn ports_change_the_queue_where_they_are_hashed() {
        let (remote, local) = ("192.0.2.1:4420", "192.0.2.2:0");
        let (remote, local): (SocketAddr, SocketAddr) =
            (remote.parse().unwrap(), local.parse().unwrap());
        let queues = |fields| {
            let rss = Rss::from_settings(settings(), fields).unwrap();
            let ports = (50_000..50_100).map(|port| SocketAddr::new(local.ip(), port));
            let queues: std::collections::BTreeSet<_> =
                ports.map(|local| rss.queue(remote, local)).collect();
            assert_eq!(rss.can_reach(|queue| queue == 3), queues.len() == 4);
            assert!(!rss.can_reach(|queue| queue == 4));
            assert!(!rss.is_all(3));
            queues.len()
        };
        assert_eq!(queues(0xf0), 4);
        assert_eq!(queues(0x30), 1);
    }
}
