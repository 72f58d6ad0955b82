//! rnicd, the Privileged Resource Manager.

// As in rnic-ctl: these macros panic if the output has no reader.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod cli;
mod log;
mod manual;

use std::fmt;
use std::io::{Write, stderr, stdin, stdout};
use std::os::fd::AsFd;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use rnic_manager::{NODE, make_node};
use rnicd::config::Setting;
use rnicd::freer::free;
use rnicd::keeper::keep;
use rnicd::serve::{Places, ServeError, serve};
use rnicd::settings::Settings;
use rnicd::unshare::unshare;
use tracing::info;

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
        // The path of a program that was upgraded leads to another one, or nowhere.
        freer: ["/proc/self/exe", "--free"].map(Into::into).to_vec(),
    };
    if let Some(path) = &cli.keep {
        let kept = stdin().as_fd().try_clone_to_owned();
        let kept = kept.and_then(|listener| keep(listener, path.as_deref()));
        return finish(kept.map_err(|error| format!("the keeper of rnicd cannot serve: {error}")));
    }
    if cli.free {
        let file = stdin().as_fd().try_clone_to_owned();
        let freed = file.and_then(|file| Ok(free(&file)?));
        return finish(freed.map_err(|error| format!("memory cannot be freed: {error}")));
    }
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
        let result = unshare(&places);
        log::flush();
        return finish(result);
    }
    let result = run(&cli, &places);
    log::flush();
    finish(result)
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
        if let Err(why) = make_node() {
            info!("cannot make {NODE}, without which UCX and Mooncake find no device: {why}");
        }
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
