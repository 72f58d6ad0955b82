//! Copies a file to another host with RDMA Write.
//!
//!     copy receive eth1 192.0.2.1:4420 FILE
//!     copy send eth1 192.0.2.1:4420 FILE     # on the other host
//!
//! The receiver offers a ring of chunks in its memory; the file may be larger. The sender writes a
//! chunk, and a Send behind it says how long it is: once the Send is there, so is the chunk (RFC
//! 5040 section 5.5, rules 5 and 10). When the receiver has taken it out, it returns a credit, an
//! empty Send, for which the sender may write again. In the end the sender sends a checksum of the
//! file, and the receiver says "done" when the file is whole and has its name, or else what went
//! wrong.

mod common;

use std::sync::{Arc, atomic::AtomicBool, atomic::Ordering::Relaxed};
use std::{fs, fs::File, io::Read, io::Write, time::Duration};

use common::{Outcome, PATIENCE, text};
use crc32c::crc32c_append;
use indicatif::ProgressBar;
use rnic_verbs::*;
use signal_hook::{consts::SIGINT, consts::SIGTERM, flag};

const CHUNK: usize = 256 << 10;
const CHUNKS: usize = 16;
const RECEIVES: usize = CHUNKS + 1; // of each side: one for each chunk, and a last one
const NAP: Duration = Duration::from_millis(100); // how often a side that waits looks for Ctrl-C

struct Link {
    qp: Qp,
    cq: Cq,
    ring: Mr,
    inbox: Mr,
    stop: Arc<AtomicBool>,
}

impl Link {
    fn new(device: &Device, access: Access) -> Outcome<Self> {
        let (pd, cq) = (device.pd(), device.cq(4 * RECEIVES as u32)?);
        let qp = pd.qp(&cq, &cq, QpCaps::default())?;
        let ring = pd.allocate(CHUNKS * CHUNK, access)?;
        let inbox = pd.allocate(RECEIVES * DEFAULT_INLINE, Access::LOCAL_WRITE)?;
        #[rustfmt::skip]
        let mut link = Self { qp, cq, ring, inbox, stop: Arc::default() };
        (0..RECEIVES).try_for_each(|n| link.post_recv(n))?;
        Ok(link)
    }

    fn post_recv(&mut self, n: usize) -> Result<(), PostError> {
        let place = self.inbox.sge(n * DEFAULT_INLINE, DEFAULT_INLINE as u32);
        self.qp.post_recv(n as u64, &[place])
    }

    /// Returns the next message, or `None` if a Send of this side has completed instead.
    fn next(&mut self) -> Outcome<Option<Vec<u8>>> {
        for _ in 0..600 {
            if self.stop.load(Relaxed) {
                return Err("interrupted".into());
            }
            if let Some(done) = self.cq.next_completion(NAP)? {
                let done = self.qp.check(done)?;
                if done.opcode() != WcOpcode::Recv {
                    return Ok(None);
                }
                let (n, len) = (done.wr_id() as usize, done.byte_len() as usize);
                let message = self.inbox.copy(n * DEFAULT_INLINE, len)?;
                self.post_recv(n)?;
                return Ok(Some(message));
            }
        }
        Err("the other side is there, but has done nothing for a minute".into())
    }

    fn send(&mut self, message: &[u8]) -> Outcome<()> {
        let send = SendRequest::send().inline(message).unsignaled();
        Ok(self.qp.post_send(&send)?)
    }
}

fn send(netdev: &str, address: &str, path: &str) -> Outcome<()> {
    let mut file = File::open(path).map_err(|why| format!("{path}: {why}"))?;
    let size = file.metadata()?.len();
    let device = Device::open_with(&DeviceConfig::threaded(netdev))?;
    let mut link = Link::new(&device, Access::LOCAL_READ)?;
    let mut options = ConnectionOptions::with_patience(PATIENCE);
    options.private_data = size.to_be_bytes().to_vec();
    let receiver = link.qp.connect_blocking(address.parse()?, None, options)?;
    let there = receiver.private_data[..].try_into();
    let there = RemoteAddress::from_octets(there.map_err(|_| "that is no receiver")?);
    let (bar, mut chunk, mut checksum) = (ProgressBar::new(size), vec![0; CHUNK], 0);
    // Chunks that were written, those whose Sends have completed here, and those that the receiver
    // has taken out.
    let (mut written, mut completed, mut taken) = (0, 0, 0);
    while bar.position() < size {
        // The memory of a request must not change before that completes, nor a chunk before it is
        // taken out.
        while written == completed.min(taken) + CHUNKS {
            match link.next()? {
                None => completed += 1,
                Some(credit) if credit.is_empty() => taken += 1,
                Some(words) => return Err(text(&words).into()),
            }
        }
        chunk.truncate((size - bar.position()).min(CHUNK as u64) as usize);
        file.read_exact(&mut chunk)
            .map_err(|why| format!("{path}: {why}"))?;
        checksum = crc32c_append(checksum, &chunk);
        let at = written % CHUNKS * CHUNK;
        link.ring.write(at, &chunk)?;
        let piece = [link.ring.sge(at, chunk.len() as u32)];
        let write = SendRequest::write(there.plus(at as u64)).memory(&piece);
        let length = (chunk.len() as u32).to_be_bytes();
        let send = SendRequest::send().inline(&length);
        link.qp.post_sends([write.unsignaled(), send])?;
        written += 1;
        bar.inc(chunk.len() as u64);
    }
    link.send(&checksum.to_be_bytes())?;
    let mut verdict = Vec::new();
    while verdict.is_empty() {
        verdict = link.next()?.unwrap_or_default();
    }
    link.qp.close(PATIENCE)?;
    (verdict == b"done")
        .then_some(())
        .ok_or(text(&verdict).into())
}

/// A file that is removed in the end, unless it got another name before. (SIGKILL leaves it
/// behind.)
struct Part(String);

impl Drop for Part {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn receive(netdev: &str, address: &str, path: &str) -> Outcome<()> {
    // A thread drives the device, so that chunks arrive while the program waits for the disk.
    let device = Device::open_with(&DeviceConfig::threaded(netdev))?;
    let mut link = Link::new(&device, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let listener = device.listen(address.parse()?)?;
    println!("receiving at {}", listener.local_address());
    let request = listener.next_request(Duration::MAX)?;
    let request = request.ok_or("nobody connects")?;
    // From here on Ctrl-C must not leave half a file.
    flag::register(SIGINT, link.stop.clone())?;
    flag::register(SIGTERM, link.stop.clone())?;
    let size = request.private_data().try_into();
    let size = u64::from_be_bytes(size.map_err(|_| "that is no sender")?);
    let mut options = ConnectionOptions::with_patience(PATIENCE);
    options.private_data = link.ring.remote(0).to_octets().to_vec();
    request.accept(&mut link.qp, options)?;
    link.qp.wait_established(PATIENCE)?;
    let taken = take(&mut link, size, path);
    // If the connection has ended, nobody hears this, and what ended it is the error.
    let words = taken
        .as_ref()
        .map_or_else(ToString::to_string, |()| "done".into());
    let said = link.send(&words.as_bytes()[..words.len().min(DEFAULT_INLINE)]);
    let closed = link.qp.close(PATIENCE);
    taken.and(said).and(closed.map(drop).map_err(Into::into))
}

/// Writes the chunks that arrive in the ring to a file, which gets its name when it is whole.
fn take(link: &mut Link, size: u64, path: &str) -> Outcome<()> {
    let part = Part(format!("{path}.{}.part", std::process::id()));
    let mut file = File::create_new(&part.0).map_err(|why| format!("{path}: {why}"))?;
    let (bar, mut checksum, mut taken) = (ProgressBar::new(size), 0, 0);
    loop {
        let message = link.next()?.unwrap_or_default();
        let number = u32::from_be_bytes(message[..].try_into()?);
        let left = size - bar.position();
        if left == 0 && number != checksum {
            return Err("what has arrived has another checksum".into());
        }
        if left == 0 {
            file.sync_all()?;
            return Ok(fs::rename(&part.0, path)?);
        }
        if number == 0 || number as usize > CHUNK || u64::from(number) > left {
            return Err(format!("the sender speaks of a chunk of {number} octets").into());
        }
        // A copy: whatever the sender does to the ring, what is checked is what is written.
        let chunk = link.ring.copy(taken % CHUNKS * CHUNK, number as usize)?;
        checksum = crc32c_append(checksum, &chunk);
        file.write_all(&chunk)?;
        taken += 1;
        bar.inc(number.into());
        link.send(&[])?;
    }
}

fn main() {
    common::run(
        "copy send|receive NETDEV ADDRESS:PORT FILE",
        |words| match words {
            ["send", netdev, address, file] => Some(send(netdev, address, file)),
            ["receive", netdev, address, file] => Some(receive(netdev, address, file)),
            _ => None,
        },
    );
}
