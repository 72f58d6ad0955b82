//! Two devices in one thread, and a connection between them.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rnic_verbs::{Access, ConnectionOptions, Cq, Device, Mr, Qp, QpCaps};
use rnic_xdp::testing::Namespace;

pub(crate) const SOON: Duration = Duration::from_secs(60);

/// A queue pair with its completion queue, and memory.
pub(crate) struct End {
    pub(crate) cq: Cq,
    pub(crate) qp: Qp,
    pub(crate) mr: Mr,
}

impl End {
    pub(crate) fn new(device: &Device, octets: usize) -> Self {
        let (pd, cq) = (device.pd(), device.cq(256).unwrap());
        let qp = pd.qp(&cq, &cq, QpCaps::default()).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mr = pd.allocate(octets, access).unwrap();
        Self { cq, qp, mr }
    }
}

/// Drives both devices until something is there.
pub(crate) fn until<T>(
    devices: &[Device; 2],
    what: &str,
    mut find: impl FnMut() -> Option<T>,
) -> T {
    let deadline = Instant::now() + SOON;
    loop {
        if let Some(found) = find() {
            return found;
        }
        for device in devices {
            device.drive();
        }
        assert!(Instant::now() < deadline, "{what} does not happen");
    }
}

/// Connects a queue pair of the first device, with these options, to one of the second, in their
/// namespaces. The second listens at an address.
pub(crate) fn connect(
    [near, far]: [&Namespace; 2],
    devices: &[Device; 2],
    (client, server): (&mut Qp, &mut Qp),
    address: &str,
    options: &ConnectionOptions,
) {
    let address: SocketAddr = address.parse().unwrap();
    let listener = far.run(|| devices[1].listen(address)).unwrap();
    let connecting = near.run(|| client.connect(address, None, options.clone()));
    connecting.unwrap();
    let request = until(devices, "a request", || {
        listener.next_request(Duration::ZERO).unwrap()
    });
    request
        .accept(server, ConnectionOptions::default())
        .unwrap();
    for qp in [client, server] {
        until(devices, "a connection", || {
            qp.next_event(Duration::ZERO).unwrap()
        });
    }
}
