//! The commands rnic-ctl, which administers, measures and diagnoses rnic, and rnic, which runs
//! unmodified RDMA programs.

// These macros panic if the output has no reader; `out` does not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

// From the ground up; each file imports only from those below it:
// failure < out, interrupt, device < capture, completion, connect, listen, log, doctor, steering,
// objects < perf, programs, rping < cli
mod capture;
mod cli;
mod completion;
mod connect;
mod device;
mod doctor;
mod failure;
mod interrupt;
mod listen;
mod log;
mod objects;
mod out;
mod perf;
mod programs;
mod rping;
mod steering;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use serde_json::json;

use cli::{Cli, Command};
use failure::{Failure, Kind, Outcome};
use interrupt::Interrupt;
use objects::Style;

/// Runs the command `rnic-ctl`.
pub fn rnic_ctl() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    log::install();
    let interrupt = match Interrupt::install() {
        Ok(interrupt) => interrupt,
        Err(why) => {
            out::note(format_args!("rnic-ctl: cannot watch for Ctrl-C: {why}"));
            return ExitCode::from(3);
        }
    };
    match run(&cli, &interrupt) {
        Ok(code) => code,
        Err(failure) => {
            let failure = if interrupt.is_signalled() {
                Failure::interrupted()
            } else {
                failure
            };
            report("rnic-ctl", &failure, cli.json);
            failure.exit_code()
        }
    }
}

/// Runs the command `rnic`. It fails with the codes of `env` and `timeout`, because those of
/// rnic-ctl can be the program's.
pub fn rnic() -> ExitCode {
    const FAILED: u8 = 125;
    let cli = match programs::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() => {
            usage(&error);
            return ExitCode::from(FAILED);
        }
        Err(error) => return usage(&error),
    };
    match programs::run(&cli, programs::Cli::command()) {
        Ok(code) => code,
        Err(failure) => {
            report("rnic", &failure, cli.json);
            match failure.kind {
                Kind::Operation | Kind::Usage | Kind::Environment => ExitCode::from(FAILED),
                _ => failure.exit_code(),
            }
        }
    }
}

/// Reports how a command failed.
fn report(command: &str, failure: &Failure, json: bool) {
    match failure.kind {
        Kind::ClosedPipe => {}
        // If this has no reader either, the exit code still says it.
        _ if json => drop(out::line(format_args!("{:#}", failure.to_json()))),
        _ => out::note(format_args!("{command}: {failure}")),
    }
}

fn run(cli: &Cli, interrupt: &Interrupt) -> Outcome<ExitCode> {
    let style = Style {
        json: cli.json,
        pretty: cli.pretty,
        details: cli.details,
    };
    match &cli.command {
        Command::Dev(args) => objects::dev::run(args, style)?,
        Command::Port(args) => objects::port::run(args, style)?,
        Command::Lease(args) => objects::lease::run(args, style)?,
        Command::Client(args) => objects::client::run(args)?,
        Command::Conn(args) => return objects::conn::run(args, style),
        Command::Res(args) => return objects::res::run(args, style),
        Command::User(args) => objects::user::run(args, style)?,
        Command::Stat(args) => objects::stat::run(args, style, interrupt)?,
        Command::Metrics(args) => objects::metrics::run(args, interrupt)?,
        Command::Monitor(args) => objects::monitor::run(args, style, interrupt)?,
        Command::Top(args) => objects::top::run(args, style, interrupt)?,
        Command::Perf(args) => perf::run(args, cli.json, interrupt)?,
        Command::Rping(args) => rping::run(args, cli.json, interrupt)?,
        Command::Env(args) => programs::env::run(args, cli.json)?,
        Command::Doctor(args) => return doctor::run(args, cli.json),
        Command::Sa(args) => objects::sa::run(args, style)?,
        Command::Steer(args) => objects::steer::run(args, style)?,
        Command::Steering(args) => steering::run(args, cli.json)?,
        Command::Capture(args) => capture::run(args, cli.json, interrupt)?,
        Command::Completion(args) => completion::completion(args, Cli::command())?,
        Command::Man(args) => completion::man(args, Cli::command())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints help to standard output, which is no error, or what is wrong with the command line, as
/// JSON if that was asked for.
fn usage(error: &clap::Error) -> ExitCode {
    let wants_json = std::env::args_os().any(|arg| arg == "-j" || arg == "--json");
    if error.use_stderr() && wants_json {
        let text = error.render().to_string();
        let text = text.trim().trim_start_matches("error: ");
        let report = json!({ "error": text, "exit_code": 2 });
        drop(out::line(format_args!("{report:#}")));
    } else {
        // If this has no reader, the exit code still says it.
        drop(error.print());
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}
