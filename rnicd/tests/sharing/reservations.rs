//! rnicd reserves what is leased: as long as a lease lasts, nobody else gets its TCP port, whatever
//! its client does and however often rnicd ends; and when the lease has ended, the TCP port is
//! free.

use std::io;
use std::net::{SocketAddr, TcpListener};

use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrStorage, sockopt};
use rnic_manager::Administrator;
use std::os::fd::AsRawFd;

use crate::client::{ALICE, BOB, Client};
use crate::rig::{NIC, Rig};

const LOCAL: &str = "10.9.0.1:8080";

/// Tries to have a TCP port of the host, as its services do.
fn bind(rig: &Rig, local: &str) -> io::Result<TcpListener> {
    rig.host.run(|| TcpListener::bind(local))
}

/// Tries to have it by being bound to a device.
fn bind_to_device(rig: &Rig, local: &str) -> nix::Result<()> {
    rig.host.run(|| {
        let flags = SockFlag::empty();
        let one = socket::socket(AddressFamily::Inet, SockType::Stream, flags, None)?;
        socket::setsockopt(&one, sockopt::BindToDevice, &NIC.into())?;
        socket::setsockopt(&one, sockopt::ReuseAddr, &true)?;
        let local: SocketAddr = local.parse().unwrap();
        socket::bind(one.as_raw_fd(), &SockaddrStorage::from(local))
    })
}

fn is_reserved(rig: &Rig) {
    for local in [LOCAL, "0.0.0.0:8080"] {
        let error = bind(rig, local).expect_err("it is leased");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{local}");
        assert_eq!(bind_to_device(rig, local), Err(nix::Error::EADDRINUSE));
    }
}

/// Waits as long as a process that another test is starting has what was bound here before.
fn is_free(rig: &Rig) {
    for local in ["0.0.0.0:8080", LOCAL] {
        rig.until("the port is free", || bind(rig, local).ok());
    }
}

/// Leases for a client that has none of our code. Returns its port.
fn lease(client: &mut Client) -> u32 {
    let answer = client.must(&format!("lease {LOCAL}"));
    let (port, descriptors) = answer.split_once(' ').unwrap();
    assert_eq!(
        descriptors, "0",
        "nothing that the client could close or keep"
    );
    port.parse().unwrap()
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_tcp_port_is_taken_as_long_as_it_is_leased_and_free_when_that_has_ended() {
    let rig = Rig::new(1500, "");
    let mut client = rig.script(BOB);
    let administrator = || Administrator::connect(&rig.socket()).unwrap();
    let port = lease(&mut client);
    is_reserved(&rig);
    assert_eq!(client.must(&format!("release {LOCAL}")), "released");
    is_free(&rig);
    for _ in 0..3 {
        assert_eq!(client.must(&format!("lease_again {LOCAL}")), "lease");
        is_reserved(&rig);
        administrator()
            .revoke(port, LOCAL.parse().unwrap())
            .unwrap();
        is_free(&rig);
    }
    assert_eq!(client.must(&format!("lease_again {LOCAL}")), "lease");
    administrator().end_port(port).unwrap();
    is_free(&rig);
    lease(&mut client);
    is_reserved(&rig);
    drop(client);
    rig.wait_until_clean(&[8080]);
    is_free(&rig);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_tcp_port_stays_taken_while_rnicd_is_away() {
    let mut rig = Rig::new(1500, "");
    let mut client = rig.script(BOB);
    lease(&mut client);
    for _ in 0..3 {
        rig.kill();
        is_reserved(&rig);
        rig.start();
        is_reserved(&rig);
        assert_eq!(rig.leases(), [LOCAL]);
    }
    drop(client);
    rig.wait_until_clean(&[8080]);
    // The keeper goes with the last rnicd if it has nothing.
    rig.kill();
    rig.until("the keeper has ended", || {
        rig.keepers().is_empty().then_some(())
    });
    rig.start();
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn another_keeper_gets_all_if_one_is_lost() {
    let mut rig = Rig::new(1500, "");
    let mut client = rig.script(BOB);
    lease(&mut client);
    for number in 1..=3 {
        rig.kill_keeper();
        // rnicd may have connected to the one that ends once more: it is the next one's start that
        // counts. Who answers has handed everything over.
        rig.until("there is another keeper", || {
            let started = rig.log().matches("the keeper is pid").count();
            (started == number + 1 && rig.shares_device() && rig.keepers().len() == 1).then_some(())
        });
        is_reserved(&rig);
        rig.kill();
        is_reserved(&rig);
        rig.start();
    }
    // One that does not answer holds nothing up for long.
    kill(rig.keepers()[0], Signal::SIGSTOP).unwrap();
    rig.kill();
    rig.start();
    assert_eq!(rig.leases(), [LOCAL]);
    is_reserved(&rig);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn what_nobody_has_held_is_reserved_again_or_its_lease_ends() {
    let mut rig = Rig::new(1500, "");
    let mut client = rig.open_client(ALICE);
    client.must(&format!("listen {LOCAL}"));
    let lose_all = |rig: &mut Rig| {
        let keeper = rig.keepers()[0];
        rig.kill();
        kill(keeper, Signal::SIGKILL).unwrap();
        rig.until("nobody has the port", || bind(rig, LOCAL).ok())
    };
    drop(lose_all(&mut rig));
    rig.start();
    is_reserved(&rig);
    assert_eq!(rig.leases(), [LOCAL]);

    let service = lose_all(&mut rig);
    rig.start();
    assert!(rig.leases().is_empty(), "it is the service's");
    drop(service);
    client.tell("serve");
    let error = client.answer().unwrap_err();
    assert!(error.contains("was revoked"), "{error}");
    drop(client);
    rig.wait_until_clean(&[8080]);
}
