//! What a frame has to be like to carry the next segment of a message, right behind the one before.
//!
//! A sender cuts a message into segments of the same length, and mostly tells nothing else meanwhile. Then all headers are
//! the same from the first frame to the last but one, but for TCP's sequence number and DDP's tagged offset, which are
//! known beforehand, IP's identification, and the checksums. So nothing is read: all is compared. Where one message ends and
//! the next begins, the few things that may change as well are [read](Sequel::turn_to), and the others still compared.

use super::checksum::{Checksums, fold, is_whole, sum_of_header};
use super::crc::{crc, crc_and_sum};
use super::ddp::{DdpHeader, DdpSegment, LAST, Stag, TAGGED_LEN, TaggedHeader, TaggedOffset};
use super::ipv4;
use super::mpa::{Fpdu, LENGTH_LEN};
use super::prediction::{Expected, FRONT, Prediction, is_alike};
use super::tcp::{self, Flags};

/// Octets of the headers of an FPDU: MPA's and DDP's.
const FPDU_FRONT: usize = LENGTH_LEN + TAGGED_LEN;
/// Where DDP's control octet, STag and tagged offset stand in an FPDU.
const CONTROL_AT: usize = LENGTH_LEN;
const STAG_AT: usize = OFFSET_AT - size_of::<u32>();
const OFFSET_AT: usize = FPDU_FRONT - size_of::<u64>();
/// Octets that are compared: two VLAN tags, IPv6, TCP with timestamps, and the front of an FPDU, in whole chunks.
const MOST: usize = 112;
/// Where IPv4 has its length, its identification and its checksum, IPv6 its length, and TCP its sequence number, its flags
/// and its checksum.
const LENGTH_AT: usize = 2;
const ID_AT: usize = 4;
const IP_CHECKSUM_AT: usize = 10;
const LENGTH_AT_V6: usize = 4;
const SEQ_AT: usize = 4;
const FLAGS_AT: usize = 13;
const TCP_CHECKSUM_AT: usize = 16;

/// A frame to come.
#[derive(Clone, Debug)]
pub struct Sequel {
    /// Headers of TCP and below, and the front of the FPDU.
    octets: [u8; MOST],
    /// The bits that a frame has in common with them.
    mask: [u8; MOST],
    v4: bool,
    ip_at: usize,
    tcp_at: usize,
    fpdu_at: usize,
    end: usize,
    /// Octets of DDP's payload.
    payload_len: usize,
    /// What addresses and protocol number add to the checksum of TCP.
    pseudo_sum: u16,
    /// What the octets add to the checksums that are the same in each frame, the pseudo-header's included.
    ip_sum: u16,
    tcp_sum: u16,
    seq: u32,
    offset: u64,
}

/// What a frame held that was the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Next<'a> {
    /// The [`crc`] of the whole FPDU.
    pub crc: u32,
    /// DDP's payload.
    pub payload: &'a [u8],
}

impl Sequel {
    /// What follows a frame that was read by a prediction, if its payload is one FPDU with CRC and no markers, that has
    /// a segment of a tagged message which is not its last. `None` too if it is short: few are worth the trouble.
    pub fn of(prediction: &Prediction, frame: &[u8], expected: &Expected<'_>) -> Option<Self> {
        let fpdu = expected.payload;
        if !prediction.is_fpdu(fpdu) {
            return None;
        }
        let segment = DdpSegment::parse(Fpdu::parse(fpdu)?.0.ulpdu).ok()?;
        let DdpHeader::Tagged(header @ TaggedHeader { last: false, .. }) = segment.header else {
            return None;
        };
        let (ip_at, tcp_at) = (prediction.ip_at(), prediction.tcp_at());
        let fpdu_at = prediction.payload_at();
        let octets = *frame.first_chunk::<MOST>()?;
        let mut mask = [0; MOST];
        // rfc: 5041-73
        mask[..fpdu_at + OFFSET_AT].fill(0xff);
        let mut vary = |at: usize, len: usize| mask[at..at + len].fill(0);
        let v4 = prediction.is_v4();
        if v4 {
            vary(ip_at + ID_AT, 2);
            vary(ip_at + IP_CHECKSUM_AT, 2);
        }
        vary(tcp_at + SEQ_AT, 4);
        vary(tcp_at + TCP_CHECKSUM_AT, 2);
        let mut same = octets;
        for (octet, mask) in same.iter_mut().zip(&mask) {
            *octet &= mask;
        }
        let mut next = Self {
            octets: same,
            mask,
            v4,
            ip_at,
            tcp_at,
            fpdu_at,
            end: fpdu_at + fpdu.len(),
            payload_len: segment.payload.len(),
            pseudo_sum: prediction.pseudo_sum,
            ip_sum: 0,
            tcp_sum: 0,
            seq: expected.header.seq.0,
            offset: header.offset.0,
        };
        next.sum_up();
        next.advance();
        next.is_worthwhile().then_some(next)
    }

    /// Notes what the octets add to checksums.
    fn sum_up(&mut self) {
        let header = sum_of_header(&self.octets[self.tcp_at..self.fpdu_at]);
        let sums = u64::from(self.pseudo_sum) + u64::from(header);
        // No longer than 65535: the IP header counted it in 16 bits.
        self.tcp_sum = fold(sums + (self.end - self.tcp_at) as u64);
        self.ip_sum = sum_of_header(&self.octets[self.ip_at..self.tcp_at]);
    }

    fn is_worthwhile(&self) -> bool {
        self.end >= MOST && self.payload_len > 0
    }

    /// Expects what this frame has where a message may end or another begin: the length, PSH, whether it is the last segment,
    /// and the place of the octets, which is returned. All else stays, and whether the frame is the next is still to be
    /// found out: [`read`](Self::read) it. `None` if it is not; then nothing more can be expected.
    // rfc: 5041-73
    pub fn turn_to(&mut self, frame: &[u8]) -> Option<(Stag, TaggedOffset)> {
        let front = frame.first_chunk::<MOST>()?;
        let header = front.get(self.tcp_at..)?.first_chunk()?;
        if word32::<{ tcp::HEADER_LEN }>(header, SEQ_AT) != self.seq {
            return None;
        }
        let (fpdu, len) = Fpdu::parse(frame.get(self.fpdu_at..)?)?;
        let segment = DdpSegment::parse(fpdu.ulpdu).ok()?;
        let DdpHeader::Tagged(header) = segment.header else {
            return None;
        };
        self.end = self.fpdu_at + len;
        self.payload_len = segment.payload.len();
        self.offset = header.offset.0;
        let (length_at, counted_from) = match self.v4 {
            true => (self.ip_at + LENGTH_AT, self.ip_at),
            false => (self.ip_at + LENGTH_AT_V6, self.tcp_at),
        };
        let length = u16::try_from(self.end - counted_from).ok()?;
        self.octets[length_at..][..size_of::<u16>()].copy_from_slice(&length.to_be_bytes());
        for (at, bits) in [
            (self.tcp_at + FLAGS_AT, Flags::PSH.0),
            (self.fpdu_at + CONTROL_AT, LAST),
        ] {
            self.octets[at] = self.octets[at] & !bits | front[at] & bits;
        }
        for (at, len) in [(0, LENGTH_LEN), (STAG_AT, size_of::<u32>())] {
            let place = self.fpdu_at + at..self.fpdu_at + at + len;
            self.octets[place.clone()].copy_from_slice(&front[place]);
        }
        self.sum_up();
        self.is_worthwhile().then(|| self.place())
    }

    /// The place of the next segment's octets.
    pub fn place(&self) -> (Stag, TaggedOffset) {
        let stag = self.octets[self.fpdu_at + STAG_AT..].first_chunk();
        let stag = u32::from_be_bytes(stag.copied().unwrap_or_default());
        (Stag(stag), TaggedOffset(self.offset))
    }

    /// Whether the sender of the frame pushes it.
    #[inline]
    pub fn pushes(&self) -> bool {
        self.octets[self.tcp_at + FLAGS_AT] & Flags::PSH.0 != 0
    }

    /// A frame was the next: expects the one behind it.
    #[inline]
    pub fn advance(&mut self) {
        // No longer than 65535.
        self.seq = self.seq.wrapping_add(self.fpdu_len() as u32);
        self.offset = self.offset.wrapping_add(self.payload_len() as u64);
    }

    /// Octets of the FPDU, which are those of the TCP segment.
    #[inline]
    pub fn fpdu_len(&self) -> usize {
        self.end - self.fpdu_at
    }

    /// Octets of DDP's payload.
    #[inline]
    pub fn payload_len(&self) -> usize {
        self.payload_len
    }

    /// Reads a frame if it is the next one. `None` if it is not, or if anything about its headers or checksums is wrong.
    /// Whether the CRC holds is left to the caller.
    #[inline(always)]
    pub fn read<'a>(&self, frame: &'a [u8], checksums: Checksums) -> Option<Next<'a>> {
        let front = frame.first_chunk::<MOST>()?;
        let fpdu = frame.get(self.fpdu_at..self.end)?;
        let header = front
            .get(self.tcp_at..)?
            .first_chunk::<{ tcp::HEADER_LEN }>()?;
        let (fpdu_front, rest) = fpdu.split_first_chunk::<FPDU_FRONT>()?;
        let payload = rest.get(..self.payload_len)?;
        if !self.is_alike(front)
            || word32(header, SEQ_AT) != self.seq
            || word64(fpdu_front, OFFSET_AT) != self.offset
        {
            return None;
        }
        let (crc, sum) = match checksums {
            Checksums::Verify => {
                let (crc, sum) = crc_and_sum(fpdu);
                (crc, Some(sum))
            }
            _ => (crc(fpdu), checksums.sum_of(fpdu, frame)),
        };
        if let Some(sum) = sum {
            let varying = u64::from(self.seq) + u64::from(word16(header, TCP_CHECKSUM_AT));
            let total = u64::from(self.tcp_sum) + u64::from(sum) + varying;
            if !is_whole(total) || !self.ip_header_holds(front) {
                return None;
            }
        }
        Some(Next { crc, payload })
    }

    /// Whether the headers are the same, but for what varies.
    #[inline(always)]
    fn is_alike(&self, front: &[u8; MOST]) -> bool {
        let ((front, more), (octets, other), (mask, varying)) = (
            front.split_at(FRONT),
            self.octets.split_at(FRONT),
            self.mask.split_at(FRONT),
        );
        is_alike(front, octets, mask)
            && (self.fpdu_at + OFFSET_AT <= FRONT || is_alike(more, other, varying))
    }

    /// Whether the header checksum of IP is right, where there is one.
    #[inline(always)]
    fn ip_header_holds(&self, front: &[u8; MOST]) -> bool {
        let header = front.get(self.ip_at..);
        let header = header.and_then(<[u8]>::first_chunk::<{ ipv4::HEADER_LEN }>);
        header.is_some_and(|header| {
            let varying = [word16(header, ID_AT), word16(header, IP_CHECKSUM_AT)];
            let varying: u64 = varying.into_iter().map(u64::from).sum();
            !self.v4 || is_whole(u64::from(self.ip_sum) + varying)
        })
    }
}

/// Numbers in network order. They lie inside: each place and each length is a constant.
#[inline]
fn word16<const N: usize>(octets: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([octets[at], octets[at + 1]])
}

#[inline]
fn word32<const N: usize>(octets: &[u8; N], at: usize) -> u32 {
    u32::from(word16(octets, at)) << 16 | u32::from(word16(octets, at + 2))
}

#[inline]
fn word64<const N: usize>(octets: &[u8; N], at: usize) -> u64 {
    u64::from(word32(octets, at)) << 32 | u64::from(word32(octets, at + 4))
}
