//! Connections in frames: how an engine begins them and follows their routes.

use crate::connection::{
    AddressPair, Connection, ConnectionOptions, EndReason, Event, FlowKey, NextHop,
    PortReservation, Wants,
};
use crate::ids::{ListenerId, QpNumber};
use crate::memory::epoch::Guard;
use crate::tcp::Tcp;
use crate::time::Instant;

use super::Engine;
use super::carrier::Carrier;
use super::owners::Handler;
use super::queue_pairs::EndLocation;

impl Carrier for Tcp {
    #[inline]
    fn is_waited_for(engine: &Engine) -> bool {
        engine.is_waited_for()
    }

    fn resolves(engine: &mut Engine, now: Instant, path: AddressPair) -> bool {
        engine.next_hops.inquire(now, path)
    }

    fn connect(
        engine: &mut Engine,
        now: Instant,
        _: &Guard<'_>,
        qp: QpNumber,
        key: FlowKey,
        options: ConnectionOptions,
        reservation: PortReservation,
    ) {
        engine.connect(now, qp, key, options, reservation);
    }

    /// Frames for the listener come when its port is steered here.
    fn listen(_: &mut Engine, _: ListenerId, _: &PortReservation) -> Result<(), EndReason> {
        Ok(())
    }

    fn unlisten(_: &mut Engine, _: ListenerId) {}

    /// From here on the route to the peer is worth following. For a SYN alone, which anybody can
    /// send, it was not.
    fn accepted(engine: &mut Engine, now: Instant, index: usize) {
        if let Some(hop) = engine.next_hop(now, index) {
            engine.connections[index].set_next_hop(&hop);
        }
    }

    /// A peer that has sent its MPA Request has acknowledged all that was sent to it, so no frame
    /// of this engine is held for it. Others cannot move.
    fn departs(engine: &mut Engine, index: usize) -> bool {
        !engine.connections[index].holds_frames()
    }
}

impl Engine {
    fn connect(
        &mut self,
        now: Instant,
        number: QpNumber,
        key: FlowKey,
        options: ConnectionOptions,
        reservation: PortReservation,
    ) {
        let fail = |engine: &mut Self, reason| {
            engine
                .events
                .push_back(Event::Failed { qp: number, reason });
        };
        if self.device_gone {
            return fail(self, EndReason::DeviceGone);
        }
        // Both ends of a connection with this device are here, and two connections have two keys.
        if key.local == key.remote {
            return fail(self, EndReason::InUse);
        }
        let config = self.tcp_config(&key);
        let former = self.find(&key);
        let succession = former.map(|index| self.connections[index].succession(&config));
        if succession == Some(None) {
            return fail(self, EndReason::InUse);
        }
        let Some(end) = self.qps.take_idle(number) else {
            return fail(self, EndReason::QpNotIdle);
        };
        if let Some(index) = former {
            // The addresses stay this engine's.
            self.forget_here(index);
        } else if self.claim(&key) != Handler::This {
            self.qps.put(end);
            return fail(self, EndReason::InUse);
        }
        let options = self.permitted(options);
        let mut isn = self.initial_sequence_number(now, &key);
        let succession = succession.flatten();
        if let Some(succession) = succession.filter(|after| !isn.after(after.least)) {
            isn = succession.least;
        }
        let connection = Connection::connect(now, key, reservation, end, options, &config, isn);
        let connection = match connection {
            Ok(mut connection) => {
                if let Some(succession) = succession {
                    connection.hold_syn(succession.from);
                }
                connection
            }
            Err((end, reason)) => {
                self.qps.put(end);
                if let Some(place) = &self.place {
                    place.release(&key);
                }
                return fail(self, reason);
            }
        };
        let index = self.insert(connection);
        if self.is_own(&key) {
            self.connections[index].path().lead_back();
        }
        if let Some(hop) = self.next_hop(now, index) {
            self.connections[index].set_next_hop(&hop);
        }
        let wants = Wants {
            send: true,
            ..Wants::TIMER
        };
        self.schedule(index, wants);
        *self.qps.place(number) = Some(EndLocation::Connected(index));
    }

    /// Returns the next hop of a connection, if it is known, and follows it. Frames that come back
    /// to this device have none.
    fn next_hop(&mut self, now: Instant, index: usize) -> Option<NextHop> {
        let connection = &mut self.connections[index];
        if connection.path().leads_back() {
            return None;
        }
        self.next_hops.find(now, connection.key().addresses())
    }
}
