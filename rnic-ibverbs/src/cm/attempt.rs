//! Attempts to connect: in the form of RFC 6581 first, and in that of RFC 5044 where the peer knows
//! no other; and again where the peer may not listen yet.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rnic_verbs::{ConnectionOptions, EndReason, Error, PortReservation, Qp};

use crate::adapter::Adapter;
use crate::cm::verbs::errno_of;
use crate::errno::Errno;

/// How often a peer that refuses is asked again by sockets of the kernel, and how long the pause
/// before that is. Programs tell each other their port before they listen; over adapters it takes
/// longer until a connection begins.
pub(super) const ASKED_AGAIN: u8 = 4;
pub(super) const PAUSE: Duration = Duration::from_millis(20);

/// What a connection is begun with.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) adapter: &'static Adapter,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    /// The program left the port to us.
    pub(super) any_port: bool,
    pub(super) options: ConnectionOptions,
    /// How often a peer that refuses is asked again.
    pub(super) again: u8,
    /// Keeps a port reserved that others share, until the outcome is known.
    pub(super) _shared: Option<Arc<PortReservation>>,
}

impl Attempt {
    /// Makes a queue pair connect.
    pub(super) fn start(&self, qp: &mut Qp) -> Result<(), Errno> {
        let mut connect = |local| {
            let options = self.options.clone();
            qp.connect(self.remote, Some(local), options)
        };
        match connect(self.local) {
            // Somebody else got the port meanwhile, or may have another one only.
            Err(Error::Net(_)) if self.any_port => {
                connect(SocketAddr::new(self.local.ip(), 0)).map_err(errno_of)
            }
            done => done.map_err(errno_of),
        }
    }

    /// Returns the same attempt, to be made after a [`PAUSE`], where the peer has refused this one.
    pub(super) fn later(&self, reason: &EndReason) -> Option<Self> {
        let may_listen_soon = *reason == EndReason::Refused && self.again > 0;
        may_listen_soon.then(|| Self {
            again: self.again - 1,
            ..self.clone()
        })
    }

    /// Returns the attempt that may succeed where this one failed for a reason that shows a peer of
    /// RFC 5044 alone. It is not peer-to-peer, which that RFC does not know: the side that connects
    /// sends first. The read depths are as the programs say.
    // rfc: 6581-39 a responder without the enhanced form closes: it is asked again
    pub(super) fn plainer(self, reason: &EndReason) -> Option<Self> {
        // Before a Reply, many reset the connection where the RFC has them close it.
        let may_be = matches!(reason, EndReason::NotEnhanced(_) | EndReason::Reset);
        // The former connection may still have the port that was chosen.
        let port = if self.any_port { 0 } else { self.local.port() };
        (may_be && self.options.mpa_revision > 1).then_some(Self {
            local: SocketAddr::new(self.local.ip(), port),
            options: ConnectionOptions {
                mpa_revision: 1,
                peer_to_peer: false,
                ..self.options
            },
            ..self
        })
    }
}
