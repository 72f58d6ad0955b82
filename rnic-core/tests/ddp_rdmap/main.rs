//! DDP and RDMAP in a real engine: each check by itself, with a peer that says whatever the test wants, and two engines
//! that exchange segments.

#[path = "../common/mod.rs"]
mod common;

mod atomic;
mod atomic_errors;
mod blame;
mod ddp;
mod delivery;
mod fixture;
mod immediate;
mod invalidation;
mod mixed;
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
mod windows;
