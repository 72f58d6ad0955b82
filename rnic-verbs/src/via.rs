//! What carries the connections of a device: the ways to open one, and the one that was taken.

use std::fmt;
use std::str::FromStr;

use rnic_sockets::KernelInterface;

/// What is to carry the connections of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Via {
    /// The best that is there: a port of rnicd, or else the interface for this process alone, or
    /// else TCP sockets of the kernel.
    #[default]
    Best,
    /// AF_XDP: a port of rnicd, or else the interface for this process alone.
    Xdp,
    /// A port of the interface, from rnicd.
    Rnicd,
    /// TCP sockets of the kernel. They need no right, and take every path that the host has:
    /// through its firewall, IPsec, VRFs and tunnels.
    Kernel,
}

impl Via {
    /// All of them, with their names.
    const ALL: [(Self, &str); 4] = [
        (Self::Best, "best"),
        (Self::Xdp, "xdp"),
        (Self::Rnicd, "rnicd"),
        (Self::Kernel, "kernel"),
    ];

    /// The variable that names one.
    pub const VARIABLE: &str = "RNIC_VIA";

    /// Returns what the environment says: [`Best`](Self::Best) if it says nothing.
    pub fn of_environment() -> Result<Self, NoVia> {
        match std::env::var(Self::VARIABLE) {
            Ok(word) if !word.is_empty() => word.parse(),
            _ => Ok(Self::Best),
        }
    }
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(via, _)| via == self);
        f.write_str(name.map_or("", |(_, name)| name))
    }
}

/// A word that names no way.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no way to open a device: choose best, xdp, rnicd or kernel")]
pub struct NoVia(String);

impl FromStr for Via {
    type Err = NoVia;

    fn from_str(word: &str) -> Result<Self, NoVia> {
        let named = Self::ALL.into_iter().find(|(_, name)| *name == word);
        named
            .map(|(via, _)| via)
            .ok_or_else(|| NoVia(word.to_owned()))
    }
}

/// A device over TCP sockets of the kernel.
#[derive(Clone, Debug)]
pub struct KernelWay {
    pub(crate) interface: KernelInterface,
    /// Why no better way was taken, unless this one was asked for.
    pub(crate) why: Option<String>,
}

impl KernelWay {
    /// Returns the interface. It has no name if connections may take any.
    pub fn interface(&self) -> &KernelInterface {
        &self.interface
    }

    /// Returns why no better way was taken, unless this one was asked for.
    pub fn why(&self) -> Option<&str> {
        self.why.as_deref()
    }
}

impl fmt::Display for KernelWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.interface.name {
            Some(name) => write!(f, "kernel TCP on {name}")?,
            None => f.write_str("kernel TCP on any interface")?,
        }
        match &self.why {
            Some(why) => write!(f, " ({why})"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_have_names() {
        for (via, name) in Via::ALL {
            assert_eq!(via.to_string(), name);
            assert_eq!(name.parse(), Ok(via));
        }
        let wrong = "xpd".parse::<Via>().unwrap_err();
        assert!(wrong.to_string().contains("best, xdp, rnicd or kernel"));
    }
}
