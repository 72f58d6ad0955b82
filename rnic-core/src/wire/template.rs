//! The headers in front of a connection's segments, written once: a segment fills in what is its
//! own.

use core::net::{IpAddr, Ipv6Addr};

use super::checksum::{fold, pseudo_header_v4, pseudo_header_v6, sum};
use super::ethernet::{self, EthernetHeader, MacAddr};
use super::ipv4::{self, Ipv4Header};
use super::ipv6::{self, Ipv6Header};
use super::packet::Packet;
use super::tcp::{self, DataHeader, TcpHeader};

/// Octets of Ethernet and IPv4: what the headers in front of TCP have at least.
const MIN_LEN: usize = ethernet::HEADER_LEN + ipv4::HEADER_LEN;
const MAX_LEN: usize = ethernet::HEADER_LEN + ethernet::VLAN_LEN + ipv6::HEADER_LEN;

/// Link and network header of outgoing frames: the same for every segment of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetHeader {
    /// Our link-layer address.
    pub source_mac: MacAddr,
    /// The next hop's.
    pub destination_mac: MacAddr,
    /// The VLAN, if the link is one.
    pub vlan: Option<u16>,
    /// Our address.
    pub source: IpAddr,
    /// The peer's address, of the same family.
    pub destination: IpAddr,
    /// Time to live.
    pub hop_limit: u8,
    /// Differentiated services and ECN.
    pub traffic_class: u8,
}

impl NetHeader {
    /// Returns the way back to where a packet came from, with the initial TTL that Linux uses.
    pub const fn reply_to(packet: &Packet<'_>) -> Self {
        Self {
            source_mac: packet.destination_mac,
            destination_mac: packet.source_mac,
            vlan: packet.vlan,
            source: packet.destination.ip(),
            destination: packet.source.ip(),
            hop_limit: 64,
            traffic_class: 0,
        }
    }

    /// Returns the number of octets in front of the TCP header.
    pub const fn len(&self) -> usize {
        let link = if self.vlan.is_some() {
            ethernet::HEADER_LEN + ethernet::VLAN_LEN
        } else {
            ethernet::HEADER_LEN
        };
        match (self.source, self.destination) {
            (IpAddr::V4(_), IpAddr::V4(_)) => link + ipv4::HEADER_LEN,
            _ => link + ipv6::HEADER_LEN,
        }
    }

    /// Writes Ethernet, IP and TCP header at the start of `frame`; returns the length of the frame.
    ///
    /// The payload stands right behind already, at `self.len() + header.len()`. `payload_sum` is
    /// its [`sum`]: a retransmission does not have to read it again. Panics if `frame` is too short
    /// for the headers.
    pub fn write(
        &self,
        frame: &mut [u8],
        header: &TcpHeader,
        payload_len: usize,
        payload_sum: u16,
    ) -> usize {
        HeaderTemplate::new(self).write(frame, 0, header, payload_len, payload_sum)
    }
}

/// Ethernet and IP header as they are in front of every segment of a connection, but for lengths
/// and ECN.
#[derive(Clone, Debug)]
pub struct HeaderTemplate {
    /// Behind them is room for TCP's.
    octets: [u8; MAX_LEN + DataHeader::MAX_LEN],
    /// Octets in front of TCP's.
    len: usize,
    /// Where the IP header begins.
    ip_at: usize,
    v6: bool,
    /// Sum of the IPv4 header with a datagram length of zero.
    ip_sum: u16,
    /// Sum of the pseudo-header with a segment length of zero.
    pseudo_sum: u16,
}

impl HeaderTemplate {
    /// Returns what `net` says.
    pub fn new(net: &NetHeader) -> Self {
        let mut octets = [0; MAX_LEN + DataHeader::MAX_LEN];
        let v4 = match (net.source, net.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Some((source, destination)),
            _ => None,
        };
        let link = EthernetHeader {
            destination: net.destination_mac,
            source: net.source_mac,
            vlan: net.vlan,
            ethertype: if v4.is_some() {
                ethernet::IPV4
            } else {
                ethernet::IPV6
            },
        };
        let ip_at = link.emit(&mut octets);
        let ip = &mut octets[ip_at..];
        let (traffic_class, hop_limit) = (net.traffic_class, net.hop_limit);
        let (ip_len, ip_sum, pseudo_sum) = if let Some((source, destination)) = v4 {
            let header = Ipv4Header {
                source,
                destination,
                protocol: tcp::PROTOCOL,
                traffic_class,
                hop_limit,
            };
            let len = header.emit(ip, 0);
            ip[ipv4::LENGTH_AT..][..2].fill(0);
            ip[ipv4::CHECKSUM_AT..][..2].fill(0);
            let pseudo_sum = pseudo_header_v4(source, destination, tcp::PROTOCOL, 0);
            (len, sum(&ip[..len]), pseudo_sum)
        } else {
            let (source, destination) = (as_v6(net.source), as_v6(net.destination));
            let header = Ipv6Header {
                source,
                destination,
                next_header: tcp::PROTOCOL,
                traffic_class,
                hop_limit,
            };
            let pseudo_sum = pseudo_header_v6(source, destination, tcp::PROTOCOL, 0);
            (header.emit(ip, 0), 0, pseudo_sum)
        };
        Self {
            octets,
            len: ip_at + ip_len,
            ip_at,
            v6: v4.is_none(),
            ip_sum,
            pseudo_sum,
        }
    }

    /// Changes the class, in which the bits for ECN are zero.
    pub fn set_traffic_class(&mut self, class: u8) {
        let ip = &mut self.octets[self.ip_at..self.len];
        if self.v6 {
            // It has the lower half of the first octet, and the upper of the second.
            ip[0] = ip[0] & 0xf0 | class >> 4;
            ip[ipv6::TRAFFIC_CLASS_AT] = ip[ipv6::TRAFFIC_CLASS_AT] & 0x0f | class << 4;
        } else {
            ip[ipv4::TRAFFIC_CLASS_AT] = class;
            self.ip_sum = sum(ip);
        }
    }

    /// Returns the number of octets in front of the TCP header.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Writes Ethernet, IP and TCP header at the start of `frame`; returns the length of the frame.
    /// `ecn` is the ECN field of the IP header, of which the template has zero.
    ///
    /// The payload stands right behind already, at `self.len() + header.len()`. `payload_sum` is
    /// its [`sum`]: a retransmission does not have to read it again. Panics if `frame` is too short
    /// for the headers.
    #[inline]
    pub fn write(
        &self,
        frame: &mut [u8],
        ecn: u8,
        header: &TcpHeader,
        payload_len: usize,
        payload_sum: u16,
    ) -> usize {
        let (net, tcp) = frame.split_at_mut(self.len);
        let (header_len, header_sum) = header.emit_summed(tcp);
        let segment_len = header_len + payload_len;
        let sum = self.pseudo_sum(segment_len) + header_sum + u64::from(payload_sum);
        put(tcp, tcp::CHECKSUM_AT, !fold(sum));
        self.write_network(net, ecn, segment_len)
    }

    /// Writes the headers of a data segment that is not ECN-capable.
    #[inline(always)]
    pub fn write_data(
        &self,
        frame: &mut [u8],
        header: &DataHeader,
        payload_len: u16,
        payload_sum: u16,
    ) -> usize {
        let (net, tcp) = frame.split_at_mut(self.len);
        let (header_len, header_sum) = header.emit(tcp);
        let segment_len = header_len + usize::from(payload_len);
        let sum = self.pseudo_sum(segment_len) + header_sum + u64::from(payload_sum);
        put(tcp, tcp::CHECKSUM_AT, !fold(sum));
        self.write_network(net, 0, segment_len)
    }

    /// Writes the headers as [`write`](Self::write) does, with a partial TCP checksum (the sum of
    /// the pseudo-header), which the device completes.
    #[inline]
    pub fn write_partial(
        &self,
        frame: &mut [u8],
        ecn: u8,
        header: &TcpHeader,
        payload_len: usize,
    ) -> usize {
        let (net, tcp) = frame.split_at_mut(self.len);
        let segment_len = header.emit(tcp) + payload_len;
        put(tcp, tcp::CHECKSUM_AT, fold(self.pseudo_sum(segment_len)));
        self.write_network(net, ecn, segment_len)
    }

    /// Returns the sum of the pseudo-header, not folded.
    #[inline]
    fn pseudo_sum(&self, segment_len: usize) -> u64 {
        u64::from(self.pseudo_sum) + u64::from(segment_len as u16)
    }

    /// Writes Ethernet and IP header in front of a segment of so many octets. Returns the length of
    /// the frame.
    #[inline(always)]
    fn write_network(&self, net: &mut [u8], ecn: u8, segment_len: usize) -> usize {
        // Most are no longer than this, and a copy of known length is cheap.
        let (least, rest) = net.split_at_mut(MIN_LEN);
        least.copy_from_slice(&self.octets[..MIN_LEN]);
        if !rest.is_empty() {
            rest.copy_from_slice(&self.octets[MIN_LEN..self.len]);
        }
        if let Some(ip) = net[self.ip_at..].first_chunk_mut() {
            self.finish_network(ip, ecn, segment_len as u16);
        }
        self.len + segment_len
    }

    /// Completes the IP header: here is the front of it.
    #[inline(always)]
    fn finish_network(&self, ip: &mut [u8; ipv4::HEADER_LEN], ecn: u8, segment_len: u16) {
        if self.v6 {
            ip[ipv6::TRAFFIC_CLASS_AT] |= ecn << 4;
            put(ip, ipv6::LENGTH_AT, segment_len);
        } else {
            let total_len = ipv4::HEADER_LEN as u16 + segment_len;
            ip[ipv4::TRAFFIC_CLASS_AT] |= ecn;
            put(ip, ipv4::LENGTH_AT, total_len);
            let total = u64::from(self.ip_sum) + u64::from(total_len) + u64::from(ecn);
            put(ip, ipv4::CHECKSUM_AT, !fold(total));
        }
    }
}

/// The headers in front of segments that are the same but for their place in the stream, their
/// flags and their lengths.
#[derive(Debug)]
pub struct BurstHeaders<'a> {
    /// The template, with the TCP header too except for what differs.
    template: &'a HeaderTemplate,
    /// Octets of all headers.
    len: usize,
    ecn: u8,
    /// Sum of the TCP header and of the pseudo-header, with nothing of what differs.
    sum: u64,
}

impl HeaderTemplate {
    /// Returns the headers of segments that have such a TCP header. `ecn` as for
    /// [`write`](Self::write).
    #[inline]
    pub fn begin_burst(&mut self, ecn: u8, header: &DataHeader) -> BurstHeaders<'_> {
        let (header_len, sum) = header.emit_rest(&mut self.octets[self.len..]);
        BurstHeaders {
            len: self.len + header_len,
            ecn,
            sum: sum + u64::from(self.pseudo_sum),
            template: self,
        }
    }
}

impl BurstHeaders<'_> {
    /// Writes the headers of the next segment, with the sequence number and the flags of `header`,
    /// at the start of `frame`; returns the length of the frame. Otherwise as
    /// [`HeaderTemplate::write`].
    #[inline]
    pub fn write(
        &self,
        frame: &mut [u8],
        header: &DataHeader,
        payload_len: u16,
        payload_sum: u16,
    ) -> usize {
        let own = u64::from(header.seq.0) + u64::from(header.flags.0) + u64::from(payload_sum);
        let checksum = |segment_len| !fold(self.sum + segment_len + own);
        self.write_with(frame, header, payload_len, checksum)
    }

    /// Writes the headers with a partial TCP checksum, as [`HeaderTemplate::write_partial`] does.
    #[inline]
    pub fn write_partial(&self, frame: &mut [u8], header: &DataHeader, payload_len: u16) -> usize {
        let pseudo_sum = u64::from(self.template.pseudo_sum);
        let checksum = |segment_len| fold(pseudo_sum + segment_len);
        self.write_with(frame, header, payload_len, checksum)
    }

    /// Writes the headers; `checksum` computes the checksum from the length of the segment.
    #[inline]
    fn write_with(
        &self,
        frame: &mut [u8],
        header: &DataHeader,
        payload_len: u16,
        checksum: impl Fn(u64) -> u16,
    ) -> usize {
        let template = self.template;
        let headers = &mut frame[..self.len];
        copy_headers(&template.octets[..self.len], headers);
        let (net, tcp) = headers.split_at_mut(template.len);
        let segment_len = tcp.len() as u16 + payload_len;
        if let Some(ip) = net[template.ip_at..].first_chunk_mut() {
            template.finish_network(ip, self.ecn, segment_len);
        }
        if let Some(tcp) = tcp.first_chunk_mut::<{ tcp::HEADER_LEN }>() {
            tcp[tcp::SEQ_AT..][..4].copy_from_slice(&header.seq.0.to_be_bytes());
            tcp[tcp::FLAGS_AT] = header.flags.0;
            put(tcp, tcp::CHECKSUM_AT, checksum(segment_len.into()));
        }
        self.len + usize::from(payload_len)
    }
}

/// Copies as many octets as headers with TCP have. A copy of known length is cheap: for most these
/// two are enough.
#[inline]
fn copy_headers(from: &[u8], to: &mut [u8]) {
    const FRONT: usize = MIN_LEN + tcp::HEADER_LEN;
    const END: usize = 16;
    if let (Some(from), Some(to)) = (from.first_chunk::<FRONT>(), to.first_chunk_mut()) {
        *to = *from;
    }
    if let (Some(from), Some(to)) = (from.last_chunk::<END>(), to.last_chunk_mut()) {
        *to = *from;
    }
    if from.len() > FRONT + END {
        to.copy_from_slice(from);
    }
}

/// Writes a word in network order.
#[inline]
fn put(octets: &mut [u8], at: usize, word: u16) {
    octets[at..at + 2].copy_from_slice(&word.to_be_bytes());
}

/// Returns the address for an IPv6 header; an IPv4 one is mapped (RFC 4291 section 2.5.5.2).
fn as_v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}
