//! rnicd, the Privileged Resource Manager.

// As in rnic-ctl: these macros panic if the output has no reader.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod cli;
mod log;
mod manual;

use std::fmt;
use std::io::{Write, stderr, stdout};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use rnicd::config::Setting;
use rnicd::serve::{Places, ServeError, serve};
use rnicd::settings::Settings;
use rnicd::unshare::unshare;

use cli::Cli;

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Err(why) = log::install() {
        return fail(format_args!("rnicd: RUST_LOG is not understood: {why}"));
    }
    let places = Places {
        config: cli.file().to_owned(),
        socket: cli.socket.clone(),
        state: cli.state.clone(),
        pins: cli.pins.clone(),
    };
    if let Some(directory) = &cli.man {
        let why = |error| {
            format!(
                "cannot write manual pages to {}: {error}",
                directory.display()
            )
        };
        return finish(manual::write(directory, Cli::command()).map_err(why));
    }
    if cli.unshare {
        return finish(unshare(&places));
    }
    finish(run(&cli, &places))
}

fn finish<E: fmt::Display>(result: Result<(), E>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(format_args!("{error}")),
    }
}

fn fail(why: fmt::Arguments<'_>) -> ExitCode {
    // If nobody reads it, the exit code still says it.
    let _ = writeln!(stderr(), "{why}");
    ExitCode::FAILURE
}

fn run(cli: &Cli, places: &Places) -> Result<(), ServeError> {
    if cli.check.is_none() && !cli.show_config {
        return serve(places);
    }
    let mut config = Settings::read(places)?.config;
    if let Some(socket) = &cli.socket {
        config.socket = Setting::built_in(socket.clone());
    }
    if cli.show_config {
        // A reader that is gone wants no more.
        let _ = write!(stdout(), "{config:#}");
    }
    Ok(())
}
