//! The kernel's TCP on both sides, with which ours is compared. The octets are made and checked as
//! with ours.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::bed::ImpairedHost;
use super::pattern;
use super::peer::tune;
use crate::failure::Failure;

/// Octets of a system call.
const PIECE: usize = 64 * 1024;

/// Moves octets from one host to the other, and counts them. Returns the time until the receiving
/// program confirmed the last one.
pub(crate) fn run(
    from: &ImpairedHost,
    to: &ImpairedHost,
    octets: u64,
    arrived: &AtomicU64,
) -> Result<Duration, Failure> {
    let listener = to.run(|| TcpListener::bind(to.at(0)))?;
    let address = listener.local_addr()?;
    thread::scope(|scope| {
        let receiver = scope.spawn(move || -> Result<(), Failure> {
            let (mut stream, _) = listener.accept()?;
            tune(&stream)?;
            let mut position = 0;
            let mut piece = vec![0; PIECE];
            while position < octets {
                let read = stream.read(&mut piece)?;
                if read == 0 {
                    return Err("the stream ends too early".into());
                }
                if !pattern::holds(position, &piece[..read]) {
                    return Err(format!("wrong octets behind {position}").into());
                }
                position += read as u64;
                arrived.store(position, Ordering::Relaxed);
            }
            Ok(stream.write_all(&[1])?)
        });
        let time = from.run(|| -> Result<Duration, Failure> {
            let mut stream = std::net::TcpStream::connect(address)?;
            tune(&stream)?;
            let began = Instant::now();
            let mut piece = vec![0; PIECE];
            for position in (0..octets).step_by(PIECE) {
                let len = (octets - position).min(PIECE as u64);
                let piece = &mut piece[..len as usize];
                pattern::fill(position, piece);
                stream.write_all(piece)?;
            }
            stream.read_exact(&mut [0])?;
            Ok(began.elapsed())
        });
        let received = receiver.join();
        received.unwrap_or_else(|_| Err("the receiver panicked".into()))?;
        time
    })
}
