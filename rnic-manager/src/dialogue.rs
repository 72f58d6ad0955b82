//! Requests to rnicd, one after the other, each with its answer.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use crate::channel::{Channel, ChannelError};
use crate::protocol::{Answer, Ask, FromDaemon, Notice, OLDEST, Reply, Request, VERSION};

/// How long rnicd may take for each step. Making a port waits for the lock of the kernel's network
/// configuration several times, which takes seconds on an overloaded host.
const PATIENCE: Duration = Duration::from_secs(30);

/// A connection on which requests wait for their answers.
pub struct Dialogue {
    /// The connection.
    pub channel: Channel,
    /// The number of the next request.
    pub next_id: u64,
}

impl Dialogue {
    /// Connects to the rnicd that listens at a path. Returns its answer to the greeting as well.
    pub fn connect(path: &Path, program: &str) -> Result<(Self, Answer), ChannelError> {
        let channel = Channel::connect(path, PATIENCE)?;
        let mut dialogue = Self {
            channel,
            next_id: 1,
        };
        let hello = Ask::Hello {
            version: VERSION,
            program: program.to_owned(),
        };
        let greeted = dialogue.ask(hello, |_| ());
        let (answer, _) = greeted.map_err(|error| match error {
            // Nobody that listens there for rnicd says such things.
            ChannelError::Decode(_)
            | ChannelError::Truncated
            | ChannelError::Descriptors { .. } => ChannelError::NotRnicd {
                path: path.to_owned(),
                source: Box::new(error),
            },
            error => error,
        })?;
        match answer {
            Answer::Welcome { version, .. } if version < OLDEST => {
                Err(ChannelError::Outdated { version })
            }
            answer => Ok((dialogue, answer)),
        }
    }

    /// Asks for something, and waits for the answer. Notices that come before that are passed to
    /// `notice`.
    pub fn ask(
        &mut self,
        ask: Ask,
        mut notice: impl FnMut(Notice),
    ) -> Result<(Answer, Vec<OwnedFd>), ChannelError> {
        let id = self.next_id;
        self.next_id += 1;
        self.channel.send(&Request { id, ask }, &[])?;
        loop {
            match self.channel.receive()? {
                (FromDaemon::Answer(Reply { id: of, answer }), descriptors) if of == id => {
                    return Ok((answer, descriptors));
                }
                (FromDaemon::Answer(_), _) => {}
                (FromDaemon::Notice(said), _) => notice(said),
            }
        }
    }
}

/// Returns the name of this program, for rnicd's log.
pub fn program() -> String {
    let name = std::env::current_exe().ok();
    let name = name.as_deref().and_then(Path::file_name);
    let name = name.map(|name| name.to_string_lossy().into_owned());
    let printable = |name: String| {
        name.chars()
            .filter(|char| !char.is_control())
            .take(64)
            .collect()
    };
    name.map_or_else(|| "?".to_owned(), printable)
}
