//! Devices that a thread drives while the application does not.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use rnic_core::testing::in_memory::{InMemoryDevice, pair};
use rnic_verbs::{Device, Driver, SendRequest};

use crate::fixture::{PORT, SOON, Side, join};

fn open(end: InMemoryDevice) -> Device {
    let driver = Driver::standby(Box::new(end.worker)).unwrap();
    Device::new(end.host, end.net, driver)
}

fn devices() -> (Device, Device, std::net::SocketAddr) {
    let (near, far) = pair([[1; 32], [2; 32]]);
    let address = std::net::SocketAddr::new(far.address, PORT);
    (open(near), open(far), address)
}

#[test]
fn a_peer_is_served_while_the_application_does_nothing() {
    let (near_device, far_device, address) = devices();
    let listener = far_device.listen(address).unwrap();
    let (mut near, mut far) = (Side::new(&near_device), Side::new(&far_device));
    join(&mut near, &mut far, &listener);
    near.mr.write(0, b"over there").unwrap();
    for round in 0..100 {
        let there = far.mr.remote(64 * round);
        let here = [near.mr.sge(0, 10)];
        near.qp
            .post_send(&SendRequest::write(there).memory(&here))
            .unwrap();
        near.done();
        let back = [near.mr.sge(1024, 10)];
        near.qp
            .post_send(&SendRequest::read(there).memory(&back))
            .unwrap();
        near.done();
        let mut octets = [0; 10];
        near.mr.read(1024, &mut octets).unwrap();
        assert_eq!(&octets, b"over there");
    }
}

/// A waker that sends a message.
struct Told(Sender<()>);

impl Wake for Told {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(());
    }
}

fn told() -> (Waker, Receiver<()>) {
    let (sender, receiver) = unbounded();
    (Waker::from(Arc::new(Told(sender))), receiver)
}

#[test]
fn a_sleeping_application_is_woken_by_its_waker() {
    let (near_device, far_device, address) = devices();
    let listener = far_device.listen(address).unwrap();
    let (mut near, mut far) = (Side::new(&near_device), Side::new(&far_device));
    let (waker, woken) = told();
    far.cq = far_device.cq_notifying(64, waker).unwrap();
    far.qp = far.pd.qp(&far.cq, &far.cq, Default::default()).unwrap();
    join(&mut near, &mut far, &listener);
    for round in 0..100u64 {
        far.qp.post_recv(round, &[far.mr.sge(0, 64)]).unwrap();
        far.cq.arm(false);
        assert!(far.cq.poll_one().is_none());
        assert!(woken.try_recv().is_err());
        near.qp
            .post_send(&SendRequest::send().inline(b"wake up"))
            .unwrap();
        woken.recv_timeout(SOON).unwrap();
        assert_eq!(far.cq.poll_one().unwrap().wr_id(), round);
        near.done();
    }
    let _ = Duration::ZERO;
}
