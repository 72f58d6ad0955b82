//! `rnic run` and `rnic-ctl env`: unmodified RDMA programs over rnic.
//!
//! They load libibverbs.so.1 and librdmacm.so.1. What their environment says decides which they
//! find, and which interfaces those make RDMA devices of.

// libraries, executable, devices < surroundings, tree < sysfs < check, env < run
mod check;
mod devices;
pub(crate) mod env;
mod executable;
mod libraries;
mod run;
mod surroundings;
mod sysfs;
mod tree;

use std::process::ExitCode;

use clap::{Command, Parser, Subcommand};

use crate::completion::{self, CompletionArgs, ManArgs};
use crate::failure::Outcome;

/// Runs unmodified RDMA programs over rnic.
///
/// They load the libibverbs and the librdmacm of rnic, and see its devices: interfaces that rnicd
/// shares with this user, or else, for root, interfaces of this network namespace.
///
/// Exit codes: those of the program; 125 rnic itself failed, 126 the program cannot be executed,
/// 127 there is no such program.
#[derive(Debug, Parser)]
#[command(name = "rnic", version)]
pub(crate) struct Cli {
    /// Print JSON: findings, and why rnic failed
    #[arg(short, long)]
    pub json: bool,

    #[command(subcommand)]
    verb: Verb,
}

/// What to do.
#[derive(Debug, Subcommand)]
enum Verb {
    Run(run::RunArgs),
    Completion(CompletionArgs),
    Man(ManArgs),
}

/// Runs the command `rnic`, whose description is `described`.
pub(crate) fn run(cli: &Cli, described: Command) -> Outcome<ExitCode> {
    match &cli.verb {
        Verb::Run(args) => return run::run(args, cli.json),
        Verb::Completion(args) => completion::completion(args, described)?,
        Verb::Man(args) => completion::man(args, described)?,
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn program(line: &str) -> Result<Vec<String>, clap::Error> {
        match Cli::try_parse_from(line.split_whitespace())?.verb {
            Verb::Run(args) => {
                let words = args.command.iter();
                Ok(words
                    .map(|word| word.to_string_lossy().into_owned())
                    .collect())
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_stands_behind_the_program_is_the_programs() {
        let rping = ["rping", "-c", "--netdev", "--", "-j"];
        for line in [
            "rnic run rping -c --netdev -- -j",
            "rnic run -- rping -c --netdev -- -j",
            "rnic run --netdev eth1,eth2 rping -c --netdev -- -j",
        ] {
            assert_eq!(program(line).unwrap(), rping, "{line}");
        }
        assert!(program("rnic run").is_err());
        assert!(program("rnic run --netdev eth1").is_err());
        assert!(program("rnic run --no-such-option rping").is_err());
    }
}
