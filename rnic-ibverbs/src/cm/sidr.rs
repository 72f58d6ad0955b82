//! Ids for datagrams (`RDMA_PS_UDP`): a program asks for the queue pair of a peer that listens.
//!
//! InfiniBand has messages for that, SIDR REQ and SIDR REP. Here the question is the private data
//! of a connection request. The answer is the private data of the Reply, which rejects in any case: no
//! connection is made, and who makes one has not understood. Datagrams go over
//! [links](crate::datagrams), as those of programs that find
//! each other in another way.
//!
//! | octets | question | answer |
//! |---|---|---|
//! | 0-3 | `RNRS` | the same |
//! | 4, 5 | version, 1; 0 | version, 1; [status](Answer) |
//! | 6, 7 | 0, not looked at | the same |
//! | 8-11 | the program's private data, up to the end | the number of the queue pair |
//! | 12-15 | | its Q_Key |
//! | 16- | | private data |
//!
//! Numbers are in network byte order.

use std::fmt;
use std::task::Waker;

use rnic_verbs::{Qp, QpCaps};

use crate::abi::ibv_ah_attr;
use crate::adapter::Adapter;
use crate::errno::{Errno, ToErrno};

/// The Q_Key that rdma_cm gives its queue pairs.
pub(super) const QKEY: u32 = 0x0123_4567;

const MAGIC: [u8; 4] = *b"RNRS";
const VERSION: u8 = 1;

/// Octets in front of the private data.
const QUESTION: usize = 8;
const ANSWER: usize = 16;

/// The longest private data of the program that go with both.
pub(super) const MAX_PRIVATE_DATA: usize = 216;

/// Statuses of SIDR, as programs know them from InfiniBand.
pub(super) const ACCEPTED: u8 = 0;
pub(super) const NOBODY: u8 = 1;
const REJECTED: u8 = 2;

/// What a program sends datagrams to.
#[derive(Clone, Copy, Default)]
pub(super) struct Peer {
    pub(super) ah_attr: ibv_ah_attr,
    pub(super) qp_num: u32,
    pub(super) qkey: u32,
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = format_args!("{:#x}", self.qp_num);
        f.debug_tuple("Peer").field(&number).finish()
    }
}

/// Makes a queue pair that asks.
pub(super) fn asker(adapter: &'static Adapter) -> Result<Qp, Errno> {
    let device = adapter.device()?;
    let caps = QpCaps {
        max_send_wr: 1,
        max_recv_wr: 1,
        max_sge: 1,
        ..QpCaps::default()
    };
    let cq = device.cq_notifying(2, Waker::noop().clone());
    let made = cq.and_then(|cq| device.pd().qp(&cq, &cq, caps));
    made.map_err(|why| why.errno())
}

fn begin(status: u8) -> Vec<u8> {
    let [a, b, c, d] = MAGIC;
    vec![a, b, c, d, VERSION, status, 0, 0]
}

/// Returns the question that has these private data.
pub(super) fn question(private_data: &[u8]) -> Vec<u8> {
    [&begin(0), private_data].concat()
}

/// Returns the private data of a question, if it is one.
pub(super) fn asked(octets: &[u8]) -> Option<&[u8]> {
    let (front, private_data) = octets.split_at_checked(QUESTION)?;
    (front[..4] == MAGIC && front[4] == VERSION).then_some(private_data)
}

/// Returns the answer that names a queue pair.
pub(super) fn acceptance(qp_num: u32, qkey: u32, private_data: &[u8]) -> Vec<u8> {
    answer(ACCEPTED, qp_num, qkey, private_data)
}

/// Returns the answer that names none.
pub(super) fn rejection(private_data: &[u8]) -> Vec<u8> {
    answer(REJECTED, 0, 0, private_data)
}

fn answer(status: u8, qp_num: u32, qkey: u32, private_data: &[u8]) -> Vec<u8> {
    let numbers = [qp_num.to_be_bytes(), qkey.to_be_bytes()].concat();
    [&begin(status), &numbers, private_data].concat()
}

/// An answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer<'a> {
    /// 0, or why no queue pair is named.
    pub(super) status: u8,
    pub(super) qp_num: u32,
    pub(super) qkey: u32,
    pub(super) private_data: &'a [u8],
}

impl<'a> Answer<'a> {
    /// Reads an answer. Whoever has rejected in other words does not listen for datagrams.
    pub(super) fn parse(octets: &'a [u8]) -> Self {
        let nobody = Self {
            status: NOBODY,
            qp_num: 0,
            qkey: 0,
            private_data: &[],
        };
        let Some((front, private_data)) = octets.split_at_checked(ANSWER) else {
            return nobody;
        };
        if front[..4] != MAGIC || front[4] != VERSION {
            return nobody;
        }
        let number = |at: usize| {
            let mut octets = [0; 4];
            octets.copy_from_slice(&front[at..at + 4]);
            u32::from_be_bytes(octets)
        };
        Self {
            status: front[5],
            qp_num: number(8),
            qkey: number(12),
            private_data,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_and_answers_are_read_as_they_were_made() {
        assert_eq!(asked(&question(b"hello")), Some(&b"hello"[..]));
        assert_eq!(asked(&question(b"")), Some(&b""[..]));
        let octets = acceptance(0x009c_4003, QKEY, b"here");
        let found = Answer::parse(&octets);
        assert_eq!((found.status, found.private_data), (ACCEPTED, &b"here"[..]));
        assert_eq!((found.qp_num, found.qkey), (0x009c_4003, QKEY));
        assert_eq!(Answer::parse(&rejection(b"no")).status, REJECTED);
        // Anything else is no question, and the answer of somebody else.
        let mut other = question(b"hello");
        for at in 0..5 {
            other[at] ^= 1;
            assert_eq!(asked(&other), None);
            other[at] ^= 1;
        }
        for length in 0..ANSWER {
            assert_eq!(Answer::parse(&octets[..length]).status, NOBODY);
        }
        assert_eq!(Answer::parse(&[0; 100]).status, NOBODY);
        assert_eq!(asked(b"RNRS"), None);
    }
}
