//! Rights to memory, and who has them.

use std::fmt;
use std::ops::BitOr;

use crate::ids::{PdId, StreamId};

/// What may be done to registered memory. A set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access(pub u8);

impl Access {
    /// The local side may receive into it, and read from a peer into it.
    pub const LOCAL_WRITE: Self = Self(1);
    /// Peers may read it with RDMA Read.
    pub const REMOTE_READ: Self = Self(2);
    /// Peers may write it with RDMA Write.
    pub const REMOTE_WRITE: Self = Self(4);
    /// Peers may change it with atomic operations (RFC 7306), which also tell them what it held.
    pub const REMOTE_ATOMIC: Self = Self(8);
    /// Memory windows may be bound to it.
    pub const MW_BIND: Self = Self(16);
    /// The local side may send from it. Every region allows this, asked or not; no memory window
    /// does.
    pub const LOCAL_READ: Self = Self(128);

    /// What a memory window can give.
    pub const REMOTE: Self =
        Self(Self::REMOTE_READ.0 | Self::REMOTE_WRITE.0 | Self::REMOTE_ATOMIC.0);
    /// All there is.
    pub const ALL: Self =
        Self(Self::REMOTE.0 | Self::LOCAL_WRITE.0 | Self::MW_BIND.0 | Self::LOCAL_READ.0);

    /// Returns whether anybody can change it so.
    pub(super) const fn lets_write(self) -> bool {
        self.lets_peers_write() || self.0 & Self::LOCAL_WRITE.0 != 0
    }

    /// Returns whether peers can change it so.
    pub(super) const fn lets_peers_write(self) -> bool {
        self.0 & (Self::REMOTE_WRITE.0 | Self::REMOTE_ATOMIC.0) != 0
    }

    /// Returns the rights that it has and `other` has.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns these rights of peers, and all of the local side.
    pub const fn with_local(self) -> Self {
        Self(self.0 & Self::REMOTE.0 | Self::ALL.0 & !Self::REMOTE.0)
    }

    /// Returns whether it allows everything that `need` asks for.
    pub const fn contains(self, need: Self) -> bool {
        self.0 & need.0 == need.0
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rights = [
            (Self::LOCAL_READ, "local read"),
            (Self::LOCAL_WRITE, "local write"),
            (Self::REMOTE_READ, "remote read"),
            (Self::REMOTE_WRITE, "remote write"),
            (Self::REMOTE_ATOMIC, "remote atomic"),
            (Self::MW_BIND, "binding of windows"),
        ];
        let mut names = rights
            .into_iter()
            .filter(|&(right, _)| self.contains(right))
            .map(|(_, name)| name);
        f.write_str(names.next().unwrap_or("nothing"))?;
        names.try_for_each(|name| write!(f, ", {name}"))
    }
}

impl BitOr for Access {
    type Output = Self;
    fn bitor(self, rhs: Self) -> Self {
        Self(self.0 | rhs.0)
    }
}

/// Who may use an STag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every stream of a protection domain. Peers cannot invalidate such an STag.
    Domain(PdId),
    /// One stream of a protection domain, whose peer may invalidate the STag.
    Stream(PdId, StreamId),
}

impl From<PdId> for Scope {
    fn from(pd: PdId) -> Self {
        Self::Domain(pd)
    }
}

/// Who uses an STag: a stream, or the protection domain alone (which reaches no STag of a single
/// stream).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The protection domain.
    pub pd: PdId,
    /// The stream.
    pub stream: Option<StreamId>,
    /// What the queue pair of the stream lets be done at all. A region must allow it, too.
    pub rights: Access,
}

impl From<PdId> for Origin {
    fn from(pd: PdId) -> Self {
        Self {
            pd,
            stream: None,
            rights: Access::ALL,
        }
    }
}

impl From<(PdId, StreamId)> for Origin {
    fn from((pd, stream): (PdId, StreamId)) -> Self {
        Self {
            pd,
            stream: Some(stream),
            rights: Access::ALL,
        }
    }
}
