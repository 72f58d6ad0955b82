//! Which listeners have another TCP port than their program asked for. Over InfiniBand, RDMA and TCP
//! have numbers of their own, and programs listen for both at one. Over iWARP they share them, and a
//! port mapper tells peers apart.

use std::io::{Write, stderr};
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rnic_verbs::{Device, EndReason, Error, Listener, NetError, Peers};

/// Names when.
const VARIABLE: &str = "RNIC_PORT_MAPPER";

/// When the port mappers of hosts are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Not at all.
    Never,
    /// Peers are asked, and a listener gets another TCP port where a TCP socket has its own.
    Needed,
    /// Each listener gets another TCP port than its number, so that this is free for a TCP socket to
    /// come. That it may be one that we have chosen changes nothing: the program knows it.
    Always,
}

/// Returns when this process uses port mappers.
pub(super) fn choice() -> Use {
    static CHOICE: OnceLock<Use> = OnceLock::new();
    *CHOICE.get_or_init(|| match std::env::var(VARIABLE).as_deref() {
        Ok("never") => Use::Never,
        Ok("always") => Use::Always,
        Ok("needed" | "") | Err(_) => Use::Needed,
        Ok(other) => {
            let line = format!(
                "rnic: {VARIABLE} is {other:?}: it may be never, needed or always; needed counts\n"
            );
            // The program may have closed it.
            let _ = stderr().write_all(line.as_bytes());
            Use::Needed
        }
    })
}

/// Returns whether TCP sockets of the kernel listen at an address that share it with RDMA: those of
/// this user, or any for root.
pub(super) fn tcp_listens(local: SocketAddr) -> bool {
    let own = nix::unistd::geteuid();
    let shares = |user: &u32| own.is_root() || *user == own.as_raw();
    rnic_verbs::users_listening(local)
        .is_ok_and(|users| !users.is_empty() && users.iter().all(shares))
}

/// Reports on stderr why a listener does not share its number with a TCP socket: errno says only that
/// the address is in use.
fn say(local: SocketAddr, why: &Error) {
    let line = format!("rnic: RDMA does not share {local} with a TCP socket: {why}\n");
    // The program may have closed it.
    let _ = stderr().write_all(line.as_bytes());
}

/// Reports on stderr, once in a process, that a peer takes connections and speaks no MPA there: the
/// errno does not say that its port may be that of a TCP socket.
pub(super) fn say_refused(remote: SocketAddr, reason: &EndReason) {
    static SAID: AtomicBool = AtomicBool::new(false);
    let is_other = matches!(reason, EndReason::Startup(_) | EndReason::Peer);
    if is_other && choice() != Use::Never && !SAID.swap(true, Ordering::Relaxed) {
        let line = format!(
            "rnic: no RDMA connection to {remote}: {reason}; where a TCP socket shares that number \
             with RDMA, a port mapper of that host must answer at UDP port 3935\n"
        );
        // The program may have closed it.
        let _ = stderr().write_all(line.as_bytes());
    }
}

/// Listens at an address, or at another TCP port where a TCP socket has that of the program, or is to
/// have it.
pub(super) fn listen(device: &Device, local: SocketAddr, peers: &Peers) -> Result<Listener, Error> {
    let mapped = || device.listen_mapped(local, peers.clone());
    if choice() == Use::Always {
        return mapped().inspect_err(|why| say(local, why));
    }
    match device.listen_to(local, peers.clone()) {
        Err(taken @ Error::Net(NetError::InUse(_))) if choice() != Use::Never => {
            mapped().map_err(|why| {
                if tcp_listens(local) {
                    say(local, &why);
                }
                taken
            })
        }
        listener => listener,
    }
}
