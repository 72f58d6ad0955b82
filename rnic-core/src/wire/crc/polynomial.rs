//! Arithmetic of CRC32c's polynomial, for tables that are made when this is compiled. In a number
//! that stands for a polynomial the highest bit is the lowest power.

/// CRC32c's polynomial but for its highest power.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// Returns x to the `exponent`, modulo the polynomial.
pub(super) const fn power_of_x(mut exponent: u32) -> u32 {
    let (mut power, mut square) = (1 << 31, 1 << 30);
    while exponent > 0 {
        if exponent & 1 == 1 {
            power = product(power, square);
        }
        square = product(square, square);
        exponent >>= 1;
    }
    power
}

/// Returns the product modulo the polynomial.
const fn product(mut a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    while a != 0 {
        if a >> 31 == 1 {
            product ^= b;
        }
        a <<= 1;
        b = if b & 1 == 1 {
            b >> 1 ^ POLYNOMIAL
        } else {
            b >> 1
        };
    }
    product
}
