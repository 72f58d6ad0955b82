//! The server of `pair`, as its clients see it.

use crate::calls::*;
use crate::end::End;
use crate::hosts::SERVER;

/// The server's memory.
#[derive(Clone, Copy)]
pub(crate) struct There {
    pub(crate) address: u64,
    pub(crate) rkey: u32,
}

impl There {
    /// Sets the peer's address of a request.
    pub(crate) fn at(self, offset: u64) -> impl FnOnce(&mut ibv_send_wr) {
        move |wr| {
            wr.wr.rdma = ibv_send_wr_rdma {
                remote_addr: self.address + offset,
                rkey: self.rkey,
            }
        }
    }
}

pub(crate) fn number(octets: &[u8]) -> u32 {
    u32::from_ne_bytes(octets[..4].try_into().unwrap())
}

/// Connects, and learns where the server's memory is.
pub(crate) unsafe fn connect(send_ops: u64) -> (End, There) {
    let end = End::connect(SERVER, send_ops);
    assert_eq!((*end.qp()).qp_type, IBV_QPT_RC);
    let (_, hello) = end.message();
    let there = There {
        address: u64::from_ne_bytes(hello[..8].try_into().unwrap()),
        rkey: number(&hello[8..]),
    };
    (end, there)
}
