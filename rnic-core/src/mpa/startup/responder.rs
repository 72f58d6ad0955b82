//! The responder: receives the Request and sends the Reply.

use super::{Incoming, MpaNegotiated, MpaOptions, NOT_NEGOTIATED, Rtr};
use super::{check_private_data, emit, outbound_depth};
use crate::mpa::MpaError;
use crate::wire::mpa::{Enhanced, StartupFrame, StartupKind};

/// The responder, until it has sent the Reply.
#[derive(Debug, Default)]
pub struct MpaResponder {
    /// The Request, and once that is whole what comes before the Reply.
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

/// What the Reply depends on.
#[derive(Clone, Copy, Debug)]
struct RequestTerms {
    revision: u8,
    crc: bool,
    markers: bool,
    len: usize,
    enhanced: Option<Enhanced>,
}

/// The initiator's Request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MpaRequest {
    /// The revision of MPA.
    pub revision: u8,
    /// Whether it is enhanced (RFC 6581).
    pub enhanced: bool,
    /// Whether it asks for CRCs.
    pub crc: bool,
    /// The initiator's IRD; 16383: not negotiated; 0 if not stated.
    pub ird: u16,
    /// The initiator's ORD; 16383: not negotiated; 0 if not stated.
    pub ord: u16,
    /// Whether the connection is peer-to-peer: the initiator begins with a ready-to-receive
    /// message.
    pub peer_to_peer: bool,
    /// The initiator's private data.
    pub private_data: Vec<u8>,
}

impl MpaResponder {
    /// Makes a responder that waits for a Request.
    pub fn new() -> Self {
        Self::default()
    }

    /// Removes the Request, in any pieces, from the front of `input`. Returns `None` until it is
    /// complete. What follows it stays in `input`.
    ///
    /// # Errors
    /// A Request that is malformed, or not acceptable: see [`MpaError::action`].
    pub fn receive(&mut self, input: &mut &[u8]) -> Result<Option<MpaRequest>, MpaError> {
        // rfc: 5044-71 full operation begins only after a valid Request
        if !matches!(self.state, ResponderState::Waiting) {
            return Ok(None);
        }
        let mut incoming = std::mem::take(&mut self.incoming);
        let Some(request) = incoming.take(input)? else {
            self.incoming = incoming;
            return Ok(None);
        };
        self.state = ResponderState::Replied;
        // rfc: 5044-79 two responders notice it by the key
        if request.kind != StartupKind::Request {
            return Err(MpaError::SameRole(request.kind));
        }
        // rfc: 5044-65, 5044-66 a revision that is not supported closes the connection
        // rfc: 6581-5, 6581-42 Requests of revision 1 are accepted
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
            // rfc: 6581-11 the application can examine private data
            private_data: request.private_data.to_vec(),
        };
        self.state = ResponderState::Received(terms);
        Ok(Some(request))
    }

    /// Accepts the Request. Returns the Reply, and what was agreed on. FPDUs may be received from
    /// now on, and sent once one was received.
    ///
    /// # Errors
    /// [`MpaError::NoRequest`]; [`MpaError::PrivateData`], after which the Request can still be
    /// accepted or rejected.
    pub fn accept(&mut self, options: &MpaOptions) -> Result<(Vec<u8>, MpaNegotiated), MpaError> {
        let terms = self.request_terms()?;
        check_private_data(&options.private_data, terms.enhanced.is_some())?;
        self.state = ResponderState::Replied;
        Ok(terms.acceptance(options))
    }

    /// Rejects the Request. Returns the Reply. MPA ends here.
    ///
    /// # Errors
    /// [`MpaError::NoRequest`]; [`MpaError::PrivateData`], after which the Request can still be
    /// accepted or rejected.
    pub fn reject(&mut self, private_data: &[u8]) -> Result<Vec<u8>, MpaError> {
        let terms = self.request_terms()?;
        check_private_data(private_data, terms.enhanced.is_some())?;
        self.state = ResponderState::Replied;
        Ok(terms.rejection(private_data))
    }

    /// Returns whether the initiator requires markers, if its Request was enhanced and has no Reply
    /// yet: then it understands a Terminate in place of the Reply.
    pub fn may_terminate(&self) -> Option<bool> {
        let terms = self.request_terms().ok()?;
        terms.enhanced.map(|_| terms.markers)
    }

    /// Returns whether the Request was for a peer-to-peer connection, and has no Reply yet: the
    /// initiator would begin with a ready-to-receive message.
    pub fn is_peer_to_peer(&self) -> bool {
        let terms = self.request_terms().ok();
        let enhanced = terms.and_then(|terms| terms.enhanced);
        enhanced.is_some_and(|enhanced| enhanced.peer_to_peer)
    }

    /// Removes an FPDU that comes before the Reply, in any pieces, from the front of `input`.
    /// Returns its ULPDU once it is complete. It can only be a Terminate, by which an initiator of
    /// RFC 6581 gives up (section 9.3). If the Request is accepted first, what has come of the FPDU
    /// is the beginning of the stream: see [`take_early`](Self::take_early).
    ///
    /// # Errors
    /// Where no FPDU comes that is short enough for a Terminate, or the Request was not enhanced.
    pub fn receive_early(&mut self, input: &mut &[u8]) -> Result<Option<Vec<u8>>, MpaError> {
        let terms = self.request_terms()?;
        if terms.enhanced.is_none() {
            return Err(MpaError::Early);
        }
        // rfc: 6581-38 an initiator may give up before the Reply
        // It cannot know yet whether this side requires CRCs or markers.
        self.incoming.take_fpdu(input, terms.crc, false)
    }

    /// Removes and returns the front of an FPDU that has come before the Reply. It is empty if none
    /// has.
    pub fn take_early(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.incoming).octets
    }

    fn request_terms(&self) -> Result<RequestTerms, MpaError> {
        match self.state {
            ResponderState::Received(terms) => Ok(terms),
            ResponderState::Waiting | ResponderState::Replied => Err(MpaError::NoRequest),
        }
    }
}

impl RequestTerms {
    /// Makes the accepting Reply, and what it agrees on.
    fn acceptance(&self, options: &MpaOptions) -> (Vec<u8>, MpaNegotiated) {
        let mut negotiated = MpaNegotiated {
            revision: self.revision,
            enhanced: self.enhanced.is_some(),
            // rfc: 5044-28c, 5044-32, 5044-61, 5044-94 CRCs are used if either side asks for them
            // rfc: 5044-33 and not if neither does
            crc: options.crc || self.crc,
            // rfc: 5044-17, 5044-58, 5044-59 markers are sent if the peer has set M
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
        if negotiated.rtr.read {
            negotiated.ird = negotiated.ird.max(1);
        }
        let enhanced = self.enhanced.map(|theirs| {
            negotiated.ord = outbound_depth(negotiated.ord, theirs.ird);
            // rfc: 6581-21, 6581-23 a depth of 0x3fff gets 0x3fff in the Reply
            let stated = |own: u16, asked: u16| {
                if !options.negotiate_reads || asked == NOT_NEGOTIATED {
                    NOT_NEGOTIATED
                } else {
                    own
                }
            };
            let ird = stated(negotiated.ird, theirs.ord);
            let ord = stated(negotiated.ord, theirs.ird);
            negotiated.rtr.enhanced(ird, ord)
        });
        let reply = StartupFrame {
            // rfc: 5044-57 M in a Reply asks for markers from the initiator
            markers: negotiated.peer_markers,
            crc: negotiated.crc,
            ..self.reply(enhanced, &options.private_data)
        };
        (emit(&reply), negotiated)
    }

    /// Makes the rejecting Reply. It repeats the depths that were asked for, because they are not
    /// the reason.
    fn rejection(&self, private_data: &[u8]) -> Vec<u8> {
        let enhanced = self
            .enhanced
            .map(|theirs| self.rtr().enhanced(theirs.ord, theirs.ird));
        emit(&StartupFrame {
            reject: true,
            ..self.reply(enhanced, private_data)
        })
    }

    /// Makes a Reply in the revision and form of the Request.
    // rfc: 6581-40, 6581-43, 6581-44 the Reply is enhanced if the Request is
    fn reply<'a>(&self, enhanced: Option<Enhanced>, private_data: &'a [u8]) -> StartupFrame<'a> {
        StartupFrame {
            kind: StartupKind::Reply,
            markers: false,
            crc: self.crc,
            reject: false,
            enhanced_bit: enhanced.is_some(),
            // rfc: 5044-63 reserved bits are zero
            reserved: 0,
            revision: self.revision,
            enhanced,
            private_data,
        }
    }

    /// Returns the ready-to-receive messages to offer: those that were asked for, or all if none
    /// was.
    // rfc: 6581-28, 6581-35 A in the Reply is A of the Request
    // rfc: 6581-29, 6581-s3 each message is named that was asked for and is supported
    // rfc: 6581-27, 6581-30 if there is none, those that are supported
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
