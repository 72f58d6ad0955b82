//! What wakes a port mapper.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use crate::private::Private;

/// What sockets are waited on with: readable when one of them is.
#[derive(Debug)]
pub struct Watch {
    /// Dropped first.
    _noted: Private,
    epoll: Epoll,
}

impl Watch {
    /// Makes one that watches nothing.
    pub fn new() -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        Ok(Self {
            _noted: Private::new(&epoll.0),
            epoll,
        })
    }

    /// Watches a socket until it is [removed](Self::remove), or closed wherever it is open.
    pub fn add(&self, socket: impl AsFd) -> io::Result<()> {
        Ok(self
            .epoll
            .add(socket, EpollEvent::new(EpollFlags::EPOLLIN, 0))?)
    }

    /// Watches a socket no more.
    pub fn remove(&self, socket: impl AsFd) {
        // Fails only for one that is not watched.
        let _ = self.epoll.delete(socket);
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    /// As a child has one that was forked at the wrong moment.
    #[test]
    fn a_socket_of_which_another_has_a_copy_is_watched_until_it_is_removed() {
        let watch = Watch::new().unwrap();
        let is_readable = || {
            let mut fds = [PollFd::new(watch.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
        };
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        watch.add(&socket).unwrap();
        assert!(!is_readable());
        let _copy = socket.try_clone().unwrap();
        socket
            .send_to(b"late", socket.local_addr().unwrap())
            .unwrap();
        assert!(is_readable());
        watch.remove(&socket);
        assert!(!is_readable());
        drop(socket);
        assert!(!is_readable());
    }
}
