//! What workers are told of the policies that protect their frames.

use std::num::NonZeroU32;
use std::task::Waker;
use std::time::Duration;

use crossbeam_channel::Receiver;
use rnic_core::esp::Change;

use super::WorkerNotice;
use crate::device::interface::{InterfaceConfig, XdpInterface};
use crate::testing::{Namespace, VethEnd, veth_pair};

const IF_ID: u32 = 0x524e;
const SOON: Duration = Duration::from_secs(20);

/// Adds a policy for what is sent to a TCP port, or deletes it.
fn policy(host: &Namespace, verb: &str, port: u16) {
    let ends = "src 10.77.4.1 dst 10.77.4.2";
    let template = match verb {
        "add" => format!("tmpl {ends} proto esp reqid 1 mode transport"),
        _ => String::new(),
    };
    let selected = format!("{ends} proto tcp dport {port} dir out if_id {IF_ID}");
    host.ip(&format!("xfrm policy {verb} {selected} {template}"))
        .unwrap();
}

/// Shares of a device whose frames are protected, in a namespace with one policy.
fn shares() -> (Namespace, Namespace, Vec<XdpInterface>) {
    let (one, other) = (Namespace::new("po").unwrap(), Namespace::new("po").unwrap());
    let [east, west] = [(&one, "east"), (&other, "west")].map(|(namespace, name)| VethEnd {
        namespace,
        name,
        addresses: "",
    });
    veth_pair(east, west, 2).unwrap();
    policy(&one, "add", 1);
    let config = InterfaceConfig {
        ipsec_if_id: NonZeroU32::new(IF_ID),
        ..InterfaceConfig::new("east")
    };
    let shares = one.run(|| XdpInterface::open_shares(&config, 2)).unwrap();
    assert_eq!(shares.len(), 2);
    (one, other, shares)
}

/// Returns how many policies a change is about.
fn policies(change: &Change) -> Option<usize> {
    match change {
        Change::Demands(demands) => Some(demands.len()),
        _ => None,
    }
}

/// Waits until a worker is told of so many policies.
fn is_told_of(notices: &Receiver<WorkerNotice>, count: usize) {
    loop {
        let notice = notices.recv_timeout(SOON).expect("it is told of policies");
        if let WorkerNotice::Protection(change) = notice
            && policies(&change) == Some(count)
        {
            return;
        }
    }
}

/// Whoever waits for others would begin without any.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
#[cfg_attr(all(root, not(ipsec)), ignore = "needs a kernel with IPsec")]
fn each_worker_knows_the_policies_when_it_begins() {
    let (one, _other, shares) = shares();
    for (number, share) in shares.iter().enumerate() {
        let joined = share.control().join(share.number(), Waker::noop().clone());
        let (notices, known) = joined.unwrap();
        assert_eq!(known.iter().find_map(policies), Some(number + 1));
        policy(&one, "add", 2 + number as u16);
        is_told_of(&notices, number + 2);
    }
}

/// A worker may stand still, with as many notices as it can have.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
#[cfg_attr(all(root, not(ipsec)), ignore = "needs a kernel with IPsec")]
fn a_worker_that_stands_still_keeps_no_change_from_others() {
    let (one, _other, shares) = shares();
    let join = |share: &XdpInterface| {
        let joined = share.control().join(share.number(), Waker::noop().clone());
        joined.unwrap().0
    };
    let (still, runs) = (join(&shares[0]), join(&shares[1]));
    let mut count = 1;
    for number in 0_u32.. {
        if still.is_full() && number % 2 == 0 {
            break;
        }
        let verb = ["add", "delete"][number as usize % 2];
        policy(&one, verb, 2);
        count = 3 - count;
        is_told_of(&runs, count);
    }
    policy(&one, "delete", 1);
    is_told_of(&runs, 0);
    // The other one learns of it when it goes on.
    is_told_of(&still, 0);
}
