//! Why rnicd did not do what it was asked for.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// Why a request was not met.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// For programs.
    pub reason: Reason,
    /// For people, with the remedy.
    pub message: String,
    /// The policy that forbids it, if [`Reason::Protected`] is the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
    /// Who has it, if [`Reason::InUse`] is the reason and the client may know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
}

impl Refused {
    /// Makes a refusal.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            policy: None,
            holder: None,
        }
    }
}

/// A device of which a client may have ports, but not now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Withheld {
    /// The device.
    pub netdev: String,
    /// Why not, with the remedy.
    pub why: String,
}

/// An IPsec policy of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// The local address, or the peer's, that it does not let go unprotected.
    pub address: SocketAddr,
    /// The policy, in the words of `ip xfrm policy`.
    pub text: String,
}

/// What kind of refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Another socket has the local address and TCP port.
    InUse,
    /// The address is not this host's.
    NotLocal,
    /// There is no route to the peer.
    NoRoute,
    /// The client has all that it may have.
    Quota,
    /// The client may not have that, or the port is another's.
    NotPermitted,
    /// rnicd has no such device.
    NoSuchDevice,
    /// An IPsec policy of the host demands protection.
    Protected,
    /// rnicd cannot say yet: ask again on a new connection.
    NotReady,
    /// The request makes no sense.
    Malformed,
    /// Anything else, or a reason that this version does not know.
    #[serde(other)]
    Other,
}
