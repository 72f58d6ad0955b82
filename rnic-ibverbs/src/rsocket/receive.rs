//! Receiving: the peer has written into the receive buffer, and the application gets a copy.

use nix::libc::{MSG_DONTWAIT, MSG_OOB, MSG_PEEK, MSG_WAITALL};

use super::incoming::Run;
use super::pieces::{Pieces, ToFill};
use super::socket::{Flow, Phase, Socket};
use crate::errno::{Errno, lock};

impl Socket {
    /// Receives data, and returns how many octets; 0 at the end of what the peer sends.
    pub(super) fn receive(
        &self,
        mut pieces: Pieces<'_, ToFill>,
        flags: i32,
    ) -> Result<usize, Errno> {
        if flags & MSG_OOB != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let nonblocking = self.is_nonblocking() || flags & MSG_DONTWAIT != 0;
        let (peek, all) = (flags & MSG_PEEK != 0, flags & MSG_WAITALL != 0);
        let length = pieces.left();
        let _only = lock(&self.receive);
        let mut done = Ok(());
        while pieces.left() > 0 {
            let most = pieces.left();
            match self.wait_for(nonblocking, |flow| flow.next_data(most)) {
                Ok(Some(runs)) => self.copy(&mut pieces, runs, peek)?,
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
            Err(why) if pieces.left() == length => Err(why),
            _ => Ok(length - pieces.left()),
        }
    }

    /// Copies to the application. The peer writes there again only when it is told that these
    /// octets were read.
    fn copy(
        &self,
        pieces: &mut Pieces<'_, ToFill>,
        runs: [Run; 2],
        peek: bool,
    ) -> Result<(), Errno> {
        let endpoint = self.endpoint.get().ok_or(Errno::ENOTCONN)?;
        for Run { mut offset, length } in runs {
            pieces.advance(length, |to| {
                let length = to.length() as u32;
                endpoint.receive.copy_out(offset, to);
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
    /// Returns where data are, `None` where there will be no more, and nothing where there are none
    /// yet.
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
            // Behind the end of what the peer sends nothing is missing.
            Phase::Disconnected if self.lost && self.readable => Some(Err(Errno::ECONNRESET)),
            Phase::Disconnected => Some(Ok(None)),
        }
    }
}
