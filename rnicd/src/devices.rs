//! The devices that are to be shared: which are missing, and opening them.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use rnic_manager::states::Event;
use rnic_xdp::shared::MayProtect;
use rnic_xdp::steering::ModeChoice;
use tracing::{info, warn};

use crate::config::{Device, Forwarding, Limits, Setting};
use crate::kernel_settings::{forwards, reserve};
use crate::open::{Held, open};
use crate::server::Server;

/// How often to look again for a device that is not there.
const LOOK_FOR_DEVICES_EVERY: Duration = Duration::from_secs(2);

impl Server {
    /// Returns a line for `systemctl status`.
    pub(crate) fn status(&self) -> String {
        let shared = self.devices.iter().map(|shared| shared.device.netdev());
        let shared = shared.collect::<Vec<_>>().join(", ");
        let missing: Vec<_> = self.missing().collect();
        match missing.as_slice() {
            [] => format!("shares {shared}"),
            names => format!("shares {shared}; waits for {}", names.join(", ")),
        }
    }

    /// Returns whether a device is shared now.
    pub(crate) fn shares(&self, netdev: &str) -> bool {
        let mut devices = self.devices.iter();
        devices.any(|shared| shared.device.netdev() == netdev)
    }

    /// Returns the names of devices that are to be shared and are not.
    fn missing(&self) -> impl Iterator<Item = &str> {
        let wanted = self.settings.shared_devices();
        let names = wanted.map(|device| device.name.value.as_str());
        names.filter(|name| !self.shares(name))
    }

    /// Returns why a device that is to be shared gives clients no ports now, if it gives none.
    pub(crate) fn fault(&self, netdev: &str) -> Option<String> {
        let mut devices = self.devices.iter();
        match devices.find(|shared| shared.device.netdev() == netdev) {
            Some(shared) => shared.device.fault().map(str::to_owned),
            None => {
                self.settings.shared_device(netdev)?;
                let said = self.complaints.get(netdev).cloned();
                Some(said.unwrap_or_else(|| "rnicd has not looked at it yet".to_owned()))
            }
        }
    }

    /// Returns the names of devices that are to be shared and are not.
    pub(crate) fn waiting(&self) -> Vec<String> {
        self.missing().map(str::to_owned).collect()
    }

    /// Returns whether some device that is to be shared is not: its ports are not known.
    pub(crate) fn waits_for_devices(&self) -> bool {
        self.missing().next().is_some()
    }

    /// Returns how long to wait before looking for devices again, if any are missing.
    pub(crate) fn until_opening(&self) -> Option<Duration> {
        let wait = self.look_at.saturating_duration_since(Instant::now());
        self.waits_for_devices().then_some(wait)
    }

    /// Tells the devices what their ports may have protected.
    pub(crate) fn say_who_may_protect(&mut self) {
        let policy = &self.settings.policy;
        for shared in self
            .devices
            .iter_mut()
            .filter(|shared| shared.device.has_associations())
        {
            let ports = shared.ports.iter().map(|(number, port)| {
                let record = &port.record;
                let limits = policy.limits(record.account(), &record.gids);
                (*number, may_protect(&limits, port.protects))
            });
            let may = ports.collect();
            shared.device.may_protect_all(may);
            shared.device.update_protection();
        }
        for (number, local) in self.leases_in_the_clear() {
            let taken = self.take_lease(number, local);
            match taken {
                Ok(_) => info!("port {number}: {local} was revoked, because it is `protected` now"),
                Err(why) => warn!(
                    "port {number}: {local} is `protected` now, and goes on in the clear: {}",
                    why.message
                ),
            }
        }
    }

    /// Lists the leases of TCP ports that are `protected` now, and were not when they were leased.
    fn leases_in_the_clear(&self) -> Vec<(u32, SocketAddr)> {
        let policy = &self.settings.policy;
        let mut found = Vec::new();
        for shared in self
            .devices
            .iter()
            .filter(|shared| shared.device.has_associations())
        {
            for (number, port) in &shared.ports {
                let record = &port.record;
                let limits = policy.limits(record.account(), &record.gids);
                let leases = port.leases.keys().filter(|local| {
                    limits.protected.value.contains(local.port())
                        && !shared.device.is_protected(*number, **local)
                });
                found.extend(leases.map(|local| (*number, *local)));
            }
        }
        found
    }

    /// Stops sharing what is not to be shared any more, and looks at once for what is.
    pub(crate) fn share_what_is_wanted(&mut self) {
        let wanted = self.settings.shared_devices();
        let mut wanted: Vec<_> = wanted.map(|device| device.name.value.clone()).collect();
        // These are opened anew.
        let outdated = self.devices_with_another_number();
        wanted.retain(|name| !outdated.contains(name));
        self.stop_sharing(|name| !wanted.iter().any(|wanted| wanted == name));
        for shared in &mut self.devices {
            shared.device.look_at_program_soon();
        }
        self.say_who_may_protect();
        self.look_at = Instant::now();
    }

    /// Returns the devices that were opened with another `ipsec_if_id` than is configured now, and
    /// that have no ports. Those that have keep it, which the log says.
    fn devices_with_another_number(&self) -> Vec<String> {
        let mut outdated = Vec::new();
        for shared in &self.devices {
            let netdev = shared.device.netdev();
            let (_, wanted) = how(self.settings.shared_device(netdev));
            match shared.ports.len() {
                _ if shared.ipsec_if_id == wanted => {}
                0 => outdated.push(netdev.to_owned()),
                ports => {
                    let words = |number: Option<NonZeroU32>| {
                        number.map_or("none".to_owned(), |number| format!("{number:#x}"))
                    };
                    let [now, wanted] = [shared.ipsec_if_id, wanted].map(words);
                    warn!(
                        "{netdev}: its ipsec_if_id is still {now}, because it has {ports} port{}; it is {wanted} when rnicd starts again, or is \
                         reloaded and it has none",
                        if ports == 1 { "" } else { "s" }
                    );
                }
            }
        }
        outdated
    }

    /// Opens the devices that are missing, if it is time.
    pub(crate) fn open_missing(&mut self) {
        if Instant::now() < self.look_at {
            return;
        }
        self.look_at = Instant::now() + LOOK_FOR_DEVICES_EVERY;
        for name in self.waiting() {
            if let Err(why) = self.open_device(&name)
                && self.complaints.get(&name) != Some(&why)
            {
                warn!("{}", cannot_share(&name, &why));
                self.complaints.insert(name, why);
            }
        }
    }

    /// Opens a device that is to be shared, or says why it cannot be shared.
    pub(crate) fn open_device(&mut self, name: &str) -> Result<(), String> {
        let device = self.settings.shared_device(name);
        let forwarding = device.map(Device::forwarding);
        let how = how(device);
        self.check_forwarding(name, forwarding)?;
        let ports = self.settings.config.automatic_ports.value.clone();
        reserve(&ports);
        let mut held = Held {
            quotas: &self.quotas,
            keeper: &self.keeper,
            found: &mut self.found,
            endings: &mut self.endings,
        };
        let opened = open(&self.places, &mut self.pins, name, how, ports, &mut held);
        let shared = opened.map_err(|why| why.to_string())?;
        info!(
            "shares {name}: XDP {}, {} port{}",
            shared.device.mode(),
            shared.ports.len(),
            if shared.ports.len() == 1 { "" } else { "s" }
        );
        self.complaints.remove(name);
        self.announce(Event::DeviceShared {
            netdev: name.to_owned(),
        });
        self.devices.push(shared);
        self.say_who_may_protect();
        Ok(())
    }
}

impl Server {
    /// Fails if this host forwards for others and nobody has said that it may share all the same.
    /// What is shared already goes on.
    fn check_forwarding(
        &self,
        name: &str,
        said: Option<Setting<Forwarding>>,
    ) -> Result<(), String> {
        let Some(how) = forwards() else {
            return Ok(());
        };
        let accepted = said.is_some_and(|said| said.value == Forwarding::Accept);
        if accepted {
            info!("{name}: {how}; it is shared all the same, as `forwarding` says");
        } else if self.places.pins.join(name).exists() {
            warn!("{name}: {how}; it goes on as it was shared before. {TAKEN}");
        } else {
            return Err(format!(
                "{how}. {TAKEN} Say forwarding = \"accept\" in its [[device]] if that is well"
            ));
        }
        Ok(())
    }
}

/// Returns how a device is to be opened: the XDP mode, and the number of the host's associations that
/// clients may have.
pub(crate) fn how(device: Option<&Device>) -> (ModeChoice, Option<NonZeroU32>) {
    let mode = device.map(|device| device.mode().value).unwrap_or_default();
    let if_id = device.and_then(|device| device.ipsec_if_id.as_ref());
    (mode, if_id.map(|number| number.value))
}

/// Returns what a port of a user may have protected. A client of an older version knows nothing of
/// that.
pub(crate) fn may_protect(limits: &Limits, knows: bool) -> MayProtect {
    let ports = limits.protected.value.0.clone();
    MayProtect {
        ports: if knows { ports } else { Vec::new() },
        peers: limits.peers.value.0.clone(),
    }
}

/// What sharing can take of what a host forwards.
const TAKEN: &str = "What it forwards is left alone, but of what it translates (NAT) a client can have what comes back to, or is \
                     published at, an address of this host and a TCP port that the client may lease (`listen`, `automatic_ports`).";

/// Returns the message that a device cannot be shared now.
pub(crate) fn cannot_share(netdev: &str, why: &str) -> String {
    format!("{netdev} cannot be shared now: {why}")
}
