//! A port that is a hardware queue of the shared device.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;

use rnic_manager::Administrator;

use crate::client::{ALICE, BOB, Client};
use crate::exchange::{Initiator, SOON};
use crate::peer::{PORT, Peer, open};
use crate::rig::{NIC, PEER_NIC, Rig};

/// Alice may have queue 0, which is the only one, and others that the device does not have.
const GRANTED: &str = "[[user]]\nuid = 65533\nqueues = [\"nic:0\", \"nic:1\", \"nic:7\"]\n";

/// Starts a client of Alice's that has queue 0.
fn with_queue(rig: &Rig) -> Client {
    let mut client = rig.client(ALICE);
    client.must(&format!("open {NIC} 0"));
    client
}

fn administrator(rig: &Rig) -> Administrator {
    Administrator::connect(&rig.socket()).unwrap()
}

/// Returns the number of the port that is a queue.
fn queue_port(rig: &Rig) -> Option<u32> {
    let ports = administrator(rig).ports().unwrap();
    let port = ports.iter().find(|port| port.queue.is_some())?;
    Some(port.port)
}

/// Returns whether the device has an XDP program.
fn has_program(rig: &Rig) -> bool {
    let link = rig.host.ip(&format!("link show dev {NIC}")).unwrap();
    link.contains("xdp")
}

/// The kernels of both hosts speak TCP.
fn kernels_talk(rig: &Rig) {
    let listener = rig.host.run(|| TcpListener::bind("10.9.0.1:0").unwrap());
    let to = listener.local_addr().unwrap();
    let mut far = rig
        .far
        .run(|| TcpStream::connect_timeout(&to, SOON))
        .unwrap();
    let (mut near, _) = listener.accept().unwrap();
    near.write_all(b"there and back").unwrap();
    drop(near);
    let mut text = String::new();
    far.set_read_timeout(Some(SOON)).unwrap();
    far.read_to_string(&mut text).unwrap();
    assert_eq!(text, "there and back");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_user_has_a_queue_beside_others_and_has_it_again() {
    let rig = Rig::new(1500, GRANTED);
    let _peer = Peer::serve(&rig.far, PEER_NIC);
    let mut other = rig.open_client(BOB);
    other.must(&format!("connect 10.9.0.2:{PORT}"));
    for round in 0..3 {
        let mut client = with_queue(&rig);
        for to in ["10.9.0.2", "[fd09::2]"] {
            client.must(&format!("connect {to}:{PORT}"));
        }
        client.tell(&format!("mix 10 {round}"));
        other.must(&format!("mix 10 {round}"));
        kernels_talk(&rig);
        client.answer().unwrap();
        let ports = administrator(&rig).ports().unwrap();
        let state = ports.iter().find_map(|port| port.queue.as_ref()).unwrap();
        assert_eq!(state.queue, 0);
        let why = state.copied.as_deref().unwrap();
        assert!(why.contains("zero-copy"), "{why}");
        assert_eq!(rig.leases().len(), 3);
        client.kill();
        rig.until("only the other's lease is left", || {
            (rig.leases().len() == 1 && queue_port(&rig).is_none()).then_some(())
        });
    }
    drop(other);
    rig.wait_until_clean(&[]);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_queue_listens_and_reaches_only_other_hosts() {
    let rig = Rig::new(1500, GRANTED);
    let (mut client, mut other) = (with_queue(&rig), rig.open_client(BOB));
    for local in ["10.9.0.1:5000", "0.0.0.0:5001", "[fd09::1]:5000"] {
        client.must(&format!("listen {local}"));
    }
    other.must("listen 10.9.0.1:5002");
    // To what it listens on itself, it connects without the network.
    for to in ["10.9.0.1:5002", "127.0.0.1:5002"] {
        let error = client.ask(&format!("connect {to}")).unwrap_err();
        assert!(error.contains("hardware queue leave this host"), "{error}");
    }
    let error = other.ask("try 10.9.0.1:5000").unwrap_err();
    assert!(error.contains("refused"), "{error}");
    client.tell("serve");
    let device = open(&rig.far, PEER_NIC);
    for to in ["10.9.0.1:5000", "10.9.0.1:5001", "[fd09::1]:5000"] {
        let connect = || Initiator::connect(&device, to.parse().unwrap(), None);
        let mut end = rig.far.run(connect).unwrap();
        for seed in 0..5 {
            end.round(seed).unwrap();
            end.echo(seed).unwrap();
        }
        end.close().unwrap();
    }
    assert_eq!(client.ask("that will do"), Ok("3".into()));
    // A lease that was taken away gets nothing more.
    let number = queue_port(&rig).unwrap();
    let local = "10.9.0.1:5000".parse().unwrap();
    administrator(&rig).revoke(number, local).unwrap();
    assert!(!rig.leases().contains(&local.to_string()));
    client.must("unlisten");
    drop((client, other));
    rig.wait_until_clean(&[5000, 5001]);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_queue_takes_a_grant() {
    let rig = Rig::new(1500, GRANTED);
    let refused = |uid, queue: u32, why: &str| {
        let error = rig.client(uid).ask(&format!("open {NIC} {queue}"));
        let error = error.unwrap_err();
        assert!(error.contains(why), "{error}");
    };
    refused(BOB, 0, "may have no queue of a device as a port, not nic:0");
    refused(
        ALICE,
        2,
        "may have only nic:0,nic:1,nic:7 as a port, not nic:2",
    );
    refused(ALICE, 7, "nic has no queue 7: it has 1, from 0 on");
    let client = with_queue(&rig);
    let number = queue_port(&rig).unwrap();
    refused(ALICE, 0, &format!("nic:0 is port {number} already"));
    // Of the port itself nothing is shared.
    let mut same_user = rig.open_client(ALICE);
    same_user.must("listen 10.9.0.1:5000");
    drop((client, same_user));
    rig.wait_until_clean(&[5000]);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_flow_that_does_not_come_to_the_queue_is_refused() {
    let mut rig = Rig::new(1500, GRANTED);
    rig.have_queues(2);
    rig.set_queues(2);
    let mut client = rig.client(ALICE);
    let open = format!("open {NIC} 1");
    let error = client.ask(&open).unwrap_err();
    assert!(
        error.contains("queue 1 was added after the device was shared, when it had 1"),
        "{error}"
    );
    let mut administrator = administrator(&rig);
    administrator.remove_device(NIC, false).unwrap();
    administrator.add_device(NIC, Vec::new()).unwrap();
    client.must(&open);
    for line in [
        "listen 10.9.0.1:5000".to_owned(),
        format!("connect 10.9.0.2:{PORT}"),
        format!("connect 10.9.0.2:{PORT} 10.9.0.1:5000"),
    ] {
        let error = client.ask(&line).unwrap_err();
        let why = "nic takes no rule that brings segments to queue 1 (Operation not supported";
        assert!(error.contains(why), "{error}");
        assert!(error.contains("ethtool -X nic start 1 equal 1"), "{error}");
    }
    assert!(rig.leases().is_empty());
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_queue_goes_on_while_rnicd_is_killed() {
    let mut rig = Rig::new(1500, GRANTED);
    let _peer = Peer::serve(&rig.far, PEER_NIC);
    let to_peer = format!("connect 10.9.0.2:{PORT}");
    let mut client = with_queue(&rig);
    client.must(&to_peer);
    client.tell("stream 1");
    for _ in 0..3 {
        rig.kill();
        rig.start();
        rig.until("the client is connected again", || {
            let ports = administrator(&rig).ports().unwrap();
            let own = ports.iter().find(|port| port.queue.is_some())?;
            (own.connected && own.leases == 1).then_some(())
        });
    }
    assert_ne!(client.must("and"), "0");
    // Connections and leases go on as before.
    client.must(&to_peer);
    client.must("rounds 3 7");
    client.must("close");
    client.must(&to_peer);
    // It ends while nobody looks.
    rig.kill();
    client.kill();
    rig.start();
    rig.wait_until_clean(&[]);
    with_queue(&rig).must(&to_peer);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_client_that_loses_its_queue_is_ended() {
    let rig = Rig::new(1500, GRANTED);
    let _peer = Peer::serve(&rig.far, PEER_NIC);
    let mut other = rig.open_client(BOB);
    other.must(&format!("connect 10.9.0.2:{PORT}"));
    for _ in 0..3 {
        let mut client = with_queue(&rig);
        client.must(&format!("connect 10.9.0.2:{PORT}"));
        client.tell("stream 1");
        let number = queue_port(&rig).unwrap();
        administrator(&rig).end_port(number).unwrap();
        assert_eq!(rig.leases().len(), 1);
        // The queue is free, and the process was ended by nobody else.
        drop(with_queue(&rig));
        client.must_be_killed();
        other.must("rounds 3 7");
    }
    drop(other);
    rig.wait_until_clean(&[]);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn sharing_ends_after_the_clients_of_its_queues() {
    let mut rig = Rig::new(1500, GRANTED);
    let _peer = Peer::serve(&rig.far, PEER_NIC);
    let to_peer = format!("connect 10.9.0.2:{PORT}");
    let mut client = with_queue(&rig);
    client.must(&to_peer);
    let mut administrator = administrator(&rig);
    let refused = administrator.remove_device(NIC, false).unwrap_err();
    assert!(refused.to_string().contains("force"), "{refused}");
    administrator.remove_device(NIC, true).unwrap();
    client.must_be_killed();
    assert!(!has_program(&rig));
    administrator.add_device(NIC, Vec::new()).unwrap();

    // Without an rnicd.
    let mut client = with_queue(&rig);
    client.must(&to_peer);
    rig.kill();
    assert!(has_program(&rig));
    let mut unshare = rig.command();
    unshare.arg("--unshare");
    let done = rig.host.run(|| unshare.output()).unwrap();
    assert!(done.status.success(), "{done:?}");
    client.must_be_killed();
    assert!(!has_program(&rig));
    assert!(!rig.pins().exists() && !rig.records().exists());
    rig.start();
    with_queue(&rig).must(&to_peer);
}

/// What somebody else has got is not taken from him by killing him.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_socket_that_another_user_holds_is_named() {
    let rig = Rig::new(1500, GRANTED);
    let client = with_queue(&rig);
    let number = queue_port(&rig).unwrap();
    let record = std::fs::read_to_string(rig.records().join(format!("{number}.json"))).unwrap();
    let inode = record.split_once("\"inode\":").unwrap().1;
    let inode: u64 = inode[..inode.find(',').unwrap()].parse().unwrap();
    // As if it had been passed to a process of root's.
    let take = "import os, sys\n\
                pid, inode = int(sys.argv[1]), sys.argv[2]\n\
                own = os.pidfd_open(pid)\n\
                for fd in os.listdir(f'/proc/{pid}/fd'):\n\
                \x20   if os.readlink(f'/proc/{pid}/fd/{fd}') == f'socket:[{inode}]':\n\
                \x20       import ctypes\n\
                \x20       taken = ctypes.CDLL(None).syscall(438, own, int(fd), 0)\n\
                print('taken' if taken >= 0 else 'not taken', flush=True)\n\
                sys.stdin.read()\n";
    let mut holder = Command::new("python3");
    holder.args(["-c", take, &client.pid().to_string(), &inode.to_string()]);
    holder.stdin(std::process::Stdio::piped());
    holder.stdout(std::process::Stdio::piped());
    let mut holder = holder.spawn().unwrap();
    let mut said = [0; 5];
    let stdout = holder.stdout.as_mut().unwrap();
    stdout.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"taken");
    let error = administrator(&rig)
        .end_port(number)
        .unwrap_err()
        .to_string();
    assert!(error.contains("its socket is still open"), "{error}");
    assert!(error.contains(&format!("lsof | grep {inode}")), "{error}");
    client.must_be_killed();
    assert!(holder.try_wait().unwrap().is_none(), "root's process lives");
    drop(holder.stdin.take());
    holder.wait().unwrap();
    rig.wait_until_clean(&[]);
}
