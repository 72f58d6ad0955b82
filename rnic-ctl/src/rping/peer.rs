//! One side's queue pair and memory.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use rnic_verbs::{
    Access, Completion, ConnectionEvent, ConnectionOptions, Cq, Device, EndReason, HugePages, Mr,
    Pd, Qp, QpCaps, Region, SendRequest, WcOpcode, WcStatus,
};

use super::args::RpingArgs;
use super::info::{INFO_LEN, Info};
use crate::failure::{Doing, Failure, Outcome};
use crate::interrupt::Interrupt;

/// Receives posted at once. The protocol has one message under way.
const RECEIVES: u64 = 4;
/// How often a side that waits checks for Ctrl-C.
const NAP: Duration = Duration::from_millis(50);

/// One side.
pub(super) struct Peer<'a> {
    pub qp: Qp,
    pub pd: Pd,
    cq: Cq,
    messages: Mr,
    received: VecDeque<Info>,
    /// Why the connection ended, once that is known.
    ended: Option<EndReason>,
    interrupt: &'a Interrupt,
}

/// What a side waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Message,
    Completion(WcOpcode),
}

/// What it got.
pub(super) enum Next<T> {
    Got(T),
    /// The connection ended instead.
    Ended(EndReason),
}

impl<'a> Peer<'a> {
    /// Makes a side that is not connected yet.
    pub(super) fn new(device: &Device, interrupt: &'a Interrupt) -> Outcome<Self> {
        let doing = "set up";
        let pd = device.pd();
        let cq = device.cq(64).doing(doing)?;
        let mut qp = pd
            .qp(
                &cq,
                &cq,
                QpCaps {
                    max_send_wr: 16,
                    max_recv_wr: 8,
                    ..QpCaps::default()
                },
            )
            .doing(doing)?;
        let messages = memory(&pd, RECEIVES as usize * INFO_LEN, Access::LOCAL_WRITE)?;
        for slot in 0..RECEIVES {
            qp.post_recv(
                slot,
                &[messages.sge(slot as usize * INFO_LEN, INFO_LEN as u32)],
            )
            .doing(doing)?;
        }
        Ok(Self {
            qp,
            pd,
            cq,
            messages,
            received: VecDeque::new(),
            ended: None,
            interrupt,
        })
    }

    /// Sends a message.
    pub(super) fn send(&mut self, info: Info) -> Outcome<Next<()>> {
        self.qp
            .post_send(&SendRequest::send().inline(&info.encode()))
            .doing("post a Send")?;
        self.wait_completion(WcOpcode::Send)
    }

    /// Posts an RDMA Read or Write, and waits for its completion.
    pub(super) fn perform(
        &mut self,
        request: &SendRequest<'_>,
        opcode: WcOpcode,
    ) -> Outcome<Next<()>> {
        self.qp
            .post_send(request)
            .doing(format!("post a {opcode:?}"))?;
        self.wait_completion(opcode)
    }

    fn wait_completion(&mut self, opcode: WcOpcode) -> Outcome<Next<()>> {
        Ok(match self.wait(Wanted::Completion(opcode))? {
            Some(reason) => Next::Ended(reason),
            None => Next::Got(()),
        })
    }

    /// Returns the next message of the other side.
    pub(super) fn receive(&mut self) -> Outcome<Next<Info>> {
        loop {
            if let Some(info) = self.received.pop_front() {
                return Ok(Next::Got(info));
            }
            if let Some(reason) = self.wait(Wanted::Message)? {
                return Ok(Next::Ended(reason));
            }
        }
    }

    /// Waits for something. Returns why the connection ended, if it did before.
    fn wait(&mut self, wanted: Wanted) -> Outcome<Option<EndReason>> {
        loop {
            let Some(completion) = self.cq.poll_one() else {
                self.interrupt.check()?;
                if let Some(reason) = self.failed()? {
                    return Ok(Some(reason));
                }
                self.cq.wait(NAP).doing("wait for the other side")?;
                continue;
            };
            if !completion.is_success() {
                return self.why(&completion).map(Some);
            }
            let opcode = completion.opcode();
            if opcode == WcOpcode::Recv {
                self.take(&completion)?;
                if wanted == Wanted::Message {
                    return Ok(None);
                }
            } else if wanted == Wanted::Completion(opcode) {
                return Ok(None);
            }
        }
    }

    /// Returns why connecting failed, if it did: then no request completes. Of an established
    /// connection all do.
    fn failed(&mut self) -> Outcome<Option<EndReason>> {
        let event = self.qp.next_event(Duration::ZERO);
        match event.doing("watch the connection")? {
            Some(ConnectionEvent::Failed(reason)) => return Ok(Some(reason)),
            Some(ConnectionEvent::Disconnected(reason)) => self.ended = Some(reason),
            Some(_) | None => {}
        }
        Ok(None)
    }

    fn take(&mut self, completion: &Completion) -> Outcome {
        let doing = "receive a message";
        let slot = completion.wr_id() as usize * INFO_LEN;
        let mut octets = [0; INFO_LEN];
        self.messages.read(slot, &mut octets).doing(doing)?;
        let len = completion.byte_len();
        let bogus = || {
            Failure::operation(
                doing,
                format!("it has {len} octets, not {INFO_LEN}: no rping"),
            )
        };
        let info = octets
            .get(..len as usize)
            .and_then(Info::decode)
            .ok_or_else(bogus)?;
        self.received.push_back(info);
        self.qp
            .post_recv(
                completion.wr_id(),
                &[self.messages.sge(slot, INFO_LEN as u32)],
            )
            .doing(doing)
    }

    /// Returns why the connection ended, which is why a request failed.
    fn why(&mut self, completion: &Completion) -> Outcome<EndReason> {
        let failed = || {
            let (opcode, status) = (completion.opcode(), completion.status());
            Failure::operation("connection", format!("{opcode:?} ended with {status}"))
        };
        // An error in a request of this side completes it before the connection ends.
        let patience = if completion.status() == WcStatus::LocalProtectionError {
            NAP
        } else {
            Duration::from_secs(2)
        };
        if let Some(reason) = self.ended.take() {
            return Ok(reason);
        }
        loop {
            match self
                .qp
                .next_event(patience)
                .doing("wait for the end of the connection")?
            {
                Some(ConnectionEvent::Disconnected(reason) | ConnectionEvent::Failed(reason)) => {
                    return Ok(reason);
                }
                Some(_) => {}
                None => return Err(failed()),
            }
        }
    }

    /// Ends the connection in order.
    pub(super) fn disconnect(&mut self) -> Outcome {
        self.qp.disconnect().doing("disconnect")?;
        // If the other side does not close in time, dropping the queue pair resets the connection.
        let _ = self
            .qp
            .next_event(Duration::from_secs(2))
            .doing("disconnect")?;
        Ok(())
    }
}

/// Allocates and registers memory.
pub(super) fn memory(pd: &Pd, len: usize, access: Access) -> Outcome<Mr> {
    let region = Region::allocate(len, HugePages::None).doing("allocate memory")?;
    pd.register(&Arc::new(region), access)
        .doing("register memory")
}

/// Returns the options of rping's connections: one Read at a time.
pub(super) fn options(args: &RpingArgs) -> ConnectionOptions {
    ConnectionOptions {
        mpa_revision: args.mpa_revision,
        crc: !args.no_crc,
        markers: args.markers,
        ird: 1,
        ord: 1,
        first_fpdu_delay: Duration::from_millis(args.first_fpdu_delay),
        ..crate::connect::options()
    }
}
