//! What administrators change while rnicd runs. It counts at once, and for the next rnicd too. It
//! touches no port but those of a device that is shared no more.

use std::time::Instant;

use rnic_manager::protocol::{Answer, Change, Reason, Refused};
use rnic_manager::states::Event;
use tracing::{info, warn};

use crate::administration::Answered;
use crate::devices::cannot_share;
use crate::policy::uid;
use crate::server::Server;
use crate::settings::Settings;
use crate::shared::ClientKey;

impl Server {
    /// Shares a device.
    pub(crate) fn add_device(
        &mut self,
        key: ClientKey,
        netdev: &str,
        changes: &[Change],
    ) -> Answered {
        self.check_root(key, "add devices")?;
        if self.shares(netdev) {
            let why = format!(
                "rnicd shares {netdev} already; `rnic-ctl dev set {netdev}` changes how it does"
            );
            return Err(other(why));
        }
        let settings = self.settings.with_shared(netdev, true);
        let settings =
            settings.and_then(|settings| settings.with(|set| set.change_device(netdev, changes)));
        let before = self.switch(settings.map_err(other)?)?;
        if let Err(why) = self.open_device(netdev) {
            self.switch_back(before);
            return Err(other(cannot_share(netdev, &why)));
        }
        self.changed(format!("{netdev} was added by an administrator"));
        done()
    }

    /// Shares a device no more.
    pub(crate) fn remove_device(&mut self, key: ClientKey, netdev: &str, force: bool) -> Answered {
        self.check_root(key, "remove devices")?;
        self.check_wanted(netdev)?;
        if !force {
            self.check_unused(
                netdev,
                &format!("`rnic-ctl dev del {netdev} --force` ends them"),
            )?;
        }
        let settings = self.settings.with_shared(netdev, false);
        let settings =
            settings.map_err(|why| other(format!("{netdev} cannot be removed: {why}")))?;
        self.switch(settings)?;
        self.changed(format!("{netdev} was removed by an administrator"));
        self.stop_sharing(|name| name == netdev);
        done()
    }

    /// Changes how a device is shared.
    pub(crate) fn set_device(
        &mut self,
        key: ClientKey,
        netdev: &str,
        changes: &[Change],
        force: bool,
    ) -> Answered {
        self.check_root(key, "change devices")?;
        self.check_wanted(netdev)?;
        let settings = self.settings.with(|set| set.change_device(netdev, changes));
        let settings = settings.map_err(other)?;
        let device = settings.shared_device(netdev);
        let mode = device.map(|device| device.mode().value).unwrap_or_default();
        let mut devices = self.devices.iter();
        let opened = devices.find(|shared| shared.device.netdev() == netdev);
        let anew = opened.is_some_and(|shared| shared.choice != mode);
        if anew && !force {
            let remedy = format!(
                "a change of xdp_mode ends them: `rnic-ctl dev set {netdev} ... --force` does it"
            );
            self.check_unused(netdev, &remedy)?;
        }
        let before = self.switch(settings)?;
        self.changed(format!(
            "{netdev}: an administrator has set {}",
            in_words(changes)
        ));
        if anew {
            self.stop_sharing(|name| name == netdev);
            if let Err(why) = self.open_device(netdev) {
                self.switch_back(before);
                // It is opened again as it was.
                self.look_at = Instant::now();
                return Err(other(cannot_share(netdev, &why)));
            }
        }
        done()
    }

    /// Changes what a user may have.
    pub(crate) fn set_user(&mut self, key: ClientKey, user: &str, changes: &[Change]) -> Answered {
        self.check_root(key, "change what users may have")?;
        let uid = number(user).map_err(other)?;
        let settings = self.settings.with(|set| set.change_user(uid, changes));
        self.switch(settings.map_err(other)?)?;
        self.changed(format!(
            "uid {uid}: an administrator has set {}",
            in_words(changes)
        ));
        done()
    }

    /// Reverts what was changed for a user.
    pub(crate) fn reset_user(&mut self, key: ClientKey, user: &str) -> Answered {
        self.check_root(key, "change what users may have")?;
        let uid = number(user).map_err(other)?;
        let mut found = false;
        let settings = self.settings.with(|set| {
            found = set.take_user(uid).is_some();
            Ok(())
        });
        let settings = settings.map_err(other)?;
        if !found {
            let why = format!(
                "nothing was set for uid {uid} with rnic-ctl; `rnicd --show-config` shows what was set"
            );
            return Err(other(why));
        }
        self.switch(settings)?;
        self.changed(format!(
            "uid {uid}: an administrator has taken back what was set"
        ));
        done()
    }

    /// Puts other settings in force, and keeps them for the next rnicd. Returns those before.
    fn switch(&mut self, settings: Settings) -> Result<Settings, Refused> {
        settings.keep().map_err(|error| {
            let file = self.places.set();
            let why = format!("rnicd cannot write {}: {error}", file.display());
            other(why)
        })?;
        let before = std::mem::replace(&mut self.settings, settings);
        self.say_who_may_protect();
        Ok(before)
    }

    fn switch_back(&mut self, before: Settings) {
        if let Err(error) = before.keep() {
            let file = self.places.set();
            warn!("{} has what could not be done: {error}", file.display());
        }
        self.settings = before;
    }

    /// Logs that something was changed, and announces it.
    pub(crate) fn changed(&mut self, what: String) {
        info!("{what}");
        self.announce(Event::SettingsChanged { what });
    }

    /// Finds fault with a device that is not to be shared anyway.
    fn check_wanted(&self, netdev: &str) -> Result<(), Refused> {
        match self.settings.shared_device(netdev) {
            Some(_) => Ok(()),
            None => Err(other(format!(
                "rnicd does not share {netdev}; `rnic-ctl dev show` lists what it shares"
            ))),
        }
    }

    /// Finds fault with a device that has ports.
    fn check_unused(&self, netdev: &str, remedy: &str) -> Result<(), Refused> {
        let mut devices = self.devices.iter();
        let shared = devices.find(|shared| shared.device.netdev() == netdev);
        match shared.map_or(0, |shared| shared.ports.len()) {
            0 => Ok(()),
            ports => Err(other(format!(
                "{netdev} has {ports} port{} in use (`rnic-ctl port show`); {remedy}",
                if ports == 1 { "" } else { "s" }
            ))),
        }
    }
}

/// Returns the number of a user that is named, or given by its number.
fn number(user: &str) -> Result<u32, String> {
    match user.parse() {
        // This one stands for "no change" in system calls.
        Ok(u32::MAX) => Err(format!("{user} is no number of a user")),
        Ok(number) => Ok(number),
        Err(_) => uid(user),
    }
}

fn in_words(changes: &[Change]) -> String {
    let words = changes.iter().map(|change| match &change.value {
        Some(value) => format!("{} = {value}", change.key),
        None => format!("{} as configured", change.key),
    });
    words.collect::<Vec<_>>().join(", ")
}

fn other(why: String) -> Refused {
    Refused::new(Reason::Other, why)
}

fn done() -> Answered {
    Ok((Answer::Done, Vec::new()))
}
