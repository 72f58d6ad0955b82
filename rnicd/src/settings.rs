//! What holds: the configuration, and over it what administrators have set with `rnic-ctl` while
//! rnicd runs. That lies in a file of the state directory, in the form of the configuration, so
//! that the next rnicd has it too.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::config::{Config, ConfigError, Device, Fault, Faults, Who};
use crate::places::Places;
use crate::policy::{Policy, uid};

/// The configuration, and what was set over it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Both together.
    pub config: Config,
    /// The rules that follow.
    pub policy: Policy,
    /// The configuration alone.
    base: Config,
    /// What was set, or why that does not count.
    set: Result<Config, String>,
    /// The file of what was set.
    file: PathBuf,
}

impl Settings {
    /// Reads both files. It is no error if nothing was set.
    pub fn read(places: &Places) -> Result<Self, ConfigError> {
        let (base, file) = (Config::read(&places.config)?, places.set());
        let bad = |why: String| ConfigError::Set {
            why,
            file: file.clone(),
        };
        let text = match fs::read_to_string(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            read => read.map_err(|error| bad(error.to_string()))?,
        };
        let set = Config::parse_set(&text, &file).map_err(|faults| bad(faults.to_string()))?;
        // What is wrong without it is a fault of the configuration.
        Policy::new(&base)?;
        Self::of(base, set, file.clone()).map_err(|faults| bad(faults.to_string()))
    }

    /// Reads both files. If what was set does not hold, only the configuration counts.
    pub fn read_what_holds(places: &Places) -> Result<Self, ConfigError> {
        match Self::read(places) {
            Err(error @ ConfigError::Set { .. }) => {
                let base = Config::read(&places.config)?;
                Ok(Self {
                    policy: Policy::new(&base)?,
                    config: base.clone(),
                    base,
                    set: Err(error.to_string()),
                    file: places.set(),
                })
            }
            read => read,
        }
    }

    fn of(base: Config, set: Config, file: PathBuf) -> Result<Self, Faults> {
        let config = laid_over(&base, &set);
        Ok(Self {
            policy: Policy::new(&config)?,
            config,
            base,
            set: Ok(set),
            file,
        })
    }

    /// Returns why what was set does not count, if it does not.
    pub fn damage(&self) -> Option<&str> {
        self.set.as_ref().err().map(String::as_str)
    }

    /// Returns the devices that are to be shared.
    pub fn shared_devices(&self) -> impl Iterator<Item = &Device> {
        let devices = self.config.devices.iter();
        devices.filter(|device| device.is_shared())
    }

    /// Returns a device that is to be shared.
    pub fn shared_device(&self, netdev: &str) -> Option<&Device> {
        let mut devices = self.shared_devices();
        devices.find(|device| device.name.value == netdev)
    }

    /// Returns what would hold with a change of what was set, or says why it cannot be.
    pub fn with(
        &self,
        change: impl FnOnce(&mut Config) -> Result<(), String>,
    ) -> Result<Self, String> {
        let mut set = self.set.clone()?;
        change(&mut set)?;
        // Once more from the text, which gives each value its line.
        let set = Config::parse_set(&set.set_text(), &self.file);
        let settings = set.and_then(|set| Self::of(self.base.clone(), set, self.file.clone()));
        settings.map_err(|faults| self.in_words(faults))
    }

    /// Describes what is wrong with a change. The faults of its own lines come without the name of
    /// a file, because that file is not written.
    fn in_words(&self, faults: Faults) -> String {
        let word = |fault: &Fault| match *fault.file == *self.file {
            true => fault.what.clone(),
            false => fault.to_string(),
        };
        faults
            .faults
            .iter()
            .map(word)
            .collect::<Vec<_>>()
            .join("; ")
    }

    /// Returns what would hold if a device were shared, or no more, from now on.
    pub fn with_shared(&self, netdev: &str, shared: bool) -> Result<Self, String> {
        let devices = self.base.devices.iter();
        let base = devices.clone().find(|device| device.name.value == netdev);
        self.with(|set| {
            let wanted = (base.map(Device::is_shared) != Some(shared)).then_some(shared);
            if base.is_none() && !shared {
                set.devices.retain(|device| device.name.value != netdev);
            } else {
                set.share(netdev, wanted);
            }
            Ok(())
        })
    }

    /// Writes what was set, for the next rnicd. A reader finds all of it, before or after the
    /// change.
    pub fn keep(&self) -> io::Result<()> {
        let Ok(set) = &self.set else {
            return Ok(());
        };
        if set.devices.is_empty() && set.users.is_empty() {
            return match fs::remove_file(&self.file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        }
        fs::create_dir_all(self.file.parent().unwrap_or(Path::new("/")))?;
        let part = self.file.with_extension("part");
        fs::write(&part, set.set_text())?;
        // Nothing of it is secret, and `rnicd --show-config` is for everybody.
        fs::set_permissions(&part, Permissions::from_mode(0o644))?;
        fs::rename(part, &self.file)
    }
}

/// Returns a configuration with what was set over it.
fn laid_over(base: &Config, set: &Config) -> Config {
    let mut config = base.clone();
    for device in &set.devices {
        let name = &device.name.value;
        let known = config
            .devices
            .iter_mut()
            .find(|known| known.name.value == *name);
        match known {
            Some(known) => {
                known.shared = device.shared.clone().or(known.shared.take());
                known.mode = device.mode.clone().or(known.mode.take());
                let forwarding = device.forwarding.clone();
                known.forwarding = forwarding.or(known.forwarding.take());
            }
            // How it would be shared does not say that it is.
            None if device.shared.is_some() => config.devices.push(device.clone()),
            None => {}
        }
    }
    let mut numbers: Vec<_> = config
        .users
        .iter()
        .map(|user| number(&user.who.value))
        .collect();
    for user in &set.users {
        let whose = number(&user.who.value);
        let known = numbers
            .iter()
            .position(|known| known.is_some() && *known == whose);
        if let Some(known) = known.and_then(|at| config.users.get_mut(at)) {
            let rule = std::mem::take(&mut known.rule);
            known.rule = user.rule.clone().over(rule);
        } else {
            config.users.push(user.clone());
            numbers.push(whose);
        }
    }
    config
}

/// Returns the number of a user, if there is such a user.
fn number(who: &Who) -> Option<u32> {
    match who {
        Who::Id(number) => Some(*number),
        Who::Name(name) => uid(name).ok(),
    }
}
