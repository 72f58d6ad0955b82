//! Who may have what: the rules of the configuration, by the numbers of users and groups.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::unistd::{Group, User};

use crate::config::{
    Config, Fault, Faults, Limits, OBSERVERS, Origin, Rule, Setting, Subject, Who,
};
use crate::owners::{Owners, Subordinate, local_uid};

/// The rules of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    defaults: Limits,
    groups: HashMap<u32, Rule>,
    users: HashMap<u32, Rule>,
    socket_gid: u32,
    observers_gid: u32,
    classes: Vec<Door>,
    owners: Owners,
}

/// A socket at which all who connect count as one user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Door {
    /// Where it is.
    pub socket: PathBuf,
    /// The group whose members may connect.
    pub gid: u32,
    /// The user as whom they count.
    pub uid: u32,
}

impl Policy {
    /// Finds the numbers of the users and groups that a configuration names, and everything that is
    /// wrong with them.
    pub fn new(config: &Config) -> Result<Self, Faults> {
        let mut faults = Found {
            file: &config.file,
            faults: Faults::default(),
        };
        check_devices(config, &mut faults);
        check_protection(config, &mut faults);
        let group = &config.socket_group;
        let socket_gid = match gid(&group.value) {
            Ok(gid) => gid,
            Err(what) => {
                faults.add(&group.origin, what);
                0
            }
        };
        let observers_gid = observers_gid(&config.observer_group, &mut faults);
        let classes = classes(config, &mut faults);
        let subordinate = subordinate(config, &mut faults);
        let groups = by_number(&config.groups, "[[group]]", gid, &mut faults);
        let users = by_number(&config.users, "[[user]]", uid, &mut faults);
        faults.faults.check()?;
        Ok(Self {
            defaults: config.defaults.clone(),
            groups,
            users,
            socket_gid,
            observers_gid,
            classes,
            owners: Owners::read(subordinate),
        })
    }

    /// Returns the group whose members may connect.
    pub fn socket_gid(&self) -> u32 {
        self.socket_gid
    }

    /// Returns the group whose members may observe: that of root, if this host does not have the
    /// one that is so by default.
    pub fn observers_gid(&self) -> u32 {
        self.observers_gid
    }

    /// Returns the sockets at which all count as one user.
    pub fn classes(&self) -> &[Door] {
        &self.classes
    }

    /// Returns the user as whom a user counts: that of its subordinate ids, unless a rule is for
    /// this one.
    pub fn account(&self, uid: u32) -> u32 {
        match self.users.contains_key(&uid) {
            true => uid,
            false => self.owners.owner(uid),
        }
    }

    /// Returns what a user in these groups may have: what the rule for the user says, else the most
    /// generous of the rules for its groups, key by key, else the defaults.
    pub fn limits(&self, uid: u32, gids: &[u32]) -> Limits {
        let rules = gids.iter().filter_map(|gid| self.groups.get(gid).cloned());
        let groups = rules.reduce(Rule::most).unwrap_or_default();
        let limits = self.defaults.clone().overruled_by(&groups);
        match self.users.get(&uid) {
            Some(rule) => limits.overruled_by(rule),
            None => limits,
        }
    }

    /// Returns whether a TCP port is `protected` for somebody.
    pub fn protects(&self, port: u16) -> bool {
        let rules = self.groups.values().chain(self.users.values());
        let mut lists = rules.filter_map(|rule| rule.protected.as_ref());
        self.defaults.protected.value.contains(port) || lists.any(|list| list.value.contains(port))
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
        // A default that does not suit this host: the file can say something else, from its first
        // line on.
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

fn observers_gid(group: &Setting<String>, faults: &mut Found<'_>) -> u32 {
    match gid(&group.value) {
        Ok(gid) => gid,
        // Root alone observes where nobody has made the group.
        Err(_) if group.value == OBSERVERS => 0,
        Err(what) => {
            faults.add(&group.origin, what);
            0
        }
    }
}

/// Returns the number of a user that is named, or given by it.
fn number(who: &Setting<Who>, faults: &mut Found<'_>) -> Option<u32> {
    match &who.value {
        Who::Id(number) => Some(*number),
        Who::Name(name) => match uid(name) {
            Ok(number) => Some(number),
            Err(what) => {
                faults.add(&who.origin, what);
                None
            }
        },
    }
}

fn classes(config: &Config, faults: &mut Found<'_>) -> Vec<Door> {
    let mut doors: Vec<Door> = Vec::new();
    for class in &config.classes {
        let (socket, group) = (&class.socket, &class.socket_group);
        let taken = |door: &Door| door.socket == socket.value;
        if socket.value == config.socket.value || doors.iter().any(taken) {
            let what = format!(
                "{} is there twice; choose another path",
                socket.value.display()
            );
            faults.add(&socket.origin, what);
        }
        let gid = gid(&group.value).map_err(|what| faults.add(&group.origin, what));
        if let (Ok(gid), Some(uid)) = (gid, number(&class.who, faults)) {
            doors.push(Door {
                socket: socket.value.clone(),
                gid,
                uid,
            });
        }
    }
    doors
}

fn subordinate(config: &Config, faults: &mut Found<'_>) -> Vec<Subordinate> {
    let ranges = config.subordinates.iter();
    let ranges = ranges.filter_map(|range| {
        let owner = number(&range.who, faults)?;
        Some(Subordinate {
            first: range.first,
            count: range.count,
            owner,
        })
    });
    ranges.collect()
}

/// Returns the number of a user.
pub(crate) fn uid(name: &str) -> Result<u32, String> {
    if let Some(uid) = local_uid(name) {
        return Ok(uid);
    }
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

/// Finds fault with what is said of IPsec.
fn check_protection(config: &Config, faults: &mut Found<'_>) {
    let numbers = config.devices.iter();
    let numbers: Vec<_> = numbers
        .filter_map(|device| device.ipsec_if_id.as_ref())
        .collect();
    for (at, number) in numbers.iter().enumerate() {
        let mut before = numbers[..at].iter();
        if let Some(first) = before.find(|first| first.value == number.value) {
            let (value, first) = (number.value, &first.origin);
            let what = format!(
                "another device has the ipsec_if_id {value:#x} too, at {first}; give each its own, and policies and associations with \
                 it"
            );
            faults.add(&number.origin, what);
        }
    }
    let rules = config.groups.iter().chain(&config.users);
    let lists = rules.filter_map(|subject| subject.rule.protected.as_ref());
    let automatic = &config.automatic_ports;
    for Setting { value, origin } in lists.chain([&config.defaults.protected]) {
        if !value.0.is_empty() && numbers.is_empty() {
            let what = "no [[device]] has an ipsec_if_id, which says which policies protect; add it, or remove this";
            faults.add(origin, what.into());
        }
        let meets = |range: &&std::ops::RangeInclusive<u16>| {
            range.start() <= automatic.value.end() && automatic.value.start() <= range.end()
        };
        if value.0.iter().find(meets).is_some() {
            let (first, last) = (automatic.value.start(), automatic.value.end());
            let what = format!(
                "some of them are automatic_ports ({first}-{last}), which any connection may get; choose others"
            );
            faults.add(origin, what);
        }
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
