//! Questions of clients about where listeners are. The port mapper of a device asks the hosts, and
//! what they say comes later.

use std::collections::HashMap;
use std::net::SocketAddr;

use rnic_manager::protocol::{Answer, Ask, Refused, Reply, Request};
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::server::Server;
use crate::shared::ClientKey;

/// The most questions of a user that are under way. Each takes a socket for a second at most.
const MAX_QUESTIONS: usize = 64;

/// A question that has no answer yet.
struct Question {
    client: ClientKey,
    account: u32,
    /// Of the request.
    id: u64,
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
struct Asked {
    question: u64,
    remote: SocketAddr,
    sender: Sender<Found>,
}

impl Asked {
    /// Answers with where the listener is.
    fn say(mut self, remote: SocketAddr) {
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
    /// Forgets what a client has asked that has left.
    pub(crate) fn forget(&mut self, client: ClientKey) {
        self.waiting.retain(|_, question| question.client != client);
    }
}

impl Server {
    /// Begins to look for a listener. A user that asks too much is told what it knows already.
    pub(crate) fn locate(&mut self, key: ClientKey, request: &Request) -> Result<(), Refused> {
        let Ask::Locate {
            port,
            remote,
            local,
        } = request.ask
        else {
            return Ok(());
        };
        self.check_peer(key, port, remote)?;
        let account = self.clients[key].account;
        let questions = &mut self.questions;
        let of_user = questions.waiting.values();
        let is_too_much = of_user.filter(|one| one.account == account).count() >= MAX_QUESTIONS;
        questions.next += 1;
        let asked = Asked {
            question: questions.next,
            remote,
            sender: questions.sender.clone(),
        };
        let question = Question {
            client: key,
            account,
            id: request.id,
        };
        questions.waiting.insert(asked.question, question);
        if !is_too_much {
            let found = Box::new(|remote| asked.say(remote));
            self.port_of(key, port)?.device.locate(remote, local, found);
        }
        Ok(())
    }

    /// Passes on the answers that have come.
    pub(crate) fn say_located(&mut self) {
        while let Ok(Found { question, remote }) = self.questions.found.try_recv() {
            if let Some(Question { client, id, .. }) = self.questions.waiting.remove(&question) {
                let answer = Answer::Located { remote };
                self.answer(client, Reply { id, answer }, Vec::new());
            }
        }
    }
}
