//! What is asked for, and what is answered.

use std::ffi::c_void;

use super::objects::{ibv_comp_channel, ibv_cq, ibv_device_attr, ibv_pd, ibv_srq, ibv_td};

c_structs! {
    // In C a union with two 8-octet numbers.
    #[derive(Debug, Default, PartialEq, Eq)]
    #[repr(align(8))]
    ibv_gid 16 {
        raw: [u8; 16];
    }
    #[derive(Debug, Default)]
    ibv_gid_entry 32 {
        gid: ibv_gid;
        gid_index: u32;
        port_num: u32;
        gid_type: u32;
        ndev_ifindex: u32;
    }
    ibv_query_device_ex_input 4 {
        comp_mask: u32;
    }
    #[derive(Default)]
    ibv_odp_caps 24 {
        general_caps: u64;
        // rc, uc, ud.
        per_transport_caps: [u32; 3];
    }
    #[derive(Default)]
    ibv_tso_caps 8 {
        max_tso: u32;
        supported_qpts: u32;
    }
    #[derive(Default)]
    ibv_rss_caps 32 {
        supported_qpts: u32;
        max_rwq_indirection_tables: u32;
        max_rwq_indirection_table_size: u32;
        rx_hash_fields_mask: u64;
        rx_hash_function: u8;
    }
    #[derive(Default)]
    ibv_packet_pacing_caps 12 {
        qp_rate_limit_min: u32;
        qp_rate_limit_max: u32;
        supported_qpts: u32;
    }
    #[derive(Default)]
    ibv_tm_caps 20 {
        max_rndv_hdr_size: u32;
        max_num_tags: u32;
        flags: u32;
        max_ops: u32;
        max_sge: u32;
    }
    #[derive(Default)]
    ibv_cq_moderation_caps 4 {
        max_cq_count: u16;
        max_cq_period: u16;
    }
    #[derive(Default)]
    ibv_pci_atomic_caps 6 {
        fetch_add: u16;
        swap: u16;
        compare_swap: u16;
    }
    ibv_device_attr_ex 400 {
        orig_attr: ibv_device_attr;
        comp_mask: u32;
        odp_caps: ibv_odp_caps;
        completion_timestamp_mask: u64;
        hca_core_clock: u64;
        device_cap_flags_ex: u64;
        tso_caps: ibv_tso_caps;
        rss_caps: ibv_rss_caps;
        max_wq_type_rq: u32;
        packet_pacing_caps: ibv_packet_pacing_caps;
        raw_packet_caps: u32;
        tm_caps: ibv_tm_caps;
        cq_mod_caps: ibv_cq_moderation_caps;
        max_dm_size: u64;
        pci_atomic_caps: ibv_pci_atomic_caps;
        xrc_odp_caps: u32;
        phys_port_cnt_ex: u32;
    }
    ibv_td_init_attr 4 {
        comp_mask: u32;
    }
    ibv_parent_domain_init_attr 48 {
        pd: *mut ibv_pd;
        td: *mut ibv_td;
        comp_mask: u32;
        alloc: *mut c_void;
        free: *mut c_void;
        pd_context: *mut c_void;
    }
    ibv_mr_init_attr 72 {
        length: usize;
        access: i32;
        comp_mask: u64;
        iova: u64;
        addr: *mut c_void;
        fd: i32;
        fd_offset: u64;
        dmah: *mut c_void;
        // Handle from ibv_alloc_buf.
        buf: *mut c_void;
    }
    #[derive(Default)]
    ibv_global_route 24 {
        dgid: ibv_gid;
        flow_label: u32;
        sgid_index: u8;
        hop_limit: u8;
        traffic_class: u8;
    }
    #[derive(Default)]
    ibv_ah_attr 32 {
        grh: ibv_global_route;
        dlid: u16;
        sl: u8;
        src_path_bits: u8;
        static_rate: u8;
        is_global: u8;
        port_num: u8;
    }
    #[derive(Debug, Default)]
    ibv_srq_attr 12 {
        max_wr: u32;
        max_sge: u32;
        srq_limit: u32;
    }
    ibv_srq_init_attr 24 {
        srq_context: *mut c_void;
        attr: ibv_srq_attr;
    }
    ibv_srq_init_attr_ex 64 {
        srq_context: *mut c_void;
        attr: ibv_srq_attr;
        comp_mask: u32;
        srq_type: u32;
        pd: *mut ibv_pd;
        xrcd: *mut c_void;
        cq: *mut ibv_cq;
        // max_num_tags, max_ops.
        tm_cap: [u32; 2];
    }
    #[derive(Debug, Default)]
    ibv_qp_cap 20 {
        max_send_wr: u32;
        max_recv_wr: u32;
        max_send_sge: u32;
        max_recv_sge: u32;
        max_inline_data: u32;
    }
    ibv_qp_init_attr 64 {
        qp_context: *mut c_void;
        send_cq: *mut ibv_cq;
        recv_cq: *mut ibv_cq;
        srq: *mut ibv_srq;
        cap: ibv_qp_cap;
        qp_type: u32;
        sq_sig_all: i32;
    }
    ibv_rx_hash_conf 24 {
        rx_hash_function: u8;
        rx_hash_key_len: u8;
        rx_hash_key: *mut u8;
        rx_hash_fields_mask: u64;
    }
    ibv_qp_init_attr_ex 136 {
        qp_context: *mut c_void;
        send_cq: *mut ibv_cq;
        recv_cq: *mut ibv_cq;
        srq: *mut ibv_srq;
        cap: ibv_qp_cap;
        qp_type: u32;
        sq_sig_all: i32;
        comp_mask: u32, @ 60;
        pd: *mut ibv_pd;
        xrcd: *mut c_void;
        create_flags: u32;
        max_tso_header: u16;
        rwq_ind_tbl: *mut c_void;
        rx_hash_conf: ibv_rx_hash_conf;
        source_qpn: u32;
        send_ops_flags: u64;
    }
    #[derive(Default)]
    ibv_qp_attr 144 {
        qp_state: u32;
        cur_qp_state: u32;
        path_mtu: u32;
        path_mig_state: u32;
        qkey: u32;
        rq_psn: u32;
        sq_psn: u32;
        dest_qp_num: u32;
        qp_access_flags: u32;
        cap: ibv_qp_cap;
        ah_attr: ibv_ah_attr;
        alt_ah_attr: ibv_ah_attr;
        pkey_index: u16;
        alt_pkey_index: u16;
        en_sqd_async_notify: u8;
        sq_draining: u8;
        max_rd_atomic: u8;
        max_dest_rd_atomic: u8;
        min_rnr_timer: u8;
        port_num: u8;
        timeout: u8;
        retry_cnt: u8;
        rnr_retry: u8;
        alt_port_num: u8;
        alt_timeout: u8;
        rate_limit: u32;
    }
    ibv_cq_init_attr_ex 56 {
        cqe: u32;
        cq_context: *mut c_void;
        channel: *mut ibv_comp_channel;
        comp_vector: u32;
        wc_flags: u64;
        comp_mask: u32;
        flags: u32;
        parent_domain: *mut ibv_pd;
    }
    ibv_modify_cq_attr 8 {
        attr_mask: u32;
        // cq_count, cq_period.
        moderate: [u16; 2];
    }
    ibv_values_ex 24 {
        comp_mask: u32;
        raw_clock: nix::libc::timespec;
    }
    #[derive(Debug, Default)]
    ibv_ece 12 {
        vendor_id: u32;
        options: u32;
        comp_mask: u32;
    }
}
