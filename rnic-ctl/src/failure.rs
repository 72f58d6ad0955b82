//! How a command fails: in words for people, as JSON for programs, as an exit code for scripts.

use std::fmt;
use std::process::ExitCode;

use serde_json::{Value, json};

/// What kind of failure, which is the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The operation failed.
    Operation = 1,
    /// The command line makes no sense.
    Usage = 2,
    /// This host or this user lacks something: root, XDP, memory, an interface.
    Environment = 3,
    /// The reader of standard output is gone. The code is that of shells for a SIGPIPE.
    ClosedPipe = 141,
    /// There is a program, which cannot be executed. The code is that of shells, as the next is.
    NotExecutable = 126,
    /// There is no such program.
    NotFound = 127,
    /// Ctrl-C or SIGTERM. The code is that of shells.
    Interrupted = 130,
}

/// A failure: what was attempted, and why it failed (with a remedy if there is one).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub kind: Kind,
    pub what: String,
    pub why: String,
    /// Details for `-j`, under a name.
    pub details: Option<(&'static str, Box<Value>)>,
}

/// The outcome of a command.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// Makes a failure of the operation.
    pub(crate) fn operation(what: impl fmt::Display, why: impl fmt::Display) -> Self {
        Self {
            kind: Kind::Operation,
            what: what.to_string(),
            why: why.to_string(),
            details: None,
        }
    }

    /// Makes a failure of the command line.
    pub(crate) fn usage(what: impl fmt::Display, why: impl fmt::Display) -> Self {
        Self {
            kind: Kind::Usage,
            ..Self::operation(what, why)
        }
    }

    /// Makes a failure of the environment.
    pub(crate) fn environment(what: impl fmt::Display, why: impl fmt::Display) -> Self {
        Self {
            kind: Kind::Environment,
            ..Self::operation(what, why)
        }
    }

    /// Makes the failure of a command that runs a program.
    pub(crate) fn of_program(
        kind: Kind,
        program: impl fmt::Display,
        why: impl fmt::Display,
    ) -> Self {
        Self {
            kind,
            ..Self::operation(format_args!("run {program}"), why)
        }
    }

    /// Makes the failure of a command that the user stopped.
    pub(crate) fn interrupted() -> Self {
        Self {
            kind: Kind::Interrupted,
            ..Self::operation("interrupted", "stopped by a signal")
        }
    }

    /// Makes the failure of a command whose output has no reader.
    pub(crate) fn closed_pipe() -> Self {
        Self {
            kind: Kind::ClosedPipe,
            ..Self::operation("write to standard output", "nobody reads it any more")
        }
    }

    /// Makes the failure of a part that stops because another part, which reports why, has failed.
    pub(crate) fn stopped() -> Self {
        Self::operation("stopped", "the other side failed")
    }

    /// Adds details for `-j`.
    pub(crate) fn with(self, name: &'static str, value: Value) -> Self {
        Self {
            details: Some((name, Box::new(value))),
            ..self
        }
    }

    /// Returns it as JSON, for `-j`.
    pub(crate) fn to_json(&self) -> Value {
        let mut json = json!({
            "error": self.to_string(),
            "what": self.what,
            "why": self.why,
            "exit_code": self.kind as u8,
        });
        if let Some((name, value)) = &self.details {
            json[*name] = Value::clone(value);
        }
        json
    }

    /// Returns the exit code.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.kind as u8)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.why)
    }
}

/// Turns an error into a failure that says what was attempted.
pub(crate) trait Doing<T> {
    /// Makes it a failure of the operation.
    fn doing(self, what: impl fmt::Display) -> Outcome<T>;
}

impl<T, E: fmt::Display> Doing<T> for Result<T, E> {
    fn doing(self, what: impl fmt::Display) -> Outcome<T> {
        self.map_err(|why| Failure::operation(what, why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_and_why() {
        let failure = Err::<(), _>("no route; add one")
            .doing("connect to 192.0.2.1:7174")
            .unwrap_err();
        assert_eq!(
            failure.to_string(),
            "connect to 192.0.2.1:7174: no route; add one"
        );
        assert_eq!(failure.to_json()["exit_code"], 1);
        assert_eq!(
            Failure::environment("open eth0", "not root").to_json()["exit_code"],
            3
        );
    }
}
