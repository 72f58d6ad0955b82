use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rnic_core::in_memory::pair;
use rnic_core::wire::hello::{Hello, Kind, Receipts};
use rnic_verbs::{ConnectionEvent, ConnectionOptions, Device, Driver, QpCaps};

use super::{PATIENCE, Waiting};

const SOON: Duration = Duration::from_secs(10);

const HELLO: Hello = Hello {
    kind: Kind::QueuePairs,
    own: 0x0040_0001,
    peer: 0x0050_0001,
    rq_psn: 0,
    sq_psn: None,
    gid: [0; 16],
    receipts: Receipts::Unknown,
};

#[test]
fn a_request_waits_for_a_minute_and_is_rejected() {
    let (own, _other) = pair([[1; 32], [2; 32]]);
    let at = SocketAddr::new(own.address, 4420);
    let device = Device::new(own.host, own.net, Driver::Inline(Box::new(own.worker)));
    let (pd, cq) = (device.pd(), device.cq(16).unwrap());
    let mut qp = pd.qp(&cq, &cq, QpCaps::default()).unwrap();
    let listener = device.listen(at).unwrap();
    qp.connect(at, None, ConnectionOptions::default()).unwrap();
    let request = listener.next_request(SOON).unwrap().expect("a request");

    let waiting = Waiting::default();
    let before = Instant::now();
    waiting.keep(request, HELLO);
    let due = waiting.next_due().expect("it ends");
    assert!(due >= before + PATIENCE && due <= Instant::now() + PATIENCE);
    assert!(waiting.due(due - Duration::from_millis(1)).is_empty());
    assert!(qp.next_event(Duration::ZERO).unwrap().is_none());
    assert!(waiting.due(due).is_empty());
    let told = qp.next_event(SOON).unwrap();
    assert!(
        matches!(told, Some(ConnectionEvent::Rejected { .. })),
        "{told:?}"
    );
    assert_eq!(waiting.next_due(), None);
}
