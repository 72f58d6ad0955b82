//! An asynchronous event: what happens to a device or its objects and no completion reports.

use std::fmt;

use rnic_core::connection::EndReason;
use rnic_core::ids::{CqId, QpNumber, SrqId};
use rnic_core::verbs::srq::SrqEvent;

/// Layer and type of what a side says whose own request has failed (RFC 5040 section 4.8): RDMAP,
/// local catastrophic error.
const LOCAL_CATASTROPHE: (u8, u8) = (0, 0);

/// An asynchronous event. The names are those of ibverbs where it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// `IBV_EVENT_QP_FATAL`: a connection failed: by a failure of TCP or MPA, by the peer's
    /// Terminate, or by an error of this side.
    QpFatal {
        /// The queue pair.
        qp: QpNumber,
    },
    /// `IBV_EVENT_QP_REQ_ERR`: a connection ended because the peer's request was invalid, for
    /// example a Send without a receive.
    QpRequestError {
        /// The queue pair.
        qp: QpNumber,
    },
    /// `IBV_EVENT_QP_ACCESS_ERR`: a connection ended because the peer asked for memory that it may
    /// not have.
    QpAccessError {
        /// The queue pair.
        qp: QpNumber,
    },
    /// `IBV_EVENT_QP_LAST_WQE_REACHED`: a queue pair of a shared receive queue is over and takes no
    /// more receives from it. Those that it had taken have completed.
    QpLastWqeReached {
        /// The queue pair.
        qp: QpNumber,
    },
    /// `IBV_EVENT_SQ_DRAINED`: a send queue was [stopped](crate::Qp::stop_sends), and the requests
    /// that had begun have completed.
    SqDrained {
        /// The queue pair.
        qp: QpNumber,
    },
    /// `IBV_EVENT_SRQ_LIMIT_REACHED`: a shared receive queue runs low.
    SrqLimitReached {
        /// The queue.
        srq: SrqId,
        /// Receives that are left.
        left: u32,
        /// Receives taken since the limit was armed.
        taken: u64,
        /// The queue pair that took most of them, and how many.
        greediest: Option<(QpNumber, u64)>,
    },
    /// A peer wanted more than its share of a shared receive queue that runs low (RFC 5042 section
    /// 6.4.3.1), and got no receive.
    SrqShareExceeded {
        /// The queue.
        srq: SrqId,
        /// The queue pair.
        qp: QpNumber,
        /// Receives that it took since the limit was armed.
        taken: u64,
    },
    /// A peer has begun as many messages as it may have receives in process (RFC 5042 section
    /// 6.4.3.1). What it sends beyond waits. The event comes once for each queue pair. A network
    /// that reorders can cause it too.
    SrqHighWater {
        /// The queue.
        srq: SrqId,
        /// The queue pair.
        qp: QpNumber,
        /// Receives in process.
        in_process: u32,
    },
    /// `IBV_EVENT_CQ_ERR`: too many completions of received messages wait for room in the queue, so
    /// a connection that completes there was ended. No completion is lost, and other connections go
    /// on.
    CqError {
        /// The queue.
        cq: CqId,
        /// The queue pair whose connection was ended.
        qp: QpNumber,
    },
    /// `IBV_EVENT_PORT_ERR`: the device has lost its link. Connections wait for the link until TCP
    /// times out.
    PortError,
    /// `IBV_EVENT_PORT_ACTIVE`: the device has its link again.
    PortActive,
    /// `IBV_EVENT_DEVICE_FATAL`: the worker that drives the device has ended, or the network device
    /// is gone: removed, or moved to another network namespace. All connections are over. No event
    /// follows.
    DeviceFatal,
}

impl AsyncEvent {
    /// Returns its name in ibverbs without the `IBV_EVENT_`, or one of the same form where ibverbs
    /// has none.
    pub fn name(&self) -> &'static str {
        match self {
            Self::QpFatal { .. } => "QP_FATAL",
            Self::QpRequestError { .. } => "QP_REQ_ERR",
            Self::QpAccessError { .. } => "QP_ACCESS_ERR",
            Self::QpLastWqeReached { .. } => "QP_LAST_WQE_REACHED",
            Self::SqDrained { .. } => "SQ_DRAINED",
            Self::SrqLimitReached { .. } => "SRQ_LIMIT_REACHED",
            Self::SrqShareExceeded { .. } => "SRQ_SHARE_EXCEEDED",
            Self::SrqHighWater { .. } => "SRQ_HIGH_WATER",
            Self::CqError { .. } => "CQ_ERR",
            Self::PortError => "PORT_ERR",
            Self::PortActive => "PORT_ACTIVE",
            Self::DeviceFatal => "DEVICE_FATAL",
        }
    }

    /// Returns the queue pair that it is about, with which it is dropped.
    pub(crate) fn qp(&self) -> Option<QpNumber> {
        match self {
            Self::QpFatal { qp }
            | Self::QpRequestError { qp }
            | Self::QpAccessError { qp }
            | Self::QpLastWqeReached { qp }
            | Self::SqDrained { qp }
            | Self::SrqShareExceeded { qp, .. }
            | Self::SrqHighWater { qp, .. }
            | Self::CqError { qp, .. } => Some(*qp),
            Self::SrqLimitReached { .. }
            | Self::PortError
            | Self::PortActive
            | Self::DeviceFatal => None,
        }
    }

    /// Returns whether it is about the link.
    pub(crate) fn is_port(&self) -> bool {
        matches!(self, Self::PortError | Self::PortActive)
    }

    /// Returns the event for the end of a connection. `None` if the connection ended in order. With
    /// the semantics of RC there is none either if a request has failed here or at the peer:
    /// InfiniBand tells that by its completion alone.
    pub(crate) fn of_end(qp: QpNumber, reason: &EndReason, rc: bool) -> Option<Self> {
        // Layer and error type of RFC 5040 figure 9: RDMAP is 0, DDP is 1.
        match reason {
            EndReason::Local | EndReason::Peer => None,
            EndReason::TerminateReceived { .. } if rc => None,
            EndReason::TerminateSent { control, .. }
                if rc && (control.layer, control.error_type) == LOCAL_CATASTROPHE =>
            {
                None
            }
            EndReason::TerminateSent { control, .. } => {
                Some(match (control.layer, control.error_type) {
                    (0 | 1, 1) => Self::QpAccessError { qp },
                    (0 | 1, 2) => Self::QpRequestError { qp },
                    _ => Self::QpFatal { qp },
                })
            }
            _ => Some(Self::QpFatal { qp }),
        }
    }
}

impl From<SrqEvent> for AsyncEvent {
    fn from(event: SrqEvent) -> Self {
        match event {
            SrqEvent::LimitReached {
                srq,
                left,
                taken,
                greediest,
            } => Self::SrqLimitReached {
                srq,
                left,
                taken,
                greediest,
            },
            SrqEvent::ShareExceeded { srq, qp, taken } => Self::SrqShareExceeded { srq, qp, taken },
            SrqEvent::HighWater {
                srq,
                qp,
                in_process,
            } => Self::SrqHighWater {
                srq,
                qp,
                in_process,
            },
        }
    }
}

impl fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Self::QpFatal { qp }
            | Self::QpRequestError { qp }
            | Self::QpAccessError { qp }
            | Self::QpLastWqeReached { qp }
            | Self::SqDrained { qp } => write!(f, ": {qp}"),
            Self::SrqLimitReached {
                srq,
                left,
                taken,
                greediest,
            } => {
                write!(f, ": {srq} has {left} receives left, {taken} were taken")?;
                match greediest {
                    Some((qp, most)) => write!(f, ", {most} of them by {qp}"),
                    None => Ok(()),
                }
            }
            Self::SrqShareExceeded { srq, qp, taken } => {
                write!(
                    f,
                    ": {qp} wants more of {srq} than the {taken} that it took"
                )
            }
            Self::SrqHighWater {
                srq,
                qp,
                in_process,
            } => write!(f, ": {qp} has {in_process} receives of {srq} in process"),
            Self::CqError { cq, qp } => write!(f, ": {cq} is full, which ended {qp}"),
            Self::PortError | Self::PortActive | Self::DeviceFatal => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TerminateControl;

    #[test]
    fn each_kind_of_end_has_its_event() {
        let qp = QpNumber(3);
        let sent = |layer, error_type| EndReason::TerminateSent {
            control: TerminateControl {
                layer,
                error_type,
                code: 0,
            },
            error: String::new(),
        };
        let received = EndReason::TerminateReceived {
            control: TerminateControl {
                layer: 1,
                error_type: 1,
                code: 0,
            },
            quoted: None,
        };
        let (fatal, access, request) =
            (Some("QP_FATAL"), Some("QP_ACCESS_ERR"), Some("QP_REQ_ERR"));
        for (reason, name, with_rc) in [
            (EndReason::Local, None, None),
            (EndReason::Peer, None, None),
            (EndReason::CutOff, fatal, fatal),
            (EndReason::Reset, fatal, fatal),
            (EndReason::TimedOut, fatal, fatal),
            (received, fatal, None),
            (sent(0, 0), fatal, None),
            (sent(2, 0), fatal, fatal),
            (sent(0, 1), access, access),
            (sent(1, 1), access, access),
            (sent(0, 2), request, request),
            (sent(1, 2), request, request),
        ] {
            for (rc, name) in [(false, name), (true, with_rc)] {
                let event = AsyncEvent::of_end(qp, &reason, rc);
                assert_eq!(event.map(|event| event.name()), name, "{reason:?}, {rc}");
            }
        }
    }
}
