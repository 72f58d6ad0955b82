//! Structures of the kernel's interface as structures of the verbs, and back.
#![allow(unsafe_code, unsafe_op_in_unsafe_fn, reason = "C ABI: entry points")]

use crate::abi::*;

fn address_handle(from: &ib_uverbs_ah_attr) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: from.dgid },
            flow_label: from.flow_label,
            sgid_index: from.sgid_index,
            hop_limit: from.hop_limit,
            traffic_class: from.traffic_class,
        },
        dlid: from.dlid,
        sl: from.sl,
        src_path_bits: from.src_path_bits,
        static_rate: from.static_rate,
        is_global: from.is_global,
        port_num: from.port_num,
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_copy_ah_attr_from_kern(
    to: *mut ibv_ah_attr,
    from: *const ib_uverbs_ah_attr,
) {
    *to = address_handle(&*from);
}

/// Copies all but the state to which the program moves the queue pair, and the rate limit, which
/// the kernel's structure lacks.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_copy_qp_attr_from_kern(
    to: *mut ibv_qp_attr,
    from: *const ib_uverbs_qp_attr,
) {
    // Member by member: those that are not copied may have no value, and older programs do not know
    // the last.
    let from = &*from;
    (*to).cur_qp_state = from.cur_qp_state;
    (*to).path_mtu = from.path_mtu;
    (*to).path_mig_state = from.path_mig_state;
    (*to).qkey = from.qkey;
    (*to).rq_psn = from.rq_psn;
    (*to).sq_psn = from.sq_psn;
    (*to).dest_qp_num = from.dest_qp_num;
    (*to).qp_access_flags = from.qp_access_flags;
    (*to).cap = from.cap;
    (*to).ah_attr = address_handle(&from.ah_attr);
    (*to).alt_ah_attr = address_handle(&from.alt_ah_attr);
    (*to).pkey_index = from.pkey_index;
    (*to).alt_pkey_index = from.alt_pkey_index;
    (*to).en_sqd_async_notify = from.en_sqd_async_notify;
    (*to).sq_draining = from.sq_draining;
    (*to).max_rd_atomic = from.max_rd_atomic;
    (*to).max_dest_rd_atomic = from.max_dest_rd_atomic;
    (*to).min_rnr_timer = from.min_rnr_timer;
    (*to).port_num = from.port_num;
    (*to).timeout = from.timeout;
    (*to).retry_cnt = from.retry_cnt;
    (*to).rnr_retry = from.rnr_retry;
    (*to).alt_port_num = from.alt_port_num;
    (*to).alt_timeout = from.alt_timeout;
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_copy_path_rec_from_kern(
    to: *mut ibv_sa_path_rec,
    from: *const ib_user_path_rec,
) {
    let from = &*from;
    *to = ibv_sa_path_rec {
        dgid: ibv_gid { raw: from.dgid },
        sgid: ibv_gid { raw: from.sgid },
        dlid: from.dlid,
        slid: from.slid,
        raw_traffic: from.raw_traffic,
        flow_label: from.flow_label,
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
        reversible: from.reversible,
        numb_path: from.numb_path,
        pkey: from.pkey,
        sl: from.sl,
        mtu_selector: from.mtu_selector,
        mtu: from.mtu as u8,
        rate_selector: from.rate_selector,
        rate: from.rate,
        packet_life_time_selector: from.packet_life_time_selector,
        packet_life_time: from.packet_life_time,
        preference: from.preference,
    };
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_copy_path_rec_to_kern(
    to: *mut ib_user_path_rec,
    from: *const ibv_sa_path_rec,
) {
    let from = &*from;
    *to = ib_user_path_rec {
        dgid: from.dgid.raw,
        sgid: from.sgid.raw,
        dlid: from.dlid,
        slid: from.slid,
        raw_traffic: from.raw_traffic,
        flow_label: from.flow_label,
        reversible: from.reversible,
        mtu: from.mtu.into(),
        pkey: from.pkey,
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
        numb_path: from.numb_path,
        sl: from.sl,
        mtu_selector: from.mtu_selector,
        rate_selector: from.rate_selector,
        rate: from.rate,
        packet_life_time_selector: from.packet_life_time_selector,
        packet_life_time: from.packet_life_time,
        preference: from.preference,
    };
}
