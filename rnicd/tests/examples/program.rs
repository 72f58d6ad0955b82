//! A process that runs an example, and what it says.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How long anything may take that happens at all.
pub(crate) const SOON: Duration = Duration::from_secs(60);

pub(crate) struct Program {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    errors: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

/// What a program said in the end.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) succeeded: bool,
    /// Lines of standard output that were not read before.
    pub(crate) output: String,
    pub(crate) errors: String,
}

impl Program {
    pub(crate) fn start(mut command: Command) -> Self {
        command.stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (sender, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let errors = Arc::<Mutex<String>>::default();
        let said = errors.clone();
        let reader = std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                writeln!(said.lock().unwrap(), "{line}").unwrap();
            }
        });
        Self {
            stdin: child.stdin.take(),
            child,
            lines,
            errors,
            reader: Some(reader),
        }
    }

    /// Writes a line to its standard input.
    pub(crate) fn tell(&mut self, line: &str) {
        // If it has ended, its answer is missing.
        let _ = writeln!(self.stdin.as_mut().unwrap(), "{line}");
    }

    /// Returns its next line of standard output.
    pub(crate) fn line(&mut self) -> String {
        if let Ok(line) = self.lines.recv_timeout(SOON) {
            return line;
        }
        self.signal(Signal::SIGKILL);
        panic!("it says nothing more: {:?}", self.wait());
    }

    /// Returns the address in its first line, "serving at ADDRESS".
    pub(crate) fn address(&mut self) -> String {
        let line = self.line();
        let (_, address) = line.rsplit_once(" at ").unwrap();
        address.to_owned()
    }

    /// Returns what it has said on standard error so far.
    pub(crate) fn errors(&self) -> String {
        self.errors.lock().unwrap().clone()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }

    /// Returns whether it still runs.
    pub(crate) fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Closes its standard input, and waits until it has ended by itself.
    pub(crate) fn finish(mut self) -> Ended {
        self.wait()
    }

    /// Waits until it has ended, and fails unless that was in order. Returns what it said.
    pub(crate) fn succeed(self) -> Ended {
        let ended = self.finish();
        assert!(ended.succeeded, "{ended:?}");
        ended
    }

    /// Waits until it has ended with an error, and returns what it said of that.
    pub(crate) fn fail(self) -> String {
        let ended = self.finish();
        assert!(!ended.succeeded && !ended.errors.is_empty(), "{ended:?}");
        ended.errors
    }

    fn wait(&mut self) -> Ended {
        self.stdin = None;
        let deadline = Instant::now() + SOON;
        while self.runs() {
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
        let mut output = String::new();
        while let Ok(line) = self.lines.recv() {
            writeln!(output, "{line}").unwrap();
        }
        self.reader.take().unwrap().join().unwrap();
        Ended {
            succeeded: self.child.wait().unwrap().success(),
            output,
            errors: self.errors(),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
