//! What RFC 5041 section 8.3.2 demands of the Privileged Resource Manager, asked of a whole rnicd
//! over its socket.

mod names;
mod protected;
mod rig;
mod settings;
mod unshare;

use rnic_manager::Token;
use rnic_manager::protocol::{Answer, Ask, Notice, Reason};

use rig::{Rnicd, SOON, connect, listen, port_of_frames};

/// What clients share (ports of a device, frames, TCP ports) is given out by rnicd, and to none
/// more than its share.
// rfc: 5040-117, 5041-95, 5042-3, 5042-14 scarce resources are given out by the resource manager
// rfc: 5040-s9, 5041-s14, 5042-s7 nobody is given more than a fair share
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn nobody_gets_more_than_its_share() {
    let rnicd = Rnicd::start("share");
    let mut client = rnicd.client();
    let too_many = client.is_refused(port_of_frames(1 << 16), Reason::Quota);
    assert!(
        too_many.contains("may hold frames = 600 (set by "),
        "{too_many}"
    );
    let (first, of_first) = client.open();
    let (second, _of_second) = client.open();
    assert_ne!(first.port, second.port);
    // The shares are those of the user, not of the connection.
    let third = rnicd.client().is_refused(port_of_frames(32), Reason::Quota);
    assert!(
        third.starts_with("user root (uid 0) may hold ports = 2 (set by ")
            && third.contains("holds 2 and wants 1 more"),
        "{third}"
    );

    let low = client.is_refused(listen(first.port, "10.77.0.1:80"), Reason::NotPermitted);
    assert!(
        low.starts_with("uid 0 may listen on [\"7000-7009\"], not on 80"),
        "{low}"
    );
    let local = client.lease(listen(first.port, "10.77.0.1:7000"));
    let more = client.is_refused(listen(first.port, "10.77.0.1:7001"), Reason::Quota);
    assert!(more.contains("may hold listeners = 1"), "{more}");
    let release = Ask::Release {
        port: first.port,
        local,
    };
    assert_eq!(client.ask(release).0, Answer::Released);
    client.lease(listen(second.port, "10.77.0.1:7001"));

    let far = client.is_refused(connect(first.port, "10.78.0.2:7000"), Reason::NotPermitted);
    assert!(
        far.starts_with("uid 0 may not connect to 10.78.0.2"),
        "{far}"
    );
    client.lease(connect(first.port, "10.77.0.2:7000"));
    let more = client.is_refused(connect(first.port, "10.77.0.2:7000"), Reason::Quota);
    assert!(more.contains("may hold connections = 1"), "{more}");

    // The kernel takes a port away when its socket is closed. Then there is room for another.
    drop(of_first);
    let again = std::iter::repeat_with(|| client.ask(port_of_frames(32)).0);
    let until = std::time::Instant::now() + SOON;
    let mut again = again.take_while(|_| std::time::Instant::now() < until);
    assert!(again.any(|answer| matches!(answer, Answer::Port(_))));
}

fn numbers(port: u32) -> Ask {
    Ask::TakeNumbers {
        port,
        spi: 0x1001,
        destination: "10.77.0.2".parse().unwrap(),
    }
}

fn acquire(port: u32) -> Ask {
    let [local, remote] = ["10.77.0.1", "10.77.0.2"].map(|end| end.parse().unwrap());
    Ask::Acquire {
        port,
        request: 1,
        local,
        remote,
    }
}

/// Each of these costs rnicd calls of the kernel, or key managers their work.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn who_asks_for_protection_without_end_has_to_wait() {
    let rnicd = Rnicd::start("protection");
    let mut client = rnicd.client();
    let (grant, _of_client) = client.open();
    let mut asked = |ask: fn(u32) -> Ask, why: &str| {
        let began = std::time::Instant::now();
        for _ in 0..320 {
            let refused = client.is_refused(ask(grant.port), Reason::Other);
            assert!(refused.contains(why), "{refused}");
        }
        began.elapsed().as_millis()
    };
    // A user has 128 at once, and 256 in a second. Behind the last one nobody waits here.
    let numbers = asked(numbers, "no sequence numbers of SPI 0x00001001");
    assert!(numbers >= 1000 * (320 - 1 - 128) / 256, "{numbers} ms");
    let both = numbers + asked(acquire, "does not follow the next hop");
    assert!(both >= 1000 * (640 - 1 - 128) / 256, "{both} ms");
}

/// Two connections of one user are as strange to each other as those of two users.
// rfc: 5040-118, 5041-96, 5042-4 the resource manager assumes no trust
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_client_gets_nothing_of_another() {
    let rnicd = Rnicd::start("trust");
    let mut owner = rnicd.client();
    let (grant, _of_owner) = owner.open();
    let local = owner.lease(listen(grant.port, "10.77.0.1:7000"));
    let port = grant.port;
    let mut stranger = rnicd.client();
    let destination = "10.77.0.2".parse().unwrap();
    let adopt = |token| Ask::Adopt {
        port,
        token,
        leases: vec![local],
    };
    for ask in [
        listen(port, "10.77.0.1:7001"),
        connect(port, "10.77.0.2:7000"),
        Ask::Release { port, local },
        Ask::Follow {
            port,
            source: None,
            destination,
        },
        Ask::Forget {
            port,
            source: None,
            destination,
        },
        numbers(port),
        acquire(port),
        adopt(Token::random().unwrap()),
    ] {
        let why = stranger.is_refused(ask, Reason::NotPermitted);
        assert_eq!(why, format!("port {port} is not one of this connection"));
    }
    // The owner still has it all. A client that shows the token is the owner.
    assert_eq!(owner.ask(Ask::Release { port, local }).0, Answer::Released);
    assert_eq!(stranger.ask(adopt(grant.token)).0, Answer::Adopted);
    // It shows a lease that it has no more: it was not told when that ended.
    let revoked = Notice::Revoked { port, local };
    while stranger.notice() != revoked {}
    stranger.lease(listen(port, "10.77.0.1:7001"));
}
