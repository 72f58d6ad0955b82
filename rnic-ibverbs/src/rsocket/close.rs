//! The end of a socket: `rshutdown` and `rclose`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::libc::{SHUT_RD, SHUT_RDWR, SHUT_WR};

use super::connect::forget;
use super::endpoint::Work;
use super::keepalive;
use super::layout::Message;
use super::socket::{Flow, Phase, Socket};
use crate::errno::{Errno, lock};

/// Shuts directions of a connection down.
pub(super) fn shutdown(socket: &Socket, how: i32) -> Result<(), Errno> {
    let last = {
        let mut flow = lock(&socket.flow);
        match flow.phase {
            Phase::Connected => flow.shut(how)?,
            Phase::Disconnected => return flow.shut(how).map(drop),
            _ => return Err(Errno::ENOTCONN),
        }
    };
    match last {
        None => Ok(()),
        Some(Message::Disconnect) => disconnect(socket, None),
        Some(message) => say(socket, message, None),
    }
}

impl Flow {
    /// Notes that directions are shut down, and returns what to tell the peer.
    fn shut(&mut self, how: i32) -> Result<Option<Message>, Errno> {
        let before = (self.readable, self.writable);
        match how {
            SHUT_RD => self.readable = false,
            SHUT_WR => self.writable = false,
            SHUT_RDWR => (self.readable, self.writable) = (false, false),
            _ => return Err(Errno::EINVAL),
        }
        let message = match (self.readable, self.writable) {
            after if after == before => None,
            (false, false) => Some(Message::Disconnect),
            (true, false) => Some(Message::Shutdown),
            (_, true) => None,
        };
        self.to_say += u16::from(message.is_some());
        Ok(message)
    }
}

/// Sends a message, when that is possible.
fn say(socket: &Socket, message: Message, end: Option<Instant>) -> Result<(), Errno> {
    let may_say = |flow: &mut Flow| match flow.phase {
        Phase::Connected => flow.outgoing.send_controls(1).then_some(Ok(true)),
        _ => Some(Ok(false)),
    };
    if !wait_until(socket, end, may_say)? {
        return Ok(());
    }
    let endpoint = socket.endpoint.get().ok_or(Errno::ENOTCONN)?;
    let work = if message == Message::Disconnect {
        Work::Disconnect
    } else {
        Work::Control
    };
    let mut flow = lock(&socket.flow);
    flow.to_say -= 1;
    // If it cannot be posted, the connection has ended: how, say the completions that have come.
    endpoint.post_message(message, work)
}

/// Tells the peer that this is the end, and waits until the peer's host has all that was sent.
fn disconnect(socket: &Socket, end: Option<Instant>) -> Result<(), Errno> {
    say(socket, Message::Disconnect, end)?;
    wait_until_sent(socket, end)?;
    lock(&socket.identifier).disconnect();
    Ok(())
}

/// Waits until the peer's host has all that was sent, which changes the phase.
fn wait_until_sent(socket: &Socket, end: Option<Instant>) -> Result<(), Errno> {
    wait_until(socket, end, |flow| {
        (flow.phase != Phase::Connected).then_some(Ok(()))
    })
}

/// Waits, whatever signals arrive.
fn wait_until<T>(
    socket: &Socket,
    end: Option<Instant>,
    mut ready: impl FnMut(&mut Flow) -> Option<Result<T, Errno>>,
) -> Result<T, Errno> {
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        match socket.wait(left, &mut ready) {
            Err(Errno::EINTR) => {}
            answer => return answer,
        }
    }
}

/// Closes a socket. It waits until the peer's host has all that was sent, unless SO_LINGER says how
/// long it may; without a second, the connection is aborted.
pub(super) fn close(socket: &Arc<Socket>) {
    let linger = lock(&socket.options).linger;
    let connected = lock(&socket.flow).phase == Phase::Connected;
    if connected && linger != Some(0) {
        let mut flow = lock(&socket.flow);
        let last = flow.shut(SHUT_RDWR);
        drop(flow);
        let end = linger.map(|seconds| Instant::now() + Duration::from_secs(seconds.into()));
        // What fails here, fails because the connection ends by itself.
        let _ = match last {
            Ok(None) => wait_until_sent(socket, end),
            _ => disconnect(socket, end),
        };
    }
    let _ = keepalive::set(socket, None);
    let waiting = {
        let mut flow = lock(&socket.flow);
        flow.closed = true;
        std::mem::take(&mut flow.accepted)
    };
    socket.watchers.wake();
    waiting.iter().for_each(|socket| forget(socket));
    forget(socket);
}
