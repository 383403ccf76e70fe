//! Device information: `HL_IOCTL_INFO`.
//!
//! If the program's struct has the driver's layout, the kernel fills it directly, so an invalid
//! address fails with `EFAULT`. The driver writes the smaller of its struct's and the program's
//! size.

use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;

use gaudi_sys::Errno;
use gaudi_uapi::Ioctl;
use gaudi_uapi::info::{
    DeviceStatus, HlInfoArgs, HlInfoClkRate, HlInfoCsCounters, HlInfoDeviceStatus, HlInfoHwIdle,
    HlInfoHwIpInfo, InfoAnswer, InfoOp,
};

use crate::device;
use crate::pointer::Pointer;
use crate::types::{
    HlthunkClkThrottleInfo, HlthunkDramReplacedRowsInfo, HlthunkDramUsageInfo, HlthunkEnergyInfo,
    HlthunkEnginesIdleInfo, HlthunkHwAsicStatus, HlthunkHwIpInfo, HlthunkOpenStatsInfo,
    HlthunkPciCountersInfo, HlthunkPllFrequencyInfo, HlthunkPowerInfo, HlthunkResetCountInfo,
    HlthunkSecAttestInfo, HlthunkSyncManagerInfo, HlthunkTimeSyncInfo,
};

/// Performs an INFO operation whose answer the kernel writes to an address of the program.
#[inline]
pub(crate) fn ask(fd: c_int, op: InfoOp, address: u64, size: u32, arg: u32) -> Result<HlInfoArgs, Errno> {
    let mut args = HlInfoArgs::new(op, address, size, arg);
    device::ioctl(fd, Ioctl::Info, &mut args)?;
    Ok(args)
}

/// Performs an INFO operation whose answer the kernel writes to the program's struct.
#[inline]
pub(crate) fn fill<T>(fd: c_int, op: InfoOp, into: Pointer<T>, arg: u32) -> Result<c_int, Errno> {
    let address = into.check()?.address();
    ask(fd, op, address, size_of::<T>() as u32, arg).map(|_| 0)
}

/// Performs an INFO operation and returns its answer. Bytes that an older driver does not write are
/// 0.
#[inline]
pub(crate) fn query<T: InfoAnswer>(fd: c_int, arg: u32) -> Result<T, Errno> {
    let mut answer = T::new_zeroed();
    ask_into(fd, T::OP, &mut answer, arg)?;
    Ok(answer)
}

/// As [`query`], with initial values in the answer struct.
#[inline]
pub(crate) fn ask_into<T>(fd: c_int, op: InfoOp, answer: &mut T, arg: u32) -> Result<HlInfoArgs, Errno> {
    let address = (&raw mut *answer).expose_provenance() as u64;
    ask(fd, op, address, size_of::<T>() as u32, arg)
}

fn status(fd: c_int) -> Result<DeviceStatus, Errno> {
    query::<HlInfoDeviceStatus>(fd, 0).map(|answer| answer.status)
}

/// Not inlined, as [`fill_hw_ip`].
#[inline(never)]
fn fill_idle<'a>(
    idle: &HlInfoHwIdle,
    into: &'a mut MaybeUninit<HlthunkEnginesIdleInfo>,
) -> &'a mut HlthunkEnginesIdleInfo {
    into.write(HlthunkEnginesIdleInfo {
        is_idle: idle.is_idle,
        pad: 0,
        mask: idle.busy_engines_mask_ext,
    })
}

/// Fields that the mainline header reserves have the names of the Gaudi3 header.
///
/// Not inlined: only a call's arguments are known not to overlap.
#[inline(never)]
fn fill_hw_ip<'a>(
    hw: &HlInfoHwIpInfo,
    into: &'a mut MaybeUninit<HlthunkHwIpInfo>,
) -> &'a mut HlthunkHwIpInfo {
    into.write(HlthunkHwIpInfo {
        sram_base_address: hw.sram_base_address,
        dram_base_address: hw.dram_base_address,
        dram_size: hw.dram_size,
        sram_size: hw.sram_size,
        num_of_events: hw.num_of_events,
        device_id: hw.device_id,
        cpld_version: hw.cpld_version,
        psoc_pci_pll_nr: hw.psoc_pci_pll_nr,
        psoc_pci_pll_nf: hw.psoc_pci_pll_nf,
        psoc_pci_pll_od: hw.psoc_pci_pll_od,
        psoc_pci_pll_div_factor: hw.psoc_pci_pll_div_factor,
        tpc_enabled_mask: hw.tpc_enabled_mask.into(),
        dram_enabled: hw.dram_enabled,
        cpucp_version: hw.cpucp_version,
        module_id: hw.module_id,
        card_name: hw.card_name,
        decoder_enabled_mask: hw.decoder_enabled_mask,
        mme_master_slave_mode: hw.mme_master_slave_mode,
        tpc_enabled_mask_ext: hw.tpc_enabled_mask_ext,
        dram_page_size: hw.dram_page_size,
        first_available_interrupt_id: hw.first_available_interrupt_id,
        edma_enabled_mask: hw.edma_enabled_mask,
        server_type: hw.server_type.0,
        pdma_user_owned_ch_mask: hw.reserved3,
        number_of_user_interrupts: hw.number_of_user_interrupts,
        device_mem_alloc_default_page_size: hw.device_mem_alloc_default_page_size,
        nic_ports_mask: hw.reserved4,
        interposer_version: hw.reserved1,
        substrate_version: hw.reserved2,
        nic_ports_external_mask: hw.reserved5,
        mme_enabled_mask: hw.reserved6,
        odp_supported: hw.reserved7,
        security_enabled: hw.security_enabled,
        revision_id: hw.revision_id,
        tpc_interrupt_id: hw.tpc_interrupt_id,
        engine_core_interrupt_reg_addr: hw.engine_core_interrupt_reg_addr,
        rotator_enabled_mask: hw.rotator_enabled_mask,
        sched_arc_enabled_mask: hw.reserved9,
        reserved_dram_size: hw.reserved_dram_size,
    })
}

exports! {
    /// Passes a `struct hl_info_args` to the driver.
    ///
    /// # Errors
    /// `-errno` of the driver; `-EFAULT` for an invalid address.
    fn hlthunk_get_info(fd: c_int, info: *mut HlInfoArgs) -> c_int as negative_errno {
        device::ioctl_at(fd, Ioctl::Info, info.address()).map(|()| 0)
    }

    /// Reports the properties of the device.
    ///
    /// # Errors
    /// `-EINVAL`: `hw_ip` is null. Otherwise `-errno` of the driver.
    fn hlthunk_get_hw_ip_info(fd: c_int, hw_ip: *mut HlthunkHwIpInfo) -> c_int as negative_errno {
        hw_ip.check()?;
        // Not by `query`, whose result is a copy.
        let mut answer = HlInfoHwIpInfo::default();
        ask_into(fd, InfoOp::HW_IP_INFO, &mut answer, 0)?;
        hw_ip.write_by(|into| fill_hw_ip(&answer, into)).map(|()| 0)
    }

    /// Reports the number of opens, and the last user.
    ///
    /// # Errors
    /// `-EINVAL`: `open_stats` is null. Otherwise `-errno` of the driver.
    fn hlthunk_get_open_stats(
        fd: c_int,
        open_stats: *mut HlthunkOpenStatsInfo,
    ) -> c_int as negative_errno {
        fill(fd, InfoOp::OPEN_STATS, open_stats, 0)
    }

    /// Reports status, throttling, opens and power of the device in one struct. `valid` is 1 if the
    /// status is known, even if a later query fails.
    ///
    /// # Errors
    /// `-EINVAL`: `hw_asic_status` is null. Otherwise `-errno` of the driver.
    fn hlthunk_get_hw_asic_status(
        fd: c_int,
        hw_asic_status: *mut HlthunkHwAsicStatus,
    ) -> c_int as negative_errno {
        let mut seen = hw_asic_status.read()?;
        seen.valid = 0;
        hw_asic_status.write(seen)?;
        let status = status(fd)?;
        seen.status = status.0;
        seen.valid = 1;
        hw_asic_status.write(seen)?;
        ask_into(fd, InfoOp::CLK_THROTTLE_REASON, &mut seen.throttle, 0)?;
        ask_into(fd, InfoOp::OPEN_STATS, &mut seen.open_stats, 0)?;
        if status == DeviceStatus::OPERATIONAL {
            ask_into(fd, InfoOp::POWER, &mut seen.power, 0)?;
        }
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        // The clock is unset if it is before 1970.
        seen.timestamp_sec = now.map_or(0, |now| now.as_secs());
        hw_asic_status.write(seen).map(|()| 0)
    }

    /// Reports used and free device memory in bytes.
    ///
    /// # Errors
    /// `-EINVAL`: `dram_usage` is null. Otherwise `-errno` of the driver.
    fn hlthunk_get_dram_usage(
        fd: c_int,
        dram_usage: *mut HlthunkDramUsageInfo,
    ) -> c_int as negative_errno {
        fill(fd, InfoOp::DRAM_USAGE, dram_usage, 0)
    }

    /// Returns the device's status (`enum hl_device_status`).
    ///
    /// # Errors
    /// `-errno` of the driver.
    fn hlthunk_get_device_status_info(fd: c_int) -> c_int as negative_errno {
        status(fd).map(|status| status.0 as c_int)
    }

    /// Returns whether all engines are idle.
    ///
    /// # Errors
    /// Returns false and sets errno.
    fn hlthunk_is_device_idle(fd: c_int) -> bool as nothing {
        query::<HlInfoHwIdle>(fd, 0).map(|answer| answer.is_idle != 0)
    }

    /// Reports which engines are busy.
    ///
    /// # Errors
    /// `-EINVAL`: `info` is null. Otherwise `-errno` of the driver.
    fn hlthunk_get_busy_engines_mask(
        fd: c_int,
        info: *mut HlthunkEnginesIdleInfo,
    ) -> c_int as negative_errno {
        info.check()?;
        let mut answer = HlInfoHwIdle::default();
        ask_into(fd, InfoOp::HW_IDLE, &mut answer, 0)?;
        info.write_by(|into| fill_idle(&answer, into)).map(|()| 0)
    }

    /// Writes the state of the engines as text. Returns its length.
    ///
    /// # Errors
    /// `-EINVAL`: `status_buf` or `actual_size` is null. Otherwise `-errno` of the driver.
    fn hlthunk_get_engine_status(
        fd: c_int,
        status_buf: *mut c_char,
        status_buf_size: u32,
        actual_size: *mut c_int,
    ) -> c_int as negative_errno {
        if status_buf_size == 0 {
            return Err(Errno::EINVAL);
        }
        let address = status_buf.check()?.address();
        actual_size.check()?;
        let answer = ask(fd, InfoOp::ENGINE_STATUS, address, status_buf_size, 0)?;
        actual_size.write(answer.arg as c_int).map(|()| 0)
    }

    /// Reports the frequencies of a PLL in MHz.
    ///
    /// # Errors
    /// `-EINVAL`: `frequency` is null. Otherwise `-errno` of the driver.
    fn hlthunk_get_pll_frequency(
        fd: c_int,
        index: u32,
        frequency: *mut HlthunkPllFrequencyInfo,
    ) -> c_int as negative_errno {
        fill(fd, InfoOp::PLL_FREQUENCY, frequency, index)
    }

    /// Reports the device's utilization over the last `period_ms` milliseconds in percent.
    ///
    /// # Errors
    /// `-EINVAL`: `rate` is null. Otherwise `-errno` of the driver.
    fn hlthunk_get_device_utilization(
        fd: c_int,
        period_ms: u32,
        rate: *mut u32,
    ) -> c_int as negative_errno {
        fill(fd, InfoOp::DEVICE_UTILIZATION, rate, period_ms)
    }

    /// Reports the count of each event since the last reset, or since the driver was loaded. The
    /// size is in bytes.
    ///
    /// # Errors
    /// `-EINVAL`: `hw_events_arr` is null. Otherwise `-errno` of the driver.
    fn hlthunk_get_hw_events_arr(
        fd: c_int,
        aggregate: bool,
        hw_events_arr_size: u32,
        hw_events_arr: *mut u32,
    ) -> c_int as negative_errno {
        let op = if aggregate { InfoOp::HW_EVENTS_AGGREGATE } else { InfoOp::HW_EVENTS };
        ask(fd, op, hw_events_arr.check()?.address(), hw_events_arr_size, 0).map(|_| 0)
    }

    /// Reports the clock rate in MHz.
    ///
    /// # Errors
    /// `-EINVAL`: `cur_clk_mhz` or `max_clk_mhz` is null. Otherwise `-errno` of the driver.
    fn hlthunk_get_clk_rate(
        fd: c_int,
        cur_clk_mhz: *mut u32,
        max_clk_mhz: *mut u32,
    ) -> c_int as negative_errno {
        cur_clk_mhz.check()?;
        max_clk_mhz.check()?;
        let rate: HlInfoClkRate = query(fd, 0)?;
        cur_clk_mhz.write(rate.cur_clk_rate_mhz)?;
        max_clk_mhz.write(rate.max_clk_rate_mhz).map(|()| 0)
    }

    /// Reports the number of resets.
    ///
    /// # Errors
    /// `-EINVAL`: `info` is null. Otherwise `-errno` of the driver.
    fn hlthunk_get_reset_count_info(
        fd: c_int,
        info: *mut HlthunkResetCountInfo,
    ) -> c_int as negative_errno {
        fill(fd, InfoOp::RESET_COUNT, info, 0)
    }

    /// Reports device time and host time. Writes only the 16 bytes of the 2023 header's struct; the
    /// Gaudi3 header's `tsc_time` is left unchanged.
    ///
    /// # Errors
    /// `-EINVAL`: `info` is null. Otherwise `-errno` of the driver.
    fn hlthunk_get_time_sync_info(
        fd: c_int,
        info: *mut HlthunkTimeSyncInfo,
    ) -> c_int as negative_errno {
        let size = std::mem::offset_of!(HlthunkTimeSyncInfo, tsc_time) as u32;
        ask(fd, InfoOp::TIME_SYNC, info.check()?.address(), size, 0).map(|_| 0)
    }

    /// Reports the first sync object, monitor and completion queue of a dcore that programs can
    /// use.
    ///
    /// # Errors
    /// `-EINVAL`: `info` is null. Otherwise `-errno` of the driver.
    fn hlthunk_get_sync_manager_info(
        fd: c_int,
        dcore_id: c_int,
        info: *mut HlthunkSyncManagerInfo,
    ) -> c_int as negative_errno {
        fill(fd, InfoOp::SYNC_MANAGER, info, dcore_id as u32)
    }

    /// Reports the page sizes of device memory: bit N is a size of `1 << N` bytes.
    ///
    /// # Errors
    /// `-EINVAL`: `page_order_bitmask` is null. Otherwise `-errno` of the driver.
    fn hlthunk_get_dev_memalloc_page_orders(
        fd: c_int,
        page_order_bitmask: *mut u64,
    ) -> c_int as negative_errno {
        fill(fd, InfoOp::DEV_MEM_ALLOC_PAGE_SIZES, page_order_bitmask, 0)
    }

    /// Reports the number of dropped submissions.
    ///
    /// # Errors
    /// `-EINVAL`: `info` is null. Otherwise `-errno` of the driver.
    fn hlthunk_get_cs_counters_info(
        fd: c_int,
        info: *mut HlInfoCsCounters,
    ) -> c_int as negative_errno {
        fill(fd, InfoOp::CS_COUNTERS, info, 0)
    }

    /// Reports PCI throughput and the number of replays.
    ///
    /// # Errors
    /// `-EINVAL`: `info` is null. Otherwise `-errno` of the driver.
    fn hlthunk_get_pci_counters_info(
        fd: c_int,
        info: *mut HlthunkPciCountersInfo,
    ) -> c_int as negative_errno {
        fill(fd, InfoOp::PCI_COUNTERS, info, 0)
    }

    /// Reports the reason, start and duration of clock throttling.
    ///
    /// # Errors
    /// `-EINVAL`: `info` is null. Otherwise `-errno` of the driver.
    fn hlthunk_get_clk_throttle_info(
        fd: c_int,
        info: *mut HlthunkClkThrottleInfo,
    ) -> c_int as negative_errno {
        fill(fd, InfoOp::CLK_THROTTLE_REASON, info, 0)
    }

    /// Reports the energy consumption.
    ///
    /// # Errors
    /// `-EINVAL`: `info` is null. Otherwise `-errno` of the driver.
    fn hlthunk_get_total_energy_consumption_info(
        fd: c_int,
        info: *mut HlthunkEnergyInfo,
    ) -> c_int as negative_errno {
        fill(fd, InfoOp::TOTAL_ENERGY, info, 0)
    }

    /// Reports the power draw.
    ///
    /// # Errors
    /// `-EINVAL`: `info` is null. Otherwise `-errno` of the driver.
    fn hlthunk_get_power_info(fd: c_int, info: *mut HlthunkPowerInfo) -> c_int as negative_errno {
        fill(fd, InfoOp::POWER, info, 0)
    }

    /// Reports the replaced DRAM rows.
    ///
    /// # Errors
    /// `-EINVAL`: `info` is null. Otherwise `-errno` of the driver.
    fn hlthunk_get_dram_replaced_rows_info(
        fd: c_int,
        info: *mut HlthunkDramReplacedRowsInfo,
    ) -> c_int as negative_errno
        via fp_get_dram_replaced_rows_info of replaced_rows_original
    {
        fill(fd, InfoOp::DRAM_REPLACED_ROWS, info, 0)
    }

    /// Reports the number of DRAM rows pending replacement.
    ///
    /// # Errors
    /// `-EINVAL`: `out` is null. Otherwise `-errno` of the driver.
    fn hlthunk_get_dram_pending_rows_info(fd: c_int, out: *mut u32) -> c_int as negative_errno
        via fp_get_dram_pending_rows_info of pending_rows_original
    {
        fill(fd, InfoOp::DRAM_PENDING_ROWS, out, 0)
    }

    /// Reports the boot measurements, signed by the device.
    ///
    /// # Errors
    /// `-EINVAL`: `info` is null. Otherwise `-errno` of the driver.
    fn hlthunk_get_sec_attest_info(
        fd: c_int,
        nonce: u32,
        info: *mut HlthunkSecAttestInfo,
    ) -> c_int as negative_errno {
        fill(fd, InfoOp::SECURED_ATTESTATION, info, nonce)
    }

    /// Sends a request to the firmware and receives its answer in the same buffer.
    ///
    /// # Errors
    /// `-EINVAL`: `buff` is null. Otherwise `-errno` of the driver.
    fn hlthunk_fw_send_generic_request(
        fd: c_int,
        buff: *mut c_void,
        buff_size: u32,
        sub_opcode: u32,
    ) -> c_int as negative_errno {
        if buff_size == 0 {
            return Err(Errno::EINVAL);
        }
        ask(fd, InfoOp::FW_GENERIC_REQ, buff.check()?.address(), buff_size, sub_opcode).map(|_| 0)
    }
}
