//! The options of `rnic-ctl capture`, with dumpcap's letters.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use rnic_verbs::if_id;
use rnic_xdp::capture::{Direction, Peers, Wanted};

/// Captures the frames of rnic, which pass the kernel by, so that tcpdump does not see them: as
/// root, on one interface.
///
/// Received frames are those that come to rnic processes; all others the kernel has, and tcpdump
/// shows them. Sent frames are those of the clients of rnicd, with those that were not let out
/// (`xdp_drop` in Wireshark's column of verdicts, and a comment with the reason), and those of a
/// process that has the interface for itself. The file is pcapng, with an interface for each
/// client.
///
/// It ends with Ctrl-C, -c or -a. The last line on standard error says how many frames were
/// captured and lost.
///
/// Live, in Wireshark: `rnic-ctl capture -i eth1 -w - | wireshark -k -i -`
#[derive(Clone, Debug, Args)]
pub(crate) struct CaptureArgs {
    /// The network interface: that which rnicd shares, or which a process has for itself
    #[arg(short = 'i', long, value_name = "IF")]
    pub(super) netdev: String,

    /// The file to write, in the format pcapng; `-` is standard output
    #[arg(short = 'w', long = "write", value_name = "FILE")]
    pub(super) file: PathBuf,

    /// The most octets of a frame to capture; at most 65280, which is the default
    #[arg(short = 's', long, value_name = "OCTETS", default_value_t = 65_280,
          value_parser = clap::value_parser!(u32).range(1..=65_280), hide_default_value = true)]
    pub(super) snapshot_length: u32,

    /// Frames in one direction alone
    #[arg(short = 'Q', long, value_enum, value_name = "WAY", default_value_t = CaptureDirection::Inout)]
    pub(super) direction: CaptureDirection,

    /// Frames of the client with this port of rnicd (`rnic-ctl port show`)
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) port_id: Option<u32>,

    /// Segments from or to this TCP port, here or at the peer
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) tcp_port: Option<u16>,

    /// Segments from or to this address or prefix: 192.0.2.7, 192.0.2.0/24, 2001:db8::/32
    #[arg(long, value_name = "PREFIX", value_parser = peers)]
    pub(super) peer: Option<Peers>,

    /// End after this many frames
    #[arg(short = 'c', long, value_name = "FRAMES", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) count: Option<u64>,

    /// End after a time: `duration:SECONDS`
    #[arg(short = 'a', long, value_name = "duration:SECONDS", value_parser = duration)]
    pub(super) autostop: Option<Duration>,

    /// Write the keys of all IPsec associations of this host that have a number (`if_id`) to this
    /// file, which must not exist: Wireshark and tshark read it as `esp_sa`. Who has it can read all
    /// that they protect
    #[arg(long, value_name = "FILE")]
    pub(super) keys: Option<PathBuf>,

    /// The keys of associations with this number alone
    #[arg(long, value_name = "NUMBER", value_parser = if_id, requires = "keys")]
    pub(super) ipsec_if_id: Option<NonZeroU32>,

    /// Memory of the kernel for frames that wait to be written, for all CPUs together, in MiB
    #[arg(short = 'B', long, value_name = "MIB", default_value_t = 32,
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(super) buffer_size: u32,

    /// The Unix socket of rnicd, which knows the clients' names. The default is RNICD_SOCKET of the
    /// environment, or /run/rnic/rnicd.sock
    #[arg(long, value_name = "PATH")]
    pub(super) socket: Option<PathBuf>,
}

/// Where frames go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum CaptureDirection {
    /// Received
    In,
    /// Sent
    Out,
    /// Both
    Inout,
}

impl CaptureArgs {
    /// Returns which frames are wanted.
    pub(super) fn wanted(&self) -> Wanted {
        Wanted {
            direction: match self.direction {
                CaptureDirection::In => Some(Direction::Received),
                CaptureDirection::Out => Some(Direction::Sent),
                CaptureDirection::Inout => None,
            },
            snap: self.snapshot_length,
            port: self.port_id,
            tcp_port: self.tcp_port,
            peers: self.peer,
        }
    }
}

fn peers(text: &str) -> Result<Peers, String> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (text, None),
    };
    let wrong = |_| format!("{address:?} is no IP address");
    let address: IpAddr = address.parse().map_err(wrong)?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let Some(bits) = bits else {
        return Ok(Peers {
            address,
            bits: most,
        });
    };
    match bits.parse() {
        Ok(bits) if bits <= most => Ok(Peers { address, bits }),
        _ => Err(format!(
            "{bits:?} is no length of a prefix: it is 0 to {most}"
        )),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let seconds = text
        .strip_prefix("duration:")
        .ok_or("it is duration:SECONDS")?;
    let seconds: f64 = seconds
        .parse()
        .map_err(|_| format!("{seconds:?} is no number of seconds"))?;
    let duration = Duration::try_from_secs_f64(seconds);
    match duration {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err(format!("{seconds} seconds is no time")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_addresses_or_prefixes() {
        let found = |text: &str| peers(text).map(|peers| (peers.address.to_string(), peers.bits));
        assert_eq!(found("192.0.2.7").unwrap(), ("192.0.2.7".to_string(), 32));
        assert_eq!(found("10.0.0.0/8").unwrap().1, 8);
        assert_eq!(found("2001:db8::/32").unwrap().1, 32);
        assert_eq!(found("::1").unwrap().1, 128);
        for wrong in [
            "",
            "host",
            "10.0.0.0/33",
            "::/129",
            "10.0.0.1/",
            "10.0.0.1/x",
            "/8",
        ] {
            assert!(found(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_duration_has_dumpcaps_form() {
        assert_eq!(duration("duration:2.5"), Ok(Duration::from_millis(2500)));
        for wrong in [
            "2",
            "duration:",
            "duration:0",
            "duration:-1",
            "duration:inf",
            "files:3",
        ] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
