//! Texts of state, and what in them may differ.

/// Octets that are compared at a time.
const CHUNK: usize = 64;

/// The place where two texts differ; `None` if they only do in words that stand behind one of
/// these.
pub(super) fn first_difference(one: &str, other: &str, free: &[&str]) -> Option<usize> {
    let is_of_word = |c: char| c.is_ascii_alphanumeric();
    let word = |text: &str| text.find(|c| !is_of_word(c)).unwrap_or(text.len());
    let (mut at, mut other_at) = (0, 0);
    while let Some(same) = same_octets(&one.as_bytes()[at..], &other.as_bytes()[other_at..]) {
        (at, other_at) = (at + same, other_at + same);
        let front = one[..at].trim_end_matches(is_of_word);
        if !free.iter().any(|free| front.ends_with(free)) {
            return Some(at);
        }
        at += word(&one[at..]);
        other_at += word(&other[other_at..]);
    }
    None
}

/// How many octets are the same from the beginning on; `None` if all are.
fn same_octets(one: &[u8], other: &[u8]) -> Option<usize> {
    let chunks = one.chunks(CHUNK).zip(other.chunks(CHUNK));
    let at = CHUNK * chunks.take_while(|(one, other)| one == other).count();
    let rest = |octets: &[u8]| at.min(octets.len());
    let (one_rest, other_rest) = (&one[rest(one)..], &other[rest(other)..]);
    let rest = one_rest.iter().zip(other_rest);
    let at = at + rest.take_while(|(one, other)| one == other).count();
    (at < one.len() || at < other.len()).then_some(at)
}
