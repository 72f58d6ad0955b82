//! The operations that the headers call through a context. One that is not here is answered by the
//! headers with EOPNOTSUPP.

use crate::abi::*;
use crate::{cq, cq_ex, mr, mw, pd, post, qp, query, srq};

/// Returns a context's operations, and nothing else of it.
pub(crate) fn operations() -> verbs_context {
    let mut all = verbs_context::zeros();
    all.context.ops = ibv_context_ops {
        _compat_query_device: Some(query::ibv_query_device),
        _compat_query_port: Some(query::ibv_query_port),
        alloc_mw: Some(mw::alloc_mw),
        bind_mw: Some(mw::bind_mw),
        dealloc_mw: Some(mw::dealloc_mw),
        poll_cq: Some(cq::poll_cq),
        req_notify_cq: Some(cq::req_notify_cq),
        post_srq_recv: Some(post::post_srq_recv),
        post_send: Some(post::post_send),
        post_recv: Some(post::post_recv),
        ..Zeros::zeros()
    };
    verbs_context {
        advise_mr: Some(mr::advise_mr),
        reg_mr_ex: Some(mr::ibv_reg_mr_ex),
        query_port: Some(query::query_port),
        alloc_parent_domain: Some(pd::alloc_parent_domain),
        dealloc_td: Some(pd::dealloc_td),
        alloc_td: Some(pd::alloc_td),
        modify_cq: Some(cq::modify_cq),
        create_cq_ex: Some(cq_ex::create_cq_ex),
        query_device_ex: Some(query::query_device_ex),
        create_qp_ex: Some(qp::create_qp_ex),
        get_srq_num: Some(srq::get_srq_num),
        create_srq_ex: Some(srq::create_srq_ex),
        ..all
    }
}
