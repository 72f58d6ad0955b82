//! The registrations of a table, as an administrator sees them.

use std::sync::atomic::Ordering;

use crate::ids::PdId;

use super::{Access, Kind, Registration, StagTable};

/// Registrations looked at with one hold of the lock, which a worker may wait for.
const AT_ONCE: usize = 64;

/// What an STag was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StagKind {
    /// Memory registered from the start.
    Region,
    /// Memory that work requests register.
    Fast,
    /// A memory window.
    Window,
}

/// A registration. Its STag is not in here: who knows an STag can reach the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagFacts {
    /// The slot of the table: the low bits of the STag's index, which tell it from the others of
    /// the table.
    pub slot: u32,
    /// What it was made for.
    pub kind: StagKind,
    /// Its protection domain.
    pub pd: PdId,
    /// While it is valid: how many octets it opens, and to what.
    pub opens: Option<(usize, Access)>,
    /// The pages of its memory, in octets. A window has none of its own.
    pub page_size: Option<usize>,
}

impl StagTable {
    /// Returns the registrations, by slot. Others may come and go meanwhile.
    pub fn list(&self) -> Vec<StagFacts> {
        let indices: Vec<u32> = self.lock().registered.keys().copied().collect();
        let mut list = Vec::with_capacity(indices.len());
        for indices in indices.chunks(AT_ONCE) {
            let ledger = self.lock();
            let registered = indices.iter().map(|index| ledger.registered.get(index));
            list.extend(registered.flatten().map(|one| self.facts(one)));
        }
        list.sort_by_key(|facts| facts.slot);
        list
    }

    /// Returns the facts of a registration. The caller holds the ledger.
    fn facts(&self, registration: &Registration) -> StagFacts {
        let Registration { stag, pd, kind, .. } = registration;
        let slot = self.slot(*stag);
        let opens = self.live(*stag).map(|_| {
            let len = slot.len.load(Ordering::Relaxed);
            (len, Access(slot.access.load(Ordering::Relaxed) as u8))
        });
        let (kind, page_size) = match kind {
            Kind::Region(region) => (StagKind::Region, Some(region.page_size())),
            Kind::Fast(region) => (StagKind::Fast, Some(region.page_size())),
            Kind::Window => (StagKind::Window, None),
        };
        StagFacts {
            slot: self.slot_index(*stag),
            kind,
            pd: *pd,
            opens,
            page_size,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::memory::region::{HugePages, Region};
    use crate::memory::table::Scope;
    use crate::wire::ddp::TaggedOffset;

    #[test]
    fn registrations_are_listed_until_they_end() {
        let table = StagTable::new(256, [7; 32]);
        let region = Region::allocate_unlocked(8192, HugePages::None).unwrap();
        let region = Arc::new(region);
        let scope = || Scope::Domain(PdId(3));
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
        let register = |range| {
            let base = TaggedOffset(0);
            table.register(region.clone(), range, base, access, scope())
        };
        let mut stags: Vec<_> = (0..100).map(|n| register(n..n + 100).unwrap()).collect();
        stags.push(table.allocate_window(PdId(4)).unwrap());
        stags.push(table.allocate_fast(region.clone(), PdId(5)).unwrap());
        let list = table.list();
        assert_eq!(list.len(), 102);
        assert!(list.is_sorted_by(|one, next| one.slot < next.slot));
        let of = |kind| list.iter().filter(move |facts| facts.kind == kind);
        let opens = Some((100, access | Access::LOCAL_READ));
        let page_size = Some(region.page_size());
        assert!(of(StagKind::Region).all(|one| (one.opens, one.pd) == (opens, PdId(3))));
        assert!(of(StagKind::Region).all(|one| one.page_size == page_size));
        let [window] = of(StagKind::Window).collect::<Vec<_>>()[..] else {
            panic!("{list:?}");
        };
        assert_eq!(
            (window.pd, window.opens, window.page_size),
            (PdId(4), None, None)
        );
        let [fast] = of(StagKind::Fast).collect::<Vec<_>>()[..] else {
            panic!("{list:?}");
        };
        assert_eq!(
            (fast.pd, fast.opens, fast.page_size),
            (PdId(5), None, page_size)
        );
        for stag in stags {
            table.revoke(stag).unwrap();
        }
        assert_eq!(table.list(), []);
    }
}
