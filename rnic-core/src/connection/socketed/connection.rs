//! What a connection does when its socket is ready, and with what it receives and sends.

use std::sync::Arc;

use crate::connection::startup::set_tcp_options;
use crate::connection::{
    Connection, ConnectionOptions, Context, EndReason, FlowKey, LocalEnd, Path, Phase,
    PortReservation, Received, Refusals, Socket, Sockets, Transport,
};
use crate::ids::ListenerId;
use crate::tcp::State;
use crate::time::Instant;

use super::{KernelTcp, Listed};

impl<L: Sockets> Connection<KernelTcp<L>> {
    /// Opens a connection with a socket that is being connected. Fails as
    /// [`ask`](Self::ask) does.
    pub(crate) fn connect_by(
        now: Instant,
        key: FlowKey,
        socket: L::Socket,
        reservation: PortReservation,
        end: LocalEnd,
        options: ConnectionOptions,
    ) -> Result<Self, (LocalEnd, EndReason)> {
        let mut tcp = KernelTcp::new(socket, State::SynSent);
        set_tcp_options(&mut tcp, &options);
        tcp.set_traffic_class(options.traffic_class);
        let path = Path::unknown(&key);
        Self::ask(now, key, tcp, path, reservation, end, options)
    }

    /// Makes the connection that a peer has opened.
    pub(crate) fn accepted_by(
        now: Instant,
        key: FlowKey,
        socket: L::Socket,
        reservation: PortReservation,
        listener: ListenerId,
        refusals: Arc<Refusals>,
    ) -> Self {
        let tcp = KernelTcp::new(socket, State::Established);
        let path = Path::unknown(&key);
        Self::await_request(now, key, tcp, path, reservation, listener, refusals)
    }

    pub(crate) fn socket(&self) -> &L::Socket {
        &self.tcp.socket
    }

    pub(crate) fn listed(&mut self) -> &mut Listed {
        &mut self.tcp.is_listed
    }

    /// Notes what the socket can do now.
    pub(crate) fn handle_ready(
        &mut self,
        (readable, writable, ended): (bool, bool, bool),
        context: &mut Context<'_, '_>,
    ) {
        self.tcp.is_readable |= readable | ended;
        self.tcp.is_ending |= ended;
        if writable {
            self.tcp.handle_writable();
            self.tcp.flush();
        }
        if self.tcp.is_closed() {
            self.settle(context);
        }
    }

    /// Returns whether there may be octets to receive, which are wanted now.
    pub(crate) fn wants_octets(&self) -> bool {
        self.tcp.may_receive() && self.tcp.is_readable && !self.tcp.is_paused
    }

    /// Has the kernel acknowledge at once what it has received.
    pub(crate) fn acknowledge(&mut self) {
        self.tcp.socket.acknowledge();
    }

    /// Returns whether so many octets are kept above that no more are received.
    pub(crate) fn is_paused(&self) -> bool {
        self.tcp.is_paused
    }

    /// Returns whether there may be octets to receive, sooner or later.
    pub(crate) fn is_readable(&self) -> bool {
        self.tcp.is_readable && !self.tcp.is_closed()
    }

    /// Has octets be received though nothing says that there are any.
    pub(crate) fn expect_octets(&mut self) {
        self.tcp.is_readable = true;
    }

    /// Returns whether octets wait for room in the kernel.
    pub(crate) fn lacks_room(&self) -> bool {
        !self.tcp.is_writable
    }

    /// Receives octets by one call, into `buffer`, and does with them what is to be done. Returns
    /// whether there were any, or the end of the stream.
    pub(crate) fn receive_octets(
        &mut self,
        buffer: &mut [u8],
        context: &mut Context<'_, '_>,
    ) -> bool {
        let received = self.tcp.receive(buffer);
        if received == Received::Nothing {
            return false;
        }
        // Requests that they answer complete first, and those that the peer has before its end.
        self.tcp.follow_acks();
        if let Received::Octets(len) = received {
            if let Phase::Streaming(stream) = &mut self.phase {
                stream.note_acked(self.tcp.acked);
            } else if self.has_left {
                self.tcp.abort();
            }
            self.consume(&buffer[..len], context);
            self.tcp.received += len as u64;
            if let Phase::Streaming(stream) = &mut self.phase {
                stream.send_receipt(self.tcp.received);
            }
            self.update_buffered(context);
        }
        if !self.settle_acked(context) {
            self.settle(context);
        }
        true
    }

    /// Completes what the peer has acknowledged since. Returns whether that was anything.
    pub(crate) fn follow_acks(&mut self, context: &mut Context<'_, '_>) -> bool {
        let before = self.tcp.acked;
        self.tcp.follow_acks();
        let any = self.tcp.acked > before;
        if any && !self.settle_acked(context) {
            self.settle(context);
        }
        any
    }

    /// Sends FPDUs of up to the length of `staging` by one call. Returns whether it sent anything,
    /// and whether there may be more that the kernel has room for.
    pub(crate) fn send_octets(
        &mut self,
        staging: &mut [u8],
        context: &mut Context<'_, '_>,
    ) -> (bool, bool) {
        self.tcp.flush();
        if let Phase::Streaming(stream) = &mut self.phase {
            stream.execute_local(self.tcp.takes_octets(), context);
        }
        let mut len = 0;
        if self.tcp.takes_octets() && self.tcp.is_writable {
            self.tcp.max_payload = self.tcp.socket.max_payload();
            len = self.build_many(staging, context);
            if len > 0 {
                self.tcp.send(&staging[..len]);
            }
        }
        if self.tcp.takes_octets() {
            self.finish_sending(context);
        }
        if self.tcp.is_closed() {
            self.settle(context);
        }
        (
            len > 0,
            len > 0 && self.tcp.is_writable && self.tcp.takes_octets(),
        )
    }

    /// Builds FPDUs of the messages that wait, while there is surely room for one more. Returns the
    /// length of all.
    fn build_many(&mut self, staging: &mut [u8], context: &mut Context<'_, '_>) -> usize {
        let (mut len, most) = (0, self.tcp.max_payload());
        while staging.len() - len >= most {
            if !self.has_output(context) {
                self.leave_stream(context);
                if self.loose_octets.is_empty() {
                    break;
                }
            }
            let start = self.tcp.queued + len as u64;
            let segment = &mut staging[len..len + most];
            let built = usize::from(self.build_at(start, segment, false, context).len);
            if built == 0 {
                // The source of the message was revoked, or the stream has ended.
                self.leave_stream(context);
                if self.loose_octets.is_empty() {
                    break;
                }
            }
            len += built;
        }
        len
    }

    /// Returns whether the kernel is to be asked what the peer has acknowledged. Where the peer
    /// sends receipts, these say it.
    pub(crate) fn awaits_acks(&self) -> bool {
        let is_told = match &self.phase {
            Phase::Streaming(stream) if self.tcp.state == State::Established => {
                stream.told().is_some_and(|told| told <= self.tcp.acked)
            }
            _ => false,
        };
        self.tcp.acked < self.tcp.taken && !self.tcp.is_closed() && !is_told
    }
}
