//! Octets that may have keys, and leave none in memory that they have had.

use std::io;

use zeroize::Zeroizing;

/// What is written. It is zeroed when this is dropped, and so is what it grows out of.
#[derive(Debug, Default)]
pub(crate) struct Wiped(pub(crate) Zeroizing<Vec<u8>>);

impl Wiped {
    /// Makes room for more. Returns what had the octets before, if that was too small.
    fn make_room(&mut self, more: usize) -> Option<Zeroizing<Vec<u8>>> {
        let needed = self.0.len() + more;
        if needed <= self.0.capacity() {
            return None;
        }
        let mut larger = Vec::with_capacity((2 * needed).max(512));
        larger.extend_from_slice(&self.0);
        Some(std::mem::replace(&mut self.0, Zeroizing::new(larger)))
    }
}

impl io::Write for Wiped {
    fn write(&mut self, octets: &[u8]) -> io::Result<usize> {
        drop(self.make_room(octets.len()));
        self.0.extend_from_slice(octets);
        Ok(octets.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn what_it_grows_out_of_is_given_back_to_be_zeroed() {
        let mut wiped = Wiped::default();
        wiped.write_all(&[7; 400]).unwrap();
        let first = wiped.0.as_ptr();
        assert!(wiped.make_room(100).is_none());
        let room = wiped.0.capacity() - 400;
        let before = wiped.make_room(room + 1).unwrap();
        assert_eq!((before.as_ptr(), before.as_slice()), (first, &[7; 400][..]));
        assert!(wiped.0.capacity() > room + 400);
        wiped.write_all(&[8; 5000]).unwrap();
        assert_eq!(*wiped.0, [&[7; 400][..], &[8; 5000]].concat());
    }
}
