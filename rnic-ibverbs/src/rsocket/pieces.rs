//! The application's buffers, piece by piece.

use nix::libc::iovec;

/// What is left of the application's buffers, to be read or to be filled.
#[derive(Debug)]
pub(super) struct Pieces<'pieces> {
    pieces: &'pieces [iovec],
    /// Octets of the first that are done.
    done: usize,
    left: usize,
}

impl<'pieces> Pieces<'pieces> {
    pub(super) fn new(pieces: &'pieces [iovec]) -> Self {
        let add = |sum: usize, piece: &iovec| sum.saturating_add(piece.iov_len);
        Self {
            pieces,
            done: 0,
            left: pieces.iter().fold(0, add),
        }
    }

    /// Returns how many octets are left.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// Advances by so many octets, no more than are left. Calls `copy` for each place where some of
    /// them lie, with its address and their number.
    pub(super) fn advance(&mut self, octets: u32, mut copy: impl FnMut(*mut u8, u32)) {
        let mut wanted = octets as usize;
        self.left -= wanted;
        while wanted > 0 {
            let Some((first, rest)) = self.pieces.split_first() else {
                return;
            };
            let length = wanted.min(first.iov_len - self.done);
            if length > 0 {
                let place = first.iov_base.cast::<u8>().wrapping_add(self.done);
                copy(place, length as u32);
            }
            wanted -= length;
            self.done += length;
            if self.done == first.iov_len {
                (self.pieces, self.done) = (rest, 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_walked_in_order() {
        let text = b"one two three";
        let piece = |from: usize, length: usize| iovec {
            iov_base: text[from..].as_ptr().cast_mut().cast(),
            iov_len: length,
        };
        let list = [piece(0, 4), piece(0, 0), piece(4, 4), piece(8, 5)];
        let mut pieces = Pieces::new(&list);
        assert_eq!(pieces.left(), text.len());
        let mut runs = Vec::new();
        for octets in [3, 3, 0, 7] {
            pieces.advance(octets, |at, length| {
                runs.push((at.addr() - text.as_ptr().addr(), length));
            });
        }
        assert_eq!(runs, [(0, 3), (3, 1), (4, 2), (6, 2), (8, 5)]);
        assert_eq!(pieces.left(), 0);
    }
}
