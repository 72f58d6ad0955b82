//! A process that is told something line by line, and answers.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use crate::failure::Failure;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// It ends when this is dropped.
pub(super) struct Process {
    what: String,
    child: Child,
    stdin: ChildStdin,
    answers: Receiver<String>,
}

impl Process {
    /// Starts it.
    pub(super) fn start(mut command: Command) -> Result<Self, Failure> {
        let what = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(|error| format!("{what}: {error}"))?;
        let stdin = child.stdin.take().ok_or("no standard input")?;
        let stdout = BufReader::new(child.stdout.take().ok_or("no standard output")?);
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if !line.is_empty() && sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            what,
            child,
            stdin,
            answers,
        })
    }

    /// Returns its process id.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Tells it a line.
    pub(super) fn tell(&mut self, line: &str) -> Result<(), Failure> {
        Ok(writeln!(self.stdin, "{line}")?)
    }

    /// Returns its next answer, if it is there.
    pub(super) fn said(&mut self) -> Result<Option<String>, Failure> {
        match self.answers.try_recv() {
            Ok(answer) => Ok(Some(answer)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(format!("{} has ended", self.what).into()),
        }
    }

    /// Returns its next answer. Does something else until it is there.
    pub(super) fn answer(
        &mut self,
        mut meanwhile: impl FnMut() -> Result<(), Failure>,
    ) -> Result<String, Failure> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            match self.said()? {
                Some(answer) => return Ok(answer),
                None => meanwhile()?,
            }
        }
        Err(format!("{} does not answer", self.what).into())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
