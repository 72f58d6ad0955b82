//! An association of ours that does not come up is set up anew.

use crate::connection::{AssociationSocket, Associations, Standing};
use crate::memory::epoch::Guard;
use crate::tcp::TcpFailure;
use crate::time::Instant;

use super::SessionEngine;

impl<L: Associations> SessionEngine<L> {
    /// Gives up what was begun to set up an association, and begins anew: from the same port, as
    /// connections know it. The next try has twice the time.
    pub(super) fn set_up_again(&mut self, number: usize, now: Instant, guard: &Guard<'_>) {
        let below = &mut self.below;
        let Some(association) = below.associations.get_mut(number) else {
            return;
        };
        let is_overdue = association.set_up_at + association.try_time <= now;
        let Some(reservation) = &association.reservation else {
            return;
        };
        if association.standing != Standing::Opening || !is_overdue {
            return;
        }
        association.set_up_at = now;
        association.try_time *= 2;
        // It frees the port, too.
        association.socket.abort();
        let (remote, class) = (association.remote, association.traffic_class);
        let begun = below.sockets.connect(reservation, remote, class);
        let begun = begun.and_then(|socket| {
            below.sockets.watch(&socket, number)?;
            association.replace(socket);
            Ok(())
        });
        if let Err(reason) = begun {
            self.lose(number, Some(reason), TcpFailure::Aborted, now, guard);
        }
    }
}
