//! The command line of `rnic-ctl perf`: perftest's option letters.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::connect::local_address;
use crate::device::DeviceArgs;
use crate::failure::{Failure, Outcome};

/// The largest message of `-a`.
pub(crate) const LARGEST: u64 = 8 << 20;
/// The defaults of `-n`, which are perftest's.
const BANDWIDTH_ITERATIONS: u64 = 5000;
const LATENCY_ITERATIONS: u64 = 1000;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Test {
    /// Bandwidth of RDMA Write
    WriteBw,
    /// Bandwidth of RDMA Read
    ReadBw,
    /// Bandwidth of Send
    SendBw,
    /// Latency of RDMA Write: half a round trip
    WriteLat,
    /// Latency of RDMA Read: a whole round trip
    ReadLat,
    /// Latency of Send: half a round trip
    SendLat,
    /// Rate of atomic FetchAdd, 8 octets each
    AtomicBw,
    /// Latency of atomic FetchAdd: a whole round trip
    AtomicLat,
}

/// The operation that a test uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Write,
    Read,
    Send,
    FetchAdd,
}

/// Octets that an atomic works on.
pub(crate) const ATOMIC: u64 = 8;

impl Operation {
    /// Returns whether its data come from the server.
    pub(crate) fn brings(self) -> bool {
        matches!(self, Self::Read | Self::FetchAdd)
    }
}

impl Test {
    pub(crate) const ALL: [Self; 8] = [
        Self::WriteBw,
        Self::ReadBw,
        Self::SendBw,
        Self::WriteLat,
        Self::ReadLat,
        Self::SendLat,
        Self::AtomicBw,
        Self::AtomicLat,
    ];

    pub(crate) fn operation(self) -> Operation {
        match self {
            Self::WriteBw | Self::WriteLat => Operation::Write,
            Self::ReadBw | Self::ReadLat => Operation::Read,
            Self::SendBw | Self::SendLat => Operation::Send,
            Self::AtomicBw | Self::AtomicLat => Operation::FetchAdd,
        }
    }

    pub(crate) fn is_latency(self) -> bool {
        matches!(
            self,
            Self::WriteLat | Self::ReadLat | Self::SendLat | Self::AtomicLat
        )
    }

    /// Returns the name of it on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::WriteBw => "write-bw",
            Self::ReadBw => "read-bw",
            Self::SendBw => "send-bw",
            Self::WriteLat => "write-lat",
            Self::ReadLat => "read-lat",
            Self::SendLat => "send-lat",
            Self::AtomicBw => "atomic-bw",
            Self::AtomicLat => "atomic-lat",
        }
    }

    /// Returns the name of it as a heading.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::WriteBw => "RDMA_Write BW Test",
            Self::ReadBw => "RDMA_Read BW Test",
            Self::SendBw => "Send BW Test",
            Self::WriteLat => "RDMA_Write Latency Test",
            Self::ReadLat => "RDMA_Read Latency Test",
            Self::SendLat => "Send Latency Test",
            Self::AtomicBw => "Atomic FETCH_AND_ADD BW Test",
            Self::AtomicLat => "Atomic FETCH_AND_ADD Latency Test",
        }
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Measures bandwidth or latency between two hosts. Start the server first, without a host, then
/// the client with the server's name or address. The client's options apply. Latencies are counted
/// in a histogram, to three significant figures.
#[derive(Clone, Debug, Args)]
pub(crate) struct PerfArgs {
    /// What to measure
    pub test: Test,

    /// The server's name or address; without it, be the server
    pub host: Option<String>,

    #[command(flatten)]
    pub device: DeviceArgs,

    /// Run server and client in this process, over a link in memory: needs neither root nor a NIC
    #[arg(long, conflicts_with_all = ["host", "netdev"])]
    pub in_memory: bool,

    /// The local address to use or listen on; without it a server listens on all addresses of both
    /// families
    #[arg(long, value_name = "ADDRESS", value_parser = local_address)]
    pub local: Option<SocketAddr>,

    /// TCP port of the server
    #[arg(short, long, default_value_t = 18515)]
    pub port: u16,

    /// Octets in a message [default: 65536 for bandwidth, 2 for latency]; 8 for atomics
    #[arg(short, long, value_parser = clap::value_parser!(u64).range(0..=1 << 30), conflicts_with = "all")]
    pub size: Option<u64>,

    /// Measure all sizes from 2 to 8388608 octets
    #[arg(short, long)]
    pub all: bool,

    /// Messages to measure [default: 5000 for bandwidth, 1000 for latency]
    #[arg(short = 'n', long = "iters", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "duration")]
    pub iters: Option<u64>,

    /// Measure for this many seconds instead of a number of messages; Ctrl-C ends it early, with
    /// the figures until then
    #[arg(short = 'D', long, value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub duration: Option<u64>,

    /// With -D: seconds at the beginning and at the end that do not count
    #[arg(short = 'f', long, default_value_t = 0, requires = "duration")]
    pub margin: u64,

    /// Server: refuse a client whose test takes more memory here than this many MiB
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    pub max_memory: u64,

    /// Server: refuse a client that wants more queue pairs than this
    #[arg(long, value_name = "NUMBER", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=512))]
    pub max_qps: u16,

    /// Messages in flight at once (bandwidth)
    #[arg(short = 't', long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=16384))]
    pub tx_depth: u32,

    /// Queue pairs, each a connection (bandwidth)
    #[arg(short = 'q', long = "qp", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=512))]
    pub qps: u16,

    /// Check every message that arrives (write-bw: the final contents of memory); slower
    #[arg(short = 'v', long)]
    pub verify: bool,

    /// Take the messages of all queue pairs from one shared receive queue (send-bw, send-lat)
    #[arg(long = "use-srq", alias = "use_srq")]
    pub use_srq: bool,

    /// Accepted for compatibility with perftest; it does nothing
    #[arg(short = 'F', long = "CPU-freq")]
    pub cpu_freq: bool,

    /// Show at the end the state of TCP of each connection, as `ss -ti` does for the kernel's
    #[arg(long = "tcp-info", alias = "tcp_info")]
    pub tcp_info: bool,

    /// Show at the end the counters of each worker of the device and of each of its queues: frames,
    /// segments, hand-overs between workers, losses
    #[arg(long)]
    pub counters: bool,

    /// Report Gb/s instead of MB/s (2^20 octets)
    #[arg(long = "report_gbits", alias = "report-gbits")]
    pub report_gbits: bool,

    /// Write the report to a file as JSON too
    #[arg(long = "out_json", alias = "out-json")]
    pub out_json: bool,

    /// The file for --out_json
    #[arg(
        long = "out_json_file",
        alias = "out-json-file",
        value_name = "FILE",
        requires = "out_json"
    )]
    pub out_json_file: Option<PathBuf>,
}

/// How long a run lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    /// For this number of messages on each connection.
    Iterations(u64),
    /// For this time. The margins at both ends do not count.
    Time {
        duration: Duration,
        margin: Duration,
    },
}

/// The checked options, with defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub test: Test,
    pub sizes: Vec<u64>,
    pub length: Length,
    pub depth: u32,
    pub qps: u16,
    pub verify: bool,
    pub use_srq: bool,
}

impl PerfArgs {
    /// Makes the plan, and checks what clap cannot.
    pub(crate) fn plan(&self) -> Outcome<Plan> {
        let latency = self.test.is_latency();
        let atomic = self.test.operation() == Operation::FetchAdd;
        if atomic && (self.all || self.size.is_some_and(|size| size != ATOMIC)) {
            return Err(Failure::usage(
                if self.all { "-a" } else { "-s" },
                "an atomic works on 8 octets; leave it out",
            ));
        }
        let sizes = match (self.all, self.size) {
            _ if atomic => vec![ATOMIC],
            (true, _) => (1..)
                .map(|power| 1 << power)
                .take_while(|&size| size <= LARGEST)
                .collect(),
            (false, Some(size)) => vec![size],
            (false, None) => vec![if latency { 2 } else { 1 << 16 }],
        };
        if self.test == Test::WriteLat && sizes == [0] {
            return Err(Failure::usage(
                "-s 0",
                "write-lat waits for the last octet of a message; choose 1 or more",
            ));
        }
        if latency && self.qps > 1 {
            return Err(Failure::usage(
                "-q",
                "latency is measured on one queue pair; leave -q out",
            ));
        }
        if self.use_srq && self.test.operation() != Operation::Send {
            return Err(Failure::usage(
                "--use-srq",
                "only Sends use receives; choose send-bw or send-lat",
            ));
        }
        let length = match self.duration {
            Some(seconds) if seconds <= 2 * self.margin => {
                let why = format!(
                    "margins of {} s leave nothing of {seconds} s; choose a longer -D",
                    self.margin
                );
                return Err(Failure::usage("-f", why));
            }
            Some(seconds) => Length::Time {
                duration: Duration::from_secs(seconds),
                margin: Duration::from_secs(self.margin),
            },
            None => Length::Iterations(self.iters.unwrap_or(if latency {
                LATENCY_ITERATIONS
            } else {
                BANDWIDTH_ITERATIONS
            })),
        };
        let (depth, qps, verify) = (self.tx_depth, self.qps, self.verify);
        Ok(Plan {
            test: self.test,
            sizes,
            length,
            depth: if latency { 1 } else { depth },
            qps,
            verify,
            use_srq: self.use_srq,
        })
    }

    /// Returns the file that `--out_json` writes.
    pub(crate) fn json_file(&self) -> Option<PathBuf> {
        self.out_json.then(|| {
            self.out_json_file
                .clone()
                .unwrap_or_else(|| PathBuf::from("perftest_out.json"))
        })
    }
}
