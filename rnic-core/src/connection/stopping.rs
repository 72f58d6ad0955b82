//! A send queue that the application has stopped: requests that have begun are finished, and no
//! other begins.

use super::upper::{LocalEnd, LocalUlp, RdmapUser};
use super::{Connection, Context, Event, Phase, Transport};

impl<T: Transport> Connection<T> {
    /// Lets no more requests begin. Tells the application when those that have begun are done.
    pub(crate) fn stop_sends(&mut self, stop: u32, context: &mut Context<'_, '_>) {
        match &mut self.phase {
            Phase::Streaming(stream) => {
                if let LocalUlp::Rdmap(RdmapUser { rdmap, qp, .. }) = &mut stream.user {
                    qp.is_stopped = true;
                    rdmap.stop(Some(stop));
                    // The last of them must not complete on a fast path, which does not tell.
                    stream.choose_paths();
                }
                self.settle(context);
            }
            Phase::Connecting(connecting) => {
                if let LocalEnd::Qp(qp) = &mut connecting.end {
                    qp.is_stopped = true;
                    let drained = Event::SendsDrained {
                        qp: qp.number,
                        stop,
                    };
                    context.events.push_back(drained);
                }
            }
            Phase::Responding { .. } | Phase::Waiting { .. } | Phase::Closing => {}
        }
    }

    /// Lets requests begin again.
    pub(crate) fn resume_sends(&mut self, context: &mut Context<'_, '_>) {
        match &mut self.phase {
            Phase::Streaming(stream) => {
                if let LocalUlp::Rdmap(RdmapUser { rdmap, qp, .. }) = &mut stream.user {
                    qp.is_stopped = false;
                    rdmap.go_on();
                    stream.choose_paths();
                }
                self.settle(context);
            }
            Phase::Connecting(connecting) => {
                if let LocalEnd::Qp(qp) = &mut connecting.end {
                    qp.is_stopped = false;
                }
            }
            Phase::Responding { .. } | Phase::Waiting { .. } | Phase::Closing => {}
        }
    }
}
