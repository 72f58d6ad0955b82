//! TCP checksums that the engine leaves to the device, as for a NIC with tx-checksum, or to the
//! kernel.
//!
//! A veth does not offer it. But where frames are copied, the kernel accepts the metadata for any
//! device: it makes a packet with a partial checksum, and completes it if the device has no such
//! offload (`ethtool -K tx off`).

mod common;
#[path = "common/kernel_tcp.rs"]
mod kernel_tcp;

use std::fs;

use common::{frame, open, open_net, open_with, pair, receive};
use kernel_tcp::{device, write_to_kernel};
use rnic_core::engine::Net;
use rnic_core::memory::frames::TxFrames;
use rnic_core::wire::{
    error::PacketError,
    packet::{Checksums, parse},
};
use rnic_verbs::DeviceConfig;
use rnic_xdp::testing::{Namespace, disable_offloads};
use rnic_xdp::{InterfaceConfig, TxChecksum, TxOffload, XdpInterface, ZeroCopyChoice};

/// Where the TCP header of [`frame`] begins.
const TCP_AT: usize = 34;

fn config(netdev: &str, tx_checksum: TxChecksum) -> InterfaceConfig {
    InterfaceConfig {
        tx_checksum,
        ..InterfaceConfig::new(netdev)
    }
}

/// Returns the number of segments with a wrong checksum that the kernel's TCP has received.
fn checksum_errors(namespace: &Namespace) -> u64 {
    let text = namespace.run(|| fs::read_to_string("/proc/thread-self/net/snmp").unwrap());
    let mut lines = text.lines().filter(|line| line.starts_with("Tcp:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut pairs = names.split_whitespace().zip(values.split_whitespace());
    let (_, value) = pairs.find(|(name, _)| *name == "InCsumErrors").unwrap();
    value.parse().unwrap()
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn the_kernels_tcp_takes_what_the_device_completed() {
    let (east, west) = pair("csum", 1);
    // Otherwise the packet arrives with its partial checksum, which the receiver does not verify.
    disable_offloads(&east, "east").unwrap();
    disable_offloads(&west, "west").unwrap();
    for completer in [TxChecksum::Device, TxChecksum::Kernel] {
        let mut config = DeviceConfig::new("east");
        config.interface.tx_checksum = completer;
        for address in ["10.77.0.2:4420", "[fd77::2]:4421"] {
            let device = device(&east, &config);
            let sent = write_to_kernel(&device, &east, &west, address);
            assert_eq!(checksum_errors(&west), 0, "{completer:?} {address}");
            assert_eq!(sent.timeouts, 0, "{completer:?} {address}");
        }
    }
}

/// Sends a frame with a partial checksum.
fn send_partial(interface: &mut XdpInterface, octets: &[u8], tcp_at: usize) {
    let id = interface.tx.allocate().unwrap();
    interface.tx.bytes_mut(id)[..octets.len()].copy_from_slice(octets);
    interface.tx.transmit_partial(id, octets.len(), tcp_at);
    interface.tx.release(id);
    interface.tx.kick();
}

/// Returns a frame as [`TxFrames::transmit_partial`] needs it: with a right IP header, and the sum
/// of the pseudo-header.
fn partial(port: u16, payload: usize) -> Vec<u8> {
    let mut octets = frame(port, payload);
    let sum = rnic_core::wire::checksum::sum(&octets[14..TCP_AT]);
    octets[24..26].copy_from_slice(&(!sum).to_be_bytes());
    let addresses = rnic_core::wire::checksum::sum(&octets[26..TCP_AT]);
    let rest = 6 + (octets.len() - TCP_AT) as u16;
    let pseudo = rnic_core::wire::checksum::combine(addresses, rest);
    octets[TCP_AT + 16..][..2].copy_from_slice(&pseudo.to_be_bytes());
    octets
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn the_kernel_completes_checksums_of_each_frame() {
    let (east, west) = pair("swsum", 1);
    let mut one = open_with(&east, &config("east", TxChecksum::Kernel)).unwrap();
    assert_eq!(one.report().tx_checksum, TxOffload::On);
    assert!(one.tx.completes_checksums());
    let (mut other, net) = open_net(&west, InterfaceConfig::new("west"));
    let (local, _lease) = west
        .run(|| net.listen("10.77.0.2:4420".parse().unwrap()))
        .unwrap();
    // Many more than the interface has, alternating with frames that need no checksum.
    for round in 0..6000 {
        let octets = partial(local.port(), round % 1461);
        send_partial(&mut one, &octets, TCP_AT);
        let found = receive(&mut other, 1).remove(0);
        parse(&found, Checksums::None).unwrap();
        assert_eq!(found[TCP_AT + 18..], octets[TCP_AT + 18..]);
        let plain = frame(local.port(), round % 7);
        common::send(&mut one, &plain);
        one.tx.kick();
        assert_eq!(receive(&mut other, 1), [plain]);
    }
    // A checksum in the wrong place is not valid.
    send_partial(&mut one, &partial(local.port(), 100), TCP_AT + 2);
    let found = receive(&mut other, 1).remove(0);
    let wrong = parse(&found, Checksums::None);
    assert_eq!(wrong.unwrap_err(), PacketError::Checksum("TCP"));
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_veth_does_not_complete_checksums_by_default() {
    let (east, west) = pair("nosum", 1);
    let interface = open(&east, "east").unwrap();
    assert_eq!(interface.report().tx_checksum, TxOffload::Off);
    assert!(!interface.tx.completes_checksums());
    drop(interface);
    // Frames of several chunks have no room for metadata.
    for (namespace, netdev) in [(&east, "east"), (&west, "west")] {
        let command = format!("link set dev {netdev} mtu 9000");
        namespace.ip(&command).unwrap();
    }
    let error = open_with(&east, &config("east", TxChecksum::Device)).err();
    let text = error.unwrap().to_string();
    assert!(
        text.contains("east") && text.contains("multi_buffer"),
        "{text}"
    );
    let in_one_chunk = InterfaceConfig {
        multi_buffer: false,
        ..config("east", TxChecksum::Device)
    };
    let interface = open_with(&east, &in_one_chunk).unwrap();
    assert_eq!(interface.report().tx_checksum, TxOffload::On);
}

#[test]
fn the_kernel_completes_nothing_where_nothing_is_copied() {
    let config = InterfaceConfig {
        zero_copy: ZeroCopyChoice::Require,
        ..config("east", TxChecksum::Kernel)
    };
    let error = XdpInterface::open(&config).err().unwrap();
    assert!(
        error.to_string().contains("tx_checksum = Kernel"),
        "{error}"
    );
}
