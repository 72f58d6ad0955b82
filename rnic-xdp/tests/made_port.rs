//! A port that is made for another process.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::unistd::ftruncate;
use rnic_xdp::testing::Namespace;
use rnic_xdp::{InterfaceConfig, MadePort, OpenError, PortShape};

fn make(
    namespace: &Namespace,
    name: &str,
    attach: impl FnOnce(u32, BorrowedFd<'_>) -> Result<(), OpenError> + Send,
) -> Result<MadePort, OpenError> {
    let config = InterfaceConfig {
        rx_frames: 64,
        tx_frames: 128,
        ..InterfaceConfig::new("unused")
    };
    let shape = PortShape::for_mtu(&config, 1500);
    namespace.run(|| MadePort::make(name, 1500, &shape, attach))
}

/// Waits until the namespace has no such device.
fn is_gone(namespace: &Namespace, name: &str) -> bool {
    let until = Instant::now() + Duration::from_secs(20);
    while Instant::now() < until {
        if namespace.ip(&format!("link show dev {name}")).is_err() {
            return true;
        }
        std::thread::yield_now();
    }
    false
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_port_lives_as_long_as_its_socket() {
    let namespace = Namespace::new("mp").unwrap();
    let here = File::open("/proc/thread-self/ns/net").unwrap();
    let mut client_end = None;
    let made = make(&namespace, "rnic7", |index, _| {
        let there = File::open("/proc/thread-self/ns/net").unwrap();
        client_end = Some((index, same_file(&here, &there)));
        Ok(())
    });
    let made = made.unwrap();
    assert_eq!(client_end.map(|(_, is_here)| is_here), Some(false));
    // Silent: up, and without any address.
    let shown = namespace.ip("addr show dev rnic7").unwrap();
    assert!(
        shown.contains("UP") && shown.contains("mtu 1500"),
        "{shown}"
    );
    assert!(!shown.contains("inet"), "{shown}");
    assert!(shown.starts_with(&made.host_end.to_string()), "{shown}");
    // The memory cannot be made shorter under the feet of whoever maps it.
    let seals = fcntl(made.umem.as_fd(), FcntlArg::F_GET_SEALS).unwrap();
    let seals = SealFlag::from_bits_truncate(seals);
    assert!(seals.contains(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL));
    assert!(ftruncate(&made.umem, 4096).is_err());

    let second = make(&namespace, "rnic7", |_, _| Ok(())).unwrap_err();
    assert!(second.to_string().contains("File exists"), "{second}");

    let other_handle = made.socket.try_clone().unwrap();
    drop(made);
    assert!(namespace.ip("link show dev rnic7").is_ok());
    drop(other_handle);
    assert!(is_gone(&namespace, "rnic7"));
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_port_that_cannot_be_finished_leaves_nothing() {
    let namespace = Namespace::new("mp").unwrap();
    let error = make(&namespace, "rnic8", |_, _| {
        Err(OpenError::System {
            doing: "attach it",
            source: io::Error::other("no"),
        })
    });
    assert_eq!(error.unwrap_err().to_string(), "cannot attach it: no");
    assert!(is_gone(&namespace, "rnic8"));
}

fn same_file(one: &File, other: &File) -> bool {
    let of = |file: &File| nix::sys::stat::fstat(file).unwrap().st_ino;
    of(one) == of(other)
}
