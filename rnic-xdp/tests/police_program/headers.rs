//! How headers are checked: cut off, in several buffers, and hostile ones.

use rnic_manager::PoliceVerdict::{
    Destination, Fragment, Group, Length, Mtu, NotTcp, Options, Priority, SourceMac, ToNic,
    Truncated,
};

use crate::frames::{OURS, Segment, VLAN, VLANS, allowed, segment};
use crate::program::{FREE, Policy, Rig, with_rig};

/// Returns a frame with some octets changed, counted from the IP header on.
fn changed(segment: &Segment, at: usize, octets: &[u8]) -> Vec<u8> {
    let mut frame = segment.octets();
    let at = segment.ip_at() + at;
    frame[at..at + octets.len()].copy_from_slice(octets);
    frame
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn what_a_client_may_send_goes_to_the_nic() {
    with_rig(|rig| {
        for segment in allowed() {
            rig.expect(&segment.octets(), ToNic);
            // The least that a segment can be, and padding behind it.
            let bare = Segment {
                tcp_options: 0,
                payload: 0,
                ..segment
            };
            let mut frame = bare.octets();
            rig.expect(&frame, ToNic);
            frame.resize(frame.len().max(60), 0);
            rig.expect(&frame, ToNic);
            let full = Segment {
                tcp_options: 10,
                ..segment
            };
            rig.expect(&full.octets(), ToNic);
        }
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn frames_cut_anywhere_are_dropped() {
    with_rig(|rig| {
        for segment in allowed() {
            let frame = segment.octets();
            let is_ipv4 = segment.source.is_ipv4();
            let tcp_at = segment.ip_at() + if is_ipv4 { 20 } else { 40 };
            // The kernel does not run the program on less than an Ethernet header.
            for len in 14..frame.len() {
                let verdict = match len {
                    len if len < tcp_at + 4 => Truncated,
                    _ => Length,
                };
                rig.expect(&frame[..len], verdict);
            }
        }
    });
}

/// The program sees the first buffer of a frame, and any number of octets may lie there.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn headers_beyond_the_first_buffer_are_checked() {
    with_rig(|rig| {
        let jumbo = Policy { mtu: 9000, ..FREE };
        rig.set_client(jumbo);
        for segment in allowed() {
            let segment = Segment {
                payload: 8000,
                ..segment
            };
            let mut frame = segment.octets();
            for linear in (14..100).chain([1000, 3000]) {
                assert_eq!(rig.run(&frame, Some(linear)), ToNic, "{linear}");
            }
            // Another source MAC address.
            frame[11] ^= 1;
            for linear in (14..100).chain([1000, 3000]) {
                assert_eq!(rig.run(&frame, Some(linear)), SourceMac, "{linear}");
            }
        }
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn only_ipv4_without_options_goes_out() {
    with_rig(|rig| {
        let plain = &allowed()[0];
        for words in 0..16u8 {
            let verdict = match words {
                0..5 => Truncated,
                5 => ToNic,
                _ => Options,
            };
            rig.expect(&changed(plain, 0, &[0x40 | words]), verdict);
        }
        for ip_options in 1..=10 {
            let segment = Segment {
                ip_options,
                ..*plain
            };
            rig.expect(&segment.octets(), Options);
        }
        for version in (0..16u8).filter(|version| *version != 4) {
            rig.expect(&changed(plain, 0, &[version << 4 | 5]), Truncated);
        }
        let six = &allowed()[1];
        for version in (0..16u8).filter(|version| *version != 6) {
            rig.expect(&changed(six, 0, &[version << 4]), Truncated);
        }
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn fragments_and_other_protocols_do_not_go_out() {
    with_rig(|rig| {
        let [four, six, _] = &allowed();
        for fragment in [0x2000u16, 0x0001, 0x3fff, 0x1fff, 0x6000] {
            rig.expect(&changed(four, 6, &fragment.to_be_bytes()), Fragment);
        }
        rig.expect(&changed(six, 6, &[44]), Fragment);
        for protocol in (0..=255).filter(|protocol| *protocol != 6) {
            rig.expect(&changed(four, 9, &[protocol]), NotTcp);
            if protocol != 44 {
                rig.expect(&changed(six, 6, &[protocol]), NotTcp);
            }
        }
        // ARP, a provider's tag, a VLAN in a VLAN, a length in place of an EtherType.
        let mut frame = four.octets();
        for ethertype in [[8, 6], [0x88, 0xa8], [0, 46], [0x88, 0x64]] {
            frame[12..14].copy_from_slice(&ethertype);
            rig.expect(&frame, NotTcp);
        }
        let mut frame = allowed()[2].octets();
        frame[16..18].copy_from_slice(&[0x81, 0]);
        rig.expect(&frame, NotTcp);
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn lengths_that_lie_do_not_go_out() {
    with_rig(|rig| {
        for segment in allowed() {
            let is_ipv4 = segment.source.is_ipv4();
            let (at, ip_header) = if is_ipv4 { (2, 20) } else { (4, 40) };
            let tcp_len = 20 + 12 + 100;
            // As the field counts them: with the IPv4 header, without the IPv6 header.
            let counted = if is_ipv4 { 20 } else { 0 };
            for len in [
                0,
                1,
                19,
                20,
                31,
                tcp_len - 100 - 1,
                tcp_len + 1,
                1400,
                0xffff - counted,
            ] {
                let field = (len + counted) as u16;
                let frame = changed(&segment, at, &field.to_be_bytes());
                rig.expect(&frame, Length);
            }
            // What lies behind the packet would leave unseen.
            for (len, verdict) in [
                (tcp_len - 100, Length),
                (tcp_len - 1, Length),
                (tcp_len, ToNic),
            ] {
                let field = (len + counted) as u16;
                rig.expect(&changed(&segment, at, &field.to_be_bytes()), verdict);
            }
            let mut frame = segment.octets();
            frame.push(0);
            rig.expect(&frame, Length);
            // The length of the TCP header.
            for words in 0..16u8 {
                let bare = Segment {
                    tcp_options: 0,
                    payload: 12,
                    ..segment
                };
                let verdict = if (5..=8).contains(&words) {
                    ToNic
                } else {
                    Length
                };
                rig.expect(&changed(&bare, ip_header + 12, &[words << 4]), verdict);
            }
        }
        // Shorter than its own header.
        for len in 0..20u16 {
            rig.expect(&changed(&allowed()[0], 2, &len.to_be_bytes()), Length);
        }
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn packets_over_the_mtu_do_not_go_out() {
    with_rig(|rig| {
        for segment in allowed() {
            let header = if segment.source.is_ipv4() { 52 } else { 72 };
            for (len, verdict) in [(1500, ToNic), (1501, Mtu), (4000, Mtu)] {
                let payload = len - header;
                rig.expect(&Segment { payload, ..segment }.octets(), verdict);
            }
            let small = Policy { mtu: 1280, ..FREE };
            rig.set_client(small);
            for (len, verdict) in [(1280, ToNic), (1281, Mtu)] {
                let payload = len - header;
                rig.expect(&Segment { payload, ..segment }.octets(), verdict);
            }
            rig.set_client(FREE);
        }
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn group_addresses_and_forged_macs_do_not_go_out() {
    with_rig(|rig| {
        for segment in allowed() {
            let mut frame = segment.octets();
            for mac in [[0xff; 6], [0x33, 0x33, 0, 0, 0, 1], [1, 0, 0x5e, 0, 0, 1]] {
                frame[..6].copy_from_slice(&mac);
                rig.expect(&frame, Group);
            }
            // Each bit of the source address counts.
            for bit in 0..48 {
                let mut frame = segment.octets();
                frame[6 + bit / 8] ^= 1 << (bit % 8);
                // The device's own address is this host's in the VLAN too.
                let is_ours = frame[6..12] == OURS;
                rig.expect(&frame, if is_ours { ToNic } else { SourceMac });
            }
            let mut frame = segment.octets();
            frame[6..12].fill(0);
            rig.expect(&frame, SourceMac);
        }
        forged_vlans(rig);
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn other_services_than_the_default_do_not_go_out() {
    with_rig(|rig| {
        let [four, six, tagged] = &allowed();
        for class in 0..=255u8 {
            // ECN is the engine's.
            let verdict = if class < 4 { ToNic } else { Priority };
            rig.expect(&changed(four, 1, &[class]), verdict);
            rig.expect(&changed(tagged, 1, &[class]), verdict);
            let first = [0x60 | class >> 4, class << 4];
            rig.expect(&changed(six, 0, &first), verdict);
        }
        for priority in 1..16 {
            let vlan = Some(VLAN | priority << 12);
            rig.expect(&Segment { vlan, ..*tagged }.octets(), Priority);
        }
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn packets_without_a_hop_left_do_not_go_out() {
    with_rig(|rig| {
        let [four, six, _] = &allowed();
        for (hops, verdict) in [(0, Destination), (1, ToNic), (255, ToNic)] {
            rig.expect(&changed(four, 8, &[hops]), verdict);
            rig.expect(&changed(six, 7, &[hops]), verdict);
        }
    });
}

/// A tag of a VLAN in which this host has no device.
fn forged_vlans(rig: &Rig<'_>) {
    let tagged = allowed()[2];
    for vlan in [1, VLAN + 1, 4095] {
        let vlan = Some(vlan);
        rig.expect(&Segment { vlan, ..tagged }.octets(), SourceMac);
    }
    // The address of the VLAN device is not this host's outside of it.
    let mut frame = segment("10.1.2.3:4420", "10.9.9.9:1").octets();
    frame[6..12].copy_from_slice(&VLANS);
    rig.expect(&frame, SourceMac);
}
