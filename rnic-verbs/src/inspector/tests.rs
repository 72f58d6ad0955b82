use std::sync::Arc;

use rnic_core::connection::ConnectionOptions;
use rnic_core::in_memory;
use rnic_core::memory::region::{HugePages, Region};
use rnic_core::memory::table::Access;

use super::*;
use crate::config::{DeviceConfig, Driving};
use crate::device::Device;
use crate::driver::Driver;
use crate::qp::QpCaps;
use crate::srq::SrqCaps;
use crate::via::Via;

/// A device that is driven when it is polled, and one that a thread drives.
fn devices() -> (Device, Device) {
    let (near, far) = in_memory::pair([[1; 32], [2; 32]]);
    let driver = Driver::spawn(Box::new(far.worker), Duration::from_millis(1)).unwrap();
    let far = Device::new(far.host, far.net, driver);
    let near = Device::new(near.host, near.net, Driver::Inline(Box::new(near.worker)));
    (near, far)
}

fn ask(inspector: &mut Inspector, what: &str, within: Duration) -> Vec<Resource> {
    let mut said = Vec::new();
    inspector.answer(what, within, &mut said).unwrap();
    let lines = said.split_inclusive(|&octet| octet == b'\n');
    let mut said: Vec<_> = lines
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect();
    assert_eq!(said.pop(), Some(Resource::End));
    said
}

fn list(device: &Device, what: &str) -> Vec<Resource> {
    ask(&mut device.inner.inspector(), what, Duration::ZERO)
}

#[test]
fn queues_are_listed_with_what_is_in_them() {
    let (device, _far) = devices();
    let (pd, other_pd) = (device.pd(), device.pd());
    let (own, other) = (pd.id.0, other_pd.id.0);
    let mut cq = device.cq(4).unwrap();
    let caps = SrqCaps {
        max_wr: 8,
        ..SrqCaps::default()
    };
    let mut srq = pd.srq(caps).unwrap();
    for wr_id in 0..3 {
        srq.post_recv(wr_id, &[]).unwrap();
    }
    let qp = pd.qp_with_srq(&cq, &cq, &srq, QpCaps::default()).unwrap();
    let cq_of = |depth, users| {
        Resource::Cq(CqResource {
            cqn: 0,
            used: 0,
            depth,
            users,
        })
    };
    assert_eq!(list(&device, "cq"), [cq_of(4, 1)]);
    cq.resize(16).unwrap();
    assert_eq!(list(&device, "cq"), [cq_of(16, 1)]);
    let srq_of = |users| {
        Resource::Srq(SrqResource {
            srqn: 0,
            pdn: own,
            used: 3,
            depth: 8,
            users,
        })
    };
    assert_eq!(list(&device, "srq"), [srq_of(1)]);
    let [Resource::Qp(said)] = &list(&device, "qp")[..] else {
        panic!("not one queue pair");
    };
    assert_eq!((said.srqn, said.rq_depth), (Some(0), None));
    assert_eq!((said.state.as_str(), said.local), ("INIT", None));
    let pd_of = |pdn, users| Resource::Pd(PdResource { pdn, users });
    assert_eq!(list(&device, "pd"), [pd_of(own, 2), pd_of(other, 0)]);
    drop((qp, pd, other_pd));
    // The queue names a domain that has no handle any more.
    assert_eq!(list(&device, "pd"), [pd_of(own, 1)]);
    assert_eq!(list(&device, "srq"), [srq_of(0)]);
    drop((srq, cq));
    for what in ["pd", "srq", "cq", "qp"] {
        assert_eq!(list(&device, what), [], "{what}");
    }
}

#[test]
fn registrations_are_listed_without_their_stags() {
    let (device, _far) = devices();
    let pd = device.pd();
    let region = Region::allocate_unlocked(8192, HugePages::None).unwrap();
    let region = Arc::new(region);
    let mr = pd.register(&region, Access::REMOTE_READ).unwrap();
    let window = pd.window().unwrap();
    let fast = pd.fast_registration(&region).unwrap();
    let mut kinds = Vec::new();
    for said in list(&device, "mr") {
        let Resource::Mr(said) = said else {
            panic!("{said:?}");
        };
        let opens = (said.len, said.access.as_deref());
        let expected = match said.kind.as_str() {
            "region" => (Some(8192), Some("local-read,remote-read")),
            _ => (None, None),
        };
        assert_eq!(opens, expected, "{said:?}");
        assert!((said.mrn as usize) < device.inner.table().capacity());
        kinds.push(said.kind);
    }
    kinds.sort();
    assert_eq!(kinds, ["fast", "region", "window"]);
    drop((mr, window, fast));
    assert_eq!(list(&device, "mr"), []);
}

#[test]
fn an_engine_that_does_not_run_is_asked_once() {
    let (device, far) = devices();
    let soon = Duration::from_secs(30);
    assert_eq!(ask(&mut far.inner.inspector(), "connection", soon), []);
    let mut inspector = device.inner.inspector();
    let idle = [Resource::Idle { engines: 1 }];
    for _ in 0..3 {
        assert_eq!(ask(&mut inspector, "connection", Duration::ZERO), idle);
    }
    assert!(inspector.asked[0].as_ref().unwrap().is_empty());
    // One answer comes for all, and is old by the time of the next question.
    while device.drive() {}
    assert_eq!(inspector.asked[0].as_ref().unwrap().len(), 1);
    assert_eq!(ask(&mut inspector, "connection", Duration::ZERO), idle);
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| ask(&mut inspector, "connection", soon));
        while !asked.is_finished() {
            device.drive();
            std::thread::yield_now();
        }
        assert_eq!(asked.join().unwrap(), []);
    });
}

#[test]
fn connections_are_listed_with_their_workers() {
    let soon = Duration::from_secs(30);
    let device = Device::open_with(&DeviceConfig {
        via: Via::Kernel,
        driving: Driving::Threads {
            most: Some(2),
            idle: Duration::from_millis(1),
            pin: false,
        },
        ..DeviceConfig::new("lo")
    });
    let device = device.unwrap();
    let (pd, cq) = (device.pd(), device.cq(16).unwrap());
    let listener = device.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut qps: Vec<_> = (0..4)
        .map(|_| pd.qp(&cq, &cq, QpCaps::default()).unwrap())
        .collect();
    for pair in qps.chunks_mut(2) {
        let (address, options) = (listener.local_address(), ConnectionOptions::default);
        pair[0].connect(address, None, options()).unwrap();
        let request = listener.next_request(soon).unwrap().unwrap();
        request.accept(&mut pair[1], options()).unwrap();
        for qp in pair {
            qp.wait_established(soon).unwrap();
        }
    }
    let said = ask(&mut device.inner.inspector(), "connection", soon);
    let mut said: Vec<_> = said
        .iter()
        .map(|one| match one {
            Resource::Connection(one) => (one.qpn.unwrap(), one.worker.unwrap() as usize),
            other => panic!("{other:?}"),
        })
        .collect();
    said.sort();
    let expected: Vec<_> = qps.iter().map(|qp| (qp.number().0, qp.worker())).collect();
    assert_eq!(said, expected);
    let workers: Vec<_> = qps.iter().map(crate::Qp::worker).collect();
    assert_eq!(workers, [0, 1, 0, 1]);
}
