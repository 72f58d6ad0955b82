//! The table beside a simple model of it, over any sequence of what owners, work requests and peers
//! can ask.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::sample::Index;

use crate::memory::{binding::Binding, region::HugePages};

use super::*;

const MEMORY: usize = 4096;
const PDS: u32 = 2;
const STREAMS: u64 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
    Region,
    Fast,
    Window,
}

/// What an STag means: these octets of the memory, from this tagged offset on, for this stream or
/// all of them.
#[derive(Clone, Copy, Debug)]
struct Meaning {
    stag: Stag,
    stream: Option<u64>,
    start: u128,
    len: u128,
    base: u128,
    access: u8,
    /// The registration that a window opens.
    region: Option<usize>,
}

impl Meaning {
    /// Where in the memory `len` octets at a tagged offset are, if all of them are in this.
    fn find(&self, offset: u64, len: u64) -> Option<u128> {
        let (offset, len) = (u128::from(offset), u128::from(len));
        let inside = offset >= self.base && offset + len <= self.base + self.len;
        inside.then(|| self.start + offset - self.base)
    }
}

#[derive(Clone, Copy, Debug)]
struct Model {
    first: Stag,
    made: Made,
    pd: u32,
    meaning: Option<Meaning>,
    gone: bool,
}

#[derive(Clone, Debug)]
enum Op {
    Register {
        shape: Shape,
        shared: bool,
    },
    Allocate {
        fast: bool,
        pd: u32,
    },
    Bind {
        which: Index,
        region: Index,
        shape: Shape,
        key: u8,
    },
    FastRegister {
        which: Index,
        shape: Shape,
        key: u8,
    },
    Invalidate {
        which: Index,
        pd: u32,
        stream: u64,
    },
    Recall(Index),
    Revoke {
        which: Index,
        with_windows: bool,
    },
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    start: u64,
    len: u64,
    base: u64,
    access: u8,
    pd: u32,
    stream: u64,
}

fn shape() -> impl Strategy<Value = Shape> {
    let base = prop_oneof![3 => Just(0), 3 => 0..5000_u64, 1 => u64::MAX - 5000..u64::MAX];
    let access = prop_oneof![
        4 => (0..32_u8).prop_map(|bits| bits & 0b11111),
        3 => (0..8_u8).prop_map(|bits| bits << 1),
        3 => Just(0b11111),
        1 => any::<u8>(),
    ];
    let len = prop_oneof![4 => 1..2048_u64, 1 => Just(0), 1 => any::<u64>()];
    let pd = prop_oneof![4 => Just(0), 1 => 0..PDS];
    (0..3000_u64, len, base, access, pd, 0..STREAMS).prop_map(
        |(start, len, base, access, pd, stream)| Shape {
            start,
            len,
            base,
            access,
            pd,
            stream,
        },
    )
}

fn op() -> impl Strategy<Value = Op> {
    let which = any::<Index>;
    prop_oneof![
        3 => (shape(), any::<bool>()).prop_map(|(shape, shared)| Op::Register { shape, shared }),
        2 => (any::<bool>(), prop_oneof![4 => Just(0), 1 => 0..PDS])
            .prop_map(|(fast, pd)| Op::Allocate { fast, pd }),
        8 => (which(), which(), shape(), any::<u8>())
            .prop_map(|(which, region, shape, key)| Op::Bind { which, region, shape, key }),
        4 => (which(), shape(), any::<u8>())
            .prop_map(|(which, shape, key)| Op::FastRegister { which, shape, key }),
        4 => (which(), prop_oneof![6 => Just(0), 1 => 0..PDS], 0..STREAMS)
            .prop_map(|(which, pd, stream)| Op::Invalidate { which, pd, stream }),
        1 => which().prop_map(Op::Recall),
        2 => (which(), any::<bool>())
            .prop_map(|(which, with_windows)| Op::Revoke { which, with_windows }),
    ]
}

struct Pair {
    table: Arc<StagTable>,
    region: Arc<Region>,
    models: Vec<Model>,
}

impl Pair {
    fn apply(&mut self, op: &Op) -> Result<(), TestCaseError> {
        match *op {
            Op::Register { shape, shared } => self.register(shape, shared),
            Op::Allocate { fast, pd } => self.allocate(fast, pd),
            _ if self.models.is_empty() => Ok(()),
            Op::Bind {
                which,
                region,
                shape,
                key,
            } => {
                let [which, region] = [which, region].map(|index| index.index(self.models.len()));
                self.bind(which, region, shape, key)
            }
            Op::FastRegister { which, shape, key } => {
                self.fast_register(which.index(self.models.len()), shape, key)
            }
            Op::Invalidate { which, pd, stream } => {
                self.invalidate(which.index(self.models.len()), pd, stream)
            }
            Op::Recall(which) => self.recall(which.index(self.models.len())),
            Op::Revoke {
                which,
                with_windows,
            } => self.revoke(which.index(self.models.len()), with_windows),
        }
    }

    fn registered(&self) -> usize {
        self.models.iter().filter(|model| !model.gone).count()
    }

    fn windows(&self, of: usize) -> usize {
        let bound = |model: &&Model| model.meaning.is_some_and(|it| it.region == Some(of));
        self.models.iter().filter(bound).count()
    }

    fn register(&mut self, shape: Shape, shared: bool) -> Result<(), TestCaseError> {
        let Shape {
            start, len, base, ..
        } = shape;
        let scope = match shared {
            true => Scope::Domain(PdId(shape.pd)),
            false => Scope::Stream(PdId(shape.pd), StreamId(shape.stream)),
        };
        let end = usize::try_from(start.saturating_add(len)).unwrap_or(usize::MAX);
        let made = self.table.register(
            self.region.clone(),
            start as usize..end,
            TaggedOffset(base),
            Access(shape.access),
            scope,
        );
        let fits = len > 0 && end <= MEMORY && base.checked_add(len).is_some();
        let expected = fits && self.registered() < self.table.capacity();
        prop_assert_eq!(made.is_ok(), expected);
        if let Ok(stag) = made {
            let meaning = Meaning {
                stag,
                stream: (!shared).then_some(shape.stream),
                start: start.into(),
                len: len.into(),
                base: base.into(),
                access: shape.access | Access::LOCAL_READ.0,
                region: None,
            };
            self.add(stag, Made::Region, shape.pd, Some(meaning));
        }
        Ok(())
    }

    fn allocate(&mut self, fast: bool, pd: u32) -> Result<(), TestCaseError> {
        let made = match fast {
            true => self.table.allocate_fast(self.region.clone(), PdId(pd)),
            false => self.table.allocate_window(PdId(pd)),
        };
        prop_assert_eq!(made.is_ok(), self.registered() < self.table.capacity());
        if let Ok(stag) = made {
            self.add(stag, if fast { Made::Fast } else { Made::Window }, pd, None);
        }
        Ok(())
    }

    fn add(&mut self, first: Stag, made: Made, pd: u32, meaning: Option<Meaning>) {
        self.models.push(Model {
            first,
            made,
            pd,
            meaning,
            gone: false,
        });
    }

    fn bind(
        &mut self,
        which: usize,
        region: usize,
        shape: Shape,
        key: u8,
    ) -> Result<(), TestCaseError> {
        let (window, of) = (self.models[which], self.models[region]);
        // Often inside of the region.
        let base = of.meaning.map_or(0, |meaning| meaning.base as u64);
        let start = base.saturating_add(shape.start / 2);
        let stag = window.first.with_key(key);
        let parent = of.meaning.map_or(of.first, |meaning| meaning.stag);
        let binding = binding(stag, parent, start, shape);
        let bound = self
            .table
            .bind_window(&binding, PdId(shape.pd), StreamId(shape.stream));

        let writes = shape.access & (Access::REMOTE_WRITE | Access::REMOTE_ATOMIC).0 != 0;
        let opened = of.meaning.filter(|meaning| {
            let rights = Access(meaning.access);
            meaning.stream.is_none_or(|stream| stream == shape.stream)
                && rights.contains(Access::MW_BIND)
                && (!writes || rights.contains(Access::LOCAL_WRITE))
        });
        let at = opened.and_then(|meaning| meaning.find(start, shape.len));
        let expected = !window.gone
            && window.made == Made::Window
            && window.pd == shape.pd
            && window.meaning.is_none()
            && Access::REMOTE.contains(Access(shape.access))
            && shape.len > 0
            && shape.base.checked_add(shape.len).is_some()
            && of.pd == shape.pd
            && at.is_some();
        prop_assert_eq!(bound.is_ok(), expected, "{:?}", bound);
        if let (true, Some(at)) = (expected, at) {
            self.models[which].meaning = Some(meaning(stag, at, shape, 0, Some(region)));
        }
        Ok(())
    }

    fn fast_register(&mut self, which: usize, shape: Shape, key: u8) -> Result<(), TestCaseError> {
        let fast = self.models[which];
        let stag = fast.first.with_key(key);
        let binding = binding(stag, Stag(0), shape.start, shape);
        let done = self
            .table
            .fast_register(&binding, PdId(shape.pd), StreamId(shape.stream));
        let expected = !fast.gone
            && fast.made == Made::Fast
            && fast.pd == shape.pd
            && fast.meaning.is_none()
            && Access::ALL.contains(Access(shape.access))
            && shape.len > 0
            && u128::from(shape.start) + u128::from(shape.len) <= MEMORY as u128
            && shape.base.checked_add(shape.len).is_some();
        prop_assert_eq!(done.is_ok(), expected, "{:?}", done);
        if expected {
            let local = Access::LOCAL_READ.0;
            let meaning = meaning(stag, shape.start.into(), shape, local, None);
            self.models[which].meaning = Some(meaning);
        }
        Ok(())
    }

    fn invalidate(&mut self, which: usize, pd: u32, stream: u64) -> Result<(), TestCaseError> {
        let model = self.models[which];
        let stag = model.meaning.map_or(model.first, |meaning| meaning.stag);
        let done = self
            .table
            .invalidate(stag, (PdId(pd), StreamId(stream)).into());
        let its_own = model.meaning.is_some_and(|it| it.stream == Some(stream));
        let expected = its_own && model.pd == pd && self.windows(which) == 0;
        prop_assert_eq!(done.is_ok(), expected, "{:?}", done);
        if expected {
            self.models[which].meaning = None;
        }
        Ok(())
    }

    fn recall(&mut self, which: usize) -> Result<(), TestCaseError> {
        let model = self.models[which];
        let expected = !model.gone && self.windows(which) == 0;
        prop_assert_eq!(self.table.recall(model.first).is_ok(), expected);
        if expected {
            self.models[which].meaning = None;
        }
        Ok(())
    }

    fn revoke(&mut self, which: usize, with_windows: bool) -> Result<(), TestCaseError> {
        let model = self.models[which];
        let windows = self.windows(which) as u32;
        let done = match with_windows {
            true => self.table.revoke_with_windows(model.first),
            false => self.table.revoke(model.first),
        };
        if model.gone {
            prop_assert_eq!(done, Err(TableError::NotRegistered(model.first)));
            return Ok(());
        }
        if windows > 0 && !with_windows {
            let stag = model.first;
            prop_assert_eq!(done, Err(TableError::WindowsBound { stag, windows }));
            return Ok(());
        }
        prop_assert_eq!(done, Ok(()));
        for other in &mut self.models {
            if other.meaning.is_some_and(|it| it.region == Some(which)) {
                other.meaning = None;
            }
        }
        let model = &mut self.models[which];
        (model.meaning, model.gone) = (None, true);
        Ok(())
    }

    /// Checks that every access has the outcome that the model predicts.
    fn probe(&self, offset: u64, len: u64, need: Access) -> Result<(), TestCaseError> {
        let memory = self.region.base_address() as u128;
        let names: BTreeSet<u32> = self
            .models
            .iter()
            .flat_map(|model| [model.first.0, model.meaning.map_or(0, |it| it.stag.0)])
            .collect();
        for stag in names.into_iter().map(Stag) {
            let named = |model: &&Model| model.meaning.is_some_and(|it| it.stag == stag);
            let model = self.models.iter().find(named);
            prop_assert_eq!(self.table.is_valid(stag), model.is_some());
            let origins = (0..PDS).flat_map(|pd| (0..STREAMS).map(move |stream| (pd, stream)));
            for (pd, stream) in origins {
                let allowed = model.filter(|model| model.pd == pd).and_then(|m| m.meaning);
                let allowed = allowed
                    .filter(|it| it.stream.is_none_or(|only| only == stream))
                    .filter(|it| Access(it.access).contains(need));
                let base = model.and_then(|m| m.meaning).map_or(0, |it| it.base as u64);
                let offset = base.wrapping_add(offset).wrapping_sub(10);
                let ends = offset.checked_add(len).is_some();
                let expected = allowed.filter(|_| ends).and_then(|it| it.find(offset, len));
                let origin = (PdId(pd), StreamId(stream)).into();
                let found =
                    self.table
                        .check(stag, TaggedOffset(offset), len as usize, origin, need);
                let found = found.ok().map(|at| at.marked().addr() as u128 - memory);
                prop_assert_eq!(found, expected, "{} for {:?}", stag, model);
            }
        }
        Ok(())
    }
}

fn binding(stag: Stag, region: Stag, start: u64, shape: Shape) -> Binding {
    Binding {
        stag: stag.0,
        region: region.0,
        start,
        length: shape.len,
        base: shape.base,
        access: shape.access,
        ..Binding::default()
    }
}

fn meaning(stag: Stag, at: u128, shape: Shape, more: u8, region: Option<usize>) -> Meaning {
    Meaning {
        stag,
        stream: Some(shape.stream),
        start: at,
        len: shape.len.into(),
        base: shape.base.into(),
        access: shape.access | more,
        region,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    // rfc: 5040-98, 5040-99, 5040-105, 5040-106, 5040-107, 5040-108, 5040-109, 5040-111
    // rfc: 5041-77, 5041-78, 5041-79, 5041-80, 5041-81, 5041-82, 5041-86, 5041-87, 5041-88, 5041-89
    // rfc: 5041-90, 5042-7, 5042-8, 5042-9, 5042-10
    // domain, stream, range and rights of an STag are checked, can be set, and can be revoked
    #[test]
    fn the_table_does_what_its_model_does(
        ops in prop::collection::vec(op(), 1..60),
        offsets in prop::collection::vec((0..1500_u64, 0..600_u64, 0..32_u8), 4),
    ) {
        let region = Arc::new(Region::allocate_unlocked(MEMORY, HugePages::None).unwrap());
        let table = Arc::new(StagTable::new(16, [7; 32]));
        let mut pair = Pair { table, region, models: Vec::new() };
        for op in &ops {
            pair.apply(op)?;
            for &(offset, len, need) in &offsets {
                pair.probe(offset, len, Access(need & 0b11111 | need << 7))?;
            }
        }
    }
}
