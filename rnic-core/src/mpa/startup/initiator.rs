//! The initiator: sends the Request.

use super::{Incoming, MpaNegotiated, MpaOptions, NOT_NEGOTIATED, Rtr};
use super::{check_private_data, emit, outbound_depth};
use crate::mpa::MpaError;
use crate::wire::mpa::{Enhanced, StartupFrame, StartupKind};

/// The initiator, between its Request and the Reply.
#[derive(Debug)]
pub struct MpaInitiator {
    options: MpaOptions,
    incoming: Incoming,
    crc: bool,
    markers: bool,
    replied: bool,
}

/// The responder's Reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MpaReply {
    /// The connection is accepted: FPDUs may be sent.
    Accepted(MpaNegotiated),
    /// The connection is rejected: MPA ends here.
    Rejected {
        /// The responder's private data.
        private_data: Vec<u8>,
        /// The IRD that it stated, if any.
        peer_ird: Option<u16>,
        /// The ORD that it stated, if any.
        peer_ord: Option<u16>,
    },
    /// An FPDU in place of the Reply, with this ULPDU: a Terminate, by which a responder of RFC
    /// 6581 says that it cannot continue (section 9.3).
    Fpdu(Vec<u8>),
}

impl MpaInitiator {
    /// Makes an initiator, and the Request to be sent first.
    ///
    /// # Errors
    /// [`MpaError::Revision`], [`MpaError::PeerToPeer`] and [`MpaError::PrivateData`] for invalid
    /// options.
    pub fn new(options: MpaOptions) -> Result<(Self, Vec<u8>), MpaError> {
        // rfc: 5044-64, 6581-4 the revision is 1, or 2 with the enhanced form
        let enhanced = match options.revision {
            1 if !options.rtr.is_none() => return Err(MpaError::PeerToPeer),
            1 => None,
            2 => options.is_enhanced().then(|| request_data(&options)),
            other => return Err(MpaError::Revision(other)),
        };
        check_private_data(&options.private_data, enhanced.is_some())?;
        // rfc: 5044-63, 5044-70 the Request is valid, and its reserved bits are zero
        let request = emit(&StartupFrame {
            kind: StartupKind::Request,
            // rfc: 5044-56 M in a Request asks for markers from the responder
            markers: options.markers,
            crc: options.crc,
            reject: false,
            enhanced_bit: enhanced.is_some(),
            reserved: 0,
            revision: options.revision,
            enhanced,
            private_data: &options.private_data,
        });
        let initiator = Self {
            crc: options.crc,
            markers: false,
            options,
            incoming: Incoming::default(),
            replied: false,
        };
        Ok((initiator, request))
    }

    /// Removes the Reply, in any pieces, from the front of `input`. Returns `None` until it is
    /// complete. What follows it stays in `input`: FPDUs.
    ///
    /// # Errors
    /// A Reply that is malformed, or not acceptable: see [`MpaError::action`].
    pub fn receive(&mut self, input: &mut &[u8]) -> Result<Option<MpaReply>, MpaError> {
        if self.replied {
            return Ok(None);
        }
        if self.incoming.begins_with_fpdu(input) {
            let MpaOptions { crc, markers, .. } = self.options;
            let ulpdu = self.incoming.take_fpdu(input, crc, markers)?;
            self.replied = ulpdu.is_some();
            return Ok(ulpdu.map(MpaReply::Fpdu));
        }
        let Some(reply) = self.incoming.take(input)? else {
            return Ok(None);
        };
        self.replied = true;
        // rfc: 5044-79 two initiators notice it by the key
        if reply.kind != StartupKind::Reply {
            return Err(MpaError::SameRole(reply.kind));
        }
        // rfc: 5044-28c, 5044-32, 5044-61 CRCs are used if either side asks for them
        self.crc |= reply.crc;
        self.markers = reply.markers;
        // rfc: 5044-74 an initiator checks the Reply
        if reply.reject {
            return Ok(Some(MpaReply::Rejected {
                private_data: reply.private_data.to_vec(),
                peer_ird: reply.enhanced.map(|enhanced| enhanced.ird),
                peer_ord: reply.enhanced.map(|enhanced| enhanced.ord),
            }));
        }
        negotiate(&self.options, self.crc, &reply)
            .map(|negotiated| Some(MpaReply::Accepted(negotiated)))
    }

    /// Returns whether it has sent an enhanced Request (RFC 6581), and may therefore send a
    /// Terminate during start-up.
    pub fn is_enhanced(&self) -> bool {
        self.options.is_enhanced()
    }

    /// Returns whether anything has come in the place of the Reply.
    pub fn has_heard(&self) -> bool {
        self.replied || !self.incoming.octets.is_empty()
    }

    /// Returns whether CRCs are used, as far as is known: a Terminate about the Reply needs to
    /// know.
    pub fn crc(&self) -> bool {
        self.crc
    }

    /// Returns whether the responder has asked for markers, as far as is known.
    pub fn markers(&self) -> bool {
        self.markers
    }
}

/// Makes the enhanced data of a Request.
// rfc: 6581-26 with A the flags B, C and D say with which messages the initiator can begin
fn request_data(options: &MpaOptions) -> Enhanced {
    if options.negotiate_reads {
        options.rtr.enhanced(options.ird(), options.ord())
    } else {
        options.rtr.enhanced(NOT_NEGOTIATED, NOT_NEGOTIATED)
    }
}

/// Makes what was agreed on of the options and an accepting Reply.
fn negotiate(
    options: &MpaOptions,
    crc: bool,
    reply: &StartupFrame,
) -> Result<MpaNegotiated, MpaError> {
    // rfc: 5044-65, 5044-66 the revision is checked; another one closes the connection
    if reply.revision != options.revision {
        return Err(MpaError::ReplyRevision {
            asked: options.revision,
            replied: reply.revision,
        });
    }
    // rfc: 6581-39 an enhanced Request has an enhanced Reply
    match (options.is_enhanced(), reply.enhanced.is_some()) {
        (true, false) => return Err(MpaError::ReplyNotEnhanced),
        (false, true) => return Err(MpaError::ReplyEnhanced),
        _ => {}
    }
    let mut negotiated = MpaNegotiated {
        revision: reply.revision,
        enhanced: reply.enhanced.is_some(),
        crc,
        // rfc: 5044-17, 5044-58, 5044-59 markers are sent if the peer has set M
        markers: reply.markers,
        peer_markers: options.markers,
        peer_start: reply.len() as u64,
        ird: options.ird(),
        ord: options.ord(),
        peer_ird: None,
        peer_ord: None,
        rtr: Rtr::NONE,
        private_data: reply.private_data.to_vec(),
    };
    if let Some(theirs) = &reply.enhanced {
        negotiated.peer_ird = Some(theirs.ird);
        negotiated.peer_ord = Some(theirs.ord);
        negotiated.ord = outbound_depth(negotiated.ord, theirs.ird);
        negotiated.ird = inbound_depth(options, theirs.ord)?;
        negotiated.rtr = ready_to_receive(options.rtr, theirs)?;
        if negotiated.rtr.read {
            negotiated.ord = negotiated.ord.max(1);
        }
    }
    Ok(negotiated)
}

/// Returns the IRD towards a responder with ORD `peer_ord`.
// rfc: 6581-17 the IRD is at least the responder's ORD
// rfc: 6581-16, 6581-18 an initiator that cannot take so many sends a Terminate
// rfc: 6581-24 it stays as it is where the responder's ORD is 0x3fff
fn inbound_depth(options: &MpaOptions, peer_ord: u16) -> Result<u16, MpaError> {
    let ird = options.ird();
    if peer_ord == NOT_NEGOTIATED || peer_ord <= ird {
        return Ok(ird);
    }
    let limit = options.max_ird.max(ird);
    if peer_ord > limit {
        return Err(MpaError::InsufficientIrd {
            wanted: peer_ord,
            limit,
        });
    }
    Ok(peer_ord)
}

/// Chooses a ready-to-receive message that this side can send and the responder accepts. A
/// responder with IRD 0 accepts no Read.
// rfc: 6581-17 no Read is outstanding beyond the responder's IRD
// rfc: 6581-32 an initiator that can send none of those agreed on sends a Terminate
// rfc: 6581-35 without A in the Request there is none in the Reply
fn ready_to_receive(own: Rtr, theirs: &Enhanced) -> Result<Rtr, MpaError> {
    if own.is_none() && !theirs.peer_to_peer {
        return Ok(Rtr::NONE);
    }
    // A Write costs the responder nothing. A Read needs a response. A Send may use up a receive of
    // responders that are less careful than this one.
    let Rtr { send, write, read } = own.and(Rtr::of(theirs));
    let read = read && theirs.ird > 0;
    let one = Rtr {
        write,
        read: read && !write,
        send: send && !write && !read,
    };
    if one.is_none() {
        return Err(MpaError::NoMatchingRtr);
    }
    Ok(one)
}
