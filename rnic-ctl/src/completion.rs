//! `rnic-ctl completion` and `rnic-ctl man`: what a shell and `man` know of the command line.

use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::{Shell, generate};

use crate::failure::{Doing, Failure, Outcome};
use crate::out;

/// Prints a script by which a shell completes the command line.
///
/// For bash: `rnic-ctl completion bash > /etc/bash_completion.d/rnic-ctl`
#[derive(Clone, Debug, Args)]
pub(crate) struct CompletionArgs {
    /// The shell
    shell: Shell,
}

/// Writes the manual pages into a directory, such as /usr/local/share/man/man1
#[derive(Clone, Debug, Args)]
pub(crate) struct ManArgs {
    /// The directory
    directory: PathBuf,
}

/// Prints a script for a shell.
pub(crate) fn completion(args: &CompletionArgs, mut command: Command) -> Outcome {
    let mut script = Vec::new();
    let name = command.get_name().to_owned();
    generate(args.shell, &mut command, name, &mut script);
    out::write(&String::from_utf8_lossy(&script))
}

/// Writes a manual page for each command.
pub(crate) fn man(args: &ManArgs, command: Command) -> Outcome {
    let directory = &args.directory;
    if !directory.is_dir() {
        let why = "there is no such directory; `mkdir -p` makes it";
        let what = format!("write manual pages to {}", directory.display());
        return Err(Failure::operation(what, why));
    }
    clap_mangen::generate_to(command, directory).doing(format_args!(
        "write manual pages to {}",
        directory.display()
    ))
}
