//! The engine: flow table, timers and the order of work. It holds no protocol rule.

mod link;
#[allow(dead_code)] // the engine that asks it comes next
mod next_hops;
mod snapshot;

pub use self::link::{
    Command, ConnectionOptions, EndReason, EngineEnd, Event, HostEnd, ListenerId, Net, NetError,
    PortLease, RequestId, Turn, WorkerGone, link,
};
pub use self::next_hops::NextHop;
pub use self::snapshot::{ConnectionFacts, Snapshot};
