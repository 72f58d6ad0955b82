//! Segment template: the headers that a frame must have to carry the next segment of a message,
//! right behind the one before.
//!
//! A sender cuts a message into segments of the same length, and mostly sends nothing else
//! meanwhile. Then all headers are the same from the first frame to the last but one. Only these
//! differ: TCP's sequence number and DDP's offset, which are known beforehand, IP's identification,
//! and the checksums. So nothing is parsed: the headers are compared. Where one tagged message ends
//! and the next begins, the few fields that may change as well are
//! [read](SegmentTemplate::turned_to), and the others are still compared.

use super::checksum::{Checksums, fold, is_whole, sum_of_header};
use super::crc::{crc, crc_and_words};
use super::ddp::{DdpHeader, DdpSegment, LAST, POSITION_LEN, TAGGED_LEN};
use super::ipv4;
use super::mpa::{Fpdu, LENGTH_LEN};
use super::prediction::{Expected, FRONT, Layout, Prediction, is_alike};
use super::tcp::{self, Flags};

/// Octets of the headers of an FPDU with a tagged segment: MPA's and DDP's.
const TAGGED_FRONT: usize = LENGTH_LEN + TAGGED_LEN;
/// Where DDP's control octet and STag stand in an FPDU.
const CONTROL_AT: usize = LENGTH_LEN;
const STAG_AT: usize = TAGGED_FRONT - POSITION_LEN - size_of::<u32>();
/// Octets that are compared: they hold a VLAN tag, IPv6, TCP with timestamps, and the front of an
/// FPDU, in whole chunks.
const MOST: usize = 112;
/// Offsets of fields: the length, identification and checksum of IPv4, the length of IPv6, and the
/// sequence number, flags and checksum of TCP.
const LENGTH_AT: usize = 2;
const ID_AT: usize = 4;
const IP_CHECKSUM_AT: usize = 10;
const LENGTH_AT_V6: usize = 4;
const SEQ_AT: usize = 4;
const FLAGS_AT: usize = 13;
const TCP_CHECKSUM_AT: usize = 16;

/// The template of the next frame.
#[derive(Clone, Debug)]
pub struct SegmentTemplate {
    /// The headers up to TCP's, and the front of the FPDU.
    octets: [u8; MOST],
    /// The bits in which a frame must equal them.
    mask: [u8; MOST],
    layout: Layout,
    /// Whether the segment is tagged, and the layout is the [usual](Layout::USUAL).
    usual: bool,
    /// DDP's header, but for its position.
    header: DdpHeader,
    /// Octets of the FPDU.
    fpdu_len: usize,
    /// Octets of DDP's payload.
    payload_len: usize,
    /// The sum of addresses and protocol number, for the checksum of TCP.
    pseudo_sum: u16,
    /// The sums of the octets that are the same in each frame, the pseudo-header's included, in
    /// native byte order.
    ip_sum: u64,
    tcp_sum: u64,
    seq: u32,
    /// The [position](DdpHeader::position) of the segment.
    position: u64,
}

/// What was read of a frame that is the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coalescable<'a> {
    /// The [`crc`] of the whole FPDU.
    pub crc: u32,
    /// DDP's payload.
    pub payload: &'a [u8],
}

impl SegmentTemplate {
    /// Makes the template of the frame behind one that was read by a prediction. Its payload must
    /// be one FPDU with CRC and no markers, which has a segment that is not the last of its message.
    /// `None` otherwise, and if the frame is short: for those it does not pay.
    pub fn behind(prediction: &Prediction, frame: &[u8], expected: &Expected<'_>) -> Option<Self> {
        let fpdu = expected.payload;
        if !prediction.is_fpdu(fpdu) {
            return None;
        }
        let segment = DdpSegment::parse(Fpdu::parse(fpdu)?.0.ulpdu).ok()?;
        let header = segment.header;
        if header.last() {
            return None;
        }
        let layout = prediction.layout();
        let Layout { v4, ip_at, .. } = layout;
        let (tcp_at, fpdu_at) = (layout.tcp_at(), layout.payload_at());
        let octets = *frame.first_chunk::<MOST>()?;
        let mut mask = [0; MOST];
        // rfc: 5041-73a, 5041-73c, 5041-73d valid STag, TO and end of the payload in its range
        // rfc: 5041-40, 5041-45 queue number and MSN are the same in all segments of a message
        mask[..fpdu_at + front_of(&header) - POSITION_LEN].fill(0xff);
        let mut vary = |at: usize, len: usize| mask[at..at + len].fill(0);
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
            layout,
            usual: layout == Layout::USUAL && matches!(header, DdpHeader::Tagged(_)),
            header,
            fpdu_len: fpdu.len(),
            payload_len: segment.payload.len(),
            pseudo_sum: prediction.pseudo_sum,
            ip_sum: 0,
            tcp_sum: 0,
            seq: expected.header.seq.0,
            position: header.position(),
        };
        next.sum_up();
        next.advance();
        next.is_worthwhile().then_some(next)
    }

    /// Computes the sums of the octets.
    fn sum_up(&mut self) {
        match self.usual {
            true => self.sum_up_at(Layout::USUAL),
            false => self.sum_up_at(self.layout),
        }
    }

    #[inline(always)]
    fn sum_up_at(&mut self, layout: Layout) {
        let (tcp_at, fpdu_at) = (layout.tcp_at(), layout.payload_at());
        let header = sum_of_header(&self.octets[tcp_at..fpdu_at]);
        let sums = u64::from(self.pseudo_sum) + u64::from(header);
        // At most 65535: the IP header has it in 16 bits.
        self.tcp_sum = fold(sums + (fpdu_at + self.fpdu_len - tcp_at) as u64)
            .to_be()
            .into();
        let ip = &self.octets[layout.ip_at..tcp_at];
        self.ip_sum = sum_of_header(ip).to_be().into();
    }

    fn is_worthwhile(&self) -> bool {
        self.layout.payload_at() + self.fpdu_len >= MOST && self.payload_len > 0
    }

    /// Returns a template for this frame, where a tagged message may end or another begin. From the
    /// frame it takes the fields that may change there: the length, PSH, the L bit, STag and tagged
    /// offset. The STag changes only with the message. The other fields stay, so
    /// [`read`](Self::read) still decides whether the frame is the next. `None` if it cannot be.
    // rfc: 5041-33 one STag in all segments of a message
    // rfc: 5041-73a, 5041-73c, 5041-73d valid STag, TO and end of the payload in its range
    pub fn turned_to(&self, frame: &[u8]) -> Option<Self> {
        let (tcp_at, fpdu_at) = (self.layout.tcp_at(), self.layout.payload_at());
        let front = frame.first_chunk::<MOST>()?;
        let header = front.get(tcp_at..)?.first_chunk()?;
        if word32::<{ tcp::HEADER_LEN }>(header, SEQ_AT) != self.seq {
            return None;
        }
        let (fpdu, len) = Fpdu::parse(frame.get(fpdu_at..)?)?;
        let segment = DdpSegment::parse(fpdu.ulpdu).ok()?;
        let (DdpHeader::Tagged(before), DdpHeader::Tagged(header)) = (self.header, segment.header)
        else {
            return None;
        };
        if !before.last && before.stag != header.stag {
            return None;
        }
        let mut turned = self.clone();
        turned.fpdu_len = len;
        turned.payload_len = segment.payload.len();
        turned.header = segment.header;
        turned.position = header.offset.0;
        let Layout { v4, ip_at, .. } = turned.layout;
        let (length_at, counted_from) = match v4 {
            true => (ip_at + LENGTH_AT, ip_at),
            false => (ip_at + LENGTH_AT_V6, tcp_at),
        };
        let length = u16::try_from(fpdu_at + len - counted_from).ok()?;
        turned.octets[length_at..][..size_of::<u16>()].copy_from_slice(&length.to_be_bytes());
        for (at, bits) in [
            (tcp_at + FLAGS_AT, Flags::PSH.0),
            (fpdu_at + CONTROL_AT, LAST),
        ] {
            turned.octets[at] = turned.octets[at] & !bits | front[at] & bits;
        }
        for (at, len) in [(0, LENGTH_LEN), (STAG_AT, size_of::<u32>())] {
            let place = fpdu_at + at..fpdu_at + at + len;
            turned.octets[place.clone()].copy_from_slice(&front[place]);
        }
        turned.sum_up();
        turned.is_worthwhile().then_some(turned)
    }

    /// Returns the DDP header that the next segment must have.
    pub fn header(&self) -> DdpHeader {
        self.header.at(self.position)
    }

    /// Returns whether the frame has PSH.
    #[inline]
    pub fn pushes(&self) -> bool {
        self.octets[self.layout.tcp_at() + FLAGS_AT] & Flags::PSH.0 != 0
    }

    /// Moves on to the frame behind the next one, which has come.
    #[inline]
    pub fn advance(&mut self) {
        // At most 65535.
        self.seq = self.seq.wrapping_add(self.fpdu_len() as u32);
        self.position = self.position.wrapping_add(self.payload_len() as u64);
    }

    /// Returns the octets of the FPDU, which is the payload of the TCP segment.
    #[inline]
    pub fn fpdu_len(&self) -> usize {
        self.fpdu_len
    }

    /// Returns the number of octets of DDP's payload.
    #[inline]
    pub fn payload_len(&self) -> usize {
        self.payload_len
    }

    /// Returns whether the segment is tagged, and the headers have the usual layout.
    pub fn is_usual(&self) -> bool {
        self.usual
    }

    /// Reads a frame if it is the next one. `None` if it is not, or if anything in its headers or
    /// checksums is wrong. The caller checks the CRC.
    #[inline]
    pub fn read<'a>(&self, frame: &'a [u8], checksums: Checksums) -> Option<Coalescable<'a>> {
        self.read_at(self.layout, front_of(&self.header), frame, checksums)
    }

    /// Reads a frame with [usual](Self::is_usual) headers, which is faster. `None` for others.
    #[inline(always)]
    pub fn read_usual<'a>(&self, frame: &'a [u8], checksums: Checksums) -> Option<Coalescable<'a>> {
        if !self.usual {
            return None;
        }
        self.read_at(Layout::USUAL, TAGGED_FRONT, frame, checksums)
    }

    #[inline(always)]
    fn read_at<'a>(
        &self,
        layout: Layout,
        fpdu_front: usize,
        frame: &'a [u8],
        checksums: Checksums,
    ) -> Option<Coalescable<'a>> {
        let front = frame.first_chunk::<MOST>()?;
        let fpdu = frame.get(layout.payload_at()..)?.get(..self.fpdu_len)?;
        let tcp = front.get(layout.tcp_at()..)?.first_chunk()?;
        let (headers, rest) = fpdu.split_at_checked(fpdu_front)?;
        let position = headers.last_chunk::<POSITION_LEN>()?;
        let payload = rest.get(..self.payload_len)?;
        // rfc: 5041-73a, 5041-73c valid STag, TO in its range
        if !self.is_alike(layout.payload_at() + fpdu_front - POSITION_LEN, front)
            || word32::<{ tcp::HEADER_LEN }>(tcp, SEQ_AT) != self.seq
            || u64::from_be_bytes(*position) != self.position
        {
            return None;
        }
        let (crc, holds) = match checksums {
            Checksums::None => {
                let (crc, words) = crc_and_words(fpdu);
                (crc, self.holds(layout, front, tcp, words))
            }
            _ => {
                let sum = checksums.sum_of(fpdu, frame);
                let holds = |sum: u16| self.holds(layout, front, tcp, sum.to_be().into());
                (crc(fpdu), sum.is_none_or(holds))
            }
        };
        holds.then_some(Coalescable { crc, payload })
    }

    /// Returns whether the headers are equal in the bits that do not vary, the last of which is in
    /// front of octet `len`.
    #[inline(always)]
    fn is_alike(&self, len: usize, front: &[u8; MOST]) -> bool {
        let ((front, more), (octets, other), (mask, varying)) = (
            front.split_at(FRONT),
            self.octets.split_at(FRONT),
            self.mask.split_at(FRONT),
        );
        is_alike(front, octets, mask) && (len <= FRONT || is_alike(more, other, varying))
    }

    /// Returns whether the checksums of TCP, and of IPv4's header, are right. `words` is the sum of
    /// the FPDU, in native byte order.
    #[inline(always)]
    fn holds(
        &self,
        layout: Layout,
        front: &[u8; MOST],
        tcp: &[u8; tcp::HEADER_LEN],
        words: u64,
    ) -> bool {
        let seq = summand(tcp, SEQ_AT) + summand(tcp, SEQ_AT + 2);
        if !is_whole(self.tcp_sum + words + seq + summand(tcp, TCP_CHECKSUM_AT)) {
            return false;
        }
        let ip = front.get(layout.ip_at..);
        let ip = ip.and_then(<[u8]>::first_chunk::<{ ipv4::HEADER_LEN }>);
        !layout.v4
            || ip.is_some_and(|ip| {
                is_whole(self.ip_sum + summand(ip, ID_AT) + summand(ip, IP_CHECKSUM_AT))
            })
    }
}

/// Returns a word as it counts in a sum in native byte order.
#[inline(always)]
fn summand<const N: usize>(octets: &[u8; N], at: usize) -> u64 {
    u16::from_ne_bytes([octets[at], octets[at + 1]]).into()
}

/// Reads a number in network byte order. No bounds can be crossed: each offset and each length is a
/// constant.
#[inline]
fn word32<const N: usize>(octets: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([octets[at], octets[at + 1], octets[at + 2], octets[at + 3]])
}

/// Returns the octets of the headers of an FPDU: MPA's, and this one.
#[inline]
fn front_of(header: &DdpHeader) -> usize {
    LENGTH_LEN + header.len()
}
