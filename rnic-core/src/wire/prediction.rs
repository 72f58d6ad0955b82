//! Header prediction: most frames have the headers of the frame before, except a few fields.
//!
//! Van Jacobson's observation, applied to the octets of the frame: fields that were checked in one
//! frame and are the same in the next need no check there. Fields that may differ, lengths and
//! checksums among them, are read and checked in each.

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::checksum::{Checksums, WordSum, combine, is_whole, sum};
use super::crc::crc_and_words;
use super::ethernet::{self, EthernetHeader};
use super::mpa::{LENGTH_LEN, fpdu_len};
use super::packet::{CONGESTION_EXPERIENCED, Packet};
use super::tcp::{
    self, DataHeader, FLAGS_AT, Flags, Seq, TIMESTAMPS_FRONT, TIMESTAMPS_LEN, TcpSegment,
    Timestamps,
};
use super::{ipv4, ipv6};

/// Octets compared at once.
const CHUNK: usize = 16;
/// Octets that hold all headers of IPv4 without VLAN tags.
pub(super) const FRONT: usize = 80;
/// Octets that hold a VLAN tag, IPv6, and TCP with timestamps, in whole chunks.
const MOST: usize = 112;
/// Where the values of the timestamps stand in a TCP header.
const STAMPS_AT: usize = tcp::HEADER_LEN + TIMESTAMPS_FRONT.len();
/// Where the length of a TCP header stands.
const DATA_OFFSET_AT: usize = 12;

/// The fields of a TCP header that are read.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Fields {
    _ports: [u8; 4],
    seq: U32,
    ack: U32,
    _data_offset: u8,
    flags: u8,
    window: U16,
    _checksum: U16,
    _urgent: U16,
}

/// Where the fields that vary stand in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) v4: bool,
    timestamps: bool,
    pub(super) ip_at: usize,
}

impl Layout {
    /// The layout of most frames: IPv4 right behind Ethernet's header, TCP with timestamps.
    pub(super) const USUAL: Self = Self {
        v4: true,
        timestamps: true,
        ip_at: ethernet::HEADER_LEN,
    };

    #[inline(always)]
    pub(super) const fn tcp_at(self) -> usize {
        let ip_len = if self.v4 {
            ipv4::HEADER_LEN
        } else {
            ipv6::HEADER_LEN
        };
        self.ip_at + ip_len
    }

    #[inline(always)]
    pub(super) const fn payload_at(self) -> usize {
        let options_len = if self.timestamps { TIMESTAMPS_LEN } else { 0 };
        self.tcp_at() + tcp::HEADER_LEN + options_len
    }
}

/// The predicted headers: those of a frame, and how to read the next frame like it.
#[derive(Clone, Debug)]
pub struct Prediction {
    /// The headers, with the bits that vary cleared.
    octets: [u8; MOST],
    /// The bits that do not vary.
    mask: [u8; MOST],
    layout: Layout,
    /// Whether the layout is the [usual](Layout::USUAL).
    usual: bool,
    /// Whether payloads are FPDUs with CRCs.
    fpdus: bool,
    /// The sum of the addresses and the protocol number.
    pub(super) pseudo_sum: u16,
    /// That sum, and that of the fields of TCP's header that do not vary, in native byte order.
    tcp_sum: u64,
    /// The sum of the fields of the IPv4 header that do not vary, in native byte order.
    ip_sum: u64,
    source_port: u16,
    destination_port: u16,
}

/// What was read of a frame whose headers were as predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected<'a> {
    /// TCP's header, which has no other options.
    pub header: DataHeader,
    /// The payload of the segment.
    pub payload: &'a [u8],
    /// The [`crc`](super::crc::crc) of the whole payload, if that is one FPDU and the checksum was
    /// computed. Both together cost little more than one.
    pub payload_crc: Option<u32>,
}

impl<'a> Expected<'a> {
    /// Returns the segment as [`packet::parse`](super::packet::parse) reads it, but with urgent
    /// pointer 0 (which means nothing without URG).
    pub fn segment(&self) -> TcpSegment<'a> {
        TcpSegment {
            header: self.header.into(),
            payload: self.payload,
        }
    }
}

impl Prediction {
    /// Predicts frames like this one, from which `packet` was read. `None` if frames like it are
    /// rare: if it has a congestion mark, IP options, other flags than ACK and PSH, or other TCP
    /// options than timestamps in their usual place. `fpdus`: whether payloads are FPDUs with CRCs,
    /// and without markers.
    pub fn like(frame: &[u8], packet: &Packet<'_>, fpdus: bool) -> Option<Self> {
        let header = &packet.segment.header;
        // Each frame with a router's congestion mark must be handled by itself.
        let marked = packet.ecn == CONGESTION_EXPERIENCED;
        if marked || header.flags | Flags::PSH != Flags::ACK | Flags::PSH {
            return None;
        }
        let (_, datagram) = EthernetHeader::parse(frame).ok()?;
        let ip_at = frame.len() - datagram.len();
        let v4 = packet.source.is_ipv4();
        let no_options = match datagram {
            [0x45, ..] if v4 => true,
            [_, _, _, _, _, _, next, ..] if !v4 => *next == tcp::PROTOCOL,
            _ => return None,
        };
        let mut layout = Layout {
            v4,
            timestamps: false,
            ip_at,
        };
        let tcp = frame.get(layout.tcp_at()..)?;
        let header_len = usize::from(*tcp.get(DATA_OFFSET_AT)? >> 4) * 4;
        let options = tcp.get(tcp::HEADER_LEN..header_len)?;
        layout.timestamps =
            options.len() == TIMESTAMPS_LEN && options.starts_with(&TIMESTAMPS_FRONT);
        let payload_at = layout.payload_at();
        if !no_options || !(layout.timestamps || options.is_empty()) || payload_at > MOST {
            return None;
        }
        let mut octets = [0; MOST];
        octets[..payload_at].copy_from_slice(&frame[..payload_at]);
        let like = Self {
            octets,
            mask: [0; MOST],
            layout,
            usual: layout == Layout::USUAL,
            fpdus,
            pseudo_sum: 0,
            tcp_sum: 0,
            ip_sum: 0,
            source_port: header.source_port,
            destination_port: header.destination_port,
        };
        Some(like.with_masks())
    }

    /// Sets the mask of the bits that do not vary, and the sums of these.
    fn with_masks(mut self) -> Self {
        let Layout { v4, ip_at, .. } = self.layout;
        let (tcp_at, payload_at) = (self.layout.tcp_at(), self.layout.payload_at());
        self.mask[..payload_at].fill(0xff);
        let mut vary = |at: usize, len: usize| self.mask[at..at + len].fill(0);
        // Sequence and acknowledgment numbers; then window, checksum, and the urgent pointer, which
        // means nothing without URG.
        vary(tcp_at + 4, 8);
        vary(tcp_at + 14, 6);
        if self.layout.timestamps {
            vary(tcp_at + STAMPS_AT, 8);
        }
        if v4 {
            // Length and identification; then the checksum.
            vary(ip_at + 2, 4);
            vary(ip_at + 10, 2);
        } else {
            vary(ip_at + 4, 2);
        }
        self.mask[tcp_at + FLAGS_AT] = !Flags::PSH.0;

        for (octet, mask) in self.octets.iter_mut().zip(&self.mask) {
            *octet &= mask;
        }
        let same = self.octets;
        let addresses = if v4 {
            self.ip_sum = sum(&same[ip_at..tcp_at]).to_be().into();
            8
        } else {
            32
        };
        self.pseudo_sum = combine(
            sum(&same[tcp_at - addresses..tcp_at]),
            u16::from(tcp::PROTOCOL),
        );
        let ports_and_options = [
            &same[tcp_at..tcp_at + 4],
            &same[tcp_at + tcp::HEADER_LEN..payload_at],
        ];
        let sums = ports_and_options.into_iter().map(sum);
        self.tcp_sum = u64::from(sums.fold(self.pseudo_sum, combine).to_be());
        self
    }

    /// Returns where the fields that vary stand.
    pub(super) fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns whether such a frame has the usual layout and is not short. Then it is read faster.
    #[inline]
    pub fn is_usual(&self, frame: &[u8]) -> bool {
        self.usual && frame.len() >= FRONT
    }

    /// Reads a frame if its headers are as predicted. `None` if they are not, or if anything is
    /// wrong: [`packet::parse`](super::packet::parse) then says what.
    #[inline]
    pub fn parse<'a>(&self, frame: &'a [u8], checksums: Checksums) -> Option<Expected<'a>> {
        match frame.first_chunk() {
            Some(front) if self.usual => self.parse_usual(front, frame, checksums),
            _ => self.parse_other(frame, checksums),
        }
    }

    /// Reads headers of the usual layout.
    // Not inlined: the work on its result needs all registers.
    #[inline(never)]
    fn parse_usual<'a>(
        &self,
        front: &'a [u8; FRONT],
        frame: &'a [u8],
        checksums: Checksums,
    ) -> Option<Expected<'a>> {
        // Octets behind the headers are not in the mask.
        if !is_alike(front, &self.octets[..FRONT], &self.mask[..FRONT]) {
            return None;
        }
        self.read(Layout::USUAL, front, frame, checksums)
    }

    /// Reads headers of any layout, in a frame of any length.
    #[inline(never)]
    fn parse_other<'a>(&self, frame: &'a [u8], checksums: Checksums) -> Option<Expected<'a>> {
        if !self.is_like(frame) {
            return None;
        }
        self.read(self.layout, frame, frame, checksums)
    }

    /// Reads a frame whose headers, in its `front`, are as predicted.
    #[inline(always)]
    fn read<'a>(
        &self,
        layout: Layout,
        front: &'a [u8],
        frame: &'a [u8],
        checksums: Checksums,
    ) -> Option<Expected<'a>> {
        let ip = front.get(layout.ip_at..)?.first_chunk()?;
        let tcp = front.get(layout.tcp_at()..)?;
        let varying = tcp.first_chunk::<{ tcp::HEADER_LEN }>()?;
        let stamps = if layout.timestamps {
            Some(tcp.get(STAMPS_AT..)?.first_chunk::<8>()?)
        } else {
            None
        };
        let end = self.end(layout, ip, checksums)?;
        let payload = frame.get(layout.payload_at()..end)?;
        let mut payload_crc = None;
        match checksums {
            Checksums::Unnecessary => {}
            Checksums::None => {
                let words = if self.is_fpdu(payload) {
                    let (crc, words) = crc_and_words(payload);
                    payload_crc = Some(crc);
                    words
                } else {
                    sum(payload).to_be().into()
                };
                // At most 65535: the IP header has it in 16 bits.
                let len = u64::from(((end - layout.tcp_at()) as u16).to_be());
                if !is_whole(self.header_sum(varying, stamps) + words + len) {
                    return None;
                }
            }
            Checksums::Complete(_) => {
                let segment = frame.get(layout.tcp_at()..end)?;
                let pseudo_sum = combine(self.pseudo_sum, segment.len() as u16);
                let sum = checksums.sum_of(segment, frame)?;
                if combine(pseudo_sum, sum) != 0xffff {
                    return None;
                }
            }
        }
        Some(Expected {
            header: self.header(varying, stamps),
            payload,
            payload_crc,
        })
    }

    /// Returns where the packet ends in the frame, if the checksum of its IP header is right.
    #[inline(always)]
    fn end(
        &self,
        layout: Layout,
        ip: &[u8; ipv4::HEADER_LEN],
        checksums: Checksums,
    ) -> Option<usize> {
        let word = |at: usize| u16::from_ne_bytes([ip[at], ip[at + 1]]);
        if !layout.v4 {
            return Some(layout.tcp_at() + usize::from(u16::from_be(word(4))));
        }
        let varying = [word(2), word(4), word(10)].map(u64::from);
        let total = self.ip_sum + varying.iter().sum::<u64>();
        let holds = checksums == Checksums::Unnecessary || is_whole(total);
        holds.then(|| layout.ip_at + usize::from(u16::from_be(word(2))))
    }

    /// Returns the sum of TCP's header and of the pseudo-header without the length, in native byte
    /// order.
    #[inline(always)]
    fn header_sum(&self, varying: &[u8; tcp::HEADER_LEN], stamps: Option<&[u8; 8]>) -> u64 {
        let mut sum = WordSum::default();
        // All fields behind the ports are summed, though not all of them vary.
        let (words, _) = varying[4..].as_chunks();
        for word in words {
            sum.add(u64::from_ne_bytes(*word));
        }
        if let Some(stamps) = stamps {
            sum.add(u64::from_ne_bytes(*stamps));
        }
        self.tcp_sum + sum.finish()
    }

    /// Reads a TCP header and the values of its timestamps.
    #[inline(always)]
    fn header(&self, fields: &[u8; tcp::HEADER_LEN], stamps: Option<&[u8; 8]>) -> DataHeader {
        let fields: &Fields = zerocopy::transmute_ref!(fields);
        let timestamps = stamps.map(|stamps| {
            let [value, echo]: &[U32; 2] = zerocopy::transmute_ref!(stamps);
            Timestamps {
                value: value.get(),
                echo: echo.get(),
            }
        });
        DataHeader {
            source_port: self.source_port,
            destination_port: self.destination_port,
            seq: Seq(fields.seq.get()),
            ack: Seq(fields.ack.get()),
            flags: Flags(fields.flags),
            window: fields.window.get(),
            timestamps,
        }
    }

    /// Returns whether a payload is just one FPDU, by its length field.
    #[inline]
    pub(super) fn is_fpdu(&self, payload: &[u8]) -> bool {
        let length = payload.first_chunk::<LENGTH_LEN>();
        let length = length.map(|length| usize::from(u16::from_be_bytes(*length)));
        self.fpdus && length.is_some_and(|length| fpdu_len(length) == payload.len())
    }

    /// Returns whether the headers of a frame are as predicted.
    fn is_like(&self, frame: &[u8]) -> bool {
        let len = self.layout.payload_at();
        if len <= FRONT
            && let Some(front) = frame.first_chunk::<FRONT>()
        {
            return is_alike(front, &self.octets[..FRONT], &self.mask[..FRONT]);
        }
        let mut front = [0; MOST];
        let (Some(room), Some(headers)) = (front.get_mut(..len), frame.get(..len)) else {
            return false;
        };
        room.copy_from_slice(headers);
        is_alike(&front, &self.octets, &self.mask)
    }
}

/// Returns whether `front` equals `octets` in the bits of a mask. All have a whole number of
/// chunks.
#[inline(always)]
pub(super) fn is_alike(front: &[u8], octets: &[u8], mask: &[u8]) -> bool {
    let (front, _) = front.as_chunks::<CHUNK>();
    let (octets, _) = octets.as_chunks::<CHUNK>();
    let (mask, _) = mask.as_chunks::<CHUNK>();
    let mut differing = 0;
    for ((front, octets), mask) in front.iter().zip(octets).zip(mask) {
        let [front, octets, mask] = [front, octets, mask].map(|c| u128::from_ne_bytes(*c));
        differing |= (front & mask) ^ octets;
    }
    differing == 0
}
