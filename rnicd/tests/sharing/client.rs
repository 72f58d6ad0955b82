//! Starts clients, and speaks with them.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use crate::exchange::{Outcome, SOON};
use crate::play::ANSWER;

/// The group that may connect to rnicd.
pub(crate) const GROUP: &str = "nogroup";
const GID: u32 = 65534;
/// A user, and another one. They need no entry in the list of users.
pub(crate) const ALICE: u32 = 65533;
pub(crate) const BOB: u32 = 65532;

/// Where a process lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// In the namespaces of the process that starts it.
    Host,
    /// In user, network and mount namespaces of its own.
    Container,
}

/// A process of a user: without capabilities, with 8 MiB of locked memory.
pub(crate) struct Client {
    child: Child,
    stdin: ChildStdin,
    answers: Receiver<String>,
}

impl Client {
    /// Starts a program with its arguments. It must lie where everybody can read it.
    pub(crate) fn start(program: &[&OsStr], socket: &Path, uid: u32, home: Home) -> Self {
        let namespaces: &[&str] = match home {
            Home::Host => &[],
            Home::Container => &["unshare", "-Unm"],
        };
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid", &uid.to_string(), "--regid", &GID.to_string()])
            .args(["--clear-groups", "--bounding-set=-all", "--no-new-privs"])
            .args(["prlimit", "--memlock=8388608:8388608"])
            .args(namespaces)
            .args(program)
            .env("RNICD_SOCKET", socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if let Some(answer) = line.strip_prefix(ANSWER)
                    && sender.send(answer.to_owned()).is_err()
                {
                    return;
                }
            }
        });
        Self {
            child,
            stdin,
            answers,
        }
    }

    /// Returns its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Tells it something.
    pub(crate) fn tell(&mut self, line: &str) {
        // If it has ended, its answer is missing.
        let _ = writeln!(self.stdin, "{line}");
    }

    /// Returns its next answer.
    pub(crate) fn answer(&mut self) -> Outcome<String> {
        let answer = self.answers.recv_timeout(2 * SOON);
        let answer = answer.map_err(|_| "the client does not answer".to_owned())?;
        match answer.split_once(' ').unwrap_or((&answer, "")) {
            ("ok", rest) => Ok(rest.to_owned()),
            (_, rest) => Err(rest.to_owned()),
        }
    }

    /// Returns the answer to a line.
    pub(crate) fn ask(&mut self, line: &str) -> Outcome<String> {
        self.tell(line);
        self.answer()
    }

    /// Returns the answer to a line, which is no error.
    pub(crate) fn must(&mut self, line: &str) -> String {
        self.ask(line).unwrap_or_else(|why| panic!("{line}: {why}"))
    }

    /// Ends it as the kernel does when memory is short.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        let status = self.child.wait().unwrap();
        assert_eq!(status.signal(), Some(9), "it had ended before");
    }

    /// Waits for its end by SIGKILL, which somebody else has sent.
    pub(crate) fn must_be_killed(mut self) {
        let status = self.child.wait().unwrap();
        assert_eq!(status.signal(), Some(9));
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
