//! `rnic-ctl env`: the variables, for a shell.

use clap::Args;
use rnic_verbs::Via;
use serde_json::{Map, Value};

use super::devices::Devices;
use super::libraries;
use super::surroundings::{self, IpsecArgs, Label};
use super::sysfs::{self, Sysfs};
use crate::failure::Outcome;
use crate::out;

/// Prints the environment in which RDMA programs use rnic, for a shell: `eval "$(rnic-ctl env)"`.
/// `rnic run` runs one program
#[derive(Clone, Debug, Args)]
pub(crate) struct EnvArgs {
    /// The interfaces that programs see as RDMA devices. The default is those that rnicd shares
    /// with this user, or else all that are up. Without rights and rnicd it is one device for all
    /// of them, over TCP sockets of the kernel
    #[arg(long, value_name = "IF", value_delimiter = ',')]
    netdev: Vec<String>,

    /// What carries the connections: `xdp`, `rnicd`, `kernel`, or the `best`
    #[arg(long, value_name = "WAY")]
    via: Option<Via>,

    /// What the devices call themselves, for programs that look. The default is iWARP
    #[arg(long = "as", value_name = "LABEL")]
    label: Option<Label>,

    #[command(flatten)]
    ipsec: IpsecArgs,

    /// Whether programs see the devices in /sys/class/infiniband. The default is `yes` for devices
    /// that call themselves RoCE, or else `no`
    #[arg(long, value_name = "WHETHER")]
    sysfs: Option<Sysfs>,
}

/// Runs the command.
pub(crate) fn run(args: &EnvArgs, json: bool) -> Outcome {
    let libraries = libraries::directory()?;
    let devices = Devices::choose(&args.netdev, args.via)?;
    devices.check()?;
    let label = surroundings::label(args.label);
    let sysfs = sysfs::made(args.sysfs, label, &devices).and_then(Result::ok);
    let variables = surroundings::variables(&libraries, &devices, args.label, sysfs.as_deref());
    let variables = variables.into_iter().chain(args.ipsec.variables());
    let variables = variables.map(|(name, value)| (name, value.to_string_lossy().into_owned()));
    if json {
        let report = variables.map(|(name, value)| (name.to_owned(), Value::from(value)));
        let report: Map<_, _> = report.collect();
        return out::line(format_args!("{:#}", Value::from(report)));
    }
    for (name, value) in variables {
        out::line(format_args!("export {name}={}", quoted(&value)))?;
    }
    Ok(())
}

/// Quotes a word for a shell of POSIX.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_shell_reads_what_was_quoted() {
        for word in ["/usr/lib/rnic", "it's $HOME `x` \\ \"y\"", ""] {
            let line = format!("printf %s {}", quoted(word));
            let said = Command::new("sh").args(["-c", &line]).output().unwrap();
            assert_eq!(said.stdout, word.as_bytes());
        }
    }
}
