//! Asking the key managers of the host for an association, as the kernel does for a packet that has
//! none.

use std::net::SocketAddr;

use rnic_core::esp::Template;
use zerocopy::{Immutable, IntoBytes};

use super::{AssociationSocket, RawId, XFRMA_IF_ID};
use crate::device::netlink::error::NetlinkError;
use crate::device::netlink::message::Builder;
use crate::device::netlink::policy_layout::{RawPolicy, RawSelector, RawTemplate, XFRMA_TMPL};
use crate::device::netlink::socket::ReplyMode;

const ACQUIRE: u16 = 0x17;

/// `struct xfrm_user_acquire`
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
struct RawAcquire {
    id: RawId,
    source: [u8; 16],
    selector: RawSelector,
    policy: RawPolicy,
    algorithms: [u32; 3],
    sequence: u32,
}

impl AssociationSocket {
    /// Asks for an association for the segments between two ends, in the name of the policy with
    /// this template. Whether a key manager listens is not known.
    pub(crate) fn acquire(
        &mut self,
        template: &Template,
        (local, remote): (SocketAddr, SocketAddr),
        if_id: u32,
    ) -> Result<(), NetlinkError> {
        let demanded = RawTemplate::from(template);
        let selector = RawSelector::of_segments(local, remote);
        let fixed = RawAcquire {
            id: RawId {
                destination: demanded.destination,
                spi: [0; 4],
                protocol: demanded.protocol,
                padding: [0; 3],
            },
            source: demanded.source,
            selector,
            policy: RawPolicy::outgoing(selector),
            algorithms: demanded.algorithms,
            sequence: 0,
        };
        let doing = "ask for an IPsec association";
        let acknowledged = ReplyMode::Acknowledgement(0);
        let asked = self.requests.request(doing, acknowledged, |flags| {
            Builder::new(ACQUIRE, flags, &fixed)
                .attribute(XFRMA_TMPL, demanded.as_bytes())
                .attribute(XFRMA_IF_ID, if_id.as_bytes())
        });
        asked.map(drop)
    }
}
