//! The UDP port of the mapper at one address of a device.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, SockaddrStorage, recvfrom, sendto};
use rnic_core::engine::NetError;
use rnic_core::wire::port_mapper::{MAX_LEN, Message, PORT};
use rnic_manager::PrivateFd;

use super::mappings::Mappings;
use crate::device::locals::Locals;

/// The most questions that are answered in a turn.
const TURN: usize = 64;

/// A socket at which peers ask.
#[derive(Debug)]
pub(super) struct Responder {
    at: SocketAddr,
    pub(super) socket: PrivateFd,
}

impl Responder {
    /// Opens the socket at an address of the device.
    pub(super) fn open(locals: &Locals, address: IpAddr) -> Result<Self, NetError> {
        let at = SocketAddr::new(address, PORT);
        Ok(Self {
            at,
            socket: locals.datagram(at)?.into(),
        })
    }

    /// Answers what has come, at most some of it.
    pub(super) fn poll(&self, mappings: &Mappings) -> io::Result<()> {
        let mut octets = [0; MAX_LEN + 1];
        for _ in 0..TURN {
            let received = recvfrom::<SockaddrStorage>(self.socket.as_raw_fd(), &mut octets);
            let (len, from) = match received {
                Ok((len, Some(from))) => (len, from),
                Ok((_, None)) | Err(Errno::EINTR) => continue,
                Err(Errno::EAGAIN) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            let asked = Message::parse(&octets[..len]);
            let answer = asked.and_then(|asked| mappings.answer(&asked, self.at));
            if let Some(answer) = answer {
                let mut octets = [0; MAX_LEN];
                let len = answer.emit(&mut octets);
                // Whoever gets no answer asks again.
                let _ = sendto(
                    self.socket.as_raw_fd(),
                    &octets[..len],
                    &from,
                    MsgFlags::MSG_DONTWAIT,
                );
            }
        }
        Ok(())
    }
}
