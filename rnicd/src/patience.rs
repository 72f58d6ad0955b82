//! Requests that wait for what a process had that has just ended: the kernel takes a moment to
//! remove its ports. Without that, a program that is killed and started again at once would be
//! refused its own TCP port.

use std::time::{Duration, Instant};

use rnic_manager::protocol::{Answer, Ask, Reason, Refused, Reply, Request};

use crate::administration::Answered;
use crate::server::Server;
use crate::shared::ClientKey;

/// How long a request waits. The kernel needs some tenths of a second.
const PATIENCE: Duration = Duration::from_secs(2);
/// How much longer it waits while memory of its user's ports is freed.
const HELD_UP: Duration = Duration::from_secs(8);
/// How often a hardware queue is tried again: a driver lets go of it some milliseconds after its
/// socket has gone, and says nothing.
const TRY_QUEUE_EVERY: Duration = Duration::from_millis(25);

/// How long a turn may have lasted for requests that wait to be tried again in it.
const TRIED: Duration = Duration::from_millis(30);

impl Server {
    /// Answers a request, unless it is to wait: until the end of this turn at least, when it is
    /// known who has left.
    pub(crate) fn answer_or_wait(&mut self, key: ClientKey, request: Request, answered: Answered) {
        match answered {
            Err(refused) if may_wait(&refused) => {
                self.clients[key].waiting = Some((request, Instant::now() + PATIENCE));
            }
            Ok((answer, descriptors)) => {
                let id = request.id;
                self.answer(key, Reply { id, answer }, descriptors);
            }
            Err(refused) => self.refuse(key, request.id, refused),
        }
    }

    /// Carries out what has waited. What is refused again waits on while the kernel has ports of
    /// the same user to remove. News of the kernel were read after `began`: a turn in which the
    /// kernel held this process up for long is nobody's last. A port takes long to make: where a
    /// user is refused one, its others are not tried in the same turn.
    pub(crate) fn serve_waiting(&mut self, began: Instant) {
        let waiting = self
            .clients
            .iter_mut()
            .filter_map(|(key, client)| Some((key, client.waiting.take()?)));
        let mut waiting = waiting.collect::<Vec<_>>();
        // Whoever was passed over has waited longest.
        waiting.sort_by_key(|(key, (_, until))| (*until, *key));
        let mut refused_a_port = Vec::new();
        for (key, (request, until)) in waiting {
            let account = self.clients[key].account;
            let is_for_port = matches!(request.ask, Ask::OpenPort { .. });
            let is_in_vain = is_for_port && refused_a_port.contains(&account);
            if (is_in_vain || began.elapsed() > TRIED) && Instant::now() < until + PATIENCE {
                self.clients[key].waiting = Some((request, until));
                continue;
            }
            let hopes = is_for_queue(&request) || self.has_port_to_remove(key);
            // What has ended in this turn is free a moment later, unless somebody holds that up.
            let is_near = self.endings.frees_for(account) && began < until + HELD_UP;
            let is_last = (began >= until && !is_near) || !hopes;
            let answered = self.carry_out(key, request.ask.clone());
            if is_for_port && answered.is_err() {
                refused_a_port.push(account);
            }
            match answered {
                Err(refused) if is_last => self.refuse(key, request.id, refused),
                Err(refused) if may_wait(&refused) => {
                    self.clients[key].waiting = Some((request, until));
                }
                answered => self.answer_or_wait(key, request, answered),
            }
        }
    }

    /// Returns how long the loop may wait for their sake.
    pub(crate) fn patience(&self) -> Option<Duration> {
        let clients = self.clients.iter();
        let waits = clients.filter_map(|(_, client)| {
            let (request, until) = client.waiting.as_ref()?;
            let left = until.saturating_duration_since(Instant::now());
            Some(match is_for_queue(request) {
                true => left.min(TRY_QUEUE_EVERY),
                // It may be about to be free although time is over.
                false => left.max(TRY_QUEUE_EVERY),
            })
        });
        waits.min()
    }

    /// Returns whether a port of the user of this connection has ended, or has no connection: most
    /// likely, its process has ended.
    fn has_port_to_remove(&self, key: ClientKey) -> bool {
        let account = self.clients[key].account;
        let mut endings = self.endings.records();
        if endings.any(|(_, record)| record.account() == account) {
            return true;
        }
        let mut ports = self.devices.iter().flat_map(|shared| shared.ports.values());
        ports.any(|port| port.client.is_none() && port.record.account() == account)
    }

    /// Refuses what a client has asked for.
    pub(crate) fn refuse(&mut self, key: ClientKey, id: u64, refused: Refused) {
        let answer = Answer::Refused(refused);
        self.answer(key, Reply { id, answer }, Vec::new());
    }
}

/// Returns whether a request is for a hardware queue.
fn is_for_queue(request: &Request) -> bool {
    matches!(request.ask, Ask::OpenPort { queue: Some(_), .. })
}

/// Returns whether the end of a port can make a difference.
fn may_wait(refused: &Refused) -> bool {
    matches!(refused.reason, Reason::Quota | Reason::InUse)
}
