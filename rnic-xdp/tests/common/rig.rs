//! Two joined namespaces with a device in each, through the verbs that an application uses.
#![allow(dead_code)] // each test takes what it needs

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rnic_verbs::{
    Access, ConnectionOptions, Cq, Device, DeviceConfig, Driving, HugePages, Listener, Mr, Pd, Qp,
    QpCaps, Region, SendRequest,
};
use rnic_xdp::testing::{Namespace, VethEnd, veth_pair};

/// How long to wait for what must happen, on a busy machine too.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// How an engine is driven.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Runs {
    /// By a thread, which sleeps after this time without work.
    Thread(Duration),
    Inline,
}

/// A device on an interface, in a namespace.
pub(crate) fn device(namespace: &Namespace, netdev: &str, runs: Runs) -> Device {
    let driving = match runs {
        Runs::Thread(idle) => Driving::Threads {
            most: Some(1),
            idle,
            pin: false,
        },
        Runs::Inline => Driving::Inline,
    };
    let config = DeviceConfig {
        driving,
        ..DeviceConfig::new(netdev)
    };
    namespace.run(|| Device::open_with(&config)).unwrap()
}

/// A queue pair with its completion queue and its memory.
pub(crate) struct End {
    pub(crate) cq: Cq,
    pub(crate) qp: Qp,
    pub(crate) mr: Mr,
    pub(crate) pd: Pd,
}

impl End {
    pub(crate) fn new(device: &Device, octets: usize) -> Self {
        let pd = device.pd();
        let cq = device.cq(256).unwrap();
        let qp = pd.qp(&cq, &cq, QpCaps::default()).unwrap();
        let region = Arc::new(Region::allocate(octets, HugePages::None).unwrap());
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mr = pd.register(&region, access).unwrap();
        Self { cq, qp, mr, pd }
    }
}

/// Two joined namespaces and a device in each.
pub(crate) struct Rig {
    pub(crate) client: Device,
    pub(crate) server: Device,
    pub(crate) east: Namespace,
    pub(crate) west: Namespace,
}

impl Rig {
    pub(crate) fn new(mtu: u32, queues: u32, runs: Runs) -> Self {
        let (east, west) = (
            Namespace::new("eng").unwrap(),
            Namespace::new("eng").unwrap(),
        );
        let end = |namespace, name, addresses| VethEnd {
            namespace,
            name,
            addresses,
        };
        veth_pair(
            end(&east, "east", "10.77.0.1/24 fd77::1/64"),
            end(&west, "west", "10.77.0.2/24 fd77::2/64"),
            queues,
        )
        .unwrap();
        for (namespace, netdev) in [(&east, "east"), (&west, "west")] {
            namespace
                .ip(&format!("link set dev {netdev} mtu {mtu}"))
                .unwrap();
        }
        Self {
            client: device(&east, "east", runs),
            server: device(&west, "west", runs),
            east,
            west,
        }
    }

    /// Connects two fresh ends through a listener at an address.
    pub(crate) fn connect(&self, address: &str, octets: usize) -> (End, End) {
        self.connect_with(address, octets, ConnectionOptions::default)
    }

    pub(crate) fn connect_with(
        &self,
        address: &str,
        octets: usize,
        options: impl Fn() -> ConnectionOptions + Sync,
    ) -> (End, End) {
        let address: SocketAddr = address.parse().unwrap();
        let listener = self.west.run(|| self.server.listen(address)).unwrap();
        let (mut client, mut server) = (
            End::new(&self.client, octets),
            End::new(&self.server, octets),
        );
        self.east
            .run(|| client.qp.connect(listener.local_address(), None, options()))
            .unwrap();
        let mut request = None;
        self.until("a request", || {
            let early = client.qp.next_event(Duration::ZERO).unwrap();
            assert!(early.is_none(), "{early:?}");
            request = listener.next_request(Duration::ZERO).unwrap();
            request.is_some()
        });
        request.unwrap().accept(&mut server.qp, options()).unwrap();
        for qp in [&mut client.qp, &mut server.qp] {
            self.until("a connection", || {
                qp.next_event(Duration::ZERO).unwrap().is_some()
            });
        }
        (client, server)
    }

    /// Returns whether a connection request from a new client reaches a listener of the server.
    pub(crate) fn reaches(&self, listener: &Listener) -> bool {
        let mut client = End::new(&self.client, 4096);
        let options = ConnectionOptions::default();
        let connect = || client.qp.connect(listener.local_address(), None, options);
        if self.east.run(connect).is_err() {
            return false;
        }
        let mut reached = None;
        self.until("a request or a refusal", || {
            if listener.next_request(Duration::ZERO).unwrap().is_some() {
                reached = Some(true);
            }
            if client.qp.next_event(Duration::ZERO).unwrap().is_some() {
                reached.get_or_insert(false);
            }
            reached.is_some()
        });
        reached.unwrap()
    }

    /// Drives both devices, if they are driven inline, until a condition holds.
    pub(crate) fn until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let deadline = Instant::now() + SOON;
        while !condition() {
            self.client.drive();
            self.server.drive();
            assert!(Instant::now() < deadline, "{what} does not happen");
        }
    }

    /// Sends and writes both ways, and checks every octet.
    pub(crate) fn exchange(&self, client: &mut End, server: &mut End, len: usize) {
        let data: Vec<u8> = (0..len).map(|at| (at * 7 + at / 251) as u8).collect();
        let mut found = vec![0; len];

        client.mr.write(0, &data).unwrap();
        let sge = [client.mr.sge(0, len as u32)];
        let write = SendRequest::write(server.mr.remote(0))
            .memory(&sge)
            .wr_id(1);
        client.qp.post_send(&write).unwrap();
        self.until("a write", || self.poll(client, 1));
        server.mr.read(0, &mut found).unwrap();
        assert!(found == data, "what was written is there");

        server.mr.write(0, &vec![0; len]).unwrap();
        server
            .qp
            .post_recv(2, &[server.mr.sge(0, len as u32)])
            .unwrap();
        client
            .qp
            .post_send(&SendRequest::send().memory(&sge).wr_id(3))
            .unwrap();
        self.until("a receive", || self.poll(server, 2));
        self.until("a send", || self.poll(client, 3));
        server.mr.read(0, &mut found).unwrap();
        assert!(found == data, "what was sent is there");

        client.mr.write(0, &vec![0; len]).unwrap();
        let read = SendRequest::read(server.mr.remote(0)).memory(&sge).wr_id(4);
        client.qp.post_send(&read).unwrap();
        self.until("a read", || self.poll(client, 4));
        client.mr.read(0, &mut found).unwrap();
        assert!(found == data, "what was read is there");
    }

    pub(crate) fn poll(&self, end: &mut End, wr_id: u64) -> bool {
        end.cq.poll_one().is_some_and(|completion| {
            assert!(completion.is_success(), "{completion:?}");
            assert_eq!(completion.wr_id(), wr_id);
            true
        })
    }
}
