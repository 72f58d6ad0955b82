//! A session: what each side may send when (RFC 5043 sections 6 and 10).

use crate::wire::session::Function;

use super::error::AdaptationError;
use super::kind::{ChunkKind, Direction, Role};

/// The most chunks of a session that the peer has not acknowledged: with more, their numbers would
/// not tell their order.
// rfc: 5043-27 at most 32,767 chunks are outstanding, whatever the layers above do
pub const MAX_OUTSTANDING: u64 = 32_767;

/// One session, as this side sees it. Chunks are counted from 0, and the count does not wrap.
#[derive(Debug)]
pub struct Session {
    role: Role,
    /// How many chunks were handed to SCTP, and how many of them, without a gap, the peer has.
    submitted: u64,
    acked: u64,
    /// The number of our last control message, while nothing shows that the peer has it.
    control: Option<u64>,
    ours: Direction,
    theirs: Direction,
}

impl Session {
    /// Begins a session in which this side has a role.
    pub fn new(role: Role) -> Self {
        Self {
            role,
            submitted: 0,
            acked: 0,
            control: None,
            ours: Direction::Begins,
            theirs: Direction::Begins,
        }
    }

    /// Returns how many chunks were submitted.
    pub fn submitted(&self) -> u64 {
        self.submitted
    }

    /// Returns how many chunks the peer has acknowledged, all that were submitted before them
    /// included.
    pub fn acked(&self) -> u64 {
        self.acked
    }

    /// Returns whether this side may send a chunk of this kind now.
    // rfc: 5043-17 no control message overtakes an earlier one of its session
    // rfc: 5043-18 no segment of the active side overtakes its Initiate
    pub fn may_submit(&self, kind: ChunkKind) -> bool {
        let outstanding = self.submitted - self.acked;
        if outstanding >= MAX_OUTSTANDING || self.next(kind).is_none() {
            return false;
        }
        match kind {
            ChunkKind::Control(_) => self.control.is_none(),
            // The answer has shown that the peer has the Initiate.
            ChunkKind::Segment => true,
        }
    }

    fn next(&self, kind: ChunkKind) -> Option<Direction> {
        self.ours.behind(self.role, kind, self.theirs)
    }

    /// Returns the number of a chunk that is handed to SCTP now. It [may be](Self::may_submit).
    // rfc: 5043-2, 5043-8 numbers count the chunks as they are submitted, without a gap
    pub fn submit(&mut self, kind: ChunkKind) -> u16 {
        debug_assert!(self.may_submit(kind), "{kind} in {self:?}");
        if let Some(next) = self.next(kind) {
            self.ours = next;
        }
        let number = self.submitted;
        if matches!(kind, ChunkKind::Control(_)) {
            self.control = Some(number);
        }
        self.submitted += 1;
        number as u16
    }

    /// Notes that the peer has acknowledged so many more chunks, in the order of submission.
    pub fn acknowledge(&mut self, chunks: u64) {
        self.acked = (self.acked + chunks).min(self.submitted);
        self.control = self.control.filter(|number| *number >= self.acked);
    }

    /// Takes a chunk of the peer in order.
    // rfc: 5043-10 a chunk that fits no pattern ends the session
    pub fn receive(&mut self, kind: ChunkKind) -> Result<(), AdaptationError> {
        let next = self.theirs.behind(self.role.other(), kind, self.ours);
        self.theirs = next.ok_or(AdaptationError::Pattern(kind))?;
        // A control message answers ours, and segments come behind an answer.
        let answers = self.role == Role::Active || kind == ChunkKind::Segment;
        if answers || kind == ChunkKind::Control(Function::Terminate) {
            self.control = None;
        }
        Ok(())
    }

    /// Returns whether this side has sent its last chunk.
    pub fn has_ended(&self) -> bool {
        self.ours == Direction::Ended
    }

    /// Returns whether the peer's last chunk has had its turn.
    pub fn peer_has_ended(&self) -> bool {
        self.theirs == Direction::Ended
    }

    /// Returns whether this side has nothing more to send: it has ended the session, or the peer has
    /// not accepted it, or it has not begun.
    pub fn is_silent(&self) -> bool {
        match (self.role, self.ours) {
            (_, Direction::Ended) => true,
            (Role::Active, Direction::Begins) => true,
            (Role::Active, Direction::Asks) => self.peer_has_ended(),
            (Role::Passive, Direction::Begins) => self.theirs == Direction::Begins,
            (_, Direction::Open) | (Role::Passive, Direction::Asks) => false,
        }
    }

    /// Returns whether no side knows of the session yet.
    pub fn has_not_begun(&self) -> bool {
        self.ours == Direction::Begins && self.theirs == Direction::Begins
    }

    /// Returns whether this side has refused the session: nothing follows of the peer.
    pub fn needs_no_answer(&self) -> bool {
        self.role == Role::Passive && self.submitted == 1 && self.ours == Direction::Ended
    }

    /// Returns whether no chunk of either side can be under way any more.
    // rfc: 5043-19 a stream is used again when nothing of the session before is outstanding
    pub fn frees_stream(&self) -> bool {
        self.peer_has_ended() && self.acked == self.submitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ChunkKind::{Control, Segment};
    use Function::{Accept, EnhancedReject, Initiate, Reject, Terminate};

    const KINDS: [ChunkKind; 6] = [
        Segment,
        Control(Initiate),
        Control(Accept),
        Control(Reject),
        Control(EnhancedReject),
        Control(Terminate),
    ];

    /// Both sides of a session that was accepted, with everything acknowledged.
    fn accepted() -> [Session; 2] {
        let [mut active, mut passive] = [Role::Active, Role::Passive].map(Session::new);
        assert_eq!(active.submit(Control(Initiate)), 0);
        passive.receive(Control(Initiate)).unwrap();
        active.acknowledge(1);
        assert_eq!(passive.submit(Control(Accept)), 0);
        active.receive(Control(Accept)).unwrap();
        passive.acknowledge(1);
        [active, passive]
    }

    #[test]
    fn numbers_count_what_was_submitted() {
        // rfc: 5043-2, 5043-8
        let [mut active, _] = accepted();
        for number in 1..70_000_u64 {
            assert_eq!(active.submit(Segment), number as u16);
            active.acknowledge(1);
        }
        assert_eq!((active.submitted(), active.acked()), (70_000, 70_000));
    }

    #[test]
    fn sessions_follow_the_patterns() {
        // rfc: 5043-9, 5043-10, 5043-15
        let refuses = |side: &Session, allowed: &[ChunkKind]| {
            for kind in KINDS {
                let mut copy = Session { ..*side };
                let taken = copy.receive(kind);
                match allowed.contains(&kind) {
                    true => assert_eq!(taken, Ok(())),
                    false => assert_eq!(taken, Err(AdaptationError::Pattern(kind))),
                }
            }
        };
        let mut passive = Session::new(Role::Passive);
        refuses(&passive, &[Control(Initiate)]);
        passive.receive(Control(Initiate)).unwrap();
        // Not accepted: no segments yet.
        refuses(&passive, &[Control(Terminate)]);
        let mut active = Session::new(Role::Active);
        active.submit(Control(Initiate));
        refuses(
            &active,
            &[
                Control(Accept),
                Control(Reject),
                Control(EnhancedReject),
                Control(Terminate),
            ],
        );
        for side in accepted() {
            refuses(&side, &[Segment, Control(Terminate)]);
        }
        let [mut active, _] = accepted();
        active.receive(Control(Terminate)).unwrap();
        refuses(&active, &[]);
        let mut active = Session::new(Role::Active);
        active.submit(Control(Initiate));
        active.receive(Control(Reject)).unwrap();
        refuses(&active, &[]);
    }

    #[test]
    fn a_control_message_waits_until_the_one_before_has_arrived() {
        // rfc: 5043-17
        let mut active = Session::new(Role::Active);
        active.submit(Control(Initiate));
        assert!(!active.may_submit(Control(Terminate)));
        active.acknowledge(1);
        assert!(active.may_submit(Control(Terminate)));
        // An answer shows it too, and so does what is sent only behind an Accept.
        let mut active = Session::new(Role::Active);
        active.submit(Control(Initiate));
        active.receive(Control(Accept)).unwrap();
        assert!(active.may_submit(Control(Terminate)));
        let mut passive = Session::new(Role::Passive);
        passive.receive(Control(Initiate)).unwrap();
        passive.submit(Control(Accept));
        assert!(!passive.may_submit(Control(Terminate)));
        passive.receive(Segment).unwrap();
        assert!(passive.may_submit(Control(Terminate)));
    }

    #[test]
    fn the_active_side_sends_segments_behind_the_answer() {
        // rfc: 5043-18
        let mut active = Session::new(Role::Active);
        assert!(!active.may_submit(Segment));
        active.submit(Control(Initiate));
        assert!(!active.may_submit(Segment));
        active.receive(Control(Accept)).unwrap();
        assert!(active.may_submit(Segment));
    }

    #[test]
    fn no_more_chunks_are_outstanding_than_numbers_can_order() {
        // rfc: 5043-27
        let [mut active, _] = accepted();
        for _ in 0..32_767 {
            assert!(active.may_submit(Segment));
            active.submit(Segment);
        }
        assert!(!active.may_submit(Segment));
        assert!(!active.may_submit(Control(Terminate)));
        active.acknowledge(1);
        active.submit(Segment);
        assert!(!active.may_submit(Segment));
    }

    #[test]
    fn a_stream_is_free_when_nothing_is_outstanding() {
        // rfc: 5043-19
        let [mut active, mut passive] = accepted();
        active.submit(Segment);
        active.submit(Control(Terminate));
        assert!(active.has_ended() && !active.frees_stream());
        passive.receive(Segment).unwrap();
        passive.receive(Control(Terminate)).unwrap();
        passive.submit(Control(Terminate));
        assert!(!passive.frees_stream());
        passive.acknowledge(1);
        assert!(passive.frees_stream());
        active.acknowledge(2);
        assert!(!active.frees_stream());
        active.receive(Control(Terminate)).unwrap();
        assert!(active.frees_stream());
        // A rejection ends both directions.
        let mut active = Session::new(Role::Active);
        active.submit(Control(Initiate));
        active.receive(Control(Reject)).unwrap();
        assert!(!active.frees_stream());
        active.acknowledge(1);
        assert!(active.frees_stream());
    }
}
