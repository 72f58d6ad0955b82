//! Opening a device: an interface, a worker with an engine for each of its shares, and what drives
//! them.

use std::io;
use std::sync::Arc;

use crossbeam_channel::{Receiver, bounded};
use rnic_core::engine::{EngineConfig, EngineEnd, HostEnd, Net, SplitTurn, mailboxes};
use rnic_core::memory::table::StagTable;
use rnic_manager::{Bell, Inspection, InspectionSocket, dialogue, without_signals};
use rnic_sockets::{
    AssociationWorker, KernelInterface, KernelNet, KernelSockets, Protocol, SocketWorker,
};
use rnic_xdp::client::Manager;
use rnic_xdp::{InterfaceConfig, Worker, XdpInterface, XdpNet, bell, cpus_near};
use tracing::debug;

use crate::config::{DeviceConfig, Driving};
use crate::device::Device;
use crate::driver::Driver;
use crate::error::Error;
use crate::inspector::Inspector;
use crate::interface::Interface;
use crate::open_error::{NotShared, OpenError};
use crate::resource::DeviceResource;
use crate::via::{KernelWay, Via};

/// The most workers of a device by sockets, so that a host of many CPUs needs neither descriptors nor
/// memory without measure.
const MAX_SOCKET_WORKERS: u32 = 64;

/// Inspections that may wait. rnicd sends no more.
const MAX_INSPECTIONS: usize = 4;

/// The stack of the thread that answers them.
const STACK: usize = 256 << 10;

impl Device {
    /// Opens a network interface of this thread's network namespace, with the defaults: the
    /// application drives it by polling. Fails as [`open_with`](Self::open_with) does.
    pub fn open(netdev: &str) -> Result<Self, OpenError> {
        Self::open_with(&DeviceConfig::new(netdev))
    }

    /// Opens a network interface.
    ///
    /// If the daemon rnicd shares the interface with this user, it gives the process a port of it,
    /// for which no privilege and no particular network namespace is needed.
    ///
    /// Otherwise the process has the receive queues of an interface of this thread's network
    /// namespace for itself until the device is closed, and needs CAP_NET_ADMIN, CAP_NET_RAW,
    /// CAP_BPF and CAP_PERFMON. Frames that are not for this device's connections still go to the
    /// kernel.
    ///
    /// Where neither is possible, or no interface is named, connections take TCP sockets of the
    /// kernel, which need no right. [`DeviceConfig::via`] has it one way alone, SCTP sockets among
    /// them, and
    /// [`Device::kernel`] says whether that way was taken, and why.
    pub fn open_with(config: &DeviceConfig) -> Result<Self, OpenError> {
        config.check()?;
        let error = match config.via {
            Via::Kernel => return open_by_sockets(config, None, Protocol::Tcp),
            Via::Sctp => return open_by_sockets(config, None, Protocol::Sctp),
            Via::Best if config.interface.netdev.is_empty() => {
                return open_by_sockets(config, None, Protocol::Tcp);
            }
            _ => match Opened::open(config).and_then(|opened| opened.into_device(config)) {
                Ok(device) => return Ok(device),
                Err(error) => error,
            },
        };
        if config.via != Via::Best || config.wants_frames() || !error.leaves_sockets() {
            return Err(error);
        }
        open_by_sockets(config, Some(error.to_string()), Protocol::Tcp)
    }
}

/// Opens a device over sockets of the kernel. `why` says what keeps it from a better way.
fn open_by_sockets(
    config: &DeviceConfig,
    why: Option<String>,
    protocol: Protocol,
) -> Result<Device, OpenError> {
    let InterfaceConfig {
        netdev,
        ipsec_if_id,
        require_protection,
        ..
    } = &config.interface;
    if ipsec_if_id.is_some() || *require_protection {
        return Err(OpenError::NoEspBySockets);
    }
    let netdev = Some(&**netdev).filter(|name| !name.is_empty());
    let interface = KernelInterface::open(netdev)?;
    if protocol == Protocol::Sctp && !rnic_sockets::has_sctp() {
        return Err(OpenError::NoSctp);
    }
    let congestion = config.engine.tcp.congestion;
    let net = Arc::new(KernelNet::new(&interface, protocol, congestion));
    let (hosts, driver, ignored) = match protocol {
        Protocol::Tcp => {
            let most = config.driving.most_workers().min(MAX_SOCKET_WORKERS);
            let (hosts, driver) = socket_workers(config, most, SocketWorker::new)?;
            let why = "each has a place for what every other one hands over";
            (hosts, driver, too_many_workers(config.driving, most, why))
        }
        Protocol::Sctp => {
            let (hosts, driver) = socket_workers(config, 1, AssociationWorker::over_sctp)?;
            let why = "an association of SCTP has one, for all its queue pairs";
            (hosts, driver, too_many_workers(config.driving, 1, why))
        }
    };
    let kernel = KernelWay {
        interface,
        protocol,
        why,
        ignored,
    };
    let device = Device::on_sockets(hosts, net, driver, kernel);
    answer_at_socket(&device);
    Ok(device)
}

/// Makes so many workers over sockets, with an engine each, and what drives them.
fn socket_workers<W: SplitTurn + 'static>(
    config: &DeviceConfig,
    count: u32,
    make: fn(KernelSockets, EngineConfig, [u8; 32], EngineEnd, Bell) -> io::Result<W>,
) -> Result<(Vec<HostEnd>, Driver), OpenError> {
    let bells: io::Result<Vec<_>> = (0..count).map(|_| bell()).collect();
    let (bells, wakers): (Vec<_>, Vec<_>) = bells.map_err(OpenError::Bell)?.into_iter().unzip();
    let mailboxes = mailboxes(&table(config)?, config.queue_pairs, wakers);
    let (hosts, ends): (Vec<_>, Vec<_>) = mailboxes.into_iter().unzip();
    let secret = secret()?;
    let workers = ends.into_iter().zip(bells).map(|(end, bell)| {
        let sockets = KernelSockets::new()?;
        make(sockets, config.engine.clone(), secret, end, bell)
    });
    let workers: io::Result<Vec<_>> = workers.collect();
    let driver = driver(config.driving, workers.map_err(OpenError::Bell)?, None)?;
    Ok((hosts, driver))
}

/// Makes the table of STags.
fn table(config: &DeviceConfig) -> Result<Arc<StagTable>, OpenError> {
    let table = StagTable::try_new(config.stags as usize, secret()?);
    Ok(Arc::new(
        table.map_err(|_| OpenError::Memory(config.stags))?,
    ))
}

/// An open interface: what carries the frames of a device, and its address services.
struct Opened {
    /// A share for each worker, one at least.
    shares: Vec<XdpInterface>,
    net: Arc<dyn Net>,
    interface: Interface,
    /// What rnicd is asked about a port of it.
    inspections: Option<Receiver<Inspection>>,
}

impl Opened {
    /// Gets a port of an interface from rnicd, or else takes all its queues.
    fn open(config: &DeviceConfig) -> Result<Self, OpenError> {
        let netdev = &config.interface.netdev;
        let manager = config.manager.as_deref().map(Manager::connect);
        let refused = match manager {
            Some(Ok(manager)) if manager.offers(netdev) => return Self::ask(manager, config),
            Some(Ok(manager)) => match manager.waits_for(netdev) {
                Some(why) => NotShared::Now(why.to_owned()),
                None => NotShared::Here,
            },
            Some(Err(error)) => NotShared::NoManager(error),
            None if config.via != Via::Rnicd => return Self::take(config),
            None => NotShared::NotAsked,
        };
        if config.via == Via::Rnicd {
            let netdev = netdev.clone();
            return Err(OpenError::NotShared { netdev, refused });
        }
        Self::take(config).map_err(|error| match error {
            OpenError::Interface(rnic_xdp::OpenError::NotPermitted { .. }) => {
                OpenError::Unprivileged {
                    netdev: netdev.clone(),
                    refused,
                }
            }
            OpenError::Interface(alone) if refused.explains(&alone) => OpenError::NoPort {
                netdev: netdev.clone(),
                refused,
                alone: Box::new(alone),
            },
            error => error,
        })
    }

    /// Gets a port of an interface from rnicd.
    fn ask(manager: Manager, config: &DeviceConfig) -> Result<Self, OpenError> {
        let (sender, inspections) = bounded(MAX_INSPECTIONS);
        let (share, net) = manager.with_inspections(sender).open(&config.interface)?;
        Ok(Self {
            interface: Interface::of(&share).ignoring(too_many_workers(
                config.driving,
                1,
                "a port of rnicd has one queue",
            )),
            shares: vec![share],
            net: Arc::new(net),
            inspections: Some(inspections),
        })
    }

    /// Opens all queues of an interface.
    fn take(config: &DeviceConfig) -> Result<Self, OpenError> {
        let shares = XdpInterface::open_shares(&config.interface, config.driving.most_workers())?;
        let Some(first) = shares.first() else {
            let netdev = config.interface.netdev.clone();
            return Err(rnic_xdp::OpenError::TooFewQueues { netdev }.into());
        };
        let net = XdpNet::new(first)?;
        let net = if config.ignore_ipsec {
            net.ignore_ipsec()
        } else {
            net
        };
        Ok(Self {
            interface: Interface::of(first),
            shares,
            net: Arc::new(net),
            inspections: None,
        })
    }

    /// Starts a worker for each share.
    fn into_device(self, config: &DeviceConfig) -> Result<Device, OpenError> {
        let Self {
            shares,
            net,
            interface,
            inspections,
        } = self;
        let bells: Result<Vec<_>, _> = shares.iter().map(|_| bell()).collect();
        let (bells, wakers): (Vec<_>, Vec<_>) = bells.map_err(OpenError::Bell)?.into_iter().unzip();
        let table = table(config)?;
        let mailboxes = mailboxes(&table, config.queue_pairs, wakers);
        let (hosts, ends): (Vec<_>, Vec<_>) = mailboxes.into_iter().unzip();
        let ends = ends.into_iter().zip(bells).collect();
        let workers = Worker::for_shares(shares, &config.engine, secret()?, ends)?;
        let driver = driver(config.driving, workers, interface.report().numa_node)?;
        let device = Device::on_interface(hosts, net, driver, interface);
        match inspections {
            Some(inspections) => answer(inspections, device.inner.inspector())
                .map_err(|error| OpenError::Threads(Error::Thread(error)))?,
            None => answer_at_socket(&device),
        }
        Ok(device)
    }
}

/// Returns the complaint if more workers were asked for than there are.
fn too_many_workers(driving: Driving, count: u32, why: &str) -> Option<String> {
    let plural = if count == 1 { "" } else { "s" };
    match driving {
        Driving::Threads {
            most: Some(most), ..
        } if most > count => Some(format!("{count} worker{plural}, not {most}: {why}")),
        _ => None,
    }
}

/// Has the process answer those who ask about a device that rnicd does not know. A sandbox may have
/// no socket for it, or no thread: then nobody can ask, and the device is as good.
fn answer_at_socket(device: &Device) {
    let serve = || {
        let socket = Arc::new(InspectionSocket::listen()?);
        let inspector = device.inner.inspector().of(about(device));
        let asked = socket.clone();
        answer(std::iter::from_fn(move || asked.next()), inspector)?;
        // A new device has none.
        let _ = device.inner.inspections.set(Box::new(Asked(socket)));
        Ok::<_, io::Error>(())
    };
    if let Err(error) = serve() {
        debug!("`rnic-ctl conn show` does not show this device: {error}");
    }
}

/// Where the process is asked about a device, until this is dropped.
struct Asked(Arc<InspectionSocket>);

impl Drop for Asked {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Returns what a device is.
fn about(device: &Device) -> DeviceResource {
    let (netdev, via) = match (device.kernel(), device.interface()) {
        (Some(kernel), _) => {
            let via = match kernel.protocol() {
                Protocol::Tcp => "tcp",
                Protocol::Sctp => "sctp",
            };
            (kernel.interface().name.as_deref(), via)
        }
        (None, interface) => (interface.map(|open| &*open.report().netdev), "xdp"),
    };
    DeviceResource {
        netdev: netdev.unwrap_or("any").to_owned(),
        via: via.to_owned(),
        program: dialogue::program(),
    }
}

/// Starts a thread that answers inspections. It ends after the device was closed, when none can
/// come any more.
fn answer(
    inspections: impl IntoIterator<Item = Inspection> + Send + 'static,
    mut inspector: Inspector,
) -> io::Result<()> {
    let answer = move || {
        for Inspection {
            what,
            within,
            answer,
        } in inspections
        {
            // Whoever asked may have given up.
            let _ = inspector.reply(&what, within, answer);
        }
    };
    let thread = std::thread::Builder::new().name("rnic-inspector".into());
    // A program may lock all its memory, of which it has little.
    let thread = thread.stack_size(STACK);
    without_signals(|| thread.spawn(answer)).map(drop)
}

/// Makes what drives the workers of an interface on this NUMA node.
fn driver<W: SplitTurn + 'static>(
    driving: Driving,
    mut workers: Vec<W>,
    numa_node: Option<u32>,
) -> Result<Driver, OpenError> {
    match driving {
        // There is one worker: see `most_workers`.
        Driving::Inline => Ok(Driver::Inline(Box::new(workers.remove(0)))),
        Driving::Standby => {
            Driver::standby(Box::new(workers.remove(0))).map_err(OpenError::Threads)
        }
        Driving::Threads { idle, pin, .. } => {
            let turns = workers.into_iter().map(|worker| Box::new(worker) as _);
            let cpus = if pin {
                cpus_near(numa_node)
            } else {
                Vec::new()
            };
            Driver::spawn_all(turns.collect(), idle, &cpus).map_err(OpenError::Threads)
        }
    }
}

/// Returns unpredictable octets.
fn secret() -> Result<[u8; 32], OpenError> {
    let mut octets = [0; 32];
    getrandom::fill(&mut octets).map_err(|why| OpenError::Random(why.into()))?;
    Ok(octets)
}
