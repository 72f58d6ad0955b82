//! Starts what the configuration names, and serves until a signal ends it. What it leaves behind goes on without it: ports, leases and
//! the programs, for the next rnicd to take over.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{self, AddressFamily, Backlog, SockFlag, SockType, UnixAddr};
use rnic_xdp::OpenError;
use rnic_xdp::manager::SharedDevice;
use rnic_xdp::manager::states::Event;
use rnic_xdp::sharing::SharingError;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tracing::{error, info, warn};

use crate::config::{Config, ConfigError, Device};
use crate::notify::{self, ActivationError};
use crate::policy::Policy;
use crate::quota::{self, Quotas};
use crate::record::Records;
use crate::server::Server;
use crate::shared::{Lease, Port, Shared, found};
use crate::usage::Usage;

/// How often to look again for a device that is not there.
const LOOK_FOR_DEVICES_EVERY: Duration = Duration::from_secs(2);
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// Where things are.
#[derive(Clone, Debug)]
pub struct Places {
    /// The configuration.
    pub config: PathBuf,
    /// The socket, if not where the configuration says.
    pub socket: Option<PathBuf>,
    /// The directory of the records of ports, which does not outlive the system.
    pub state: PathBuf,
    /// The directory on a BPF file system under which the programs' maps of each device are pinned.
    pub pins: PathBuf,
}

/// Why rnicd does not run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The configuration is not there or has faults.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// What systemd passed is no socket for clients.
    #[error(transparent)]
    Activation(#[from] ActivationError),
    /// The socket could not be made.
    #[error("cannot listen at {}: {source}", path.display())]
    Listen {
        /// Where.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// Another rnicd serves there.
    #[error("another rnicd serves {} already; end it first (`systemctl stop rnicd`)", path.display())]
    Running {
        /// Where.
        path: PathBuf,
    },
    /// Something else.
    #[error("cannot {doing}: {source}")]
    System {
        /// What was attempted.
        doing: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

fn system(doing: &'static str) -> impl Fn(io::Error) -> ServeError {
    move |source| ServeError::System { doing, source }
}

/// The signals that have come.
struct Signals {
    wake: UnixStream,
    end: Arc<AtomicBool>,
    reload: Arc<AtomicBool>,
}

impl Signals {
    fn new() -> io::Result<Self> {
        let (wake, sender) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        let (end, reload) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        for (signal, flag) in [(SIGTERM, &end), (SIGINT, &end), (SIGHUP, &reload)] {
            signal_hook::flag::register(signal, flag.clone())?;
            signal_hook::low_level::pipe::register(signal, sender.try_clone()?)?;
        }
        Ok(Self { wake, end, reload })
    }

    /// Takes back the octets that woke the loop.
    fn silence(&self) {
        let mut octets = [0; 64];
        while io::Read::read(&mut &self.wake, &mut octets).is_ok_and(|read| read > 0) {}
    }
}

/// Serves until SIGTERM or SIGINT. SIGHUP reads the configuration again.
pub fn serve(places: &Places) -> Result<(), ServeError> {
    let activated = notify::activated_socket()?;
    allow_descriptors();
    let signals = Signals::new().map_err(system("handle signals"))?;
    let config = Config::read(&places.config)?;
    let policy = Policy::new(&config).map_err(ConfigError::from)?;
    let listener = listener(places, activated, &config, &policy)?;
    let mut server = Server::new(listener, Quotas::default(), policy);
    let mut wanted = Wanted {
        places,
        devices: config.devices,
        look_at: Instant::now(),
        complaints: Vec::new(),
    };
    wanted.open(&mut server);
    say(notify::ready(&wanted.status(&server)));
    let watchdog = notify::watchdog_interval();
    while !signals.end.load(Ordering::Relaxed) {
        let at_most = wanted.timeout(&server).into_iter().chain(watchdog).min();
        let turned = server.turn(signals.wake.as_fd(), at_most);
        if turned.map_err(system("wait for clients"))? {
            signals.silence();
        }
        if watchdog.is_some() {
            say(notify::alive());
        }
        if signals.reload.swap(false, Ordering::Relaxed) {
            say(notify::reloading());
            reload(places, &mut server, &mut wanted);
            say(notify::ready(&wanted.status(&server)));
        }
        wanted.open(&mut server);
    }
    info!("ends; ports and their connections go on");
    say(notify::stopping());
    Ok(())
}

/// Raises the limit of descriptors as far as it goes: each connection has one.
fn allow_descriptors() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, most)| setrlimit(Resource::RLIMIT_NOFILE, most, most));
    if let Err(error) = raised {
        warn!("cannot raise the limit of descriptors: {error}");
    }
}

/// Notes that systemd could not be told something.
fn say(told: io::Result<()>) {
    if let Err(error) = told {
        warn!("cannot tell systemd: {error}");
    }
}

/// Reads the configuration again. With a fault in it, the old one stays.
fn reload(places: &Places, server: &mut Server, wanted: &mut Wanted<'_>) {
    let read = Config::read(&places.config).map_err(ServeError::from);
    let read =
        read.and_then(|config| Ok((Policy::new(&config).map_err(ConfigError::from)?, config)));
    match read {
        Ok((policy, config)) => {
            info!("{} was read again", places.config.display());
            server.policy = policy;
            wanted.devices = config.devices;
            let is_wanted = |name: &str| {
                wanted
                    .devices
                    .iter()
                    .any(|device| device.name.value == name)
            };
            server.stop_sharing(|name| !is_wanted(name));
            wanted.look_at = Instant::now();
        }
        Err(why) => error!("the configuration stays as it was: {why}"),
    }
}

/// The devices that are to be shared.
struct Wanted<'a> {
    places: &'a Places,
    devices: Vec<Device>,
    look_at: Instant,
    /// What was said of devices that are not there, so that it is not said again and again.
    complaints: Vec<String>,
}

impl Wanted<'_> {
    /// Returns a line for `systemctl status`.
    fn status(&self, server: &Server) -> String {
        let shared = server.devices.iter().map(|shared| shared.device.netdev());
        let missing = self
            .devices
            .iter()
            .filter(|device| self.is_missing(server, device));
        let missing: Vec<_> = missing.map(|device| device.name.value.as_str()).collect();
        let shared = shared.collect::<Vec<_>>().join(", ");
        match missing.as_slice() {
            [] => format!("shares {shared}"),
            names => format!("shares {shared}; waits for {}", names.join(", ")),
        }
    }

    fn is_missing(&self, server: &Server, device: &Device) -> bool {
        let mut devices = server.devices.iter();
        !devices.any(|shared| shared.device.netdev() == device.name.value)
    }

    /// Returns how long to wait before looking for devices again, if any are missing.
    fn timeout(&self, server: &Server) -> Option<Duration> {
        let mut devices = self.devices.iter();
        let missing = devices.any(|device| self.is_missing(server, device));
        missing.then(|| self.look_at.saturating_duration_since(Instant::now()))
    }

    /// Opens the devices that are missing, if it is time.
    fn open(&mut self, server: &mut Server) {
        if Instant::now() < self.look_at {
            return;
        }
        self.look_at = Instant::now() + LOOK_FOR_DEVICES_EVERY;
        for device in self.devices.clone() {
            if !self.is_missing(server, &device) {
                continue;
            }
            let name = &device.name.value;
            match open(self.places, &device, &server.quotas) {
                Ok(shared) => {
                    info!(
                        "shares {name}: XDP {}, {} ports",
                        shared.device.mode(),
                        shared.ports.len()
                    );
                    self.complaints
                        .retain(|complaint| !complaint.starts_with(name));
                    server.announce(Event::DeviceShared {
                        netdev: name.clone(),
                    });
                    server.devices.push(shared);
                }
                Err(why) => {
                    let complaint = format!("{name} cannot be shared now: {why}");
                    if !self.complaints.contains(&complaint) {
                        warn!("{complaint}");
                        self.complaints.push(complaint);
                    }
                }
            }
        }
        let mut devices = self.devices.iter();
        server.waits_for_devices = devices.any(|device| self.is_missing(server, device));
    }
}

/// Takes a device, with the ports that a former rnicd has made.
fn open(places: &Places, device: &Device, quotas: &Quotas) -> Result<Shared, SharingError> {
    let name = &device.name.value;
    let failed = |doing| move |source| SharingError::Open(OpenError::System { doing, source });
    fs::create_dir_all(&places.pins).map_err(failed("make the directory of the pinned maps"))?;
    let mut device = SharedDevice::open(name, device.mode, &places.pins.join(name))?;
    let records = Records::open(places.state.join("ports").join(name));
    let records = records.map_err(failed("keep records of ports"))?;
    let usage = Usage::open(places.state.join("usage").join(format!("{name}.json")));
    let mut usage = usage.map_err(failed("read what users have sent"))?;
    let mut shared_ports = std::collections::BTreeMap::new();
    let known = records
        .read()
        .map_err(failed("read the records of ports"))?;
    let there: Vec<_> = device.ports().collect();
    for record in known {
        if !there.contains(&record.port) {
            // It ended when no rnicd ran.
            let sent = found(name, device.port_counters(record.port));
            usage.see_port(record.port, sent.as_ref(), None);
            usage.end_port(record.port, record.uid);
            usage.keep();
            records.forget(record.port);
            continue;
        }
        usage.add_port(record.port, record.uid);
        let take = |resource, amount| quotas.adopt(record.uid, resource, amount);
        let held = vec![
            take(quota::Resource::Ports, 1),
            take(quota::Resource::Frames, record.frames.into()),
            take(quota::Resource::Hugepages, record.huge_octets),
        ];
        let port = Port {
            client: None,
            _held: held,
            leases: Default::default(),
            follows: Default::default(),
            record,
        };
        shared_ports.insert(port.record.port, port);
    }
    for (number, local) in device.leases()? {
        if let Some(port) = shared_ports.get_mut(&number) {
            // Which of them listen is not known any more.
            let lease = Lease {
                _held: quotas.adopt(port.record.uid, quota::Resource::Connections, 1),
                since: None,
            };
            port.leases.insert(local, lease);
        }
    }
    // Nobody could show that such a port is its own.
    for number in there
        .into_iter()
        .filter(|number| !shared_ports.contains_key(number))
    {
        warn!("{name}: port {number} has no record and ends");
        device.end_port(number)?;
    }
    Ok(Shared {
        device,
        records,
        usage,
        ports: shared_ports,
        destinations: Default::default(),
    })
}

/// Takes the socket that systemd listens on, or makes one that the group may connect to.
fn listener(
    places: &Places,
    activated: Option<OwnedFd>,
    config: &Config,
    policy: &Policy,
) -> Result<OwnedFd, ServeError> {
    if let Some(listener) = activated {
        fcntl(&listener, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))
            .map_err(|error| system("use the socket of systemd")(error.into()))?;
        return Ok(listener);
    }
    let path = places.socket.as_ref().unwrap_or(&config.socket.value);
    let made = listen(path, policy.socket_gid());
    made.map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => ServeError::Running { path: path.clone() },
        _ => ServeError::Listen {
            path: path.clone(),
            source,
        },
    })
}

fn listen(path: &Path, gid: u32) -> io::Result<OwnedFd> {
    if let Some(directory) = path.parent() {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o755).create(directory)?;
    }
    let new = || {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        socket::socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
    };
    let address = UnixAddr::new(path)?;
    // A socket that nobody serves is one of an rnicd that was killed.
    let probe = new()?;
    if socket::connect(probe.as_raw_fd(), &address).is_ok() {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = new()?;
    socket::bind(listener.as_raw_fd(), &address)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o660))?;
    chown(path, None, Some(gid))?;
    socket::listen(&listener, Backlog::new(BACKLOG)?)?;
    Ok(listener)
}
