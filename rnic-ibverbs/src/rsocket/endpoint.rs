//! The queue pair of a socket, its completion queue, and its buffers.
#![allow(unsafe_code, reason = "calls the verbs by their C ABI")]

use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::buffer::{Buffer, Region};
use super::calls::*;
use super::config::{LONGEST_QUEUE, SHORTEST_QUEUE, Sizes};
use super::identifier::{Identifier, check, set_nonblocking};
use super::incoming::Incoming;
use super::layout::{ConnectData, Iomap, MESSAGE_OCTETS, Message, Sge, TARGETS};
use super::waiter::Watchers;
use crate::abi::*;
use crate::channel::on_notification;
use crate::errno::Errno;

/// The longest data that are sent without a copy in the send buffer.
pub(super) const MAX_INLINE: usize = 256;

/// What a request is for, as its completion tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// A receive, with the number of its place.
    Receive(u32),
    /// A part of a message of data, which lets go of so many octets of the send buffer.
    Data(u32),
    /// A part of a message without data.
    Control,
    /// The last message.
    Disconnect,
}

const RECEIVE: u64 = 1 << 63;
const CONTROL: u64 = 1 << 62;
const DISCONNECT: u64 = 1 << 61;

impl Work {
    fn to_id(self) -> u64 {
        match self {
            Self::Receive(place) => RECEIVE | u64::from(place),
            Self::Data(octets) => octets.into(),
            Self::Control => CONTROL,
            Self::Disconnect => DISCONNECT,
        }
    }

    pub(super) fn of(completion: &ibv_wc) -> Self {
        let id = completion.wr_id;
        match () {
            () if id & RECEIVE != 0 => Self::Receive(id as u32),
            () if id & CONTROL != 0 => Self::Control,
            () if id & DISCONNECT != 0 => Self::Disconnect,
            () => Self::Data(id as u32),
        }
    }
}

/// The octets of a request.
pub(super) enum Octets<'octets> {
    /// The request takes them along.
    Inline(&'octets [u8]),
    /// They stay where they are until it is done.
    Pieces([ibv_sge; 2]),
}

/// The objects, in the order in which they are destroyed.
#[derive(Debug)]
pub(super) struct Endpoint {
    pair: Pair,
    queue: Queue,
    /// Data to send, and data that were received.
    pub(super) send: Buffer,
    pub(super) receive: Buffer,
    /// The messages that are received.
    messages: Buffer,
    /// The entries that the peer writes: its buffers, and behind them those that it has mapped.
    targets: Buffer,
    /// What it was made with.
    pub(super) sizes: Sizes,
}

#[derive(Debug)]
struct Pair(*mut rdma_cm_id);

#[derive(Debug)]
struct Queue {
    channel: *mut ibv_comp_channel,
    cq: *mut ibv_cq,
}

// SAFETY: its pointers name objects that threads share, and an id of which it reads only what stays
// as long as its queue pair.
unsafe impl Send for Endpoint {}
// SAFETY: the pointers do not change, and verbs may be called by several threads at once.
unsafe impl Sync for Endpoint {}

impl Drop for Pair {
    fn drop(&mut self) {
        // SAFETY: `new` made the queue pair, and the socket destroys its endpoint before its
        // identifier.
        unsafe { rdma_destroy_qp(self.0) };
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if !self.cq.is_null() {
            // SAFETY: `new` made it, and the queue pair was destroyed before: see the order of the
            // members.
            unsafe { ibv_destroy_cq(self.cq) };
        }
        // SAFETY: `new` made it, and its completion queue is gone.
        unsafe { ibv_destroy_comp_channel(self.channel) };
    }
}

impl Queue {
    /// Makes one whose notifications wake those who watch the socket.
    fn new(
        context: *mut ibv_context,
        entries: i32,
        watchers: Arc<Watchers>,
    ) -> Result<Self, Errno> {
        // SAFETY: the context is that of an id, which stays open.
        let channel = unsafe { ibv_create_comp_channel(context) };
        if channel.is_null() {
            return Err(Errno::last());
        }
        let mut queue = Self {
            channel,
            cq: null_mut(),
        };
        set_nonblocking(&queue)?;
        // SAFETY: the channel was made just now.
        unsafe { on_notification(channel, move || watchers.wake()) };
        // SAFETY: as above, and the channel was made just now.
        queue.cq = unsafe { ibv_create_cq(context, entries, null_mut(), channel, 0) };
        if queue.cq.is_null() {
            Err(Errno::last())
        } else {
            Ok(queue)
        }
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel exists until `drop`, has its descriptor open until then, and does not
        // change it.
        unsafe { BorrowedFd::borrow_raw((*self.channel).fd) }
    }
}

impl Endpoint {
    /// Makes the objects on the device of the identifier, and posts the receives.
    pub(super) fn new(
        identifier: &Identifier,
        mut sizes: Sizes,
        watchers: Arc<Watchers>,
    ) -> Result<Self, Errno> {
        let id = identifier.raw();
        // SAFETY: the identifier is borrowed, and so its id is there. The socket has locked it.
        let context = unsafe { (*id).verbs };
        if context.is_null() {
            return Err(Errno::ENODEV);
        }
        let longest = longest_queue(context)?;
        sizes.send_queue = sizes.send_queue.clamp(SHORTEST_QUEUE, longest);
        sizes.receive_queue = sizes.receive_queue.clamp(SHORTEST_QUEUE, longest);
        let receives = Incoming::receives(sizes.receive_queue);

        let entries = i32::from(sizes.send_queue) + i32::from(receives);
        let queue = Queue::new(context, entries, watchers)?;
        let pair = Pair::new(id, &queue, &mut sizes, receives)?;
        // SAFETY: as above.
        let pd = unsafe { (*id).pd };
        let written_by_peer = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
        let messages = usize::from(receives) * MESSAGE_OCTETS;
        let targets = TARGETS * Sge::OCTETS + usize::from(sizes.iomaps) * Iomap::OCTETS;
        // Each has a name first: if one fails, those before it go in the opposite order, the queue
        // pair before its completion queue.
        // SAFETY: the id's domain outlives the endpoint, as the id does.
        let buffer = |length, access| unsafe { Buffer::new(pd, length, access) };
        let send = buffer(sizes.send_buffer as usize, 0)?;
        let receive = buffer(sizes.receive_buffer as usize, written_by_peer)?;
        let messages = buffer(messages, IBV_ACCESS_LOCAL_WRITE)?;
        let targets = buffer(targets, written_by_peer)?;
        let endpoint = Self {
            pair,
            queue,
            send,
            receive,
            messages,
            targets,
            sizes,
        };
        for place in 0..receives {
            endpoint.post_receives(&[place.into()])?;
        }
        Ok(endpoint)
    }

    /// Returns what the peer must know of it.
    pub(super) fn connect_data(&self) -> ConnectData {
        ConnectData {
            credits: self.sizes.receive_queue,
            iomaps: self.sizes.iomaps,
            targets: Sge {
                addr: self.targets.addr(),
                key: self.targets.rkey(),
                length: TARGETS as u32,
            },
            buffer: self.half(0),
        }
    }

    /// Returns the half of the receive buffer that begins there.
    pub(super) fn half(&self, offset: u32) -> Sge {
        Sge {
            addr: self.receive.addr() + u64::from(offset),
            key: self.receive.rkey(),
            length: self.sizes.receive_buffer / 2,
        }
    }

    /// Registers memory of the application. The socket drops the region before its endpoint.
    ///
    /// # Safety
    ///
    /// The application knows that the memory is read and written as the access says until the
    /// region is dropped. Memory that is not there is refused.
    pub(super) unsafe fn register(
        &self,
        start: *mut c_void,
        length: usize,
        access: u32,
    ) -> Result<Region, Errno> {
        // SAFETY: the socket destroys its endpoint before its identifier, and the id has this
        // domain since it has the queue pair. What is said of the memory, says the caller.
        unsafe { Region::new((*self.pair.0).pd, start, length, access) }
    }

    /// Returns the descriptor that is readable when a completion has come after [`arm`](Self::arm).
    pub(super) fn fd(&self) -> RawFd {
        self.queue.as_fd().as_raw_fd()
    }

    /// Removes and returns the entry of a buffer that the peer has written, if it is whole.
    pub(super) fn take_target(&self, index: usize) -> Option<Sge> {
        let at = (index * Sge::OCTETS) as u32;
        // The length comes last, and the peer may be writing it now, ahead of the message for it.
        let length = u32::from_ne_bytes(self.targets.read(at + 12));
        fence(Ordering::Acquire);
        let target = Sge::from_octets(&self.targets.read(at));
        if length == 0 || target.length == 0 {
            return None;
        }
        self.targets.write(at, &[0; Sge::OCTETS]);
        Some(target)
    }

    /// Returns the entry of a buffer that the peer has mapped.
    pub(super) fn iomap(&self, index: u16) -> Option<Iomap> {
        let at = TARGETS * Sge::OCTETS + usize::from(index) * Iomap::OCTETS;
        (index < self.sizes.iomaps).then(|| Iomap::from_octets(&self.targets.read(at as u32)))
    }

    /// Returns the message that a receive has brought.
    pub(super) fn message(&self, place: u32) -> Message {
        Message::from_bits(u32::from_ne_bytes(
            self.messages.read(place * MESSAGE_OCTETS as u32),
        ))
    }

    /// Polls completions, no more than there is room for, and returns how many.
    pub(super) fn poll(&self, completions: &mut [ibv_wc]) -> Result<usize, Errno> {
        let cq = self.queue.cq;
        // SAFETY: the queue exists until `drop`, its context has the operations of this library,
        // and the slice has room for so many.
        let polled = unsafe {
            let poll = (*(*cq).context).ops.poll_cq.ok_or(Errno::ENOSYS)?;
            poll(cq, completions.len() as i32, completions.as_mut_ptr())
        };
        usize::try_from(polled).map_err(|_| Errno::EIO)
    }

    /// Arms the queue: the next completion makes the descriptor readable.
    pub(super) fn arm(&self) -> Result<(), Errno> {
        let cq = self.queue.cq;
        // SAFETY: as in `poll`.
        returned(unsafe {
            let notify = (*(*cq).context).ops.req_notify_cq.ok_or(Errno::ENOSYS)?;
            notify(cq, 0)
        })
    }

    /// Removes and acknowledges the event that made the descriptor readable. Returns whether there
    /// was one.
    pub(super) fn take_event(&self) -> bool {
        let (mut cq, mut context) = (null_mut(), null_mut::<c_void>());
        // SAFETY: the channel exists until `drop`, and the event goes to variables here.
        let taken = check(unsafe { ibv_get_cq_event(self.queue.channel, &mut cq, &mut context) });
        if taken.is_ok() {
            // SAFETY: the event names the only queue of the channel, which waits with its end for
            // this.
            unsafe { ibv_ack_cq_events(cq, 1) };
        }
        taken.is_ok()
    }

    /// Posts receives for these places.
    pub(super) fn post_receives(&self, places: &[u32]) -> Result<(), Errno> {
        for &place in places {
            let mut piece = self
                .messages
                .piece(place * MESSAGE_OCTETS as u32, MESSAGE_OCTETS as u32);
            let mut request = ibv_recv_wr {
                wr_id: Work::Receive(place).to_id(),
                next: null_mut(),
                sg_list: &mut piece,
                num_sge: 1,
            };
            let mut bad = null_mut();
            let qp = self.qp();
            // SAFETY: the queue pair exists until `drop`, and its context has the operations of
            // this library. The request names a piece of a buffer that stays until the queue pair
            // is gone, and is copied.
            returned(unsafe {
                let post = (*(*qp).context).ops.post_recv.ok_or(Errno::ENOSYS)?;
                post(qp, &mut request, &mut bad)
            })?;
        }
        Ok(())
    }

    /// Posts a message without data.
    pub(super) fn post_message(&self, message: Message, work: Work) -> Result<(), Errno> {
        let octets = message.to_bits().to_ne_bytes();
        let mut piece = inline_piece(&octets);
        self.post(&mut send(&mut piece, work))
    }

    /// Posts a Write to a place in the peer's memory.
    pub(super) fn post_write(&self, octets: Octets<'_>, work: Work, to: Sge) -> Result<(), Errno> {
        let mut pieces = [ibv_sge::default(); 2];
        self.post(&mut write(&octets, &mut pieces, work, to))
    }

    /// Posts a Write, and behind it a message that tells the peer of it. `then` is what the message
    /// is for.
    pub(super) fn post_write_and_message(
        &self,
        octets: Octets<'_>,
        [work, then]: [Work; 2],
        to: Sge,
        message: Message,
    ) -> Result<(), Errno> {
        let message = message.to_bits().to_ne_bytes();
        let mut piece = inline_piece(&message);
        let mut send = send(&mut piece, then);
        let mut pieces = [ibv_sge::default(); 2];
        let mut write = write(&octets, &mut pieces, work, to);
        write.next = &mut send;
        self.post(&mut write)
    }

    /// Posts requests that [`send`] and [`write`] have made, whose octets are there: inline ones
    /// during the call, and others in a buffer until the requests are done.
    fn post(&self, request: &mut ibv_send_wr) -> Result<(), Errno> {
        let mut bad = null_mut();
        let qp = self.qp();
        // SAFETY: the queue pair exists until `drop`, and its context has the operations of this
        // library. The list ends with NULL, and its pieces lie on the caller's stack.
        returned(unsafe {
            let post = (*(*qp).context).ops.post_send.ok_or(Errno::ENOSYS)?;
            post(qp, request, &mut bad)
        })
    }

    fn qp(&self) -> *mut ibv_qp {
        // SAFETY: the socket destroys its endpoint before its identifier, and the id has this queue
        // pair until `Pair` is dropped.
        unsafe { (*self.pair.0).qp }
    }
}

impl Pair {
    /// Makes the queue pair, and says in `sizes` how much inline data it takes.
    fn new(
        id: *mut rdma_cm_id,
        queue: &Queue,
        sizes: &mut Sizes,
        receives: u16,
    ) -> Result<Self, Errno> {
        // Entries for the peer are always inline.
        let inline = usize::from(sizes.inline).clamp(Iomap::OCTETS, MAX_INLINE);
        let mut attributes = ibv_qp_init_attr::zeros();
        attributes.send_cq = queue.cq;
        attributes.recv_cq = queue.cq;
        attributes.qp_type = IBV_QPT_RC;
        attributes.sq_sig_all = 1;
        attributes.cap = ibv_qp_cap {
            max_send_wr: sizes.send_queue.into(),
            max_recv_wr: receives.into(),
            max_send_sge: 2,
            max_recv_sge: 1,
            max_inline_data: inline as u32,
        };
        // SAFETY: the id is that of the borrowed identifier of `Endpoint::new`, and the attributes
        // name a queue that exists.
        check(unsafe { rdma_create_qp(id, null_mut(), &mut attributes) })?;
        sizes.inline = attributes.cap.max_inline_data.min(MAX_INLINE as u32) as u16;
        Ok(Self(id))
    }
}

fn longest_queue(context: *mut ibv_context) -> Result<u16, Errno> {
    let mut attributes = ibv_device_attr::zeros();
    // SAFETY: the context is that of an id, which stays open.
    returned(unsafe { ibv_query_device(context, &mut attributes) })?;
    let longest = attributes
        .max_qp_wr
        .clamp(SHORTEST_QUEUE.into(), LONGEST_QUEUE.into());
    Ok(longest as u16)
}

fn inline_piece(octets: &[u8]) -> ibv_sge {
    ibv_sge {
        addr: octets.as_ptr() as u64,
        length: octets.len() as u32,
        lkey: 0,
    }
}

fn send(piece: &mut ibv_sge, work: Work) -> ibv_send_wr {
    let mut request = ibv_send_wr::zeros();
    request.wr_id = work.to_id();
    request.sg_list = piece;
    request.num_sge = 1;
    request.opcode = IBV_WR_SEND;
    request.send_flags = IBV_SEND_INLINE;
    request
}

fn write(octets: &Octets<'_>, pieces: &mut [ibv_sge; 2], work: Work, to: Sge) -> ibv_send_wr {
    let mut request = ibv_send_wr::zeros();
    request.wr_id = work.to_id();
    match octets {
        Octets::Inline(octets) => {
            pieces[0] = inline_piece(octets);
            request.num_sge = i32::from(!octets.is_empty());
            request.send_flags = IBV_SEND_INLINE;
        }
        Octets::Pieces(both) => {
            *pieces = *both;
            request.num_sge = 1 + i32::from(pieces[1].length > 0);
        }
    }
    request.sg_list = pieces.as_mut_ptr();
    request.opcode = IBV_WR_RDMA_WRITE;
    request.wr.rdma = ibv_send_wr_rdma {
        remote_addr: to.addr,
        rkey: to.key,
    };
    request
}

/// Returns what a verb failed with that returns its errno.
fn returned(errno: i32) -> Result<(), Errno> {
    if errno == 0 {
        Ok(())
    } else {
        Err(Errno::from_raw(errno))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_say_what_was_done() {
        for work in [
            Work::Receive(7),
            Work::Data(0),
            Work::Data(u32::MAX),
            Work::Control,
            Work::Disconnect,
        ] {
            let completion = ibv_wc {
                wr_id: work.to_id(),
                ..ibv_wc::default()
            };
            assert_eq!(Work::of(&completion), work);
        }
    }
}
