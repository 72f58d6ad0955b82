//! Two hosts, and the frames between them.

use std::rc::Rc;
use std::time::Duration;

use rnic_core::connection::{EndReason, Event};
use rnic_core::engine::{Command, EngineConfig};
use rnic_core::fast_paths::FastPaths;
use rnic_core::ids::QpNumber;
use rnic_core::memory::table::Access;
use rnic_core::testing::host::PD;
use rnic_core::time::Instant;
use rnic_core::verbs::status::WcStatus;
use rnic_core::verbs::wr::WcOpcode;
use rnic_core::wire::icmp::TooBig;
use rnic_core::wire::packet::{Checksums, addresses, parse};

use super::case::{Act, Mishap, Operation, Request, Terms};
use super::memory::PARTS;
use super::requests::work_request;
use super::seen::{Reached, Seen};
use super::side::{Side, receive};
use super::twist::Twist;

const PORT: u16 = 7174;

/// Two hosts, and the frames between them.
pub(crate) struct World {
    now: Instant,
    sides: [Side; 2],
    log: Vec<Seen>,
    requests: u64,
    tagged: bool,
    unfinished: bool,
    /// Hosts and their queue pairs, whose peers have left them.
    left: Vec<(usize, QpNumber)>,
    reached: Reached,
}

impl World {
    /// Two hosts with connections.
    pub(crate) fn new(terms: &Terms, fast_paths: FastPaths) -> Self {
        let config = EngineConfig {
            fast_paths,
            ..terms.config()
        };
        let mut world = Self {
            now: Instant::ZERO + Duration::from_secs(1),
            sides: [0, 1].map(|index| Side::new(index, terms, config.clone())),
            log: Vec::new(),
            requests: 0,
            tagged: terms.tagged,
            unfinished: terms.unfinished,
            left: Vec::new(),
            reached: Reached::default(),
        };
        world.sides[1].host.listen(PORT);
        for connection in 0..terms.connections {
            let [active, passive] = &world.sides;
            let port = 40_000 + connection as u16;
            let remote = passive.host.socket(PORT);
            active
                .host
                .connect(&active.qps[connection], port, remote, &terms.options(0));
            world.exchange(8, 64, Duration::from_micros(10));
            let [_, passive] = &world.sides;
            let asked = passive.host.connect_requests().last();
            if let Some(request) = asked {
                passive
                    .host
                    .accept(request, &passive.qps[connection], &terms.options(1));
            }
            world.exchange(8, 64, Duration::from_micros(10));
        }
        for side in &mut world.sides {
            for number in side.qps.iter().map(|qp| qp.number) {
                assert!(
                    side.host.is_established(number),
                    "a connection does not come to be: {terms:?}"
                );
            }
        }
        world
    }

    pub(crate) fn next_timeout(&mut self) -> Option<Instant> {
        let timers = self
            .sides
            .iter_mut()
            .filter_map(|side| side.host.next_timeout());
        timers.min()
    }

    pub(crate) fn reached(&self) -> Reached {
        self.reached
    }

    /// What was seen since the last call.
    pub(crate) fn take_log(&mut self) -> Vec<Seen> {
        for (host, side) in self.sides.iter_mut().enumerate() {
            side.host.events.sort_by_key(Event::qp);
            for event in side.host.events.drain(..) {
                let orderly = matches!(
                    &event,
                    Event::Disconnected {
                        reason: EndReason::Local,
                        ..
                    }
                );
                self.reached.ended +=
                    u64::from(matches!(event, Event::Disconnected { .. }) && !orderly);
                if let Event::PeerLeft { qp, .. } = &event {
                    self.left.push((host, *qp));
                }
                self.log.push(Seen::Told { host, event });
            }
        }
        std::mem::take(&mut self.log)
    }

    /// The host, the connection, and how many requests were posted and completed, where not all
    /// were completed.
    pub(crate) fn open_requests(&self) -> Vec<(usize, usize, u64, u64)> {
        let of_sides = self.sides.iter().enumerate();
        let all = of_sides.flat_map(|(host, side)| {
            let of_connections = side.requests.iter().enumerate();
            of_connections
                .map(move |(connection, (posted, done))| (host, connection, *posted, *done))
        });
        all.filter(|(_, _, posted, done)| posted != done).collect()
    }

    pub(super) fn sides(&self) -> &[Side; 2] {
        &self.sides
    }

    /// One step of a case. `alarm` is when the next timer goes off.
    pub(crate) fn carry_out(&mut self, act: &Act, alarm: Option<Instant>) {
        match act {
            Act::Post {
                host,
                connection,
                request,
                times,
            } => {
                for time in 0..*times {
                    self.post(*host, *connection, request, time);
                }
            }
            Act::Receive {
                host,
                connection,
                len,
                times,
            } => {
                for _ in 0..*times {
                    self.requests += 1;
                    let wr = receive(self.sides[*host].regions[0], self.requests, *len);
                    self.sides[*host].post_receive(*connection, wr);
                }
            }
            Act::Poll {
                host,
                connection,
                most,
            } => {
                self.poll(*host, *connection, *most);
            }
            Act::Deliver { to, most } => {
                self.turn(*to, *most);
            }
            Act::Exchange {
                rounds,
                batch,
                apart,
            } => self.exchange(*rounds, *batch, *apart),
            Act::PingPong {
                connection,
                rounds,
                requests,
                apart,
            } => {
                self.play(*connection, *rounds, requests, *apart);
            }
            Act::Wait(time) => self.now = self.now + *time,
            Act::Alarm => self.wait_for(alarm),
            Act::Mishap { to, at, mishap } => {
                let coming = &mut self.sides[*to].coming;
                let at = (*at).min(coming.len().saturating_sub(1));
                match mishap {
                    Mishap::Lose => drop(coming.remove(at)),
                    Mishap::Twice => {
                        if let Some(frame) = coming.get(at).cloned() {
                            coming.insert(at, frame);
                        }
                    }
                    Mishap::Swap if at + 1 < coming.len() => coming.swap(at, at + 1),
                    Mishap::Swap => {}
                    Mishap::LoseAll => coming.clear(),
                    Mishap::Reverse => coming.make_contiguous().reverse(),
                }
            }
            Act::Twist { to, at, twist } => {
                let side = &mut self.sides[*to];
                let at = (*at).min(side.coming.len().saturating_sub(1));
                if let Some(frame) = side.coming.remove(at) {
                    let changed = twist.change(Rc::unwrap_or_clone(frame), &side.stags());
                    for frame in changed.into_iter().rev() {
                        side.coming.insert(at, Rc::new(frame));
                    }
                }
            }
            Act::Arm { to, ahead, twist } => self.sides[*to].armed.push((*ahead, *twist)),
            Act::Boast {
                host,
                connection,
                request,
            } => {
                for _ in 0..4 {
                    self.sides[*host].armed.push((0, Twist::Window(u16::MAX)));
                    self.post(*host, *connection, request, 0);
                    self.exchange(2, 64, Duration::from_micros(300));
                }
            }
            Act::Revoke { host, region } => {
                let side = &mut self.sides[*host];
                let (stag, part) = (&mut side.regions[region % 3], PARTS[region % 3].clone());
                if side.host.table().revoke(*stag).is_ok() {
                    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
                    *stag = side.host.register(&side.memory.0, part, access, PD);
                }
            }
            Act::End {
                host,
                connection,
                abort,
            } => {
                let side = &self.sides[*host];
                let qp = side.qps[*connection].number;
                side.host.command(match abort {
                    true => Command::Abort(qp),
                    false => Command::Disconnect(qp),
                });
            }
            Act::Part {
                host,
                connection,
                request,
            } => {
                self.post(*host, *connection, request, 0);
                self.turn(*host, usize::MAX);
                let side = &self.sides[*host];
                let qp = side.qps[*connection].number;
                side.host.command(Command::Disconnect(qp));
                self.turn(*host, 0);
                for host in [1 - *host, *host] {
                    self.turn(host, usize::MAX);
                    self.post(host, *connection, request, 0);
                    self.turn(host, 0);
                }
            }
            Act::Hold { host } => self.sides[*host].hold(),
            Act::Complete { host } => self.sides[*host].host.device().complete(),
            Act::Queue { host, len } => self.sides[*host].limit_queue(*len),
            Act::Route { host, mtu } => {
                let [one, other] = &mut self.sides;
                let (from, to) = if *host == 0 {
                    (one, other)
                } else {
                    (other, one)
                };
                from.host.set_route(to.host.address.into(), *mtu);
            }
            Act::TooBig { host, mtu } => self.hear_too_big(*host, *mtu),
        }
    }

    /// Applications give up those who have left them.
    fn give_up(&mut self) {
        for (host, qp) in std::mem::take(&mut self.left) {
            let status = WcStatus::RetryExceeded;
            let command = Command::FailAs { qp, status };
            self.sides[host].host.command(command);
        }
    }

    /// Time passes until the next alarm, devices give frames back, applications take completions,
    /// and all that comes of it happens. Returns whether there was an alarm to wait for, or frames
    /// are on their way.
    pub(crate) fn come_to_rest(&mut self, alarm: Option<Instant>) -> bool {
        self.give_up();
        for host in 0..2 {
            let device = self.sides[host].host.device();
            device.complete();
            device.set_queue_len(usize::MAX);
            for connection in 0..self.sides[host].qps.len() {
                self.poll(host, connection, usize::MAX);
            }
        }
        self.exchange(64, 16, Duration::from_micros(1));
        // What an alarm an hour away is for is of no interest.
        let alarm = alarm.filter(|at| *at < self.now + Duration::from_secs(100));
        self.wait_for(alarm);
        alarm.is_some() || self.sides.iter().any(|side| !side.coming.is_empty())
    }

    /// Applications take completions, as small as their queues may be. Returns whether there were
    /// any.
    pub(crate) fn take_completions(&mut self) -> bool {
        let mut any = false;
        loop {
            let mut taken = 0;
            for host in 0..2 {
                self.turn(host, 0);
                for connection in 0..self.sides[host].qps.len() {
                    taken += self.poll(host, connection, usize::MAX);
                }
            }
            if taken == 0 {
                return any;
            }
            any = true;
        }
    }

    fn wait_for(&mut self, alarm: Option<Instant>) {
        self.now = self.now.max(alarm.unwrap_or(self.now));
        for host in 0..2 {
            self.turn(host, 0);
        }
    }

    /// Batches arrive until nothing is under way.
    fn exchange(&mut self, rounds: usize, batch: usize, apart: Duration) {
        let mut quiet = 0;
        for _ in 0..rounds {
            let mut any = false;
            for host in 0..2 {
                any |= !self.sides[host].coming.is_empty();
                any |= self.turn(host, batch) > 0;
                self.now = self.now + apart;
            }
            quiet = if any { 0 } else { quiet + 1 };
            // What was owed in the one turn is sent in the next.
            if quiet == 2 {
                break;
            }
        }
    }

    /// Each side waits for what the other says.
    fn play(&mut self, connection: usize, rounds: usize, requests: &[Request; 2], apart: Duration) {
        for round in 0..rounds {
            for (host, request) in requests.iter().enumerate() {
                // Writes and Sends follow each other.
                let request = &match (round % 3, request.operation) {
                    (2, Operation::Write) => Request {
                        operation: Operation::Send,
                        ..*request
                    },
                    (2, _) => Request {
                        operation: Operation::Write,
                        ..*request
                    },
                    _ => *request,
                };
                self.post(host, connection, request, round);
                self.turn(host, usize::MAX);
                self.now = self.now + apart;
                self.turn(1 - host, usize::MAX);
                self.poll(host, connection, 4);
                self.poll(1 - host, connection, 4);
            }
        }
    }

    /// Turns of a host, in the first of which frames arrive, until it has sent all that it can.
    /// Returns how many it sent.
    ///
    /// In which order connections have their turn is not compared: one with a fast path may wait in
    /// the line, or have its timer looked at, where it has nothing to do in the end, and the other
    /// way round.
    fn turn(&mut self, host: usize, most: usize) -> usize {
        let side = &mut self.sides[host];
        let frames = side.arrive(most, self.tagged, self.unfinished);
        let frames = frames.iter().map(|(frame, told)| (frame.as_slice(), *told));
        let (_, mut sent) = side.host.turn_with(self.now, frames);
        loop {
            let (_, more) = side.host.turn_with(self.now, std::iter::empty());
            if more.is_empty() {
                break;
            }
            sent.extend(more);
        }
        sent.sort_by_cached_key(|frame| connection_of(frame));
        let count = sent.len();
        self.reached.frames += count as u64;
        for frame in sent.into_iter().map(Rc::new) {
            self.log.push(Seen::Sent {
                host,
                now: self.now,
                frame: frame.clone(),
            });
            if parse(&frame, Checksums::Unnecessary)
                .is_ok_and(|packet| !packet.segment.payload.is_empty())
            {
                self.sides[host].latest = Some(frame.clone());
            }
            self.sides[1 - host].enqueue(frame);
        }
        count
    }

    /// Polls completions of a connection, `most` at most, and returns how many there were.
    fn poll(&mut self, host: usize, connection: usize, most: usize) -> usize {
        for taken in 0..most {
            let Some(completion) = self.sides[host].qps[connection].poll_one() else {
                return taken;
            };
            self.reached.completions += u64::from(completion.status() == WcStatus::Success);
            let received = matches!(
                completion.opcode(),
                Ok(WcOpcode::Recv | WcOpcode::RecvImmediate)
            );
            self.sides[host].requests[connection].1 += u64::from(!received);
            self.log.push(Seen::Completed {
                host,
                connection,
                completion,
            });
        }
        most
    }

    fn post(&mut self, host: usize, connection: usize, request: &Request, time: usize) {
        self.requests += 1;
        let (ours, theirs) = (&self.sides[host], &self.sides[1 - host]);
        let wr = work_request((ours, theirs), connection, self.requests, request, time);
        let waits = matches!(
            request.operation,
            Operation::Send
                | Operation::SendInvalidate
                | Operation::WriteImmediate
                | Operation::Immediate
        );
        if waits && !self.requests.is_multiple_of(16) {
            let other = &mut self.sides[1 - host];
            let wr = receive(other.regions[0], self.requests, 12_000);
            other.post_receive(connection, wr);
        }
        let Side {
            host,
            qps,
            requests,
            ..
        } = &mut self.sides[host];
        let qp = &mut qps[connection];
        if qp.room().0 > 0 {
            host.post_send(qp, wr);
            requests[connection].0 += 1;
        }
    }

    /// A router says that the last frame with a payload was too big.
    fn hear_too_big(&mut self, host: usize, mtu: u16) {
        let side = &mut self.sides[host];
        let Some(frame) = &side.latest else { return };
        let (Some((local, remote)), Ok(packet)) =
            (addresses(frame), parse(frame, Checksums::Unnecessary))
        else {
            return;
        };
        let seq = packet.segment.header.seq;
        side.host.handle_too_big(
            self.now,
            &TooBig {
                local,
                remote,
                seq,
                mtu,
            },
        );
    }
}

/// The port that only one connection has.
fn connection_of(frame: &[u8]) -> Option<u16> {
    addresses(frame).map(|(one, other)| one.port().max(other.port()))
}
