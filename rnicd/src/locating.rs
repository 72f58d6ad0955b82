//! Where listeners are, for clients that connect to them. The port mapper of a device asks the hosts,
//! and what they say comes later.

use rnic_manager::protocol::{Answer, Ask, Refused, Reply, Request};

use crate::questions::Question;
use crate::server::Server;
use crate::shared::ClientKey;

/// The most questions of a user that are under way. Each takes a socket for a second at most.
const MAX_QUESTIONS: usize = 64;

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
        let is_too_much = self.questions.of(account) >= MAX_QUESTIONS;
        let question = Question {
            client: key,
            account,
            id: request.id,
        };
        let asked = self.questions.add(question, remote);
        if !is_too_much {
            let found = Box::new(|remote| asked.say(remote));
            self.port_of(key, port)?.device.locate(remote, local, found);
        }
        Ok(())
    }

    /// Passes on the answers that have come.
    pub(crate) fn say_located(&mut self) {
        while let Some((question, remote)) = self.questions.next_answered() {
            let (id, answer) = (question.id, Answer::Located { remote });
            self.answer(question.client, Reply { id, answer }, Vec::new());
        }
    }
}
