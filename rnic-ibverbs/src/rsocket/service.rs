//! The thread that handles the events of all sockets' connections, so that they come about and end
//! whatever the application does.

use super::connect::on_events;
use super::reactor::Reactor;
use super::{index, inside, keepalive};
use crate::dispatch::spawn;
use crate::errno::Errno;

/// Starts it, unless it runs in this process.
pub(super) fn start() -> Result<&'static Reactor, Errno> {
    let reactor = Reactor::get()?;
    if reactor.claim() {
        // It copies to and from memory of the application, and must get the signals of a fault
        // there.
        spawn("rnic-rsocket", move || run(reactor)).inspect_err(|_| reactor.disclaim())?;
    }
    Ok(reactor)
}

fn run(reactor: &'static Reactor) {
    let _inside = inside::enter();
    loop {
        let next = keepalive::run();
        for fd in reactor.wait(next) {
            if let Some(socket) = index::find(fd) {
                on_events(&socket);
            }
        }
    }
}
