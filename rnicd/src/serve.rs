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

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{self, AddressFamily, Backlog, SockFlag, SockType, UnixAddr};
use rnic_xdp::manager::states::Event;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tracing::{debug, error, info, warn};

use crate::claim::{Claim, ClaimError};
use crate::config::ConfigError;
use crate::notify::{self, ActivationError};
pub use crate::places::Places;
use crate::server::Server;
use crate::settings::Settings;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// Why rnicd does not run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The configuration is not there or has faults.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// What systemd passed is no socket for clients.
    #[error(transparent)]
    Activation(#[from] ActivationError),
    /// Another rnicd has its directories, or they cannot be made.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// The socket could not be made.
    #[error(
        "cannot listen at {}: {source}; start rnicd as root (`systemctl start rnicd`), or name a socket in a directory that this user \
         may write to (--socket)",
        path.display()
    )]
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
    let settings = Settings::read_what_holds(places)?;
    if let Some(why) = settings.damage() {
        error!("{why}; until then {} alone counts", places.config.display());
    }
    let _state = Claim::make(&places.state)?;
    let pins = pins(places)?;
    let listener = listener(places, activated, &settings)?;
    let mut server = Server::new(listener, places.clone(), settings);
    server.pins = pins;
    server.open_missing();
    let mut status = server.status();
    say(notify::ready(&status));
    let watchdog = notify::watchdog_interval();
    while !signals.end.load(Ordering::Relaxed) {
        let at_most = server.until_opening().into_iter().chain(watchdog).min();
        let turned = server.turn(signals.wake.as_fd(), at_most);
        if turned.map_err(system("wait for clients"))? {
            signals.silence();
        }
        if watchdog.is_some() {
            say(notify::alive());
        }
        if signals.reload.swap(false, Ordering::Relaxed) {
            say(notify::reloading());
            reload(&mut server);
            status = server.status();
            say(notify::ready(&status));
        }
        server.open_missing();
        let now = server.status();
        if now != status {
            say(notify::status(&now));
            status = now;
        }
    }
    info!("ends; ports and their connections go on");
    say(notify::stopping());
    Ok(())
}

/// Claims the directory of the pinned maps, if it can be made yet.
fn pins(places: &Places) -> Result<Option<Claim>, ClaimError> {
    match Claim::make(&places.pins) {
        Ok(claim) => Ok(Some(claim)),
        Err(taken @ ClaimError::Taken { .. }) => Err(taken),
        Err(error) => {
            debug!("{error}");
            Ok(None)
        }
    }
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
fn reload(server: &mut Server) {
    match Settings::read(&server.places) {
        Ok(settings) => {
            let config = server.places.config.display();
            server.changed(format!("{config} was read again"));
            server.settings = settings;
            server.share_what_is_wanted();
        }
        Err(why) => {
            error!("the configuration stays as it was: {why}");
            let why = why.to_string();
            server.announce(Event::ReloadRefused { why });
        }
    }
}

/// Takes the socket that systemd listens on, or makes one that the group may connect to.
fn listener(
    places: &Places,
    activated: Option<OwnedFd>,
    settings: &Settings,
) -> Result<OwnedFd, ServeError> {
    if let Some(listener) = activated {
        fcntl(&listener, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))
            .map_err(|error| system("use the socket of systemd")(error.into()))?;
        return Ok(listener);
    }
    let path = places
        .socket
        .as_ref()
        .unwrap_or(&settings.config.socket.value);
    let made = listen(path, settings.policy.socket_gid());
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
