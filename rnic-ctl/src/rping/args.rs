//! The command line of `rnic-ctl rping`: rping's option letters and some diagnostics.

use std::net::SocketAddr;

use clap::{ArgGroup, Args, ValueEnum};

use crate::connect::{local_address, resolve};
use crate::device::DeviceArgs;
use crate::failure::Outcome;
use crate::out;

/// Pings with Send, RDMA Read and RDMA Write. It talks to rdma-core's rping too.
#[derive(Clone, Debug, Args)]
#[command(group = ArgGroup::new("role").required(true).args(["server", "client"]))]
pub(crate) struct RpingArgs {
    /// Be the server, for one client. As with rping, a client that vanishes without ending its
    /// connection is waited for until Ctrl-C
    #[arg(short, long)]
    pub server: bool,

    /// Be the client
    #[arg(short, long, requires = "where")]
    pub client: bool,

    /// The server's name or address. For a server, the address to listen on; the default is all
    /// addresses of both families
    #[arg(short, long, value_name = "ADDRESS", group = "where")]
    pub address: Option<String>,

    /// The client's own address
    #[arg(short = 'I', long, value_name = "ADDRESS", value_parser = local_address)]
    pub source: Option<SocketAddr>,

    /// TCP port of the server
    #[arg(short, long, default_value_t = 7174)]
    pub port: u16,

    #[command(flatten)]
    pub device: DeviceArgs,

    /// Run both sides in this process, over a link in memory
    #[arg(long, conflicts_with_all = ["address", "netdev"], group = "where")]
    pub in_memory: bool,

    /// Number of pings; 0 goes on until Ctrl-C
    #[arg(short = 'C', long, default_value_t = 0)]
    pub count: u64,

    /// Octets in a ping
    #[arg(short = 'S', long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(26..=65535))]
    pub size: u32,

    /// Print the text of each ping; with -j on standard error
    #[arg(short, long)]
    pub verbose: bool,

    /// Print the result as JSON, and nothing else on standard output
    #[arg(skip)]
    pub json: bool,

    /// Check that what comes back is what was sent
    #[arg(short = 'V', long)]
    pub validate: bool,

    /// Print every step on standard error
    #[arg(short, long)]
    pub debug: bool,

    /// Client: the MPA revision to ask for
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub mpa_revision: u8,

    /// Do not ask for CRCs; they are used nevertheless if the other side asks
    #[arg(long)]
    pub no_crc: bool,

    /// Require MPA markers from the other side, which must support them
    #[arg(long)]
    pub markers: bool,

    /// Client: milliseconds between the server's MPA Reply and the first message. The Linux siw
    /// driver can miss what reaches it within 3 ms
    #[arg(long, value_name = "MS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(..=10_000))]
    pub first_fpdu_delay: u64,

    /// Server: reject the first client with this private data
    #[arg(long, value_name = "TEXT", conflicts_with = "client")]
    pub reject: Option<String>,

    /// Client: private data to connect with
    #[arg(long, value_name = "TEXT", conflicts_with = "server")]
    pub private_data: Option<String>,

    /// A diagnostic: use a wrong rkey for the first operation of this kind (server), or advertise
    /// one (client). The Terminate message that ends the connection is reported, and the exit code
    /// is 1
    #[arg(long, value_name = "OPERATION", num_args = 0..=1, default_missing_value = "read")]
    pub bad_rkey: Option<BadRkey>,
}

impl RpingArgs {
    /// Returns the address to listen on.
    pub(super) fn local(&self) -> Outcome<Option<SocketAddr>> {
        let Some(address) = &self.address else {
            return Ok(self.source);
        };
        Ok(Some(resolve(address, self.port, None)?))
    }

    /// Prints an intermediate result.
    pub(super) fn show(&self, what: impl std::fmt::Display) -> Outcome {
        if self.json {
            out::note(what);
            return Ok(());
        }
        out::line(what)
    }

    /// Prints a step on standard error, with `--debug`.
    pub(super) fn debug(&self, what: impl std::fmt::Display) {
        if self.debug {
            out::note(format_args!("rping: {what}"));
        }
    }
}

/// Which operation gets a wrong rkey.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BadRkey {
    /// The RDMA Read of the ping
    Read,
    /// The RDMA Write that brings it back
    Write,
}
