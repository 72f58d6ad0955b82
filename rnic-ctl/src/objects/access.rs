//! Reaching rnicd, and printing what it says.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use rnic_manager::channel::{ChannelError, default_socket};
use rnic_manager::protocol::Reason;
use rnic_manager::{Administrator, AskError};
use serde_json::Value;

use super::line::Line;
use crate::failure::{Failure, Outcome};
use crate::out;

/// Where rnicd is, and how to print.
#[derive(Clone, Debug, Args)]
pub(crate) struct Access {
    /// The Unix socket of rnicd. The default is RNICD_SOCKET of the environment, or
    /// /run/rnic/rnicd.sock
    #[arg(long, value_name = "PATH", global = true)]
    socket: Option<PathBuf>,

    /// With -j: one value on a line, indented
    #[arg(short, long, global = true)]
    pretty: bool,

    /// Print details. JSON always has them
    #[arg(short, long, global = true)]
    details: bool,
}

// What a command for objects is given: how to reach and print them, and a verb, without which it
// shows them. The help has the doc comment of the verbs; one here would take its place.
#[derive(Clone, Debug, Args)]
pub(crate) struct ObjectArgs<V: Subcommand, A: Args = Access> {
    #[command(flatten)]
    pub(super) access: A,

    #[command(subcommand)]
    pub(super) verb: Option<V>,
}

/// How to print.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    /// As JSON.
    pub(crate) json: bool,
    /// JSON of several lines.
    pub(crate) pretty: bool,
    /// Text with details.
    pub(crate) details: bool,
}

impl Access {
    /// Connects to rnicd.
    pub(super) fn connect(&self) -> Outcome<Administrator> {
        self.administrator().map_err(failed("connect to rnicd"))
    }

    /// Connects to rnicd, for those to whom it matters why that fails.
    pub(super) fn administrator(&self) -> Result<Administrator, AskError> {
        connect(self.socket.as_deref())
    }

    /// Returns whether the user wants to know of one rnicd alone.
    pub(super) fn names_rnicd(&self) -> bool {
        self.socket.is_some()
    }

    /// Adds the options behind the object to those in front of it.
    pub(super) fn style(&self, style: Style) -> Style {
        Style {
            json: style.json,
            pretty: style.pretty || self.pretty,
            details: style.details || self.details,
        }
    }

    /// Prints a list of objects.
    pub(super) fn print(&self, style: Style, lines: &[Line]) -> Outcome {
        let mut printer = self.printer(style);
        lines.iter().try_for_each(|line| printer.print(line))?;
        printer.end()
    }

    /// Prints a list of objects one by one: what is behind them need not be kept.
    pub(super) fn printer(&self, style: Style) -> Printer {
        Printer {
            style: self.style(style),
            is_empty: true,
        }
    }
}

/// A list of objects that is printed. JSON is an array of them.
pub(super) struct Printer {
    style: Style,
    is_empty: bool,
}

impl Printer {
    /// Prints one more.
    pub(super) fn print(&mut self, line: &Line) -> Outcome {
        if !self.style.json {
            return out::line(line.text(self.style.details));
        }
        let before = if self.is_empty { '[' } else { ',' };
        self.is_empty = false;
        let json = line.json();
        match self.style.pretty {
            // In strings, line ends are escaped.
            true => out::write(&format!(
                "{before}\n  {}",
                format!("{json:#}").replace('\n', "\n  ")
            )),
            false => out::write(&format!("{before}{json}")),
        }
    }

    /// Ends the list.
    pub(super) fn end(self) -> Outcome {
        match (self.style.json, self.is_empty, self.style.pretty) {
            (false, ..) => Ok(()),
            (true, true, _) => out::line("[]"),
            (true, false, true) => out::line("\n]"),
            (true, false, false) => out::line("]"),
        }
    }
}

/// Connects to the rnicd at a socket, or where it is by default.
pub(super) fn connect(socket: Option<&Path>) -> Result<Administrator, AskError> {
    let path = socket.map_or_else(default_socket, Path::to_owned);
    Administrator::connect(&path)
}

impl Style {
    /// Prints one object of a sequence that has no end.
    pub(super) fn print(self, line: &Line) -> Outcome {
        match self.json {
            true => self.value(&line.json()),
            false => out::line(line.text(self.details)),
        }
    }

    pub(super) fn value(self, json: &Value) -> Outcome {
        match self.pretty {
            true => out::line(format_args!("{json:#}")),
            false => out::line(json),
        }
    }
}

/// Returns what makes a failure of what rnicd did not do.
pub(super) fn failed(what: &'static str) -> impl Fn(AskError) -> Failure {
    move |error| match &error {
        AskError::Channel(ChannelError::NoDaemon { .. } | ChannelError::NotPermitted { .. }) => {
            Failure::environment(what, error)
        }
        AskError::Refused(refused) if refused.reason == Reason::NotPermitted => {
            Failure::environment(what, error)
        }
        _ => Failure::operation(what, error),
    }
}
