//! What is wrong with a configuration, and where.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Who has set a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody: rnicd itself has it.
    BuiltIn,
    /// The configuration.
    File {
        /// The file.
        file: Arc<Path>,
        /// The lines: several if the value is put together of the rules of several groups.
        lines: Vec<usize>,
    },
    /// `rnic-ctl`, while rnicd runs.
    RunTime {
        /// The file that keeps it.
        file: Arc<Path>,
        /// The line.
        line: usize,
    },
}

impl Origin {
    /// Returns the origin of a value that was put together of two.
    pub(super) fn join(self, other: Self) -> Self {
        match (self, other) {
            (Self::File { file, mut lines }, Self::File { lines: more, .. }) => {
                lines.extend(more);
                lines.sort_unstable();
                lines.dedup();
                Self::File { file, lines }
            }
            (Self::BuiltIn, other) => other,
            // Of two origins that have no lines in common, the first.
            (one, _) => one,
        }
    }
}

impl Origin {
    /// Ends a line of TOML that has a value of this origin: in the alternate form with what was set
    /// while rnicd runs.
    pub(super) fn end_line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RunTime { .. } if f.alternate() => writeln!(f, " # set by {self}"),
            _ => writeln!(f),
        }
    }

    /// Returns the first place of a value that a file has.
    pub fn place(&self) -> Option<(&Arc<Path>, usize)> {
        match self {
            Self::BuiltIn => None,
            Self::File { file, lines } => Some((file, *lines.first()?)),
            Self::RunTime { file, line } => Some((file, *line)),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn => f.write_str("the default"),
            Self::File { file, lines } => {
                let lines: Vec<_> = lines.iter().map(usize::to_string).collect();
                write!(f, "{}:{}", file.display(), lines.join(","))
            }
            Self::RunTime { file, line } => write!(f, "rnic-ctl in {}:{line}", file.display()),
        }
    }
}

/// A value, and who has set it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting<T> {
    /// The value.
    pub value: T,
    /// Who has set it.
    pub origin: Origin,
}

impl<T> Setting<T> {
    /// Makes a value of rnicd's own.
    pub fn built_in(value: T) -> Self {
        let origin = Origin::BuiltIn;
        Self { value, origin }
    }
}

/// Something that is wrong at a place of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The file.
    pub file: Arc<Path>,
    /// The line, from 1.
    pub line: usize,
    /// What is wrong there, and the remedy.
    pub what: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file.display(), self.line, self.what)
    }
}

/// All that is wrong with a configuration, in the order of files and lines.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.text())]
pub struct Faults {
    /// What is wrong.
    pub faults: Vec<Fault>,
}

impl Faults {
    fn text(&self) -> String {
        let lines: Vec<_> = self.faults.iter().map(Fault::to_string).collect();
        lines.join("\n")
    }

    /// Fails if there are any.
    pub(crate) fn check(mut self) -> Result<(), Self> {
        self.faults
            .sort_by(|one, other| (&one.file, one.line).cmp(&(&other.file, other.line)));
        if self.faults.is_empty() {
            Ok(())
        } else {
            Err(self)
        }
    }
}
