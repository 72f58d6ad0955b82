//! `libibverbs.so.1` and `librdmacm.so.1`: RDMA programs run over [`rnic_verbs`] as they are,
//! without a kernel driver.
//!
//! The functions here are those of the headers `infiniband/verbs.h` and `rdma/rdma_cma.h`, and
//! their manual pages describe them. What an iWARP device cannot do fails with the errno that
//! rdma-core's own providers give, which is mostly EOPNOTSUPP.
//!
//! # The C ABI
//!
//! Where a file has `unsafe` code, it says so at its top: entry points, and what works on pointers
//! of the program. All others have none. One contract covers it:
//!
//! - The program keeps to the manual pages: what it passes points to what the header says, nobody
//!   else changes it during the call, and an object is not used once it is destroyed. That is all
//!   that an `unsafe extern "C" fn` here asks for. NULL, and numbers that are out of range, are
//!   answered with an errno wherever a manual page lets a program pass them. Where each line of an
//!   entry point works on pointers of the program, its file allows `unsafe_op_in_unsafe_fn`, and
//!   this contract stands for the reason of each block.
//! - What any other `unsafe fn` asks for, its section "Safety" says. "Exists" there means: it was
//!   made, and is not destroyed before the function returns.
//! - An object is a structure whose beginning is the structure of the header, so a pointer to one
//!   is a pointer to the other. It is made by `Box` and freed by the function that destroys it.
//!   Threads share it: what the library changes in it is atomic, or behind a lock. A reference is
//!   made only to what outlives it; the memory that peers write to is copied, and has none.
//! - Nothing panics here: a panic would cross into C. A thread of the program that is cancelled in
//!   a call unwinds through the functions that are `extern "C-unwind"`; in others it is not
//!   cancelled (`cancellation`).
//!
//! # What the parts use of each other
//!
//! - `adapter`: `adapters() -> &'static [Adapter]`; of an `Adapter` `name`,
//!   `netdev`, `index`, `addresses()`, `interface()` (link state, MAC, MTU, interface index),
//!   `is_active()`, and `device()`, which opens the device once for the process.
//!   `on_events(handler)` has a function called in the adapter's dispatcher thread whenever
//!   connection, listener or asynchronous events have arrived.
//! - `device`: `context_of(adapter)`, the context that rdma_cm gives out. `context`:
//!   `Context::of(ibv_context)`, whose `adapter` it is.
//! - `registry`: `QPS.with(adapter, number, what)`, and `qp::with_number`, find the object that an
//!   event names.
//! - `objects`: `Pd::of`, `Cq::of`, `Qp::of`, `Srq::of` give what lies behind the pointers of the
//!   program; `Qp::lock()` the [`rnic_verbs::Qp`].
//! - `section`: what one call of the program begins and another one ends; and the order of all
//!   locks.
//! - `event_queue`: `EventQueue<T>`, a descriptor that is readable while events wait.
//! - `errno`: `Errno` of every error of rnic-verbs; `fail`, `fail_ptr` and `result` give it to the
//!   program.

// From the ground up; each file imports only from those below it:
// abi, errno < system < cancellation, dispatch, interface, process, section < event_queue <
// label, numbers, settings, states < adapter < connections, context < datagrams < objects < channel,
// registry < asynchronous, exit, mr, pd < ah, rendezvous, watch < cq, mw < cq_ex, post < qp_ex < qp <
// modify, srq < query < operations, children, entry < device. On them stand cm and rsocket.
pub mod abi;
mod absent;
mod adapter;
mod ah;
mod asynchronous;
mod cancellation;
mod channel;
mod children;
mod connections;
mod context;
mod cq;
mod cq_ex;
mod datagrams;
mod device;
mod dispatch;
mod errno;
mod event_queue;
mod exit;
mod kern;
mod label;
mod modify;
mod mr;
mod mw;
mod numbers;
mod objects;
mod operations;
mod pd;
mod post;
mod process;
mod qp;
mod qp_ex;
mod query;
mod rates;
mod registry;
mod rendezvous;
mod section;
mod settings;
mod srq;
mod states;
mod strings;
mod sysfs;
mod system;
mod watch;

mod cm;
mod rsocket;
