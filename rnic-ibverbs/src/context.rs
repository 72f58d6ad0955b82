//! Contexts: what a program opens of a device.

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

// SAFETY: the pointer in it is only given back to the program.
unsafe impl Send for AsyncEvent {}

// SAFETY: what the program writes lies in the UnsafeCell, and the rest does not change.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// The contexts that are open.
static OPEN: Mutex<Vec<Open>> = Mutex::new(Vec::new());

/// The context that rdma_cm gives out for each adapter.
static SHARED: Mutex<Vec<Open>> = Mutex::new(Vec::new());

#[derive(Clone, Copy, PartialEq)]
struct Open(*mut ibv_context);

// SAFETY: a Context is shared between threads.
unsafe impl Send for Open {}

impl Context {
    /// Returns the context that the program has a pointer to.
    ///
    /// # Safety
    /// The pointer is that of an open context.
    pub(crate) unsafe fn of<'a>(pointer: *mut ibv_context) -> &'a Self {
        // SAFETY: the pointer is to the member `context` of a `verbs_context`, with which a Context begins.
        unsafe {
            &*pointer
                .byte_sub(offset_of!(verbs_context, context))
                .cast::<Self>()
        }
    }

    fn pointer(&self) -> *mut ibv_context {
        // SAFETY: stays inside the structure.
        unsafe { &raw mut (*self.abi.get()).context }
    }

    /// Makes a context with these operations, which name neither the device nor the descriptor of events.
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
        let context = Box::leak(Box::new(Self {
            abi: UnsafeCell::new(operations),
            adapter,
            asynchronous,
        }));
        let pointer = context.pointer();
        lock(&OPEN).push(Open(pointer));
        Ok(pointer)
    }

    /// Closes a context. Fails if it is the one that rdma_cm gives out, or not open.
    ///
    /// # Safety
    /// Nobody uses it any more.
    pub(crate) unsafe fn close(pointer: *mut ibv_context) -> Result<(), Errno> {
        if lock(&SHARED).contains(&Open(pointer)) {
            return Err(Errno::EBUSY);
        }
        let mut open = lock(&OPEN);
        let place = open.iter().position(|known| known.0 == pointer);
        open.swap_remove(place.ok_or(Errno::EINVAL)?);
        // SAFETY: `open` made it so, and it is not in the list any more.
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

/// Calls `each` for every open context of an adapter. None of them is closed meanwhile.
pub(crate) fn for_each(adapter: &Adapter, mut each: impl FnMut(&Context)) {
    for open in &*lock(&OPEN) {
        // SAFETY: the list has open contexts, and is locked.
        let context = unsafe { Context::of(open.0) };
        if context.adapter.index == adapter.index {
            each(context);
        }
    }
}

/// Returns the context that rdma_cm gives out for an adapter, which `open` opens at first. It stays open.
pub(crate) fn shared(
    adapter: &'static Adapter,
    open: impl FnOnce() -> *mut ibv_context,
) -> *mut ibv_context {
    let mut shared = lock(&SHARED);
    for known in &*shared {
        // SAFETY: these contexts stay open.
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
