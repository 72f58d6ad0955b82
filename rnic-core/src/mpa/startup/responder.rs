//! The side that answers a Request.

use super::{Incoming, MpaOptions, NOT_NEGOTIATED, Negotiated, Rtr};
use super::{check_private_data, emit, outbound_depth};
use crate::mpa::MpaError;
use crate::wire::mpa::{Enhanced, StartupFrame, StartupKind};

/// The responder, until it has answered.
#[derive(Debug, Default)]
pub struct MpaResponder {
    incoming: Incoming,
    state: ResponderState,
}

#[derive(Debug, Default)]
enum ResponderState {
    #[default]
    Waiting,
    Received(RequestTerms),
    Replied,
}

/// What the answer has to match.
#[derive(Clone, Copy, Debug)]
struct RequestTerms {
    revision: u8,
    crc: bool,
    markers: bool,
    len: usize,
    enhanced: Option<Enhanced>,
}

/// What an initiator asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MpaRequest {
    /// The revision of MPA that it speaks.
    pub revision: u8,
    /// Whether it stated depths and the rest of RFC 6581.
    pub enhanced: bool,
    /// Whether it asks for CRCs.
    pub crc: bool,
    /// Reads that it takes at once; 16383: not negotiated; 0 if not stated.
    pub ird: u16,
    /// Reads that it wants to have outstanding; 16383: not negotiated; 0 if not stated.
    pub ord: u16,
    /// Whether the connection is peer-to-peer: the initiator starts with a ready-to-receive message.
    pub peer_to_peer: bool,
    /// What it hands over.
    pub private_data: Vec<u8>,
}

impl MpaResponder {
    /// Waits for a Request.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the Request from the front of `input`, in whatever pieces it comes; `None` until it is whole.
    /// Octets behind it stay in `input`.
    ///
    /// # Errors
    /// A Request that is malformed or not acceptable; see [`MpaError::action`].
    pub fn receive(&mut self, input: &mut &[u8]) -> Result<Option<MpaRequest>, MpaError> {
        // rfc: 5044-71
        if !matches!(self.state, ResponderState::Waiting) {
            return Ok(None);
        }
        let Some(request) = self.incoming.take(input)? else {
            return Ok(None);
        };
        self.state = ResponderState::Replied;
        // rfc: 5044-79
        if request.kind != StartupKind::Request {
            return Err(MpaError::SameRole(request.kind));
        }
        // rfc: 5044-65, 5044-66, 6581-5, 6581-42
        if !matches!(request.revision, 1 | 2) {
            return Err(MpaError::RequestRevision(request.revision));
        }
        let terms = RequestTerms {
            revision: request.revision,
            crc: request.crc,
            markers: request.markers,
            len: request.len(),
            enhanced: request.enhanced,
        };
        let enhanced = request.enhanced.unwrap_or_default();
        let request = MpaRequest {
            revision: request.revision,
            enhanced: request.enhanced.is_some(),
            crc: request.crc,
            ird: enhanced.ird,
            ord: enhanced.ord,
            peer_to_peer: enhanced.peer_to_peer,
            // rfc: 6581-11
            private_data: request.private_data.to_vec(),
        };
        self.state = ResponderState::Received(terms);
        Ok(Some(request))
    }

    /// Accepts the Request: gives the octets of the Reply and what is agreed. FPDUs may be received at once,
    /// and sent when one has been received.
    ///
    /// # Errors
    /// [`MpaError::NoRequest`]; [`MpaError::PrivateData`], which leaves the Request to be answered.
    pub fn accept(&mut self, options: &MpaOptions) -> Result<(Vec<u8>, Negotiated), MpaError> {
        let terms = self.request_terms()?;
        check_private_data(&options.private_data, terms.enhanced.is_some())?;
        self.state = ResponderState::Replied;
        Ok(terms.acceptance(options))
    }

    /// Rejects the Request: gives the octets of the Reply. MPA ends here.
    ///
    /// # Errors
    /// [`MpaError::NoRequest`]; [`MpaError::PrivateData`], which leaves the Request to be answered.
    pub fn reject(&mut self, private_data: &[u8]) -> Result<Vec<u8>, MpaError> {
        let terms = self.request_terms()?;
        check_private_data(private_data, terms.enhanced.is_some())?;
        self.state = ResponderState::Replied;
        Ok(terms.rejection(private_data))
    }

    /// Whether a Request of RFC 6581 waits for an answer, whose sender understands a Terminate in its place; and whether it
    /// requires markers.
    pub fn may_terminate(&self) -> Option<bool> {
        let terms = self.request_terms().ok()?;
        terms.enhanced.map(|_| terms.markers)
    }

    fn request_terms(&self) -> Result<RequestTerms, MpaError> {
        match self.state {
            ResponderState::Received(terms) => Ok(terms),
            ResponderState::Waiting | ResponderState::Replied => Err(MpaError::NoRequest),
        }
    }
}

impl RequestTerms {
    /// The accepting MpaReply, and what it settles.
    fn acceptance(&self, options: &MpaOptions) -> (Vec<u8>, Negotiated) {
        let mut settled = Negotiated {
            revision: self.revision,
            enhanced: self.enhanced.is_some(),
            // rfc: 5044-28c, 5044-32, 5044-33, 5044-61, 5044-94
            crc: options.crc || self.crc,
            // rfc: 5044-17, 5044-58, 5044-59
            markers: self.markers,
            peer_markers: options.markers,
            peer_start: self.len as u64,
            ird: options.ird(),
            ord: options.ord(),
            peer_ird: self.enhanced.map(|theirs| theirs.ird),
            peer_ord: self.enhanced.map(|theirs| theirs.ord),
            rtr: self.rtr(),
            private_data: Vec::new(),
        };
        if settled.rtr.read {
            settled.ird = settled.ird.max(1);
        }
        let enhanced = self.enhanced.map(|theirs| {
            settled.ord = outbound_depth(settled.ord, theirs.ird);
            // rfc: 6581-21, 6581-23
            let stated = |own: u16, asked: u16| {
                if !options.negotiate_reads || asked == NOT_NEGOTIATED {
                    NOT_NEGOTIATED
                } else {
                    own
                }
            };
            let ird = stated(settled.ird, theirs.ord);
            let ord = stated(settled.ord, theirs.ird);
            settled.rtr.enhanced(ird, ord)
        });
        let reply = StartupFrame {
            // rfc: 5044-57
            markers: settled.peer_markers,
            crc: settled.crc,
            ..self.reply(enhanced, &options.private_data)
        };
        (emit(&reply), settled)
    }

    /// The rejecting Reply. It states the depths that were asked for: they are not the reason.
    fn rejection(&self, private_data: &[u8]) -> Vec<u8> {
        let enhanced = self
            .enhanced
            .map(|theirs| self.rtr().enhanced(theirs.ord, theirs.ird));
        emit(&StartupFrame {
            reject: true,
            ..self.reply(enhanced, private_data)
        })
    }

    /// A Reply in the revision and form of the Request.
    // rfc: 6581-40, 6581-43, 6581-44
    fn reply<'a>(&self, enhanced: Option<Enhanced>, private_data: &'a [u8]) -> StartupFrame<'a> {
        StartupFrame {
            kind: StartupKind::Reply,
            markers: false,
            crc: self.crc,
            reject: false,
            enhanced_bit: enhanced.is_some(),
            // rfc: 5044-63
            reserved: 0,
            revision: self.revision,
            enhanced,
            private_data,
        }
    }

    /// The ready-to-receive messages to offer: of those asked for what is taken here, or all that is if
    /// that leaves none.
    // rfc: 6581-27, 6581-28, 6581-29, 6581-30, 6581-35, 6581-s3
    fn rtr(&self) -> Rtr {
        match &self.enhanced {
            Some(theirs) if theirs.peer_to_peer => match Rtr::of(theirs) {
                Rtr::NONE => Rtr::ALL,
                wanted => wanted,
            },
            _ => Rtr::NONE,
        }
    }
}
