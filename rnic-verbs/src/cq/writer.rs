//! Completions that no worker writes: those of datagrams, which the application carries itself.

use std::sync::{Arc, Mutex, PoisonError};

use rnic_core::ids::QpNumber;
use rnic_core::memory::ring::Producer;
use rnic_core::verbs::{
    cq::Arming,
    status::WcStatus,
    wr::{self, WcOpcode, completion_flags},
};

use super::{Channel, Completion, Cq, Lane};
use crate::error::Error;
use crate::ring::ring;

/// Who sent a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The number of the queue pair, as peers know it: 24 bits.
    pub number: u32,
    /// It came by IPv6.
    pub is_ipv6: bool,
}

/// The bit behind a number that stands for IPv6.
const IPV6: u32 = 1 << 31;

/// What a datagram brings besides its octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Who sent it.
    pub source: Source,
    /// Its Immediate Data.
    pub immediate: Option<[u8; 4]>,
    /// It came with Solicited Event.
    pub solicited: bool,
}

impl Completion {
    /// Returns the completion of a datagram that was sent, or of a request that failed.
    pub fn of_sent(wr_id: u64, qp: QpNumber, status: WcStatus) -> Self {
        Self(wr::Completion::new(wr_id, qp, WcOpcode::Send, status, 0))
    }

    /// Returns the completion of a receive that failed.
    pub fn of_failed_receive(wr_id: u64, qp: QpNumber, status: WcStatus) -> Self {
        Self(wr::Completion::new(wr_id, qp, WcOpcode::Recv, status, 0))
    }

    /// Returns the completion of a receive that a datagram took, with so many octets.
    pub fn of_received(wr_id: u64, qp: QpNumber, byte_len: u32, datagram: Datagram) -> Self {
        let status = WcStatus::Success;
        let mut completion = wr::Completion::new(wr_id, qp, WcOpcode::Recv, status, byte_len);
        completion.flags = completion_flags::DATAGRAM;
        let Source { number, is_ipv6 } = datagram.source;
        let source = number & !IPV6 | if is_ipv6 { IPV6 } else { 0 };
        completion.immediate[4..].copy_from_slice(&source.to_ne_bytes());
        if let Some(immediate) = datagram.immediate {
            completion.flags |= completion_flags::WITH_IMMEDIATE;
            completion.immediate[..4].copy_from_slice(&immediate);
        }
        if datagram.solicited {
            completion.flags |= completion_flags::SOLICITED;
        }
        Self(completion)
    }

    /// Returns who sent a datagram. `None` for completions of other kinds.
    #[inline]
    pub fn source(&self) -> Option<Source> {
        let [_, _, _, _, source @ ..] = self.0.immediate;
        let source = u32::from_ne_bytes(source);
        (self.0.flags & completion_flags::DATAGRAM != 0).then_some(Source {
            number: source & !IPV6,
            is_ipv6: source & IPV6 != 0,
        })
    }
}

/// Writes completions to a queue beside the workers of its device. Clones write to the same queue.
#[derive(Clone, Debug)]
pub struct CqWriter {
    producer: Arc<Mutex<Producer<wr::Completion>>>,
    arming: Arc<Arming>,
    channel: Arc<Channel>,
}

impl CqWriter {
    /// Writes a completion, and notifies the application if it has armed the queue for such a one.
    /// Returns false if the queue has no room.
    pub fn write(&self, completion: Completion) -> bool {
        let fits = {
            let mut producer = self.producer.lock().unwrap_or_else(PoisonError::into_inner);
            producer.push(completion.0).is_ok()
        };
        let is_solicited = completion.is_solicited() || !completion.is_success();
        if fits && self.arming.fire(is_solicited) {
            self.channel.notify();
        }
        fits
    }

    /// Returns whether the queue has room for one more completion.
    pub fn has_room(&self) -> bool {
        let producer = self.producer.lock().unwrap_or_else(PoisonError::into_inner);
        producer.free() > 0
    }

    /// Returns whether the application waits for a notification.
    pub fn is_armed(&self) -> bool {
        self.arming.is_armed()
    }
}

impl Cq {
    /// Returns what writes completions to this queue beside the workers. It has as much room as
    /// each of them. Fails if there is no memory for that.
    pub fn writer(&mut self) -> Result<CqWriter, Error> {
        if let Some(writer) = &self.writer {
            return Ok(writer.clone());
        }
        let (producer, ring) = ring(self.capacity())?;
        let mut lanes = std::mem::take(&mut self.lanes).into_vec();
        lanes.push(Lane::new(ring));
        self.lanes = lanes.into();
        let writer = CqWriter {
            producer: Arc::new(Mutex::new(producer)),
            arming: self.arming.clone(),
            channel: self.channel.clone(),
        };
        self.writer = Some(writer.clone());
        Ok(writer)
    }

    /// Changes the capacity of the writer's ring.
    pub(super) fn resize_written(&mut self, capacity: u32) -> Result<(), Error> {
        let (Some(writer), Some(lane)) = (&self.writer, self.lanes.last_mut()) else {
            return Ok(());
        };
        let (new, consumer) = ring(capacity)?;
        let mut producer = writer
            .producer
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let (held, capacity) = (lane.held(), consumer.capacity());
        if held > capacity as usize {
            return Err(Error::CqHolds { held, capacity });
        }
        *producer = new;
        lane.newer.push_back(consumer);
        Ok(())
    }
}
