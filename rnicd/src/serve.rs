//! Starts what the configuration names, and serves until a signal ends it. What it leaves behind
//! goes on without it: ports, leases and the programs, for the next rnicd to take over.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rnic_manager::Closer;
use rnic_manager::channel::observation_socket;
use rnic_manager::states::Event;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tracing::{debug, error, info, warn};

use crate::claim::{Claim, ClaimError};
use crate::config::ConfigError;
use crate::listeners::{CannotListen, listeners};
use crate::notify::{self, ActivationError};
pub use crate::places::Places;
use crate::server::Server;
use crate::settings::Settings;

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
    /// Clients would not reach their socket.
    #[error(
        "nobody but root may enter {}, but clients are to connect at {}; name a directory of its own for the state (--state)",
        state.display(),
        socket.display()
    )]
    Hidden {
        /// The directory of the state.
        state: PathBuf,
        /// The socket of clients.
        socket: PathBuf,
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

    /// Reads and drops the octets that woke the loop.
    fn silence(&self) {
        let mut octets = [0; 64];
        while io::Read::read(&mut &self.wake, &mut octets).is_ok_and(|read| read > 0) {}
    }
}

/// Serves until SIGTERM or SIGINT. SIGHUP reads the configuration again.
pub fn serve(places: &Places) -> Result<(), ServeError> {
    let activated = notify::activated_sockets()?;
    allow_descriptors();
    let signals = Signals::new().map_err(system("handle signals"))?;
    let settings = Settings::read_what_holds(places)?;
    if let Some(why) = settings.damage() {
        error!("{why}; until then {} alone counts", places.config.display());
    }
    check_reachable(places, &settings)?;
    let _state = Claim::make(&places.state)?;
    // systemd may have made it: nobody else is to read it, and lock it.
    let hidden = fs::set_permissions(&places.state, fs::Permissions::from_mode(0o700));
    hidden.map_err(system("hide the directory of its state"))?;
    let pins = pins(places)?;
    let clients = clients_socket(places, &settings);
    let listeners = listeners(clients, activated, &settings).map_err(cannot_listen)?;
    let closer = Closer::start().map_err(system("start a thread"))?;
    let server = Server::new(listeners, closer, places.clone(), settings);
    let mut server = server.map_err(system("take over what a former rnicd has left"))?;
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

/// Fails if a socket of clients is in the directory of the state, which is root's alone.
fn check_reachable(places: &Places, settings: &Settings) -> Result<(), ServeError> {
    let clients = clients_socket(places, settings);
    let observers = observation_socket(clients);
    let classes = settings.policy.classes().iter().map(|class| &*class.socket);
    let mut sockets = [clients, &*observers].into_iter().chain(classes);
    // A directory that does not exist yet cannot have a second name.
    let state = fs::canonicalize(&places.state).unwrap_or_else(|_| places.state.clone());
    let is_hidden = |socket: &&Path| {
        let directory = socket.parent().unwrap_or(Path::new("/"));
        let real = fs::canonicalize(directory);
        real.as_deref().unwrap_or(directory).starts_with(&state)
    };
    match sockets.find(is_hidden) {
        Some(socket) => Err(ServeError::Hidden {
            state: places.state.clone(),
            socket: socket.to_owned(),
        }),
        None => Ok(()),
    }
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

/// Returns where clients connect.
fn clients_socket<'a>(places: &'a Places, settings: &'a Settings) -> &'a Path {
    let configured = &settings.config.socket.value;
    places.socket.as_ref().unwrap_or(configured)
}

fn cannot_listen(CannotListen { path, source }: CannotListen) -> ServeError {
    match source.kind() {
        io::ErrorKind::AddrInUse => ServeError::Running { path },
        _ => ServeError::Listen { path, source },
    }
}
