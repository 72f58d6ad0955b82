//! The application's buffers, piece by piece.
#![allow(unsafe_code, reason = "memory of the program")]

use std::marker::PhantomData;
use std::ptr;

use nix::libc::iovec;

/// Memory that is to be read.
#[derive(Debug)]
pub(super) enum ToRead {}

/// Memory that is to be filled.
#[derive(Debug)]
pub(super) enum ToFill {}

/// What is left of the application's buffers, [to be read](ToRead) or [to be filled](ToFill).
#[derive(Debug)]
pub(super) struct Pieces<'pieces, Use> {
    pieces: &'pieces [iovec],
    /// Octets of the first that are done.
    done: usize,
    left: usize,
    to: PhantomData<Use>,
}

/// A place where some of the octets lie.
#[derive(Debug)]
pub(super) struct Place<'pieces, Use> {
    start: *mut u8,
    length: u32,
    to: PhantomData<(&'pieces (), Use)>,
}

impl<Use> Place<'_, Use> {
    pub(super) fn length(&self) -> usize {
        self.length as usize
    }
}

impl Place<'_, ToRead> {
    /// Returns where the octets can be read.
    pub(super) fn start(&self) -> *const u8 {
        self.start
    }

    /// Copies the octets.
    pub(super) fn copy_to(&self, to: &mut [u8]) {
        assert_eq!(to.len(), self.length());
        // SAFETY: so many octets can be read there, and written to the slice.
        unsafe { ptr::copy_nonoverlapping(self.start, to.as_mut_ptr(), to.len()) };
    }
}

impl Place<'_, ToFill> {
    /// Returns where the octets can be written.
    pub(super) fn start(&self) -> *mut u8 {
        self.start
    }
}

impl<'pieces, Use> Pieces<'pieces, Use> {
    /// # Safety
    ///
    /// The application has the memory that the pieces name as long as they are borrowed: it can be
    /// read or, if it is to be filled, written.
    pub(super) unsafe fn new(pieces: &'pieces [iovec]) -> Self {
        let add = |sum: usize, piece: &iovec| sum.saturating_add(piece.iov_len);
        Self {
            pieces,
            done: 0,
            left: pieces.iter().fold(0, add),
            to: PhantomData,
        }
    }

    /// Returns how many octets are left.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// Advances by so many octets, no more than are left. Calls `copy` for each place where some of
    /// them lie.
    pub(super) fn advance(&mut self, octets: u32, mut copy: impl FnMut(Place<'pieces, Use>)) {
        let mut wanted = octets as usize;
        self.left -= wanted;
        while wanted > 0 {
            let Some((first, rest)) = self.pieces.split_first() else {
                return;
            };
            let length = wanted.min(first.iov_len - self.done);
            if length > 0 {
                copy(Place {
                    start: first.iov_base.cast::<u8>().wrapping_add(self.done),
                    length: length as u32,
                    to: PhantomData,
                });
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
        // SAFETY: the text is there.
        let mut pieces = unsafe { Pieces::<ToRead>::new(&list) };
        assert_eq!(pieces.left(), text.len());
        let mut runs = Vec::new();
        for octets in [3, 3, 0, 7] {
            pieces.advance(octets, |place| {
                let at = place.start().addr() - text.as_ptr().addr();
                let mut copy = vec![0; place.length()];
                place.copy_to(&mut copy);
                assert_eq!(copy, text[at..][..copy.len()]);
                runs.push((at, copy.len()));
            });
        }
        assert_eq!(runs, [(0, 3), (3, 1), (4, 2), (6, 2), (8, 5)]);
        assert_eq!(pieces.left(), 0);
    }
}
