//! What became of the frames that clients sent.

use rnic_manager::PoliceVerdict;

/// The number of verdicts.
const VERDICTS: usize = PoliceVerdict::ALL.len();

/// Frames and their octets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Frames.
    pub frames: u64,
    /// Octets of whole frames, Ethernet headers included.
    pub octets: u64,
}

/// What became of the frames that a client sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoliceCounters([Count; VERDICTS]);

/// The words of a value in the map of counters: frames and octets by verdict.
pub(super) type CounterWords = [u64; 2 * VERDICTS];

impl PoliceCounters {
    /// Adds the counters of all CPUs.
    pub(super) fn of(cpus: &[CounterWords]) -> Self {
        let mut sums = Self::default();
        for words in cpus {
            for (count, words) in sums.0.iter_mut().zip(words.chunks_exact(2)) {
                count.frames += words[0];
                count.octets += words[1];
            }
        }
        sums
    }

    /// Returns the count of a verdict.
    pub fn get(&self, verdict: PoliceVerdict) -> Count {
        self.0[verdict as usize]
    }

    /// Returns every verdict with its count.
    pub fn entries(&self) -> impl Iterator<Item = (PoliceVerdict, Count)> {
        PoliceVerdict::ALL.into_iter().zip(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::programs::police_skeleton::types::police_counters;

    #[test]
    fn counters_have_the_layout_of_the_c_structure() {
        assert_eq!(size_of::<police_counters>(), size_of::<CounterWords>());
        for (index, verdict) in PoliceVerdict::ALL.into_iter().enumerate() {
            assert_eq!(verdict as usize, index);
        }
    }

    #[test]
    fn counters_of_all_cpus_are_added() {
        let mut one = [0; 2 * VERDICTS];
        one[..4].copy_from_slice(&[1, 64, 2, 128]);
        let sums = PoliceCounters::of(&[one, one]);
        let (nic, port) = (PoliceVerdict::ToNic, PoliceVerdict::ToPort);
        let count = |frames, octets| Count { frames, octets };
        assert_eq!(
            (sums.get(nic), sums.get(port)),
            (count(2, 128), count(4, 256))
        );
        let sent: Vec<_> = sums
            .entries()
            .filter(|(_, count)| count.frames > 0)
            .collect();
        assert_eq!(sent, [(nic, count(2, 128)), (port, count(4, 256))]);
    }
}
