//! Posting: work requests of the program as requests of rnic-verbs.
#![allow(unsafe_code, unsafe_op_in_unsafe_fn, reason = "C ABI: entry points")]

use std::mem::MaybeUninit;
use std::slice;
use std::sync::atomic::Ordering;

use rnic_verbs::{MAX_INLINE, MAX_SGE, PostError, RemoteAddress, SendRequest, Sge, Stag};

use crate::abi::*;
use crate::ah::destination;
use crate::cancellation::PutOff;
use crate::datagrams::{DatagramQp, Payload, ToSend};
use crate::errno::{Errno, ToErrno, lock};
use crate::mw::binding;
use crate::objects::{Mw, Qp, Srq};

// An ibv_sge is an Sge.
const _: () = assert!(size_of::<Sge>() == size_of::<ibv_sge>());
const _: () = assert!(align_of::<Sge>() == align_of::<ibv_sge>());

/// Room for what a request is made of while it is posted.
pub(crate) struct Scratch {
    /// Its connection has Sends with Immediate.
    has_send_immediate: bool,
    inline: [MaybeUninit<u8>; MAX_INLINE],
    binding: Option<rnic_verbs::Binding>,
}

impl Scratch {
    pub(crate) fn new(qp: &Qp) -> Self {
        Self {
            has_send_immediate: qp.connects_itself.load(Ordering::Relaxed),
            inline: [MaybeUninit::uninit(); MAX_INLINE],
            binding: None,
        }
    }
}

/// Returns the pieces of memory that a request names.
///
/// # Safety
/// The list is NULL, or has so many pieces. It stays as it is while they are used.
pub(crate) unsafe fn pieces<'a>(list: *mut ibv_sge, count: i32) -> Result<&'a [Sge], Errno> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        Ok(count) if count <= MAX_SGE && !list.is_null() => {
            Ok(slice::from_raw_parts(list.cast(), count))
        }
        _ => Err(Errno::EINVAL),
    }
}

/// Copies the octets that a request sends inline.
///
/// # Safety
/// The program may read the octets of each piece.
unsafe fn gather<'a>(
    list: &[ibv_sge],
    room: &'a mut [MaybeUninit<u8>; MAX_INLINE],
) -> Result<&'a [u8], Errno> {
    let mut filled = 0;
    for piece in list {
        let length = piece.length as usize;
        if length > MAX_INLINE - filled {
            return Err(Errno::EINVAL);
        }
        let from = std::ptr::with_exposed_provenance::<u8>(piece.addr as usize);
        let to = room.as_mut_ptr().add(filled).cast::<u8>();
        // A peer may write there at the same time: a copy, and no reference.
        std::ptr::copy_nonoverlapping(from, to, length);
        filled += length;
    }
    Ok(slice::from_raw_parts(room.as_ptr().cast(), filled))
}

/// Makes a request of one of the program. `scratch` holds parts of it.
///
/// # Safety
/// What the request names is what `ibv_post_send` asks for.
pub(crate) unsafe fn request<'a>(
    wr: &ibv_send_wr,
    scratch: &'a mut Scratch,
) -> Result<SendRequest<'a>, Errno> {
    let peer = |rdma: ibv_send_wr_rdma| RemoteAddress {
        stag: Stag(rdma.rkey),
        offset: rdma.remote_addr,
    };
    let Scratch {
        has_send_immediate,
        inline,
        binding: bound,
    } = scratch;
    let flagged = |request| Ok(flagged(request, wr.wr_id, wr.send_flags));
    // These send nothing, and their lists may be anything.
    match wr.opcode {
        IBV_WR_LOCAL_INV => return flagged(SendRequest::invalidate(Stag(wr.imm_data))),
        IBV_WR_BIND_MW => {
            let bind = wr.bind_mw;
            if bind.mw.is_null() {
                return Err(Errno::EINVAL);
            }
            let window = Mw::of(bind.mw);
            let new = binding(window, Some(bind.rkey), &bind.bind_info)?;
            return flagged(SendRequest::bind(bound.insert(new)));
        }
        _ => {}
    }
    let memory = pieces(wr.sg_list, wr.num_sge)?;
    let request = match wr.opcode {
        IBV_WR_RDMA_WRITE => SendRequest::write(peer(wr.wr.rdma)),
        IBV_WR_SEND => SendRequest::send(),
        IBV_WR_RDMA_READ => SendRequest::read(peer(wr.wr.rdma)),
        IBV_WR_SEND_WITH_INV => SendRequest::send_invalidate(Stag(wr.imm_data)),
        IBV_WR_RDMA_WRITE_WITH_IMM => {
            let mut length = 0u32;
            for piece in memory {
                length = length.checked_add(piece.length()).ok_or(Errno::EINVAL)?;
            }
            write_with_immediate(peer(wr.wr.rdma), wr.imm_data, length)
        }
        IBV_WR_ATOMIC_CMP_AND_SWP => {
            let atomic = wr.wr.atomic;
            SendRequest::cmp_swap(address(atomic), atomic.compare_add, atomic.swap)
        }
        IBV_WR_ATOMIC_FETCH_AND_ADD => {
            let atomic = wr.wr.atomic;
            SendRequest::fetch_add(address(atomic), atomic.compare_add)
        }
        IBV_WR_SEND_WITH_IMM if *has_send_immediate => {
            SendRequest::send_with_immediate(wr.imm_data.to_ne_bytes())
        }
        // RFC 7306 has Immediate Data alone or behind a Write.
        IBV_WR_SEND_WITH_IMM | IBV_WR_TSO | IBV_WR_FLUSH | IBV_WR_ATOMIC_WRITE => {
            return Err(Errno::EOPNOTSUPP);
        }
        _ => return Err(Errno::EINVAL),
    };
    if wr.send_flags & IBV_SEND_INLINE == 0 {
        return flagged(request.memory(memory));
    }
    let list = slice::from_raw_parts(memory.as_ptr().cast::<ibv_sge>(), memory.len());
    flagged(request.inline(gather(list, inline)?))
}

fn address(atomic: ibv_send_wr_atomic) -> RemoteAddress {
    RemoteAddress {
        stag: Stag(atomic.rkey),
        offset: atomic.remote_addr,
    }
}

/// Makes a Write with Immediate Data. Verbs have 4 octets of them, and RFC 7306 has 8: the last 4
/// are the length of the Write, which earlier versions of rnic report.
fn write_with_immediate<'a>(peer: RemoteAddress, immediate: u32, length: u32) -> SendRequest<'a> {
    let mut octets = [0; 8];
    octets[..4].copy_from_slice(&immediate.to_ne_bytes());
    octets[4..].copy_from_slice(&length.to_be_bytes());
    SendRequest::write_with_immediate(peer, octets)
}

fn flagged(request: SendRequest<'_>, wr_id: u64, flags: u32) -> SendRequest<'_> {
    let request = request
        .wr_id(wr_id)
        .signaled(flags & IBV_SEND_SIGNALED != 0);
    let request = match flags & IBV_SEND_SOLICITED {
        0 => request,
        _ => request.solicited(),
    };
    match flags & IBV_SEND_FENCE {
        0 => request,
        _ => request.fenced(),
    }
}

/// A list of requests, each made when it is asked for. A request points into the scratch, which the
/// next request overwrites. So a caller must drop a request before it asks for the next. The only
/// caller is `post_sends`, which does.
struct Requests {
    next: *mut ibv_send_wr,
    scratch: *mut Scratch,
    /// The request that could not be made.
    wrong: Option<Errno>,
}

impl Iterator for Requests {
    type Item = SendRequest<'static>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next.is_null() {
            return None;
        }
        // SAFETY: `post_list` has a list of the program, in which each `next` is a request or NULL.
        // It owns the scratch, which nothing borrows any more: the request before this is gone.
        match unsafe { request(&*self.next, &mut *self.scratch) } {
            Ok(request) => {
                // SAFETY: it was read a moment ago.
                self.next = unsafe { (*self.next).next };
                Some(request)
            }
            Err(errno) => {
                self.wrong = Some(errno);
                None
            }
        }
    }
}

/// Posts a list of requests. Returns which one failed, and why; those before it are posted.
///
/// # Safety
/// The list is one that `ibv_post_send` takes, or NULL.
pub(crate) unsafe fn post_list(
    object: &Qp,
    wr: *mut ibv_send_wr,
) -> Result<(), (*mut ibv_send_wr, Errno)> {
    if let Some(datagrams) = &object.datagrams {
        return post_datagrams(datagrams, object.signal_all, wr);
    }
    let mut scratch = Scratch::new(object);
    let mut requests = Requests {
        next: wr,
        scratch: &mut scratch,
        wrong: None,
    };
    let refused = object.lock().post_sends(&mut requests).err();
    match (refused, requests.wrong) {
        (None, None) => Ok(()),
        (Some(refused), _) => Err((nth(wr, refused.posted), refused.error.errno())),
        (None, Some(errno)) => Err((requests.next, errno)),
    }
}

/// Posts a list of requests to a datagram queue pair. Returns which one failed, and why; those
/// before it are posted.
///
/// # Safety
/// The list is one that `ibv_post_send` takes, or NULL.
unsafe fn post_datagrams(
    qp: &DatagramQp,
    signal_all: bool,
    mut wr: *mut ibv_send_wr,
) -> Result<(), (*mut ibv_send_wr, Errno)> {
    let mut posting = qp.begin();
    let mut room = [MaybeUninit::uninit(); MAX_INLINE];
    while !wr.is_null() {
        let sent = datagram(&*wr, signal_all, &mut room).and_then(|new| posting.send(&new));
        sent.map_err(|errno| (wr, errno))?;
        wr = (*wr).next;
    }
    Ok(())
}

/// Posts all requests of a list to a datagram queue pair, or none.
///
/// # Safety
/// As of [`post_datagrams`].
unsafe fn post_whole_datagrams(
    qp: &DatagramQp,
    signal_all: bool,
    first: *mut ibv_send_wr,
) -> Result<(), Errno> {
    let mut posting = qp.begin();
    let mut room = [MaybeUninit::uninit(); MAX_INLINE];
    let (mut count, mut wr) = (0, first);
    while !wr.is_null() {
        posting.check_length(&datagram(&*wr, signal_all, &mut room)?.payload)?;
        count += 1;
        wr = (*wr).next;
    }
    posting.check(count)?;
    wr = first;
    while !wr.is_null() {
        posting.send(&datagram(&*wr, signal_all, &mut room)?)?;
        wr = (*wr).next;
    }
    Ok(())
}

/// Makes a datagram of a request. `room` holds what is sent inline.
///
/// # Safety
/// What the request names is what `ibv_post_send` asks for.
unsafe fn datagram<'a>(
    wr: &ibv_send_wr,
    signal_all: bool,
    room: &'a mut [MaybeUninit<u8>; MAX_INLINE],
) -> Result<ToSend<'a>, Errno> {
    let immediate = match wr.opcode {
        IBV_WR_SEND => None,
        IBV_WR_SEND_WITH_IMM => Some(wr.imm_data.to_ne_bytes()),
        _ => return Err(Errno::EINVAL),
    };
    let memory = pieces(wr.sg_list, wr.num_sge)?;
    let payload = match wr.send_flags & IBV_SEND_INLINE {
        0 => Payload::Memory(memory),
        _ => {
            let list = slice::from_raw_parts(memory.as_ptr().cast(), memory.len());
            Payload::Inline(gather(list, room)?)
        }
    };
    let to = wr.wr.ud;
    Ok(ToSend {
        wr_id: wr.wr_id,
        signaled: signal_all || wr.send_flags & IBV_SEND_SIGNALED != 0,
        solicited: wr.send_flags & IBV_SEND_SOLICITED != 0,
        immediate,
        qkey: to.remote_qkey,
        to: destination(to.ah, to.remote_qpn)?,
        payload,
    })
}

/// Why a request was not posted.
enum Unposted {
    /// It is none that rnic-verbs has.
    Unknown(Errno),
    Refused(PostError),
}

impl From<PostError> for Unposted {
    fn from(why: PostError) -> Self {
        Self::Refused(why)
    }
}

/// Posts all requests of a list, or none.
///
/// # Safety
/// As of [`post_list`].
pub(crate) unsafe fn post_whole(object: &Qp, wr: *mut ibv_send_wr) -> Result<(), Errno> {
    if let Some(datagrams) = &object.datagrams {
        return post_whole_datagrams(datagrams, object.signal_all, wr);
    }
    let mut scratch = Scratch::new(object);
    let scratch = &raw mut scratch;
    let all = || {
        let mut next = wr;
        std::iter::from_fn(move || {
            // SAFETY: each `next` of the list is a request or NULL. Nothing borrows the scratch:
            // the request before this is gone.
            let wr = unsafe { next.as_ref() }?;
            next = wr.next;
            // SAFETY: as above.
            let made = unsafe { request(wr, &mut *scratch) };
            Some(made.map_err(Unposted::Unknown))
        })
    };
    object.lock().post_whole(all).map_err(|why| match why {
        Unposted::Unknown(errno) => errno,
        Unposted::Refused(why) => why.errno(),
    })
}

/// `ibv_post_send`.
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> i32 {
    let _whole = PutOff::new();
    let posted = match Qp::here(qp) {
        Ok(object) => post_list(object, wr),
        Err(errno) => Err((wr, errno)),
    };
    match posted {
        Ok(()) => 0,
        Err((bad, errno)) => {
            *bad_wr = bad;
            errno as i32
        }
    }
}

/// Returns a request of a list.
///
/// # Safety
/// The list is as long as that.
unsafe fn nth(mut wr: *mut ibv_send_wr, n: usize) -> *mut ibv_send_wr {
    for _ in 0..n {
        wr = (*wr).next;
    }
    wr
}

/// Posts a list of receives.
///
/// # Safety
/// The list is one that `ibv_post_recv` takes, or NULL.
unsafe fn post_receives(
    mut wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
    mut post: impl FnMut(u64, &[Sge]) -> Result<(), Errno>,
) -> i32 {
    while !wr.is_null() {
        let posted =
            pieces((*wr).sg_list, (*wr).num_sge).and_then(|memory| post((*wr).wr_id, memory));
        if let Err(errno) = posted {
            *bad_wr = wr;
            return errno as i32;
        }
        wr = (*wr).next;
    }
    0
}

/// Reports that the first of a list could not be posted.
///
/// # Safety
/// The program has room there for a pointer.
unsafe fn none_posted(wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr, errno: Errno) -> i32 {
    *bad_wr = wr;
    errno as i32
}

/// `ibv_post_recv`.
pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> i32 {
    let _whole = PutOff::new();
    let object = match Qp::here(qp) {
        Ok(object) => object,
        Err(errno) => return none_posted(wr, bad_wr, errno),
    };
    if let Some(datagrams) = &object.datagrams {
        return post_receives(wr, bad_wr, |wr_id, memory| {
            datagrams.post_recv(wr_id, memory)
        });
    }
    // Acquire: the mirror is made before the queue pair is said to have one.
    if object.is_own_peer.load(Ordering::Acquire) {
        return post_recv_to_mirror(object, wr, bad_wr);
    }
    post_recv_to(&mut object.lock(), wr, bad_wr)
}

/// # Safety
/// As of [`post_receives`].
unsafe fn post_recv_to(
    qp: &mut rnic_verbs::Qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> i32 {
    let post = |wr_id, memory: &[Sge]| qp.post_recv(wr_id, memory).map_err(|why| why.errno());
    post_receives(wr, bad_wr, post)
}

/// Posts receives of a queue pair that is its own peer.
///
/// # Safety
/// As of [`post_receives`].
#[cold]
unsafe fn post_recv_to_mirror(
    object: &Qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> i32 {
    let mut settings = lock(&object.settings);
    let meeting = settings.meeting.as_mut();
    match meeting.and_then(|meeting| meeting.mirror.as_mut()) {
        Some(mirror) => post_recv_to(mirror, wr, bad_wr),
        // It was reset a moment ago.
        None => post_recv_to(&mut object.lock(), wr, bad_wr),
    }
}

/// `ibv_post_srq_recv`.
pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> i32 {
    let _whole = PutOff::new();
    let object = match Srq::here(srq) {
        Ok(object) => object,
        Err(errno) => return none_posted(wr, bad_wr, errno),
    };
    if !object.receives.is_of_engine() {
        return post_receives(wr, bad_wr, |wr_id, memory| {
            match object.receives.post(wr_id, memory)? {
                true => Ok(()),
                false => post_srq_recv_to(&mut object.lock(), wr_id, memory),
            }
        });
    }
    let mut inner = object.lock();
    post_receives(wr, bad_wr, |wr_id, memory| {
        post_srq_recv_to(&mut inner, wr_id, memory)
    })
}

fn post_srq_recv_to(srq: &mut rnic_verbs::Srq, wr_id: u64, memory: &[Sge]) -> Result<(), Errno> {
    srq.post_recv(wr_id, memory).map_err(|why| why.errno())
}
