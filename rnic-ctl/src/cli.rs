//! The command line.

use clap::{Parser, Subcommand};

use crate::capture::CaptureArgs;
use crate::completion::{CompletionArgs, ManArgs};
use crate::doctor::DoctorArgs;
use crate::objects::client::ClientArgs;
use crate::objects::metrics::MetricsArgs;
use crate::objects::monitor::MonitorArgs;
use crate::objects::top::TopArgs;
use crate::objects::{Asking, ObjectArgs, conn, dev, lease, port, res, sa, stat, steer, user};
use crate::perf::args::PerfArgs;
use crate::programs::env::EnvArgs;
use crate::rping::RpingArgs;
use crate::steering::SteeringArgs;

/// RDMA in user space: administer, measure and diagnose it.
///
/// dev, port, lease, client, user, stat, monitor and top ask rnicd, conn and res its clients, sa and
/// steer the kernel; all but top print a line for each object, as `rdma` and `ip` do; metrics puts their
/// counters in the form of Prometheus. Objects and verbs can be abbreviated: `rnic-ctl p s` is
/// `rnic-ctl port show`.
///
/// Exit codes: 0 done, 1 the operation failed, 2 wrong command line, 3 this host or user lacks
/// something (root, XDP, an interface), 130 interrupted, 141 nobody reads the output any more (as
/// `| head` does).
///
/// RUST_LOG=rnic=debug in the environment logs on standard error what happens to connections,
/// listeners and the device, and why.
#[derive(Debug, Parser)]
#[command(name = "rnic-ctl", version, infer_subcommands = true)]
pub(crate) struct Cli {
    /// Print JSON
    #[arg(short, long, global = true)]
    pub json: bool,

    /// Of rnicd's objects: with -j, one value on a line, indented
    #[arg(short, long)]
    pub pretty: bool,

    /// Of rnicd's objects: print details
    #[arg(short, long)]
    pub details: bool,

    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    #[command(alias = "d", infer_subcommands = true)]
    Dev(ObjectArgs<dev::Verb>),
    #[command(alias = "p", infer_subcommands = true)]
    Port(ObjectArgs<port::Verb>),
    #[command(infer_subcommands = true)]
    Lease(ObjectArgs<lease::Verb>),
    #[command(alias = "c", infer_subcommands = true)]
    Client(ClientArgs),
    #[command(infer_subcommands = true)]
    Conn(ObjectArgs<conn::Verb, Asking>),
    #[command(alias = "r", infer_subcommands = true)]
    Res(ObjectArgs<res::Verb, Asking>),
    #[command(infer_subcommands = true)]
    User(ObjectArgs<user::Verb>),
    #[command(aliases = ["s", "st"], infer_subcommands = true)]
    Stat(ObjectArgs<stat::Verb>),
    #[command(alias = "m")]
    Monitor(MonitorArgs),
    #[command(alias = "t")]
    Top(TopArgs),
    Metrics(MetricsArgs),
    Perf(Box<PerfArgs>),
    Rping(RpingArgs),
    Env(EnvArgs),
    Doctor(DoctorArgs),
    #[command(infer_subcommands = true)]
    Sa(ObjectArgs<sa::Verb>),
    #[command(infer_subcommands = true)]
    Steer(ObjectArgs<steer::Verb>),
    Steering(SteeringArgs),
    Capture(CaptureArgs),
    Completion(CompletionArgs),
    Man(ManArgs),
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::CommandFactory;

    use super::*;
    use crate::perf::args::{Length, Plan, Test};

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    fn plan(line: &str) -> Result<Plan, String> {
        match parse(line).map_err(|error| error.to_string())?.command {
            Command::Perf(args) => args.plan().map_err(|failure| failure.to_string()),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn perftests_letters_are_understood() {
        let line = "rnic-ctl perf write-bw -s 4096 -n 100 -t 16 -q 4 -p 1234 -F -v --report_gbits --out_json 192.0.2.1";
        let plan = plan(line).unwrap();
        assert_eq!(
            (plan.test, plan.sizes.as_slice()),
            (Test::WriteBw, [4096].as_slice())
        );
        assert_eq!(plan.length, Length::Iterations(100));
        assert_eq!((plan.depth, plan.qps, plan.verify), (16, 4, true));
    }

    #[test]
    fn defaults_are_perftests() {
        let bandwidth = plan("rnic-ctl perf read-bw --netdev eth0").unwrap();
        assert_eq!(
            (bandwidth.sizes.as_slice(), bandwidth.depth),
            ([65536].as_slice(), 128)
        );
        assert_eq!(bandwidth.length, Length::Iterations(5000));
        let latency = plan("rnic-ctl perf send-lat --netdev eth0").unwrap();
        assert_eq!(
            (latency.sizes.as_slice(), latency.length),
            ([2].as_slice(), Length::Iterations(1000))
        );
    }

    #[test]
    fn all_sizes_are_the_powers_of_two_to_8_mib() {
        let plan = plan("rnic-ctl perf write-lat -a").unwrap();
        assert_eq!(
            (plan.sizes.len(), plan.sizes.first(), plan.sizes.last()),
            (23, Some(&2), Some(&8388608))
        );
    }

    #[test]
    fn durations_and_margins() {
        let (duration, margin) = (Duration::from_secs(10), Duration::from_secs(2));
        assert_eq!(
            plan("rnic-ctl perf write-bw -D 10 -f 2").unwrap().length,
            Length::Time { duration, margin }
        );
        assert!(
            plan("rnic-ctl perf write-bw -D 10 -f 5")
                .unwrap_err()
                .contains("longer -D")
        );
        assert!(plan("rnic-ctl perf write-bw -f 5").is_err());
        assert!(plan("rnic-ctl perf write-bw -D 10 -n 5").is_err());
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for line in [
            "rnic-ctl perf",
            "rnic-ctl perf swap-bw",
            "rnic-ctl perf write-bw -s 1 -a",
            "rnic-ctl perf write-bw -q 0",
            "rnic-ctl perf write-bw -t 0",
            "rnic-ctl perf write-bw -n 0",
            "rnic-ctl perf write-lat -s 0",
            "rnic-ctl perf write-lat -q 2",
            "rnic-ctl perf write-bw --in-memory 192.0.2.1",
        ] {
            assert!(plan(line).is_err(), "{line}");
        }
    }

    #[test]
    fn objects_and_verbs_can_be_abbreviated() {
        let shown = |line: &str| format!("{:?}", parse(line).unwrap().command);
        for (short, long) in [
            ("p s", "port show"),
            ("p s 3", "port show 3"),
            ("d s eth0", "dev show eth0"),
            ("l r 1 192.0.2.1:1", "lease revoke 1 192.0.2.1:1"),
            ("le list", "lease show"),
            ("c k 7", "client kill 7"),
            ("cl k --pid 7", "client kill --pid 7"),
            ("u l", "user show"),
            ("u s", "user show"),
            ("d a eth0", "dev add eth0"),
            ("d d eth0", "dev del eth0"),
            ("u set a rate 1Gbit", "user set a rate 1Gbit"),
            ("t", "top"),
            ("con s qpn 1", "conn show qpn 1"),
            ("r s qp port 1", "res show qp port 1"),
            ("s w 1", "stat watch 1"),
            ("steer s eth0", "steer show eth0"),
            ("m", "monitor"),
        ] {
            assert_eq!(
                shown(&format!("rnic-ctl {short}")),
                shown(&format!("rnic-ctl {long}"))
            );
        }
        assert!(matches!(
            parse("rnic-ctl perf -a write-bw").unwrap().command,
            Command::Perf(_)
        ));
        assert!(parse("rnic-ctl client kill").is_err());
        assert!(parse("rnic-ctl client kill 1 --pid 2").is_err());
        assert!(parse("rnic-ctl lease revoke 1 192.0.2.1").is_err());
    }

    #[test]
    fn options_stand_before_or_behind_the_object() {
        for line in [
            "-jpd port show",
            "port -j -p -d show",
            "port show -jpd --socket /a",
        ] {
            parse(&format!("rnic-ctl {line}")).unwrap();
        }
    }

    #[test]
    fn json_is_for_every_command() {
        assert!(parse("rnic-ctl perf write-bw -j").unwrap().json);
        assert!(parse("rnic-ctl -j rping -s --netdev eth0").unwrap().json);
    }
}
