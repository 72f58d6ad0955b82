//! Where listeners are, for clients that connect to them. The port mapper of a device asks the hosts,
//! and what they say comes later.

use rnic_manager::protocol::{Answer, Ask, Refused, Reply, Request};

use crate::questions::Question;
use crate::server::Server;
use crate::shared::ClientKey;

impl Server {
    /// Begins to look for a listener. Only hosts are asked to which the next hop is known: nobody makes
    /// the kernel look for neighbours by this.
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
        let question = Question {
            client: Some(key),
            account: self.clients[key].account,
            id: request.id,
        };
        let asked = self.questions.add(question, remote);
        let shared = self.port_of(key, port)?;
        // What is dropped is answered with what is known.
        if shared.knows_way_to(remote.ip()) {
            let found = Box::new(|remote| asked.say(remote));
            shared.device.locate(remote, local, found);
        }
        Ok(())
    }

    /// Passes on the answers that have come.
    pub(crate) fn say_located(&mut self) {
        while let Some((question, remote)) = self.questions.next_answered() {
            let (id, answer) = (question.id, Answer::Located { remote });
            // The client may have left.
            if let Some(client) = question.client {
                self.answer(client, Reply { id, answer }, Vec::new());
            }
        }
    }
}
