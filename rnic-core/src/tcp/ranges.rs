//! A set of stream offsets as disjoint ranges.

use core::ops::Range;
use std::collections::VecDeque;

/// Ranges in ascending order that neither overlap nor touch.
#[derive(Clone, Debug, Default)]
pub(super) struct RangeSet {
    ranges: VecDeque<Range<u64>>,
}

impl RangeSet {
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns the number of ranges.
    pub(super) fn len(&self) -> usize {
        self.ranges.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.ranges.iter().cloned()
    }

    /// Returns the offset past the last member.
    pub(super) fn end(&self) -> Option<u64> {
        self.ranges.back().map(|range| range.end)
    }

    /// Returns the first range that ends at `offset` or later.
    fn first_reaching(&self, offset: u64) -> usize {
        self.ranges.partition_point(|range| range.end < offset)
    }

    /// Adds a range, and returns the range of the set that it is now part of. An empty one is
    /// returned as it is.
    pub(super) fn insert(&mut self, range: Range<u64>) -> Range<u64> {
        if range.is_empty() {
            return range;
        }
        let first = self.first_reaching(range.start);
        let past = self.ranges.partition_point(|r| r.start <= range.end);
        if first == past {
            self.ranges.insert(first, range.clone());
            return range;
        }
        // All from `first` to before `past` overlap or touch the new one: the first of them takes
        // everything.
        let end = self.ranges[past - 1].end.max(range.end);
        let merged = self.ranges[first].start.min(range.start)..end;
        self.ranges[first] = merged.clone();
        self.ranges.drain(first + 1..past);
        merged
    }

    /// Returns the first range of missing offsets within `within`.
    pub(super) fn first_gap(&self, within: Range<u64>) -> Range<u64> {
        let mut start = within.start;
        let mut index = self.first_reaching(start);
        if let Some(range) = self.ranges.get(index)
            && range.start <= start
        {
            start = range.end;
            index += 1;
        }
        let end = self
            .ranges
            .get(index)
            .map_or(within.end, |next| next.start.min(within.end));
        start..end.max(start)
    }

    /// Returns whether `range` overlaps or touches a member.
    pub(super) fn joins(&self, range: &Range<u64>) -> bool {
        self.ranges
            .get(self.first_reaching(range.start))
            .is_some_and(|r| r.start <= range.end)
    }

    /// Removes everything before `offset`, and a range that holds or touches it. Returns the offset
    /// past them, or `offset` itself if no range reaches it.
    pub(super) fn advance(&mut self, offset: u64) -> u64 {
        let mut reached = offset;
        while let Some(range) = self.ranges.front()
            && range.start <= reached
        {
            reached = reached.max(range.end);
            self.ranges.pop_front();
        }
        reached
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// The plainest model: the set of all its members.
    #[derive(Default)]
    struct Model(BTreeSet<u64>);

    impl Model {
        fn ranges(&self) -> Vec<Range<u64>> {
            let mut ranges: Vec<Range<u64>> = Vec::new();
            for &offset in &self.0 {
                match ranges.last_mut() {
                    Some(last) if last.end == offset => last.end += 1,
                    _ => ranges.push(offset..offset + 1),
                }
            }
            ranges
        }
    }

    fn small_range() -> impl Strategy<Value = Range<u64>> {
        (0_u64..120, 0_u64..20).prop_map(|(start, len)| start..start + len)
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(Range<u64>),
        Advance(u64),
        Gap(Range<u64>),
        Joins(Range<u64>),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => small_range().prop_map(Step::Insert),
            1 => (0_u64..60).prop_map(Step::Advance),
            3 => small_range().prop_map(Step::Gap),
            2 => small_range().prop_map(Step::Joins),
        ]
    }

    proptest! {
        #[test]
        fn agrees_with_a_set_of_numbers(steps in prop::collection::vec(step(), 1..60)) {
            let (mut set, mut model) = (RangeSet::default(), Model::default());
            for step in steps {
                match step {
                    Step::Insert(range) => {
                        let merged = set.insert(range.clone());
                        model.0.extend(range.clone());
                        if range.is_empty() {
                            prop_assert_eq!(merged, range);
                        } else {
                            prop_assert!(model.ranges().contains(&merged));
                        }
                    }
                    Step::Advance(offset) => {
                        let mut past = offset;
                        if let Some(range) = model.ranges().into_iter().rfind(|r| r.start <= offset) {
                            past = past.max(range.end);
                        }
                        prop_assert_eq!(set.advance(offset), past);
                        model.0.retain(|&member| member >= past);
                    }
                    Step::Gap(within) => {
                        let missing: Vec<_> =
                            within.clone().skip_while(|o| model.0.contains(o)).take_while(|o| !model.0.contains(o)).collect();
                        let gap = set.first_gap(within);
                        prop_assert_eq!(gap.collect::<Vec<_>>(), missing);
                    }
                    Step::Joins(range) => {
                        let joins = model.ranges().iter().any(|r| r.start <= range.end && r.end >= range.start);
                        prop_assert_eq!(set.joins(&range), joins);
                    }
                }
                prop_assert_eq!(set.iter().collect::<Vec<_>>(), model.ranges());
                prop_assert_eq!(set.len(), model.ranges().len());
                prop_assert_eq!(set.is_empty(), model.0.is_empty());
                prop_assert_eq!(set.end(), model.0.last().map(|last| last + 1));
            }
        }
    }
}
