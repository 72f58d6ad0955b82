//! Tests: figures of the RFCs and of another library, the replay window against a model, and
//! packets of each mode and algorithm.

mod facts;
mod numbers;
mod packets;
mod policies;
mod replay;
mod shared;
mod vectors;

/// Reads octets in hexadecimal digits.
fn hex(digits: &str) -> Vec<u8> {
    let digits: Vec<_> = digits
        .chars()
        .filter(|digit| !digit.is_whitespace())
        .collect();
    let value = |digit: char| digit.to_digit(16).expect("a digit") as u8;
    let octet = |pair: &[char]| value(pair[0]) << 4 | value(pair[1]);
    digits.chunks_exact(2).map(octet).collect()
}
