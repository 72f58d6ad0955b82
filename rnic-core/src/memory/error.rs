//! Why memory must not be touched.

use crate::ids::PdId;
use crate::wire::ddp::{Stag, TaggedOffset};

use super::access::Access;

pub use super::guarded::Fault;

/// Why memory must not be touched. RFC 5041 section 7.1, RFC 5040 section 7.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TagError {
    /// Never registered, revoked or invalidated.
    #[error("STag {0} is not valid")]
    InvalidStag(Stag),
    /// It belongs to another protection domain or to another stream.
    #[error("STag {stag} belongs to another stream or protection domain than {}", pd.0)]
    NotAssociated {
        /// The STag.
        stag: Stag,
        /// Who asked.
        pd: PdId,
    },
    /// It does not allow this.
    #[error("STag {stag} does not allow all of: {need}")]
    AccessViolation {
        /// The STag.
        stag: Stag,
        /// What was asked for.
        need: Access,
    },
    /// Not all octets belong to it.
    #[error("{len} octets at tagged offset {:#x} are not all within STag {stag}", offset.0)]
    BaseOrBounds {
        /// The STag.
        stag: Stag,
        /// First octet.
        offset: TaggedOffset,
        /// Octets.
        len: usize,
    },
    /// The tagged offsets pass 2^64.
    #[error("{len} octets at tagged offset {:#x} pass the end of the offsets", offset.0)]
    OffsetWrap {
        /// First octet.
        offset: TaggedOffset,
        /// Octets.
        len: usize,
    },
    /// The program has taken away memory of its own
    /// ([`Region::foreign`](super::region::Region::foreign)) that is still registered.
    #[error(
        "the memory of STag {stag} cannot be accessed ({need}): it was unmapped, protected or truncated; deregister it first"
    )]
    Fault {
        /// The STag.
        stag: Stag,
        /// What was asked for.
        need: Access,
    },
    /// A peer asks to invalidate an STag that other streams use too. RFC 5040 section 8.1.1.
    #[error(
        "STag {0} is shared by the streams of its protection domain: a peer cannot invalidate it"
    )]
    NotInvalidatable(Stag),
    /// It is to be invalidated, and memory windows are bound to it.
    #[error("memory windows are bound to STag {0}: it cannot be invalidated before they are")]
    WindowsBound(Stag),
}

impl Fault {
    /// Returns the error of an access by an STag.
    pub fn by(self, stag: Stag, need: Access) -> TagError {
        TagError::Fault { stag, need }
    }
}
