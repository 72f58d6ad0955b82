//! The octets that are sent: a function of their position, so that each can be checked by itself.

/// Returns an eight-octet word: SplitMix64 of its number.
fn word(number: u64) -> [u8; 8] {
    let z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)).to_le_bytes()
}

/// Returns the number of octets up to the next word.
fn head(position: u64, octets: usize) -> usize {
    (position.wrapping_neg() % 8).min(octets as u64) as usize
}

/// Writes the octets from `position` on.
pub(crate) fn fill(position: u64, octets: &mut [u8]) {
    let (first, rest) = octets.split_at_mut(head(position, octets.len()));
    let skipped = (position % 8) as usize;
    first.copy_from_slice(&word(position / 8)[skipped..skipped + first.len()]);
    let (words, last) = rest.as_chunks_mut();
    let mut number = position.div_ceil(8);
    for place in words {
        *place = word(number);
        number += 1;
    }
    last.copy_from_slice(&word(number)[..last.len()]);
}

/// Returns whether these are the octets from `position` on.
pub(crate) fn holds(position: u64, octets: &[u8]) -> bool {
    let (first, rest) = octets.split_at(head(position, octets.len()));
    let skipped = (position % 8) as usize;
    let (words, last) = rest.as_chunks();
    let mut number = position.div_ceil(8);
    // All words are compared, also after one that is wrong: a loop without branches is much faster.
    let mut wrong = 0;
    for place in words {
        wrong |= u64::from_le_bytes(*place) ^ u64::from_le_bytes(word(number));
        number += 1;
    }
    wrong == 0
        && first == &word(position / 8)[skipped..skipped + first.len()]
        && last == &word(number)[..last.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_is_what_the_whole_has_there() {
        let mut whole = [0; 64];
        fill(0, &mut whole);
        for start in 0..32 {
            for len in 0..24 {
                let mut piece = vec![0; len];
                fill(start as u64, &mut piece);
                assert_eq!(piece, whole[start..start + len]);
                assert!(holds(start as u64, &piece));
            }
        }
        assert!(!holds(1, &whole));
        whole[63] ^= 1;
        assert!(!holds(0, &whole));
    }
}
