//! `rnic run`: becomes a program, in the environment in which it uses rnic.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use clap::Args;
use rnic_manager::make_node;
use rnic_verbs::Via;

use super::devices::Devices;
use super::surroundings::{self, IpsecArgs, Label};
use super::sysfs::{self, Sysfs};
use super::{check, executable, libraries};
use crate::failure::{Failure, Kind, Outcome};

/// Runs an RDMA program over rnic
///
/// `rnic run ib_write_bw -R 192.0.2.1` is what `ib_write_bw -R 192.0.2.1` is on a host with an RDMA
/// NIC. rnic becomes the program, so that signals reach it and its exit code is its own. What the
/// program runs uses rnic too.
#[derive(Clone, Debug, Args)]
pub(super) struct RunArgs {
    /// The interfaces that the program sees as RDMA devices. The default is RNIC_NETDEV of the
    /// environment, or what rnicd shares with this user, or else all that are up. Without rights
    /// and rnicd it is one device for all of them, over TCP sockets of the kernel
    #[arg(long, value_name = "IF", value_delimiter = ',')]
    netdev: Vec<String>,

    /// What carries the connections: `xdp`, a port of rnicd or the interface for oneself; `rnicd`, a
    /// port alone; `kernel`, TCP sockets, which need no right; `sctp`, SCTP sockets; or the `best`
    /// that is there. The default is RNIC_VIA of the environment, or else `best`
    #[arg(long, value_name = "WAY")]
    via: Option<Via>,

    /// What the devices call themselves, for programs that look. The default is RNIC_DEVICE of the
    /// environment, or else iWARP
    #[arg(long = "as", value_name = "LABEL")]
    label: Option<Label>,

    #[command(flatten)]
    ipsec: IpsecArgs,

    /// Whether the program sees the devices in /sys/class/infiniband, where the kernel has none: by
    /// a library that is preloaded (LD_PRELOAD). The default is `yes` for devices that call
    /// themselves RoCE, or else `no`
    #[arg(long, value_name = "WHETHER")]
    sysfs: Option<Sysfs>,

    /// Do not run the program. Check all that it needs, and say how to mend what fails. The exit
    /// code is 1 if a check fails
    #[arg(long)]
    check: bool,

    /// The program, and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    pub(super) command: Vec<OsString>,
}

/// Runs the command, which returns only if the program does not run.
pub(super) fn run(args: &RunArgs, json: bool) -> Outcome<ExitCode> {
    let Some((name, arguments)) = args.command.split_first() else {
        return Err(Failure::usage("run a program", "none was named"));
    };
    let program = executable::find(name)?;
    let devices = Devices::choose(&args.netdev, args.via);
    let label = surroundings::label(args.label);
    if args.check {
        return check::report(&program, &devices, label, args.sysfs, json);
    }
    let libraries = libraries::directory()?;
    let devices = devices?;
    devices.check()?;
    check::pass(&program, &check::program(&program))?;
    if label == Some(Label::Roce) {
        // Only some programs look for it, and only root can make it: `--check` tells.
        let _ = make_node();
    }
    // Without it some programs do not find the devices, and all others run: `--check` tells.
    let sysfs = sysfs::made(args.sysfs, label, &devices).and_then(Result::ok);
    let mut command = Command::new(&program);
    command.arg0(name).args(arguments);
    let variables = surroundings::variables(&libraries, &devices, args.label, sysfs.as_deref());
    command.envs(variables.into_iter().chain(args.ipsec.variables()));
    let why = command.exec();
    Err(Failure::of_program(
        Kind::NotExecutable,
        program.display(),
        why,
    ))
}
