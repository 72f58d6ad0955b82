//! Two joined namespaces, and interfaces in them.
#![allow(dead_code)] // each test takes what it needs

use std::thread::sleep;
use std::time::{Duration, Instant};

use rnic_core::memory::frames::TxFrames;
use rnic_xdp::testing::{Namespace, VethEnd, veth_pair};
use rnic_xdp::{InterfaceConfig, OpenError, XdpInterface, XdpNet};

pub(crate) const SOON: Duration = Duration::from_secs(20);

pub(crate) fn pair(name: &str, queues: u32) -> (Namespace, Namespace) {
    let (one, other) = (Namespace::new(name).unwrap(), Namespace::new(name).unwrap());
    let end = |namespace, name, addresses| VethEnd {
        namespace,
        name,
        addresses,
    };
    veth_pair(
        end(&one, "east", "10.77.0.1/24 fd77::1/64"),
        end(&other, "west", "10.77.0.2/24 fd77::2/64"),
        queues,
    )
    .unwrap();
    one.ip("link set dev east address 02:00:00:00:00:01")
        .unwrap();
    other
        .ip("link set dev west address 02:00:00:00:00:02")
        .unwrap();
    (one, other)
}

pub(crate) fn open(namespace: &Namespace, netdev: &str) -> Result<XdpInterface, OpenError> {
    open_with(namespace, &InterfaceConfig::new(netdev))
}

/// Opens an interface with its address services.
pub(crate) fn open_net(namespace: &Namespace, config: InterfaceConfig) -> (XdpInterface, XdpNet) {
    namespace.run(|| {
        let interface = XdpInterface::open(&config).unwrap();
        let net = XdpNet::new(&interface).unwrap();
        (interface, net)
    })
}

pub(crate) fn open_with(
    namespace: &Namespace,
    config: &InterfaceConfig,
) -> Result<XdpInterface, OpenError> {
    namespace.run(|| XdpInterface::open(config))
}

pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !condition() {
        assert!(Instant::now() < deadline, "{what} does not happen");
        sleep(Duration::from_millis(1));
    }
}

/// Returns an Ethernet frame from east to west, with a TCP segment for 10.77.0.2:`port`. Its
/// checksums are zero, and its payload counts up.
pub(crate) fn frame(port: u16, payload: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    let total = (40 + payload) as u16;
    frame.extend([0x45, 0]);
    frame.extend(total.to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2]);
    frame.extend(40000u16.to_be_bytes());
    frame.extend(port.to_be_bytes());
    frame.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    frame.extend((0..payload).map(|at| at as u8));
    frame
}

/// Exchanges the addresses of a [`frame`], so that it goes from west to east.
pub(crate) fn turn_round(frame: &mut [u8]) {
    let (destination, source) = frame[..12].split_at_mut(6);
    destination.swap_with_slice(source);
    let (source, destination) = frame[26..34].split_at_mut(4);
    source.swap_with_slice(destination);
}

pub(crate) fn send(interface: &mut XdpInterface, octets: &[u8]) {
    let id = interface.tx.allocate().unwrap();
    interface.tx.bytes_mut(id)[..octets.len()].copy_from_slice(octets);
    eventually("room to transmit", || {
        if !interface.tx.can_transmit() {
            interface.tx.kick();
        }
        interface.tx.can_transmit()
    });
    interface.tx.transmit(id, octets.len());
    assert!(interface.tx.busy(id));
    interface.tx.release(id);
}

/// Receives `count` frames.
pub(crate) fn receive(interface: &mut XdpInterface, count: usize) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    eventually("frames arrive", || {
        for queue in interface.rx.queues_mut() {
            queue.receive();
            frames.extend(queue.frames().map(|(frame, _)| frame.as_ref().to_vec()));
            // After they went back to the device there are none.
            queue.refill();
            assert_eq!(queue.frames().count(), 0);
        }
        frames.len() >= count
    });
    frames
}
