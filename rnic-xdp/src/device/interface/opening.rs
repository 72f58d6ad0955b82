//! Opening the queues of a device, one by one.

use std::sync::{Arc, Weak};

use super::config::{InterfaceConfig, ZeroCopyChoice};
use super::rx::RxRing;
use super::shape::PortShape;
use super::sides::sides;
use super::socket::{Rings, allow_in_flight};
use super::socket_spec::{Completer, SocketSpec};
use super::statistics::Counted;
use super::tx::TxSide;
use super::umem::{FrameLayout, Umem};
use super::zero_copy::ZeroCopy;
use crate::device::error::OpenError;
use crate::device::steering::Steering;
use crate::device::tx_checksum::{TxChecksum, TxOffload};

/// Queues of a share.
pub(super) struct Opened {
    pub(super) rx: Vec<RxRing>,
    pub(super) tx: Option<TxSide>,
    /// The first one sends too.
    pub(super) sends: bool,
    pub(super) zero_copy: ZeroCopy,
    pub(super) huge_pages: bool,
    /// Why checksums are not offloaded, if they were to be.
    pub(super) without_offload: Option<String>,
    /// The counters of each of its queues.
    pub(super) counted: Vec<Weak<Counted>>,
}

impl Default for Opened {
    fn default() -> Self {
        Self {
            rx: Vec::new(),
            tx: None,
            sends: true,
            zero_copy: ZeroCopy::On,
            huge_pages: true,
            without_offload: None,
            counted: Vec::new(),
        }
    }
}

impl Opened {
    /// Continues without checksum offload. Fails if the configuration demands it.
    fn do_without_offload(
        &mut self,
        config: &InterfaceConfig,
        why: String,
    ) -> Result<(), OpenError> {
        if config.tx_checksum != TxChecksum::Auto {
            return Err(OpenError::NoTxChecksum {
                netdev: config.netdev.clone(),
                choice: config.tx_checksum,
                reason: why,
            });
        }
        self.without_offload = Some(why);
        Ok(())
    }

    /// Opens a queue.
    pub(super) fn add_queue(
        &mut self,
        config: &InterfaceConfig,
        steering: &Steering,
        (layout, zero_copy): (FrameLayout, &ZeroCopy),
        completer: Option<Completer>,
        (queue, worker): (u32, usize),
    ) -> Result<(), OpenError> {
        let sends = self.sends && self.tx.is_none();
        let mut completer = completer.filter(|_| sends);
        if completer.is_some() && layout.chunks > 1 {
            self.do_without_offload(config, ROOM_IN_ONE_CHUNK.into())?;
            completer = None;
        }
        let shape = PortShape::new(config, layout, sends);
        let wanted = SocketSpec {
            netdev: &config.netdev,
            queue,
            zero_copy: zero_copy.clone(),
            must_not_copy: config.zero_copy == ZeroCopyChoice::Require,
            multi_buffer: layout.chunks > 1,
            rx_ring: shape.rx_ring,
            tx_ring: shape.tx_ring,
            rings: shape.rings(),
            chunk: layout.chunk,
            completer,
        };
        let chunks = shape.rx_chunks + shape.tx_chunks;
        let (umem, rings, refusal) = open_queue(layout, chunks, config.huge_pages, wanted)?;
        if let Some(why) = refusal {
            self.do_without_offload(config, why)?;
        }
        self.huge_pages &= umem.is_huge();
        if rings.zero_copy != ZeroCopy::On && self.zero_copy == ZeroCopy::On {
            self.zero_copy = rings.zero_copy.clone();
        }
        allow_in_flight(rings.fd(), umem.area().1);
        steering.add_socket(queue, &rings.fd())?;
        let (rx, tx, counted) = sides(umem, rings, &shape, (queue, worker))?;
        self.counted.push(Arc::downgrade(&counted));
        self.rx.push(rx);
        if sends {
            self.tx = Some(tx);
        }
        Ok(())
    }
}

/// Why the checksums of frames of several chunks cannot be offloaded.
const ROOM_IN_ONE_CHUNK: &str = "frames of several chunks, which the MTU needs, have no room for what would ask for it; \
                                 see multi_buffer";

/// Opens a UMEM and a socket on it. Also returns why checksums are not offloaded, if they were to
/// be.
fn open_queue(
    layout: FrameLayout,
    chunks: u32,
    huge_pages: bool,
    wanted: SocketSpec<'_>,
) -> Result<(Umem, Rings, Option<String>), OpenError> {
    let mut refusal = None;
    if wanted.completer.is_some() {
        let umem = Umem::unregistered(layout, chunks, huge_pages);
        let opened = umem.and_then(|umem| Rings::open(&umem, &wanted).map(|rings| (umem, rings)));
        match opened {
            Ok((umem, rings)) => return Ok((umem, rings, None)),
            Err(error) if error.is_unsupported() => {
                refusal = Some(format!("{error}; it needs Linux 6.11 or later"));
            }
            Err(error) => return Err(error),
        }
    }
    let wanted = SocketSpec {
        completer: None,
        ..wanted
    };
    let umem = Umem::new(layout, chunks, wanted.rings, huge_pages)?;
    let rings = Rings::open(&umem, &wanted)?;
    Ok((umem, rings, refusal))
}

/// Returns whether these shares offload checksums.
pub(super) fn tx_offload(completer: Option<Completer>, opened: &[Opened]) -> TxOffload {
    let refusal = opened
        .iter()
        .find_map(|share| share.without_offload.clone());
    match (completer, refusal) {
        (None, _) => TxOffload::Off,
        (Some(_), None) => TxOffload::On,
        (Some(_), Some(why)) => TxOffload::Refused(why),
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::super::XdpInterface;
    use super::super::umem::UmemRings;
    use super::*;
    use crate::device::netlink::{RouteSocket, link_by_name};
    use crate::testing::{Namespace, VethEnd, veth_pair};

    fn pair() -> (Namespace, Namespace) {
        let (one, other) = (Namespace::new("op").unwrap(), Namespace::new("op").unwrap());
        let [east, west] = [(&one, "east"), (&other, "west")].map(|(namespace, name)| VethEnd {
            namespace,
            name,
            addresses: "",
        });
        veth_pair(east, west, 1).unwrap();
        (one, other)
    }

    /// Opens an interface with this completer, which may not be the one that `tx_checksum` stands
    /// for.
    fn open(
        namespace: &Namespace,
        tx_checksum: TxChecksum,
        completer: Completer,
    ) -> Result<XdpInterface, OpenError> {
        let config = InterfaceConfig {
            tx_checksum,
            ..InterfaceConfig::new("east")
        };
        namespace.run(|| {
            let mut routes = RouteSocket::open().unwrap();
            let link = link_by_name(&mut routes, "east").unwrap().unwrap();
            let shares = XdpInterface::open_link(&config, link, 1, Some(completer));
            shares.map(|mut shares| shares.remove(0))
        })
    }

    #[test]
    #[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
    fn a_kernel_that_completes_no_checksums_is_an_error_or_reported_as_configured() {
        let (east, _west) = pair();
        let interface = open(&east, TxChecksum::Auto, Completer::UNKNOWN).unwrap();
        let report = interface.report();
        let TxOffload::Refused(why) = &report.tx_checksum else {
            panic!("{report}")
        };
        assert!(why.contains("Invalid argument") && why.contains("Linux 6.11"));
        assert!(report.to_string().contains(why));
        drop(interface);
        for choice in [TxChecksum::Device, TxChecksum::Kernel] {
            let error = open(&east, choice, Completer::UNKNOWN).err().unwrap();
            assert!(matches!(error, OpenError::NoTxChecksum { .. }), "{error}");
            let text = error.to_string();
            let name = format!("tx_checksum = {choice:?}");
            for part in ["east", &name, "Invalid argument", "Auto or Never"] {
                assert!(text.contains(part), "{text}");
            }
        }
        let interface = open(&east, TxChecksum::Device, Completer::DEVICE).unwrap();
        assert_eq!(interface.report().tx_checksum, TxOffload::On);
    }

    #[test]
    #[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
    fn a_device_is_opened_by_each_of_its_names() {
        let (east, _west) = pair();
        let names = ["enp24s0f3", "aNameThatIsLongerThanFifteen"];
        for name in names {
            east.ip(&format!("link property add dev east altname {name}"))
                .unwrap();
            let interface = east.run(|| XdpInterface::open(&InterfaceConfig::new(name)));
            assert_eq!(interface.unwrap().report().netdev, "east");
        }
    }

    #[test]
    #[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
    fn binding_waits_for_a_busy_queue_after_registering_the_memory() {
        let (east, _west) = pair();
        let layout = FrameLayout::for_mtu(1500);
        let wanted = SocketSpec {
            netdev: "east",
            queue: 0,
            zero_copy: ZeroCopy::On,
            must_not_copy: false,
            multi_buffer: false,
            rx_ring: 64,
            tx_ring: 64,
            rings: UmemRings {
                fill: 64,
                completion: 64,
            },
            chunk: layout.chunk,
            completer: Some(Completer::DEVICE),
        };
        east.run(|| {
            let umem = || Umem::unregistered(layout, 64, false).unwrap();
            let first = Rings::open(&umem(), &wanted).unwrap();
            let error = Rings::open(&umem(), &wanted).err().unwrap();
            assert!(matches!(error, OpenError::QueueBusy { .. }), "{error}");
            // Long before the last attempt, and long after the first.
            let closes = thread::spawn(move || {
                thread::sleep(Duration::from_millis(100));
                drop(first);
            });
            let rings = Rings::open(&umem(), &wanted).unwrap();
            assert!(rings.has_metadata && rings.zero_copy != ZeroCopy::On);
            closes.join().unwrap();
        });
    }
}
