//! Receiving: the peer has written into the receive buffer, and the application gets a copy.

use nix::libc::{MSG_DONTWAIT, MSG_OOB, MSG_PEEK, MSG_WAITALL, iovec};

use super::incoming::Run;
use super::socket::{Flow, Phase, Socket};
use crate::errno::{Errno, lock};

/// Where data go: the application's buffers, and how much of them is full.
#[derive(Debug)]
pub(super) struct Sink<'pieces> {
    pieces: &'pieces [iovec],
    /// Octets of the first that are full.
    full: usize,
    left: usize,
}

impl<'pieces> Sink<'pieces> {
    pub(super) fn new(pieces: &'pieces [iovec]) -> Self {
        let left = pieces
            .iter()
            .fold(0usize, |sum, piece| sum.saturating_add(piece.iov_len));
        Self {
            pieces,
            full: 0,
            left,
        }
    }

    /// Has the next octets copied, no more than there is room for: how many of them go where.
    fn put(&mut self, octets: u32, mut copy: impl FnMut(*mut u8, u32)) {
        let mut wanted = octets as usize;
        self.left -= wanted;
        while wanted > 0 {
            let Some((first, rest)) = self.pieces.split_first() else {
                return;
            };
            let length = wanted.min(first.iov_len - self.full);
            if length > 0 {
                copy(
                    first.iov_base.cast::<u8>().wrapping_add(self.full),
                    length as u32,
                );
            }
            wanted -= length;
            self.full += length;
            if self.full == first.iov_len {
                (self.pieces, self.full) = (rest, 0);
            }
        }
    }
}

impl Socket {
    /// Receives data, and returns how many octets; 0 at the end of what the peer sends.
    pub(super) fn receive(&self, mut sink: Sink<'_>, flags: i32) -> Result<usize, Errno> {
        if flags & MSG_OOB != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let nonblocking = self.is_nonblocking() || flags & MSG_DONTWAIT != 0;
        let (peek, all) = (flags & MSG_PEEK != 0, flags & MSG_WAITALL != 0);
        let length = sink.left;
        let _only = lock(&self.receive);
        let mut done = Ok(());
        while sink.left > 0 {
            let most = sink.left;
            match self.wait_for(nonblocking, |flow| flow.next_data(most)) {
                Ok(Some(runs)) => self.copy(&mut sink, runs, peek)?,
                Ok(None) => break,
                Err(why) => {
                    done = Err(why);
                    break;
                }
            }
            if !all || peek {
                break;
            }
        }
        match done {
            Err(why) if sink.left == length => Err(why),
            _ => Ok(length - sink.left),
        }
    }

    /// Copies to the application. The peer writes there again only when it is told that these octets were read.
    fn copy(&self, sink: &mut Sink<'_>, runs: [Run; 2], peek: bool) -> Result<(), Errno> {
        let endpoint = self.endpoint.get().ok_or(Errno::ENOTCONN)?;
        for Run { mut offset, length } in runs {
            sink.put(length, |to, length| {
                // SAFETY: the application has so much room there.
                unsafe { endpoint.receive.copy_out(offset, to, length) };
                offset += length;
            });
        }
        if !peek {
            let mut flow = lock(&self.flow);
            flow.incoming.consume(runs[0].length + runs[1].length);
            flow.grant(endpoint);
        }
        Ok(())
    }
}

impl Flow {
    /// Returns where data are, `None` where there will be no more, and nothing where there are none yet.
    fn next_data(&mut self, most: usize) -> Option<Result<Option<[Run; 2]>, Errno>> {
        let runs = self.incoming.next(most);
        if runs[0].length > 0 {
            return Some(Ok(Some(runs)));
        }
        match self.phase {
            Phase::Opened | Phase::Listening | Phase::Failed => Some(Err(Errno::ENOTCONN)),
            Phase::Connected if self.readable => None,
            Phase::Connecting => None,
            Phase::Connected => Some(Ok(None)),
            Phase::Disconnected if self.lost => Some(Err(Errno::ECONNRESET)),
            Phase::Disconnected => Some(Ok(None)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_filled_in_order() {
        let (mut one, mut two) = ([0u8; 3], [0u8; 5]);
        let pieces = [
            iovec {
                iov_base: one.as_mut_ptr().cast(),
                iov_len: 3,
            },
            iovec {
                iov_base: std::ptr::null_mut(),
                iov_len: 0,
            },
            iovec {
                iov_base: two.as_mut_ptr().cast(),
                iov_len: 5,
            },
        ];
        let mut sink = Sink::new(&pieces);
        let mut runs = Vec::new();
        for octets in [2, 3, 3] {
            sink.put(octets, |to, length| runs.push((to as usize, length)));
        }
        let (one, two) = (one.as_ptr() as usize, two.as_ptr() as usize);
        assert_eq!(runs, [(one, 2), (one + 2, 1), (two, 2), (two + 2, 3)]);
        assert_eq!(sink.left, 0);
    }
}
