//! FPDU template: what an FPDU must begin with to carry the next segment of a message, right behind
//! the one before. In a stream this is what a [segment template](super::segment_template) is among
//! frames.

use super::ddp::{DdpHeader, DdpSegment, POSITION_LEN};
use super::mpa::{Fpdu, LENGTH_LEN};

/// Octets that are compared at once.
const CHUNK: usize = 8;

/// The template of the next FPDU.
#[derive(Clone, Copy, Debug)]
pub struct FpduTemplate {
    /// The first and the last octets in front of the position, which overlap.
    front: [[u8; CHUNK]; 2],
    header: DdpHeader,
    /// Octets of MPA's and DDP's headers, of the FPDU, and of DDP's payload.
    headers_len: usize,
    fpdu_len: usize,
    payload_len: usize,
    /// The [position](DdpHeader::position) of the segment.
    position: u64,
}

impl FpduTemplate {
    /// Makes the template of the FPDU behind this one. `None` if that is not whole, or holds the
    /// last segment of a message or an empty one.
    pub fn behind(fpdu: &[u8]) -> Option<Self> {
        let (parsed, fpdu_len) = Fpdu::parse(fpdu)?;
        let segment = DdpSegment::parse(parsed.ulpdu).ok()?;
        let header = segment.header;
        if header.last() || segment.payload.is_empty() {
            return None;
        }
        let headers_len = LENGTH_LEN + header.len();
        let front = &fpdu[..headers_len - POSITION_LEN];
        let payload_len = segment.payload.len();
        Some(Self {
            front: [*front.first_chunk()?, *front.last_chunk()?],
            header,
            headers_len,
            fpdu_len,
            payload_len,
            position: header.position().wrapping_add(payload_len as u64),
        })
    }

    /// Returns the DDP header that the next segment must have.
    pub fn header(&self) -> DdpHeader {
        self.header.at(self.position)
    }

    /// Returns the number of octets of DDP's payload.
    #[inline]
    pub fn payload_len(&self) -> usize {
        self.payload_len
    }

    /// Moves on to the FPDU behind the next one, which has come.
    #[inline]
    pub fn advance(&mut self) {
        self.position = self.position.wrapping_add(self.payload_len as u64);
    }

    /// Returns the FPDU at the front of these octets, and DDP's payload in it, if it is the next
    /// one. `None` if it is not, or not whole. The caller checks the CRC.
    // rfc: 5041-33, 5041-40, 5041-45 STag, or queue and MSN, are the same in all of a message
    #[inline]
    pub fn read<'a>(&self, octets: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
        let fpdu = octets.get(..self.fpdu_len)?;
        let (headers, rest) = fpdu.split_at_checked(self.headers_len)?;
        let (front, position) = headers.split_last_chunk()?;
        let alike = [front.first_chunk()?, front.last_chunk()?] == [&self.front[0], &self.front[1]];
        if !alike || u64::from_be_bytes(*position) != self.position {
            return None;
        }
        Some((fpdu, rest.get(..self.payload_len)?))
    }
}
