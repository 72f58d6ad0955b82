//! Questions of clients about where listeners are, which have no answer yet.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::shared::ClientKey;

/// A question that has no answer yet.
pub(crate) struct Question {
    /// None if it has left: its question counts until it is answered.
    pub(crate) client: Option<ClientKey>,
    pub(crate) account: u32,
    /// Of the request.
    pub(crate) id: u64,
}

/// The most questions of a user that are under way. Each takes a socket for a second at most.
const MAX_OF_USER: usize = 16;

/// The questions that are under way, and the answers to them.
pub(crate) struct Questions {
    waiting: HashMap<u64, Question>,
    next: u64,
    sender: Sender<Found>,
    found: Receiver<Found>,
}

/// The answer to a question.
struct Found {
    question: u64,
    remote: SocketAddr,
}

/// Answers a question when it is dropped, whatever the device does with it.
pub(crate) struct Asked {
    question: u64,
    remote: SocketAddr,
    sender: Sender<Found>,
}

impl Asked {
    /// Answers with where the listener is.
    pub(crate) fn say(mut self, remote: SocketAddr) {
        self.remote = remote;
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let (question, remote) = (self.question, self.remote);
        // rnicd has ended.
        let _ = self.sender.send(Found { question, remote });
    }
}

impl Default for Questions {
    fn default() -> Self {
        let (sender, found) = channel();
        Self {
            waiting: HashMap::new(),
            next: 0,
            sender,
            found,
        }
    }
}

impl Questions {
    /// Returns whether a user may ask nothing more now. What else its clients ask for waits, too.
    pub(crate) fn are_too_many(&self, account: u32) -> bool {
        let waiting = self.waiting.values();
        waiting.filter(|one| one.account == account).count() >= MAX_OF_USER
    }

    /// Adds a question about a listener.
    pub(crate) fn add(&mut self, question: Question, remote: SocketAddr) -> Asked {
        self.next += 1;
        self.waiting.insert(self.next, question);
        Asked {
            question: self.next,
            remote,
            sender: self.sender.clone(),
        }
    }

    /// Removes and returns a question whose answer has come, with where the listener is.
    pub(crate) fn next_answered(&mut self) -> Option<(Question, SocketAddr)> {
        let Found { question, remote } = self.found.try_recv().ok()?;
        let question = self.waiting.remove(&question)?;
        Some((question, remote))
    }

    /// Answers a client no more that has left.
    pub(crate) fn forget(&mut self, client: ClientKey) {
        for question in self.waiting.values_mut() {
            if question.client == Some(client) {
                question.client = None;
            }
        }
    }
}
