//! Delivery: in the order of the stream, what was placed is handed upward.

use super::{Ddp, DdpError, MAX_ASIDE, Placed};
use crate::wire::ddp::{DdpHeader, QueueNumber, TaggedHeader, UntaggedHeader};

/// What DDP tells RDMAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery<'a> {
    /// A segment of a tagged message. Where tagged messages begin is not for DDP to know (RFC 5041 section 5.2).
    // rfc: 5041-27, 5041-32
    Tagged {
        /// Its header, with the ULP's octet.
        header: TaggedHeader,
        /// Octets of payload.
        len: u32,
    },
    /// A whole untagged message.
    // rfc: 5041-37, 5041-64, 5041-65
    Untagged {
        /// The header of its last segment, with the ULP's octets.
        header: UntaggedHeader,
        /// Octets of the message.
        length: u32,
        /// The message itself, if it came in a queue that RDMAP keeps for itself, or its first octets, if RDMAP
        /// wanted them with the delivery; else it is in the receive that is first in the queue pair.
        octets: &'a [u8],
    },
}

impl Ddp {
    /// Takes a Send without octets in its turn, as one that meets no receive.
    pub fn pass_empty_send(&mut self, header: &UntaggedHeader) -> Result<(), DdpError> {
        self.sends.deliver(header, 0).map(|_| ())
    }

    /// Takes a placed segment in its turn: segments are delivered in the order of the stream, each once.
    /// `Some` for each tagged segment, and for the last one of an untagged message.
    ///
    /// For a message of queue 0 the owner takes the first entry off the receive queue, before anything else
    /// is placed or delivered.
    // rfc: 5041-21, 5041-61, 5041-62, 5041-63
    pub fn deliver(&mut self, placed: Placed) -> Result<Option<Delivery<'_>>, DdpError> {
        let len = placed.len;
        let header = match placed.header {
            DdpHeader::Tagged(header) => return Ok(Some(Delivery::Tagged { header, len })),
            DdpHeader::Untagged(header) => header,
        };
        let octets = match header.queue {
            QueueNumber::SEND => {
                let start = header.offset.0 as usize;
                let length = self.sends.deliver(&header, len)?;
                if let Some(octets) = placed.aside {
                    self.set_aside(start, &octets[..MAX_ASIDE.min(len as usize)]);
                }
                return Ok(length.map(|length| {
                    let octets = match placed.aside {
                        Some(_) => &self.aside[..MAX_ASIDE.min(length as usize)],
                        None => &[],
                    };
                    Delivery::Untagged {
                        header,
                        length,
                        octets,
                    }
                }));
            }
            QueueNumber::READ_REQUEST => self.read_requests.deliver(&header, len)?,
            QueueNumber::TERMINATE => self.terminates.deliver(&header, len)?,
            unknown => return Err(DdpError::InvalidQn(unknown)),
        };
        Ok(octets.map(|octets| {
            let length = octets.len() as u32;
            Delivery::Untagged {
                header,
                length,
                octets,
            }
        }))
    }
    /// Keeps octets of the message whose turn it is, which start at octet `start` of it.
    fn set_aside(&mut self, start: usize, octets: &[u8]) {
        if start == 0 {
            self.aside = [0; MAX_ASIDE];
        }
        for (to, from) in self.aside.iter_mut().skip(start).zip(octets) {
            *to = *from;
        }
    }
}
