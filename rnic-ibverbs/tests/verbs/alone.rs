//! What a process does without a peer.

use std::ffi::CStr;
use std::ptr::{null, null_mut};

use nix::libc;

use crate::calls::*;
use crate::end::{Memory, qp_attributes};

/// Opens the only device.
pub(crate) unsafe fn open() -> *mut ibv_context {
    let mut count = 0;
    let list = made(ibv_get_device_list(&mut count));
    assert_eq!(count, 1);
    assert!((*list.add(1)).is_null(), "the list ends with NULL");
    let context = made(ibv_open_device(*list));
    ibv_free_device_list(list);
    context
}

pub(crate) unsafe fn attributes() {
    let context = open();
    let device = (*context).device;
    assert_eq!((*device).node_type, IBV_NODE_RNIC);
    assert_eq!((*device).transport_type, IBV_TRANSPORT_IWARP);
    let name = CStr::from_ptr(ibv_get_device_name(device));
    assert_eq!(name.to_str(), Ok("rnic_cm1"));

    let mut attr: ibv_device_attr = std::mem::zeroed();
    ok(ibv_query_device(context, &mut attr));
    assert_eq!(attr.node_guid, ibv_get_device_guid(device));
    assert_ne!(attr.node_guid, 0);
    assert_eq!((attr.phys_port_cnt, attr.max_pkeys), (1, 1));

    // A program of an older header knows less: what follows stays as it is.
    let query = operations(context).query_device_ex.unwrap();
    let mut ex: ibv_device_attr_ex = std::mem::zeroed();
    ex.phys_port_cnt_ex = 77;
    let older = std::mem::offset_of!(ibv_device_attr_ex, phys_port_cnt_ex);
    assert_eq!(query(context, null(), &mut ex, older), 0);
    assert_eq!(
        (ex.orig_attr.max_qp, ex.phys_port_cnt_ex),
        (attr.max_qp, 77)
    );
    assert_eq!(query(context, null(), &mut ex, size_of_val(&ex)), 0);
    assert_eq!(ex.phys_port_cnt_ex, 1);

    let mut port = ibv_port_attr {
        active_speed_ex: 77,
        ..ibv_port_attr::default()
    };
    // The kernel finds the link of a new interface a moment later.
    while port.state != IBV_PORT_ACTIVE {
        ok(ibv_query_port(context, 1, &mut port));
        assert!([IBV_PORT_DOWN, IBV_PORT_ACTIVE].contains(&port.state));
    }
    assert_eq!(
        (port.state, port.link_layer),
        (IBV_PORT_ACTIVE, IBV_LINK_LAYER_ETHERNET)
    );
    assert_eq!(
        port.active_speed_ex, 77,
        "the exported function writes the short structure"
    );
    assert_eq!(ibv_query_port(context, 2, &mut port), libc::EINVAL);
    // A veth says that it has 10 Gb/s.
    let mut speed = 0;
    ok(ibv_query_port_speed(context, 1, &mut speed));
    assert_eq!(speed, 100);
    assert_eq!(ibv_query_port_speed(context, 2, &mut speed), libc::EINVAL);
    // A veth says 10 Gb/s: one lane of 10. That is asked of the kernel, for sysfs may be that of
    // another network namespace, or not there. Only this process sees that it goes.
    let lane = (port.active_width, port.active_speed, port.active_mtu);
    assert_eq!(lane, (1, 8, IBV_MTU_1024));
    let (none, sys, kind) = (c"none".as_ptr(), c"/sys".as_ptr(), c"tmpfs".as_ptr());
    ok(libc::mount(none, sys, kind, 0, null()));
    ok(ibv_query_port(context, 1, &mut port));
    assert_eq!(
        (port.active_width, port.active_speed, port.active_mtu),
        lane
    );

    // 10.78.0.2, then IPv6.
    let mut gid = ibv_gid::default();
    ok(ibv_query_gid(context, 1, 0, &mut gid));
    assert_eq!(gid.raw, *b"\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\x4e\0\x02");
    let mut found = Vec::new();
    for index in 1..port.gid_tbl_len {
        ok(ibv_query_gid(context, 1, index, &mut gid));
        found.push(std::net::Ipv6Addr::from(gid.raw));
    }
    assert!(found.contains(&"fd78::2".parse().unwrap()), "{found:?}");
    // Guides name the indices 1 and 3, whatever the length of the table.
    let behind = port.gid_tbl_len.max(4);
    ok(ibv_query_gid(context, 1, 3, &mut gid));
    assert_eq!(ibv_query_gid(context, 1, behind, &mut gid), -1);
    ok(ibv_close_device(context));
}

pub(crate) unsafe fn objects() {
    let context = open();
    let pd = made(ibv_alloc_pd(context));
    let channel = made(ibv_create_comp_channel(context));
    let cq = made(ibv_create_cq(context, 100, null_mut(), channel, 0));
    assert!((*cq).cqe >= 100);
    ok(ibv_resize_cq(cq, 300));
    assert!((*cq).cqe >= 300);
    let mut init = ibv_srq_init_attr {
        srq_context: null_mut(),
        attr: ibv_srq_attr {
            max_wr: 50,
            max_sge: 1,
            srq_limit: 0,
        },
    };
    let srq = made(ibv_create_srq(pd, &mut init));
    let mut limit = ibv_srq_attr {
        srq_limit: 7,
        ..ibv_srq_attr::default()
    };
    ok(ibv_modify_srq(srq, &mut limit, IBV_SRQ_LIMIT));
    let mut found = ibv_srq_attr::default();
    ok(ibv_query_srq(srq, &mut found));
    assert!(found.max_wr >= 50);

    let mut attr = qp_attributes(cq);
    attr.srq = srq;
    let qp = made(ibv_create_qp(pd, &mut attr));
    let plain = made(ibv_create_qp(pd, &mut qp_attributes(cq)));
    assert_ne!((*qp).qp_num, (*plain).qp_num);
    assert!(
        ibv_qp_to_qp_ex(plain).is_null(),
        "made without send operations"
    );
    // As with a kernel device of iWARP.
    assert_eq!((*qp).state, IBV_QPS_RESET);
    let (mut now, mut init) = (ibv_qp_attr::default(), qp_attributes(cq));
    ok(ibv_query_qp(qp, &mut now, IBV_QP_STATE, &mut init));
    assert_eq!((now.qp_state, init.srq), (IBV_QPS_INIT, srq));

    let memory = Memory::new(pd, 4096, IBV_ACCESS_LOCAL_WRITE);
    for in_use in [ibv_dealloc_pd(pd), ibv_destroy_cq(cq), ibv_destroy_srq(srq)] {
        assert_eq!(in_use, libc::EBUSY);
    }
    assert_eq!(ibv_destroy_comp_channel(channel), libc::EBUSY);

    // What waits in a queue pair that fails is flushed.
    let mut wr: ibv_recv_wr = std::mem::zeroed();
    wr.wr_id = 5;
    ok(post_recv(plain, &mut wr));
    now.qp_state = IBV_QPS_ERR;
    ok(ibv_modify_qp(plain, &mut now, IBV_QP_STATE));
    assert_eq!((*plain).state, IBV_QPS_ERR);
    let wc = completion(cq);
    let expected = (5, IBV_WC_WR_FLUSH_ERR, (*plain).qp_num);
    assert_eq!((wc.wr_id, wc.status, wc.qp_num), expected);

    // Completions of a queue pair that is destroyed come no more.
    for wr_id in [6, 7] {
        wr.wr_id = wr_id;
        ok(post_recv(plain, &mut wr));
    }
    assert_eq!(completion(cq).wr_id, 6);
    ok(ibv_destroy_qp(plain));
    assert!(poll(cq).is_none());

    drop(memory);
    ok(ibv_destroy_qp(qp));
    ok(ibv_destroy_srq(srq));
    ok(ibv_destroy_cq(cq));
    ok(ibv_destroy_comp_channel(channel));
    ok(ibv_dealloc_pd(pd));
    ok(ibv_close_device(context));
}

pub(crate) unsafe fn wrong() {
    let context = open();
    let pd = made(ibv_alloc_pd(context));
    let cq = made(ibv_create_cq(context, 16, null_mut(), null_mut(), 0));
    for cqe in [0, -1, i32::MAX] {
        refused(
            ibv_create_cq(context, cqe, null_mut(), null_mut(), 0),
            libc::EINVAL,
        );
    }
    refused(
        ibv_create_cq(context, 16, null_mut(), null_mut(), 1),
        libc::EINVAL,
    );

    for kind in [IBV_QPT_RAW_PACKET, IBV_QPT_XRC_SEND] {
        let mut attr = qp_attributes(cq);
        attr.qp_type = kind;
        refused(ibv_create_qp(pd, &mut attr), libc::EOPNOTSUPP);
    }
    let mut attr = qp_attributes(cq);
    attr.cap.max_send_wr = u32::MAX;
    refused(ibv_create_qp(pd, &mut attr), libc::EINVAL);
    let mut attr = qp_attributes(cq);
    attr.cap.max_send_sge = 1000;
    refused(ibv_create_qp(pd, &mut attr), libc::EINVAL);
    let mut attr = qp_attributes(null_mut());
    refused(ibv_create_qp(pd, &mut attr), libc::EINVAL);

    let mut page = vec![0u8; 8192];
    let at = page.as_mut_ptr().cast();
    let register = |access: u32| ibv_reg_mr(pd, at, 8192, access as i32);
    refused(register(IBV_ACCESS_REMOTE_WRITE), libc::EINVAL);
    refused(register(IBV_ACCESS_REMOTE_ATOMIC), libc::EINVAL);
    refused(register(IBV_ACCESS_FLUSH_GLOBAL), libc::EOPNOTSUPP);
    refused(ibv_reg_mr(pd, at, 0, 0), libc::EINVAL);
    // Page 0 is never mapped, and the code of a program is not writable.
    let low = std::ptr::without_provenance_mut(4096);
    refused(ibv_reg_mr(pd, low, 4096, 0), libc::EFAULT);
    let code = (wrong as *const ()).cast_mut().cast();
    refused(
        ibv_reg_mr(pd, code, 16, IBV_ACCESS_LOCAL_WRITE as i32),
        libc::EFAULT,
    );
    let readable = made(ibv_reg_mr(pd, code, 16, 0));
    ok(ibv_dereg_mr(readable));
    let last = std::ptr::without_provenance_mut(usize::MAX - 4095);
    for access in [0, IBV_ACCESS_ON_DEMAND] {
        refused(ibv_reg_mr(pd, last, 8192, access as i32), libc::EINVAL);
    }
    // Where no program has memory, an access could not be told from a fault of the program's own.
    let on_demand = IBV_ACCESS_ON_DEMAND as i32;
    refused(
        ibv_reg_mr(pd, null_mut(), usize::MAX, on_demand),
        libc::EINVAL,
    );
    let bits = if cfg!(target_arch = "aarch64") {
        48
    } else {
        47
    };
    let behind = std::ptr::without_provenance_mut(1 << bits);
    refused(ibv_reg_mr(pd, behind, 4096, on_demand), libc::EINVAL);
    refused(ibv_reg_mr(pd, behind, 4096, 0), libc::EFAULT);
    // Memory on demand need not be there: what is never accessed takes nothing.
    let much = 64 << 30;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let start = libc::mmap(null_mut(), much, rights, kind, -1, 0);
    assert_ne!(start, libc::MAP_FAILED);
    let access = (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND) as i32;
    ok(ibv_dereg_mr(made(ibv_reg_mr(pd, start, much, access))));
    assert_eq!(libc::munmap(start, much), 0);
    ok(ibv_dereg_mr(made(ibv_reg_mr(pd, low, 4096, access))));
    // Optional rights may be ignored.
    let relaxed = made(register(
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING,
    ));
    assert_ne!(ibv_rereg_mr(relaxed, 8, pd, null_mut(), 0, 0), 0);
    ok(ibv_dereg_mr(relaxed));

    let qp = made(ibv_create_qp(pd, &mut qp_attributes(cq)));
    let mut send: ibv_send_wr = std::mem::zeroed();
    send.opcode = IBV_WR_SEND;
    assert_eq!(
        post_send(qp, &mut send),
        libc::EINVAL,
        "there is no connection"
    );
    for (opcode, errno) in [(IBV_WR_SEND_WITH_IMM, libc::EOPNOTSUPP), (99, libc::EINVAL)] {
        send.opcode = opcode;
        assert_eq!(post_send(qp, &mut send), errno);
    }
    let mut state = ibv_qp_attr {
        qp_state: IBV_QPS_RTS,
        ..ibv_qp_attr::default()
    };
    let outcome = ibv_modify_qp(qp, &mut state, IBV_QP_STATE);
    assert_eq!(outcome, libc::EINVAL, "rdma_cm connects");
    ok(ibv_destroy_qp(qp));
    ok(ibv_destroy_cq(cq));
    ok(ibv_dealloc_pd(pd));
    ok(ibv_close_device(context));
}
