//! A data connection of a test.

use std::time::Duration;

use rnic_verbs::{ConnectionEvent, Mr, Qp, RemoteAddress};

use crate::failure::{Doing, Failure, Outcome};
use crate::out;

/// A data connection.
pub(super) struct Flow {
    pub qp: Qp,
    pub index: u16,
    /// Where messages of this side come from.
    pub outgoing: Option<Mr>,
    /// Where messages from the other side arrive.
    pub incoming: Option<Mr>,
    /// The other side's memory.
    pub remote: RemoteAddress,
    /// `send-bw`: receives that the server has posted since the beginning, and Sends posted by the
    /// client.
    pub granted: u64,
    pub used: u64,
}

impl Flow {
    /// Returns the memory that a test of this kind must have on this side.
    pub(super) fn outgoing(&self) -> Outcome<&Mr> {
        self.outgoing.as_ref().ok_or_else(no_memory)
    }

    /// Returns the memory that a test of this kind must have on this side.
    pub(super) fn incoming(&self) -> Outcome<&Mr> {
        self.incoming.as_ref().ok_or_else(no_memory)
    }

    /// Returns an address in the other side's memory.
    pub(super) fn remote(&self, offset: usize) -> RemoteAddress {
        RemoteAddress {
            offset: self.remote.offset.wrapping_add(offset as u64),
            ..self.remote
        }
    }

    /// Fails if the connection has ended.
    pub(super) fn check(&mut self) -> Outcome {
        while let Some(event) = self
            .qp
            .next_event(Duration::ZERO)
            .doing("watch the connections")?
        {
            match event {
                ConnectionEvent::Established(_) | ConnectionEvent::PeerLeft(_) => {}
                ConnectionEvent::Rejected { private_data, .. } => {
                    return Err(rejected(&private_data));
                }
                ConnectionEvent::Failed(reason) | ConnectionEvent::Disconnected(reason) => {
                    return Err(Failure::operation(
                        format!("data connection {}", self.index),
                        reason,
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Adds the server's credit: receives that it has posted on a data connection.
pub(super) fn grant(flows: &mut [Flow], flow: u32, count: u64) -> Outcome {
    let credit = flows.get_mut(flow as usize).and_then(|flow| {
        flow.granted = flow.granted.checked_add(count)?;
        Some(())
    });
    credit.ok_or_else(|| {
        let why = format!(
            "the server posted {count} receives on data connection {flow}, which makes no sense"
        );
        Failure::operation("run the test", why)
    })
}

fn no_memory() -> Failure {
    Failure::operation("run the test", "this side has no memory for it")
}

/// Makes a failure of the private data of a rejection.
pub(super) fn rejected(text: &[u8]) -> Failure {
    let text = String::from_utf8_lossy(text);
    let text = text.trim_end_matches('\0');
    let why = if text.is_empty() {
        "no reason given".to_owned()
    } else {
        out::printable(text)
    };
    Failure::operation("refused by the server", why)
}
