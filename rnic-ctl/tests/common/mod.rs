//! Commands in two joined namespaces that do not outlive their test.
#![allow(dead_code)] // each test takes what it needs

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rnic_xdp::testing::{Namespace, VethEnd, veth_pair};

/// The longest time that anything may take, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(120);

/// Two namespaces, joined by `ours` (10.77.0.1, fd77::1) and `theirs` (10.77.0.2, fd77::2), of two
/// queues each.
pub(crate) fn link(name: &str, theirs: &str) -> (Namespace, Namespace) {
    let (one, other) = (Namespace::new(name).unwrap(), Namespace::new(name).unwrap());
    let end = |namespace, name, addresses| VethEnd {
        namespace,
        name,
        addresses,
    };
    veth_pair(
        end(&one, "ours", "10.77.0.1/24 fd77::1/64"),
        end(&other, theirs, "10.77.0.2/24 fd77::2/64"),
        2,
    )
    .unwrap();
    (one, other)
}

/// A running command, which is killed if the test ends before it.
pub(crate) struct Running {
    child: Option<Child>,
    /// Its standard output, once a line was read from it.
    said: Option<BufReader<ChildStdout>>,
    first: String,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Self {
            child: Some(command.spawn().unwrap()),
            said: None,
            first: String::new(),
        }
    }

    /// Waits for a line of standard output that contains `words`.
    pub(crate) fn until_it_says(mut self, words: &str) -> Self {
        let child = self.child.as_mut().unwrap();
        let said = self.said.take();
        let mut said = said.unwrap_or_else(|| BufReader::new(child.stdout.take().unwrap()));
        while !self.first.contains(words) {
            let read = said.read_line(&mut self.first).unwrap();
            if read == 0 {
                let mut why = String::new();
                let mut stderr = child.stderr.take().unwrap();
                let _ = stderr.read_to_string(&mut why);
                panic!("it never says {words:?}: {}{why}", self.first);
            }
        }
        self.said = Some(said);
        self
    }

    /// Waits for another line of standard output, after [`until_it_says`](Self::until_it_says).
    pub(crate) fn until_it_says_more(mut self) -> Self {
        let said = self.said.as_mut().unwrap();
        let read = said.read_line(&mut self.first).unwrap();
        assert!(read > 0, "it says no more: {}", self.first);
        self
    }

    /// What it has said so far.
    pub(crate) fn said(&self) -> &str {
        &self.first
    }

    /// Its number. `ip netns exec` becomes the command that it starts.
    pub(crate) fn id(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// Sends it a SIGINT.
    pub(crate) fn interrupt(&self) {
        let status = Command::new("kill")
            .args(["-INT", &self.id().to_string()])
            .status();
        assert!(status.unwrap().success());
    }

    /// Waits for its end.
    pub(crate) fn finish(mut self, what: &str) -> Output {
        let deadline = Instant::now() + PATIENCE;
        let child = self.child.as_mut().unwrap();
        while child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "{what} does not end");
            sleep(Duration::from_millis(10));
        }
        let mut output = self.child.take().unwrap().wait_with_output().unwrap();
        if let Some(mut said) = self.said.take() {
            output.stdout = std::mem::take(&mut self.first).into_bytes();
            said.read_to_end(&mut output.stdout).unwrap();
        }
        output
    }

    /// Waits for its end, which must be a success; returns standard output.
    pub(crate) fn succeed(self, what: &str) -> String {
        let output = self.finish(what);
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert!(
            output.status.success(),
            "{what}: {}\n{stdout}{stderr}",
            output.status
        );
        stdout
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub(crate) fn text(octets: &[u8]) -> String {
    String::from_utf8_lossy(octets).into_owned()
}
