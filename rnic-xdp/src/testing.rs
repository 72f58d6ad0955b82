//! Network namespaces and veth pairs for tests that need the real kernel, which uses the `ip`
//! command; and IPsec associations for where the kernel has no ESP.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::{Command, id};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use nix::sched::{CloneFlags, setns};

pub use crate::device::give_association;

/// A new network namespace, removed when dropped.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Makes a namespace with its loopback device up. The name must not be longer than a few
    /// letters; the process id and a number are added, so that tests do not share one.
    pub fn new(name: &str) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("rnic-{name}-{}-{number}", id());
        run("ip", ["netns", "add", &name])?;
        let namespace = Self { name };
        namespace.ip("link set dev lo up")?;
        Ok(namespace)
    }

    /// Returns its name, as in `ip netns`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs an `ip` command in it, arguments separated by blanks.
    pub fn ip(&self, arguments: &str) -> io::Result<String> {
        let start = ["-n", &self.name];
        run("ip", start.into_iter().chain(arguments.split_whitespace()))
    }

    /// Returns a command that runs in it.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Runs a closure on a thread that lives in the namespace; so do the threads and processes that
    /// it starts.
    pub fn run<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        let enter = || -> io::Result<()> {
            let namespace = File::open(format!("/run/netns/{}", self.name))?;
            Ok(setns(namespace, CloneFlags::CLONE_NEWNET)?)
        };
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                enter().unwrap_or_else(|error| panic!("cannot enter {}: {error}", self.name));
                body()
            });
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Err(error) = run("ip", ["netns", "del", &self.name]) {
            eprintln!("{} stays behind: {error}", self.name);
        }
    }
}

/// One end of a veth pair to be made.
#[derive(Clone, Copy, Debug)]
pub struct VethEnd<'a> {
    /// Where it is to be.
    pub namespace: &'a Namespace,
    /// Its name: 15 characters at most.
    pub name: &'a str,
    /// Its addresses with prefix lengths, separated by blanks: "10.0.0.1/24 fd00::1/64".
    pub addresses: &'a str,
}

/// Joins two namespaces by a veth pair with as many queues each way as stated, up, with its
/// addresses usable.
pub fn veth_pair(one: VethEnd<'_>, other: VethEnd<'_>, queues: u32) -> io::Result<()> {
    let count = format!("numtxqueues {queues} numrxqueues {queues}");
    one.namespace.ip(&format!(
        "link add {} {count} type veth peer name {} netns {} {count}",
        one.name, other.name, other.namespace.name
    ))?;
    for end in [one, other] {
        // The kernel sends neighbour solicitations from its link-local address, and none before
        // that has passed duplicate address detection.
        let accept_dad = format!("/proc/sys/net/ipv6/conf/{}/accept_dad", end.name);
        end.namespace.run(|| fs::write(accept_dad, "0"))?;
        for address in end.addresses.split_whitespace() {
            // Without duplicate address detection, IPv6 addresses are usable at once.
            let nodad = if address.contains(':') { "nodad" } else { "" };
            let command = format!("addr add {address} dev {} {nodad}", end.name);
            end.namespace.ip(&command)?;
        }
        end.namespace.ip(&format!("link set dev {} up", end.name))?;
    }
    Ok(())
}

/// Switches the offloads off that hide the wire: a kernel end of a veth pair otherwise sends
/// partial checksums, and, to one without XDP, packets larger than its MTU.
pub fn disable_offloads(namespace: &Namespace, netdev: &str) -> io::Result<()> {
    let mut command = namespace.command("ethtool");
    command.args([
        "-K", netdev, "tx", "off", "tso", "off", "gso", "off", "gro", "off",
    ]);
    output(command).map(drop)
}

fn run<A: AsRef<OsStr>>(
    program: &str,
    arguments: impl IntoIterator<Item = A>,
) -> io::Result<String> {
    let mut command = Command::new(program);
    command.args(arguments);
    output(command)
}

fn output(mut command: Command) -> io::Result<String> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{command:?}: {}", stderr.trim())))
}

/// Copies a program to where other users may run it.
///
/// Another program copies it: if this one held it open for writing, a process that another thread
/// starts just then would hold it too for a moment, and nobody could run it ("text file busy").
///
/// # Panics
///
/// If it cannot be copied.
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let (from, to) = (from.as_ref(), to.as_ref());
    let copied = Command::new("cp").args([from, to]).status();
    assert!(
        copied.is_ok_and(|code| code.success()),
        "{from:?} to {to:?}"
    );
}
