//! DDP and RDMAP together, without MPA and TCP below them: each check by itself, and two ends that exchange
//! segments through memory.

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
mod short;
mod terminate;
mod windows;
