//! What a connection lets its peer do to memory at all.

use std::sync::Arc;

use rnic_verbs::{Access, ConnectionOptions, HugePages, Region, SendRequest, WcStatus};

use crate::fixture::{Side, Threads, connected, devices, join_with};

const BOTH: Threads = Threads {
    near: true,
    far: true,
};

/// Connects, and does something to memory of the near side that lets everything be done to it.
/// Returns how that ends, and what is in memory then.
fn outcome(rights: Access, need: Access) -> (WcStatus, [u8; 8]) {
    let (near_device, far_device, address) = devices(BOTH);
    let listener = far_device.listen(address).unwrap();
    let (mut near, mut far) = (Side::new(&near_device), Side::new(&far_device));
    let region = Arc::new(Region::allocate_unlocked(64, HugePages::None).unwrap());
    let all = Access::REMOTE | Access::LOCAL_WRITE;
    let mr = near.pd.register(&region, all).unwrap();
    let options = ConnectionOptions {
        remote_access: rights,
        // Either side may send first.
        peer_to_peer: true,
        ..ConnectionOptions::default()
    };
    join_with(&mut near, &mut far, &listener, options);
    let sink = [far.mr.sge(0, 8)];
    let there = mr.remote(0);
    let request = match need {
        Access::REMOTE_WRITE => SendRequest::write(there).inline(&[1, 0, 0, 0, 0, 0, 0, 0]),
        Access::REMOTE_READ => SendRequest::read(there).memory(&sink),
        _ => SendRequest::fetch_add(there, 1).memory(&sink),
    };
    far.qp.post_send(&request).unwrap();
    let status = far.completion().status();
    let mut octets = [0; 8];
    mr.read(0, &mut octets).unwrap();
    (status, octets)
}

#[test]
fn a_peer_does_what_the_queue_pair_lets_it_do_and_nothing_else() {
    let kinds = [
        Access::REMOTE_WRITE,
        Access::REMOTE_READ,
        Access::REMOTE_ATOMIC,
    ];
    for need in kinds {
        let changed = match need {
            Access::REMOTE_READ => [0; 8],
            _ => 1u64.to_le_bytes(),
        };
        for rights in [need, Access::REMOTE] {
            let done = (WcStatus::Success, changed);
            assert_eq!(outcome(rights, need), done, "{need} by {rights}");
        }
        let others = kinds.into_iter().filter(|other| *other != need);
        let others = others.fold(Access::default(), |all, other| all | other);
        for rights in [others, Access::default()] {
            let refused = (WcStatus::RemoteAccessError, [0; 8]);
            assert_eq!(outcome(rights, need), refused, "{need} by {rights}");
        }
    }
}

#[test]
fn what_a_peer_may_do_can_be_changed_while_it_is_connected() {
    let (mut near, mut far, _listener) = connected(BOTH);
    let there = near.mr.remote(0);
    let write = |far: &mut Side| {
        far.qp
            .post_send(&SendRequest::write(there).inline(b"8 octets"))
            .unwrap();
        far.completion().status()
    };
    // The far side may send once it has received.
    near.qp
        .post_send(&SendRequest::write(far.mr.remote(0)).inline(b"first"))
        .unwrap();
    near.done();
    assert_eq!(write(&mut far), WcStatus::Success);
    near.qp.set_remote_access(Access::REMOTE_READ).unwrap();
    near.qp
        .set_remote_access(Access::REMOTE_READ | Access::REMOTE_WRITE)
        .unwrap();
    assert_eq!(write(&mut far), WcStatus::Success);
    near.qp.set_remote_access(Access::REMOTE_READ).unwrap();
    assert_eq!(write(&mut far), WcStatus::RemoteAccessError);
}
