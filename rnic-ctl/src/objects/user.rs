//! `rnic-ctl user`: what users hold of rnicd, and may hold.

use clap::{Args, Subcommand};
use rnic_xdp::manager::states::UserState;

use super::access::{Access, Style, failed};
use super::line::Line;
use super::words::Users;
use crate::failure::{Failure, Outcome};

/// Shows what users hold of each resource, and may hold.
///
/// It shows the users that have ports or are connected. With -d also who has set the limits.
#[derive(Clone, Debug, Args)]
pub(crate) struct UserArgs {
    #[command(flatten)]
    access: Access,

    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Clone, Debug, Subcommand)]
enum Verb {
    /// Show the users, or one of them
    #[command(visible_alias = "list")]
    Show {
        /// The name or number of the user
        user: Option<String>,
    },
}

/// Runs the command.
pub(crate) fn run(args: &UserArgs, style: Style) -> Outcome {
    let wanted = args
        .verb
        .as_ref()
        .and_then(|Verb::Show { user }| user.as_deref());
    let users = args.access.connect()?.users();
    let mut users = users.map_err(failed("show the users"))?;
    let mut names = Users::default();
    if let Some(wanted) = wanted {
        users.retain(|user| user.uid.to_string() == wanted || names.name(user.uid) == wanted);
        if users.is_empty() {
            let why = format!(
                "{wanted} has no port and is not connected; `rnicd --show-config` shows the limits of all users"
            );
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
    line
}
