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
            (Self::BuiltIn, other) | (other, Self::BuiltIn) => other,
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

/// Something that is wrong at a place of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong there, and the remedy.
    pub what: String,
}

/// All that is wrong with a configuration, in the order of lines.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.text())]
pub struct Faults {
    /// The file.
    pub file: Arc<Path>,
    /// What is wrong.
    pub faults: Vec<Fault>,
}

impl Faults {
    fn text(&self) -> String {
        let file = self.file.display();
        let line = |fault: &Fault| format!("{file}:{}: {}", fault.line, fault.what);
        let lines: Vec<_> = self.faults.iter().map(line).collect();
        lines.join("\n")
    }

    /// Fails if there are any.
    pub(crate) fn check(mut self) -> Result<(), Self> {
        self.faults.sort_by_key(|fault| fault.line);
        if self.faults.is_empty() {
            Ok(())
        } else {
            Err(self)
        }
    }
}
