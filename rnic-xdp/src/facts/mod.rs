//! What this host and a network device can do, each finding with its remedy: for `rnic-ctl doctor`.

use std::fmt;

mod device;
mod host;

/// How a finding is to be judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// It works, but less well than it could.
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
    /// What was looked at.
    pub name: &'static str,
    /// How it is to be judged.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What to do about it; none where all is well.
    pub remedy: Option<String>,
}

impl Fact {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self {
            name,
            verdict: Verdict::Ok,
            found: found.into(),
            remedy: None,
        }
    }

    fn warn(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Warn,
            remedy: Some(remedy.into()),
            ..Self::ok(name, found)
        }
    }

    fn fail(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Fail,
            ..Self::warn(name, found, remedy)
        }
    }
}

/// Looks at the host: kernel, rights, memory.
pub fn host() -> Vec<Fact> {
    host::facts()
}

/// Looks at a network device, without touching it.
pub fn device(netdev: &str) -> Vec<Fact> {
    device::facts(netdev)
}

/// Opens the device for a moment, as an application would, and says how that went. On real NICs this interrupts
/// the link for a moment too. Needs the same rights as opening it.
pub fn trial(netdev: &str) -> Fact {
    device::trial(netdev)
}
