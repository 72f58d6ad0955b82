//! Writes, Reads and Sends between two queue pairs of a process beside memcpy, of as much memory in
//! the same run.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, Throughput};
use rnic_core::in_memory::pair;
use rnic_verbs::{
    Access, ConnectionOptions, Cq, Device, Driver, HugePages, Mr, Pd, Qp, QpCaps, Region,
    SendRequest,
};

const SOON: Duration = Duration::from_secs(10);

/// Octets of a Write.
const SIZES: [u32; 3] = [4096, 65_536, 1 << 20];

/// Requests that are posted at once.
const DEPTH: u32 = 16;

/// One end of a connection.
struct End {
    cq: Cq,
    qp: Qp,
    mr: Mr,
}

impl End {
    fn new(device: &Device, pd: &Pd) -> Self {
        let cq = device.cq(256).expect("a completion queue");
        let qp = pd.qp(&cq, &cq, QpCaps::default()).expect("a queue pair");
        let region = Region::allocate_unlocked(1 << 20, HugePages::None).expect("memory");
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let mr = pd.register(&Arc::new(region), access).expect("a region");
        Self { cq, qp, mr }
    }
}

/// Two queue pairs of a device that this thread drives, connected.
fn connected() -> (Device, End, End) {
    let (own, _other) = pair([[1; 32], [2; 32]]);
    let at = SocketAddr::new(own.address, 4420);
    let device = Device::new(own.host, own.net, Driver::Inline(Box::new(own.worker)));
    let pd = device.pd();
    let (mut near, mut far) = (End::new(&device, &pd), End::new(&device, &pd));
    let options = ConnectionOptions {
        rc: true,
        ..ConnectionOptions::default()
    };
    let listener = device.listen(at).expect("a listener");
    near.qp.connect(at, None, options.clone()).expect("a way");
    let request = listener.next_request(SOON).expect("a device");
    let accepted = request.map(|request| request.accept(&mut far.qp, options));
    accepted.expect("a request").expect("an idle queue pair");
    near.qp.wait_established(SOON).expect("a connection");
    (device, near, far)
}

/// What a request does.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Write,
    Read,
    Send,
}

/// Posts so many requests, and waits for the last of each lot.
fn request(kind: Kind, near: &mut End, far: &mut End, size: u32) {
    for left in (0..DEPTH).rev() {
        let piece = [near.mr.sge(0, size)];
        let remote = far.mr.remote(0);
        let request = match kind {
            Kind::Write => SendRequest::write(remote),
            Kind::Read => SendRequest::read(remote),
            Kind::Send => {
                let buffer = [far.mr.sge(0, size)];
                far.qp.post_recv(0, &buffer).expect("room for receives");
                SendRequest::send()
            }
        };
        let request = request.memory(&piece).signaled(left == 0);
        let posted = near.qp.post_send(&request);
        posted.expect("room in the send queue");
    }
    let done = near.cq.next_completion(SOON).expect("a device");
    assert!(done.expect("a completion").is_success());
    while let Some(received) = far.cq.poll_one() {
        assert!(received.is_success());
    }
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let (_device, mut near, mut far) = connected();
    let (from, mut to) = (vec![7u8; 1 << 20], vec![0u8; 1 << 20]);
    for size in SIZES {
        let mut group = criterion.benchmark_group(format!("{DEPTH} of {size} octets"));
        group.throughput(Throughput::Bytes(u64::from(size) * u64::from(DEPTH)));
        for kind in [Kind::Write, Kind::Read, Kind::Send] {
            group.bench_function(format!("{kind:?}"), |bencher| {
                bencher.iter(|| request(kind, &mut near, &mut far, size));
            });
        }
        group.bench_function("memcpy", |bencher| {
            bencher.iter(|| {
                for _ in 0..DEPTH {
                    let (to, from) = (&mut to[..size as usize], &from[..size as usize]);
                    std::hint::black_box(to).copy_from_slice(std::hint::black_box(from));
                }
            });
        });
        group.finish();
    }
    criterion.final_summary();
}
