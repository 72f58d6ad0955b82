//! The kernel's TCP over the same veth pair.

use std::ffi::OsString;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use nix::sys::socket::{setsockopt, sockopt};

use crate::bed::{Bed, Cores};
use crate::effort::{Effort, Shape};
use crate::failure::Failure;
use crate::pace::{Bandwidth, Pace};
use crate::pingpong::{Latency, PingPong, ping_pong};

/// The congestion control, so that it is the same on each machine.
const CONGESTION_CONTROL: &str = "cubic";

/// Octets of the buffer that is read into.
pub(crate) const READ: usize = 64 * 1024;

/// Returns a connected pair: client and server.
pub(crate) fn connect(bed: &Bed) -> Result<(TcpStream, TcpStream), Failure> {
    let congestion_control = OsString::from(CONGESTION_CONTROL);
    let listener = bed.server.run(|| TcpListener::bind(bed.server.at(0)))?;
    setsockopt(&listener, sockopt::TcpCongestion, &congestion_control)?;
    let address = listener.local_addr()?;
    let client = bed.client.run(|| TcpStream::connect(address))?;
    setsockopt(&client, sockopt::TcpCongestion, &congestion_control)?;
    let (server, _) = listener.accept()?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
    }
    Ok((client, server))
}

/// Measures one direction, a write for each message.
pub(crate) fn bandwidth(
    bed: &Bed,
    shape: Shape,
    effort: &Effort,
    offloads: bool,
) -> Result<Bandwidth, Failure> {
    bed.set_offloads(offloads)?;
    let (mut client, mut server) = connect(bed)?;
    let (from, mut to) = (vec![0x5a; shape.size], vec![0; READ]);
    match shape.cores {
        Cores::One => {
            client.set_nonblocking(true)?;
            server.set_nonblocking(true)?;
            bed.on_one(|| {
                let mut pace = Pace::new();
                let end = Instant::now() + effort.duration;
                while Instant::now() < end {
                    unless_blocked(client.write(&from))?;
                    while let read @ 1.. = unless_blocked(server.read(&mut to))? {
                        pace.add(read);
                    }
                }
                Ok(pace.end())
            })
        }
        Cores::Two => {
            let ((), bandwidth) = bed.on_two(
                || {
                    let end = Instant::now() + effort.duration;
                    while Instant::now() < end {
                        client.write_all(&from)?;
                    }
                    // Closes it.
                    drop(client);
                    Ok(())
                },
                || {
                    let mut pace = Pace::new();
                    while let read @ 1.. = server.read(&mut to)? {
                        pace.add(read);
                    }
                    Ok(pace.end())
                },
            )?;
            Ok(bandwidth)
        }
    }
}

/// One end of round trips: a message is read piece by piece, and written whole, because the
/// socket's buffer is larger than any of them.
struct TcpEnd {
    stream: TcpStream,
    message: Vec<u8>,
    arrived: usize,
}

impl TcpEnd {
    fn new(stream: TcpStream, octets: usize) -> Result<Self, Failure> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            message: vec![1; octets],
            arrived: 0,
        })
    }

    fn send(&mut self) -> Result<(), Failure> {
        let mut rest = &self.message[..];
        while !rest.is_empty() {
            rest = &rest[unless_blocked(self.stream.write(rest))?..];
        }
        Ok(())
    }

    /// Returns whether a whole message has arrived.
    fn has_received(&mut self) -> Result<bool, Failure> {
        self.arrived += unless_blocked(self.stream.read(&mut self.message[self.arrived..]))?;
        let whole = self.arrived == self.message.len();
        if whole {
            self.arrived = 0;
        }
        Ok(whole)
    }
}

/// Measures round trips, without sleeping.
pub(crate) fn latency(bed: &Bed, shape: Shape, effort: &Effort) -> Result<Latency, Failure> {
    bed.set_offloads(false)?;
    let (client, server) = connect(bed)?;
    let mut client = TcpEnd::new(client, shape.size)?;
    let mut server = TcpEnd::new(server, shape.size)?;
    let game = PingPong {
        ping: |client: &mut TcpEnd| client.send().map(|()| 0),
        pong: |client: &mut TcpEnd, _| client.has_received(),
        answer: |server: &mut TcpEnd| {
            if server.has_received()? {
                server.send()?;
            }
            Ok(())
        },
    };
    let cores = shape.cores;
    ping_pong(bed, cores, effort, (&mut client, &mut server), game)
}

/// Returns the number of octets moved. Returns none if the call would block.
pub(crate) fn unless_blocked(outcome: std::io::Result<usize>) -> std::io::Result<usize> {
    match outcome {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
        other => other,
    }
}
