//! The configuration: `/etc/rnic/rnicd.toml`, and what `rnic-ctl` sets while rnicd runs.

mod change;
mod fault;
mod rule;
mod table;
mod value;

use std::fmt;
use std::fs;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rnic_manager::{is_device_name, protocol};
use rnic_xdp::steering::ModeChoice;
use toml::de::{DeTable, DeValue};

pub use fault::{Fault, Faults, Origin, Setting};
pub use rule::{Limits, Rule};
use table::{Layer, Reader, Table};
pub use value::{AllowedPeers, Count, Crc, Devices, Memory, Queue, Queues, Rate, TcpPorts, words};
use value::{Value, range, toml_string};

/// Where the configuration is, unless the command line says otherwise.
pub const PATH: &str = "/etc/rnic/rnicd.toml";

/// The group whose members may observe by default. Where it does not exist, root alone may.
pub const OBSERVERS: &str = "rnic-metrics";
/// Behind those that Linux chooses from by default (32768 to 60999).
const AUTOMATIC_PORTS: RangeInclusive<u16> = 61000..=65535;

/// The most octets of the path of a Unix socket on Linux.
const MAX_SOCKET_PATH: usize = 107;

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}; --config names another file", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// What `rnic-ctl` has set does not hold.
    #[error("what rnic-ctl has set does not count: {why}; correct {} or remove it, then reload rnicd (`systemctl reload rnicd`)", file.display())]
    Set {
        /// Why.
        why: String,
        /// The file that has it.
        file: PathBuf,
    },
    /// The file says what makes no sense.
    #[error(transparent)]
    Faulty(#[from] Faults),
}

/// What the file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The file.
    pub file: Arc<Path>,
    /// The Unix socket at which clients connect.
    pub socket: Setting<PathBuf>,
    /// The group whose members may connect.
    pub socket_group: Setting<String>,
    /// The group whose members may observe.
    pub observer_group: Setting<String>,
    /// Sockets at which all clients count as one user.
    pub classes: Vec<Class>,
    /// Ids that count as another user's, beside those of /etc/subuid.
    pub subordinates: Vec<Range>,
    /// From where TCP ports are taken for connections and listeners that do not care.
    pub automatic_ports: Setting<RangeInclusive<u16>>,
    /// The devices that rnicd shares out.
    pub devices: Vec<Device>,
    /// What users may have of whom no other rule says it.
    pub defaults: Limits,
    /// Rules for groups.
    pub groups: Vec<Subject>,
    /// Rules for users.
    pub users: Vec<Subject>,
}

/// A device that rnicd shares out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name.
    pub name: Setting<String>,
    /// Whether it is shared, if that is said.
    pub shared: Option<Setting<bool>>,
    /// Its XDP mode, if that is said.
    pub mode: Option<Setting<ModeChoice>>,
    /// Whether it is shared although this host forwards, if that is said.
    pub forwarding: Option<Setting<Forwarding>>,
    /// The number (`if_id`) of the host's IPsec policies and associations of which clients have
    /// some, if that is said.
    pub ipsec_if_id: Option<Setting<NonZeroU32>>,
}

/// What becomes of a device while this host forwards for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwarding {
    /// It is not shared.
    Refuse,
    /// It is shared all the same.
    Accept,
}

impl Forwarding {
    /// Returns its word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Refuse => "refuse",
            Self::Accept => "accept",
        }
    }
}

impl Device {
    /// Makes a device of which nothing is said.
    pub fn new(name: Setting<String>) -> Self {
        Self {
            name,
            shared: None,
            mode: None,
            forwarding: None,
            ipsec_if_id: None,
        }
    }

    /// Returns whether it is shared.
    pub fn is_shared(&self) -> bool {
        self.shared.as_ref().is_none_or(|shared| shared.value)
    }

    /// Returns whether it is shared while this host forwards, and who has set that.
    pub fn forwarding(&self) -> Setting<Forwarding> {
        let forwarding = self.forwarding.clone();
        forwarding.unwrap_or_else(|| Setting::built_in(Forwarding::Refuse))
    }

    /// Returns its XDP mode, and who has set it.
    pub fn mode(&self) -> Setting<ModeChoice> {
        let mode = self.mode.clone();
        mode.unwrap_or_else(|| Setting::built_in(ModeChoice::Auto))
    }
}

/// A socket at which all clients count as one user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// Where it is.
    pub socket: Setting<PathBuf>,
    /// The group whose members may connect.
    pub socket_group: Setting<String>,
    /// The user as whom they count.
    pub who: Setting<Who>,
}

/// Ids of users that count as another user's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first of them.
    pub first: u32,
    /// How many they are.
    pub count: u32,
    /// As whom they count.
    pub who: Setting<Who>,
}

/// A rule, and for whom it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// For whom.
    pub who: Setting<Who>,
    /// What it says.
    pub rule: Rule,
}

/// A user or a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// By its name.
    Name(String),
    /// By its number.
    Id(u32),
}

impl Who {
    /// Writes a line of TOML.
    fn write(&self, f: &mut fmt::Formatter<'_>, id: &str) -> fmt::Result {
        match self {
            Self::Name(name) => writeln!(f, "name = {}", toml_string(name)),
            Self::Id(number) => writeln!(f, "{id} = {number}"),
        }
    }
}

impl Config {
    /// Makes the configuration of an empty file.
    pub fn new(file: &Path) -> Self {
        Self {
            file: file.into(),
            socket: Setting::built_in(protocol::SOCKET.into()),
            socket_group: Setting::built_in("rnic".to_owned()),
            observer_group: Setting::built_in(OBSERVERS.to_owned()),
            classes: Vec::new(),
            subordinates: Vec::new(),
            automatic_ports: Setting::built_in(AUTOMATIC_PORTS),
            devices: Vec::new(),
            defaults: Limits::default(),
            groups: Vec::new(),
            users: Vec::new(),
        }
    }

    /// Reads a file.
    pub fn read(file: &Path) -> Result<Self, ConfigError> {
        let text = fs::read_to_string(file).map_err(|source| ConfigError::Unreadable {
            file: file.to_owned(),
            source,
        })?;
        Ok(Self::parse(&text, file)?)
    }

    /// Reads the text of a file, and finds everything that is wrong with it.
    pub fn parse(text: &str, file: &Path) -> Result<Self, Faults> {
        Self::parse_layer(text, file, Layer::Configuration)
    }

    /// Reads the text of a file of what `rnic-ctl` has set: of devices and users alone.
    pub fn parse_set(text: &str, file: &Path) -> Result<Self, Faults> {
        Self::parse_layer(text, file, Layer::RunTime)
    }

    fn parse_layer(text: &str, file: &Path, layer: Layer) -> Result<Self, Faults> {
        let mut config = Self::new(file);
        let mut reader = Reader::new(text, Arc::clone(&config.file), layer);
        let (root, errors) = DeTable::parse_recoverable(text);
        for error in &errors {
            let at = error.span().map_or(0, |span| span.start);
            // What follows the first line only repeats what was expected.
            let what = error.message().replace('\n', "; ");
            reader.fault(at, format!("this is no TOML: {what}"));
        }
        // What is left of a broken file would bring up faults that it does not have.
        if errors.is_empty() {
            let known = match layer {
                Layer::Configuration => KEYS.as_slice(),
                Layer::RunTime => &["device", "user"],
            };
            let root = Table::new(&mut reader, "the file", root.get_ref(), 0, known);
            config.take(&mut reader, &root);
        }
        reader.faults.check()?;
        Ok(config)
    }

    fn take(&mut self, reader: &mut Reader<'_>, root: &Table<'_, '_>) {
        let path = |value: &DeValue<'_>| socket_path(value.as_str()?).ok();
        if let Some(socket) = root.read(reader, "socket", SOCKET_FORM, path) {
            self.socket = socket;
        }
        let form = "the name of a group, such as \"rnic\"";
        if let Some(group) = root.read(reader, "socket_group", form, name) {
            self.socket_group = group;
        }
        if let Some(group) = root.read(reader, "observer_group", form, name) {
            self.observer_group = group;
        }
        let form = "a range of TCP ports, such as \"61000-65535\"";
        let ports = |value: &DeValue<'_>| value.as_str().and_then(|_| range(value));
        if let Some(ports) = root.read(reader, "automatic_ports", form, ports) {
            self.automatic_ports = ports;
        }
        for (table, at) in root.tables(reader, "class") {
            self.take_class(reader, table, at);
        }
        for (table, at) in root.tables(reader, "subordinate") {
            self.take_subordinate(reader, table, at);
        }
        for (table, at) in root.tables(reader, "device") {
            let table = Table::new(
                reader,
                "[[device]]",
                table,
                at,
                &["name", "shared", "xdp_mode", "forwarding", "ipsec_if_id"],
            );
            self.take_device(reader, &table);
        }
        if let Some((table, at)) = root.table(reader, "defaults") {
            let table = Table::new(reader, "[defaults]", table, at, &Rule::KEYS);
            let rule = Rule::read(reader, &table);
            self.defaults = Limits::default().overruled_by(&rule);
        }
        for (table, at) in root.tables(reader, "group") {
            self.groups
                .extend(subject(reader, "[[group]]", table, at, "gid"));
        }
        for (table, at) in root.tables(reader, "user") {
            self.users
                .extend(subject(reader, "[[user]]", table, at, "uid"));
        }
    }

    fn take_class(&mut self, reader: &mut Reader<'_>, table: &DeTable<'_>, at: usize) {
        let known = ["socket", "socket_group", "name", "uid"];
        let table = Table::new(reader, "[[class]]", table, at, &known);
        let path = |value: &DeValue<'_>| socket_path(value.as_str()?).ok();
        let socket = table.read(reader, "socket", SOCKET_FORM, path);
        let group = table.read(reader, "socket_group", "the name of a group", name);
        let who = who(reader, "[[class]]", &table, "uid");
        if table.get("socket").is_none() {
            let what = format!("[[class]] has no socket; it must be {SOCKET_FORM}");
            reader.fault(at, what);
        }
        if let (Some(socket), Some(who)) = (socket, who) {
            let socket_group = group.unwrap_or_else(|| self.socket_group.clone());
            self.classes.push(Class {
                socket,
                socket_group,
                who,
            });
        }
    }

    fn take_subordinate(&mut self, reader: &mut Reader<'_>, table: &DeTable<'_>, at: usize) {
        let known = ["name", "uid", "first", "count"];
        let table = Table::new(reader, "[[subordinate]]", table, at, &known);
        let who = who(reader, "[[subordinate]]", &table, "uid");
        let number = |value: &DeValue<'_>| u32::try_from(Count::read(value)?.0).ok();
        let form = "a number, such as 100000";
        let first = table.read(reader, "first", form, number);
        let count = table.read(reader, "count", form, number);
        for key in ["first", "count"] {
            if table.get(key).is_none() {
                reader.fault(
                    at,
                    format!("[[subordinate]] has no {key}; it must be {form}"),
                );
            }
        }
        if let (Some(who), Some(first), Some(count)) = (who, first, count) {
            let (first, count) = (first.value, count.value);
            self.subordinates.push(Range { first, count, who });
        }
    }

    fn take_device(&mut self, reader: &mut Reader<'_>, table: &Table<'_, '_>) {
        let form = "the name of a network device, such as \"eth1\"";
        let named = |value: &DeValue<'_>| name(value).filter(|name| is_device_name(name));
        let form_of_mode = "\"auto\", \"native\" or \"generic\"";
        let mode = table.read(reader, "xdp_mode", form_of_mode, |value| {
            let name = value.as_str()?;
            MODES
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, mode)| *mode)
        });
        let form_of_forwarding = "\"refuse\" or \"accept\"";
        let forwarding = table.read(reader, "forwarding", form_of_forwarding, |value| {
            let known = [Forwarding::Refuse, Forwarding::Accept];
            let name = value.as_str()?;
            known.into_iter().find(|known| known.name() == name)
        });
        let form_of_number = "a number from 1 to 0xffffffff, such as 0x524e";
        let ipsec_if_id = table.read(reader, "ipsec_if_id", form_of_number, |value| {
            let number = value.as_integer()?;
            let number = u32::from_str_radix(number.as_str(), number.radix()).ok()?;
            NonZeroU32::new(number)
        });
        let shared = table.read(reader, "shared", "true or false", DeValue::as_bool);
        let Some(name) = table.read(reader, "name", form, named) else {
            if table.get("name").is_none() {
                reader.fault(
                    table.at,
                    format!("[[device]] has no name; it must be {form}"),
                );
            }
            return;
        };
        if let Some(first) = self
            .devices
            .iter()
            .find(|device| device.name.value == name.value)
        {
            let what = format!(
                "[[device]] {:?} is there twice, first at {}; remove one",
                name.value, first.name.origin
            );
            return reader.fault(table.at, what);
        }
        self.devices.push(Device {
            name,
            shared,
            mode,
            forwarding,
            ipsec_if_id,
        });
    }
}

/// The keys of the file.
const KEYS: [&str; 10] = [
    "socket",
    "socket_group",
    "observer_group",
    "automatic_ports",
    "class",
    "subordinate",
    "device",
    "defaults",
    "group",
    "user",
];

/// The words for XDP modes.
const MODES: [(&str, ModeChoice); 3] = [
    ("auto", ModeChoice::Auto),
    ("native", ModeChoice::Native),
    ("generic", ModeChoice::Generic),
];

/// Returns the word for an XDP mode.
pub fn mode_name(mode: ModeChoice) -> &'static str {
    let found = MODES.iter().find(|(_, known)| *known == mode);
    found.map_or("auto", |(name, _)| name)
}

fn name(value: &DeValue<'_>) -> Option<String> {
    let text = value.as_str().filter(|text| !text.is_empty())?;
    Some(text.to_owned())
}

/// What the path of a socket must be.
const SOCKET_FORM: &str =
    "an absolute path of at most 107 octets, such as \"/run/rnic/rnicd.sock\"";

/// Returns the path of a Unix socket, if this can be one; else what it must be.
pub fn socket_path(text: &str) -> Result<PathBuf, String> {
    let fits = text.starts_with('/') && text.len() <= MAX_SOCKET_PATH && !text.contains('\0');
    if fits {
        Ok(text.into())
    } else {
        Err(format!("it must be {SOCKET_FORM}"))
    }
}

/// Reads a rule for a user or a group, which it names, or gives as a number under the key `id`.
fn subject(
    reader: &mut Reader<'_>,
    title: &'static str,
    table: &DeTable<'_>,
    at: usize,
    id: &'static str,
) -> Option<Subject> {
    let mut known = vec!["name", id];
    known.extend(Rule::KEYS);
    let table = Table::new(reader, title, table, at, &known);
    let rule = Rule::read(reader, &table);
    let who = who(reader, title, &table, id)?;
    Some(Subject { who, rule })
}

/// Reads for whom a table is: a name, or a number under the key `id`.
fn who(
    reader: &mut Reader<'_>,
    title: &'static str,
    table: &Table<'_, '_>,
    id: &'static str,
) -> Option<Setting<Who>> {
    let at = table.at;
    let form = format!("a number, such as {id} = 1000");
    let number = |value: &DeValue<'_>| match Count::read(value) {
        // The last one stands for "no change" in system calls.
        Some(Count(number)) => u32::try_from(number).ok().filter(|id| *id != u32::MAX),
        None => None,
    };
    let by_name = table.read(reader, "name", "a name, such as \"alice\"", |value| {
        name(value).map(Who::Name)
    });
    let by_id = table.read(reader, id, &form, |value| number(value).map(Who::Id));
    let who = match (table.get("name"), table.get(id)) {
        (Some(_), None) => by_name?,
        (None, Some(_)) => by_id?,
        (Some(_), Some(_)) => {
            reader.fault(at, format!("{title} has both name and {id}; remove one"));
            return None;
        }
        (None, None) => {
            reader.fault(
                at,
                format!("{title} has neither name nor {id}; say for whom it is"),
            );
            return None;
        }
    };
    Some(who)
}

/// As a file that says all of it, defaults included; in the alternate form with what was set while
/// rnicd runs.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let socket = self.socket.value.display().to_string();
        writeln!(f, "socket = {}", toml_string(&socket))?;
        writeln!(
            f,
            "socket_group = {}",
            toml_string(&self.socket_group.value)
        )?;
        let observers = toml_string(&self.observer_group.value);
        writeln!(f, "observer_group = {observers}")?;
        let ports = &self.automatic_ports.value;
        let ports = format!("{}-{}", ports.start(), ports.end());
        writeln!(f, "automatic_ports = {}", toml_string(&ports))?;
        for class in &self.classes {
            let socket = class.socket.value.display().to_string();
            write!(f, "\n[[class]]\nsocket = {}\n", toml_string(&socket))?;
            let group = toml_string(&class.socket_group.value);
            writeln!(f, "socket_group = {group}")?;
            class.who.value.write(f, "uid")?;
        }
        for Range { first, count, who } in &self.subordinates {
            f.write_str("\n[[subordinate]]\n")?;
            who.value.write(f, "uid")?;
            write!(f, "first = {first}\ncount = {count}\n")?;
        }
        for device in &self.devices {
            let name = &device.name;
            write!(f, "\n[[device]]\nname = {}", toml_string(&name.value))?;
            name.origin.end_line(f)?;
            write!(f, "shared = {}", device.is_shared())?;
            let shared = device.shared.as_ref();
            shared
                .map_or(&Origin::BuiltIn, |shared| &shared.origin)
                .end_line(f)?;
            let mode = device.mode();
            write!(f, "xdp_mode = {}", toml_string(mode_name(mode.value)))?;
            mode.origin.end_line(f)?;
            let forwarding = device.forwarding();
            write!(f, "forwarding = {}", toml_string(forwarding.value.name()))?;
            forwarding.origin.end_line(f)?;
            if let Some(number) = &device.ipsec_if_id {
                write!(f, "ipsec_if_id = {:#x}", number.value)?;
                number.origin.end_line(f)?;
            }
        }
        f.write_str("\n[defaults]\n")?;
        self.defaults.fmt(f)?;
        for (title, id, subjects) in [("group", "gid", &self.groups), ("user", "uid", &self.users)]
        {
            for subject in subjects {
                write!(f, "\n[[{title}]]\n")?;
                subject.who.value.write(f, id)?;
                subject.rule.fmt(f)?;
            }
        }
        Ok(())
    }
}
