//! `rnic-ctl user`: what users hold of rnicd, and may have.

use clap::Subcommand;
use nix::unistd::geteuid;
use rnic_manager::states::{Configured, UserState};

use super::access::{ObjectArgs, Style, failed};
use super::line::Line;
use super::settings::Settings;
use super::words::Users;
use crate::failure::{Failure, Outcome};

/// Shows what users hold of each resource, and may hold, and changes what they may.
///
/// It shows the users that have ports or are connected; users other than root see themselves. With
/// -d also who has set the limits.
///
/// What root sets counts at once and over rnicd.toml, until the system ends, for new ports and
/// leases: what users hold already stays as it was granted. `rnicd --show-config` marks it.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Verb {
    /// Show the users, or one of them
    #[command(visible_alias = "list", alias = "s")]
    Show {
        /// The name or number of the user
        user: Option<String>,
    },
    /// Change what a user may have: devices, ports, frames, listen, protected, listeners,
    /// connections, rate, peers, hugepages, crc
    Set {
        /// The name or number of the user
        user: String,
        #[command(flatten)]
        settings: Settings,
    },
    /// Take back all that was set for a user: rnicd.toml alone counts again
    Del {
        /// The name or number of the user
        user: String,
    },
}

/// Runs the command.
pub(crate) fn run(args: &ObjectArgs<Verb>, style: Style) -> Outcome {
    const CHANGE: &str = "change what a user may have";
    match &args.verb {
        None => show(args, None, style),
        Some(Verb::Show { user }) => show(args, user.as_deref(), style),
        Some(Verb::Set { user, settings }) => {
            let changes = settings.changes(CHANGE)?;
            let set = args.access.connect()?.set_user(user, changes);
            set.map_err(failed(CHANGE))
        }
        Some(Verb::Del { user }) => {
            let reset = args.access.connect()?.reset_user(user);
            reset.map_err(failed(CHANGE))
        }
    }
}

fn show(args: &ObjectArgs<Verb>, wanted: Option<&str>, style: Style) -> Outcome {
    let users = args.access.connect()?.users();
    let mut users = users.map_err(failed("show the users"))?;
    let mut names = Users::default();
    if let Some(wanted) = wanted {
        users.retain(|user| user.uid.to_string() == wanted || names.name(user.uid) == wanted);
        if users.is_empty() {
            let why = match geteuid().is_root() {
                true => format!(
                    "{wanted} has no port and is not connected; `rnicd --show-config` shows the limits of all users"
                ),
                false => format!("you do not see {wanted}: only root sees others (`sudo`)"),
            };
            return Err(Failure::operation("show the users", why));
        }
    }
    let lines: Vec<_> = users.iter().map(|user| line(user, &mut names)).collect();
    args.access.print(style, &lines)
}

fn line(user: &UserState, names: &mut Users) -> Line {
    let mut line = Line::default()
        .with("user", names.name(user.uid))
        .with("uid", user.uid)
        .with("connections_to_rnicd", user.connections);
    for holding in &user.resources {
        let at = |inner: &str| format!("{}.{inner}", holding.resource);
        line = line
            .with(at("held"), holding.held)
            .with(at("limit"), holding.limit)
            .detail(at("set_by"), holding.set_by.as_str());
    }
    for Configured { key, value, set_by } in &user.settings {
        line = line
            .with(format!("{key}.limit"), value.as_str())
            .detail(format!("{key}.set_by"), set_by.as_str());
    }
    line
}
