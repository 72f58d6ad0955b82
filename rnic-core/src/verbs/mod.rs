//! Queue pairs, completion queues, shared receive queues, work requests and completions: the engine's side of the verbs.

pub mod binding;
pub mod cq;
pub mod gather;
pub mod qp;
pub mod srq;
pub mod status;
pub mod wr;

pub use binding::Binding;
pub use cq::{Arming, CqTable};
pub use gather::{ScatterError, gather, scatter, total_length};
pub use qp::{CqId, PdId, QpNumber, QpState, QueuePair, StreamId};
pub use srq::{ReceiveQueue, SharedReceives, SrqId, SrqLimit, SrqNews, SrqTable};
pub use wr::{Completion, RecvWr, SendWr, Sge, WcOpcode, WcStatus, WrOpcode};
