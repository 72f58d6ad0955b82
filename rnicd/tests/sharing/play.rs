//! A client: a process without any right, which does what it is told line by line.

use std::io::{BufRead, Write, stdin, stdout};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::time::Duration;

use rnic_verbs::{
    ConnectionOptions, Device, DeviceConfig, Listener, Peers, PortReservation, QpCaps,
};

use crate::exchange::{Initiator, Outcome, SOON, TURN, respond, talk_to_oneself, words};

/// What begins a line that is an answer: the test harness prints as well.
pub(crate) const ANSWER: &str = "> ";

/// What a client has.
#[derive(Default)]
struct Player {
    connections: Vec<Initiator>,
    listeners: Vec<Listener>,
    sockets: Vec<TcpListener>,
    kept: Vec<PortReservation>,
    devices: Vec<Device>,
}

#[test]
#[ignore = "a process that other tests start"]
fn client() {
    if std::env::var_os("RNICD_SOCKET").is_none() {
        return; // nobody started it for that
    }
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    let mut player = Player::default();
    while let Ok(line) = lines.recv() {
        let words: Vec<_> = line.split_whitespace().collect();
        let answer = match player.carry_out(&words, &lines) {
            Ok(answer) => format!("ok {answer}"),
            Err(why) => format!("error {}", why.replace('\n', " ")),
        };
        let mut out = stdout();
        // Whoever started it may be gone.
        let _ = writeln!(out, "\n{ANSWER}{answer}");
        let _ = out.flush();
    }
}

impl Player {
    fn carry_out(&mut self, line: &[&str], lines: &Receiver<String>) -> Outcome<String> {
        match *line {
            ["open", netdev] => {
                self.devices.push(Device::open(netdev).map_err(words)?);
                self.done()
            }
            ["open", netdev, queue] => {
                let mut config = DeviceConfig::new(netdev);
                config.interface.queue = Some(parse(queue)?);
                self.devices
                    .push(Device::open_with(&config).map_err(words)?);
                self.done()
            }
            ["listen", local] => self.listen(parse(local)?, Peers::all()),
            ["listen", local, peers] => self.listen(parse(local)?, Peers::only([parse(peers)?])),
            ["listen-mapped", local] => {
                let listener = self
                    .last_device()?
                    .listen_mapped(parse(local)?, Peers::all());
                self.keep(listener.map_err(words)?)
            }
            ["tcp", local] => {
                self.sockets.push(TcpListener::bind(local).map_err(words)?);
                self.done()
            }
            ["keep-port", local] => {
                let kept = self.last_device()?.port_in_use(parse(local)?);
                self.kept.push(kept.ok_or("nobody has it")?);
                self.done()
            }
            ["no-tcp"] => {
                self.sockets.clear();
                self.done()
            }
            ["find", listener] => Ok(self.find(1, parse(listener)?, None)?.to_string()),
            ["find-from", local, listener] => {
                let local = Some(parse(local)?);
                Ok(self.find(1, parse(listener)?, local)?.to_string())
            }
            ["find-unresolved", listener] => Ok(self.ask(1, parse(listener)?, None)?.to_string()),
            ["find-often", count, listener] => {
                let count: usize = parse(count)?;
                let last = self.find(count, parse(listener)?, None)?;
                Ok(format!("{count} {}", last.port()))
            }
            ["try", to] => {
                let soon = Duration::from_secs(2);
                let connected = Initiator::connect_within(self.device(0)?, parse(to)?, None, soon);
                connected.map(|_| String::new())
            }
            ["without-crc", to] => self.without_crc(parse(to)?),
            ["connect", to] => self.connect(parse(to)?, None),
            ["connect", to, from] => self.connect(parse(to)?, Some(parse(from)?)),
            ["rounds", count, seed] => self.rounds(parse(count)?, parse(seed)?),
            ["mix", count, seed] => self.mix(parse(count)?, parse(seed)?),
            ["stream", seed] => self.stream(parse(seed)?, lines),
            ["serve"] => self.serve(lines),
            ["talk", to, seed] => self.talk(parse(to)?, parse(seed)?),
            ["close"] => {
                let ends = std::mem::take(&mut self.connections);
                ends.into_iter().try_for_each(Initiator::close)?;
                self.done()
            }
            ["unlisten-first"] => {
                self.listeners.remove(0);
                self.drive()
            }
            ["unlisten"] => {
                self.listeners.clear();
                self.drive()
            }
            ["drop"] => {
                self.connections.clear();
                self.listeners.clear();
                self.devices.clear();
                self.done()
            }
            _ => Err(format!("there is no command {line:?}")),
        }
    }

    fn done(&self) -> Outcome<String> {
        Ok(String::new())
    }

    /// Lets the engines handle what was dropped: they run only when this process does.
    fn drive(&self) -> Outcome<String> {
        for device in &self.devices {
            device.drive();
        }
        self.done()
    }

    fn device(&self, number: usize) -> Outcome<&Device> {
        self.devices.get(number).ok_or("no device is open".into())
    }

    fn last_device(&self) -> Outcome<&Device> {
        self.devices.last().ok_or("no device is open".into())
    }

    fn listen(&mut self, local: SocketAddr, peers: Peers) -> Outcome<String> {
        let device = self.last_device()?;
        let listener = device.listen_to(local, peers).map_err(words)?;
        self.keep(listener)
    }

    fn keep(&mut self, listener: Listener) -> Outcome<String> {
        let local = listener.local_address();
        self.listeners.push(listener);
        Ok(local.to_string())
    }

    /// Asks so often where a listener is, once the way to it is known, and returns the last answer.
    fn find(
        &self,
        count: usize,
        listener: SocketAddr,
        local: Option<SocketAddr>,
    ) -> Outcome<SocketAddr> {
        let near = "10.9.0.1".parse().map_err(words)?;
        let device = self.last_device()?;
        while !device.resolves(near, listener.ip(), SOON).map_err(words)? {
            std::thread::sleep(Duration::from_millis(2));
        }
        self.ask(count, listener, local)
    }

    fn ask(
        &self,
        count: usize,
        listener: SocketAddr,
        local: Option<SocketAddr>,
    ) -> Outcome<SocketAddr> {
        let (sender, found) = channel();
        for _ in 0..count {
            let sender = sender.clone();
            let found = move |remote| sender.send(remote).unwrap_or_default();
            self.last_device()?.find_listener(listener, local, found);
        }
        drop(sender);
        let all: Vec<SocketAddr> = found.iter().collect();
        let last = all.last().copied().ok_or("nobody answers")?;
        match all.len() == count && all.iter().all(|one| *one == last) {
            true => Ok(last),
            false => Err(format!("not {count} answers, or not all the same: {all:?}")),
        }
    }

    fn connect(&mut self, to: SocketAddr, from: Option<SocketAddr>) -> Outcome<String> {
        let connection = Initiator::connect(self.device(0)?, to, from)?;
        self.connections.push(connection);
        self.done()
    }

    /// Connects as a program that would do without CRCs.
    fn without_crc(&self, to: SocketAddr) -> Outcome<String> {
        let device = self.device(0)?;
        let cq = device.cq(16).map_err(words)?;
        let qp = device.pd().qp(&cq, &cq, QpCaps::default());
        let options = ConnectionOptions {
            crc: false,
            ..ConnectionOptions::default()
        };
        let connected = qp.map_err(words)?.connect_blocking(to, None, options);
        connected.map(|_| String::new()).map_err(words)
    }

    fn rounds(&mut self, count: u64, seed: u64) -> Outcome<String> {
        for number in 0..count {
            for connection in &mut self.connections {
                connection.round(seed + number)?;
            }
        }
        self.done()
    }

    /// Rounds of all kinds: Writes and Reads, then Sends there and back.
    fn mix(&mut self, count: u64, seed: u64) -> Outcome<String> {
        for number in 0..count {
            self.rounds(1, seed + number)?;
            for connection in &mut self.connections {
                // Other octets than those that the peer's memory has from the round.
                connection.echo(!(seed + number))?;
            }
        }
        self.done()
    }

    /// Goes on with rounds until the next line comes. Returns their number.
    fn stream(&mut self, seed: u64, lines: &Receiver<String>) -> Outcome<String> {
        let mut count = 0;
        while let Err(TryRecvError::Empty) = lines.try_recv() {
            self.rounds(1, seed + count)?;
            count += 1;
        }
        Ok(count.to_string())
    }

    /// Serves until the next line comes, or serving fails. Returns how many have connected.
    fn serve(&mut self, lines: &Receiver<String>) -> Outcome<String> {
        let stop = AtomicBool::new(false);
        let device = self.last_device()?;
        let served = std::thread::scope(|scope| {
            let served = scope.spawn(|| respond(device, &self.listeners, &stop));
            let is_quiet = || lines.recv_timeout(TURN) == Err(RecvTimeoutError::Timeout);
            while !served.is_finished() && is_quiet() {}
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            served.join().map_err(|_| "serving panics".to_owned())?
        });
        served.map(|count| count.to_string())
    }

    /// Connects the first device to a listener of the last one: the same, if there is only one.
    fn talk(&mut self, to: SocketAddr, seed: u64) -> Outcome<String> {
        let listener = self.listeners.pop().ok_or("nothing listens")?;
        let pair = (self.last_device()?, listener);
        talk_to_oneself(self.device(0)?, pair, to, seed)?;
        self.done()
    }
}

fn parse<T: std::str::FromStr>(text: &str) -> Outcome<T> {
    text.parse()
        .map_err(|_| format!("{text:?} is not what belongs there"))
}
