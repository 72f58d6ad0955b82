//! DDP and RDMAP in a real engine: each check by itself, with a peer that sends whatever the test
//! wants, and two engines that exchange segments. Tests of pure types, which need no engine, stand
//! among them: segmentation and MSNs (`segmentation`), error numbers (`delivery`, `terminate`).

#[path = "../common/mod.rs"]
mod common;

mod atomic;
mod atomic_errors;
mod ddp;
mod delivery;
mod fixture;
mod immediate;
mod invalidation;
mod mixed;
mod named_request;
mod ordering;
mod pair;
mod reads;
mod requester;
mod responder;
mod robust;
mod segmentation;
mod segments;
mod short;
mod stretch;
mod terminate;
mod versions;
mod windows;
