//! Copying to and from registered memory in the application, as a worker does it for a message.

use rnic_core::ids::PdId;
use rnic_core::memory::epoch::Worker;
use rnic_core::verbs::gather::{ScatterError, gather, scatter};
use rnic_core::verbs::sge;
use rnic_core::verbs::status::WcStatus;
use zerocopy::{FromBytes, IntoBytes};

use crate::address::Sge;
use crate::pd::Pd;

/// Copies between octets of the application and registered memory of a protection domain, under the
/// checks that requests of its queue pairs are under. One thread at a time uses it.
#[derive(Debug)]
pub struct Copier {
    worker: Worker,
    pd: PdId,
}

impl Pd {
    /// Returns what copies to and from memory of this domain.
    pub fn copier(&self) -> Copier {
        Copier {
            worker: self.device().inner.table().worker(),
            pd: self.id,
        }
    }
}

impl Copier {
    /// Copies the first octets of a list of pieces, as a Send takes them. Fails with
    /// [`LocalProtectionError`](WcStatus::LocalProtectionError) if any of them may not be read or
    /// is not there.
    pub fn gather(&self, pieces: &[Sge], to: &mut [u8]) -> Result<(), WcStatus> {
        if to.is_empty() {
            return Ok(());
        }
        let guard = self.worker.enter();
        gather(&guard, self.pd, inner(pieces), 0, to).map_err(|_| WcStatus::LocalProtectionError)
    }

    /// Has the memory of a list of pieces read once, page by page, so that none is missing when a
    /// worker copies. Fails with [`LocalProtectionError`](WcStatus::LocalProtectionError) if any of
    /// it may not be read or is not there.
    pub fn prefetch(&self, pieces: &[Sge]) -> Result<(), WcStatus> {
        const PAGE: u64 = 4096;
        for piece in inner(pieces) {
            let len = u64::from(piece.length);
            // The last octet may stand in a page of its own.
            let places = (0..len).step_by(PAGE as usize).chain(len.checked_sub(1));
            for at in places {
                let guard = self.worker.enter();
                let pieces = std::slice::from_ref(piece);
                gather(&guard, self.pd, pieces, at, &mut [0])
                    .map_err(|_| WcStatus::LocalProtectionError)?;
            }
        }
        Ok(())
    }

    /// Copies octets into a list of pieces, behind its first `offset` octets, as a receive is
    /// filled. Fails with [`LocalLengthError`](WcStatus::LocalLengthError) if they do not fit, and
    /// with [`LocalProtectionError`](WcStatus::LocalProtectionError) if any of that memory may not
    /// be written or is not there.
    pub fn scatter(&self, pieces: &[Sge], offset: u64, from: &[u8]) -> Result<(), WcStatus> {
        if from.is_empty() {
            return Ok(());
        }
        let guard = self.worker.enter();
        scatter(&guard, self.pd, inner(pieces), offset, from).map_err(|why| match why {
            ScatterError::TooLong { .. } => WcStatus::LocalLengthError,
            ScatterError::Tag(_) => WcStatus::LocalProtectionError,
        })
    }
}

/// Returns the same pieces as the engine has them: one structure by two names.
fn inner(pieces: &[Sge]) -> &[sge::Sge] {
    <[sge::Sge]>::ref_from_bytes(pieces.as_bytes()).unwrap_or_default()
}
