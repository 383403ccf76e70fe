//! Functions that the header of the Gaudi3 release adds.
//!
//! The vendor did not publish this library. The requests are derived from the driver's header;
//! anything that the header does not define is marked as a guess. A driver that lacks an operation
//! rejects it (mainline with `EINVAL`), and that error is returned. Functions without a driver
//! operation fail with `EOPNOTSUPP`.

use std::ffi::{c_char, c_int, c_void};

use gaudi_sys::Errno;
use gaudi_uapi::Ioctl;
use gaudi_uapi::debug::{DebugOp, HlDebugArgs, HlDebugParamsReadBlock};
use gaudi_uapi::info::{HlInfoHabanaLinkCounters, HlInfoHwIpInfo, HlInfoTimeSyncPerDie, InfoOp};
use gaudi_uapi::nic::*;
use zerocopy::{FromBytes, IntoBytes};

use crate::device;
use crate::info::{ask_into, fill, query};
use crate::types::*;

/// The empty answer of an operation.
#[derive(FromBytes, IntoBytes)]
#[repr(C)]
struct Nothing;

fn address_of<T>(value: &mut T) -> (u64, u32) {
    match size_of::<T>() as u32 {
        0 => (0, 0),
        size => (std::ptr::from_mut(value).expose_provenance() as u64, size),
    }
}

/// Performs an operation on the network ports.
fn nic<I: IntoBytes, O: FromBytes + IntoBytes>(fd: c_int, op: NicOp, mut input: I) -> Result<O, Errno> {
    let mut output = O::new_zeroed();
    let (input_ptr, input_size) = address_of(&mut input);
    let (output_ptr, output_size) = address_of(&mut output);
    let mut args = HlNicArgs {
        input_ptr,
        output_ptr,
        input_size,
        output_size,
        ctx_id: 0,
        op,
    };
    device::ioctl(fd, Ioctl::Nic, &mut args)?;
    Ok(output)
}

fn order<I: IntoBytes>(fd: c_int, op: NicOp, input: I) -> Result<c_int, Errno> {
    nic::<I, Nothing>(fd, op, input).map(|_| 0)
}

exports! {
    /// Reports the MAC addresses of the network ports. Not supported, because the mainline driver
    /// has no ports.
    ///
    /// # Errors
    /// `-EOPNOTSUPP`.
    fn hlthunk_get_mac_addr_info(
        _fd: c_int,
        _info: *mut HlthunkMacAddrInfo,
    ) -> c_int as negative_errno {
        Err(Errno::EOPNOTSUPP)
    }

    /// Reports whether a port's link is up.
    ///
    /// # Errors
    /// `-EINVAL`: `in` or `out` is null. Otherwise `-errno` of the driver.
    fn hlthunk_get_habana_link_state(
        fd: c_int,
        input: *mut HlthunkGetHabanaLinkStateIn,
        out: *mut HlthunkGetHabanaLinkStateOut,
    ) -> c_int as negative_errno {
        let port = input.read()?.port;
        fill(fd, InfoOp::HABANA_LINK_STATE, out, port)
    }

    /// Writes the names and values of a port's counters to the caller's buffers, and
    /// their number to `out`.
    ///
    /// # Errors
    /// `-EINVAL`: `in` or `out` is null. Otherwise `-errno` of the driver.
    fn hlthunk_get_habana_link_statistics(
        fd: c_int,
        input: *mut HlthunkGetHabanaLinkStatIn,
        out: *mut HlthunkGetHabanaLinkStatOut,
    ) -> c_int as negative_errno {
        let port = input.read()?.port;
        let mut answer = out.read()?;
        let mut counters = HlInfoHabanaLinkCounters {
            str_buf_ptr: answer.str_buf as u64,
            val_buf_ptr: answer.val_buf as u64,
            ..HlInfoHabanaLinkCounters::default()
        };
        ask_into(fd, InfoOp::HABANA_LINK_COUNTERS, &mut counters, port)?;
        answer.num_of_stat = counters.num_of_stat;
        out.write(answer).map(|()| 0)
    }

    /// Reports device time of one die and host time: all 24 bytes of the Gaudi3 header's struct.
    ///
    /// # Errors
    /// `-EINVAL`: `info` is null. Otherwise `-errno` of the driver.
    fn hlthunk_get_time_sync_per_die_info(
        fd: c_int,
        die_index: u32,
        info: *mut HlthunkTimeSyncInfo,
    ) -> c_int as negative_errno {
        info.check()?;
        let mut times = HlInfoTimeSyncPerDie {
            die_index,
            ..HlInfoTimeSyncPerDie::default()
        };
        ask_into(fd, InfoOp::TIME_SYNC_PER_DIE, &mut times, 0)?;
        info.write(HlthunkTimeSyncInfo {
            device_time: times.device_time,
            host_time: times.host_time,
            tsc_time: times.tsc_time,
        })?;
        Ok(0)
    }

    /// Reports device information that the device has signed.
    ///
    /// # Errors
    /// `-EINVAL`: `info` is null. Otherwise `-errno` of the driver.
    fn hlthunk_get_dev_info_signed(
        fd: c_int,
        nonce: u32,
        info: *mut HlthunkDevInfoSigned,
    ) -> c_int as negative_errno {
        fill(fd, InfoOp::DEV_SIGNED, info, nonce)
    }

    /// Reports the enabled network ports, and those with a network device. The mainline driver
    /// reports none.
    ///
    /// # Errors
    /// `-EINVAL`: `out` is null. Otherwise `-errno` of the driver.
    fn hlthunk_nic_get_ports_masks(
        fd: c_int,
        out: *mut HlthunkNicGetPortsMasksOut,
    ) -> c_int as negative_errno {
        out.check()?;
        let hw: HlInfoHwIpInfo = query(fd, 0)?;
        // The words that the Gaudi3 header calls so, as in `hlthunk_get_hw_ip_info`.
        out.write(HlthunkNicGetPortsMasksOut {
            ports_mask: hw.reserved4,
            ext_ports_mask: hw.reserved5,
        })?;
        Ok(0)
    }

    /// Reads a block of the device's address space, at most 16 KiB.
    ///
    /// # Errors
    /// `-EINVAL`: `buff` is null. Otherwise `-errno` of the driver.
    fn hlthunk_device_memory_read_block_experimental(
        fd: c_int,
        buff: *mut u32,
        block_address: u64,
        block_size: u32,
        flags: u32,
    ) -> c_int as negative_errno {
        let mut block = HlDebugParamsReadBlock {
            cfg_address: block_address,
            user_address: buff.check()?.address(),
            size: block_size,
            flags,
        };
        let (input_ptr, input_size) = address_of(&mut block);
        // guess: `enable` is not used; the header has it for operations that start and stop
        let mut args = HlDebugArgs {
            input_ptr,
            input_size,
            op: DebugOp::READBLOCK,
            ..HlDebugArgs::default()
        };
        device::ioctl(fd, Ioctl::Debug, &mut args).map(|()| 0)
    }

    /// Allocates a connection of a port.
    ///
    /// # Errors
    /// `-EINVAL`: `conn_id` is null. Otherwise `-errno` of the driver.
    fn hlthunk_alloc_conn(fd: c_int, port: u32, conn_id: *mut u32) -> c_int as negative_errno {
        conn_id.check()?;
        let input = HlNicAllocConnIn { port, hint: 0 };
        let answer: HlNicAllocConnOut = nic(fd, NicOp::ALLOC_CONN, input)?;
        conn_id.write(answer.conn_id).map(|()| 0)
    }

    /// Allocates a connection of a collective.
    ///
    /// # Errors
    /// `-EINVAL`: `in` or `conn_id` is null. Otherwise `-errno` of the driver.
    fn hlthunk_alloc_coll_conn(
        fd: c_int,
        input: *mut HlthunkNicAllocCollConnIn,
        conn_id: *mut u32,
    ) -> c_int as negative_errno {
        let input = HlNicAllocCollConnIn {
            is_scale_out: input.read()?.is_scale_out,
            ..HlNicAllocCollConnIn::default()
        };
        conn_id.check()?;
        let answer: HlNicAllocCollConnOut = nic(fd, NicOp::ALLOC_COLL_CONN, input)?;
        conn_id.write(answer.conn_id).map(|()| 0)
    }

    /// Sets the sending side of a connection.
    ///
    /// # Errors
    /// `-EINVAL`: `in` or `out` is null. Otherwise `-errno` of the driver.
    fn hlthunk_set_requester_conn_ctx(
        fd: c_int,
        port: u32,
        conn_id: u32,
        input: *const HlthunkRequesterConnCtx,
        out: *mut HlthunkRequesterConnCtxOut,
    ) -> c_int as negative_errno {
        let from = input.read()?;
        out.check()?;
        let request = HlNicReqConnCtxIn {
            dst_ip_addr: from.dst_ip_addr,
            dst_conn_id: from.dst_conn_id,
            last_index: from.last_index,
            port,
            conn_id,
            dst_mac_addr: from.dst_mac_addr,
            priority: from.priority,
            timer_granularity: from.timer_granularity,
            swq_granularity: from.swq_granularity,
            wq_type: from.wq_type,
            cq_number: from.cq_number,
            wq_remote_log_size: from.wq_remote_log_size,
            congestion_en: from.congestion_en,
            congestion_wnd: from.congestion_wnd,
            mtu: from.mtu,
            encap_en: from.encap_en,
            encap_id: from.encap_id,
            wq_size: from.wq_size,
            loopback: from.loopback,
            coll_lag_idx: from.coll_lag_idx,
            coll_last_in_lag: from.coll_last_in_lag,
            compression_en: from.compression_en,
            remote_key: from.remote_key,
            sack_en: from.sack_en,
            ..HlNicReqConnCtxIn::default()
        };
        let answer: HlNicReqConnCtxOut = nic(fd, NicOp::SET_REQ_CONN_CTX, request)?;
        out.write(HlthunkRequesterConnCtxOut {
            swq_mem_handle: answer.swq_mem_handle,
            rwq_mem_handle: answer.rwq_mem_handle,
        })?;
        Ok(0)
    }

    /// Sets the receiving side of a connection.
    ///
    /// # Errors
    /// `-EINVAL`: `ctx` is null. Otherwise `-errno` of the driver.
    fn hlthunk_set_responder_conn_ctx(
        fd: c_int,
        port: u32,
        conn_id: u32,
        ctx: *const HlthunkResponderConnCtx,
    ) -> c_int as negative_errno {
        let from = ctx.read()?;
        let request = HlNicResConnCtxIn {
            dst_ip_addr: from.dst_ip_addr,
            dst_conn_id: from.dst_conn_id,
            port,
            conn_id,
            dst_mac_addr: from.dst_mac_addr,
            priority: from.priority,
            wq_peer_granularity: from.wq_peer_granularity,
            cq_number: from.cq_number,
            conn_peer: from.conn_peer,
            rdv: from.rdv,
            loopback: from.loopback,
            encap_en: from.encap_en,
            encap_id: from.encap_id,
            wq_peer_size: from.wq_peer_size,
            local_key: from.local_key,
            sack_en: from.sack_en,
            ..HlNicResConnCtxIn::default()
        };
        order(fd, NicOp::SET_RES_CONN_CTX, request)
    }

    /// Destroys a connection.
    ///
    /// # Errors
    /// `-errno` of the driver.
    fn hlthunk_destroy_conn(fd: c_int, port: u32, conn_id: u32) -> c_int as negative_errno {
        order(fd, NicOp::DESTROY_CONN, HlNicDestroyConnIn { port, conn_id })
    }

    /// Creates a completion queue of the deprecated kind: refused.
    ///
    /// # Errors
    /// `-EOPNOTSUPP`.
    fn hlthunk_nic_cq_create(
        _fd: c_int,
        _num_of_entries: u32,
        _handle: *mut u64,
    ) -> c_int as negative_errno {
        Err(Errno::EOPNOTSUPP)
    }

    /// Destroys a completion queue of the deprecated kind: refused.
    ///
    /// # Errors
    /// `-EOPNOTSUPP`.
    fn hlthunk_nic_cq_destroy(_fd: c_int, _handle: u64) -> c_int as negative_errno {
        Err(Errno::EOPNOTSUPP)
    }

    /// Waits for a completion queue of the deprecated kind: refused.
    ///
    /// # Errors
    /// `-EOPNOTSUPP`.
    fn hlthunk_nic_cq_wait(
        _fd: c_int,
        _handle: u64,
        _status: *mut u32,
        _pi: *mut u32,
        _num_of_cqes: *mut u32,
        _timeout_us: u64,
    ) -> c_int as negative_errno {
        Err(Errno::EOPNOTSUPP)
    }

    /// Returns entries of a completion queue of the deprecated kind: refused.
    ///
    /// # Errors
    /// `-EOPNOTSUPP`.
    fn hlthunk_nic_cq_update_consumed_entries(
        _fd: c_int,
        _handle: u64,
        _num_of_consumed_entries: u32,
    ) -> c_int as negative_errno {
        Err(Errno::EOPNOTSUPP)
    }

    /// Sets a port's queue of congestion events.
    ///
    /// # Errors
    /// `-EINVAL`: `in` or `out` is null. Otherwise `-errno` of the driver.
    fn hlthunk_nic_user_ccq_set(
        fd: c_int,
        input: *mut HlthunkNicUserCcqSetIn,
        out: *mut HlthunkNicUserCcqSetOut,
    ) -> c_int as negative_errno {
        let HlthunkNicUserCcqSetIn { port, num_of_entries } = input.read()?;
        out.check()?;
        let request = HlNicUserCcqSetIn { port, num_of_entries };
        let answer: HlNicUserCcqSetOut = nic(fd, NicOp::USER_CCQ_SET, request)?;
        out.write(HlthunkNicUserCcqSetOut {
            ccq_handle: answer.mem_handle,
            ccq_pi_handle: answer.pi_handle,
        })?;
        Ok(0)
    }

    /// Unsets a port's queue of congestion events.
    ///
    /// # Errors
    /// `-errno` of the driver.
    fn hlthunk_nic_user_ccq_unset(fd: c_int, port: u32) -> c_int as negative_errno {
        order(fd, NicOp::USER_CCQ_UNSET, HlNicUserCcqUnsetIn { port, pad: 0 })
    }

    /// Sets a port's array of work queues.
    ///
    /// # Errors
    /// `-EINVAL`: `in` or `out` is null. Otherwise `-errno` of the driver.
    fn hlthunk_nic_wq_arr_set(
        fd: c_int,
        input: *mut HlthunkNicWqArrSetIn,
        out: *mut HlthunkNicWqArrSetOut,
    ) -> c_int as negative_errno {
        let from = input.read()?;
        out.check()?;
        let request = HlNicUserWqArrSetIn {
            addr: from.addr,
            port: from.port,
            num_of_wqs: from.num_of_wqs,
            num_of_wq_entries: from.num_of_wq_entries,
            kind: from.r#type,
            mem_id: from.mem_id,
            swq_granularity: from.swq_granularity,
            ..HlNicUserWqArrSetIn::default()
        };
        let answer: HlNicUserWqArrSetOut = nic(fd, NicOp::USER_WQ_SET, request)?;
        out.write(HlthunkNicWqArrSetOut {
            handle: answer.mem_handle,
        })?;
        Ok(0)
    }

    /// Unsets a port's array of work queues.
    ///
    /// # Errors
    /// `-errno` of the driver.
    fn hlthunk_nic_wq_arr_unset(fd: c_int, port: u32, kind: u32) -> c_int as negative_errno {
        order(fd, NicOp::USER_WQ_UNSET, HlNicUserWqArrUnsetIn { port, kind })
    }

    /// Sets a port's completion queue (Gaudi).
    ///
    /// # Errors
    /// `-errno` of the driver.
    fn hlthunk_nic_user_cq_set(
        fd: c_int,
        port: u32,
        addr: u64,
        num_of_cqes: u32,
    ) -> c_int as negative_errno {
        let request = HlNicUserCqSetIn {
            addr,
            port,
            num_of_cqes,
        };
        order(fd, NicOp::USER_CQ_SET, request)
    }

    /// Unsets a port's completion queue (Gaudi).
    ///
    /// # Errors
    /// `-errno` of the driver.
    fn hlthunk_nic_user_cq_unset(fd: c_int, port: u32) -> c_int as negative_errno {
        order(fd, NicOp::USER_CQ_UNSET, HlNicUserCqUnsetIn { port, pad: 0 })
    }

    /// Reports how far a port's completion queue was read (Gaudi).
    ///
    /// # Errors
    /// `-errno` of the driver.
    fn hlthunk_nic_user_cq_update_ci(fd: c_int, port: u32, ci: u32) -> c_int as negative_errno {
        order(fd, NicOp::USER_CQ_UPDATE_CI, HlNicUserCqUpdateCiIn { port, ci })
    }

    /// Allocates the id of a completion queue.
    ///
    /// # Errors
    /// `-EINVAL`: `in` or `out` is null. Otherwise `-errno` of the driver.
    fn hlthunk_nic_user_cq_id_alloc(
        fd: c_int,
        input: *mut HlthunkNicUserCqIdAllocIn,
        out: *mut HlthunkNicUserCqIdAllocOut,
    ) -> c_int as negative_errno {
        let port = input.read()?.port;
        out.check()?;
        let answer: HlNicAllocUserCqIdOut =
            nic(fd, NicOp::ALLOC_USER_CQ_ID, HlNicAllocUserCqIdIn { port, pad: 0 })?;
        out.write(HlthunkNicUserCqIdAllocOut { id: answer.id }).map(|()| 0)
    }

    /// Sets a completion queue.
    ///
    /// # Errors
    /// `-EINVAL`: `in` or `out` is null. Otherwise `-errno` of the driver.
    fn hlthunk_nic_user_cq_id_set(
        fd: c_int,
        input: *mut HlthunkNicUserCqIdSetIn,
        out: *mut HlthunkNicUserCqIdSetOut,
    ) -> c_int as negative_errno {
        let from = input.read()?;
        out.check()?;
        let request = HlNicUserCqIdSetIn {
            port: from.port,
            num_of_cqes: from.num_of_cqes,
            id: from.id,
            pad: 0,
        };
        let answer: HlNicUserCqIdSetOut = nic(fd, NicOp::USER_CQ_ID_SET, request)?;
        out.write(HlthunkNicUserCqIdSetOut {
            mem_handle: answer.mem_handle,
            pi_handle: answer.pi_handle,
            regs_handle: answer.regs_handle,
            regs_offset: answer.regs_offset,
        })?;
        Ok(0)
    }

    /// Unsets a completion queue.
    ///
    /// # Errors
    /// `-EINVAL`: `in` is null, or the id exceeds 32 bits. Otherwise `-errno` of the driver.
    fn hlthunk_nic_user_cq_id_unset(
        fd: c_int,
        input: *mut HlthunkNicUserCqIdUnsetIn,
    ) -> c_int as negative_errno {
        let from = input.read()?;
        let id = u32::try_from(from.id).map_err(|_| Errno::EINVAL)?;
        order(fd, NicOp::USER_CQ_ID_UNSET, HlNicUserCqIdUnsetIn { port: from.port, id })
    }

    /// Sets what a program wants of a port.
    ///
    /// # Errors
    /// `-EINVAL`: `in` is null. Otherwise `-errno` of the driver.
    fn hlthunk_nic_user_set_app_params(
        fd: c_int,
        port: u32,
        input: *const HlthunkNicUserSetAppParamsIn,
    ) -> c_int as negative_errno {
        let from = input.read()?;
        let request = HlNicSetUserAppParamsIn {
            port,
            bp_offs: from.bp_offs,
            advanced: from.advanced,
            fna_mask_size: from.fna_mask_size,
            fna_fifo_offs: from.fna_fifo_offs,
            ..HlNicSetUserAppParamsIn::default()
        };
        order(fd, NicOp::SET_USER_APP_PARAMS, request)
    }

    /// Reports what a port has.
    ///
    /// # Errors
    /// `-EINVAL`: `out` is null. Otherwise `-errno` of the driver.
    fn hlthunk_nic_user_get_app_params(
        fd: c_int,
        port: u32,
        out: *mut HlthunkNicUserGetAppParamsOut,
    ) -> c_int as negative_errno {
        out.check()?;
        let request = HlNicGetUserAppParamsIn { port, pad: [0; 4] };
        let answer: HlNicGetUserAppParamsOut = nic(fd, NicOp::GET_USER_APP_PARAMS, request)?;
        out.write(HlthunkNicUserGetAppParamsOut {
            max_num_of_qps: answer.max_num_of_qps,
            num_allocated_qps: answer.num_allocated_qps,
            max_allocated_qp_idx: answer.max_allocated_qp_idx,
            max_cq_size: answer.max_cq_size,
            advanced: answer.advanced,
            max_num_of_cqs: answer.max_num_of_cqs,
            max_num_of_db_fifos: answer.max_num_of_db_fifos,
            max_num_of_encaps: answer.max_num_of_encaps,
            speed: answer.speed,
            max_num_of_coll_qps: answer.max_num_of_coll_qps,
            coll_qps_offset: answer.coll_qps_offset,
            base_coll_qp_idx: answer.base_coll_qp_idx,
            base_scale_out_coll_qp_idx: answer.base_scale_out_coll_qp_idx,
            max_num_of_scale_out_coll_qps: answer.max_num_of_scale_out_coll_qps,
        })?;
        Ok(0)
    }

    /// Takes the next event of a port.
    ///
    /// # Errors
    /// `-EINVAL`: `out` is null. Otherwise `-errno` of the driver.
    fn hlthunk_nic_eq_poll(
        fd: c_int,
        port: u32,
        out: *mut HlthunkNicEqPollOut,
    ) -> c_int as negative_errno {
        out.check()?;
        let answer: HlNicEqPollOut = nic(fd, NicOp::EQ_POLL, HlNicEqPollIn { port, pad: 0 })?;
        out.write(HlthunkNicEqPollOut {
            poll_status: answer.status,
            idx: answer.idx,
            ev_data: answer.ev_data,
            ev_type: answer.ev_type,
        })?;
        Ok(0)
    }

    /// Allocates a doorbell fifo.
    ///
    /// # Errors
    /// `-EINVAL`: `id` is null. Otherwise `-errno` of the driver.
    fn hlthunk_nic_alloc_user_db_fifo(
        fd: c_int,
        port: u32,
        id: *mut u32,
    ) -> c_int as negative_errno {
        // guess: the value before the call is the wanted id
        let request = HlNicAllocUserDbFifoIn {
            port,
            id_hint: id.read()?,
        };
        let answer: HlNicAllocUserDbFifoOut = nic(fd, NicOp::ALLOC_USER_DB_FIFO, request)?;
        id.write(answer.id).map(|()| 0)
    }

    /// Sets a doorbell fifo.
    ///
    /// # Errors
    /// `-EINVAL`: `in` or `out` is null. Otherwise `-errno` of the driver.
    fn hlthunk_nic_user_db_fifo_set(
        fd: c_int,
        input: *mut HlthunkNicUserDbFifoSetIn,
        out: *mut HlthunkNicUserDbFifoSetOut,
    ) -> c_int as negative_errno {
        let from = input.read()?;
        out.check()?;
        let request = HlNicUserDbFifoSetIn {
            port: from.port,
            id: from.id,
            mode: from.mode,
            dir_dup_ports_mask: from.dir_dup_ports_mask,
            pad: [0; 6],
            base_sob_addr: from.base_sob_addr,
            num_sobs: from.num_sobs,
        };
        let answer: HlNicUserDbFifoSetOut = nic(fd, NicOp::USER_DB_FIFO_SET, request)?;
        out.write(HlthunkNicUserDbFifoSetOut {
            ci_handle: answer.ci_handle,
            regs_handle: answer.regs_handle,
            fifo_size: answer.fifo_size,
            fifo_bp_thresh: answer.fifo_bp_thresh,
            regs_offset: answer.regs_offset,
        })?;
        Ok(0)
    }

    /// Unsets a doorbell fifo.
    ///
    /// # Errors
    /// `-errno` of the driver.
    fn hlthunk_nic_user_db_fifo_unset(fd: c_int, port: u32, id: u32) -> c_int as negative_errno {
        order(fd, NicOp::USER_DB_FIFO_UNSET, HlNicUserDbFifoUnsetIn { port, id })
    }

    /// Allocates the id of an encapsulation.
    ///
    /// # Errors
    /// `-EINVAL`: `encap_id` is null. Otherwise `-errno` of the driver.
    fn hlthunk_nic_user_encap_alloc(
        fd: c_int,
        port: u32,
        encap_id: *mut u32,
    ) -> c_int as negative_errno {
        encap_id.check()?;
        let request = HlNicUserEncapAllocIn { port, pad: 0 };
        let answer: HlNicUserEncapAllocOut = nic(fd, NicOp::USER_ENCAP_ALLOC, request)?;
        encap_id.write(answer.id).map(|()| 0)
    }

    /// Sets an encapsulation.
    ///
    /// # Errors
    /// `-EINVAL`: `encap_cfg` is null. Otherwise `-errno` of the driver.
    fn hlthunk_nic_user_encap_set(
        fd: c_int,
        encap_cfg: *const HlthunkEncapCfg,
    ) -> c_int as negative_errno {
        let from = encap_cfg.read()?;
        let request = HlNicUserEncapSetIn {
            tnl_hdr_ptr: from.tnl_hdr_ptr as u64,
            tnl_hdr_size: from.tnl_hdr_size,
            port: from.port,
            id: from.id,
            ipv4_addr: from.src_ipv4_addr,
            proto: from.udp_dst_port,
            encap_type: u8::try_from(from.encap_type).map_err(|_| Errno::EINVAL)?,
            ..HlNicUserEncapSetIn::default()
        };
        order(fd, NicOp::USER_ENCAP_SET, request)
    }

    /// Unsets an encapsulation.
    ///
    /// # Errors
    /// `-errno` of the driver.
    fn hlthunk_nic_user_encap_unset(
        fd: c_int,
        port: u32,
        encap_id: u32,
    ) -> c_int as negative_errno {
        order(fd, NicOp::USER_ENCAP_UNSET, HlNicUserEncapUnsetIn { port, id: encap_id })
    }

    /// Writes the state of a queue pair as text.
    ///
    /// # Errors
    /// `-EINVAL`: `buf` is null. Otherwise `-errno` of the driver.
    fn hlthunk_nic_dump_qp(
        fd: c_int,
        port: u32,
        qpn: u32,
        req: u32,
        buf: *mut c_char,
        buf_size: u32,
    ) -> c_int as negative_errno {
        let request = HlNicDumpQpIn {
            user_buf: buf.check()?.address(),
            user_buf_size: buf_size,
            port,
            qpn,
            req: (req != 0).into(),
            pad: [0; 3],
        };
        order(fd, NicOp::DUMP_QP, request)
    }

    /// Creates an address space of the Xe driver: refused.
    ///
    /// # Errors
    /// `-EOPNOTSUPP`.
    fn hlthunk_nic_xe_vm_create(
        _fd: c_int,
        _vm: *mut u32,
        _vm_fd: *mut c_int,
    ) -> c_int as negative_errno {
        Err(Errno::EOPNOTSUPP)
    }

    /// Destroys an address space of the Xe driver: refused.
    ///
    /// # Errors
    /// `-EOPNOTSUPP`.
    fn hlthunk_nic_xe_vm_destroy(_fd: c_int, _vm: u32, _vm_fd: c_int) -> c_int as negative_errno {
        Err(Errno::EOPNOTSUPP)
    }

    /// Allocates memory of the Xe driver: refused.
    ///
    /// # Errors
    /// 0 and `EOPNOTSUPP`.
    fn hlthunk_nic_xe_device_memory_alloc(_fd: c_int, _vm: u32, _size: u64) -> u64 as nothing {
        Err(Errno::EOPNOTSUPP)
    }

    /// Frees memory of the Xe driver: refused.
    ///
    /// # Errors
    /// `-EOPNOTSUPP`.
    fn hlthunk_nic_xe_device_memory_free(_fd: c_int, _handle: u64) -> c_int as negative_errno {
        Err(Errno::EOPNOTSUPP)
    }

    /// Maps memory with the Xe driver: refused.
    ///
    /// # Errors
    /// `-EOPNOTSUPP`.
    fn hlthunk_nic_xe_memory_map(
        _fd: c_int,
        _vm: u32,
        _handle: u64,
        _hva: *mut c_void,
        _dva: u64,
        _size: u64,
    ) -> c_int as negative_errno {
        Err(Errno::EOPNOTSUPP)
    }

    /// Unmaps memory with the Xe driver: refused.
    ///
    /// # Errors
    /// `-EOPNOTSUPP`.
    fn hlthunk_nic_xe_memory_unmap(
        _fd: c_int,
        _vm: u32,
        _dva: u64,
        _size: u64,
    ) -> c_int as negative_errno {
        Err(Errno::EOPNOTSUPP)
    }
}
