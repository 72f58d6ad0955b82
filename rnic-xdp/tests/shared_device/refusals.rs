//! What is refused, with the culprit and the remedy.

use std::fs;

use rnic_core::engine::Peers;
use rnic_xdp::shared::{ClientPolicy, LAYOUT, SharingError};
use rnic_xdp::steering::ModeChoice;
use rnic_xdp::{InterfaceConfig, XdpInterface};

use crate::bed::{Bed, at, free};

/// Returns the text of an error.
fn text<T>(result: Result<T, impl std::fmt::Display>) -> String {
    result.err().expect("it is refused").to_string()
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_device_that_cannot_be_shared_is_refused() {
    let bed = Bed::new();
    let pins = bed.bpffs.pins();
    let open = || bed.open(ModeChoice::Native);
    // The other end has no XDP program yet.
    let error = text(open());
    assert!(error.contains("nic0 cannot be shared natively"), "{error}");
    assert!(!pins.exists());
    let shown = bed.host.ip("link show dev nic0").unwrap();
    assert!(!shown.contains("xdp"), "{shown}");
    let _wire = bed.wire();

    let elsewhere = std::env::temp_dir().join("rnic/nic0");
    let error = text(bed.open_at(ModeChoice::Native, &elsewhere));
    assert!(
        error.contains("is not on a BPF file system; `mount -t bpf"),
        "{error}"
    );
    assert!(!elsewhere.exists());

    let exclusive = bed
        .host
        .run(|| XdpInterface::open(&InterfaceConfig::new("nic0")))
        .unwrap();
    let error = text(open());
    assert!(
        error.contains("another rnic process drives nic0"),
        "{error}"
    );
    drop(exclusive);

    fs::create_dir_all(pins.join("layout-0")).unwrap();
    let error = text(open());
    let expected = format!("are of another version of rnic (layout-0, not {LAYOUT})");
    assert!(
        error.contains(&expected) && error.contains("xdp off"),
        "{error}"
    );
    fs::remove_dir(pins.join("layout-0")).unwrap();

    let shared = open().unwrap();
    let error = text(bed.open(ModeChoice::Generic));
    assert!(error.contains("nic0 is shared in native mode"), "{error}");
    let error = text(
        bed.host
            .run(|| XdpInterface::open(&InterfaceConfig::new("nic0"))),
    );
    assert!(error.contains("rnicd shares nic0"), "{error}");
    bed.host.run(|| shared.close()).unwrap();

    // Its pins lie elsewhere: the program is not ours to replace.
    let shared = open().unwrap();
    let error = text(bed.open_at(ModeChoice::Native, &pins.with_file_name("other")));
    assert!(error.contains("rnicd shares nic0"), "{error}");
    assert!(!pins.with_file_name("other").exists());

    // Nor if both have pins.
    drop(shared);
    bed.host.ip("link set dev nic0 xdp off").unwrap();
    let others = bed.open_at(ModeChoice::Native, &pins.with_file_name("other"));
    let error = text(open());
    assert!(error.contains("rnicd shares nic0"), "{error}");
    bed.host.run(|| others.unwrap().close()).unwrap();
    open().unwrap();
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn clients_and_leases_that_cannot_be_are_refused() {
    let bed = Bed::new();
    let _wire = bed.wire();
    let mut shared = bed.open(ModeChoice::Native).unwrap();
    let (_first, _one, index) = bed.client(1);
    bed.host.run(|| {
        for port in [0, 1024, u32::MAX] {
            let error = text(shared.add_client(port, index, &free()));
            assert!(
                error.contains("ports have the numbers 1 to 1023"),
                "{error}"
            );
            assert!(shared.remove_client(port).is_err());
        }
        let limited = |rate, burst| ClientPolicy {
            rate: Some(rate),
            burst,
            ..free()
        };
        for (rate, burst) in [(0, 4000), (1 << 41, 4000), (1, 1541), (1, (1 << 32) + 1)] {
            assert!(shared.add_client(1, index, &limited(rate, burst)).is_err());
        }
        let error = text(shared.add_client(1, 9999, &free()));
        assert!(error.contains("no device with index 9999"), "{error}");
        let error = text(shared.attach_police(9999));
        assert!(error.contains("no device with index 9999"), "{error}");
        let error = text(shared.add_lease(1, &at(80), &Peers::all()));
        assert!(error.contains("no client has port 1"), "{error}");
        // Nothing is left of those.
        assert!(shared.clients().unwrap().is_empty());

        shared.add_client(1, index, &limited(1, 1542)).unwrap();
        let error = text(shared.add_client(1, index + 1, &free()));
        assert!(error.contains("port 1 is a client's already"), "{error}");
        let error = text(shared.add_client(2, index, &free()));
        assert!(error.contains("is that of port 1 already"), "{error}");

        shared.add_lease(1, &at(80), &Peers::all()).unwrap();
        let error = text(shared.add_lease(1, &at(80), &Peers::all()));
        let expected = "10.77.0.1:80 in VLAN 0 is leased already, by port 1";
        assert_eq!(error, expected);
        for (port, number) in [(2, 80), (1, 81)] {
            let removed = shared.remove_lease(port, &at(number));
            assert!(matches!(removed, Err(SharingError::NotLeased { .. })));
        }
        assert_eq!(shared.leases(), [(1, at(80))]);
    });
}
