//! The side that sends the Request.

use super::{Incoming, MpaOptions, NOT_NEGOTIATED, Negotiated, Rtr};
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
    answered: bool,
}

/// How the responder answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MpaReply {
    /// FPDUs may flow.
    Accepted(Negotiated),
    /// The responder rejects the connection; MPA ends here.
    Rejected {
        /// What it handed over.
        private_data: Vec<u8>,
        /// The IRD that it stated, if any.
        peer_ird: Option<u16>,
        /// The ORD that it stated or would need, if any.
        peer_ord: Option<u16>,
    },
    /// An FPDU came in the place of the MpaReply, with this ULPDU. It can only be a Terminate: so a responder of RFC 6581
    /// says that it cannot go on (section 9.3).
    Fpdu(Vec<u8>),
}

impl MpaInitiator {
    /// Also gives the octets of the Request: send them first.
    ///
    /// # Errors
    /// [`MpaError::Revision`], [`MpaError::PeerToPeer`] and [`MpaError::PrivateData`] for options that cannot be
    /// asked for.
    pub fn new(options: MpaOptions) -> Result<(Self, Vec<u8>), MpaError> {
        // rfc: 5044-64, 6581-4
        let enhanced = match options.revision {
            1 if !options.rtr.is_none() => return Err(MpaError::PeerToPeer),
            1 => None,
            2 => options.is_enhanced().then(|| request_data(&options)),
            other => return Err(MpaError::Revision(other)),
        };
        check_private_data(&options.private_data, enhanced.is_some())?;
        // rfc: 5044-63, 5044-70
        let request = emit(&StartupFrame {
            kind: StartupKind::Request,
            // rfc: 5044-56
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
            answered: false,
        };
        Ok((initiator, request))
    }

    /// Takes the Reply from the front of `input`, in whatever pieces it comes; `None` until it is whole.
    /// Octets behind it stay in `input`: they are FPDUs.
    ///
    /// # Errors
    /// A Reply that is malformed or not acceptable; see [`MpaError::action`].
    pub fn receive(&mut self, input: &mut &[u8]) -> Result<Option<MpaReply>, MpaError> {
        if self.answered {
            return Ok(None);
        }
        if self.incoming.begins_with_fpdu(input) {
            let MpaOptions { crc, markers, .. } = self.options;
            let ulpdu = self.incoming.take_fpdu(input, crc, markers)?;
            self.answered = ulpdu.is_some();
            return Ok(ulpdu.map(MpaReply::Fpdu));
        }
        let Some(reply) = self.incoming.take(input)? else {
            return Ok(None);
        };
        self.answered = true;
        // rfc: 5044-79
        if reply.kind != StartupKind::Reply {
            return Err(MpaError::SameRole(reply.kind));
        }
        // rfc: 5044-28c, 5044-32, 5044-61
        self.crc |= reply.crc;
        self.markers = reply.markers;
        // rfc: 5044-74
        if reply.reject {
            return Ok(Some(MpaReply::Rejected {
                private_data: reply.private_data.to_vec(),
                peer_ird: reply.enhanced.map(|enhanced| enhanced.ird),
                peer_ord: reply.enhanced.map(|enhanced| enhanced.ord),
            }));
        }
        settle(&self.options, self.crc, &reply).map(|settled| Some(MpaReply::Accepted(settled)))
    }

    /// Whether it asked in the form of RFC 6581, and may so send a Terminate during start-up.
    pub fn is_enhanced(&self) -> bool {
        self.options.is_enhanced()
    }

    /// Whether CRCs are used as far as is known: what a Terminate about the Reply must be sent with.
    pub fn crc(&self) -> bool {
        self.crc
    }

    /// The same of markers.
    pub fn markers(&self) -> bool {
        self.markers
    }
}

/// The enhanced data of a Request.
// rfc: 6581-26
fn request_data(options: &MpaOptions) -> Enhanced {
    if options.negotiate_reads {
        options.rtr.enhanced(options.ird(), options.ord())
    } else {
        options.rtr.enhanced(NOT_NEGOTIATED, NOT_NEGOTIATED)
    }
}

/// What an accepting Reply leaves of what was asked.
fn settle(options: &MpaOptions, crc: bool, reply: &StartupFrame) -> Result<Negotiated, MpaError> {
    // rfc: 5044-65, 5044-66
    if reply.revision != options.revision {
        return Err(MpaError::ReplyRevision {
            asked: options.revision,
            answered: reply.revision,
        });
    }
    // rfc: 6581-39
    match (options.is_enhanced(), reply.enhanced.is_some()) {
        (true, false) => return Err(MpaError::ReplyNotEnhanced),
        (false, true) => return Err(MpaError::ReplyEnhanced),
        _ => {}
    }
    let mut settled = Negotiated {
        revision: reply.revision,
        enhanced: reply.enhanced.is_some(),
        crc,
        // rfc: 5044-17, 5044-58, 5044-59
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
        settled.peer_ird = Some(theirs.ird);
        settled.peer_ord = Some(theirs.ord);
        settled.ord = outbound_depth(settled.ord, theirs.ird);
        settled.ird = inbound_depth(options, theirs.ord)?;
        settled.rtr = ready_to_receive(options.rtr, theirs)?;
        if settled.rtr.read {
            settled.ord = settled.ord.max(1);
        }
    }
    Ok(settled)
}

/// How many reads to take at once from a responder that wants `peer_ord` outstanding.
// rfc: 6581-16, 6581-17, 6581-18, 6581-24
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

/// The message to start with: of those that this side can send and the responder takes, one. A responder that takes no
/// Reads at all takes none to start with.
// rfc: 6581-17, 6581-32, 6581-35
fn ready_to_receive(own: Rtr, theirs: &Enhanced) -> Result<Rtr, MpaError> {
    if own.is_none() && !theirs.peer_to_peer {
        return Ok(Rtr::NONE);
    }
    // A Write costs the responder nothing; a Read has to be answered; a Send may use up a receive at responders that
    // are less careful than this one.
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
