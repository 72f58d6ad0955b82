//! The kernel's TCP on both sides, with nothing on top: what ours is compared with.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use super::bed::Host;
use super::peer::tune;
use crate::Failure;

/// Octets of a system call.
const PIECE: usize = 64 * 1024;

/// Moves octets from one host to the other; the time until the last one was acknowledged by the receiver itself.
pub(crate) fn run(from: &Host, to: &Host, octets: u64) -> Result<Duration, Failure> {
    let listener = to.run(|| TcpListener::bind(to.at(0)))?;
    let address = listener.local_addr()?;
    thread::scope(|scope| {
        let receiver = scope.spawn(move || -> Result<(), Failure> {
            let (mut stream, _) = listener.accept()?;
            tune(&stream)?;
            let mut left = octets;
            let mut piece = vec![0; PIECE];
            while left > 0 {
                match stream.read(&mut piece)? {
                    0 => return Err("the stream ends too early".into()),
                    read => left = left.saturating_sub(read as u64),
                }
            }
            Ok(stream.write_all(&[1])?)
        });
        let time = from.run(|| -> Result<Duration, Failure> {
            let mut stream = std::net::TcpStream::connect(address)?;
            tune(&stream)?;
            let began = Instant::now();
            let piece = vec![0x5a; PIECE];
            let mut left = octets;
            while left > 0 {
                let len = left.min(PIECE as u64);
                stream.write_all(&piece[..len as usize])?;
                left -= len;
            }
            stream.read_exact(&mut [0])?;
            Ok(began.elapsed())
        });
        let received = receiver.join();
        received.unwrap_or_else(|_| Err("the receiver panicked".into()))?;
        time
    })
}
