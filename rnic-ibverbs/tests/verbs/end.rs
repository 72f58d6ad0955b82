//! One end of a connection: its objects, and what it posts.

use std::ffi::c_void;
use std::ptr::null_mut;

use nix::libc;

use crate::calls::*;

/// The port of the server.
const PORT: u16 = 7472;

/// Octets of each receive.
pub(crate) const MESSAGE: usize = 256;
/// Receives that are posted at first.
const RECEIVES: usize = 32;

/// Every right.
pub(crate) const ALL: u32 = IBV_ACCESS_LOCAL_WRITE
    | IBV_ACCESS_REMOTE_WRITE
    | IBV_ACCESS_REMOTE_READ
    | IBV_ACCESS_REMOTE_ATOMIC
    | IBV_ACCESS_MW_BIND;

/// What queue pairs of the tests are made of.
pub(crate) fn qp_attributes(cq: *mut ibv_cq) -> ibv_qp_init_attr {
    ibv_qp_init_attr {
        qp_context: null_mut(),
        send_cq: cq,
        recv_cq: cq,
        srq: null_mut(),
        cap: ibv_qp_cap {
            max_send_wr: 64,
            max_recv_wr: 64,
            max_send_sge: 4,
            max_recv_sge: 1,
            max_inline_data: 256,
        },
        qp_type: IBV_QPT_RC,
        sq_sig_all: 0,
    }
}

/// Memory of the program, and its registration.
pub(crate) struct Memory {
    octets: Box<[u64]>,
    pub(crate) mr: *mut ibv_mr,
}

impl Memory {
    pub(crate) unsafe fn new(pd: *mut ibv_pd, length: usize, access: u32) -> Self {
        let mut octets = vec![0u64; length / 8].into_boxed_slice();
        let mr = made(ibv_reg_mr(
            pd,
            octets.as_mut_ptr().cast(),
            length,
            access as i32,
        ));
        assert_eq!(
            ((*mr).length, (*mr).addr),
            (length, octets.as_mut_ptr().cast())
        );
        Self { octets, mr }
    }

    pub(crate) fn address(&self, offset: usize) -> u64 {
        self.octets.as_ptr() as u64 + offset as u64
    }

    pub(crate) fn sge(&self, offset: usize, length: usize) -> ibv_sge {
        ibv_sge {
            addr: self.address(offset),
            length: length as u32,
            // SAFETY: the region is there until this is dropped.
            lkey: unsafe { (*self.mr).lkey },
        }
    }

    pub(crate) fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        assert!(offset + length <= size_of_val(&*self.octets));
        let from = (self.address(offset)) as *const u8;
        // SAFETY: it lies in the octets. The peer may write there, so they are not read by a
        // reference.
        (0..length)
            .map(|at| unsafe { from.add(at).read_volatile() })
            .collect()
    }

    pub(crate) fn write(&mut self, offset: usize, octets: &[u8]) {
        assert!(offset + octets.len() <= size_of_val(&*self.octets));
        let to = self.octets.as_mut_ptr().cast::<u8>();
        // SAFETY: it lies in the octets.
        unsafe { std::ptr::copy_nonoverlapping(octets.as_ptr(), to.add(offset), octets.len()) };
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the region was registered by `new`, and is used no more.
        unsafe { ok(ibv_dereg_mr(self.mr)) };
    }
}

/// A connected queue pair.
pub(crate) struct End {
    pub(crate) id: *mut rdma_cm_id,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) memory: Memory,
    buffers: Memory,
}

fn address(host: &str) -> libc::sockaddr_in {
    let ip: std::net::Ipv4Addr = host.parse().unwrap();
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: PORT.to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from(ip).to_be(),
        },
        sin_zero: [0; 8],
    }
}

/// Makes an identifier that has the device for a server.
pub(crate) unsafe fn resolve(host: &str) -> *mut rdma_cm_id {
    let mut id = null_mut();
    ok(rdma_create_id(null_mut(), &mut id, null_mut(), RDMA_PS_TCP));
    let to = address(host);
    let to: *const c_void = (&raw const to).cast();
    ok(rdma_resolve_addr(id, std::ptr::null(), to, 2000));
    ok(rdma_resolve_route(id, 2000));
    id
}

pub(crate) fn parameters() -> rdma_conn_param {
    rdma_conn_param {
        responder_resources: 16,
        initiator_depth: 16,
        // SAFETY: 0 is a value of each member.
        ..unsafe { std::mem::zeroed() }
    }
}

impl End {
    /// Makes the objects for an identifier that has its device.
    unsafe fn new(id: *mut rdma_cm_id, send_ops: u64) -> Self {
        let context = (*id).verbs;
        let pd = made(ibv_alloc_pd(context));
        let channel = made(ibv_create_comp_channel(context));
        let (send_cq, recv_cq) = match send_ops {
            0 => {
                let cq = |mark: usize| {
                    let mark = std::ptr::without_provenance_mut(mark);
                    made(ibv_create_cq(context, 128, mark, channel, 0))
                };
                (cq(1), cq(2))
            }
            _ => {
                let mut attr: ibv_cq_init_attr_ex = std::mem::zeroed();
                attr.cqe = 256;
                attr.wc_flags =
                    IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM;
                let create = operations(context).create_cq_ex.unwrap();
                let cq = made(create(context, &mut attr)).cast();
                (cq, cq)
            }
        };
        let plain = qp_attributes(send_cq);
        let mut attr: ibv_qp_init_attr_ex = std::mem::zeroed();
        attr.send_cq = send_cq;
        attr.recv_cq = recv_cq;
        attr.cap = plain.cap;
        attr.qp_type = IBV_QPT_RC;
        attr.comp_mask = IBV_QP_INIT_ATTR_PD;
        attr.pd = pd;
        if send_ops != 0 {
            attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
            attr.send_ops_flags = send_ops;
        }
        ok(rdma_create_qp_ex(id, &mut attr));
        assert!(attr.cap.max_send_wr >= 64 && attr.cap.max_inline_data >= 256);
        let end = Self {
            id,
            pd,
            send_cq,
            recv_cq,
            channel,
            memory: Memory::new(pd, 1 << 16, ALL),
            buffers: Memory::new(pd, RECEIVES * MESSAGE, IBV_ACCESS_LOCAL_WRITE),
        };
        for place in 0..RECEIVES {
            end.receive(place);
        }
        end
    }

    pub(crate) unsafe fn connect(host: &str, send_ops: u64) -> Self {
        let id = resolve(host);
        let end = Self::new(id, send_ops);
        ok(rdma_connect(id, &mut parameters()));
        end
    }

    pub(crate) unsafe fn serve(host: &str, listening: impl FnOnce()) -> Self {
        let mut listener = null_mut();
        ok(rdma_create_id(
            null_mut(),
            &mut listener,
            null_mut(),
            RDMA_PS_TCP,
        ));
        let here = address(host);
        ok(rdma_bind_addr(listener, (&raw const here).cast()));
        ok(rdma_listen(listener, 1));
        listening();
        let mut id = null_mut();
        ok(rdma_get_request(listener, &mut id));
        let end = Self::new(id, 0);
        ok(rdma_accept(id, &mut parameters()));
        ok(rdma_destroy_id(listener));
        end
    }

    pub(crate) unsafe fn qp(&self) -> *mut ibv_qp {
        (*self.id).qp
    }

    /// Posts the receive of this number.
    pub(crate) unsafe fn receive(&self, place: usize) {
        let mut sge = self.buffers.sge(place * MESSAGE, MESSAGE);
        let mut wr = ibv_recv_wr {
            wr_id: place as u64,
            next: null_mut(),
            sg_list: &mut sge,
            num_sge: 1,
        };
        ok(post_recv(self.qp(), &mut wr));
    }

    /// Returns whether these octets stand in the memory of a receive.
    pub(crate) unsafe fn has_received(&self, octets: &[u8]) -> bool {
        let memory = self.buffers.read(0, RECEIVES * MESSAGE);
        memory.windows(octets.len()).any(|place| place == octets)
    }

    /// Waits for a message, and returns its completion and its octets. Posts its receive again.
    pub(crate) unsafe fn message(&self) -> (ibv_wc, Vec<u8>) {
        let wc = completion(self.recv_cq);
        if wc.status != IBV_WC_SUCCESS {
            return (wc, Vec::new());
        }
        let length = match wc.opcode {
            IBV_WC_RECV => wc.byte_len as usize,
            _ => 0,
        };
        let place = wc.wr_id as usize;
        let octets = self.buffers.read(place * MESSAGE, length);
        self.receive(place);
        (wc, octets)
    }

    /// Sends octets inline, unsignalled.
    pub(crate) unsafe fn say(&self, octets: &[u8]) {
        say(self.qp(), octets);
    }

    /// Posts a request with these pieces, signalled, and returns its completion.
    pub(crate) unsafe fn carry_out(
        &self,
        opcode: u32,
        pieces: &mut [ibv_sge],
        fill: impl FnOnce(&mut ibv_send_wr),
    ) -> ibv_wc {
        let mut wr: ibv_send_wr = std::mem::zeroed();
        wr.wr_id = 4711;
        wr.opcode = opcode;
        wr.send_flags = IBV_SEND_SIGNALED;
        wr.sg_list = pieces.as_mut_ptr();
        wr.num_sge = pieces.len() as i32;
        fill(&mut wr);
        ok(post_send(self.qp(), &mut wr));
        let wc = completion(self.send_cq);
        assert_eq!((wc.wr_id, wc.qp_num), (4711, (*self.qp()).qp_num));
        wc
    }

    /// Ends the connection and destroys everything.
    pub(crate) unsafe fn close(self) {
        let Self {
            id,
            pd,
            send_cq,
            recv_cq,
            channel,
            memory,
            buffers,
        } = self;
        // It may be over already.
        rdma_disconnect(id);
        rdma_destroy_qp(id);
        if recv_cq != send_cq {
            ok(ibv_destroy_cq(recv_cq));
        }
        ok(ibv_destroy_cq(send_cq));
        ok(ibv_destroy_comp_channel(channel));
        drop((memory, buffers));
        ok(ibv_dealloc_pd(pd));
        ok(rdma_destroy_id(id));
    }
}

/// Sends octets inline, unsignalled.
pub(crate) unsafe fn say(qp: *mut ibv_qp, octets: &[u8]) {
    let mut sge = ibv_sge {
        addr: octets.as_ptr() as u64,
        length: octets.len() as u32,
        lkey: 0,
    };
    let mut wr: ibv_send_wr = std::mem::zeroed();
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_INLINE;
    wr.sg_list = &mut sge;
    wr.num_sge = 1;
    ok(post_send(qp, &mut wr));
}
