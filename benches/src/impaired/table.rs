//! The results, a line for each point.

use std::fmt;
use std::time::Duration;

use super::forwarder::Account;
use super::options::ImpairedOptions;
use super::ours::{Outcome, Side};
use crate::stats::Samples;

/// A loss rate in one direction.
pub(crate) struct ImpairedPoint {
    pub(crate) sender: Side,
    loss: f64,
    /// Seconds of each run.
    ours: Samples,
    kernels: Samples,
    /// Segments that ours sent again.
    retransmits: u64,
    /// Frames that were lost neither by chance nor in the queue of the box.
    strays: u64,
}

impl ImpairedPoint {
    pub(crate) fn new(sender: Side, loss: f64) -> Self {
        Self {
            sender,
            loss,
            ours: Samples::default(),
            kernels: Samples::default(),
            retransmits: 0,
            strays: 0,
        }
    }

    pub(crate) fn runs(&self) -> usize {
        self.ours.values().len()
    }

    /// Returns the file name of the capture of the next run.
    pub(crate) fn file_name(&self, initiator: Side) -> String {
        let side = |side| match side {
            Side::Ours => "ours",
            Side::Kernel => "kernel",
        };
        format!(
            "{}-sends-{}-connects-loss-{}-{}.pcap",
            side(self.sender),
            side(initiator),
            self.loss * 100.0,
            self.runs()
        )
    }

    pub(crate) fn add_ours(&mut self, outcome: &Outcome, accounts: &[Account]) {
        self.ours.push(outcome.time.as_secs_f64());
        self.retransmits += outcome.tcp.retransmits;
        self.count_strays(accounts);
    }

    pub(crate) fn add_kernels(&mut self, time: Duration, accounts: &[Account]) {
        self.kernels.push(time.as_secs_f64());
        self.count_strays(accounts);
    }

    fn count_strays(&mut self, accounts: &[Account]) {
        let strays = accounts
            .iter()
            .map(|account| account.missed + account.refused);
        self.strays += strays.sum::<u64>();
    }

    pub(crate) fn line(&self, octets: u64) -> String {
        let megabits = |samples: &Samples| octets as f64 * 8e-6 / samples.median();
        let (ours, kernels) = (megabits(&self.ours), megabits(&self.kernels));
        let spread = |samples: &Samples| {
            let rate = |share| octets as f64 * 8e-6 / samples.quantile(share);
            format!("({:.0}..{:.0})", rate(1.0), rate(0.0))
        };
        let beside = if kernels.is_nan() {
            format!("{:>22} {:>6}", "-", "-")
        } else {
            format!(
                "{kernels:>8.0} {:>13} {:>6.2}",
                spread(&self.kernels),
                ours / kernels
            )
        };
        let sends = match self.sender {
            Side::Ours => "ours",
            Side::Kernel => "kernel",
        };
        format!(
            "{sends:<7} {:>6} {ours:>8.0} {:>13} {beside} {:>9} {:>7}",
            format!("{}%", self.loss * 100.0),
            spread(&self.ours),
            self.retransmits,
            self.strays
        )
    }
}

impl fmt::Display for ImpairedPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sender = match self.sender {
            Side::Ours => "ours",
            Side::Kernel => "the kernel",
        };
        write!(f, "{sender} sends, {} % loss", self.loss * 100.0)
    }
}

/// Returns the heading of the lines.
pub(crate) fn head(options: &ImpairedOptions) -> String {
    let impairments = &options.impairments;
    let rate = impairments.rate.map_or("no limit".into(), |rate| {
        format!("{} Mb/s", rate / 1_000_000)
    });
    format!(
        "{} MiB each way over a path of {:?} delay each way, {rate}, a queue of {} KiB, {} % reordered, {} % duplicated;\n\
         medians of {} runs, goodput in Mb/s; strays: frames that the box itself could not keep\n\n\
         {:<7} {:>6} {:>8} {:>13} {:>8} {:>13} {:>6} {:>9} {:>7}",
        options.size >> 20,
        impairments.delay,
        impairments.queue >> 10,
        impairments.reordering * 100.0,
        impairments.duplication * 100.0,
        options.repetitions,
        "sender",
        "loss",
        "ours",
        "",
        "kernel's",
        "",
        "ratio",
        "resent",
        "strays",
    )
}
