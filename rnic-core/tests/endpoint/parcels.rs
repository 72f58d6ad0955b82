//! A ULP for tests: parcels to untagged queues of any number, and pages into tagged buffers.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use rnic_core::ddp::{
    BufferSupply, Buffers, DdpStreamError, Delivery, EndpointUlp, ErrorReport, HalfCloseAction,
    Teardown, Ulp, UlpMessage,
};
use rnic_core::memory::{epoch::Guard, error::TagError, place::Destination, table::Access};
use rnic_core::verbs::RecvWr;
use rnic_core::wire::ddp::{
    DdpHeader, DdpSegment, MessageOffset, Msn, QueueNumber, Stag, TaggedHeader, TaggedOffset,
    UntaggedHeader,
};

/// What was delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Arrived {
    /// A parcel, in the buffer with this id, or with these octets.
    Parcel {
        header: UntaggedHeader,
        length: u32,
        buffer: Option<u64>,
        octets: Vec<u8>,
    },
    /// A segment of a page.
    Page { header: TaggedHeader, len: u32 },
}

/// The state of the ULP.
#[derive(Default)]
pub(crate) struct State {
    /// The queues in which it receives, and how these get their buffers.
    pub(crate) queues: HashMap<QueueNumber, BufferSupply>,
    buffers: HashMap<QueueNumber, VecDeque<RecvWr>>,
    outbox: VecDeque<(DdpHeader, Vec<u8>)>,
    current: Vec<u8>,
    pub(crate) arrived: Vec<Arrived>,
    /// Where the messages end that were posted and are not transferred.
    underway: VecDeque<u64>,
    pub(crate) transferred: usize,
    pub(crate) reports: Vec<ErrorReport>,
    /// The version of the LLP.
    pub(crate) llp_version: Option<u8>,
    pub(crate) half_closed: bool,
    pub(crate) finishing: bool,
    pub(crate) ended: Option<Teardown>,
    /// Requests after the wish to end the stream.
    pub(crate) refused: usize,
    /// The memory of messages to be sent was revoked.
    pub(crate) source_gone: bool,
}

/// The ULP, of which the stream and the test have a handle each.
#[derive(Clone, Default)]
pub(crate) struct Parcels(Arc<Mutex<State>>);

/// Makes the header of a parcel, as far as the ULP decides it.
pub(crate) fn parcel(queue: u32, ulp: u8, ulp32: u32) -> DdpHeader {
    DdpHeader::Untagged(UntaggedHeader {
        last: false,
        ulp,
        ulp32,
        queue: QueueNumber(queue),
        msn: Msn(0),
        offset: MessageOffset(0),
    })
}

/// Makes the header of a page.
pub(crate) fn page(stag: Stag, offset: u64, ulp: u8) -> DdpHeader {
    DdpHeader::Tagged(TaggedHeader {
        last: false,
        ulp,
        stag,
        offset: TaggedOffset(offset),
    })
}

impl Parcels {
    /// Makes a ULP that receives in these queues, and posts their buffers.
    pub(crate) fn with_queues(queues: &[u32]) -> Self {
        let parcels = Self::default();
        for queue in queues {
            parcels.open(*queue, BufferSupply::Posted);
        }
        parcels
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub(crate) fn open(&self, queue: u32, supply: BufferSupply) {
        self.state().queues.insert(QueueNumber(queue), supply);
    }

    pub(crate) fn post(&self, queue: u32, buffer: RecvWr) {
        let mut state = self.state();
        let buffers = state.buffers.entry(QueueNumber(queue)).or_default();
        buffers.push_back(buffer);
    }

    /// Withdraws the buffers of a queue, and returns how many there were.
    pub(crate) fn withdraw(&self, queue: u32) -> usize {
        let withdrawn = self.state().buffers.remove(&QueueNumber(queue));
        withdrawn.map_or(0, |buffers| buffers.len())
    }

    /// Queues a message to be sent. Returns false once the stream is to end.
    pub(crate) fn send(&self, header: DdpHeader, octets: &[u8]) -> bool {
        let mut state = self.state();
        if state.finishing || state.ended.is_some() {
            state.refused += 1;
            return false;
        }
        state.outbox.push_back((header, octets.to_vec()));
        true
    }

    pub(crate) fn take_arrived(&self) -> Vec<Arrived> {
        std::mem::take(&mut self.state().arrived)
    }
}

impl Buffers for Parcels {
    fn buffer(&mut self, queue: QueueNumber, ahead: u32) -> Option<RecvWr> {
        let state = self.state();
        state.buffers.get(&queue)?.get(ahead as usize).copied()
    }
}

impl Ulp for Parcels {
    type Error = DdpStreamError;

    fn supply(&self, queue: QueueNumber) -> Option<BufferSupply> {
        self.state().queues.get(&queue).copied()
    }

    fn admit(&self, segment: &DdpSegment<'_>) -> Result<Destination, DdpStreamError> {
        // An octet of RsvdULP that it does not know.
        if segment.header.ulp() == 0xee {
            return Err(DdpStreamError::Refused("no such kind of parcel"));
        }
        Ok(Destination::Buffer(Access::REMOTE_WRITE))
    }

    fn deliver(&mut self, delivery: Delivery<'_>, _: &Guard<'_>) -> Result<(), DdpStreamError> {
        let mut state = self.state();
        let arrived = match delivery {
            Delivery::Tagged { header, len } => Arrived::Page { header, len },
            Delivery::Untagged {
                header,
                length,
                octets,
                ..
            } => {
                let posted = state.buffers.get_mut(&header.queue);
                let buffer = posted.and_then(VecDeque::pop_front);
                Arrived::Parcel {
                    header,
                    length,
                    buffer: buffer.map(|buffer| buffer.wr_id),
                    octets: octets.to_vec(),
                }
            }
        };
        state.arrived.push(arrived);
        Ok(())
    }

    fn next_message(&mut self, _: &Guard<'_>) -> Result<Option<UlpMessage>, DdpStreamError> {
        let mut state = self.state();
        let Some((header, octets)) = state.outbox.pop_front() else {
            return Ok(None);
        };
        let length = octets.len() as u32;
        state.current = octets;
        Ok(Some(UlpMessage { header, length }))
    }

    fn read(&mut self, offset: u32, to: &mut [u8], _: &Guard<'_>) -> Result<(), DdpStreamError> {
        let state = self.state();
        if state.source_gone {
            return Err(DdpStreamError::Source(TagError::InvalidStag(Stag(1))));
        }
        let start = offset as usize;
        to.copy_from_slice(&state.current[start..start + to.len()]);
        Ok(())
    }

    fn posted(&mut self, end: u64) {
        self.state().underway.push_back(end);
    }

    fn transferred(&mut self, end: u64) {
        let mut state = self.state();
        while state
            .underway
            .front()
            .is_some_and(|message| *message <= end)
        {
            state.underway.pop_front();
            state.transferred += 1;
        }
    }

    fn is_drained(&self) -> bool {
        let state = self.state();
        state.outbox.is_empty() && state.underway.is_empty()
    }

    fn handle_half_close(&mut self) -> HalfCloseAction {
        self.state().half_closed = true;
        HalfCloseAction::Continue
    }
}

impl EndpointUlp for Parcels {
    fn handle_start(&mut self, llp_version: u8) {
        self.state().llp_version = Some(llp_version);
    }

    fn handle_error(&mut self, report: &ErrorReport) {
        self.state().reports.push(report.clone());
    }

    fn handle_finish(&mut self) {
        self.state().finishing = true;
    }

    fn handle_end(&mut self, teardown: Teardown) {
        let before = self.state().ended.replace(teardown);
        assert_eq!(before, None, "a stream ends once");
    }
}
