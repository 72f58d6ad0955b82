//! Sequence numbers against stream offsets.

pub use crate::wire::tcp::Seq;

/// Where one direction of a connection begins: the sequence number of its SYN.
///
/// Inside the connection every position is a stream offset of 64 bits that never wraps: offset 0 is
/// the first octet of data, the SYN stands at -1, and the FIN just past the last octet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Isn(Seq);

impl Isn {
    pub(super) const fn new(syn: Seq) -> Self {
        Self(syn)
    }

    /// Returns the sequence number of the SYN.
    pub(super) const fn syn(self) -> Seq {
        self.0
    }

    /// Returns the sequence number of the octet at `offset`.
    pub(super) fn seq(self, offset: u64) -> Seq {
        // The sequence number is the offset modulo 2^32.
        self.0 + 1 + offset as u32
    }

    /// Returns the offset of `seq`: of all that it can stand for, the one nearest to `near`.
    pub(super) fn offset(self, seq: Seq, near: u64) -> i64 {
        let distance = seq.signed_distance_from(self.seq(near));
        near.cast_signed().wrapping_add(i64::from(distance))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The sequence number of an offset leads back to it from anywhere within half of the
        /// sequence space.
        #[test]
        fn offsets_are_found_again(syn: u32, offset in 0_u64..1 << 62, away: i32) {
            let isn = Isn::new(Seq(syn));
            prop_assume!(away > i32::MIN);
            let near = offset.saturating_add_signed(i64::from(away));
            prop_assert_eq!(isn.offset(isn.seq(offset), near), offset.cast_signed());
        }

        /// It counts modulo 2^32 from the octet behind the SYN.
        #[test]
        fn sequence_numbers_wrap(syn: u32, offset: u64) {
            let expected = (u128::from(syn) + 1 + u128::from(offset)) % (1 << 32);
            prop_assert_eq!(u128::from(Isn::new(Seq(syn)).seq(offset).0), expected);
        }

        /// Offsets have the order of their sequence numbers.
        #[test]
        fn offsets_keep_the_order_of_sequence_numbers(syn: u32, a: u32, b: u32, near in 0_u64..1 << 62) {
            let isn = Isn::new(Seq(syn));
            let centre = isn.seq(near);
            let (a, b) = (centre + (a >> 2), centre + (b >> 2));
            let order = isn.offset(a, near).cmp(&isn.offset(b, near));
            prop_assert_eq!(order.is_lt(), a.before(b));
            prop_assert_eq!(order.is_gt(), a.after(b));
        }
    }

    #[test]
    fn what_comes_before_the_stream_is_negative() {
        let isn = Isn::new(Seq(u32::MAX));
        assert_eq!(isn.seq(0), Seq(0));
        assert_eq!(isn.offset(isn.syn(), 0), -1);
        assert_eq!(isn.offset(Seq(0x8000_0000), 0), i64::from(i32::MIN));
    }
}
