//! Queue pairs, completion queues, shared receive queues, work requests and completions: the
//! engine's side of the verbs.

mod binding;
pub mod cq;
pub mod gather;
pub mod qp;
pub mod sge;
pub mod srq;
pub mod status;
pub mod wr;

pub use cq::{Arming, CqTable};
pub(crate) use gather::rest_of_piece;
pub use gather::{ScatterError, gather, scatter};
pub use qp::{QpState, QueuePair};
pub use sge::{Sge, total_length};
pub use srq::{ReceiveQueue, SharedReceives, SrqEvent, SrqLimit, SrqTable};
pub use status::WcStatus;
pub use wr::{Completion, RecvWr, SendWr, WcOpcode, WrOpcode};
