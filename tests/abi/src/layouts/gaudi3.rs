//! What only the header of the Gaudi3 release defines. No package ships it: these rows are compared
//! with `facts/gaudi3.tsv`, not with C.

use std::mem::offset_of;

use gaudi_uapi::{Since, debug, info, memory, nic};

use super::{Field, Layout, field_shape};

/// Every layout of that header that mainline headers lack.
pub fn gaudi3_layouts() -> Vec<Layout> {
    let mut all = nic();
    all.extend(others());
    all.iter_mut().for_each(|layout| layout.home = &[]);
    all
}

const DRIVER: &[super::Header] = &[];

fn nic() -> Vec<Layout> {
    vec![
        layout!(nic::HlNicArgs = "struct hl_nic_args"; {
            input_ptr, output_ptr, input_size, output_size, ctx_id, op
        }),
        layout!(nic::HlNicAllocConnIn = "struct hl_nic_alloc_conn_in"; { port, hint }),
        layout!(nic::HlNicAllocConnOut = "struct hl_nic_alloc_conn_out"; { conn_id, pad }),
        layout!(nic::HlNicReqConnCtxIn = "struct hl_nic_req_conn_ctx_in"; { reserved, dst_ip_addr, dst_conn_id, deprecated1, last_index, port, conn_id, dst_mac_addr, deprecated2, priority, deprecated3, timer_granularity, swq_granularity, wq_type, deprecated4, cq_number, wq_remote_log_size, congestion_en, congestion_wnd, mtu, encap_en, encap_id, wq_size, loopback, coll_lag_idx, coll_last_in_lag, compression_en, remote_key, sack_en, pad }),
        layout!(nic::HlNicReqConnCtxOut = "struct hl_nic_req_conn_ctx_out"; { swq_mem_handle, rwq_mem_handle }),
        layout!(nic::HlNicResConnCtxIn = "struct hl_nic_res_conn_ctx_in"; { reserved, dst_ip_addr, dst_conn_id, port, conn_id, dst_mac_addr, priority, deprecated1, deprecated2, wq_peer_granularity, cq_number, deprecated3, conn_peer, rdv, loopback, encap_en, encap_id, wq_peer_size, local_key, sack_en, pad }),
        layout!(nic::HlNicDestroyConnIn = "struct hl_nic_destroy_conn_in"; { port, conn_id }),
        layout!(nic::HlNicAllocCollConnIn = "struct hl_nic_alloc_coll_conn_in"; { is_scale_out, pad }),
        layout!(nic::HlNicAllocCollConnOut = "struct hl_nic_alloc_coll_conn_out"; { conn_id, pad }),
        layout!(nic::HlNicDumpQpIn = "struct hl_nic_dump_qp_in"; { user_buf, user_buf_size, port, qpn, req, pad }),
        layout!(nic::HlNicCqe = "struct hl_nic_cqe"; { what["requester.wqe_index", "responder.msg_id", "qp_err.syndrome"], port, qp_number, kind["type"], is_err, pad }),
        layout!(nic::HlNicUserWqArrSetIn = "struct hl_nic_user_wq_arr_set_in"; { addr, port, num_of_wqs, num_of_wq_entries, kind["type"], mem_id, swq_granularity, pad }),
        layout!(nic::HlNicUserWqArrSetOut = "struct hl_nic_user_wq_arr_set_out"; { mem_handle }),
        layout!(nic::HlNicUserWqArrUnsetIn = "struct hl_nic_user_wq_arr_unset_in"; { port, kind["type"] }),
        layout!(nic::HlNicUserCqSetIn = "struct hl_nic_user_cq_set_in"; { addr, port, num_of_cqes }),
        layout!(nic::HlNicUserCqUnsetIn = "struct hl_nic_user_cq_unset_in"; { port, pad }),
        layout!(nic::HlNicUserCqUpdateCiIn = "struct hl_nic_user_cq_update_ci_in"; { port, ci }),
        layout!(nic::HlNicAllocUserCqIdIn = "struct hl_nic_alloc_user_cq_id_in"; { port, pad }),
        layout!(nic::HlNicAllocUserCqIdOut = "struct hl_nic_alloc_user_cq_id_out"; { id, pad }),
        layout!(nic::HlNicUserCqIdSetIn = "struct hl_nic_user_cq_id_set_in"; { port, num_of_cqes, id, pad }),
        layout!(nic::HlNicUserCqIdSetOut = "struct hl_nic_user_cq_id_set_out"; { mem_handle, pi_handle, regs_handle, regs_offset, pad }),
        layout!(nic::HlNicUserCqIdUnsetIn = "struct hl_nic_user_cq_id_unset_in"; { port, id }),
        layout!(nic::HlNicUserCcqSetIn = "struct hl_nic_user_ccq_set_in"; { port, num_of_entries }),
        layout!(nic::HlNicUserCcqSetOut = "struct hl_nic_user_ccq_set_out"; { mem_handle, pi_handle, id, pad }),
        layout!(nic::HlNicUserCcqUnsetIn = "struct hl_nic_user_ccq_unset_in"; { port, pad }),
        layout!(nic::HlNicSetUserAppParamsIn = "struct hl_nic_set_user_app_params_in"; { port, bp_offs, advanced, pad1, fna_mask_size, pad2, fna_fifo_offs }),
        layout!(nic::HlNicGetUserAppParamsIn = "struct hl_nic_get_user_app_params_in"; { port, pad }),
        layout!(nic::HlNicGetUserAppParamsOut = "struct hl_nic_get_user_app_params_out"; { max_num_of_qps, num_allocated_qps, max_allocated_qp_idx, max_cq_size, advanced, max_num_of_cqs, max_num_of_db_fifos, max_num_of_encaps, speed, nic_macro_idx, nic_phys_port_idx, pad, max_num_of_scale_out_coll_qps, max_num_of_coll_qps, coll_qps_offset, base_scale_out_coll_qp_idx, base_coll_qp_idx }),
        layout!(nic::HlNicAllocUserDbFifoIn = "struct hl_nic_alloc_user_db_fifo_in"; { port, id_hint }),
        layout!(nic::HlNicAllocUserDbFifoOut = "struct hl_nic_alloc_user_db_fifo_out"; { id, pad }),
        layout!(nic::HlNicUserDbFifoSetIn = "struct hl_nic_user_db_fifo_set_in"; { port, id, mode, dir_dup_ports_mask, pad, base_sob_addr, num_sobs }),
        layout!(nic::HlNicUserDbFifoSetOut = "struct hl_nic_user_db_fifo_set_out"; { ci_handle, regs_handle, regs_offset, pad, fifo_size, fifo_bp_thresh }),
        layout!(nic::HlNicUserDbFifoUnsetIn = "struct hl_nic_user_db_fifo_unset_in"; { port, id }),
        layout!(nic::HlNicEqPollIn = "struct hl_nic_eq_poll_in"; { port, pad }),
        layout!(nic::HlNicEqPollOut = "struct hl_nic_eq_poll_out"; { status, idx, ev_data, ev_type, rest_occurred, is_req, pad }),
        layout!(nic::HlNicUserEncapAllocIn = "struct hl_nic_user_encap_alloc_in"; { port, pad }),
        layout!(nic::HlNicUserEncapAllocOut = "struct hl_nic_user_encap_alloc_out"; { id, pad }),
        layout!(nic::HlNicUserEncapSetIn = "struct hl_nic_user_encap_set_in"; { tnl_hdr_ptr, tnl_hdr_size, port, id, ipv4_addr, proto["udp_dst_port", "ip_proto"], encap_type, pad }),
        layout!(nic::HlNicUserEncapUnsetIn = "struct hl_nic_user_encap_unset_in"; { port, id }),
    ]
}

fn others() -> Vec<Layout> {
    let mut hw_ip = Layout {
        c_type: "struct hl_info_hw_ip_info",
        size: Some(size_of::<info::HlInfoHwIpInfo>()),
        size_6_1: None,
        fields: Vec::new(),
        home: DRIVER,
    };
    // Mainline's reserved fields have names here.
    macro_rules! named {
        ($($field:ident = $c_path:literal,)*) => {
            $({
                let (size, rust_type) = field_shape(|v: &info::HlInfoHwIpInfo| &v.$field);
                hw_ip.fields.push(Field {
                    c_path: $c_path,
                    offset: offset_of!(info::HlInfoHwIpInfo, $field),
                    size,
                    since: Since::Gaudi3,
                    rust_type,
                });
            })*
        };
    }
    named! {
        reserved1 = "interposer_version",
        reserved2 = "substrate_version",
        reserved3 = "pdma_user_owned_ch_mask",
        reserved4 = "nic_ports_mask",
        reserved5 = "nic_ports_external_mask",
        reserved6 = "mme_enabled_mask",
        reserved7 = "odp_supported",
        reserved9 = "sched_arc_enabled_mask",
    }
    let link = Layout {
        c_type: "struct hl_info_args",
        size: None,
        size_6_1: None,
        fields: vec![Field {
            c_path: "habana_link_id",
            offset: offset_of!(info::HlInfoArgs, arg),
            size: size_of::<u32>(),
            since: Since::Gaudi3,
            rust_type: "u32",
        }],
        home: DRIVER,
    };
    vec![
        hw_ip,
        link,
        layout!(info::HlInfoHabanaLinkState = "struct hl_info_habana_link_state"; { up, pad }),
        layout!(info::HlInfoHabanaLinkCounters = "struct hl_info_habana_link_counters"; {
            str_buf_ptr, val_buf_ptr, num_of_stat, pad
        }),
        layout!(info::HlInfoTimeSyncPerDie = "struct hl_info_time_sync_per_die"; {
            die_index, pad, device_time, host_time, tsc_time
        }),
        layout!(info::HlInfoModuleParams = "struct hl_info_module_params"; {
            tpc_mask, gaudi_huge_page_optimization, timeout_locked, reset_on_lockup, pldm, mmu_enable,
            clock_gating, mme_enable, nic_ports_mask, dram_enable, cpu_enable, reset_pcilink, config_pll,
            cpu_queues_enable, fw_loading, heartbeat, axi_drain, security_enable, sram_scrambler_enable,
            dram_scrambler_enable, cache_enabled, hbm_ecc_enable, compatibility_mode, hard_reset_on_fw_events,
            decoder_mask, rotator_mask, dram_page_scrub, clock_gating_ext, fw_loading_ext, nic_lanes_per_port,
            pad[]
        }),
        layout!(memory::HlMemInRegDmabufFd, in memory::HlMemIn, at arg, c "struct hl_mem_in"; {
            fd["reg_dmabuf_fd.fd"], length["reg_dmabuf_fd.length"]
        }),
        layout!(debug::HlDebugParamsFetchTrace = "struct hl_debug_params_fetch_trace"; {
            buffer_address, buffer_size, buffer_index_address, copied_size_addr, etr_id, timeout_ms
        }),
        layout!(debug::HlDebugParamsMemAccess = "struct hl_debug_params_mem_access"; {
            cfg_address, user_address, size, reserved
        }),
        layout!(debug::HlDebugParamsScheduler = "struct hl_debug_params_scheduler"; {
            cpu_id, queue_id, buffer, size, reserved
        }),
        layout!(debug::HlDebugParamsReadBlock = "struct hl_debug_params_read_block"; {
            cfg_address, user_address, size, flags
        }),
    ]
}
