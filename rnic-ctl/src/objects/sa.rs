//! `rnic-ctl sa`: the Security Associations that rnic can take, asked of the kernel itself.

use clap::Subcommand;
use nix::unistd::geteuid;
use rnic_manager::states::AssociationState;
use rnic_xdp::facts::{AssociationFacts, associations};

use super::access::{ObjectArgs, Style};
use super::line::Line;
use super::words::Users;
use crate::failure::{Failure, Outcome};

const WHAT: &str = "show the IPsec associations";

/// Shows the host's associations of ESP that have a number (`if_id`), which `--ipsec-if-id` and
/// rnicd's `ipsec_if_id` take, with the port of rnicd that has the keys.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Verb {
    /// Show them, as root
    #[command(visible_alias = "list")]
    Show,
}

/// Runs the command.
pub(crate) fn run(args: &ObjectArgs<Verb>, style: Style) -> Outcome {
    let (Some(Verb::Show) | None) = args.verb;
    let found = associations().map_err(|why| match geteuid().is_root() {
        true => Failure::environment(WHAT, why),
        false => Failure::environment(WHAT, "only root may (`sudo`)"),
    })?;
    // Without rnicd no port has any.
    let given = args.access.administrator().ok();
    let given = given.and_then(|mut administrator| administrator.associations().ok());
    let given = given.unwrap_or_default();
    let mut users = Users::default();
    let lines: Vec<_> = found
        .iter()
        .map(|found| {
            let is_same = |one: &&AssociationState| {
                (one.spi, one.destination) == (found.id.spi, found.id.destination)
            };
            line(found, given.iter().find(is_same), &mut users)
        })
        .collect();
    args.access.print(style, &lines)
}

fn line(found: &AssociationFacts, given: Option<&AssociationState>, users: &mut Users) -> Line {
    let (mode, algorithm, why) = match &found.usable {
        Ok((mode, algorithm)) => (Some(mode.to_string()), Some(algorithm.to_string()), None),
        Err(why) => (None, None, Some(why.clone())),
    };
    Line::default()
        .with("sa", format!("{:#010x}", found.id.spi))
        .with("src", found.source.to_string())
        .with("dst", found.id.destination.to_string())
        .with("if_id", format!("{:#x}", found.if_id))
        .with("port", given.map(|given| given.port))
        .with("user", given.map(|given| users.name(given.uid)))
        .with("mode", mode)
        .with("algorithm", algorithm)
        .with("encap", found.encapsulation.map(|ports| ports.to_string()))
        .with("unusable", why)
        .with("esn", found.extended)
        .with("replay_window", found.window)
        .unless_zero("numbers_taken", found.taken)
        .unless_zero("highest_received", found.received)
        .unless_zero("octets", found.octets)
        .unless_zero("packets", found.packets)
}
