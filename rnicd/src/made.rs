//! Making a port: a share of a device, or a hardware queue of it. What `police` lets its client
//! send, its rate included, is settled here.

use std::io;
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;

use rnic_manager::Token;
use rnic_manager::protocol::{Grant, Reason, Refused, RingSizes, UntaggedAddress};
use rnic_xdp::shared::ClientPolicy;
use rnic_xdp::shared::QueuePort;
use rnic_xdp::{InterfaceConfig, OpenError, PortShape};
use tracing::warn;

use crate::config::{Crc, Limits, Queue, words};
use crate::room;
use crate::shared::Shared;

/// Time that a port may send at its rate at once, in parts of a second.
const BURST_PART: u64 = 100;
/// The least octets that a port with a rate may send at once: some of the longest frames.
const MIN_BURST: u64 = 256 << 10;

/// A port that was made, and that its client does not have yet.
pub(crate) struct MadePort {
    /// The AF_XDP socket, and the memory of its UMEM.
    pub(crate) descriptors: Vec<OwnedFd>,
    /// What it is, if it is a hardware queue.
    pub(crate) queue: Option<QueuePort>,
    shape: PortShape,
    huge_pages: bool,
}

impl MadePort {
    /// Makes a port of a device for a user.
    pub(crate) fn make(
        shared: &mut Shared,
        number: u32,
        config: &InterfaceConfig,
        limits: &Limits,
        uid: u32,
    ) -> Result<Self, Refused> {
        let device = &mut shared.device;
        let octets = PortShape::for_mtu(config, device.mtu()).octets();
        room::check(octets as u64).map_err(|why| Refused::new(Reason::Other, why))?;
        let made = match config.queue {
            Some(queue) => device
                .make_queue_port(number, queue, uid, config, &limits.peers.value.0)
                .map(|(made, port)| Self {
                    descriptors: vec![made.socket, made.umem],
                    queue: Some(port),
                    shape: made.shape,
                    huge_pages: made.huge_pages,
                }),
            None => {
                let shape = PortShape::for_mtu(config, device.mtu());
                let policy = policy(limits, device.mtu());
                let made = device.make_port(number, &shape, &policy);
                made.map(|made| Self {
                    descriptors: vec![made.socket, made.umem],
                    queue: None,
                    shape,
                    huge_pages: made.huge_pages,
                })
            }
        };
        made.map_err(|error| refusal(&error))
    }

    /// Returns the octets of its memory that lie on hugepages.
    pub(crate) fn huge_octets(&self) -> u64 {
        match self.huge_pages {
            true => self.shape.octets() as u64,
            false => 0,
        }
    }

    /// Returns the memory of its frames once more, for rnicd.
    pub(crate) fn memory(&self) -> io::Result<OwnedFd> {
        // It is the last of the two.
        let memory = self.descriptors.last();
        memory.map_or(Err(io::ErrorKind::NotFound.into()), OwnedFd::try_clone)
    }

    /// Removes the port again.
    pub(crate) fn unmake(self, shared: &mut Shared, number: u32) {
        let taken = match self.queue {
            Some(_) => shared.device.forget_queue_port(number),
            None => shared.device.remove_port(number),
        };
        if let Err(error) = taken {
            let netdev = shared.device.netdev();
            warn!("{netdev}: something of port {number} is left: {error}");
        }
    }

    /// Returns what its client must know.
    pub(crate) fn grant(
        &self,
        shared: &Shared,
        port: u32,
        (token, ipsec_if_id): (Token, Option<NonZeroU32>),
        limits: &Limits,
    ) -> Grant {
        let (device, shape) = (&shared.device, &self.shape);
        let mtu = device.mtu();
        Grant {
            port,
            token,
            netdev: device.netdev().to_owned(),
            chunk: shape.chunk,
            chunks: shape.chunks,
            rx_chunks: shape.rx_chunks,
            tx_chunks: shape.tx_chunks,
            rings: RingSizes {
                fill: shape.fill_ring,
                completion: shape.completion_ring,
                rx: shape.rx_ring,
                tx: shape.tx_ring,
            },
            mtu: mtu.min(shape.max_mtu()),
            link_mtu: mtu,
            mode: device.mode().clone(),
            copied: match &self.queue {
                Some(queue) => queue.copied.clone(),
                None => Some("a port of rnicd copies".into()),
            },
            huge_pages: self.huge_pages,
            partial_checksums: device.has_partial_checksums(),
            // rfc: 5044-28b the administrator says who may do without CRCs
            crc_optional: limits.crc.value == Crc::Optional,
            untagged: UntaggedAddress::list(device.untagged()),
            queue: self.queue.as_ref().map(|queue| queue.queue),
            ipsec_if_id,
        }
    }
}

/// Returns the frames that a port takes of its user's quota.
pub(crate) fn frames(shared: &Shared, config: &InterfaceConfig) -> u32 {
    let shape = PortShape::for_mtu(config, shared.device.mtu());
    shape.rx_chunks + shape.tx_chunks
}

/// Fails if a user wants a hardware queue that was not granted, or that another port is.
pub(crate) fn check_queue(
    shared: &Shared,
    config: &InterfaceConfig,
    limits: &Limits,
    uid: u32,
) -> Result<(), Refused> {
    let Some(number) = config.queue else {
        return Ok(());
    };
    let netdev = config.netdev.clone();
    let queue = Queue { netdev, number };
    let granted = &limits.queues;
    if !granted.value.0.contains(&queue) {
        let has = match words(&granted.value) {
            none if none.is_empty() => "no queue of a device".to_owned(),
            queues => format!("only {queues}"),
        };
        let why = format!(
            "uid {uid} may have {has} as a port, not {queue}; {} says so (`queues`)",
            granted.origin
        );
        return Err(Refused::new(Reason::NotPermitted, why));
    }
    // A port whose client is not connected may just have ended: that is waited for.
    let taken = shared.ports.iter().find(|(_, port)| {
        let of_port = port.record.queue.as_ref().map(|queue| queue.queue);
        of_port == Some(number) && port.client.is_some()
    });
    taken.map_or(Ok(()), |(port, _)| {
        let why = format!("{queue} is port {port} already (`rnic-ctl port show`)");
        Err(Refused::new(Reason::Other, why))
    })
}

/// Returns what the programs let a client send.
fn policy(limits: &Limits, mtu: u32) -> ClientPolicy {
    let rate = limits.rate.value.0.map(|bits| (bits / 8).max(1));
    ClientPolicy {
        mtu,
        rate,
        burst: rate.map_or(0, |rate| (rate / BURST_PART).max(MIN_BURST)),
        peers: limits.peers.value.0.clone(),
    }
}

fn refusal(error: &OpenError) -> Refused {
    // The kernel may still be taking its last socket down.
    let reason = match error {
        OpenError::QueueBusy { .. } => Reason::InUse,
        _ => Reason::Other,
    };
    Refused::new(reason, format!("rnicd cannot make a port: {error}"))
}
