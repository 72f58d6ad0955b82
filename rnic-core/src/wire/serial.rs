//! Numbers that wrap: compared by distance, within half of their range (as RFC 9293 section 3.4
//! does).

/// Adds wrapping arithmetic, and comparison by distance, to a newtype over `u32`.
macro_rules! serial_number {
    ($name:ident) => {
        impl $name {
            /// Returns whether this one comes before `other`.
            pub const fn before(self, other: Self) -> bool {
                self.signed_distance_from(other) < 0
            }

            /// Returns whether this one comes after `other`.
            pub const fn after(self, other: Self) -> bool {
                self.signed_distance_from(other) > 0
            }

            /// Returns whether this one comes before `other` or equals it.
            pub const fn before_eq(self, other: Self) -> bool {
                !self.after(other)
            }

            /// Returns whether this one comes after `other` or equals it.
            pub const fn after_eq(self, other: Self) -> bool {
                !self.before(other)
            }

            /// Returns how far `earlier` has to be advanced to reach this one, modulo 2^32.
            pub const fn distance_from(self, earlier: Self) -> u32 {
                self.0.wrapping_sub(earlier.0)
            }

            /// Returns the distance from `other`: negative if this one comes before it.
            pub const fn signed_distance_from(self, other: Self) -> i32 {
                self.distance_from(other).cast_signed()
            }
        }

        impl core::ops::Add<u32> for $name {
            type Output = Self;
            fn add(self, rhs: u32) -> Self {
                Self(self.0.wrapping_add(rhs))
            }
        }

        impl core::ops::AddAssign<u32> for $name {
            fn add_assign(&mut self, rhs: u32) {
                *self = *self + rhs;
            }
        }

        impl core::ops::Sub<u32> for $name {
            type Output = Self;
            fn sub(self, rhs: u32) -> Self {
                Self(self.0.wrapping_sub(rhs))
            }
        }
    };
}

pub(super) use serial_number;
