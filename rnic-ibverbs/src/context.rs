//! Contexts: what a program opens of a device.
#![allow(unsafe_code, reason = "the program's objects")]

use std::cell::UnsafeCell;
use std::mem::offset_of;
use std::sync::Mutex;

use nix::libc;

use crate::abi::*;
use crate::adapter::Adapter;
use crate::errno::{Errno, lock};
use crate::event_queue::EventQueue;

/// A context. The program has a pointer into the middle of it.
#[repr(C)]
pub(crate) struct Context {
    abi: UnsafeCell<verbs_context>,
    pub(crate) adapter: &'static Adapter,
    /// The asynchronous events that the program has not read.
    pub(crate) asynchronous: EventQueue<AsyncEvent>,
}

/// An asynchronous event as the program gets it.
#[derive(Clone, Copy)]
pub(crate) struct AsyncEvent(pub(crate) ibv_async_event);

// SAFETY: the pointer in it is compared, given back to the program, or names an object that threads
// share.
unsafe impl Send for AsyncEvent {}

// SAFETY: the pointers among the operations are to functions, and to a device that lives as long as
// the process.
unsafe impl Send for Context {}
// SAFETY: the library writes to `abi` only before anybody has the context; then it is the
// program's. The events have a lock.
unsafe impl Sync for Context {}

/// The contexts that are open.
static OPEN: Mutex<Vec<Open>> = Mutex::new(Vec::new());

/// The context that rdma_cm gives out for each adapter.
static SHARED: Mutex<Vec<Open>> = Mutex::new(Vec::new());

#[derive(Clone, Copy, PartialEq)]
struct Open(*mut ibv_context);

// SAFETY: it names a Context, which is Sync.
unsafe impl Send for Open {}

impl Context {
    /// Returns the context that the program has a pointer to.
    ///
    /// # Safety
    /// The pointer is that of an open context.
    pub(crate) unsafe fn of<'a>(pointer: *mut ibv_context) -> &'a Self {
        // SAFETY: the context is open, says the caller. The pointer is to the member `context` of
        // the `verbs_context` with which a Context begins.
        unsafe {
            &*pointer
                .byte_sub(offset_of!(verbs_context, context))
                .cast::<Self>()
        }
    }

    /// Makes a context with these operations, which name neither the device nor the descriptor of
    /// events.
    pub(crate) fn open(
        adapter: &'static Adapter,
        device: *mut ibv_device,
        mut operations: verbs_context,
    ) -> Result<*mut ibv_context, Errno> {
        let asynchronous = EventQueue::new()?;
        operations.sz = size_of::<verbs_context>();
        operations.context.device = device;
        operations.context.cmd_fd = -1;
        operations.context.async_fd = asynchronous.fd();
        operations.context.num_comp_vectors = 1;
        operations.context.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        operations.context.abi_compat = VERBS_ABI_IS_EXTENDED;
        let context = Box::into_raw(Box::new(Self {
            abi: UnsafeCell::new(operations),
            adapter,
            asynchronous,
        }));
        // A Context begins with it.
        let abi = context.cast::<verbs_context>();
        // SAFETY: the structure was made above. The pointer to its member is derived from that to
        // all of it, which `of` needs.
        let pointer = unsafe { &raw mut (*abi).context };
        lock(&OPEN).push(Open(pointer));
        Ok(pointer)
    }

    /// Closes a context. The one that rdma_cm gives out stays open for rdma_cm. Fails if it is not
    /// open.
    ///
    /// # Safety
    /// Nobody uses it any more.
    pub(crate) unsafe fn close(pointer: *mut ibv_context) -> Result<(), Errno> {
        // SAFETY: the context is open, says the caller.
        if unsafe { Self::of(pointer) }
            .asynchronous
            .process
            .is_forked()
        {
            return Ok(());
        }
        if lock(&SHARED).contains(&Open(pointer)) {
            return Ok(());
        }
        let mut open = lock(&OPEN);
        let place = open.iter().position(|known| known.0 == pointer);
        open.swap_remove(place.ok_or(Errno::EINVAL)?);
        // SAFETY: `open` made it of a Box of this type, and it was in the list until now, so it is
        // closed here for the only time.
        drop(unsafe {
            Box::from_raw(
                pointer
                    .byte_sub(offset_of!(verbs_context, context))
                    .cast::<Self>(),
            )
        });
        Ok(())
    }
}

/// Returns the locks of both lists, which a child makes new.
pub(crate) fn renewed() -> [&'static Mutex<impl Default>; 2] {
    [&OPEN, &SHARED]
}

/// Calls `what` with a context if it is open. It is not closed meanwhile.
pub(crate) fn with_open(pointer: *mut ibv_context, what: impl FnOnce(&Context)) {
    let open = lock(&OPEN);
    if open.contains(&Open(pointer)) {
        // SAFETY: the list has open contexts. Who closes one removes it first, for which the list
        // must be unlocked.
        what(unsafe { Context::of(pointer) });
    }
}

/// Calls `each` for every open context of an adapter. None of them is closed meanwhile.
pub(crate) fn for_each(adapter: &Adapter, mut each: impl FnMut(&Context)) {
    for open in &*lock(&OPEN) {
        // SAFETY: the list has open contexts. Who closes one removes it first, for which the list
        // must be unlocked.
        let context = unsafe { Context::of(open.0) };
        if context.adapter.index == adapter.index {
            each(context);
        }
    }
}

/// Returns the context that rdma_cm gives out for an adapter, which `open` opens at first. It stays
/// open.
pub(crate) fn shared(
    adapter: &'static Adapter,
    open: impl FnOnce() -> *mut ibv_context,
) -> *mut ibv_context {
    let mut shared = lock(&SHARED);
    for known in &*shared {
        // SAFETY: `close` refuses the contexts of this list.
        if unsafe { Context::of(known.0) }.adapter.index == adapter.index {
            return known.0;
        }
    }
    let opened = open();
    if !opened.is_null() {
        shared.push(Open(opened));
    }
    opened
}
