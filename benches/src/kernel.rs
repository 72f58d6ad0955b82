//! The kernel's TCP over the same veth pair.

use std::ffi::OsString;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use nix::sys::socket::{setsockopt, sockopt};

use crate::Failure;
use crate::bed::{Bed, Cores};
use crate::effort::{Effort, MESSAGE};
use crate::pace::{Bandwidth, Pace};
use crate::pingpong::{Game, Latency, ping_pong};

/// What iperf and this program have in common: a congestion control that is the same on each machine.
const CONGESTION_CONTROL: &str = "cubic";

/// A connected pair: client and server.
fn connect(bed: &Bed) -> Result<(TcpStream, TcpStream), Failure> {
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

/// One way, in writes of 64 KiB.
pub(crate) fn bandwidth(
    bed: &Bed,
    cores: Cores,
    effort: &Effort,
    offloads: bool,
) -> Result<Bandwidth, Failure> {
    bed.set_offloads(offloads)?;
    let (mut client, mut server) = connect(bed)?;
    let (from, mut to) = (vec![0x5a; MESSAGE], vec![0; MESSAGE]);
    match cores {
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

/// Round trips of `octets` octets, without ever sleeping.
pub(crate) fn latency(
    bed: &Bed,
    cores: Cores,
    effort: &Effort,
    octets: usize,
) -> Result<Latency, Failure> {
    bed.set_offloads(false)?;
    let (mut client, mut server) = connect(bed)?;
    client.set_nonblocking(true)?;
    server.set_nonblocking(true)?;
    let question = vec![1; octets];
    let (mut answered, mut asked) = (vec![0; octets], vec![0; octets]);
    let game = Game {
        ping: |client: &mut TcpStream| {
            unless_blocked(client.write(&question))?;
            Ok(0)
        },
        // So little arrives whole.
        pong: |client: &mut TcpStream, _| Ok(unless_blocked(client.read(&mut answered))? > 0),
        answer: |server: &mut TcpStream| {
            if unless_blocked(server.read(&mut asked))? > 0 {
                unless_blocked(server.write(&asked))?;
            }
            Ok(())
        },
    };
    ping_pong(bed, cores, effort, (&mut client, &mut server), game)
}

/// Octets moved; none if the call would have had to wait.
fn unless_blocked(outcome: std::io::Result<usize>) -> std::io::Result<usize> {
    match outcome {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
        other => other,
    }
}
