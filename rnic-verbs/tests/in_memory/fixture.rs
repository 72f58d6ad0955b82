//! Two devices, and a connection between them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rnic_core::in_memory::{InMemoryDevice, pair};
use rnic_verbs::{
    Access, Completion, ConnectionOptions, Cq, Device, Driver, EndReason, HugePages, Listener, Mr,
    Pd, Qp, QpCaps, QpState, Region, WcStatus,
};

/// How long to wait for what must happen, on a busy machine too.
pub(crate) const SOON: Duration = Duration::from_secs(60);
pub(crate) const PORT: u16 = 4420;

/// Which devices a thread drives; the others are driven by polling.
#[derive(Clone, Copy)]
pub(crate) struct Threads {
    pub(crate) near: bool,
    pub(crate) far: bool,
}

/// What most tests use: the near side polls, the far side has a thread.
pub(crate) const MIXED: Threads = Threads {
    near: false,
    far: true,
};

/// All is driven by the test, so that it knows what has happened.
pub(crate) const INLINE: Threads = Threads {
    near: false,
    far: false,
};

pub(crate) fn open(end: InMemoryDevice, thread: bool) -> Device {
    let turn = Box::new(end.worker);
    let driver = if thread {
        Driver::spawn(turn, Duration::from_millis(1)).unwrap()
    } else {
        Driver::Inline(turn)
    };
    Device::new(end.host, end.net, driver)
}

pub(crate) fn devices(threads: Threads) -> (Device, Device, SocketAddr) {
    let (near, far) = pair([[1; 32], [2; 32]]);
    let address = SocketAddr::new(far.address, PORT);
    (open(near, threads.near), open(far, threads.far), address)
}

/// Runs turns of both devices until there is nothing to do.
pub(crate) fn settle(devices: &[&Device]) {
    let mut idle = 0;
    while idle < 3 {
        let did = devices.iter().filter(|device| device.drive()).count() > 0;
        idle = if did { 0 } else { idle + 1 };
    }
}

/// One side of a connection, with a page of memory that the other may read and write.
pub(crate) struct Side {
    pub(crate) pd: Pd,
    pub(crate) cq: Cq,
    pub(crate) qp: Qp,
    pub(crate) mr: Mr,
}

impl Side {
    pub(crate) fn new(device: &Device) -> Self {
        Self::with_caps(device, QpCaps::default())
    }

    pub(crate) fn with_caps(device: &Device, caps: QpCaps) -> Self {
        let pd = device.pd();
        let cq = device.cq(256).unwrap();
        let qp = pd.qp(&cq, &cq, caps).unwrap();
        let mr = register(&pd, 1 << 20);
        Self { pd, cq, qp, mr }
    }

    /// The next completion, which may be a failed one.
    pub(crate) fn completion(&mut self) -> Completion {
        let completion = self.cq.next_completion(SOON).unwrap();
        completion.expect("something completes")
    }

    pub(crate) fn done(&mut self) -> Completion {
        let completion = self.completion();
        assert_eq!(completion.status(), WcStatus::Success, "{completion:?}");
        completion
    }

    pub(crate) fn end(&mut self) -> EndReason {
        let reason = self.qp.wait_ended(SOON).unwrap();
        reason.expect("the connection ends")
    }
}

pub(crate) fn register(pd: &Pd, len: usize) -> Mr {
    let region = Region::allocate_unlocked(len, HugePages::None).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
    pd.register(&Arc::new(region), access).unwrap()
}

pub(crate) fn join(near: &mut Side, far: &mut Side, listener: &Listener) {
    join_with(near, far, listener, ConnectionOptions::default());
}

/// Connects a pair with options of the near side.
pub(crate) fn join_with(
    near: &mut Side,
    far: &mut Side,
    listener: &Listener,
    options: ConnectionOptions,
) {
    let options = ConnectionOptions {
        private_data: b"ping".to_vec(),
        ..options
    };
    near.qp
        .connect(listener.local_address(), None, options)
        .unwrap();
    let request = loop {
        // Nobody else drives the near side yet.
        near.qp.next_event(Duration::ZERO).unwrap();
        if let Some(request) = listener.next_request(Duration::from_millis(1)).unwrap() {
            break request;
        }
    };
    assert_eq!(request.private_data(), b"ping");
    let options = ConnectionOptions {
        private_data: b"pong".to_vec(),
        ..ConnectionOptions::default()
    };
    request.accept(&mut far.qp, options).unwrap();
    let established = near.qp.wait_established(SOON).unwrap();
    assert_eq!(established.private_data, b"pong");
    assert_eq!(near.qp.state(), QpState::Rts);
}

pub(crate) fn connected(threads: Threads) -> (Side, Side, Listener) {
    let (near_device, far_device, address) = devices(threads);
    let listener = far_device.listen(address).unwrap();
    let (mut near, mut far) = (Side::new(&near_device), Side::new(&far_device));
    join(&mut near, &mut far, &listener);
    (near, far, listener)
}
