//! All frames of an interface, by a packet socket.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, MultiHeaders, SockFlag, SockProtocol, SockType, bind,
    recvmmsg, sendmmsg, setsockopt, socket, sockopt,
};

use super::lane::{Frame, LONGEST};
use crate::failure::Failure;

/// Frames to a system call.
pub(crate) const BATCH: usize = 64;
/// Octets of kernel memory for frames that wait: some ten thousand frames of 1500 octets.
const KERNEL_BUFFER: usize = 32 << 20;

/// An interface of this namespace.
pub(crate) struct PacketSocket {
    name: String,
    fd: OwnedFd,
    headers: MultiHeaders<()>,
    /// Frames that wait to be filled.
    empty: Vec<Frame>,
    /// Frames that wait to be sent.
    leaving: Vec<Frame>,
    /// Frames that the interface had received before, and those that came from the socket.
    before: u64,
    received: u64,
}

impl PacketSocket {
    /// Opens it on an interface, which has to be up.
    pub(crate) fn open(name: &str) -> Result<Self, Failure> {
        let fd = socket(
            AddressFamily::Packet,
            SockType::Raw,
            SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC,
            SockProtocol::EthAll,
        )?;
        setsockopt(&fd, sockopt::RcvBufForce, &KERNEL_BUFFER)?;
        setsockopt(&fd, sockopt::SndBufForce, &KERNEL_BUFFER)?;
        bind(fd.as_raw_fd(), &link_address(name)?)?;
        let mut opened = Self {
            name: name.into(),
            fd,
            headers: MultiHeaders::preallocate(BATCH, None),
            empty: Vec::new(),
            leaving: Vec::new(),
            before: 0,
            received: 0,
        };
        // Until it was bound it received from every interface.
        while opened.receive(drop)? > 0 {}
        opened.received = 0;
        opened.before = frames_received(name)?;
        Ok(opened)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Receives what has come, up to a batch.
    pub(crate) fn receive(&mut self, mut each: impl FnMut(Frame)) -> Result<usize, Failure> {
        self.empty
            .resize_with(self.empty.len().max(BATCH), Frame::empty);
        let batch = self.empty.len() - BATCH;
        let mut lengths = [0; BATCH];
        let mut count = 0;
        {
            let mut slices: Vec<_> = self.empty[batch..]
                .iter_mut()
                .map(|frame| [IoSliceMut::new(frame.buffer_mut())])
                .collect();
            let flags = MsgFlags::MSG_DONTWAIT;
            let fd = self.fd.as_raw_fd();
            match recvmmsg(fd, &mut self.headers, slices.iter_mut(), flags, None) {
                Ok(messages) => {
                    for message in messages {
                        if message.flags.contains(MsgFlags::MSG_TRUNC) {
                            let name = &self.name;
                            return Err(format!(
                                "{name}: a frame of more than {LONGEST} octets: switch the senders' offloads off"
                            )
                            .into());
                        }
                        lengths[count] = message.bytes;
                        count += 1;
                    }
                }
                // ENETDOWN is reported once when an interface goes down and comes up again.
                Err(Errno::EAGAIN | Errno::ENETDOWN | Errno::EINTR) => {}
                Err(error) => return Err(format!("{}: {error}", self.name).into()),
            }
        }
        self.received += count as u64;
        for (mut frame, len) in self.empty.drain(batch..batch + count).zip(lengths) {
            frame.set_len(len);
            each(frame);
        }
        Ok(count)
    }

    /// Keeps a dropped frame, so that its memory is used again.
    pub(crate) fn reuse(&mut self, frame: Frame) {
        self.empty.push(frame);
    }

    /// Returns whether a whole batch waits to be sent.
    pub(crate) fn is_full(&self) -> bool {
        self.leaving.len() >= BATCH
    }

    /// Queues a frame for the next batch.
    pub(crate) fn send(&mut self, frame: Frame) {
        self.leaving.push(frame);
    }

    /// Sends what waits, as far as the interface takes it. Calls `each` with whether a frame was
    /// sent.
    pub(crate) fn flush(&mut self, mut each: impl FnMut(Frame, bool)) -> Result<usize, Failure> {
        let mut done = 0;
        while !self.leaving.is_empty() {
            match self.send_batch()? {
                Sent::Left(count) => {
                    done += count;
                    self.leaving
                        .drain(..count)
                        .for_each(|frame| each(frame, true));
                }
                Sent::Refused => {
                    done += 1;
                    each(self.leaving.remove(0), false);
                }
                Sent::Later => break,
            }
        }
        Ok(done)
    }

    fn send_batch(&mut self) -> Result<Sent, Failure> {
        let slices: Vec<_> = self
            .leaving
            .iter()
            .take(BATCH)
            .map(|frame| [IoSlice::new(frame.octets())])
            .collect();
        let (fd, flags) = (self.fd.as_raw_fd(), MsgFlags::MSG_DONTWAIT);
        match sendmmsg(
            fd,
            &mut self.headers,
            slices.iter(),
            [None; BATCH],
            [],
            flags,
        ) {
            Ok(messages) => Ok(Sent::Left(messages.count())),
            // The other end's queue is full, or it is down.
            Err(Errno::ENOBUFS | Errno::ENETDOWN) => Ok(Sent::Refused),
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(Sent::Later),
            Err(error) => Err(format!("{}: {error}", self.name).into()),
        }
    }

    /// Returns the number of frames that the interface received while nobody took them from the
    /// socket.
    pub(crate) fn missed(&self) -> Result<u64, Failure> {
        Ok((frames_received(&self.name)? - self.before).saturating_sub(self.received))
    }
}

/// How an attempt to send ended.
enum Sent {
    /// This many frames were sent.
    Left(usize),
    /// The first one was dropped.
    Refused,
    Later,
}

/// Returns the address that names an interface to packet sockets.
fn link_address(name: &str) -> Result<LinkAddr, Failure> {
    let mut addresses = getifaddrs()?.filter(|address| address.interface_name == name);
    let link = addresses.find_map(|address| address.address?.as_link_addr().copied());
    link.ok_or_else(|| format!("there is no interface {name}").into())
}

/// Returns the number of frames that an interface of this thread's namespace has received so far.
fn frames_received(name: &str) -> Result<u64, Failure> {
    let table = std::fs::read_to_string("/proc/thread-self/net/dev")?;
    let line = table
        .lines()
        .find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':'));
    let count = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    count.ok_or_else(|| format!("the counters of {name} are not to be found").into())
}
