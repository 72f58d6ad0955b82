//! The receives of a test: each connection has its own, or all take them from a queue that they
//! share.

use rnic_verbs::{Pd, Srq, SrqCaps};

use super::args::Test;
use super::buffer::Layout;
use super::flow::Flow;
use super::hello::Hello;
use crate::failure::{Doing, Outcome};

/// Receives posted for `send-lat`, which has one message in flight.
pub(super) const RECEIVES: u32 = 8;

/// Returns the number of receives that a side posts for each connection.
pub(super) fn count(hello: &Hello) -> u64 {
    match hello.test {
        Test::SendLat => RECEIVES.into(),
        Test::SendBw => layout(hello).depth,
        _ => 0,
    }
}

/// Returns the layout of the receive buffers, which are for the largest message in every run.
pub(super) fn layout(hello: &Hello) -> Layout {
    Layout::new(hello.largest, hello.largest, hello.depth, hello.verify)
}

/// Makes the shared receive queue, if the client asked for one.
pub(super) fn shared_queue(pd: &Pd, hello: &Hello) -> Outcome<Option<Srq>> {
    if !hello.use_srq {
        return Ok(None);
    }
    let all = u64::from(hello.qps) * count(hello);
    let caps = SrqCaps {
        max_wr: u32::try_from(all).unwrap_or(u32::MAX),
        ..SrqCaps::default()
    };
    pd.srq(caps)
        .doing("make a shared receive queue (fewer with -q or -t)")
        .map(Some)
}

/// Names a receive: the connection in whose memory its buffer is, and the slot there. A message of
/// any other connection may arrive in it if they share a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Receive {
    pub flow: u16,
    pub slot: u64,
}

impl Receive {
    /// Reads it from the identifier of its request.
    pub(super) fn of(wr_id: u64) -> Self {
        Self {
            flow: (wr_id >> 48) as u16,
            slot: wr_id & ((1 << 48) - 1),
        }
    }

    fn wr_id(self) -> u64 {
        u64::from(self.flow) << 48 | self.slot
    }
}

/// Posts a receive to the queue of its connection or to the shared one. A side that receives
/// nothing has none.
pub(super) fn post(
    flow: &mut Flow,
    srq: Option<&mut Srq>,
    hello: &Hello,
    receive: Receive,
) -> Outcome {
    let Some(mr) = &flow.incoming else {
        return Ok(());
    };
    let sge = [mr.sge(layout(hello).offset(receive.slot), hello.largest as u32)];
    match srq {
        Some(srq) => srq.post_recv(receive.wr_id(), &sge),
        None => flow.qp.post_recv(receive.wr_id(), &sge),
    }
    .doing("post a receive")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_connection_and_slot() {
        for (flow, slot) in [(0, 0), (511, 16_383), (7, (1 << 48) - 1)] {
            let receive = Receive { flow, slot };
            assert_eq!(Receive::of(receive.wr_id()), receive);
        }
    }
}
