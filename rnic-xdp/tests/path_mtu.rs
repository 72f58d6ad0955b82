//! Path MTU discovery: behind a router there is a link with a smaller MTU. The router sends ICMP
//! "packet too big", our engine sends smaller segments, and the kernel's TCP at the other end gets
//! every octet.

#[path = "common/kernel_tcp.rs"]
mod kernel_tcp;

use kernel_tcp::{device, write_to_kernel};
use rnic_verbs::{Device, DeviceConfig};
use rnic_xdp::testing::{Namespace, VethEnd, veth_pair};

/// `east` - router - `west`, where the router has a smaller MTU on the second link.
struct Path {
    east: Namespace,
    router: Namespace,
    west: Namespace,
}

impl Path {
    /// Makes it with the MTU of the first link, and that of the second toward `west`. Back it is
    /// that of the first.
    fn new(wide: u32, narrow: u32) -> Self {
        let new = || Namespace::new("mtu").unwrap();
        let path = Self {
            east: new(),
            router: new(),
            west: new(),
        };
        let Self { east, router, west } = &path;
        let end = |namespace, name, addresses| VethEnd {
            namespace,
            name,
            addresses,
        };
        veth_pair(
            end(east, "east", "10.77.0.1/24 fd77::1/64"),
            end(router, "near", "10.77.0.254/24 fd77::254/64"),
            1,
        )
        .unwrap();
        veth_pair(
            end(router, "far", "10.88.0.254/24 fd88::254/64"),
            end(west, "west", "10.88.0.2/24 fd88::2/64"),
            1,
        )
        .unwrap();
        for (namespace, netdev, mtu) in [
            (east, "east", wide),
            (router, "near", wide),
            (router, "far", narrow),
            (west, "west", wide),
        ] {
            namespace
                .ip(&format!("link set dev {netdev} mtu {mtu}"))
                .unwrap();
        }
        router.run(|| {
            std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
            std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").unwrap();
        });
        for (namespace, gateway) in [(east, "77"), (west, "88")] {
            let v4 = format!("route add default via 10.{gateway}.0.254");
            namespace.ip(&v4).unwrap();
            let v6 = format!("-6 route add default via fd{gateway}::254");
            namespace.ip(&v6).unwrap();
        }
        path
    }
}

/// Writes a mebibyte through the router. Returns how many timeouts expired, and how often the
/// segments became smaller.
fn write_through(path: &Path, device: &Device, address: &str) -> (u64, u64) {
    let sent = write_to_kernel(device, &path.east, &path.west, address);
    (sent.timeouts, sent.mtu_reductions)
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn segments_shrink_to_the_mtu_that_a_router_reports() {
    // Frames of one chunk, and frames of three chunks that become frames of one, of two, or shorter
    // ones of three.
    for (wide, narrow) in [(1500, 1300), (9000, 1500), (9000, 5000), (9000, 8500)] {
        let path = Path::new(wide, narrow);
        for address in ["10.88.0.2:4420", "[fd88::2]:4421"] {
            let device = device(&path.east, &DeviceConfig::new("east"));
            let found = write_through(&path, &device, address);
            assert_eq!(found, (0, 1), "{address}, {wide} to {narrow}");
            // The next connection begins with the smaller MTU.
            let found = write_through(&path, &device, address);
            assert_eq!(found, (0, 0), "{address}, {wide} to {narrow}");
        }
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_router_that_reports_nothing_is_detected() {
    let path = Path::new(1500, 1300);
    // The router may not send anything of its own, so no ICMP message reaches us.
    path.router.ip("rule add iif lo prohibit").unwrap();
    let device = device(&path.east, &DeviceConfig::new("east"));
    let (timeouts, reductions) = write_through(&path, &device, "10.88.0.2:4420");
    assert!(timeouts >= 3 && reductions == 1, "{timeouts} {reductions}");
}
