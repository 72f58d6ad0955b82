use crate::wire::ddp::Msn;
use crate::wire::tcp::Seq;
use proptest::prelude::*;

#[test]
fn numbers_compare_across_the_wrap() {
    let (before, after) = (Seq(0xffff_fff0), Seq(0x10));
    assert!(before.before(after) && after.after(before));
    assert!(!before.after(after) && !after.before(before));
    assert!(before.before_eq(before) && before.after_eq(before));
    assert!(!before.before(before) && !before.after(before));
    assert_eq!(after.distance_from(before), 0x20);
    assert_eq!(after.signed_distance_from(before), 0x20);
    assert_eq!(before.signed_distance_from(after), -0x20);
    assert_eq!(before + 0x20, after);
    assert_eq!(after - 0x20, before);
}

// rfc: 5041-42, 5041-43, 5041-44 MSNs count messages from 1, and wrap to 0
#[test]
fn message_numbers_start_at_one_and_wrap_to_zero() {
    assert_eq!(Msn::FIRST, Msn(1));
    assert_eq!(Msn(7).next(), Msn(8));
    assert_eq!(Msn(u32::MAX).next(), Msn(0));
}

proptest! {
    #[test]
    fn advancing_less_than_half_of_the_range_comes_after(start: u32, by in 1..=i32::MAX as u32) {
        let (start, end) = (Seq(start), Seq(start) + by);
        prop_assert!(start.before(end) && end.after(start) && start.before_eq(end) && end.after_eq(start));
        prop_assert_eq!(end.distance_from(start), by);
        prop_assert_eq!(end - by, start);
    }
}
