//! What a connection has that runs in frames: segments, next hops, and its own TCP's timers.

use std::mem::offset_of;

use crate::counters::DropReason;
use crate::memory::frames::TxFrames;
use crate::memory::prefetch::prefetch_front;
use crate::tcp::{Seq, SpilledOctets, Succession, Tcp, TcpConfig};
use crate::time::Instant;
use crate::wire::icmp::{TooBig, least_mtu};
use crate::wire::tcp::TcpSegment;

use super::{Connection, Context, NextHop, Phase, Upcoming};

impl Connection {
    /// How many steps it takes to prefetch a connection: each loads the pointer for the next.
    pub(crate) const DEPTHS: usize = 4;

    /// Prefetches what a turn needs, one step further with each depth, while other connections have
    /// their turn.
    pub(crate) fn prefetch(&self, turn: Upcoming, depth: usize) {
        let Some(further) = depth.checked_sub(1) else {
            let of_tcp = match turn {
                Upcoming::Data => Tcp::TO_RECEIVE,
                Upcoming::Any => Tcp::TO_SEND,
            };
            return prefetch_front(self, offset_of!(Self, tcp) + of_tcp);
        };
        if let Phase::Streaming(stream) = &self.phase {
            stream.prefetch(turn, further);
        }
        if further == 0 && turn == Upcoming::Any {
            self.tcp.prefetch();
        }
    }

    /// Returns whether a segment asks for a new connection.
    pub(crate) fn may_open(segment: &TcpSegment<'_>) -> bool {
        let flags = segment.header.flags;
        flags.syn() && !flags.ack() && !flags.rst() && !flags.fin()
    }

    /// Returns when and how this host may open a new connection with the same addresses, if it may.
    pub(crate) fn succession(&self, config: &TcpConfig) -> Option<Succession> {
        self.tcp.succession(config)
    }

    /// Sends the SYN no earlier than this.
    pub(crate) fn hold_syn(&mut self, until: Instant) {
        self.tcp.hold_syn(until);
    }

    /// Returns the least initial sequence number with which a SYN for the same addresses may
    /// replace this connection, if it may.
    pub(crate) fn yields_to(&self, syn: &TcpSegment<'_>) -> Option<Seq> {
        self.tcp.yields_to(syn)
    }

    /// Sets the next hop to the peer, and the MSS that its MTU allows.
    pub(crate) fn set_next_hop(&mut self, hop: &NextHop) {
        if self.path.leads_back() {
            return;
        }
        self.path.set_next_hop(&self.key, hop);
        self.tcp.limit_mss(self.key.mss(hop.mtu));
        if let Some(mss) = hop.advertised_mss {
            self.tcp.limit_offered_mss(mss.get());
        }
    }

    /// Handles an ICMP "packet too big" for a segment of this connection. Returns the path MTU, if
    /// the message is believed.
    pub(crate) fn handle_too_big(&mut self, too_big: &TooBig) -> Option<u16> {
        let mtu = too_big.mtu.max(least_mtu(self.key.remote.ip()));
        let believed = self.tcp.handle_too_big(too_big.seq, self.key.mss(mtu));
        believed.then_some(mtu)
    }

    /// Sends packets of at most `mtu` octets from now on, and what was larger again in pieces.
    pub(crate) fn narrow(&mut self, mtu: u16) {
        if !self.path.leads_back() {
            self.tcp.narrow(self.key.mss(mtu));
        }
    }

    /// Records that the peer cannot be reached. A connection being opened fails.
    pub(crate) fn set_unreachable(&mut self) {
        self.unreachable = matches!(self.phase, Phase::Connecting(_)) && !self.path.leads_back();
    }

    /// Returns whether the peer sends FPDUs with CRCs, and without markers.
    pub(crate) fn receives_crcs(&self) -> bool {
        matches!(&self.phase, Phase::Streaming(stream) if stream.receives_crcs())
    }

    /// Handles a segment of the peer, or returns why it is dropped. The caller then calls
    /// [`settle`](Self::settle).
    pub(crate) fn handle_segment<F: TxFrames>(
        &mut self,
        segment: &TcpSegment<'_>,
        congested: bool,
        context: &mut Context<'_, '_>,
        tx: &mut F,
    ) -> Result<(), DropReason> {
        if let Some(data) = self.tcp.receive(context.now, segment, congested, tx)? {
            // Data first: a Terminate that comes with the acknowledgement of a request says how
            // that request ended.
            if let Phase::Streaming(stream) = &mut self.phase {
                stream.note_acked(self.tcp.acked_offset());
            } else if self.has_left {
                self.tcp.abort();
                return Ok(());
            }
            return self.receive_data(data, context);
        }
        Ok(())
    }

    /// Handles the timers that are due. `spilled` counts the spilled octets of all connections.
    pub(crate) fn handle_timeout<F: TxFrames>(
        &mut self,
        context: &mut Context<'_, '_>,
        tx: &mut F,
        spilled: &SpilledOctets,
    ) {
        if self.tcp.next_timeout().is_some_and(|at| at <= context.now) {
            if self.is_peer_not_ready() {
                self.tcp.excuse_closed_window(context.now);
            }
            self.tcp.handle_timeout(context.now);
            self.tcp.spill(tx, spilled);
        }
        self.handle_deadlines(context);
    }

    /// Returns whether anything is kept for retransmission.
    pub(crate) fn holds_frames(&self) -> bool {
        self.tcp.held() > 0
    }
}
