//! What clients send protected: ESP of their own associations, and nothing else from leases that are
//! for what is protected.

use libbpf_rs::{MapCore, MapFlags};
use rnic_manager::PoliceVerdict::{
    self, Destination, Group, Length, Mtu, NextHop, Nobody, NotSa, NotTcp, Priority, Rate, Source,
    SourceMac, ToNic, ToPort, Unprotected,
};

use crate::frames::{OURS, VLAN, VLANS, segment};
use crate::host::{CLIENT, OTHER};
use crate::program::{FREE, Policy, Rig, with_esp_rig, with_rig};

const PROTECTED: u32 = 1 << 31;
const SPI: u32 = 0x0102_0304;

/// The key of an association in the map: receiver, SPI, family.
fn key(receiver: &str, spi: u32) -> Vec<u8> {
    let (address, family) = crate::program::octets(receiver.parse().unwrap());
    let family = u32::from(family).to_ne_bytes();
    [&address[..], &spi.to_be_bytes(), &family].concat()
}

/// Gives an association to a client.
fn give(rig: &Rig<'_>, client: u32, ends: (&str, &str), spi: u32) {
    give_in_udp(rig, client, ends, spi, 0);
}

/// Gives one to a client, whose packets are in UDP: between the port in the upper half of a word and
/// that in the lower one. They are not if that is 0.
fn give_in_udp(rig: &Rig<'_>, client: u32, (sender, receiver): (&str, &str), spi: u32, udp: u32) {
    let (address, _) = crate::program::octets(sender.parse().unwrap());
    let words = [client, 0].map(u32::to_ne_bytes).concat();
    let value = [&words[..], &address, &udp.to_ne_bytes(), &[0; 20]].concat();
    let map = &rig.skeleton.maps.police_sas;
    let given = map.update(&key(receiver, spi), &value, MapFlags::ANY);
    given.unwrap();
}

/// Returns what was counted of an association: packets and octets.
fn counted(rig: &Rig<'_>, receiver: &str) -> [u64; 2] {
    let map = &rig.skeleton.maps.police_sas;
    let value = map.lookup(&key(receiver, SPI), MapFlags::ANY);
    let value = value.unwrap().unwrap();
    [32, 40].map(|at| u64::from_ne_bytes(value[at..at + 8].try_into().unwrap()))
}

/// Makes a frame of ESP: that of a segment, with another protocol and an SPI in the place of the
/// ports.
fn esp(source: &str, destination: &str, spi: u32) -> Vec<u8> {
    let made = segment(&format!("{source}:1"), &format!("{destination}:1"));
    let mut frame = made.octets();
    let (protocol, header) = match source.starts_with('[') {
        true => (20, 54),
        false => (23, 34),
    };
    frame[protocol] = 50;
    frame[header..header + 4].copy_from_slice(&spi.to_be_bytes());
    frame
}

const FROM: &str = "10.1.2.3";
const TO: &str = "10.9.9.9";

fn own() -> Vec<u8> {
    esp(FROM, TO, SPI)
}

/// Returns a frame with some octets changed.
fn with(at: usize, octets: &[u8]) -> Vec<u8> {
    let mut frame = own();
    frame[at..at + octets.len()].copy_from_slice(octets);
    frame
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_client_sends_with_its_own_associations_alone() {
    with_esp_rig(|rig| {
        rig.expect(&own(), NotSa);
        give(rig, OTHER, (FROM, TO), SPI);
        rig.expect(&own(), NotSa);
        give(rig, CLIENT, (FROM, TO), SPI);
        rig.expect(&own(), ToNic);
        assert_eq!(counted(rig, TO), [1, own().len() as u64]);
        // Another SPI, another receiver, another sender.
        for (from, to, spi) in [
            (FROM, TO, SPI + 1),
            (FROM, "10.9.9.8", SPI),
            ("10.1.2.4", TO, SPI),
        ] {
            rig.expect(&esp(from, to, spi), NotSa);
        }
        let (from, to) = ("[fd00::1]", "[fd00::99]");
        rig.expect(&esp(from, to, SPI), NotSa);
        give(rig, CLIENT, ("fd00::1", "fd00::99"), SPI);
        rig.expect(&esp(from, to, SPI), ToNic);
        // Whoever has none may send none.
        rig.skeleton.maps.police_sas.delete(&key(TO, SPI)).unwrap();
        rig.expect(&own(), NotSa);
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn frames_of_esp_are_as_right_as_others() {
    with_esp_rig(|rig| {
        give(rig, CLIENT, (FROM, TO), SPI);
        let len = own().len();
        let total = |octets: usize| with(16, &(octets as u16).to_be_bytes());
        for (frame, verdict) in [
            (with(0, &[0xff; 6]), Group),
            (with(0, &[2, 0, 0, 0, 0, 8]), NextHop),
            (with(6, &[2, 0, 0, 0, 0, 7]), SourceMac),
            (with(15, &[0x20]), Priority),
            (with(15, &[3]), ToNic),
            (total(27), Length),
            (total(len - 13), Length),
            (total(len - 15), Length),
            (with(22, &[0]), Destination),
            // AH, and what is cut into pieces.
            (with(23, &[51]), NotTcp),
            (own()[..33].to_vec(), PoliceVerdict::Truncated),
        ] {
            rig.expect(&frame, verdict);
        }
        for fragment in [[0x20, 0], [0, 1]] {
            rig.expect(&with(20, &fragment), PoliceVerdict::Fragment);
        }
        // What is in several buffers is read too.
        for linear in [14, 20, 34, 36, 42] {
            assert_eq!(rig.run(&own(), Some(linear)), ToNic, "{linear}");
        }
        for (from, to) in [
            // Not this host's, or many hosts', or this host's.
            ("10.9.9.1", TO),
            ("10.1.100.3", TO),
            (FROM, "224.0.0.1"),
            (FROM, "10.1.2.255"),
            (FROM, "10.1.2.4"),
            (FROM, "127.0.0.1"),
            ("127.0.0.1", TO),
        ] {
            give(rig, CLIENT, (from, to), SPI);
            let is_from = from != FROM;
            let verdict = if is_from { Source } else { Destination };
            rig.expect(&esp(from, to, SPI), verdict);
        }
        give(rig, CLIENT, (FROM, TO), SPI);
        let mtu = len as u32 - 14;
        rig.set_client(Policy { mtu, ..FREE });
        rig.expect(&own(), ToNic);
        rig.set_client(Policy {
            mtu: mtu - 1,
            ..FREE
        });
        rig.expect(&own(), Mtu);
        let before = counted(rig, TO);
        rig.set_client(Policy {
            rate: 1,
            burst: 1,
            fill_time: 1_000_000_000,
            ..FREE
        });
        rig.expect(&own(), Rate);
        // What was dropped does not count.
        assert_eq!(counted(rig, TO), before);
    });
}

/// Makes a frame of ESP in UDP, from port 4500 to 6000.
fn in_udp(source: &str, destination: &str, spi: u32) -> Vec<u8> {
    let mut frame = esp(source, destination, spi);
    let (protocol, header) = match source.starts_with('[') {
        true => (20, 54),
        false => (23, 34),
    };
    frame[protocol] = 17;
    let len = (frame.len() - header) as u16;
    for (at, field) in [4500, 6000, len, 0].into_iter().enumerate() {
        let at = header + 2 * at;
        frame[at..at + 2].copy_from_slice(&field.to_be_bytes());
    }
    frame[header + 8..header + 12].copy_from_slice(&spi.to_be_bytes());
    frame
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn associations_in_udp_have_their_ports_alone() {
    const PORTS: u32 = 4500 << 16 | 6000;
    with_esp_rig(|rig| {
        for (from, to, header) in [(FROM, TO, 34), ("[fd00::1]", "[fd00::99]", 54)] {
            let [sender, receiver] = [from, to].map(|end| end.trim_matches(['[', ']']));
            let ends = (sender, receiver);
            let frame = in_udp(from, to, SPI);
            let expect = |verdict| rig.expect(&frame, verdict);
            // As any other datagram.
            expect(NotTcp);
            give(rig, CLIENT, ends, SPI);
            expect(NotTcp);
            give_in_udp(rig, OTHER, ends, SPI, PORTS);
            expect(NotTcp);
            for ports in [PORTS + 1, PORTS + (1 << 16), 6000, 6000 << 16 | 4500] {
                give_in_udp(rig, CLIENT, ends, SPI, ports);
                expect(NotTcp);
            }
            give_in_udp(rig, CLIENT, ends, SPI, PORTS);
            expect(ToNic);
            assert_eq!(counted(rig, receiver), [1, frame.len() as u64]);
            for linear in [header, header + 2, header + 8, header + 10] {
                assert_eq!(rig.run(&frame, Some(linear)), ToNic, "{linear}");
            }
            // With the same SPI in ESP, to the key managers, and with another length.
            rig.expect(&esp(from, to, SPI), NotSa);
            rig.expect(&in_udp(from, to, 0), NotTcp);
            rig.expect(&in_udp(from, to, SPI + 1), NotTcp);
            let mut other = frame.clone();
            other[header + 5] ^= 1;
            rig.expect(&other, NotTcp);
            other = frame.clone();
            other[0..6].copy_from_slice(&[2, 0, 0, 0, 0, 8]);
            rig.expect(&other, NextHop);
        }
        // Port 0 is none.
        give(rig, CLIENT, (FROM, TO), SPI);
        let mut frame = in_udp(FROM, TO, SPI);
        frame[34..38].fill(0);
        rig.expect(&frame, NotTcp);
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn associations_of_a_vlan_go_out_there() {
    with_esp_rig(|rig| {
        let (from, to) = ("10.1.100.3", "10.1.100.9");
        give(rig, CLIENT, (from, to), SPI);
        let mut frame = esp(from, to, SPI);
        rig.expect(&frame, Source);
        frame[6..12].copy_from_slice(&VLANS);
        let tag = [&[0x81, 0][..], &VLAN.to_be_bytes()].concat();
        frame.splice(12..12, tag);
        rig.expect(&frame, ToNic);
        frame[6..12].copy_from_slice(&OURS);
        rig.expect(&frame, ToNic);
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn nothing_unprotected_leaves_a_protected_lease() {
    with_esp_rig(|rig| {
        let frame = segment("10.1.2.3:7471", "10.9.9.9:50000").octets();
        rig.lease(CLIENT, "10.1.2.3:7471", 0, None);
        rig.expect(&frame, ToNic);
        rig.lease(CLIENT | PROTECTED, "10.1.2.3:7471", 0, None);
        rig.expect(&frame, Unprotected);
        // Not to other clients of this host either, and nothing of them comes in.
        let inside = segment("10.1.2.3:7471", "10.1.2.3:5000").octets();
        rig.expect(&inside, Unprotected);
        let inside = |to: &str| segment("10.1.2.3:4420", to).octets();
        rig.expect(&inside("10.1.2.3:5000"), ToPort);
        rig.lease(OTHER | PROTECTED, "10.1.2.3:5000", 0, None);
        rig.expect(&inside("10.1.2.3:5000"), Nobody);
        // What another one has is not leased at all.
        let others = segment("10.1.2.3:5000", "10.9.9.9:50000").octets();
        rig.expect(&others, PoliceVerdict::NotLeased);
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn without_associations_esp_is_another_protocol() {
    with_rig(|rig| {
        give(rig, CLIENT, (FROM, TO), SPI);
        rig.expect(&own(), NotTcp);
    });
}
