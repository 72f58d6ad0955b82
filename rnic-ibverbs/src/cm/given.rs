//! Events in the program's hands.
#![allow(unsafe_code, reason = "the program's events")]

use std::ffi::c_void;
use std::sync::Arc;

use crate::abi::*;
use crate::cm::event::EventData;
use crate::cm::id::Id;

/// The longest private data that an event can tell the length of.
const MAX_PRIVATE_DATA: usize = u8::MAX as usize;

/// An event in the program's hands.
#[repr(C)]
pub(super) struct Given {
    public: rdma_cm_event,
    /// Whom its acknowledgement is for.
    counted: Arc<Id>,
    private_data: [u8; MAX_PRIVATE_DATA + 1],
}

impl Given {
    /// Makes the event for the program.
    pub(super) fn give(
        what: &EventData,
        id: *mut rdma_cm_id,
        listen_id: *mut rdma_cm_id,
        counted: Arc<Id>,
    ) -> *mut rdma_cm_event {
        let len = what.private_data.len().min(MAX_PRIVATE_DATA);
        let mut private_data = [0; MAX_PRIVATE_DATA + 1];
        private_data[..len].copy_from_slice(&what.private_data[..len]);
        // A raw pointer from the beginning: the event has one to its own private data, which a Box
        // that moves would end.
        let made = Box::into_raw(Box::new(Self {
            public: rdma_cm_event::zeros(),
            counted,
            private_data,
        }));
        let private_data: *const c_void = if len == 0 {
            std::ptr::null()
        } else {
            // SAFETY: it was made above, and stays until the program acknowledges it.
            unsafe { (&raw const (*made).private_data).cast() }
        };
        // SAFETY: nobody else has it yet.
        let public = unsafe { &mut (*made).public };
        let octet = |depth: u16| depth.min(u8::MAX.into()) as u8;
        public.id = id;
        public.listen_id = listen_id;
        public.event = what.event;
        public.status = what.status;
        match (what.arg, what.peer) {
            (Some(arg), _) => public.param.arg = arg,
            (None, Some(peer)) => {
                public.param.ud = rdma_ud_param {
                    private_data,
                    private_data_len: len as u8,
                    ah_attr: peer.ah_attr,
                    qp_num: peer.qp_num,
                    qkey: peer.qkey,
                }
            }
            (None, None) => {
                public.param.conn = rdma_conn_param {
                    private_data,
                    private_data_len: len as u8,
                    responder_resources: octet(what.responder_resources),
                    initiator_depth: octet(what.initiator_depth),
                    flow_control: 0,
                    retry_count: 0,
                    rnr_retry_count: 0,
                    srq: 0,
                    qp_num: 0,
                }
            }
        }
        made.cast()
    }

    /// Takes the event back from the program, and frees it. Returns the id that it was counted for.
    ///
    /// # Safety
    /// The event came from [`give`](Self::give), and nobody uses it any more.
    pub(super) unsafe fn take_back(event: *mut rdma_cm_event) -> Arc<Id> {
        // SAFETY: `give` made it of a Box of this type, and the caller has the last use of it.
        unsafe { Box::from_raw(event.cast::<Self>()) }.counted
    }
}
