//! What `rnic-ctl` sets while rnicd runs: a configuration of devices and users alone.

use rnic_manager::protocol::Change;

use super::fault::{Fault, Setting};
use super::rule::Rule;
use super::table::unknown_key;
use super::value::toml_string;
use super::{Config, Device, Subject, Who, mode_name};

/// The keys of a device that can be set. Whether it is shared is set by adding and removing it.
const DEVICE_KEYS: [&str; 2] = ["xdp_mode", "forwarding"];

/// What stands at the head of the file.
const HEAD: &str = "\
# What rnic-ctl has set (`rnic-ctl dev`, `rnic-ctl user`), which counts over rnicd.toml. rnicd writes this file; without it,
# rnicd.toml alone counts.
";

impl Config {
    /// Returns the device of a name, which is added if need be.
    fn device_mut(&mut self, netdev: &str) -> &mut Device {
        let devices = &mut self.devices;
        let found = devices.iter().position(|known| known.name.value == netdev);
        let at = found.unwrap_or_else(|| {
            devices.push(Device::new(Setting::built_in(netdev.to_owned())));
            devices.len() - 1
        });
        &mut devices[at]
    }

    /// Sets whether a device is shared. With `None` the setting says nothing of it.
    pub fn share(&mut self, netdev: &str, shared: Option<bool>) {
        let device = self.device_mut(netdev);
        device.shared = shared.map(Setting::built_in);
        self.drop_if_silent(netdev);
    }

    /// Removes a device of which nothing is said.
    fn drop_if_silent(&mut self, netdev: &str) {
        let says = |device: &Device| {
            device.shared.is_some() || device.mode.is_some() || device.forwarding.is_some()
        };
        self.devices
            .retain(|device| device.name.value != netdev || says(device));
    }

    /// Changes what is said of a device, or says what is wrong with the changes.
    pub fn change_device(&mut self, netdev: &str, changes: &[Change]) -> Result<(), String> {
        let toml = |key: &str, words: &str| {
            let known = DEVICE_KEYS.contains(&key);
            known.then(|| toml_string(words))
        };
        let name = format!("name = {}", toml_string(netdev));
        let mut said = self.read_changes("[[device]]", &name, changes, &DEVICE_KEYS, toml)?;
        let device = self.device_mut(netdev);
        let forget = |key| {
            let mut changes = changes.iter();
            changes.any(|change| change.key == key && change.value.is_none())
        };
        if forget("xdp_mode") {
            device.mode = None;
        }
        if forget("forwarding") {
            device.forwarding = None;
        }
        if let Some(said) = said.devices.pop() {
            device.mode = said.mode.or(device.mode.take());
            device.forwarding = said.forwarding.or(device.forwarding.take());
        }
        self.drop_if_silent(netdev);
        Ok(())
    }

    /// Changes what is said of a user, or says what is wrong with the changes.
    pub fn change_user(&mut self, uid: u32, changes: &[Change]) -> Result<(), String> {
        let who = format!("uid = {uid}");
        let mut said = self.read_changes("[[user]]", &who, changes, &Rule::KEYS, Rule::toml)?;
        let mut rule = self.take_user(uid).unwrap_or_default();
        for change in changes.iter().filter(|change| change.value.is_none()) {
            rule.forget(&change.key);
        }
        if let Some(said) = said.users.pop() {
            rule = said.rule.over(rule);
        }
        if rule != Rule::default() {
            let who = Setting::built_in(Who::Id(uid));
            self.users.push(Subject { who, rule });
        }
        Ok(())
    }

    /// Removes and returns what is said of a user, if anything is.
    pub fn take_user(&mut self, uid: u32) -> Option<Rule> {
        let who = Who::Id(uid);
        let at = self.users.iter().position(|user| user.who.value == who)?;
        Some(self.users.remove(at).rule)
    }

    /// Reads the new values of a table of this title.
    fn read_changes(
        &self,
        title: &str,
        whose: &str,
        changes: &[Change],
        known: &[&str],
        toml: impl Fn(&str, &str) -> Option<String>,
    ) -> Result<Self, String> {
        let mut text = format!("{title}\n{whose}\n");
        for (at, Change { key, value }) in changes.iter().enumerate() {
            if changes[..at].iter().any(|before| before.key == *key) {
                return Err(format!("{key} is there twice; say it once"));
            }
            let value = value.as_deref().unwrap_or_default();
            let value = toml(key, value).ok_or_else(|| unknown_key(key, title, known))?;
            if changes[at].value.is_some() {
                text += &format!("{key} = {value}\n");
            }
        }
        Self::parse_set(&text, &self.file).map_err(|faults| {
            // Its lines are those of no file.
            let whats: Vec<_> = faults
                .faults
                .into_iter()
                .map(|Fault { what, .. }| what)
                .collect();
            whats.join("; ")
        })
    }

    /// Returns the text of a file that says of devices and users what this does, and nothing else.
    pub fn set_text(&self) -> String {
        let mut text = HEAD.to_owned();
        for device in &self.devices {
            text += &format!("\n[[device]]\nname = {}\n", toml_string(&device.name.value));
            if let Some(shared) = &device.shared {
                text += &format!("shared = {}\n", shared.value);
            }
            if let Some(mode) = &device.mode {
                text += &format!("xdp_mode = {}\n", toml_string(mode_name(mode.value)));
            }
            if let Some(forwarding) = &device.forwarding {
                let name = forwarding.value.name();
                text += &format!("forwarding = {}\n", toml_string(name));
            }
        }
        for Subject { who, rule } in &self.users {
            let who = match &who.value {
                Who::Name(name) => format!("name = {}", toml_string(name)),
                Who::Id(number) => format!("uid = {number}"),
            };
            text += &format!("\n[[user]]\n{who}\n{rule}");
        }
        text
    }
}
