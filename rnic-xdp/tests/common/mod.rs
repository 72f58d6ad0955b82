//! Two joined namespaces, and ports in them.
#![allow(dead_code)] // each test takes what it needs

use std::thread::sleep;
use std::time::{Duration, Instant};

use rnic_xdp::testing::{Namespace, VethEnd, veth_pair};
use rnic_xdp::{OpenError, PortConfig, XdpNet, XdpPort};

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
    (one, other)
}

pub(crate) fn open(namespace: &Namespace, netdev: &str) -> Result<XdpPort, OpenError> {
    open_with(namespace, &PortConfig::new(netdev))
}

/// A port with its address services.
pub(crate) fn open_net(namespace: &Namespace, config: PortConfig) -> (XdpPort, XdpNet) {
    namespace.run(|| {
        let port = XdpPort::open(&config).unwrap();
        let net = XdpNet::new(&port).unwrap();
        (port, net)
    })
}

pub(crate) fn open_with(namespace: &Namespace, config: &PortConfig) -> Result<XdpPort, OpenError> {
    namespace.run(|| XdpPort::open(config))
}

pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !condition() {
        assert!(Instant::now() < deadline, "{what} does not happen");
        sleep(Duration::from_millis(1));
    }
}
