//! A host with a device, the network behind it, and clients that share the device.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, id};
use std::sync::atomic::{AtomicU32, Ordering};

use rnic_core::engine::Peers;
use rnic_core::wire::ethernet::MacAddr;
use rnic_xdp::OpenError;
use rnic_xdp::shared::{ClientPolicy, SharedSteering};
use rnic_xdp::steering::{Entry, ModeChoice};
use rnic_xdp::testing::{Namespace, VethEnd, veth_pair};

use crate::endpoint::{Endpoint, index_of};

/// The MAC addresses of the device, and of the other end of its link.
const NIC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const WIRE: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// An address and port in the network.
pub(crate) const REMOTE: &str = "10.77.0.2:50000";

/// A BPF file system for one test.
pub(crate) struct Bpffs(PathBuf);

impl Bpffs {
    pub(crate) fn mount() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("rnic-bpf-{}-{number}", id()));
        fs::create_dir(&path).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "bpf", "bpf"])
            .arg(&path)
            .status();
        assert!(mounted.unwrap().success());
        Self(path)
    }

    /// Returns the directory for the pins of a device.
    pub(crate) fn pins(&self) -> PathBuf {
        self.0.join("rnic/nic0")
    }
}

impl Drop for Bpffs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
        let _ = fs::remove_dir(&self.0);
    }
}

/// The host and its network.
pub(crate) struct Bed {
    pub(crate) bpffs: Bpffs,
    pub(crate) host: Namespace,
    pub(crate) network: Namespace,
}

impl Bed {
    /// Makes them, joined by the device `nic0` and `wire`.
    pub(crate) fn new() -> Self {
        let bed = Self {
            bpffs: Bpffs::mount(),
            host: quiet_namespace(),
            network: quiet_namespace(),
        };
        let address = "10.77.0.1/24";
        join(
            (&bed.host, "nic0", address),
            (&bed.network, "wire", "10.77.0.2/24"),
        );
        for (namespace, netdev, mac) in [(&bed.host, "nic0", "01"), (&bed.network, "wire", "02")] {
            let command = format!("link set dev {netdev} address 02:00:00:00:00:{mac}");
            namespace.ip(&command).unwrap();
        }
        bed
    }

    /// Opens the far end of the device's link.
    pub(crate) fn wire(&self) -> Endpoint {
        Endpoint::open(&self.network, "wire")
    }

    pub(crate) fn open(&self, choice: ModeChoice) -> Result<SharedSteering, OpenError> {
        self.open_at(choice, &self.bpffs.pins())
    }

    pub(crate) fn open_at(
        &self,
        choice: ModeChoice,
        pins: &Path,
    ) -> Result<SharedSteering, OpenError> {
        self.host.run(|| {
            let mut shared = SharedSteering::open("nic0", choice, pins)?;
            know_host(&mut shared);
            Ok(shared)
        })
    }

    /// Makes a client's veth pair with its socket. Returns its namespace, the socket and the index
    /// of the host's end.
    pub(crate) fn client(&self, port: u32) -> (Namespace, Endpoint, u32) {
        let namespace = quiet_namespace();
        let ends = (format!("h{port}"), format!("c{port}"));
        join((&self.host, &ends.0, ""), (&namespace, &ends.1, ""));
        let endpoint = Endpoint::open(&namespace, &ends.1);
        let index = index_of(&self.host, &ends.0);
        (namespace, endpoint, index)
    }

    /// Adds a client with a lease of 10.77.0.1 and a port.
    pub(crate) fn add(&self, shared: &mut SharedSteering, port: u32, ifindex: u32, number: u16) {
        self.host.run(|| {
            shared.add_client(port, ifindex, &free()).unwrap();
            shared.attach_police(ifindex).unwrap();
            shared.add_lease(port, &at(number), &Peers::all()).unwrap();
        });
    }
}

/// Sets which addresses and neighbours the host has.
pub(crate) fn know_host(shared: &mut SharedSteering) {
    let own = [10, 77, 0, 1].into();
    let network = "10.77.0.0/24".parse().unwrap();
    shared.set_addresses(&[(own, 0)], &[(network, 0)]).unwrap();
    shared.set_locals(&[own]).unwrap();
    let neighbours = [MacAddr(WIRE)];
    shared.set_neighbours(neighbours.iter()).unwrap();
}

/// Makes a namespace whose kernel sends nothing of its own.
fn quiet_namespace() -> Namespace {
    let namespace = Namespace::new("shr").unwrap();
    namespace.run(|| {
        for which in ["all", "default"] {
            let path = format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6");
            fs::write(path, "1").unwrap();
        }
    });
    namespace
}

fn join(one: (&Namespace, &str, &str), other: (&Namespace, &str, &str)) {
    let end = |(namespace, name, addresses)| VethEnd {
        namespace,
        name,
        addresses,
    };
    veth_pair(end(one), end(other), 1).unwrap();
}

/// May send anything that is right.
pub(crate) fn free() -> ClientPolicy {
    ClientPolicy {
        mtu: 1500,
        rate: None,
        burst: 0,
        peers: Peers::all().into(),
    }
}

/// Returns the entry of a port at the host's address.
pub(crate) fn at(port: u16) -> Entry {
    Entry {
        local: ([10, 77, 0, 1], port).into(),
        vlan: 0,
    }
}

/// Makes the frame of a TCP segment with a number in its payload. Segments to the host come from
/// the network, all others from the host.
pub(crate) fn frame(source: &str, destination: &str, number: u32) -> Vec<u8> {
    let (source, destination): (SocketAddr, SocketAddr) =
        (source.parse().unwrap(), destination.parse().unwrap());
    let macs = match source.ip().to_string().as_str() {
        "10.77.0.2" => [NIC, WIRE],
        _ => [WIRE, NIC],
    };
    let mut frame = macs.concat();
    frame.extend([8, 0, 0x45, 0, 0, 44, 0, 0, 0x40, 0, 64, 6, 0, 0]);
    for end in [source, destination] {
        let std::net::IpAddr::V4(address) = end.ip() else {
            panic!("{end} is not IPv4");
        };
        frame.extend(address.octets());
    }
    frame.extend(source.port().to_be_bytes());
    frame.extend(destination.port().to_be_bytes());
    frame.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    frame.extend(number.to_be_bytes());
    frame.resize(60, 0);
    frame
}
