//! The verbs over two engines that are joined in memory.

mod atomics;
mod completions;
mod connecting;
mod devices;
mod direct;
mod early;
mod fixture;
mod loopback;
mod not_ready;
mod rc;
mod requests;
mod rights;
mod shared;
mod standby;
mod statuses;
mod stopping;
mod violent;
mod windows;
mod workers;
