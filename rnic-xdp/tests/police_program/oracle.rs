//! What the program must do with a frame, written anew from its description, and random frames.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, TestRunner};
use rnic_manager::PoliceVerdict::{self, *};

use crate::answers::{SYN, answer_to};
use crate::frames::{GATEWAY, OURS, Segment, VLAN, VLANS};
use crate::host::{BROADCAST, CLIENT, LINKS, is_local, owner};
use crate::program::{FREE, with_rig};

/// A segment that was read.
struct Read {
    vlan: u16,
    source: SocketAddr,
    destination: SocketAddr,
    /// The octets from the IP header on, and how many of these the IP header claims.
    packet: usize,
    claimed: usize,
    ip_header: usize,
    tcp_header: Option<usize>,
    /// Whether a service other than the default one is asked for, and the hops left.
    priority: bool,
    hops: u8,
}

fn word(octets: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*octets.get(at)?, *octets.get(at + 1)?]))
}

/// Reads a frame, or says why it cannot be one of TCP.
fn read(frame: &[u8]) -> Result<Read, PoliceVerdict> {
    let mut ethertype = word(frame, 12).ok_or(Truncated)?;
    let (mut at, mut vlan, mut priority) = (14, 0, false);
    if ethertype == 0x8100 {
        let control = word(frame, 14).ok_or(Truncated)?;
        vlan = control & 0xfff;
        priority = control != vlan;
        ethertype = word(frame, 16).ok_or(Truncated)?;
        at = 18;
    }
    let packet = &frame[at..];
    let (source, destination, claimed, ip_header): (IpAddr, IpAddr, _, _) = match ethertype {
        0x0800 => {
            let header: &[u8; 20] = packet.first_chunk().ok_or(Truncated)?;
            let ip_header = usize::from(header[0] & 15) * 4;
            if header[0] >> 4 != 4 || ip_header < 20 {
                return Err(Truncated);
            }
            if u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0 {
                return Err(Fragment);
            }
            if header[9] != 6 {
                return Err(NotTcp);
            }
            let address = |at: usize| {
                Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3])
            };
            let claimed = u16::from_be_bytes([header[2], header[3]]);
            (
                address(12).into(),
                address(16).into(),
                usize::from(claimed),
                ip_header,
            )
        }
        0x86dd => {
            let header: &[u8; 40] = packet.first_chunk().ok_or(Truncated)?;
            match header[6] {
                _ if header[0] >> 4 != 6 => return Err(Truncated),
                6 => {}
                44 => return Err(Fragment),
                _ => return Err(NotTcp),
            }
            let address =
                |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&header[at..at + 16]).unwrap());
            let claimed = 40 + usize::from(u16::from_be_bytes([header[4], header[5]]));
            (address(8).into(), address(24).into(), claimed, 40)
        }
        0 => return Err(Truncated),
        _ => return Err(NotTcp),
    };
    let (class, hops) = match ethertype {
        0x0800 => (packet[1], packet[8]),
        _ => (packet[0] << 4 | packet[1] >> 4, packet[7]),
    };
    let source_port = word(packet, ip_header).ok_or(Truncated)?;
    let destination_port = word(packet, ip_header + 2).ok_or(Truncated)?;
    if ethertype == 0x0800 && ip_header > 20 {
        return Err(Options);
    }
    let tcp_header = packet.get(ip_header + 12);
    Ok(Read {
        vlan,
        source: SocketAddr::new(source, source_port),
        destination: SocketAddr::new(destination, destination_port),
        packet: packet.len(),
        claimed,
        ip_header,
        tcp_header: tcp_header.map(|octet| usize::from(octet >> 4) * 4),
        priority: priority || class & !3 != 0,
        hops,
    })
}

/// Returns what must become of a frame of the client.
fn oracle(frame: &[u8]) -> PoliceVerdict {
    let read = match read(frame) {
        Ok(read) => read,
        Err(verdict) => return verdict,
    };
    let Read {
        vlan,
        source,
        destination,
        ..
    } = read;
    let macs = LINKS
        .iter()
        .find(|(of, _)| *of == vlan)
        .map(|(_, macs)| macs);
    let is_ours = |macs: &[[u8; 6]; 2]| macs.iter().any(|mac| frame[6..12] == *mac);
    let to = destination.ip();
    match read.tcp_header {
        _ if frame[0] & 1 != 0 => Group,
        _ if !macs.is_some_and(is_ours) => SourceMac,
        _ if read.priority => Priority,
        None => Length,
        Some(len) if len < 20 || read.ip_header + len > read.claimed => Length,
        _ if read.claimed > read.packet => Length,
        _ if read.claimed < read.packet && frame.len() > 60 => Length,
        _ if read.packet > FREE.mtu as usize => Mtu,
        _ if read.hops == 0 || is_of_no_host(to) => Destination,
        _ if !is_local(source.ip(), vlan) => Source,
        _ if owner(source, vlan) != Some(CLIENT) => NotLeased,
        _ if is_local(to, vlan) => owner(destination, vlan).map_or(Nobody, |_| ToPort),
        _ if to.to_string() == BROADCAST && vlan == 0 => Destination,
        _ if source.ip().is_loopback() => Loopback,
        _ if frame[..6] != GATEWAY => NextHop,
        _ => ToNic,
    }
}

/// Returns whether an address is one of many hosts or of none.
fn is_of_no_host(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => matches!(address.octets()[0], 0 | 224..),
        IpAddr::V6(address) => {
            address.is_multicast() || address.is_unspecified() || address.to_ipv4_mapped().is_some()
        }
    }
}

fn any_end(is_ipv4: bool) -> impl Strategy<Value = SocketAddr> {
    let four = [
        "10.1.2.3",
        "10.1.2.3",
        "10.1.2.4",
        "10.1.100.3",
        "127.0.0.1",
        "10.9.9.9",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "10.1.2.255",
    ];
    let six = [
        "fd00::1",
        "fd00::1",
        "::1",
        "fd00::99",
        "::",
        "ff02::1",
        "::ffff:10.9.9.9",
    ];
    let addresses = if is_ipv4 { four.to_vec() } else { six.to_vec() };
    let ports = select(vec![4420, 4420, 5000, 7, 8, 9000, 9001, 80, 80, 80]);
    (select(addresses), ports)
        .prop_map(|(address, port)| SocketAddr::new(address.parse().unwrap(), port))
}

/// Segments that are mostly right.
fn any_segment() -> impl Strategy<Value = Segment> {
    let ends = any::<bool>().prop_flat_map(|is_ipv4| (any_end(is_ipv4), any_end(is_ipv4)));
    let macs = (
        select(vec![GATEWAY, GATEWAY, GATEWAY, OURS, [0xff; 6]]),
        select(vec![OURS, OURS, OURS, VLANS, GATEWAY]),
    );
    let vlan = select(vec![
        None,
        None,
        None,
        Some(VLAN),
        Some(VLAN),
        Some(0),
        Some(7),
    ]);
    let sizes = (
        select(vec![0, 0, 0, 0, 1, 10]),
        0usize..=10,
        select(vec![0, 0, 0, 1, 100, 1400, 1460, 3000]),
    );
    let flags = prop_oneof![Just(SYN), Just(SYN), any::<u8>()];
    let all = (ends, macs, vlan, sizes, flags);
    all.prop_map(
        |((source, destination), macs, vlan, sizes, flags)| Segment {
            destination_mac: macs.0,
            source_mac: macs.1,
            vlan,
            source,
            destination,
            ip_options: sizes.0,
            tcp_options: sizes.1,
            flags,
            payload: sizes.2,
        },
    )
}

/// Frames of these, some with octets changed in their headers, cut off, or with octets behind them.
fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let changes = prop::collection::vec((any::<Index>(), any::<u8>()), 0..3);
    let len = prop::option::of(any::<Index>());
    (any_segment(), changes, len, select(vec![0, 0, 0, 6, 1500])).prop_map(
        |(segment, changes, len, padding)| {
            let mut frame = segment.octets();
            let headers = frame.len() - segment.payload;
            for (at, octet) in changes {
                frame[at.index(headers)] = octet;
            }
            if let Some(len) = len {
                // The kernel does not run the program on less than an Ethernet header.
                frame.truncate(14 + len.index(frame.len() - 13));
            }
            frame.resize(frame.len() + padding, 0);
            frame
        },
    )
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn random_frames_agree_with_the_oracle() {
    with_rig(|rig| {
        let mut runner = TestRunner::new(Config {
            cases: 20_000,
            failure_persistence: None,
            ..Config::default()
        });
        let seen = std::cell::RefCell::new(std::collections::HashSet::new());
        let answered = std::cell::Cell::new(0);
        let test = |frame: Vec<u8>| {
            let expected = oracle(&frame);
            rig.expect(&frame, expected);
            seen.borrow_mut().insert(expected);
            let is_answered = expected == Nobody && answer_to(&frame, expected).is_some();
            answered.set(answered.get() + u32::from(is_answered));
            Ok(())
        };
        runner.run(&any_frame(), test).unwrap();
        // All that do not depend on the client's limits or on what is gone.
        assert_eq!(seen.borrow().len(), 17, "{seen:?}");
        assert!(answered.get() > 0, "{answered:?} answers");
    });
}
