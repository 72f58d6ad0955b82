//! `rnic-ctl doctor`: what this host and an interface can do.

use std::fmt::Write;
use std::process::ExitCode;

use clap::Args;
use rnic_xdp::facts::{self, Fact, Verdict};
use serde_json::{Value, json};

use crate::failure::Outcome;
use crate::out;

mod sharing;

/// Checks what this host and an interface can do, and says how to mend what fails. The exit code is
/// 1 if a check fails.
#[derive(Clone, Debug, Args)]
pub(crate) struct DoctorArgs {
    /// The network interface
    #[arg(long, value_name = "IF")]
    netdev: String,

    /// Do not open the interface: opening it interrupts the link of some NICs for a moment
    #[arg(long)]
    no_trial: bool,
}

/// Runs the command.
pub(crate) fn run(args: &DoctorArgs, json: bool) -> Outcome<ExitCode> {
    let netdev = &args.netdev;
    let Findings { host, device } = Findings::of(netdev, !args.no_trial);
    let fails = has_failures(&host) || has_failures(&device);
    if json {
        let (host, device) = (to_json(&host), to_json(&device));
        let report = json!({ "netdev": netdev, "ok": !fails, "host": host, "device": device });
        out::line(format_args!("{report:#}"))?;
    } else {
        out::write(&render("host", &host))?;
        out::write(&render(netdev, &device))?;
    }
    Ok(if fails {
        ExitCode::from(1)
    } else {
        ExitCode::SUCCESS
    })
}

/// What was found.
pub(crate) struct Findings {
    pub host: Vec<Fact>,
    pub device: Vec<Fact>,
}

impl Findings {
    /// Examines this host and an interface, which is opened for a moment if `trial` is set.
    pub(crate) fn of(netdev: &str, trial: bool) -> Self {
        let mut host = facts::host();
        let mut device = facts::device(netdev);
        match sharing::manager_of(netdev) {
            Ok(manager) => {
                sharing::settle(&mut host);
                sharing::settle(&mut device);
                device.push(sharing::offered(netdev));
                if trial {
                    device.push(sharing::trial(manager, netdev));
                }
            }
            Err(why) => {
                // What rnicd shares cannot be had alone.
                let is_shared = rnic_xdp::steering::is_shared(netdev);
                let may_have_it_alone = !has_failures(&host) && !is_shared;
                device.push(sharing::not_offered(&why, may_have_it_alone));
                if trial && !has_failures(&device) {
                    facts::trial(netdev, &mut device);
                }
            }
        }
        Self { host, device }
    }
}

/// Returns whether a check has failed.
pub(crate) fn has_failures(facts: &[Fact]) -> bool {
    facts.iter().any(|fact| fact.verdict == Verdict::Fail)
}

/// Returns a line for each finding, with its remedy below it.
pub(crate) fn render(title: &str, facts: &[Fact]) -> String {
    let mut text = format!("{title}\n");
    for Fact {
        name,
        verdict,
        found,
        remedy,
    } in facts
    {
        // Writing to a String does not fail.
        let _ = writeln!(text, "  {:<4}  {name:<14} {found}", verdict.to_string());
        if let Some(remedy) = remedy {
            let _ = writeln!(text, "        {:<14} -> {remedy}", "");
        }
    }
    text
}

/// Returns the findings as JSON.
pub(crate) fn to_json(facts: &[Fact]) -> Value {
    let fact = |fact: &Fact| {
        let verdict = match fact.verdict {
            Verdict::Ok => "ok",
            Verdict::Warn => "warn",
            Verdict::Fail => "fail",
        };
        json!({ "name": fact.name, "verdict": verdict, "found": fact.found, "remedy": fact.remedy })
    };
    facts.iter().map(fact).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Vec<Fact> {
        let fact = |name, verdict, found: &str, remedy: Option<&str>| Fact {
            name,
            verdict,
            found: found.into(),
            remedy: remedy.map(Into::into),
        };
        vec![
            fact("kernel", Verdict::Ok, "6.1.0", None),
            fact(
                "hugepages",
                Verdict::Warn,
                "none",
                Some("sysctl vm.nr_hugepages=256"),
            ),
            fact("rights", Verdict::Fail, "not root", Some("run it as root")),
        ]
    }

    #[test]
    fn remedies_stand_below_their_findings() {
        let text = render("host", &facts());
        let expected = "host\n  \
            ok    kernel         6.1.0\n  \
            warn  hugepages      none\n        \
                                 -> sysctl vm.nr_hugepages=256\n  \
            FAIL  rights         not root\n        \
                                 -> run it as root\n";
        let squeeze = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(squeeze(&text), squeeze(expected));
        assert_eq!(text.lines().count(), 6);
        let columns: Vec<_> = ["6.1.0", "none", "not root", "-> sysctl", "-> run"]
            .iter()
            .map(|word| text.lines().find_map(|line| line.find(word)))
            .collect();
        assert!(columns.iter().all(|column| *column == columns[0]), "{text}");
    }

    #[test]
    fn only_failures_fail() {
        assert!(has_failures(&facts()));
        assert!(!has_failures(&facts()[..2]));
        let json = to_json(&facts());
        assert_eq!(
            (&json[0]["verdict"], &json[2]["verdict"]),
            (&"ok".into(), &"fail".into())
        );
        assert_eq!(json[2]["remedy"], "run it as root");
        assert!(json[0]["remedy"].is_null());
    }
}
