//! Who may have what: the rules of the configuration, by the numbers of users and groups.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;
use std::sync::Arc;

use nix::unistd::{Group, User};

use crate::config::{Config, Fault, Faults, Limits, Origin, Rule, Setting, Subject, Who};

/// The rules of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    defaults: Limits,
    groups: HashMap<u32, Rule>,
    users: HashMap<u32, Rule>,
    socket_gid: u32,
}

impl Policy {
    /// Finds the numbers of the users and groups that a configuration names, and everything that is wrong with them.
    pub fn new(config: &Config) -> Result<Self, Faults> {
        let mut faults = Found {
            file: &config.file,
            faults: Faults::default(),
        };
        check_devices(config, &mut faults);
        let group = &config.socket_group;
        let socket_gid = match gid(&group.value) {
            Ok(gid) => gid,
            Err(what) => {
                faults.add(&group.origin, what);
                0
            }
        };
        let groups = by_number(&config.groups, "[[group]]", gid, &mut faults);
        let users = by_number(&config.users, "[[user]]", uid, &mut faults);
        faults.faults.check()?;
        Ok(Self {
            defaults: config.defaults.clone(),
            groups,
            users,
            socket_gid,
        })
    }

    /// Returns the group whose members may connect.
    pub fn socket_gid(&self) -> u32 {
        self.socket_gid
    }

    /// Returns what a user in these groups may have: what the rule for the user says, else the most generous of the rules for its
    /// groups, key by key, else the defaults.
    pub fn limits(&self, uid: u32, gids: &[u32]) -> Limits {
        let rules = gids.iter().filter_map(|gid| self.groups.get(gid).cloned());
        let groups = rules.reduce(Rule::most).unwrap_or_default();
        let limits = self.defaults.clone().overruled_by(&groups);
        match self.users.get(&uid) {
            Some(rule) => limits.overruled_by(rule),
            None => limits,
        }
    }
}

/// What was found wrong so far.
struct Found<'a> {
    /// The configuration.
    file: &'a Arc<Path>,
    faults: Faults,
}

impl Found<'_> {
    fn add(&mut self, origin: &Origin, what: String) {
        // A default that does not suit this host: the file can say something else, from its first line on.
        let (file, line) = origin.place().unwrap_or((self.file, 1));
        let file = Arc::clone(file);
        self.faults.faults.push(Fault { file, line, what });
    }
}

/// Returns the rules by the numbers of whom they are for.
fn by_number(
    subjects: &[Subject],
    title: &str,
    find: impl Fn(&str) -> Result<u32, String>,
    faults: &mut Found<'_>,
) -> HashMap<u32, Rule> {
    let mut rules: HashMap<u32, (&Subject, Rule)> = HashMap::new();
    for subject in subjects {
        let number = match &subject.who.value {
            Who::Id(number) => Ok(*number),
            Who::Name(name) => find(name),
        };
        let origin = &subject.who.origin;
        match number.map(|number| (number, rules.entry(number))) {
            Ok((_, Entry::Vacant(vacant))) => {
                vacant.insert((subject, subject.rule.clone()));
            }
            Ok((number, Entry::Occupied(taken))) => {
                let first = &taken.get().0.who.origin;
                let what =
                    format!("{title} for {number} is there twice, first at {first}; make them one");
                faults.add(origin, what);
            }
            Err(what) => faults.add(origin, what),
        }
    }
    let rules = rules.into_iter();
    rules.map(|(number, (_, rule))| (number, rule)).collect()
}

/// Returns the number of a user.
pub(crate) fn uid(name: &str) -> Result<u32, String> {
    match User::from_name(name) {
        Ok(Some(user)) => Ok(user.uid.as_raw()),
        Ok(None) => Err(format!(
            "there is no user {name:?}; make one (`useradd {name}`), or remove the rule"
        )),
        Err(error) => Err(format!(
            "cannot look up the user {name:?}: {error}; use uid = in place of name ="
        )),
    }
}

fn gid(name: &str) -> Result<u32, String> {
    match Group::from_name(name) {
        Ok(Some(group)) => Ok(group.gid.as_raw()),
        Ok(None) => Err(format!(
            "there is no group {name:?}; make one (`groupadd --system {name}`), or name another"
        )),
        Err(error) => Err(format!("cannot look up the group {name:?}: {error}")),
    }
}

/// Finds fault with rules for devices that rnicd does not have.
fn check_devices(config: &Config, faults: &mut Found<'_>) {
    let rules = config.groups.iter().chain(&config.users);
    let mut check = |name: &String, origin: &Origin| {
        let mut devices = config.devices.iter();
        if !devices.any(|device| device.name.value == *name) {
            let what = format!("no [[device]] has the name {name:?}; add it, or remove it here");
            faults.add(origin, what);
        }
    };
    let lists = rules
        .clone()
        .filter_map(|subject| subject.rule.devices.as_ref());
    for Setting { value, origin } in lists.chain([&config.defaults.devices]) {
        let names = value.0.iter().flatten();
        names.for_each(|name| check(name, origin));
    }
    let lists = rules.filter_map(|subject| subject.rule.queues.as_ref());
    for Setting { value, origin } in lists.chain([&config.defaults.queues]) {
        let queues = value.0.iter();
        queues.for_each(|queue| check(&queue.netdev, origin));
    }
}
