//! Devices opened on the network interfaces of a veth pair.

use std::fs;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rnic_core::engine::NetError;
use rnic_core::in_memory;
use rnic_core::memory::table::TableError;
use rnic_verbs::{
    Access, Completion, ConnectionOptions, Cq, Device, DeviceConfig, Driver, Driving, Error,
    HugePages, InterfaceConfig, Mr, OpenError, Peers, Qp, QpCaps, Region, SendRequest, Via,
};
use rnic_xdp::cpus_near;
use rnic_xdp::testing::{Namespace, VethEnd, veth_pair};

const SOON: Duration = Duration::from_secs(30);
const ADDRESS: &str = "10.77.0.2:4420";

fn namespaces(queues: u32) -> (Namespace, Namespace) {
    let new = || Namespace::new("open").unwrap();
    let (east, west) = (new(), new());
    let end = |namespace, name, addresses| VethEnd {
        namespace,
        name,
        addresses,
    };
    let ends = (
        end(&east, "east", "10.77.0.1/24 fd77::1/64"),
        end(&west, "west", "10.77.0.2/24"),
    );
    veth_pair(ends.0, ends.1, queues).unwrap();
    (east, west)
}

/// Threads without work sleep at once: there may be fewer CPUs than threads.
fn threads(most: Option<u32>, pin: bool) -> Driving {
    let idle = Duration::ZERO;
    Driving::Threads { most, idle, pin }
}

fn open(namespace: &Namespace, netdev: &str, driving: Driving) -> Device {
    let config = DeviceConfig {
        driving,
        ..DeviceConfig::new(netdev)
    };
    namespace.run(|| Device::open_with(&config)).unwrap()
}

/// A queue pair with its completion queue and 64 KiB of memory.
struct End {
    cq: Cq,
    qp: Qp,
    mr: Mr,
}

impl End {
    const OCTETS: usize = 1 << 16;

    fn new(device: &Device) -> Self {
        let (pd, cq) = (device.pd(), device.cq(16).unwrap());
        let qp = pd.qp(&cq, &cq, QpCaps::default()).unwrap();
        let region = Arc::new(Region::allocate(Self::OCTETS, HugePages::None).unwrap());
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mr = pd.register(&region, access).unwrap();
        Self { cq, qp, mr }
    }
}

/// Drives both devices, if they are driven inline, until something is there.
fn until<T>(devices: [&Device; 2], what: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + SOON;
    loop {
        if let Some(found) = find() {
            return found;
        }
        for device in devices {
            device.drive();
        }
        assert!(Instant::now() < deadline, "{what} does not happen");
    }
}

/// Connects two devices, writes from one to the other, and checks every octet.
fn connect_and_write((east, near): (&Namespace, &Device), (west, far): (&Namespace, &Device)) {
    let devices = [near, far];
    let address: SocketAddr = ADDRESS.parse().unwrap();
    let listener = west.run(|| far.listen(address)).unwrap();
    let (mut client, mut server) = (End::new(near), End::new(far));
    let options = ConnectionOptions::default;
    east.run(|| client.qp.connect(address, None, options()))
        .unwrap();
    let request = until(devices, "a request", || {
        listener.next_request(Duration::ZERO).unwrap()
    });
    request.accept(&mut server.qp, options()).unwrap();
    for qp in [&mut client.qp, &mut server.qp] {
        until(devices, "a connection", || {
            qp.next_event(Duration::ZERO).unwrap()
        });
    }
    let octets: Vec<u8> = (0..End::OCTETS)
        .map(|at| (at * 7 + at / 251) as u8)
        .collect();
    client.mr.write(0, &octets).unwrap();
    let all = [client.mr.sge(0, End::OCTETS as u32)];
    let write = SendRequest::write(server.mr.remote(0)).memory(&all);
    client.qp.post_send(&write).unwrap();
    let done = until(devices, "a write", || client.cq.poll_one());
    assert!(done.is_success(), "{done:?}");
    let mut found = vec![0; End::OCTETS];
    server.mr.read(0, &mut found).unwrap();
    assert!(found == octets, "what was written is there");
}

/// There is no route to an own address, and none is needed.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn two_queue_pairs_of_a_device_connect_by_its_own_address() {
    let (east, _west) = namespaces(2);
    for driving in [Driving::Inline, Driving::Standby, threads(Some(2), false)] {
        let device = open(&east, "east", driving);
        for (address, rc) in ["10.77.0.1:4420", "[fd77::1]:4420"]
            .into_iter()
            .flat_map(|address| [(address, false), (address, true)])
        {
            let address: SocketAddr = address.parse().unwrap();
            let listener = east.run(|| device.listen(address)).unwrap();
            let (mut near, mut far) = (End::new(&device), End::new(&device));
            let options = || ConnectionOptions {
                rc,
                ..ConnectionOptions::default()
            };
            let connecting = east.run(|| near.qp.connect(address, None, options()));
            connecting.unwrap();
            let request = listener.next_request(SOON).unwrap().expect("a request");
            assert_eq!(request.peer().ip(), address.ip());
            request.accept(&mut far.qp, options()).unwrap();
            near.qp.wait_established(SOON).unwrap();
            for round in 0..20u8 {
                near.mr.write(0, &[round; End::OCTETS]).unwrap();
                let all = [near.mr.sge(0, End::OCTETS as u32)];
                let write = SendRequest::write(far.mr.remote(0)).memory(&all);
                near.qp.post_send(&write).unwrap();
                assert!(next(&mut near.cq).is_success());
                assert_eq!(far.mr.copy(0, End::OCTETS).unwrap(), [round; End::OCTETS]);
                let read = SendRequest::read(far.mr.remote(0)).memory(&all);
                near.qp.post_send(&read).unwrap();
                assert!(next(&mut near.cq).is_success());
            }
        }
        // None of these frames came by the device.
        let queues = device.interface().unwrap().statistics().read().unwrap();
        let received = queues.iter().map(|queue| queue.frames_received);
        assert_eq!(received.sum::<u64>(), 0);
        // Where nobody listens, there is still no route.
        let mut alone = End::new(&device);
        let nobody = "10.77.0.1:9".parse().unwrap();
        let error = east.run(|| alone.qp.connect(nobody, None, ConnectionOptions::default()));
        assert!(matches!(error, Err(Error::Net(NetError::NoRoute(..)))));
    }
}

/// Nothing of the far side runs but what stands by.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_device_that_stands_by_serves_its_peer_while_the_application_does_nothing() {
    let (east, west) = namespaces(2);
    let near = open(&east, "east", Driving::Standby);
    let far = open(&west, "west", Driving::Standby);
    assert_eq!((near.workers(), far.workers()), (1, 1));
    connect_and_write((&east, &near), (&west, &far));

    // The connection that has just ended may still have its port.
    let address = "10.77.0.2:4421".parse().unwrap();
    let listener = west.run(|| far.listen(address)).unwrap();
    let (mut client, mut server) = (End::new(&near), End::new(&far));
    let options = ConnectionOptions::default;
    east.run(|| client.qp.connect(listener.local_address(), None, options()))
        .unwrap();
    let request = listener.next_request(SOON).unwrap().expect("a request");
    request.accept(&mut server.qp, options()).unwrap();
    client.qp.wait_established(SOON).unwrap();
    for round in 0..100u8 {
        client.mr.write(0, &[round; 4096]).unwrap();
        let there = server.mr.remote(0);
        let (here, back) = ([client.mr.sge(0, 4096)], [client.mr.sge(8192, 4096)]);
        let write = SendRequest::write(there).memory(&here);
        client.qp.post_send(&write).unwrap();
        assert!(next(&mut client.cq).is_success());
        let read = SendRequest::read(there).memory(&back);
        client.qp.post_send(&read).unwrap();
        assert!(next(&mut client.cq).is_success());
        let mut found = vec![0; 4096];
        client.mr.read(8192, &mut found).unwrap();
        assert_eq!(found, [round; 4096]);
    }
}

/// Perftest listens for its control connection, and then at the same port for its data.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_listener_may_follow_another_whose_connections_live() {
    let (east, west) = namespaces(1);
    let near = open(&east, "east", Driving::Standby);
    let far = open(&west, "west", Driving::Standby);
    let mut ends = Vec::new();
    for _ in 0..2 {
        let address = ADDRESS.parse().unwrap();
        let listener = west.run(|| far.listen(address)).unwrap();
        let second = west.run(|| far.listen(address)).unwrap_err();
        assert!(matches!(second, Error::Net(NetError::InUse(_))), "{second}");
        let (mut client, mut server) = (End::new(&near), End::new(&far));
        let options = ConnectionOptions::default;
        east.run(|| client.qp.connect(address, None, options()))
            .unwrap();
        let request = listener.next_request(SOON).unwrap().expect("a request");
        request.accept(&mut server.qp, options()).unwrap();
        client.qp.wait_established(SOON).unwrap();
        ends.push((client, server));
    }
}

/// Waits for a completion.
fn next(cq: &mut Cq) -> Completion {
    cq.next_completion(SOON).unwrap().expect("a completion")
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn two_devices_opened_by_name_connect_and_write() {
    let (east, west) = namespaces(1);
    let near = east.run(|| Device::open("east")).unwrap();
    let far = west.run(|| Device::open("west")).unwrap();
    assert!(near.is_inline() && far.is_inline());
    // Each has a secret of its own, which its STags are chosen with.
    let first_stag = |device| End::new(device).mr.remote(0).stag;
    assert_ne!(first_stag(&near), first_stag(&far));
    connect_and_write((&east, &near), (&west, &far));
    for (device, netdev) in [(&near, "east"), (&far, "west")] {
        let interface = device.interface().unwrap();
        assert_eq!(interface.report().netdev, netdev);
        let queues = interface.statistics().read().unwrap();
        let received: u64 = queues.iter().map(|queue| queue.frames_received).sum();
        assert!(received > 0, "{netdev}: {queues:?}");
    }
}

/// Returns the CPUs on which each worker thread of this process may run, sorted.
fn cpus_of_workers() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let tasks = tasks.map(|task| task.unwrap().path());
    let workers = tasks.filter(|task| {
        let name = fs::read_to_string(task.join("comm")).unwrap_or_default();
        name.starts_with("rnic-worker-")
    });
    let mut found: Vec<_> = workers.map(|task| cpus_allowed(&task)).collect();
    found.sort();
    found
}

/// Returns the CPUs on which a thread may run, such as "0-3,8".
fn cpus_allowed(task: &Path) -> String {
    let status = fs::read_to_string(task.join("status")).unwrap();
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.unwrap().trim().to_owned()
}

/// The only test here whose devices have threads: it looks at all worker threads of the process.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn threads_are_as_many_as_configured_and_pinned_if_asked() {
    let (east, west) = namespaces(4);
    let near = open(&east, "east", threads(Some(3), true));
    let far = open(&west, "west", threads(None, false));
    let cpus = std::thread::available_parallelism().unwrap().get();
    for (device, workers) in [(&near, 3), (&far, cpus.min(4))] {
        assert!(!device.is_inline());
        assert_eq!(device.workers(), workers);
        let report = device.interface().unwrap().report();
        assert_eq!((report.queues, report.workers), (4, workers as u32));
    }
    connect_and_write((&east, &near), (&west, &far));

    let all = cpus_allowed(Path::new("/proc/thread-self"));
    let pinned = cpus_near(None).into_iter().cycle().take(3);
    let pinned = pinned.map(|cpu| cpu.to_string());
    let free = (0..far.workers()).map(|_| all.clone());
    let mut expected: Vec<_> = pinned.chain(free).collect();
    expected.sort();
    // A thread pins itself when it begins to run.
    until([&near, &far], "pinning", || {
        (cpus_of_workers() == expected).then_some(())
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn limits_are_those_configured() {
    let (east, _west) = namespaces(1);
    let config = DeviceConfig {
        stags: 2,
        queue_pairs: 3,
        ..DeviceConfig::new("east")
    };
    let device = east.run(|| Device::open_with(&config)).unwrap();
    let (pd, cq) = (device.pd(), device.cq(16).unwrap());
    let region = Arc::new(Region::allocate(4096, HugePages::None).unwrap());
    let register = || pd.register(&region, Access::LOCAL_WRITE);
    let _mrs = [register().unwrap(), register().unwrap()];
    let full = register().err().unwrap();
    assert!(
        matches!(full, Error::Registration(TableError::Full(2))),
        "{full}"
    );
    let qp = || pd.qp(&cq, &cq, QpCaps::default());
    let _qps = [qp().unwrap(), qp().unwrap(), qp().unwrap()];
    let full = qp().err().unwrap();
    assert!(matches!(full, Error::NoQueuePair(3)), "{full}");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
#[cfg_attr(all(root, not(ipsec)), ignore = "needs a kernel with IPsec")]
fn a_policy_that_demands_protection_is_ignored_if_asked() {
    let (east, _west) = namespaces(1);
    let add = "xfrm policy add src 10.77.0.1 dst 10.77.0.2 proto tcp dir out \
               tmpl proto esp mode transport";
    east.ip(add).unwrap();
    for ignore_ipsec in [false, true] {
        let config = DeviceConfig {
            ignore_ipsec,
            ..DeviceConfig::new("east")
        };
        let device = east.run(|| Device::open_with(&config)).unwrap();
        let to: SocketAddr = ADDRESS.parse().unwrap();
        let mut end = End::new(&device);
        let options = ConnectionOptions::default();
        let connected = east.run(|| end.qp.connect(to, None, options));
        match connected {
            Ok(()) => assert!(ignore_ipsec),
            Err(Error::Net(NetError::Protected { .. })) => assert!(!ignore_ipsec),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_refusal_names_what_is_wrong_and_the_remedy() {
    let default = || DeviceConfig::new("no-such-device");
    for (config, expected) in [
        (
            DeviceConfig {
                stags: 0,
                ..default()
            },
            "stags = 0 is not possible: choose from 1 to 1048576",
        ),
        (
            DeviceConfig {
                queue_pairs: 1_048_577,
                ..default()
            },
            "queue_pairs = 1048577 is not possible: choose from 1 to 1048576",
        ),
        (
            DeviceConfig {
                driving: threads(Some(0), false),
                ..default()
            },
            "driving.most = 0 is not possible: choose from 1 to 1024",
        ),
        (
            DeviceConfig {
                interface: InterfaceConfig {
                    rx_frames: 33,
                    ..default().interface
                },
                ..default()
            },
            "rx_frames = 33 is not possible: a power of two from 32 to 1048576 is needed",
        ),
        (
            default(),
            "there is no network device no-such-device here; `ip link` lists those of this network namespace",
        ),
    ] {
        let error = Device::open_with(&config).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
    let error = Device::open("no-such-device").unwrap_err();
    assert!(matches!(
        error,
        OpenError::Interface(rnic_xdp::OpenError::NoSuchDevice { netdev }) if netdev == "no-such-device"
    ));
}

#[test]
fn a_device_in_memory_has_no_port() {
    let (end, _) = in_memory::pair([[1; 32], [2; 32]]);
    let device = Device::new(end.host, end.net, Driver::Inline(Box::new(end.worker)));
    assert!(device.interface().is_none());
}

/// An interface of the host is not to be seen in a container. Where rnicd gives no port of it, that
/// is said first.
#[test]
fn why_there_is_no_port_is_said_too() {
    let path = std::env::temp_dir().join(format!("rnic-open-{}", std::process::id()));
    let _no_rnicd = UnixListener::bind(&path).unwrap();
    let config = DeviceConfig {
        manager: Some(path.clone()),
        ..DeviceConfig::new("nowhere")
    };
    let error = Device::open_with(&config).err().unwrap();
    fs::remove_file(&path).unwrap();
    let alone =
        "there is no network device nowhere here; `ip link` lists those of this network namespace";
    assert_eq!(
        error.to_string(),
        format!(
            "there is no port of nowhere: what is at {} is no rnicd: cannot connect to it: Protocol wrong type for socket (os error \
             91); start the rnicd that is to listen there, or name another socket; and it cannot be had alone: {alone}",
            path.display()
        )
    );
    // Nobody listens any more.
    let error = Device::open_with(&config).err().unwrap();
    assert_eq!(error.to_string(), alone);
}

#[test]
fn sockets_of_the_kernel_have_as_many_workers_as_are_asked_for() {
    let cpus = std::thread::available_parallelism().unwrap().get();
    for (most, workers) in [(None, cpus), (Some(1), 1), (Some(4), 4)] {
        let config = DeviceConfig {
            via: Via::Kernel,
            driving: threads(most, false),
            ..DeviceConfig::new("lo")
        };
        let device = Device::open_with(&config).unwrap();
        let ignored = device.kernel().unwrap().ignored();
        assert_eq!((device.workers(), ignored), (workers, None));
    }
}

/// Returns why something is not protected.
fn unprotected<T>(result: Result<T, Error>) -> &'static str {
    match result {
        Err(Error::Net(NetError::Unprotected { reason, .. })) => reason,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("nothing protects it"),
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn protection_that_is_required_and_not_there_is_an_error() {
    let (east, west) = namespaces(1);
    let plain = open(&west, "west", Driving::Inline);
    let address: SocketAddr = ADDRESS.parse().unwrap();
    let listen = || plain.listen_protected(address, Peers::all());
    assert!(unprotected(west.run(listen)).contains("`ipsec_if_id`"));

    let mut config = DeviceConfig::new("east");
    config.interface.ipsec_if_id = NonZeroU32::new(0x524e);
    let device = east.run(|| Device::open_with(&config)).unwrap();
    let own = "10.77.0.1:7000".parse().unwrap();
    east.run(|| device.listen_protected(own, Peers::all()))
        .unwrap();
    let mut end = End::new(&device);
    let mut connect = || {
        let options = ConnectionOptions {
            require_protection: true,
            ..ConnectionOptions::default()
        };
        east.run(|| end.qp.connect(address, None, options))
    };
    assert!(unprotected(connect()).contains("no policy"));
    let incoming = "src 10.77.0.2 dst 10.77.0.1 proto 6 dir in if_id 0x524e";
    let policy = |change: String| east.ip(&format!("xfrm policy {change}")).unwrap();
    policy(format!("add {incoming} tmpl proto esp mode transport"));
    assert!(unprotected(connect()).contains("what is sent"));
    policy(format!("delete {incoming}"));
    let out = "src 10.77.0.1 dst 10.77.0.2 proto 6 dir out if_id 0x524e";
    policy(format!("add {out} tmpl proto esp mode transport"));
    // One that lets through what comes.
    policy(format!("add {incoming}"));
    assert!(unprotected(connect()).contains("what comes"));
    policy(format!("delete {incoming}"));
    // It waits for an association.
    connect().unwrap();
}

#[test]
fn what_goes_by_sockets_is_not_for_esp_of_ours() {
    for (if_id, required) in [(NonZeroU32::new(7), false), (None, true)] {
        let mut config = DeviceConfig::new("lo");
        config.via = Via::Kernel;
        config.interface.ipsec_if_id = if_id;
        config.interface.require_protection = required;
        let error = Device::open_with(&config).err();
        assert!(
            matches!(error, Some(OpenError::NoEspBySockets)),
            "{error:?}"
        );
    }
}
