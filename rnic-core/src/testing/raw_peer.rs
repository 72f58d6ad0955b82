//! A peer that a test plays itself: it speaks TCP as far as it must, and says whatever the test wants in it.
//!
//! Nothing is lost between it and its host, so it keeps no retransmission state. It is where malformed and hostile
//! streams come from.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::mpa::{frame, marker};
use crate::wire::{
    checksum::{Checksums, sum},
    ddp::{DdpHeader, DdpSegment},
    ethernet::{self, MacAddr},
    mpa::{Fpdu, LENGTH_LEN, StartupFrame, StartupKind},
    packet::{Packet, parse},
    tcp::{Flags, Seq, TcpHeader, TcpOptions},
    template::NetHeader,
};

/// Our initial sequence number, unless a test asks for another.
const ISN: Seq = Seq(0xffff_f000);

/// The shift count of the windows that it offers.
pub const WINDOW_SCALE: u8 = 4;

/// One end of one TCP connection, in the hands of a test.
pub struct RawPeer {
    /// The sequence number of its SYN.
    pub isn: Seq,
    address: SocketAddr,
    host_address: SocketAddr,
    host: usize,
    /// The window field of what it sends, in units of 2^[`WINDOW_SCALE`] octets.
    pub window: u16,
    /// Whether it acknowledges what it receives.
    pub acknowledges: bool,
    /// How much of the host's stream its segments acknowledge at most, if not all of it.
    pub ack_limit: Option<usize>,
    /// The largest segments that it takes.
    pub mss: u16,
    /// Whether FPDUs that it makes carry a CRC.
    pub crc: bool,
    /// Where FPDUs begin in what it sends, if those that it makes are to have markers.
    pub markers_from: Option<u32>,
    /// Everything that the host sent, in order.
    pub received: Vec<u8>,
    /// The host sent FIN.
    pub finished: bool,
    /// The host sent RST.
    pub reset: bool,
    /// Octets of our stream that the host has acknowledged.
    pub acknowledged: u32,
    /// The window that the host offers, in octets.
    pub offered: u32,
    /// Segments that the host sent, with or without data.
    pub segments: usize,
    /// Octets of the largest IP packet that the host sent.
    pub largest_packet: usize,
    /// Its SYN permits SACK.
    pub sack: bool,
    host_scale: u8,
    next: Seq,
    /// Where the octets end that were sent furthest ahead.
    ahead_to: Option<Seq>,
    expected: Option<Seq>,
    read: usize,
    outbox: Vec<Vec<u8>>,
}

impl RawPeer {
    pub(crate) fn new(number: u8, host: usize, host_address: SocketAddr) -> Self {
        let address = Ipv4Addr::new(192, 0, 2, 100 + number);
        let address = SocketAddr::new(address.into(), 50_000 + u16::from(number));
        Self::at(address, host, host_address)
    }

    /// With an address that the test chooses.
    pub(crate) fn at(address: SocketAddr, host: usize, host_address: SocketAddr) -> Self {
        Self {
            isn: ISN,
            address,
            host_address,
            host,
            window: u16::MAX,
            acknowledges: true,
            ack_limit: None,
            mss: 1460,
            sack: false,
            crc: true,
            markers_from: None,
            received: Vec::new(),
            finished: false,
            reset: false,
            acknowledged: 0,
            offered: 0,
            segments: 0,
            largest_packet: 0,
            host_scale: 0,
            next: ISN,
            ahead_to: None,
            expected: None,
            read: 0,
            outbox: Vec::new(),
        }
    }

    /// Where it can be reached.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn host(&self) -> usize {
        self.host
    }

    pub(crate) fn take_frames(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.outbox)
    }

    /// Whether a frame is for it.
    pub(super) fn is_addressed(&self, frame: &[u8]) -> bool {
        parse(frame, Checksums::Unnecessary).is_ok_and(|packet| packet.destination == self.address)
    }

    /// Sends SYN.
    pub fn connect(&mut self) {
        self.segment(self.isn, Flags::SYN, &[]);
        self.next = self.isn + 1;
    }

    /// Sends a SYN that seems to come from somewhere else: whatever answers it goes astray.
    pub fn forge_syn(&mut self, source: SocketAddr) {
        let header = TcpHeader {
            source_port: source.port(),
            destination_port: self.host_address.port(),
            flags: Flags::SYN,
            window: self.window,
            ..TcpHeader::default()
        };
        let forged = frame(source, self.host_address, &header, &[]);
        self.outbox.push(forged);
    }

    /// The next sequence number that it expects of the host.
    pub fn expected(&self) -> Seq {
        self.expected.unwrap_or(Seq(0))
    }

    /// Where the host has its end of the connection.
    pub fn host_address(&self) -> SocketAddr {
        self.host_address
    }

    /// Sends octets as the next of the stream, in one segment.
    pub fn send(&mut self, octets: &[u8]) {
        self.segment(self.next, Flags::ACK | Flags::PSH, octets);
        self.next += octets.len() as u32;
    }

    /// Sends octets in one segment, `ahead` octets beyond the next of the stream, which stays where it is.
    pub fn send_ahead(&mut self, ahead: u32, octets: &[u8]) {
        self.segment(self.next + ahead, Flags::ACK, octets);
        let end = self.next + ahead + octets.len() as u32;
        if self.ahead_to.is_none_or(|other| end.after(other)) {
            self.ahead_to = Some(end);
        }
    }

    /// Octets that were sent out of turn, or never, count as sent.
    pub fn skip(&mut self, octets: u32) {
        self.next += octets;
    }

    /// Sends FIN.
    pub fn close(&mut self) {
        self.segment(self.next, Flags::ACK | Flags::FIN, &[]);
        self.next += 1;
    }

    /// Sends RST.
    pub fn abort(&mut self) {
        self.segment(self.next, Flags::RST | Flags::ACK, &[]);
    }

    /// Sends an ACK with the present [`window`](Self::window).
    pub fn acknowledge(&mut self) {
        let next = match self.ahead_to {
            Some(end) if end.after(self.next) => end,
            _ => self.next,
        };
        self.segment(next, Flags::ACK, &[]);
    }

    /// Sends an ACK for all that was received but the last `octets`.
    pub fn acknowledge_but(&mut self, octets: u32) {
        let expected = self.expected;
        self.expected = expected.map(|expected| expected - octets);
        self.acknowledge();
        self.expected = expected;
    }

    /// Makes the FPDU that comes next, with a CRC if [`crc`](Self::crc) says so, and with markers if
    /// [`markers_from`](Self::markers_from) does.
    pub fn fpdu(&self, ulpdu: &[u8]) -> Vec<u8> {
        let Some(from) = self.markers_from else {
            return fpdu(ulpdu, self.crc);
        };
        let mut octets = vec![0; marker::max_fpdu_len(ulpdu.len())];
        octets[LENGTH_LEN..LENGTH_LEN + ulpdu.len()].copy_from_slice(ulpdu);
        let position = self.next.distance_from(self.isn + 1 + from);
        let len = marker::seal(&mut octets, ulpdu.len(), position.into(), self.crc);
        octets.truncate(len);
        octets
    }

    /// Sends a DDP segment as an FPDU of its own.
    pub fn send_ddp(&mut self, header: DdpHeader, payload: &[u8]) {
        let fpdu = self.fpdu(&ddp(header, payload));
        self.send(&fpdu);
    }

    /// Frames that it has sent and that have not left yet, for a test to change or mix.
    pub fn outbox(&mut self) -> &mut Vec<Vec<u8>> {
        &mut self.outbox
    }

    /// Takes the host's MPA start-up frame, if it has come.
    pub fn take_startup(&mut self) -> Option<(StartupKind, Startup)> {
        let (frame, len) = StartupFrame::parse(&self.received[self.read..]).ok()??;
        let startup = Startup {
            reject: frame.reject,
            revision: frame.revision,
            crc: frame.crc,
            depths: frame.enhanced.map(|data| (data.ird, data.ord)),
            private_data: frame.private_data.to_vec(),
        };
        self.read += len;
        Some((frame.kind, startup))
    }

    /// Takes the next ULPDU that the host sent. Panics if its CRC is not what was agreed on.
    pub fn take_ulpdu(&mut self) -> Option<Vec<u8>> {
        let (received, len) = Fpdu::parse(&self.received[self.read..])?;
        let ulpdu = received.ulpdu.to_vec();
        assert_eq!(
            self.received[self.read..self.read + len],
            fpdu(&ulpdu, self.crc),
            "the FPDU is not sealed as agreed"
        );
        self.read += len;
        Some(ulpdu)
    }

    /// Takes the next DDP segment that the host sent: its header and its payload.
    pub fn take_ddp(&mut self) -> Option<(DdpHeader, Vec<u8>)> {
        let ulpdu = self.take_ulpdu()?;
        let segment = DdpSegment::parse(&ulpdu).expect("the host sends well-formed segments");
        Some((segment.header, segment.payload.to_vec()))
    }

    /// Handles a frame that the host sent.
    pub(crate) fn handle_frame(&mut self, frame: &[u8]) {
        let packet = parse(frame, Checksums::None).expect("the host sends well-formed frames");
        let header = packet.segment.header;
        self.segments += 1;
        self.largest_packet = self.largest_packet.max(frame.len() - ethernet::HEADER_LEN);
        self.reset |= header.flags.rst();
        if header.flags.syn() {
            return self.handle_syn(&packet);
        }
        self.acknowledged = header.ack.distance_from(self.isn + 1);
        self.offered = u32::from(header.window) << self.host_scale;
        if self.expected != Some(header.seq) {
            // An old segment once more: a peer that counts would acknowledge it again.
            if self.acknowledges && packet.segment.sequence_len() > 0 {
                self.acknowledge();
            }
            return;
        }
        let window = usize::from(self.window) << WINDOW_SCALE;
        let taken = packet.segment.payload.len().min(window);
        self.received
            .extend_from_slice(&packet.segment.payload[..taken]);
        let fin = header.flags.fin() && taken == packet.segment.payload.len();
        self.finished |= fin;
        self.expected = Some(header.seq + taken as u32 + u32::from(fin));
        if self.acknowledges && packet.segment.sequence_len() > 0 {
            self.acknowledge();
        }
    }

    fn handle_syn(&mut self, packet: &Packet<'_>) {
        self.expected = Some(packet.segment.header.seq + 1);
        self.host_scale = packet.segment.header.options.window_scale.unwrap_or(0);
        if packet.segment.header.flags.ack() {
            if self.acknowledges {
                self.acknowledge();
            }
        } else {
            // The host connects to us.
            self.host_address = packet.source;
            self.segment(self.isn, Flags::SYN | Flags::ACK, &[]);
            self.next = self.isn + 1;
        }
    }

    /// Octets, and a FIN, that it has received and does not acknowledge.
    fn withheld(&self) -> u32 {
        let octets = self
            .ack_limit
            .map_or(0, |limit| self.received.len() - limit) as u32;
        octets + u32::from(octets > 0 && self.finished)
    }

    fn segment(&mut self, seq: Seq, flags: Flags, payload: &[u8]) {
        let syn = flags.contains(Flags::SYN);
        let options = TcpOptions {
            mss: syn.then_some(self.mss),
            window_scale: syn.then_some(WINDOW_SCALE),
            sack_permitted: syn && self.sack,
            ..TcpOptions::default()
        };
        let header = TcpHeader {
            source_port: self.address.port(),
            destination_port: self.host_address.port(),
            seq,
            ack: self.expected.map_or(Seq(0), |end| end - self.withheld()),
            flags,
            window: self.window,
            options,
            ..TcpHeader::default()
        };
        self.outbox
            .push(frame(self.address, self.host_address, &header, payload));
    }
}

/// An MPA start-up frame, as far as tests look at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Startup {
    /// R.
    pub reject: bool,
    /// The revision.
    pub revision: u8,
    /// C.
    pub crc: bool,
    /// IRD and ORD, if the frame has them.
    pub depths: Option<(u16, u16)>,
    /// The ULP's private data.
    pub private_data: Vec<u8>,
}

/// The octets of a start-up frame.
pub fn startup(frame: &StartupFrame<'_>) -> Vec<u8> {
    let mut octets = vec![0; frame.len()];
    frame.emit(&mut octets);
    octets
}

/// A DDP segment.
pub fn ddp(header: DdpHeader, payload: &[u8]) -> Vec<u8> {
    let mut octets = vec![0; header.len()];
    header.emit(&mut octets);
    octets.extend_from_slice(payload);
    octets
}

/// An FPDU.
pub fn fpdu(ulpdu: &[u8], crc: bool) -> Vec<u8> {
    let mut octets = vec![0; frame::fpdu_len(ulpdu.len())];
    octets[LENGTH_LEN..LENGTH_LEN + ulpdu.len()].copy_from_slice(ulpdu);
    frame::seal(&mut octets, ulpdu.len(), crc);
    octets
}

/// An Ethernet frame with a TCP segment.
pub fn frame(
    source: SocketAddr,
    destination: SocketAddr,
    header: &TcpHeader,
    payload: &[u8],
) -> Vec<u8> {
    let mac = MacAddr([2, 0, 0, 0, 0, 2]);
    let ip = |address: SocketAddr| -> IpAddr { address.ip() };
    let net = NetHeader {
        source_mac: mac,
        destination_mac: mac,
        vlan: None,
        source: ip(source),
        destination: ip(destination),
        hop_limit: 64,
        traffic_class: 0,
    };
    let at = net.len() + header.len();
    let mut frame = vec![0; at + payload.len()];
    frame[at..].copy_from_slice(payload);
    net.write(&mut frame, header, payload.len(), sum(payload));
    frame
}
