//! A process without descriptors left. It is alone in its binary: the limit is the process's.

mod common;

use std::fs::File;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

use common::{Host, LISTENER, loopback};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rnic_core::connection::{Ready, Sockets};

#[test]
fn peers_wait_until_there_are_descriptors_for_them() {
    let mut host = Host::new();
    let (local, _reservation) = host.listen(loopback()[0]);
    let peers = [(); 2].map(|()| TcpStream::connect(local).unwrap());
    assert_eq!(host.sleep(), [Ready::Listener(LISTENER)]);
    // The next descriptor that the kernel would take.
    let next = File::open("/proc/self/status").unwrap().as_raw_fd() as u64;
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, next, most).unwrap();
    assert!(host.sockets.accept(LISTENER).is_none());
    // Nothing is reported meanwhile, but from time to time.
    assert_eq!(host.sleep(), [Ready::Listener(LISTENER)]);
    assert!(host.sockets.accept(LISTENER).is_none());
    assert!(host.sleeps());
    setrlimit(Resource::RLIMIT_NOFILE, next + 2, most).unwrap();
    assert_eq!(host.sleep(), [Ready::Listener(LISTENER)]);
    let accepted = [(); 2].map(|()| host.sockets.accept(LISTENER).unwrap());
    let remotes = accepted.each_ref().map(|accepted| accepted.remote);
    assert_eq!(
        remotes,
        peers.each_ref().map(|peer| peer.local_addr().unwrap())
    );
    // No descriptor is left, and no peer waits: the listener does not pause.
    assert!(host.sockets.accept(LISTENER).is_none());
    let shown = format!("{:?}", host.sockets);
    assert!(shown.contains("pauses: false"), "{shown}");
    let again = TcpStream::connect_timeout(&local, std::time::Duration::from_secs(1));
    assert!(again.is_err());
    drop(accepted);
    let _peer = TcpStream::connect(local).unwrap();
    assert_eq!(host.sleep(), [Ready::Listener(LISTENER)]);
    assert!(host.sockets.accept(LISTENER).is_some());
}
