//! Asks rnicd for a port of a device.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::unbounded;

use super::channel::{Channel, ChannelError};
use super::net::ManagedNet;
use super::protocol::{Answer, Ask, FromDaemon, Grant, Reply, Request, VERSION};
use super::session::Session;
use crate::error::OpenError;
use crate::port::{
    BusyPoll, Control, GrantedPort, PortConfig, PortReport, PortShape, XdpPort, ZeroCopy,
};
use crate::tx_checksum::TxOffload;

/// How long rnicd may take for each step.
const PATIENCE: Duration = Duration::from_secs(10);

/// rnicd, connected, and what it offers.
pub struct Manager {
    channel: Channel,
    path: std::path::PathBuf,
    program: String,
    devices: Vec<String>,
    next_id: u64,
}

impl Manager {
    /// Connects to the rnicd that listens at a path.
    pub fn connect(path: &Path) -> Result<Self, ChannelError> {
        let channel = Channel::connect(path, PATIENCE)?;
        let mut manager = Self {
            channel,
            path: path.to_owned(),
            program: program(),
            devices: Vec::new(),
            next_id: 1,
        };
        let hello = Ask::Hello {
            version: VERSION,
            program: manager.program.clone(),
        };
        if let (Answer::Welcome { devices, .. }, _) = manager.ask(hello)? {
            manager.devices = devices;
        }
        Ok(manager)
    }

    /// Returns whether this user may have ports of a device.
    pub fn offers(&self, netdev: &str) -> bool {
        self.devices.iter().any(|device| device == netdev)
    }

    /// Asks for a port of a device.
    pub fn open(mut self, config: &PortConfig) -> Result<(XdpPort, ManagedNet), OpenError> {
        config.check()?;
        let netdev = || config.netdev.clone();
        let ask = Ask::OpenPort {
            netdev: netdev(),
            rx_frames: config.rx_frames,
            tx_frames: config.tx_frames,
            tx_ring: config.tx_ring,
        };
        let refused = |reason: String| OpenError::Refused {
            netdev: netdev(),
            reason,
        };
        let answer = self.ask(ask);
        let (answer, descriptors) = answer.map_err(|error| refused(error.to_string()))?;
        let grant = match answer {
            Answer::Port(grant) => grant,
            Answer::Refused(why) => return Err(refused(why.message)),
            _ => return Err(refused("rnicd gave a wrong answer".into())),
        };
        let descriptors: [OwnedFd; 2] = descriptors
            .try_into()
            .map_err(|_| refused("rnicd sent no descriptors".into()))?;
        let [socket, memory] = descriptors;
        let shape = shape(config, &grant);
        let port = GrantedPort::open(
            (socket, memory),
            &shape,
            report(&grant),
            grant.partial_checksums,
        )?;
        let nonblocking = self.channel.set_nonblocking();
        nonblocking.map_err(|error| refused(error.to_string()))?;

        let (errands, receiver) = unbounded();
        let session = Session::new(
            (self.path, self.program),
            (grant.port, grant.token),
            (self.channel, self.next_id),
            receiver,
        );
        let policies = Arc::default();
        let control = Control::start(policies, move |requests, bell| {
            session.run(&requests, &bell)
        })?;
        let net = ManagedNet {
            netdev: grant.netdev,
            port: grant.port,
            errands,
            control: control.handle().clone(),
        };
        Ok((XdpPort::granted(port, control), net))
    }

    /// Asks for something, and waits for the answer.
    fn ask(&mut self, ask: Ask) -> Result<(Answer, Vec<OwnedFd>), ChannelError> {
        let id = self.next_id;
        self.next_id += 1;
        self.channel.send(&Request { id, ask }, &[])?;
        loop {
            match self.channel.receive()? {
                (FromDaemon::Answer(Reply { id: of, answer }), descriptors) if of == id => {
                    return Ok((answer, descriptors));
                }
                // Notices on a port that the worker is not there for yet: it gets the state when it asks.
                _ => {}
            }
        }
    }
}

/// Returns the sizes of what was granted.
fn shape(config: &PortConfig, grant: &Grant) -> PortShape {
    PortShape {
        chunk: grant.chunk,
        chunks: grant.chunks,
        rx_frames: config.rx_frames,
        rx_chunks: grant.rx_chunks,
        tx_chunks: grant.tx_chunks,
        fill_ring: grant.rings.fill,
        completion_ring: grant.rings.completion,
        rx_ring: grant.rings.rx,
        tx_ring: grant.rings.tx,
    }
}

fn report(grant: &Grant) -> PortReport {
    PortReport {
        netdev: grant.netdev.clone(),
        mode: grant.mode.clone(),
        queues: 1,
        workers: 1,
        numa_node: None,
        busy_poll: BusyPoll::Off,
        zero_copy: match &grant.copied {
            Some(why) => ZeroCopy::Off(why.clone()),
            None => ZeroCopy::On,
        },
        tx_checksum: TxOffload::Off,
        huge_pages: grant.huge_pages,
        chunk: grant.chunk,
        chunks: grant.chunks,
        link_mtu: grant.link_mtu,
        mtu: grant.mtu,
    }
}

/// Returns the name of this program, for rnicd's log.
fn program() -> String {
    let name = std::env::current_exe().ok();
    let name = name.as_deref().and_then(Path::file_name);
    let name = name.map(|name| name.to_string_lossy().into_owned());
    let printable = |name: String| {
        name.chars()
            .filter(|char| !char.is_control())
            .take(64)
            .collect()
    };
    name.map_or_else(|| "?".to_owned(), printable)
}
