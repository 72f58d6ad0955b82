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

    /// Watches a socket until it is closed.
    pub fn add(&self, socket: impl AsFd) -> io::Result<()> {
        Ok(self
            .epoll
            .add(socket, EpollEvent::new(EpollFlags::EPOLLIN, 0))?)
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}
