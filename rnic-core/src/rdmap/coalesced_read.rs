//! Segments of a Read Response in a row, of which RDMAP learns when all are placed: see
//! `connection/fast/coalesced_run.rs`.

use super::Rdmap;
use crate::wire::ddp::TaggedHeader;

impl Rdmap {
    /// Returns how many octets the oldest Read still lacks, if a segment with this header continues
    /// its response.
    // rfc: 5040-90, 5041-73c a Read Response stays inside its sink, and comes in order
    pub fn rest_of_read(&self, next: &TaggedHeader) -> Option<u32> {
        let rest = self.requester.outstanding.rest_of_read(next);
        rest.filter(|_| !self.is_ending())
    }

    /// Records that so many octets of the [rest](Self::rest_of_read) of a Read were placed in
    /// order, in segments that are not the last of its response.
    pub fn pass_read(&mut self, octets: u32) {
        self.requester.outstanding.pass_read(octets);
    }
}
