//! Two users with ten clients each, all at once: natively, and in containers.

use crate::client::{ALICE, BOB, Client, Home};
use crate::peer::{PORT, Peer};
use crate::rig::{NIC, PEER_NIC, Rig};

/// The clients of each user, which is also the most that it may have.
const CLIENTS: usize = 10;
/// What each user may have: what ten ports of the default size take, and not a frame more.
const RULES: &str = "[defaults]\nports = 10\nframes = 81920\nhugepages = \"160MiB\"\n";
/// The users, and where their clients live.
const USERS: [(u32, Home); 2] = [(ALICE, Home::Host), (BOB, Home::Container)];
/// How often each client writes, reads and sends.
const ROUNDS: u64 = 5;

/// The clients of one user that have opened the device.
struct User {
    uid: u32,
    home: Home,
    clients: Vec<Client>,
}

impl User {
    /// Starts so many clients, which open the device all at once.
    fn start(rig: &Rig, (uid, home): (u32, Home), count: usize) -> Self {
        let start = |_| rig.client_in(home, uid);
        let mut clients: Vec<_> = (0..count).map(start).collect();
        tell(&mut clients, |_| format!("open {NIC}"));
        all_answer(&mut clients);
        Self { uid, home, clients }
    }

    /// One more client gets no port: the user has all that it may have.
    fn is_full(&self, rig: &Rig) {
        let mut one_more = rig.client_in(self.home, self.uid);
        let refused = one_more.ask(&format!("open {NIC}")).unwrap_err();
        assert!(refused.contains("may hold ports = 10"), "{refused}");
    }
}

fn tell(clients: &mut [Client], line: impl Fn(usize) -> String) {
    for (number, client) in clients.iter_mut().enumerate() {
        client.tell(&line(number));
    }
}

fn all_answer(clients: &mut [Client]) {
    for client in clients {
        client.answer().unwrap();
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn two_users_with_twenty_clients_at_once() {
    let rig = Rig::new(1500, RULES);
    let peer = Peer::serve(&rig.far, PEER_NIC);
    let [mut alice, mut bob] = USERS.map(|user| User::start(&rig, user, CLIENTS));
    for user in [&alice, &bob] {
        user.is_full(&rig);
    }

    // One of each user serves one of the other, on this host. The others speak with the peer, over
    // both families.
    let (mut alice_serves, mut bob_serves) = (alice.clients.remove(0), bob.clients.remove(0));
    let to_alice = alice_serves.must("listen 10.9.0.1:5000");
    let to_bob = bob_serves.must("listen 127.0.0.1:5001");
    for server in [&mut alice_serves, &mut bob_serves] {
        server.tell("serve");
    }
    let to = |own: &str, number| match number {
        0 => own.to_owned(),
        1..5 => format!("10.9.0.2:{PORT}"),
        _ => format!("[fd09::2]:{PORT}"),
    };
    tell(&mut alice.clients, |number| {
        format!("connect {}", to(&to_bob, number))
    });
    tell(&mut bob.clients, |number| {
        format!("connect {}", to(&to_alice, number))
    });
    let users = [&mut alice, &mut bob];
    for (seed, user) in (1..).zip(users) {
        all_answer(&mut user.clients);
        tell(&mut user.clients, |number| {
            format!("mix {ROUNDS} {}", 1000 * seed + 100 * number)
        });
    }
    for user in [&mut alice, &mut bob] {
        all_answer(&mut user.clients);
        user.is_full(&rig);
    }

    // A client that ends makes room for another.
    drop(alice.clients.pop());
    let again = rig.until("there is room", || {
        let mut again = rig.client_in(alice.home, alice.uid);
        again.ask(&format!("open {NIC}")).is_ok().then_some(again)
    });
    alice.clients.push(again);
    bob.is_full(&rig);

    // Of each user all but the one that serves and the one that it serves.
    assert_eq!(peer.end(), 2 * (CLIENTS - 2));
    for server in [&mut alice_serves, &mut bob_serves] {
        assert_eq!(server.ask("that will do"), Ok("1".into()));
    }
    drop((alice, bob, alice_serves, bob_serves));
    rig.wait_until_clean(&[5000, 5001]);
}
