//! How a stream receives its next segment.

use crate::connection::Context;
use crate::connection::terminate::StreamError;
use crate::connection::upper::LocalUlp;
use crate::ddp::DdpStream;

use super::opening;
use super::parked::{self, Parked};

/// How the next FPDU is received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Intake {
    Usual,
    /// The peer may begin with a Send as its ready-to-receive message, and has sent nothing yet.
    SendMayOpen,
    /// Requests are [parked](super::parked).
    Parked,
}

/// Receives the next segment in order.
#[allow(clippy::too_many_arguments)] // of a stream, but for its deframer, which has the octets
#[inline(always)]
pub(super) fn receive_in_order(
    ulpdu: &[u8],
    intake: &mut Intake,
    ddp: &mut DdpStream,
    user: &mut LocalUlp,
    parked: &mut Option<Box<Parked>>,
    acked: u64,
    rc: bool,
    context: &mut Context<'_, '_>,
) -> Result<(), StreamError> {
    let received = match intake {
        Intake::Usual => {
            let guard = context.guard;
            ddp.receive(ulpdu, &mut user.receiving(context, acked), guard)
        }
        Intake::SendMayOpen => {
            *intake = Intake::Usual;
            opening::receive(ulpdu, ddp, user, acked, context)
        }
        Intake::Parked => parked::receive(ulpdu, ddp, user, parked, acked, context),
    };
    match received {
        Ok(octets) => {
            context.counters.rdma.octets_placed += u64::from(octets);
            Ok(())
        }
        Err(error) => {
            if rc && *intake == Intake::Usual && error.lacks_receive() {
                parked::keep(parked, ulpdu, &mut context.counters.rdma);
            }
            Err(error.about(ulpdu))
        }
    }
}
