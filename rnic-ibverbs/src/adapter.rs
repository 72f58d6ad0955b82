//! The network interfaces that programs see as RDMA devices, and the devices that are opened on
//! them.

use std::io::{self, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock};
use std::task::Waker;
use std::time::Instant;

use rnic_verbs::rdma::{Netdev, device_of};
use rnic_verbs::{Device, DeviceConfig, Driving, Ipsec, Via};
use tracing::warn;

use crate::abi::{IBV_MTU_256, IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048, IBV_MTU_4096};
use crate::dispatch::{dispatcher, quietly};
use crate::errno::{Errno, ToErrno, lock};
use crate::numbers::Numbers;
use crate::process::keep_from_children;

/// Names the interfaces, separated by commas.
const NETDEV: &str = "RNIC_NETDEV";

/// The most memory regions and windows of a process.
pub(crate) const STAGS: u32 = 1 << 16;

/// The most queue pairs of a process.
pub(crate) const QUEUE_PAIRS: u32 = 1 << 14;

/// A network interface that programs see as an RDMA device.
#[derive(Debug)]
pub(crate) struct Adapter {
    /// Its place among the adapters.
    pub(crate) index: usize,
    /// The interface. It is empty where connections may take any.
    pub(crate) netdev: String,
    /// The name of the RDMA device.
    pub(crate) name: String,
    /// The numbers by which programs know its queue pairs.
    pub(crate) numbers: Numbers,
    opened: Mutex<Option<Opened>>,
    handlers: Mutex<Vec<Handler>>,
}

/// A function that is called when the engine of an adapter has reported something. It returns when
/// it is to be called again even if nothing is reported.
pub(crate) type Handler = fn(&'static Adapter) -> Option<Instant>;

/// A device, and the process that opened it.
#[derive(Debug)]
struct Opened {
    device: Device,
    process: u32,
    dispatcher: Waker,
}

/// Returns all adapters: those that the environment names, or else those that rnicd offers to this
/// user.
pub(crate) fn adapters() -> &'static [Adapter] {
    static ADAPTERS: OnceLock<Box<[Adapter]>> = OnceLock::new();
    if let Some(known) = ADAPTERS.get() {
        return known;
    }
    let netdevs = netdevs();
    // While there are none, the next call looks again.
    if netdevs.is_empty() {
        return &[];
    }
    ADAPTERS.get_or_init(|| netdevs.into_iter().enumerate().map(Adapter::new).collect())
}

/// Returns whether ports of rnicd are about to go, and their TCP ports with them.
pub(crate) fn are_ports_ending() -> bool {
    rnic_verbs::are_ports_ending(&rnicd())
}

/// Returns whether there may be an rnicd.
pub(crate) fn has_rnicd() -> bool {
    rnicd().exists()
}

/// Returns where rnicd listens.
fn rnicd() -> PathBuf {
    DeviceConfig::new("").manager.unwrap_or_default()
}

fn netdevs() -> Vec<String> {
    if let Err(why) = Via::of_environment() {
        return refuse(&format!("{}: {why}", Via::VARIABLE));
    }
    if let Err(why) = Ipsec::of_environment() {
        return refuse(&why.to_string());
    }
    let Some(named) = std::env::var_os(NETDEV) else {
        let via = DeviceConfig::new("").via;
        let mut offered = match via.is_of_sockets() {
            true => Vec::new(),
            false => rnic_verbs::offered(&rnicd()),
        };
        if offered.is_empty() && via.may_take_sockets() {
            // Over sockets of the kernel connections may take any interface.
            offered.push(String::new());
        }
        return offered;
    };
    let Some(named) = named.to_str() else {
        return refuse(&format!("{NETDEV} is not UTF-8"));
    };
    let mut netdevs: Vec<String> = Vec::new();
    for name in named.split(',').map(str::trim) {
        if name.is_empty() || netdevs.iter().any(|other| other == name) {
            continue;
        }
        match Netdev::read(name).index != 0 {
            true => netdevs.push(name.to_owned()),
            false => warn!("{NETDEV}: there is no interface {name}"),
        }
    }
    netdevs
}

/// Says why there are no devices. A program that went on without what its user has asked for would
/// not be told of it.
fn refuse(why: &str) -> Vec<String> {
    let _ = writeln!(io::stderr(), "rnic: {why}");
    Vec::new()
}

impl Adapter {
    fn new((index, netdev): (usize, String)) -> Self {
        Self {
            index,
            name: device_of(&netdev),
            netdev,
            numbers: Numbers::new(QUEUE_PAIRS),
            opened: Mutex::default(),
            handlers: Mutex::default(),
        }
    }

    /// Returns the interface as it is now.
    pub(crate) fn interface(&self) -> Netdev {
        Netdev::read(&self.netdev)
    }

    /// Returns the addresses of the interface, IPv4 first.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        self.interface().addresses
    }

    /// Returns whether the interface has its link.
    pub(crate) fn is_active(&self) -> bool {
        self.interface().is_active
    }

    /// Returns the MTU of the port: one of `IBV_MTU_*`.
    pub(crate) fn mtu(&self) -> u32 {
        mtu(Netdev::mtu(&self.netdev).unwrap_or(1500))
    }

    /// Registers `handler`, which the dispatcher's thread calls whenever connection, listener or
    /// asynchronous events have arrived, and once soon after this. Registering it again changes
    /// nothing.
    pub(crate) fn on_events(&'static self, handler: Handler) {
        let mut handlers = lock(&self.handlers);
        if !handlers
            .iter()
            .any(|known| std::ptr::fn_addr_eq(*known, handler))
        {
            handlers.push(handler);
        }
        drop(handlers);
        self.wake();
    }

    /// Returns the device. The first call in a process opens it. It stays open until the process
    /// ends.
    pub(crate) fn device(&'static self) -> Result<Device, Errno> {
        let mut opened = lock(&self.opened);
        let process = std::process::id();
        if let Some(known) = opened.as_ref().filter(|known| known.process == process) {
            return Ok(known.device.clone());
        }
        let new = self.open(process)?;
        let device = new.device.clone();
        // What was inherited by a fork belongs to the parent.
        std::mem::forget(opened.replace(new));
        Ok(device)
    }

    /// Returns the locks that a child makes new: of the device, and of the handlers of its events.
    pub(crate) fn renewed(&self) -> (&Mutex<impl Default>, &Mutex<impl Default>) {
        (&self.opened, &self.handlers)
    }

    /// Returns the device if this process has opened it.
    pub(crate) fn opened(&self) -> Option<Device> {
        let opened = self.opened.try_lock().ok()?;
        let known = opened.as_ref()?;
        (known.process == std::process::id()).then(|| known.device.clone())
    }

    fn open(&'static self, process: u32) -> Result<Opened, Errno> {
        keep_from_children();
        let failed = |why: &dyn std::fmt::Display| warn!("cannot open {}: {why}", self.netdev);
        let device = quietly(|| Device::open_with(&self.config())).map_err(|why| {
            failed(&why);
            why.errno()
        })?;
        // Not before: its thread stays.
        let dispatcher = dispatcher(|| self.dispatch())?;
        device.on_events(dispatcher.clone()).map_err(|why| {
            failed(&why);
            why.errno()
        })?;
        Ok(Opened {
            device,
            process,
            dispatcher,
        })
    }

    /// Calls the handlers, and returns when the first of them is to be called again.
    fn dispatch(&'static self) -> Option<Instant> {
        let handlers = lock(&self.handlers).clone();
        let next = handlers.into_iter().filter_map(|handler| handler(self));
        next.min()
    }

    /// Returns what has the dispatcher call the handlers soon: [`wake`](Self::wake) without a lock
    /// of the adapter.
    pub(crate) fn dispatcher(&'static self) -> Result<Waker, Errno> {
        self.device()?;
        let opened = lock(&self.opened);
        let dispatcher = opened.as_ref().map(|opened| opened.dispatcher.clone());
        dispatcher.ok_or(Errno::ENODEV)
    }

    /// Has the dispatcher call the handlers soon.
    pub(crate) fn wake(&self) {
        if let Some(opened) = &*lock(&self.opened) {
            opened.dispatcher.wake_by_ref();
        }
    }

    fn config(&self) -> DeviceConfig {
        DeviceConfig {
            driving: Driving::Standby,
            stags: STAGS,
            queue_pairs: QUEUE_PAIRS,
            ..DeviceConfig::new(&*self.netdev)
        }
    }
}

/// Returns the largest MTU of InfiniBand that fits.
fn mtu(octets: u32) -> u32 {
    match octets {
        4096.. => IBV_MTU_4096,
        2048.. => IBV_MTU_2048,
        1024.. => IBV_MTU_1024,
        512.. => IBV_MTU_512,
        _ => IBV_MTU_256,
    }
}
