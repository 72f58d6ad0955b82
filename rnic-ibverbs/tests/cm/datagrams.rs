//! Ids for datagrams: a peer is asked for its queue pair, and datagrams go there.

use std::ptr::null_mut;

use nix::libc;

use crate::calls::*;
use crate::hosts::{READY, SERVER};
use crate::roles::PORT;

pub(crate) const DATAGRAM_SERVER: &str = "datagram-server";
pub(crate) const DATAGRAM_CLIENT: &str = "datagram-client";

/// A peer that takes questions for connection requests at first, and who asks it.
pub(crate) const STRANGE_SERVER: &str = "datagram-stranger";
pub(crate) const STRANGE_CLIENT: &str = "datagram-strangers-client";

/// Octets in front of the payload of a receive.
const GRH: usize = 40;

/// Statuses of an unreachable peer.
const NOBODY: i32 = 1;
const REJECTED: i32 = 2;

unsafe extern "C" {
    fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah;
    fn ibv_destroy_ah(ah: *mut ibv_ah) -> i32;
}

pub(crate) fn play(role: &str) -> bool {
    // SAFETY: the roles call functions of C as the manual pages have it.
    unsafe {
        match role {
            DATAGRAM_SERVER => server(),
            DATAGRAM_CLIENT => client(),
            STRANGE_SERVER => crate::plain::answer_questions(PORT),
            STRANGE_CLIENT => strangers_client(),
            _ => return false,
        }
    }
    true
}

unsafe fn queue_pair(id: *mut rdma_cm_id) {
    let mut wrong = qp_attributes();
    fails(rdma_create_qp(id, null_mut(), &mut wrong), libc::EINVAL);
    let mut attributes = qp_attributes();
    attributes.qp_type = IBV_QPT_UD;
    ok(rdma_create_qp(id, null_mut(), &mut attributes));
    assert_eq!((*(*id).qp).state, IBV_QPS_RTS);
}

unsafe fn server() {
    let channel = rdma_create_event_channel();
    let mut listening = null_mut();
    ok(rdma_create_id(
        channel,
        &mut listening,
        null_mut(),
        RDMA_PS_UDP,
    ));
    let here = Address::new(&format!("{SERVER}:{PORT}"));
    ok(rdma_bind_addr(listening, here.pointer()));
    ok(rdma_listen(listening, 10));
    println!("\n{READY}");

    let asked = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    assert_eq!((asked.listen_id, &*asked.data), (listening, &b"hello"[..]));
    let id = asked.id;
    queue_pair(id);
    let mut buffer = [0; GRH + 8];
    receive(id, &mut buffer);
    ok(rdma_accept(id, &mut parameters(b"here", (0, 0))));
    fails(
        rdma_accept(id, &mut parameters(b"here", (0, 0))),
        libc::EINVAL,
    );
    let (status, length) = completion(id, (*id).recv_cq, (*id).recv_cq_channel);
    assert_eq!((status, length as usize), (IBV_WC_SUCCESS, GRH + 8));
    assert_eq!(&buffer[GRH..], b"datagram");

    let asked = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    assert_eq!(asked.data, b"");
    ok(rdma_reject(asked.id, b"no".as_ptr().cast(), 2));
    ok(rdma_destroy_id(asked.id));
    // The end of an id or of its queue pair is no event.
    rdma_destroy_qp(id);
    ok(rdma_destroy_id(id));
    ok(rdma_destroy_id(listening));
    rdma_destroy_event_channel(channel);
}

unsafe fn resolved(channel: *mut rdma_event_channel, ps: u32, port: u16) -> *mut rdma_cm_id {
    let mut id = null_mut();
    ok(rdma_create_id(channel, &mut id, null_mut(), ps));
    let there = Address::new(&format!("{SERVER}:{port}"));
    ok(rdma_resolve_addr(id, null_mut(), there.pointer(), 2000));
    next(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
    ok(rdma_resolve_route(id, 2000));
    next(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
    match ps {
        RDMA_PS_UDP => queue_pair(id),
        _ => ok(rdma_create_qp(id, null_mut(), &mut qp_attributes())),
    }
    id
}

/// Sends a datagram to whom an event names.
unsafe fn tell(id: *mut rdma_cm_id, to: &rdma_ud_param) {
    let mut attr = to.ah_attr;
    let ah = ibv_create_ah((*id).pd, &mut attr);
    assert!(!ah.is_null());
    let mut piece = ibv_sge {
        addr: b"datagram".as_ptr() as u64,
        length: 8,
        lkey: 0,
    };
    let mut request: ibv_send_wr = std::mem::zeroed();
    (request.sg_list, request.num_sge) = (&mut piece, 1);
    (request.opcode, request.send_flags) = (IBV_WR_SEND, IBV_SEND_INLINE);
    request.wr.ud = ibv_send_wr_ud {
        ah,
        remote_qpn: to.qp_num,
        remote_qkey: to.qkey,
    };
    let post = (*(*id).verbs).ops.post_send.unwrap();
    ok(post((*id).qp, &mut request, &mut null_mut()));
    let sent = completion(id, (*id).send_cq, (*id).send_cq_channel);
    assert_eq!(sent.0, IBV_WC_SUCCESS);
    ok(ibv_destroy_ah(ah));
}

unsafe fn client() {
    let channel = rdma_create_event_channel();
    // Who wants a connection does not get one.
    let other = resolved(channel, RDMA_PS_TCP, PORT);
    ok(rdma_connect(other, &mut parameters(b"hello", (1, 1))));
    let rejected = next(channel, RDMA_CM_EVENT_REJECTED);
    assert_eq!(
        (rejected.status, &*rejected.data),
        (-libc::ECONNRESET, &b""[..])
    );

    let id = resolved(channel, RDMA_PS_UDP, PORT);
    ok(rdma_connect(id, &mut parameters(b"hello", (0, 0))));
    let mut event = null_mut();
    ok(rdma_get_cm_event(channel, &mut event));
    let copied = copy(event);
    assert_eq!(name(copied.event), name(RDMA_CM_EVENT_ESTABLISHED));
    assert_eq!((copied.status, &*copied.data), (0, &b"here"[..]));
    let peer = (*event).param.ud;
    assert_eq!(peer.qkey, 0x0123_4567);
    ok(rdma_ack_cm_event(event));
    tell(id, &peer);
    fails(rdma_disconnect(id), libc::EINVAL);
    // No connection comes of its queue pair.
    let connecting = resolved(channel, RDMA_PS_TCP, PORT);
    rdma_destroy_qp(connecting);
    let mut by_number = parameters(b"", (1, 1));
    by_number.qp_num = (*(*id).qp).qp_num;
    fails(rdma_connect(connecting, &mut by_number), libc::EINVAL);
    ok(rdma_destroy_id(connecting));

    for (port, status, data) in [(PORT, REJECTED, &b"no"[..]), (PORT + 1, NOBODY, b"")] {
        let id = resolved(channel, RDMA_PS_UDP, port);
        let too_long = [0; 217];
        fails(
            rdma_connect(id, &mut parameters(&too_long, (0, 0))),
            libc::EINVAL,
        );
        ok(rdma_connect(id, &mut parameters(b"", (0, 0))));
        let failed = next(channel, RDMA_CM_EVENT_UNREACHABLE);
        assert_eq!(
            (failed.id, failed.status, &*failed.data),
            (id, status, data)
        );
        rdma_destroy_qp(id);
        ok(rdma_destroy_id(id));
    }
    for id in [id, other] {
        rdma_destroy_qp(id);
        ok(rdma_destroy_id(id));
    }
    rdma_destroy_event_channel(channel);
}

/// What a peer does with one question is nothing to the next, and needs no queue pair.
unsafe fn strangers_client() {
    let channel = rdma_create_event_channel();
    let ids = [(); 3].map(|()| resolved(channel, RDMA_PS_UDP, PORT));
    for id in &ids[1..] {
        rdma_destroy_qp(*id);
    }
    for id in &ids[..2] {
        ok(rdma_connect(*id, &mut parameters(b"hello", (0, 0))));
        let failed = next(channel, RDMA_CM_EVENT_UNREACHABLE);
        assert_eq!((failed.id, failed.status), (*id, NOBODY));
    }
    ok(rdma_connect(ids[2], &mut parameters(b"hello", (0, 0))));
    let mut event = null_mut();
    ok(rdma_get_cm_event(channel, &mut event));
    let copied = copy(event);
    assert_eq!(name(copied.event), name(RDMA_CM_EVENT_ESTABLISHED));
    assert_eq!((copied.id, &*copied.data), (ids[2], &b"here"[..]));
    let peer = (*event).param.ud;
    assert_eq!((peer.qp_num, peer.qkey), (0x0040_0001, 77));
    ok(rdma_ack_cm_event(event));
    // One that is destroyed while it asks asks no more.
    let id = resolved(channel, RDMA_PS_UDP, PORT);
    ok(rdma_connect(id, &mut parameters(b"hello", (0, 0))));
    for id in ids.into_iter().chain([id]) {
        rdma_destroy_qp(id);
        ok(rdma_destroy_id(id));
    }
    rdma_destroy_event_channel(channel);
}
