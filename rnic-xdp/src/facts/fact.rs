//! A finding, and the verdict on it.

use std::fmt;

/// The verdict on a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// It works, but not as well as it could.
    Warn,
    /// It does not work.
    Fail,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
        })
    }
}

/// A finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// What was checked.
    pub name: &'static str,
    /// The verdict.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What to do about it, unless all is well.
    pub remedy: Option<String>,
}

impl Fact {
    pub(super) fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self {
            name,
            verdict: Verdict::Ok,
            found: found.into(),
            remedy: None,
        }
    }

    pub(super) fn warn(
        name: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            verdict: Verdict::Warn,
            remedy: Some(remedy.into()),
            ..Self::ok(name, found)
        }
    }

    pub(super) fn fail(
        name: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            verdict: Verdict::Fail,
            ..Self::warn(name, found, remedy)
        }
    }
}
