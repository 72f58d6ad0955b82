//! VLANs whose tag the device removes: what is sent before the route is known gets the tag again.

use rnic_core::engine::EngineConfig;
use rnic_core::testing::host::Host;
use rnic_core::testing::raw_peer::frame;
use rnic_core::time::Instant;
use rnic_core::wire::checksum::Checksums;
use rnic_core::wire::ethernet::{self, MacAddr};
use rnic_core::wire::packet::{Packet, parse};
use rnic_core::wire::tcp::{Flags, Seq, TcpHeader};

const PORT: u16 = 7174;
const CLOSED: u16 = 7175;
const VLAN: u16 = 9;
const OTHER_VLAN: u16 = 0xfff;

/// Returns a SYN of the peer with this port, in a VLAN if one is stated.
fn syn(host: &Host, from: u16, to: u16, vlan: Option<u16>) -> Vec<u8> {
    let header = TcpHeader {
        source_port: from,
        destination_port: to,
        seq: Seq(7),
        flags: Flags::SYN,
        window: 1000,
        ..TcpHeader::default()
    };
    let source = ([192, 0, 2, 99], from).into();
    let mut octets = frame(source, host.socket(to), &header, &[]);
    octets[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    if let Some(vlan) = vlan {
        let tag = [ethernet::VLAN, vlan].map(u16::to_be_bytes).concat();
        octets.splice(12..12, tag);
    }
    octets
}

/// Lets a host handle a frame. Returns the flags and the VLAN of its answer, which must go back to
/// the sender.
fn answer(host: &mut Host, frame: &[u8]) -> (Flags, Option<u16>) {
    let frames = std::iter::once((frame, Checksums::None));
    let (_, sent) = host.turn_with(Instant::ZERO, frames);
    let [sent] = &sent[..] else {
        panic!("{} answers", sent.len());
    };
    let packet: Packet<'_> = parse(sent, Checksums::None).unwrap();
    assert_eq!(packet.source_mac, MacAddr([2, 0, 0, 0, 0, 1]));
    assert_eq!(packet.destination_mac, MacAddr([2, 0, 0, 0, 0, 2]));
    (packet.segment.header.flags, packet.vlan)
}

/// A host that has room for one half-open connection: further SYNs are answered with cookies.
fn host() -> Host {
    let config = EngineConfig {
        max_half_open: 1,
        ..EngineConfig::default()
    };
    let host = Host::new(0, config, 1);
    host.listen(PORT);
    host
}

#[test]
fn what_lost_its_tag_is_answered_in_the_vlan_of_its_destination() {
    let mut host = host();
    let address = host.socket(0).ip();
    host.set_untagged([(address, VLAN)]);
    let syn_ack = Flags::SYN | Flags::ACK;
    let reset = Flags::RST | Flags::ACK;
    // By a connection, by a cookie, and by nobody.
    for (from, to, flags) in [(1, PORT, syn_ack), (2, PORT, syn_ack), (3, CLOSED, reset)] {
        let untagged = syn(&host, from, to, None);
        assert_eq!(answer(&mut host, &untagged), (flags, Some(VLAN)), "{from}");
    }
    let engine = host.snapshot(Instant::ZERO).engine;
    assert_eq!(engine.syn_cookies_sent, 1);
    // The SYN-ACK is sent again in the same VLAN.
    let again = host.next_timeout().expect("a retransmission");
    let (_, sent) = host.turn_with(again, std::iter::empty());
    let packet = parse(&sent[0], Checksums::None).unwrap();
    assert_eq!(packet.vlan, Some(VLAN));
}

#[test]
fn a_tag_that_is_there_counts() {
    let mut host = host();
    let address = host.socket(0).ip();
    host.set_untagged([(address, VLAN)]);
    for (from, to) in [(1, PORT), (2, PORT), (3, CLOSED)] {
        let tagged = syn(&host, from, to, Some(OTHER_VLAN));
        assert_eq!(answer(&mut host, &tagged).1, Some(OTHER_VLAN), "{from}");
    }
}

#[test]
fn other_addresses_and_devices_that_leave_tags_are_answered_as_they_were_asked() {
    let mut host = host();
    host.set_untagged([([192, 0, 2, 77].into(), VLAN)]);
    let untagged = syn(&host, 1, PORT, None);
    assert_eq!(answer(&mut host, &untagged).1, None);
    let address = host.socket(0).ip();
    host.set_untagged([(address, VLAN)]);
    host.set_untagged([]);
    let untagged = syn(&host, 3, CLOSED, None);
    assert_eq!(answer(&mut host, &untagged).1, None);
}
