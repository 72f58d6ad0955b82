//! The functions of librdmacm and libibverbs, and what their headers have inline.

use std::ffi::{CStr, CString, c_char, c_void};
use std::net::SocketAddr;
use std::ptr::{null, null_mut};

pub(crate) use rnic_ibverbs::abi::*;

unsafe extern "C" {
    fn rnic_cm_rdma_event_str(event: u32) -> *const c_char;
    fn rnic_cm_rdma_getaddrinfo(
        node: *const c_char,
        service: *const c_char,
        hints: *const rdma_addrinfo,
        res: *mut *mut rdma_addrinfo,
    ) -> i32;
    fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: i32) -> *mut ibv_mr;
}

unsafe extern "C" {
    #[link_name = "rnic_cm_rdma_create_event_channel"]
    pub(crate) fn rdma_create_event_channel() -> *mut rdma_event_channel;
    #[link_name = "rnic_cm_rdma_destroy_event_channel"]
    pub(crate) fn rdma_destroy_event_channel(channel: *mut rdma_event_channel);
    #[link_name = "rnic_cm_rdma_create_id"]
    pub(crate) fn rdma_create_id(
        channel: *mut rdma_event_channel,
        id: *mut *mut rdma_cm_id,
        context: *mut c_void,
        ps: u32,
    ) -> i32;
    #[link_name = "rnic_cm_rdma_destroy_id"]
    pub(crate) fn rdma_destroy_id(id: *mut rdma_cm_id) -> i32;
    #[link_name = "rnic_cm_rdma_bind_addr"]
    pub(crate) fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *const c_void) -> i32;
    #[link_name = "rnic_cm_rdma_resolve_addr"]
    pub(crate) fn rdma_resolve_addr(
        id: *mut rdma_cm_id,
        src: *const c_void,
        dst: *const c_void,
        timeout_ms: i32,
    ) -> i32;
    #[link_name = "rnic_cm_rdma_resolve_route"]
    pub(crate) fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: i32) -> i32;
    #[link_name = "rnic_cm_rdma_create_qp"]
    pub(crate) fn rdma_create_qp(
        id: *mut rdma_cm_id,
        pd: *mut ibv_pd,
        attr: *mut ibv_qp_init_attr,
    ) -> i32;
    #[link_name = "rnic_cm_rdma_destroy_qp"]
    pub(crate) fn rdma_destroy_qp(id: *mut rdma_cm_id);
    #[link_name = "rnic_cm_rdma_connect"]
    pub(crate) fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> i32;
    #[link_name = "rnic_cm_rdma_listen"]
    pub(crate) fn rdma_listen(id: *mut rdma_cm_id, backlog: i32) -> i32;
    #[link_name = "rnic_cm_rdma_get_request"]
    pub(crate) fn rdma_get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> i32;
    #[link_name = "rnic_cm_rdma_accept"]
    pub(crate) fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> i32;
    #[link_name = "rnic_cm_rdma_reject"]
    pub(crate) fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> i32;
    #[link_name = "rnic_cm_rdma_disconnect"]
    pub(crate) fn rdma_disconnect(id: *mut rdma_cm_id) -> i32;
    #[link_name = "rnic_cm_rdma_migrate_id"]
    pub(crate) fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> i32;
    #[link_name = "rnic_cm_rdma_get_cm_event"]
    pub(crate) fn rdma_get_cm_event(
        channel: *mut rdma_event_channel,
        event: *mut *mut rdma_cm_event,
    ) -> i32;
    #[link_name = "rnic_cm_rdma_ack_cm_event"]
    pub(crate) fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> i32;
    #[link_name = "rnic_cm_rdma_create_ep"]
    pub(crate) fn rdma_create_ep(
        id: *mut *mut rdma_cm_id,
        res: *mut rdma_addrinfo,
        pd: *mut ibv_pd,
        attr: *mut ibv_qp_init_attr,
    ) -> i32;
    #[link_name = "rnic_cm_rdma_destroy_ep"]
    pub(crate) fn rdma_destroy_ep(id: *mut rdma_cm_id);
    #[link_name = "rnic_cm_rdma_freeaddrinfo"]
    pub(crate) fn rdma_freeaddrinfo(res: *mut rdma_addrinfo);
    #[link_name = "rnic_cm_rdma_get_src_port"]
    pub(crate) fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16;
    #[link_name = "ibv_close_device"]
    pub(crate) fn ibv_close_device(context: *mut ibv_context) -> i32;
    #[link_name = "ibv_get_cq_event"]
    fn ibv_get_cq_event(
        channel: *mut ibv_comp_channel,
        cq: *mut *mut ibv_cq,
        context: *mut *mut c_void,
    ) -> i32;
    #[link_name = "ibv_ack_cq_events"]
    fn ibv_ack_cq_events(cq: *mut ibv_cq, events: u32);
}

/// Returns errno after a call.
pub(crate) fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

/// Fails unless a call succeeded.
#[track_caller]
pub(crate) fn ok(outcome: i32) {
    assert_eq!(outcome, 0, "{}", std::io::Error::last_os_error());
}

/// Fails unless a call failed with this errno.
#[track_caller]
pub(crate) fn fails(outcome: i32, with: i32) {
    assert_eq!((outcome, errno()), (-1, with));
}

pub(crate) fn name(event: u32) -> String {
    // SAFETY: the function returns a constant string for any number.
    let name = unsafe { CStr::from_ptr(rnic_cm_rdma_event_str(event)) };
    name.to_str().unwrap().to_owned()
}

/// An address as C has it.
pub(crate) struct Address(rdma_sockaddr);

impl Address {
    pub(crate) fn new(text: &str) -> Self {
        // SAFETY: 0 is a value of each member.
        let mut there: rdma_sockaddr = unsafe { std::mem::zeroed() };
        match text.parse().unwrap() {
            SocketAddr::V4(v4) => {
                there.sin.sin_family = nix::libc::AF_INET as u16;
                there.sin.sin_port = v4.port().to_be();
                there.sin.sin_addr.s_addr = u32::from(*v4.ip()).to_be();
            }
            SocketAddr::V6(v6) => {
                there.sin6.sin6_family = nix::libc::AF_INET6 as u16;
                there.sin6.sin6_port = v6.port().to_be();
                there.sin6.sin6_addr.s6_addr = v6.ip().octets();
                there.sin6.sin6_scope_id = v6.scope_id();
            }
        }
        Self(there)
    }

    pub(crate) fn pointer(&self) -> *const c_void {
        (&raw const self.0).cast()
    }
}

/// An event, copied and acknowledged.
#[derive(Debug, PartialEq)]
pub(crate) struct Event {
    pub(crate) id: *mut rdma_cm_id,
    pub(crate) listen_id: *mut rdma_cm_id,
    pub(crate) event: u32,
    pub(crate) status: i32,
    pub(crate) data: Vec<u8>,
    /// Responder resources and initiator depth.
    pub(crate) depths: (u8, u8),
}

/// Copies an event.
pub(crate) unsafe fn copy(event: *mut rdma_cm_event) -> Event {
    let conn = (*event).param.conn;
    let data = match conn.private_data_len {
        0 => Vec::new(),
        len => std::slice::from_raw_parts(conn.private_data.cast(), len.into()).to_vec(),
    };
    Event {
        id: (*event).id,
        listen_id: (*event).listen_id,
        event: (*event).event,
        status: (*event).status,
        data,
        depths: (conn.responder_resources, conn.initiator_depth),
    }
}

/// Waits for the next event, which must be this one, and acknowledges it.
#[track_caller]
pub(crate) unsafe fn next(channel: *mut rdma_event_channel, expected: u32) -> Event {
    let mut event = null_mut();
    ok(rdma_get_cm_event(channel, &mut event));
    let copied = copy(event);
    ok(rdma_ack_cm_event(event));
    assert_eq!(name(copied.event), name(expected), "{copied:?}");
    copied
}

/// Looks an address up for an endpoint.
pub(crate) unsafe fn look_up(node: Option<&str>, port: u16, flags: i32) -> *mut rdma_addrinfo {
    let node = node.map(|node| CString::new(node).unwrap());
    let port = CString::new(port.to_string()).unwrap();
    let mut hints: rdma_addrinfo = std::mem::zeroed();
    hints.ai_flags = flags;
    hints.ai_port_space = RDMA_PS_TCP as i32;
    let mut found = null_mut();
    let node = node.as_ref().map_or(null(), |node| node.as_ptr());
    assert_eq!(
        rnic_cm_rdma_getaddrinfo(node, port.as_ptr(), &hints, &mut found),
        0
    );
    found
}

pub(crate) fn qp_attributes() -> ibv_qp_init_attr {
    // SAFETY: 0 is a value of each member.
    let mut attributes: ibv_qp_init_attr = unsafe { std::mem::zeroed() };
    attributes.cap = ibv_qp_cap {
        max_send_wr: 4,
        max_recv_wr: 4,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 16,
    };
    attributes.qp_type = IBV_QPT_RC;
    attributes.sq_sig_all = 1;
    attributes
}

pub(crate) fn parameters(data: &[u8], depths: (u8, u8)) -> rdma_conn_param {
    // SAFETY: 0 is a value of each member.
    let mut parameters: rdma_conn_param = unsafe { std::mem::zeroed() };
    parameters.private_data = data.as_ptr().cast();
    parameters.private_data_len = data.len() as u8;
    (parameters.responder_resources, parameters.initiator_depth) = depths;
    parameters
}

/// Posts a buffer for a message.
pub(crate) unsafe fn receive(id: *mut rdma_cm_id, buffer: &mut [u8]) {
    let access = IBV_ACCESS_LOCAL_WRITE as i32;
    let mr = ibv_reg_mr((*id).pd, buffer.as_mut_ptr().cast(), buffer.len(), access);
    assert!(!mr.is_null());
    let mut piece = ibv_sge {
        addr: buffer.as_ptr() as u64,
        length: buffer.len() as u32,
        lkey: (*mr).lkey,
    };
    let mut request: ibv_recv_wr = std::mem::zeroed();
    request.sg_list = &mut piece;
    request.num_sge = 1;
    let post = (*(*id).verbs).ops.post_recv.unwrap();
    ok(post((*id).qp, &mut request, &mut null_mut()));
}

/// Sends a message inline.
pub(crate) unsafe fn send(id: *mut rdma_cm_id, message: &[u8]) {
    let mut piece = ibv_sge {
        addr: message.as_ptr() as u64,
        length: message.len() as u32,
        lkey: 0,
    };
    let mut request: ibv_send_wr = std::mem::zeroed();
    request.sg_list = &mut piece;
    request.num_sge = 1;
    request.opcode = IBV_WR_SEND;
    request.send_flags = IBV_SEND_INLINE;
    let post = (*(*id).verbs).ops.post_send.unwrap();
    ok(post((*id).qp, &mut request, &mut null_mut()));
}

/// Waits for a completion as `rdma_get_recv_comp` and `rdma_get_send_comp` do. Returns its status
/// and length.
pub(crate) unsafe fn completion(
    id: *mut rdma_cm_id,
    cq: *mut ibv_cq,
    channel: *mut ibv_comp_channel,
) -> (u32, u32) {
    let ops = (*(*id).verbs).ops;
    let mut wc = ibv_wc::default();
    loop {
        if ops.poll_cq.unwrap()(cq, 1, &mut wc) == 1 {
            return (wc.status, wc.byte_len);
        }
        ok(ops.req_notify_cq.unwrap()(cq, 0));
        if ops.poll_cq.unwrap()(cq, 1, &mut wc) == 1 {
            return (wc.status, wc.byte_len);
        }
        let (mut notified, mut context) = (null_mut(), null_mut());
        ok(ibv_get_cq_event(channel, &mut notified, &mut context));
        assert_eq!((notified, context), (cq, id.cast()));
        ibv_ack_cq_events(notified, 1);
    }
}
