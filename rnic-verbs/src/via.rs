//! What carries the connections of a device: the ways to open one, and the one that was taken.

use std::fmt;
use std::str::FromStr;

use rnic_sockets::{KernelInterface, Protocol};

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
    /// SCTP sockets of the kernel, with the adaptation of RFC 5043. They need no right, and a kernel
    /// with SCTP. Peers over other ways cannot be reached.
    Sctp,
}

impl Via {
    /// All of them, with their names.
    const ALL: [(Self, &str); 5] = [
        (Self::Best, "best"),
        (Self::Xdp, "xdp"),
        (Self::Rnicd, "rnicd"),
        (Self::Kernel, "kernel"),
        (Self::Sctp, "sctp"),
    ];

    /// The variable that names one.
    pub const VARIABLE: &str = "RNIC_VIA";

    /// The variable that names the transport protocol of connections: `tcp`, or `sctp`, which stands
    /// for the way of that name unless [`VARIABLE`](Self::VARIABLE) names a way without sockets.
    pub const TRANSPORT: &str = "RNIC_TRANSPORT";

    /// Returns what the environment says: [`Best`](Self::Best) if it says nothing.
    pub fn of_environment() -> Result<Self, NoVia> {
        let word = |variable| std::env::var(variable).ok().filter(|word| !word.is_empty());
        Self::of_words(word(Self::VARIABLE), word(Self::TRANSPORT))
    }

    /// Returns what these values of the two variables say.
    fn of_words(via: Option<String>, transport: Option<String>) -> Result<Self, NoVia> {
        let via = via.map_or(Ok(Self::Best), |word| word.parse())?;
        match transport.as_deref() {
            Some("sctp") if matches!(via, Self::Best | Self::Kernel) => Ok(Self::Sctp),
            None | Some("tcp" | "sctp") => Ok(via),
            Some(other) => Err(NoVia(format!("{}={other}", Self::TRANSPORT))),
        }
    }

    /// Returns whether connections may take sockets of the kernel, and any interface with them.
    pub fn may_take_sockets(self) -> bool {
        matches!(self, Self::Best | Self::Kernel | Self::Sctp)
    }

    /// Returns whether connections take nothing but sockets of the kernel.
    pub fn is_of_sockets(self) -> bool {
        matches!(self, Self::Kernel | Self::Sctp)
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
#[error("{0:?} is no way to open a device: choose best, xdp, rnicd, kernel or sctp")]
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

/// A device over sockets of the kernel.
#[derive(Clone, Debug)]
pub struct KernelWay {
    pub(crate) interface: KernelInterface,
    pub(crate) protocol: Protocol,
    /// Why no better way was taken, unless this one was asked for.
    pub(crate) why: Option<String>,
    pub(crate) ignored: Option<String>,
}

impl KernelWay {
    /// Returns the interface. It has no name if connections may take any.
    pub fn interface(&self) -> &KernelInterface {
        &self.interface
    }

    /// Returns what the sockets speak.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Returns why no better way was taken, unless this one was asked for.
    pub fn why(&self) -> Option<&str> {
        self.why.as_deref()
    }

    /// Returns what was asked for and is not possible, with the reason.
    pub fn ignored(&self) -> Option<&str> {
        self.ignored.as_deref()
    }
}

impl fmt::Display for KernelWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = match self.protocol {
            Protocol::Tcp => "TCP",
            Protocol::Sctp => "SCTP",
        };
        match &self.interface.name {
            Some(name) => write!(f, "kernel {protocol} on {name}")?,
            None => write!(f, "kernel {protocol} on any interface")?,
        }
        if let Some(why) = &self.why {
            write!(f, " ({why})")?;
        }
        match &self.ignored {
            Some(ignored) => write!(f, ", {ignored}"),
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
        let of = |via: Option<&str>, transport: Option<&str>| {
            Via::of_words(via.map(str::to_owned), transport.map(str::to_owned))
        };
        assert_eq!(of(None, None), Ok(Via::Best));
        assert_eq!(of(Some("xdp"), None), Ok(Via::Xdp));
        assert_eq!(of(Some("xdp"), Some("tcp")), Ok(Via::Xdp));
        assert_eq!(of(Some("xdp"), Some("sctp")), Ok(Via::Xdp));
        assert_eq!(of(None, Some("sctp")), Ok(Via::Sctp));
        assert_eq!(of(Some("best"), Some("sctp")), Ok(Via::Sctp));
        assert!(of(None, Some("quic")).is_err());
        assert!(
            wrong
                .to_string()
                .contains("best, xdp, rnicd, kernel or sctp")
        );
    }
}
