//! What the fuzz targets share.

/// Cuts `stream` into pieces; each octet of `lengths` is the length of one, the last takes the
/// rest.
pub fn cut<'a>(mut stream: &'a [u8], lengths: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let mut lengths = lengths.iter();
    let mut over = false;
    std::iter::from_fn(move || {
        if over {
            return None;
        }
        let len = lengths.next().map_or(stream.len(), |&len| len.into());
        over = len >= stream.len();
        let (piece, rest) = stream.split_at(len.min(stream.len()));
        stream = rest;
        Some(piece)
    })
}
