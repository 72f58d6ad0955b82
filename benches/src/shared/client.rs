//! A client: a process that connects, waits for its start, writes for a time, and says how much.

use std::io::{BufRead, Write, stdin, stdout};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{sleep, yield_now};
use std::time::{Duration, Instant, SystemTime};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use rnic_verbs::{
    Access, Completion, ConnectionOptions, Cq, Device, DeviceConfig, HugePages, Mr, Qp, QpCaps,
    Region, RemoteAddress, SendRequest, Stag,
};

use crate::effort::{MESSAGE, REGION};
use crate::failure::Failure;

/// Messages of a connection that are under way at once.
const UNDER_WAY: usize = 8;
/// How long a connection may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// What it says when it could start.
pub(crate) const READY: &str = "ready";
/// The subcommand that makes a process a client.
pub(crate) const COMMAND: &str = "client";

/// What a client is told on its command line.
#[derive(Clone, Debug)]
pub(crate) struct ClientOptions {
    pub(crate) netdev: String,
    /// Where the peer listens.
    pub(crate) to: SocketAddr,
    /// How often it opens the device: on a shared one it gets that many ports.
    pub(crate) ports: usize,
    /// Connections of each.
    pub(crate) connections: usize,
    /// The processor on which it runs.
    pub(crate) processor: usize,
    /// Where rnicd listens. `None`: it has the device alone.
    pub(crate) manager: Option<PathBuf>,
}

impl ClientOptions {
    /// Returns the words of the command line.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut words = vec![
            COMMAND.to_owned(),
            self.netdev.clone(),
            self.to.to_string(),
            self.ports.to_string(),
            self.connections.to_string(),
            self.processor.to_string(),
        ];
        words.extend(self.manager.iter().map(|path| path.display().to_string()));
        words
    }

    /// Reads the words behind the subcommand.
    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Result<Option<Self>, Failure> {
        let mut next = |what: &str| words.next().ok_or(format!("{COMMAND} needs {what}"));
        Ok(Some(Self {
            netdev: next("a device")?,
            to: next("an address")?.parse()?,
            ports: next("a number of ports")?.parse()?,
            connections: next("a number of connections")?.parse()?,
            processor: next("a processor")?.parse()?,
            manager: words.next().map(PathBuf::from),
        }))
    }
}

/// Runs as a client.
pub(crate) fn run(options: &ClientOptions) -> Result<(), Failure> {
    let mut set = CpuSet::new();
    set.set(options.processor)?;
    sched_setaffinity(Pid::from_raw(0), &set)?;
    let open = |_| Port::connect(options);
    let mut ports = (0..options.ports)
        .map(open)
        .collect::<Result<Vec<_>, Failure>>()?;
    say(READY)?;
    let mut line = String::new();
    if stdin().lock().read_line(&mut line)? == 0 {
        return Ok(()); // the process that started it has ended
    }
    let (start, duration) = line.trim().split_once(' ').ok_or("no start and duration")?;
    let start = SystemTime::UNIX_EPOCH + Duration::from_micros(start.parse()?);
    sleep(start.duration_since(SystemTime::now()).unwrap_or_default());
    write_for(&mut ports, Duration::from_micros(duration.parse()?))?;
    let octets = ports.iter().flat_map(|port| &port.octets);
    let octets: Vec<_> = octets.map(u64::to_string).collect();
    say(&octets.join(" "))?;
    // Its port and its connections end when all others have been heard.
    stdin().lock().read_line(&mut line)?;
    Ok(())
}

fn say(line: &str) -> Result<(), Failure> {
    let mut out = stdout();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// A device that was opened, and its connections.
struct Port {
    _device: Device,
    cq: Cq,
    mr: Mr,
    connections: Vec<(Qp, RemoteAddress)>,
    /// What each connection has carried, to the last acknowledgement.
    octets: Vec<u64>,
}

impl Port {
    fn connect(options: &ClientOptions) -> Result<Self, Failure> {
        let config = DeviceConfig {
            stags: 64,
            queue_pairs: options.connections as u32,
            manager: options.manager.clone(),
            ..DeviceConfig::new(&options.netdev)
        };
        let device = Device::open_with(&config)?;
        let (pd, cq) = (device.pd(), device.cq(256)?);
        let region = Arc::new(Region::allocate(REGION, HugePages::Prefer)?);
        let mr = pd.register(&region, Access::LOCAL_WRITE)?;
        let mut connections = Vec::new();
        for _ in 0..options.connections {
            let mut qp = pd.qp(&cq, &cq, QpCaps::default())?;
            let how = ConnectionOptions {
                connect_timeout: PATIENCE,
                ..ConnectionOptions::default()
            };
            qp.connect(options.to, None, how)?;
            let established = qp.wait_established(PATIENCE)?;
            let to = decode(&established.private_data).ok_or("the peer offers no memory")?;
            connections.push((qp, to));
        }
        Ok(Self {
            _device: device,
            cq,
            mr,
            octets: vec![0; connections.len()],
            connections,
        })
    }

    fn post(&mut self, connection: usize) -> Result<(), Failure> {
        let (qp, to) = &mut self.connections[connection];
        let piece = [self.mr.sge(0, MESSAGE as u32)];
        let write = SendRequest::write(*to).memory(&piece);
        Ok(qp.post_send(&write.wr_id(connection as u64))?)
    }

    /// Posts as many messages as may be under way.
    fn begin(&mut self) -> Result<(), Failure> {
        for connection in 0..self.connections.len() {
            for _ in 0..UNDER_WAY {
                self.post(connection)?;
            }
        }
        Ok(())
    }

    /// Drives the device, and posts a message for each that is complete. Returns whether there was
    /// one.
    fn turn(&mut self) -> Result<bool, Failure> {
        let mut completions: [Completion; 16] = Default::default();
        let done = self.cq.poll(&mut completions);
        for completion in &completions[..done] {
            if !completion.is_success() {
                return Err(format!("a Write failed: {:?}", completion.status()).into());
            }
            let connection = completion.wr_id() as usize;
            self.octets[connection] += MESSAGE as u64;
            self.post(connection)?;
        }
        Ok(done > 0)
    }
}

/// Keeps all connections busy for a time.
fn write_for(ports: &mut [Port], duration: Duration) -> Result<(), Failure> {
    ports.iter_mut().try_for_each(Port::begin)?;
    let end = Instant::now() + duration;
    while Instant::now() < end {
        let mut any = false;
        for port in &mut *ports {
            any |= port.turn()?;
        }
        if !any {
            // The processor may be another client's too.
            yield_now();
        }
    }
    Ok(())
}

/// Puts an address into private data.
pub(crate) fn encode(to: RemoteAddress) -> Vec<u8> {
    let mut octets = to.stag.0.to_be_bytes().to_vec();
    octets.extend(to.offset.to_be_bytes());
    octets
}

fn decode(octets: &[u8]) -> Option<RemoteAddress> {
    let (stag, offset) = octets.split_at_checked(4)?;
    Some(RemoteAddress {
        stag: Stag(u32::from_be_bytes(stag.try_into().ok()?)),
        offset: u64::from_be_bytes(offset.try_into().ok()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_reads_the_same() {
        for manager in [None, Some(PathBuf::from("/run/socket"))] {
            let options = ClientOptions {
                netdev: "eth1".into(),
                to: "10.0.0.1:5000".parse().unwrap(),
                ports: 2,
                connections: 3,
                processor: 1,
                manager,
            };
            let words = options.arguments();
            assert_eq!(words[0], COMMAND);
            let parsed = ClientOptions::parse(words.into_iter().skip(1));
            let parsed = parsed.unwrap().unwrap();
            assert_eq!(format!("{parsed:?}"), format!("{options:?}"));
        }
    }

    #[test]
    fn an_address_comes_back_from_private_data() {
        let to = RemoteAddress {
            stag: Stag(0x0102_0304),
            offset: 1 << 40,
        };
        let back = decode(&encode(to)).unwrap();
        assert_eq!((back.stag, back.offset), (to.stag, to.offset));
        assert!(decode(&[1, 2, 3]).is_none());
    }
}
