//! An AF_XDP socket that gets all frames that arrive at a device.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use nix::net::if_::if_nametoindex;
use rnic_xdp::shared::SharedSteering;
use rnic_xdp::testing::Namespace;
use xsk_rs::config::{LibxdpFlags, SocketConfig, UmemConfig};
use xsk_rs::umem::frame::FrameDesc;
use xsk_rs::{CompQueue, FillQueue, RxQueue, Socket, TxQueue, Umem};

/// How long to wait for what must happen, on a busy machine too.
pub(crate) const SOON: Duration = Duration::from_secs(20);
/// Frames for each direction.
const FRAMES: usize = 64;

pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !condition() {
        assert!(Instant::now() < deadline, "{what} does not happen");
        std::thread::yield_now();
    }
}

/// Returns the index of a device.
pub(crate) fn index_of(namespace: &Namespace, netdev: &str) -> u32 {
    namespace.run(|| if_nametoindex(netdev)).unwrap()
}

/// A socket on queue 0 of a device, with the program that puts all frames into it.
pub(crate) struct Endpoint {
    umem: Umem,
    tx: TxQueue,
    rx: RxQueue,
    fill: FillQueue,
    completion: CompQueue,
    /// Frames that are free to be sent.
    free: Vec<FrameDesc>,
}

impl Endpoint {
    pub(crate) fn open(namespace: &Namespace, netdev: &str) -> Self {
        let index = index_of(namespace, netdev);
        namespace.run(|| {
            let endpoint = Self::bind(netdev);
            SharedSteering::attach_port(index, endpoint.rx.fd()).unwrap();
            endpoint
        })
    }

    fn bind(netdev: &str) -> Self {
        let count = (2 * FRAMES as u32).try_into().unwrap();
        let (umem, mut free) = Umem::new(UmemConfig::default(), count, false).unwrap();
        let config = SocketConfig::builder()
            .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
            .build();
        let interface = netdev.parse().unwrap();
        // SAFETY: the first socket of this UMEM.
        let (tx, rx, rings) = unsafe { Socket::new(config, &umem, &interface, 0) }.unwrap();
        let (mut fill, completion) = rings.unwrap();
        let received = free.split_off(FRAMES);
        // SAFETY: the frames are of this UMEM, and nobody else has them.
        assert_eq!(unsafe { fill.produce(&received) }, FRAMES);
        Self {
            umem,
            tx,
            rx,
            fill,
            completion,
            free,
        }
    }

    /// Sends a frame, when there is room.
    pub(crate) fn send(&mut self, octets: &[u8]) {
        eventually("a free frame", || {
            let mut done = [FrameDesc::default(); FRAMES];
            // SAFETY: the ring is that of this UMEM.
            let count = unsafe { self.completion.consume(&mut done) };
            self.free.extend_from_slice(&done[..count]);
            if self.free.is_empty() {
                // It may be busy, and is tried again.
                let _ = self.tx.wakeup();
            }
            !self.free.is_empty()
        });
        let mut frame = self.free.pop().unwrap();
        // SAFETY: the frame is free, so only this borrows it.
        let mut data = unsafe { self.umem.data_mut(&mut frame) };
        let mut cursor = data.cursor();
        cursor.set_pos(0);
        std::io::Write::write_all(&mut cursor, octets).unwrap();
        eventually("room to transmit", || {
            // SAFETY: the frame is of this UMEM, and nobody touches it until it is completed.
            unsafe { self.tx.produce_one(&frame) == 1 }
        });
        let _ = self.tx.wakeup();
    }

    /// Returns the frames that have arrived.
    pub(crate) fn receive(&mut self) -> Vec<Vec<u8>> {
        let mut arrived = [FrameDesc::default(); FRAMES];
        // SAFETY: the ring is that of this UMEM.
        let count = unsafe { self.rx.consume(&mut arrived) };
        let arrived = &arrived[..count];
        let octets = |frame: &FrameDesc| {
            // SAFETY: the frame is ours until it returns to the fill ring.
            unsafe { self.umem.data(frame) }.contents().to_vec()
        };
        let frames = arrived.iter().map(octets).collect();
        // SAFETY: the frames have been copied, and nobody borrows them.
        assert_eq!(unsafe { self.fill.produce(arrived) }, count);
        frames
    }

    /// Waits for so many frames.
    pub(crate) fn receive_all(&mut self, count: usize) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        eventually("frames arrive", || {
            frames.extend(self.receive());
            frames.len() >= count
        });
        frames
    }
}
