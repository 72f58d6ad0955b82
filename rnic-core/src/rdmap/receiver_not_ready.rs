//! Receiver not ready (RNR), on connections with the semantics of RC: the Control messages of both
//! sides, and how long our requester waits (docs/design/rc-receiver-not-ready.md). Receipts are
//! Control messages too (docs/design/rc-receipts.md).

use std::time::Duration;

use super::message::{Outbound, PayloadSource, Token, untagged};
use crate::time::Instant;
use crate::verbs::{qp::RNR_RETRY_FOR_EVER, wr::SHORT_INLINE};
use crate::wire::ddp::QueueNumber;
use crate::wire::rdmap::{FlowControl, Opcode, RdmapWireError, Readiness, Receipt};

const _: () = assert!(FlowControl::LEN <= SHORT_INLINE);

/// How long the requester waits at least. Software is slower than adapters.
const LEAST_WAIT: Duration = Duration::from_secs(1);

/// What the sides of a connection have told each other of their receives.
#[derive(Debug)]
pub(super) struct FlowState {
    /// What our XOFFs ask the peer to wait between two tries.
    min_rnr_timer: Duration,
    /// Whether a message of the peer waits for a receive of ours.
    lacks_receive: bool,
    /// Whether the peer was told that.
    told: bool,
    /// XOFFs sent.
    count: u32,
    /// The count of the peer's last XOFF.
    peer_count: u32,
    /// The peer has sent XOFF, and no XON since.
    peer: Option<PeerNotReady>,
    pub(super) receipts: Receipts,
}

/// What the sides have told each other of what they have placed. Offsets count the octets of a
/// stream.
#[derive(Debug, Default)]
pub(super) struct Receipts {
    /// Up to where the peer has placed our stream, if it tells so.
    pub(super) told: Option<u64>,
    /// Up to where the peer's TCP had acknowledged our stream when the octets arrived that are
    /// being received.
    pub(super) acked: u64,
    /// This side tells the peer.
    pub(super) tells: bool,
    /// A request has come since it was told last.
    pub(super) owes: bool,
    /// The receipt that is to be sent.
    pub(super) due: Option<u64>,
}

/// Makes a Control message.
fn control_message(octets: [u8; SHORT_INLINE]) -> Outbound {
    Outbound {
        header: untagged(Opcode::FlowControl, QueueNumber::FLOW_CONTROL, 0),
        length: FlowControl::LEN as u32,
        source: PayloadSource::Octets(octets),
        token: Token::FlowControl,
    }
}

#[derive(Debug)]
struct PeerNotReady {
    min_rnr_timer: Duration,
    /// When our wait began, if it is timed yet.
    since: Option<Instant>,
}

impl FlowState {
    pub(super) fn new(min_rnr_timer: Duration) -> Self {
        Self {
            min_rnr_timer,
            lacks_receive: false,
            told: false,
            count: 0,
            peer_count: 0,
            peer: None,
            receipts: Receipts::default(),
        }
    }

    /// Notes whether a message of the peer waits for a receive. Returns whether the peer is to be
    /// told of it.
    pub(super) fn set_lacks_receive(&mut self, lacks: bool) -> bool {
        self.lacks_receive = lacks;
        lacks != self.told
    }

    /// Returns whether a Control message is to be sent.
    pub(super) fn has_message(&self) -> bool {
        self.told != self.lacks_receive || self.receipts.due.is_some()
    }

    /// Returns the Control message to be sent, if the peer does not know how it is.
    pub(super) fn next_message(&mut self) -> Option<Outbound> {
        if self.told == self.lacks_receive {
            return self.next_receipt();
        }
        let mut octets = [0; SHORT_INLINE];
        self.next_flow_control().emit(&mut octets);
        Some(control_message(octets))
    }

    /// Returns the receipt to be sent, if there is one.
    pub(super) fn next_receipt(&mut self) -> Option<Outbound> {
        let mut octets = [0; SHORT_INLINE];
        Receipt(self.receipts.due.take()?).emit(&mut octets);
        Some(control_message(octets))
    }

    /// Returns what tells the peer of our receives.
    fn next_flow_control(&mut self) -> FlowControl {
        self.told = self.lacks_receive;
        if self.told {
            self.count = self.count.wrapping_add(1);
        }
        FlowControl {
            readiness: match self.told {
                true => Readiness::NotReady,
                false => Readiness::Ready,
            },
            count: self.count,
            min_rnr_timer: self.min_rnr_timer,
        }
    }

    /// Handles a Control message of the peer. Returns what it changes for our requester, if it is
    /// no repetition.
    pub(super) fn receive(&mut self, octets: &[u8]) -> Result<Option<Readiness>, RdmapWireError> {
        let control = FlowControl::parse(octets)?;
        let changed = match control.readiness {
            Readiness::NotReady => {
                let is_new = control.count != self.peer_count;
                if is_new {
                    self.peer_count = control.count;
                    self.peer = Some(PeerNotReady {
                        min_rnr_timer: control.min_rnr_timer,
                        since: None,
                    });
                }
                is_new
            }
            Readiness::Ready => control.count == self.peer_count && self.peer.take().is_some(),
        };
        Ok(changed.then_some(control.readiness))
    }

    /// Returns whether the peer has no receive for us.
    pub(super) fn is_peer_not_ready(&self) -> bool {
        self.peer.is_some()
    }

    /// Returns when our requester gives up. The wait began at the first call behind the XOFF.
    pub(super) fn deadline(&mut self, now: Instant, rnr_retry: u8) -> Option<Instant> {
        let peer = self.peer.as_mut()?;
        let since = *peer.since.get_or_insert(now);
        if rnr_retry >= RNR_RETRY_FOR_EVER {
            return None;
        }
        let tries = u32::from(rnr_retry.max(1));
        Some(since + (peer.min_rnr_timer * tries).max(LEAST_WAIT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(readiness: Readiness, count: u32) -> [u8; FlowControl::LEN] {
        let mut octets = [0; FlowControl::LEN];
        let control = FlowControl {
            readiness,
            count,
            min_rnr_timer: Duration::from_millis(500),
        };
        control.emit(&mut octets);
        octets
    }

    fn sent(state: &mut FlowState) -> Option<(Readiness, u32)> {
        let PayloadSource::Octets(octets) = state.next_message()?.source else {
            return None;
        };
        let control = FlowControl::parse(&octets[..FlowControl::LEN]).unwrap();
        Some((control.readiness, control.count))
    }

    #[test]
    fn the_peer_is_told_only_what_it_does_not_know() {
        let mut state = FlowState::new(Duration::ZERO);
        assert_eq!(sent(&mut state), None);
        assert!(state.set_lacks_receive(true));
        assert_eq!(sent(&mut state), Some((Readiness::NotReady, 1)));
        assert!(!state.set_lacks_receive(true));
        assert!(state.set_lacks_receive(false));
        // Before the XON has left, another message finds no receive.
        assert!(!state.set_lacks_receive(true));
        assert_eq!(sent(&mut state), None);
        assert!(state.set_lacks_receive(false));
        assert_eq!(sent(&mut state), Some((Readiness::Ready, 1)));
        assert!(state.set_lacks_receive(true));
        assert_eq!(sent(&mut state), Some((Readiness::NotReady, 2)));
    }

    #[test]
    fn repetitions_change_nothing() {
        use Readiness::{NotReady, Ready};
        let mut state = FlowState::new(Duration::ZERO);
        let mut hear = |readiness, count| state.receive(&control(readiness, count)).unwrap();
        assert_eq!(hear(Ready, 0), None);
        assert_eq!(hear(NotReady, 1), Some(NotReady));
        assert_eq!(hear(NotReady, 1), None);
        assert_eq!(hear(Ready, 2), None);
        assert_eq!(hear(Ready, 1), Some(Ready));
        assert_eq!(hear(Ready, 1), None);
        assert_eq!(hear(NotReady, 1), None);
        assert_eq!(hear(NotReady, 2), Some(NotReady));
        assert!(state.receive(&[1; 15]).is_err());
        assert!(state.receive(&[7; 16]).is_err());
    }

    #[test]
    fn the_wait_is_a_product_and_a_second_at_least() {
        let mut state = FlowState::new(Duration::ZERO);
        let start = Instant::ZERO + Duration::from_secs(5);
        assert_eq!(state.deadline(start, 3), None);
        state.receive(&control(Readiness::NotReady, 1)).unwrap();
        let after = |millis| Some(start + Duration::from_millis(millis));
        assert_eq!(state.deadline(start, 3), after(1500));
        // A later call does not begin anew.
        let later = start + Duration::from_secs(1);
        assert_eq!(state.deadline(later, 6), after(3000));
        assert_eq!(state.deadline(later, 0), after(1000));
        assert_eq!(state.deadline(later, 7), None);
        assert_eq!(state.deadline(later, 255), None);
    }
}
