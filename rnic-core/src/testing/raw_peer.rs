//! A peer that a test plays itself: it speaks as much TCP as it must, and sends whatever the test
//! wants.
//!
//! Nothing is lost between it and its host, so it has no retransmission. Malformed and hostile
//! streams come from it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::mpa::{frame, marker};
use crate::wire::{
    checksum::{Checksums, sum},
    ddp::{DdpHeader, DdpSegment},
    ethernet::{self, MacAddr},
    mpa::{Enhanced, Fpdu, LENGTH_LEN, StartupFrame, StartupKind},
    packet::{Packet, parse},
    tcp::{Flags, Seq, TcpHeader, TcpOptions},
    template::NetHeader,
};

/// The initial sequence number, unless a test asks for another.
const ISN: Seq = Seq(0xffff_f000);

/// Its window scale.
pub const WINDOW_SCALE: u8 = 4;

/// One end of a TCP connection, driven by a test.
pub struct RawPeer {
    /// The sequence number of its SYN.
    pub isn: Seq,
    address: SocketAddr,
    host_address: SocketAddr,
    host: usize,
    /// The window field of its segments, in units of 2^[`WINDOW_SCALE`] octets.
    pub window: u16,
    /// Whether it acknowledges what it receives.
    pub acknowledges: bool,
    /// The most octets of the host's stream that its segments acknowledge, if limited.
    pub ack_limit: Option<usize>,
    /// The MSS that it offers.
    pub mss: u16,
    /// Whether its FPDUs have a CRC.
    pub crc: bool,
    /// The offset of the first FPDU in its stream, if its FPDUs have markers.
    pub markers_from: Option<u32>,
    /// Everything that the host has sent, in order.
    pub received: Vec<u8>,
    /// The host has sent FIN.
    pub finished: bool,
    /// The host has sent RST.
    pub reset: bool,
    /// Octets of its stream that the host has acknowledged.
    pub acknowledged: u32,
    /// The window that the host offers, in octets.
    pub offered: u32,
    /// Segments that the host has sent, with or without data.
    pub segments: usize,
    /// Octets of the largest IP packet that the host has sent.
    pub largest_packet: usize,
    /// Its SYN permits SACK.
    pub sack: bool,
    host_scale: u8,
    snd_nxt: Seq,
    /// The end of what was sent furthest ahead of order.
    highest_sent: Option<Seq>,
    rcv_nxt: Option<Seq>,
    read: usize,
    outbox: Vec<Vec<u8>>,
}

impl RawPeer {
    pub(crate) fn new(number: u8, host: usize, host_address: SocketAddr) -> Self {
        let address = Ipv4Addr::new(192, 0, 2, 100 + number);
        let address = SocketAddr::new(address.into(), 50_000 + u16::from(number));
        Self::at(address, host, host_address)
    }

    /// Makes a peer with an address that the test chooses.
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
            snd_nxt: ISN,
            highest_sent: None,
            rcv_nxt: None,
            read: 0,
            outbox: Vec::new(),
        }
    }

    /// Returns its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn host(&self) -> usize {
        self.host
    }

    pub(crate) fn take_frames(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.outbox)
    }

    /// Returns whether a frame is addressed to it.
    pub(super) fn is_addressed(&self, frame: &[u8]) -> bool {
        parse(frame, Checksums::Unnecessary).is_ok_and(|packet| packet.destination == self.address)
    }

    /// Sends SYN.
    pub fn connect(&mut self) {
        self.segment(self.isn, Flags::SYN, &[]);
        self.snd_nxt = self.isn + 1;
    }

    /// Sends a SYN with a forged source: what responds to it does not arrive here.
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

    /// Returns the next sequence number that it expects from the host.
    pub fn rcv_nxt(&self) -> Seq {
        self.rcv_nxt.unwrap_or(Seq(0))
    }

    /// Returns the host's end of the connection.
    pub fn host_address(&self) -> SocketAddr {
        self.host_address
    }

    /// Sends the next octets of the stream, in one segment.
    pub fn send(&mut self, octets: &[u8]) {
        self.segment(self.snd_nxt, Flags::ACK | Flags::PSH, octets);
        self.snd_nxt += octets.len() as u32;
    }

    /// Sends octets in one segment, `ahead` octets ahead of order. The next octets of the stream
    /// stay the same.
    pub fn send_ahead(&mut self, ahead: u32, octets: &[u8]) {
        self.segment(self.snd_nxt + ahead, Flags::ACK, octets);
        let end = self.snd_nxt + ahead + octets.len() as u32;
        if self.highest_sent.is_none_or(|other| end.after(other)) {
            self.highest_sent = Some(end);
        }
    }

    /// Counts octets as sent that were sent ahead of order, or never.
    pub fn skip(&mut self, octets: u32) {
        self.snd_nxt += octets;
    }

    /// Sends FIN.
    pub fn close(&mut self) {
        self.segment(self.snd_nxt, Flags::ACK | Flags::FIN, &[]);
        self.snd_nxt += 1;
    }

    /// Sends RST.
    pub fn abort(&mut self) {
        self.segment(self.snd_nxt, Flags::RST | Flags::ACK, &[]);
    }

    /// Sends an ACK with the current [`window`](Self::window).
    pub fn acknowledge(&mut self) {
        let next = match self.highest_sent {
            Some(end) if end.after(self.snd_nxt) => end,
            _ => self.snd_nxt,
        };
        self.segment(next, Flags::ACK, &[]);
    }

    /// Sends an ACK for everything received but the last `octets`.
    pub fn acknowledge_all_but(&mut self, octets: u32) {
        let expected = self.rcv_nxt;
        self.rcv_nxt = expected.map(|expected| expected - octets);
        self.acknowledge();
        self.rcv_nxt = expected;
    }

    /// Makes the next FPDU, with a CRC and markers as [`crc`](Self::crc) and
    /// [`markers_from`](Self::markers_from) say.
    pub fn fpdu(&self, ulpdu: &[u8]) -> Vec<u8> {
        let Some(from) = self.markers_from else {
            return fpdu(ulpdu, self.crc);
        };
        let mut octets = vec![0; marker::max_fpdu_len(ulpdu.len())];
        octets[LENGTH_LEN..LENGTH_LEN + ulpdu.len()].copy_from_slice(ulpdu);
        let position = self.snd_nxt.distance_from(self.isn + 1 + from);
        let len = marker::seal(&mut octets, ulpdu.len(), position.into(), self.crc);
        octets.truncate(len);
        octets
    }

    /// Sends a DDP segment as an FPDU of its own.
    pub fn send_ddp(&mut self, header: DdpHeader, payload: &[u8]) {
        let fpdu = self.fpdu(&ddp(header, payload));
        self.send(&fpdu);
    }

    /// Returns the frames that it has sent and that have not left, for a test to change.
    pub fn outbox(&mut self) -> &mut Vec<Vec<u8>> {
        &mut self.outbox
    }

    /// Removes and returns the host's MPA start-up frame, if it has arrived.
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

    /// Removes and returns the next ULPDU that the host has sent. Panics if its FPDU is not as
    /// negotiated.
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

    /// Removes and returns the next DDP segment that the host has sent: its header and its payload.
    pub fn take_ddp(&mut self) -> Option<(DdpHeader, Vec<u8>)> {
        let ulpdu = self.take_ulpdu()?;
        let segment = DdpSegment::parse(&ulpdu).expect("the host sends well-formed segments");
        Some((segment.header, segment.payload.to_vec()))
    }

    /// Handles a frame from the host.
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
        if self.rcv_nxt != Some(header.seq) {
            // A retransmission: TCP acknowledges it again.
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
        self.rcv_nxt = Some(header.seq + taken as u32 + u32::from(fin));
        if self.acknowledges && packet.segment.sequence_len() > 0 {
            self.acknowledge();
        }
    }

    fn handle_syn(&mut self, packet: &Packet<'_>) {
        self.rcv_nxt = Some(packet.segment.header.seq + 1);
        self.host_scale = packet.segment.header.options.window_scale.unwrap_or(0);
        if packet.segment.header.flags.ack() {
            if self.acknowledges {
                self.acknowledge();
            }
        } else {
            // The host connects to us.
            self.host_address = packet.source;
            self.segment(self.isn, Flags::SYN | Flags::ACK, &[]);
            self.snd_nxt = self.isn + 1;
        }
    }

    /// Counts the octets, and the FIN, that it has received and does not acknowledge.
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
            ack: self.rcv_nxt.map_or(Seq(0), |end| end - self.withheld()),
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
    /// R: the connection is rejected.
    pub reject: bool,
    /// The revision.
    pub revision: u8,
    /// C: CRCs are asked for.
    pub crc: bool,
    /// IRD and ORD, if the frame has them.
    pub depths: Option<(u16, u16)>,
    /// The ULP's private data.
    pub private_data: Vec<u8>,
}

/// Makes the octets of a start-up frame.
pub fn startup(frame: &StartupFrame<'_>) -> Vec<u8> {
    let mut octets = vec![0; frame.len()];
    frame.emit(&mut octets);
    octets
}

/// Makes the octets of an enhanced start-up frame (RFC 6581), with CRCs and without markers and
/// private data.
pub fn enhanced_startup(kind: StartupKind, enhanced: Enhanced) -> Vec<u8> {
    enhanced_startup_with(kind, enhanced, &[])
}

/// Makes the same with private data.
pub fn enhanced_startup_with(
    kind: StartupKind,
    enhanced: Enhanced,
    private_data: &[u8],
) -> Vec<u8> {
    startup(&StartupFrame {
        kind,
        markers: false,
        crc: true,
        reject: false,
        enhanced_bit: true,
        reserved: 0,
        revision: 2,
        enhanced: Some(enhanced),
        private_data,
    })
}

/// Makes a DDP segment.
pub fn ddp(header: DdpHeader, payload: &[u8]) -> Vec<u8> {
    let mut octets = vec![0; header.len()];
    header.emit(&mut octets);
    octets.extend_from_slice(payload);
    octets
}

/// Makes an FPDU.
pub fn fpdu(ulpdu: &[u8], crc: bool) -> Vec<u8> {
    let mut octets = vec![0; frame::fpdu_len(ulpdu.len())];
    octets[LENGTH_LEN..LENGTH_LEN + ulpdu.len()].copy_from_slice(ulpdu);
    frame::seal(&mut octets, ulpdu.len(), crc);
    octets
}

/// Makes an Ethernet frame with a TCP segment.
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
