//! The thread that handles the events of all sockets' connections, so that they come about and end whatever the application does.

use std::thread;

use nix::sys::signal::SigSet;

use super::connect::on_events;
use super::reactor::Reactor;
use super::{index, inside, keepalive};
use crate::errno::Errno;

/// Starts it, unless it runs in this process.
pub(super) fn start() -> Result<&'static Reactor, Errno> {
    let reactor = Reactor::get()?;
    if reactor.claim() {
        let thread = thread::Builder::new().name("rnic-rsocket".into());
        if let Err(why) = thread.spawn(move || run(reactor)) {
            reactor.disclaim();
            return Err(why.raw_os_error().map_or(Errno::EAGAIN, Errno::from_raw));
        }
    }
    Ok(reactor)
}

fn run(reactor: &'static Reactor) {
    let _inside = inside::enter();
    // Signals are the application's.
    let _ = SigSet::all().thread_block();
    loop {
        let next = keepalive::run();
        for fd in reactor.wait(next) {
            if let Some(socket) = index::find(fd) {
                on_events(&socket);
            }
        }
    }
}
