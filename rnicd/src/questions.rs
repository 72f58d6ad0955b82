//! Questions of clients about where listeners are, which have no answer yet.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::shared::ClientKey;

/// A question that has no answer yet.
pub(crate) struct Question {
    pub(crate) client: ClientKey,
    pub(crate) account: u32,
    /// Of the request.
    pub(crate) id: u64,
}

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
    /// Returns how many questions of a user are under way.
    pub(crate) fn of(&self, account: u32) -> usize {
        let waiting = self.waiting.values();
        waiting.filter(|one| one.account == account).count()
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
        loop {
            let Found { question, remote } = self.found.try_recv().ok()?;
            // The client may have left.
            if let Some(question) = self.waiting.remove(&question) {
                return Some((question, remote));
            }
        }
    }

    /// Forgets what a client has asked that has left.
    pub(crate) fn forget(&mut self, client: ClientKey) {
        self.waiting.retain(|_, question| question.client != client);
    }
}
