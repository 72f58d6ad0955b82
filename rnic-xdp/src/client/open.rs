//! Asks rnicd for a port of a device.

use std::os::fd::OwnedFd;
use std::path::Path;

use crossbeam_channel::{Sender, unbounded};
use rnic_core::esp::RequiredPorts;
use rnic_manager::Inspection;
use rnic_manager::channel::ChannelError;
use rnic_manager::dialogue::{Dialogue, program};
use rnic_manager::protocol::{Answer, Ask, Grant, UntaggedAddress, Withheld};

use super::net::ManagedNet;
use super::protection::PortProtection;
use super::session::Session;
use crate::device::error::OpenError;
use crate::device::interface::{
    BusyPoll, Control, GrantedPort, HostIpsec, InterfaceConfig, InterfaceReport, PortShape,
    XdpInterface, ZeroCopy,
};
use crate::device::netlink::device_name;
use crate::device::steering::{Mode, ModeChoice};
use crate::device::tx_checksum::{TxChecksum, TxOffload};

/// rnicd, connected, and what it offers.
pub struct Manager {
    dialogue: Dialogue,
    path: std::path::PathBuf,
    program: String,
    devices: Vec<String>,
    withheld: Vec<Withheld>,
    inspections: Option<Sender<Inspection>>,
}

impl Manager {
    /// Connects to the rnicd that listens at a path.
    pub fn connect(path: &Path) -> Result<Self, ChannelError> {
        let program = program();
        let (dialogue, answer) = Dialogue::connect(path, &program)?;
        let (devices, withheld) = match answer {
            Answer::Welcome {
                devices, withheld, ..
            } => (devices, withheld),
            _ => Default::default(),
        };
        Ok(Self {
            dialogue,
            path: path.to_owned(),
            program,
            devices,
            withheld,
            inspections: None,
        })
    }

    /// Sends [inspections](Inspection) of the port to somebody who answers them. One that the
    /// channel has no room for is not answered, and without this none is.
    pub fn with_inspections(self, inspections: Sender<Inspection>) -> Self {
        Self {
            inspections: Some(inspections),
            ..self
        }
    }

    /// Returns whether this user may have ports of a device.
    pub fn offers(&self, netdev: &str) -> bool {
        self.offered(netdev).is_some()
    }

    /// Returns the name by which rnicd shares a device, if this user may have ports of it. Where
    /// the device is in this network namespace, it may be called by an alternative name too.
    fn offered(&self, netdev: &str) -> Option<&str> {
        let named = |name: &str| self.devices.iter().find(|device| *device == name);
        let by_name = named(netdev);
        let by_first = || named(&device_name(netdev)?);
        let by_other = || {
            let first = device_name(netdev)?;
            let is_same = |other: &&String| device_name(other).as_ref() == Some(&first);
            self.devices.iter().find(is_same)
        };
        by_name
            .or_else(by_first)
            .or_else(by_other)
            .map(String::as_str)
    }

    /// Returns the devices that this user may have ports of.
    pub fn devices(&self) -> &[String] {
        &self.devices
    }

    /// Returns why this user gets no port of a device now, if rnicd is to share it with this user.
    pub fn waits_for(&self, netdev: &str) -> Option<&str> {
        let mut withheld = self.withheld.iter();
        let found = withheld.find(|withheld| withheld.netdev == netdev)?;
        Some(&found.why)
    }

    /// Asks for a port of a device.
    pub fn open(
        mut self,
        config: &InterfaceConfig,
    ) -> Result<(XdpInterface, ManagedNet), OpenError> {
        config.check()?;
        let offered = self.offered(&config.netdev).map(str::to_owned);
        let netdev = || offered.clone().unwrap_or_else(|| config.netdev.clone());
        let ask = Ask::OpenPort {
            netdev: netdev(),
            rx_frames: config.rx_frames,
            tx_frames: config.tx_frames,
            tx_ring: config.tx_ring,
            queue: config.queue,
        };
        let refused = |reason: String| OpenError::Refused {
            netdev: netdev(),
            reason,
        };
        // Notices on a port that the worker is not there for yet: it gets the state when it asks.
        let answer = self.dialogue.ask(ask, |_| ());
        let (answer, descriptors) = answer.map_err(|error| refused(error.to_string()))?;
        let grant = match answer {
            Answer::Port(grant) => grant,
            Answer::Refused(why) => return Err(refused(why.message)),
            _ => return Err(refused("rnicd gave a wrong answer".into())),
        };
        // Older ones pass over what they do not know.
        if grant.queue != config.queue {
            let why = "this rnicd knows no ports that are hardware queues; upgrade it, or leave the queue out";
            return Err(refused(why.into()));
        }
        if let Some(if_id) = config
            .ipsec_if_id
            .filter(|if_id| grant.ipsec_if_id != Some(*if_id))
        {
            return Err(OpenError::Config {
                field: "ipsec_if_id",
                value: format!("{if_id:#x}"),
                rule: "rnicd shares this interface, and this user gets no keys of associations with this number: see `ipsec_if_id` \
                       and `protected` of rnicd.toml (docs/ipsec.md)",
            });
        }
        let descriptors: [OwnedFd; 2] = descriptors
            .try_into()
            .map_err(|_| refused("rnicd sent no descriptors".into()))?;
        let [socket, memory] = descriptors;
        let shape = shape(config, &grant);
        let port = GrantedPort::open(
            (socket, memory),
            &shape,
            report(config, &grant),
            (grant.partial_checksums, grant.crc_optional),
        )?;
        let required = grant.ipsec_if_id.map(|_| match config.require_protection {
            true => RequiredPorts::all(),
            false => RequiredPorts::none(),
        });
        let port = port.protected(required.clone());
        let Dialogue { channel, next_id } = self.dialogue;
        let nonblocking = channel.set_nonblocking();
        nonblocking.map_err(|error| refused(error.to_string()))?;

        let known = HostIpsec::default();
        let protection = required.clone();
        let protection = protection.map(|ports| PortProtection::new(ports, known.clone()));
        let (errands, receiver) = unbounded();
        let session = Session::new(
            (self.path, self.program),
            (
                grant.port,
                grant.token,
                UntaggedAddress::all(&grant.untagged),
            ),
            (channel, next_id),
            (receiver, self.inspections),
            protection,
        );
        let control = Control::start(known, move |requests, bell| session.run(&requests, &bell))?;
        let net = ManagedNet {
            netdev: grant.netdev,
            port: grant.port,
            errands,
            control: control.handle().clone(),
            required,
        };
        Ok((XdpInterface::granted(port, control), net))
    }
}

/// Returns the sizes of what was granted.
fn shape(config: &InterfaceConfig, grant: &Grant) -> PortShape {
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

fn report(config: &InterfaceConfig, grant: &Grant) -> InterfaceReport {
    InterfaceReport {
        netdev: grant.netdev.clone(),
        mode: grant.mode.clone(),
        queues: 1,
        queue: grant.queue,
        workers: 1,
        numa_node: None,
        busy_poll: match config.busy_poll {
            true => BusyPoll::Refused("a port of rnicd has no interrupts of its own".into()),
            false => BusyPoll::Off,
        },
        zero_copy: match &grant.copied {
            Some(why) => ZeroCopy::Off(why.clone()),
            None => ZeroCopy::On,
        },
        tx_checksum: match config.tx_checksum {
            TxChecksum::Device | TxChecksum::Kernel => {
                TxOffload::Refused("a port of rnicd leaves them to the engine".into())
            }
            TxChecksum::Auto | TxChecksum::Never => TxOffload::Off,
        },
        huge_pages: grant.huge_pages,
        chunk: grant.chunk,
        chunks: grant.chunks,
        link_mtu: grant.link_mtu,
        mtu: grant.mtu,
        ignored: other_mode(config.mode, grant).into_iter().collect(),
    }
}

/// Returns the complaint if another XDP mode was asked for than the one in which the device is
/// shared.
fn other_mode(choice: ModeChoice, grant: &Grant) -> Option<String> {
    let wanted = match (choice, &grant.mode) {
        (ModeChoice::Native, Mode::Generic { .. }) => "native",
        (ModeChoice::Generic, Mode::Native) => "generic",
        _ => return None,
    };
    let netdev = &grant.netdev;
    Some(format!(
        "XDP not {wanted}: a port has the mode in which rnicd shares {netdev} (its xdp_mode)"
    ))
}
