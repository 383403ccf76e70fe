//! A table of functions, their ioctl and the words of its argument.

use std::ffi::c_int;

use gaudi_sys::Errno;
use gaudi_uapi::{Era, Ioctl};

use super::{FD, Seen, errno, on_driver, on_today};
use crate::*;

/// A word that the test cannot predict: an address inside the library.
const ANY: u64 = 0xa11_0a11_0a11_0a11;

/// How a function reports the driver's `EBUSY`.
#[derive(Clone, Copy)]
enum Fails {
    /// `-EBUSY`.
    Negative,
    /// 0.
    Zero,
}

/// The result of any function, widened.
trait Wide {
    fn wide(self) -> i64;
}

impl Wide for c_int {
    fn wide(self) -> i64 {
        self.into()
    }
}

impl Wide for u64 {
    fn wide(self) -> i64 {
        i64::try_from(self).expect("a small answer")
    }
}

struct Row {
    name: &'static str,
    fails: Fails,
    ioctl: Ioctl,
    words: Vec<u64>,
    call: Box<dyn Fn() -> i64>,
}

/// Allocates memory for a pointer argument, larger than every struct.
fn memory(bytes: usize) -> *mut u64 {
    Box::leak(vec![0_u64; bytes / 8].into_boxed_slice()).as_mut_ptr()
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

macro_rules! rows {
    ($($name:ident($($argument:expr),* $(,)?) $fails:ident $ioctl:ident [$($word:expr),* $(,)?];)*) => {
        vec![$(Row {
            name: stringify!($name),
            fails: Fails::$fails,
            ioctl: Ioctl::$ioctl,
            words: vec![$($word),*],
            call: Box::new(move || unsafe { $name(FD, $($argument),*) }.wide()),
        }),*]
    };
}

/// Returns the argument of INFO, for the caller's struct or one of the library.
fn info(address: u64, size: usize, op: u32, arg: u32) -> [u64; 3] {
    [address, pair(size as u32, op), pair(arg, 0)]
}

fn table() -> Vec<Row> {
    let at = memory(16 * 1024);
    let a = at as u64;
    let second = memory(16 * 1024);
    let info = |size: usize, op: u32, arg: u32| info(a, size, op, arg);
    macro_rules! info_rows {
        ($($name:ident($($argument:expr),* $(,)?) $words:expr;)*) => {
            vec![$(Row {
                name: stringify!($name),
                fails: Fails::Negative,
                ioctl: Ioctl::Info,
                words: $words.to_vec(),
                call: Box::new(move || unsafe { $name(FD, $($argument),*) }.wide()),
            }),*]
        };
    }
    let mut rows = info_rows! {
        hlthunk_get_hw_ip_info(at.cast()) [ANY, pair(304, 0), 0];
        hlthunk_get_open_stats(at.cast()) info(24, 18, 0);
        hlthunk_get_dram_usage(at.cast()) info(16, 2, 0);
        hlthunk_get_device_status_info() [ANY, pair(8, 4), 0];
        hlthunk_get_busy_engines_mask(at.cast()) [ANY, pair(40, 3), 0];
        hlthunk_get_engine_status(at.cast(), 4096, second.cast()) info(4096, 32, 0);
        hlthunk_get_pll_frequency(5, at.cast()) info(8, 16, 5);
        hlthunk_get_device_utilization(99, at.cast()) info(4, 6, 99);
        hlthunk_get_hw_events_arr(false, 40, at.cast()) info(40, 1, 0);
        hlthunk_get_hw_events_arr(true, 40, at.cast()) info(40, 7, 0);
        hlthunk_get_clk_rate(at.cast(), second.cast()) [ANY, pair(8, 8), 0];
        hlthunk_get_reset_count_info(at.cast()) info(8, 9, 0);
        hlthunk_get_time_sync_info(at.cast()) info(16, 10, 0);
        hlthunk_get_sync_manager_info(3, at.cast()) info(16, 14, 3);
        hlthunk_get_dev_memalloc_page_orders(at.cast()) info(8, 26, 0);
        hlthunk_get_cs_counters_info(at.cast()) info(96, 11, 0);
        hlthunk_get_pci_counters_info(at.cast()) info(24, 12, 0);
        hlthunk_get_clk_throttle_info(at.cast()) info(40, 13, 0);
        hlthunk_get_total_energy_consumption_info(at.cast()) info(8, 15, 0);
        hlthunk_get_power_info(at.cast()) info(8, 17, 0);
        hlthunk_get_dram_replaced_rows_info(at.cast()) info(264, 21, 0);
        hlthunk_get_dram_pending_rows_info(at.cast()) info(4, 22, 0);
        hlthunk_get_sec_attest_info(77, at.cast()) info(3592, 27, 77);
        hlthunk_fw_send_generic_request(at.cast(), 64, 9) info(64, 35, 9);
        hlthunk_get_event_record(HlthunkEventRecordId::OPEN_DEV, at.cast()) info(8, 23, 0);
        hlthunk_get_event_record(HlthunkEventRecordId::CS_TIMEOUT, at.cast()) info(16, 24, 0);
        hlthunk_get_event_record(HlthunkEventRecordId::RAZWI_EVENT, at.cast()) [ANY, pair(280, 25), 0];
        hlthunk_get_event_record(HlthunkEventRecordId::UNDEFINED_OPCODE, at.cast()) info(288, 31, 0);
        hlthunk_get_event_record(HlthunkEventRecordId::HW_ERR_OPCODE, at.cast()) info(16, 36, 0);
        hlthunk_get_event_record(HlthunkEventRecordId::FW_ERR_OPCODE, at.cast()) [ANY, pair(16, 37), 0];
        hlthunk_get_event_record(HlthunkEventRecordId::ENGINE_EVENT, at.cast()) info(16, 38, 0);
        hlthunk_get_habana_link_state(second.cast(), at.cast()) info(8, 19, 0);
        hlthunk_get_habana_link_statistics(second.cast(), at.cast()) [ANY, pair(24, 20), 0];
        hlthunk_get_time_sync_per_die_info(1, at.cast()) [ANY, pair(32, 39), 0];
        hlthunk_get_dev_info_signed(5, at.cast()) [a, pair(size_of::<HlthunkDevInfoSigned>() as u32, 40), 5];
        hlthunk_nic_get_ports_masks(at.cast()) [ANY, pair(304, 0), 0];
        hlthunk_notifier_release(1_000_001) [0, pair(0, 29), 1_000_001];
        hlthunk_notifier_create() [0, pair(0, 28), ANY];
    };
    rows.extend(rows! {
        hlthunk_device_memory_alloc(0x1000, 0x2000, true, false) Zero Memory [0x1000, 0x2000, 0, pair(0, 1), 0];
        hlthunk_device_memory_alloc(0x1000, 0, false, true) Zero Memory [0x1000, 0, 0, pair(0, 2), 0];
        hlthunk_device_memory_free(0x42) Negative Memory [0x42, 0, 0, pair(1, 0), 0];
        hlthunk_device_memory_map(0x42, 0x5000) Zero Memory [0x5000, 0x42, 0, pair(2, 0), 0];
        hlthunk_host_memory_map(at.cast(), 0x5000, 0x6000) Zero Memory [a, 0x5000, 0x6000, pair(2, 4), 0];
        hlthunk_host_memory_map_flags(at.cast(), 0x5000, 0x6000, 0x8) Zero Memory
            [a, 0x5000, 0x6000, pair(2, 0xc), 0];
        hlthunk_memory_unmap(0x7000) Negative Memory [0x7000, 0, 0, pair(3, 0), 0];
        hlthunk_get_hw_block(0x8000, at.cast(), second) Negative Memory [0x8000, 0, 0, pair(4, 0), 0];
        hlthunk_device_memory_export_dmabuf_fd(0x9000, 0x1000, 0) Negative Memory
            [0x9000, 0x1000, 0, pair(5, 0o2_000_002), 0];
        hlthunk_device_mapped_memory_export_dmabuf_fd(0x9000, 0x1000, 0x3000, 0o2_000_002) Negative Memory
            [0x9000, 0x1000, 0x3000, pair(5, 0o2_000_002), 0];
        hlthunk_allocate_timestamp_elements(12, at) Negative Memory [0, 0, 0, pair(6, 0), pair(0, 12)];

        hlthunk_request_command_buffer(0x1000, at) Negative Cb [0, pair(0, 0x1000), 0];
        hlthunk_request_mapped_command_buffer(0x1000, at) Negative Cb [0, pair(0, 0x1000), pair(0, 1)];
        hlthunk_get_mapped_cb_device_va_by_handle(0x99, at) Negative Cb [0x99, pair(2, 0), pair(0, 2)];
        hlthunk_destroy_command_buffer(0x99) Negative Cb [0x99, pair(1, 0), 0];
        hlthunk_get_cb_usage_count(0x99, at.cast()) Negative Cb [0x99, pair(2, 0), 0];

        hlthunk_cs_flush_pci_hbw_writes() Negative Cs [0, 0, 0, 0, pair(0, 0x8000), 0];
        hlthunk_engine_cores_set_mode(at.cast(), 3, 2) Negative Cs [a, pair(3, 2), 0, 0, pair(0, 0x4000), 0];
        hlthunk_engines_command(at.cast(), 3, 4) Negative Cs [a, pair(3, 4), 0, 0, pair(0, 0x10000), 0];

        hlthunk_wait_for_cs(7, 1000, at.cast()) Negative WaitCs [7, 1000, 0, 0, 0, 0, 0];
        hlthunk_wait_for_cs_with_timestamp(7, 1000, at.cast(), second) Negative WaitCs [7, 1000, 0, 0, 0, 0, 0];
        hlthunk_wait_for_interrupt(at.cast(), 5, 0x12, 1000, second.cast()) Negative WaitCs
            [a, 5, pair(0, 0x0120_0002), 1000, 0, 0, 0];
        hlthunk_wait_for_interrupt_with_timestamp(at.cast(), 5, u32::MAX, 1000, second.cast(), at) Negative WaitCs
            [a, 5, pair(0, 0xfff0_0002), 1000, 0, 0, 0];
        hlthunk_wait_for_interrupt_by_handle(0x33, 8, 5, 0x1_0012, 1000, at.cast()) Negative WaitCs
            [0x33, 5, pair(0, 0x0120_0012), 1000, 8, 0, 0];
        hlthunk_wait_for_interrupt_by_handle_with_timestamp(0x33, 8, 5, u32::MAX, 1000, at.cast(), second)
            Negative WaitCs [0x33, 5, pair(0, 0xfff0_0012), 1000, 8, 0, 0];
        hlthunk_register_timestamp_interrupt(0x12, 0x33, 8, 5, 0x44, 16) Negative WaitCs
            [0x33, 5, pair(0, 0x0120_0032), 0xff, 8, 0x44, 16];

        hlthunk_device_memory_read_block_experimental(at.cast(), 0x5000, 64, 0) Negative Debug
            [ANY, 0, pair(24, 0), pair(1032, 0), 0];
    });
    rows
}

/// Returns the rows of the network ports: the operation, and the sizes of its structs.
fn ports() -> Vec<Row> {
    let at = memory(16 * 1024);
    let second = memory(16 * 1024);
    let op = |op: u32, input: u32, output: u32| {
        let output_address = if output == 0 { 0 } else { ANY };
        vec![ANY, output_address, pair(input, output), pair(0, op)]
    };
    macro_rules! port_rows {
        ($($name:ident($($argument:expr),* $(,)?) $words:expr;)*) => {
            vec![$(Row {
                name: stringify!($name),
                fails: Fails::Negative,
                ioctl: Ioctl::Nic,
                words: $words,
                call: Box::new(move || unsafe { $name(FD, $($argument),*) }.wide()),
            }),*]
        };
    }
    port_rows! {
        hlthunk_alloc_conn(1, at.cast()) op(0, 8, 8);
        hlthunk_set_requester_conn_ctx(1, 2, at.cast(), second.cast()) op(1, 72, 16);
        hlthunk_set_responder_conn_ctx(1, 2, at.cast()) op(2, 56, 0);
        hlthunk_destroy_conn(1, 2) op(3, 8, 0);
        hlthunk_nic_wq_arr_set(at.cast(), second.cast()) op(9, 32, 8);
        hlthunk_nic_wq_arr_unset(1, 2) op(10, 8, 0);
        hlthunk_nic_user_cq_set(1, 2, 3) op(11, 16, 0);
        hlthunk_nic_user_cq_unset(1) op(12, 8, 0);
        hlthunk_nic_user_cq_update_ci(1, 2) op(13, 8, 0);
        hlthunk_nic_user_cq_id_alloc(at.cast(), second.cast()) op(14, 8, 8);
        hlthunk_nic_user_set_app_params(1, at.cast()) op(15, 80, 0);
        hlthunk_nic_user_get_app_params(1, at.cast()) op(16, 8, 48);
        hlthunk_nic_alloc_user_db_fifo(1, at.cast()) op(17, 8, 8);
        hlthunk_nic_user_db_fifo_set(at.cast(), second.cast()) op(18, 24, 32);
        hlthunk_nic_user_db_fifo_unset(1, 2) op(19, 8, 0);
        hlthunk_nic_eq_poll(1, at.cast()) op(20, 8, 16);
        hlthunk_nic_user_encap_alloc(1, at.cast()) op(21, 8, 8);
        hlthunk_nic_user_encap_set(at.cast()) op(22, 32, 0);
        hlthunk_nic_user_encap_unset(1, 2) op(23, 8, 0);
        hlthunk_nic_user_ccq_set(at.cast(), second.cast()) op(24, 8, 24);
        hlthunk_nic_user_ccq_unset(1) op(25, 8, 0);
        hlthunk_nic_user_cq_id_set(at.cast(), second.cast()) op(26, 16, 32);
        hlthunk_nic_user_cq_id_unset(at.cast()) op(27, 8, 0);
        hlthunk_alloc_coll_conn(at.cast(), second.cast()) op(28, 8, 8);
        hlthunk_nic_dump_qp(1, 2, 1, at.cast(), 100) op(29, 24, 0);
    }
}

fn assert_row(row: &Row, era: Era, seen: &[Seen]) {
    let [seen] = seen else {
        panic!("{} on {era}: expected one ioctl, seen {seen:?}", row.name);
    };
    assert_eq!((seen.fd, seen.ioctl), (FD, row.ioctl), "{} on {era}", row.name);
    assert_eq!(seen.words.len(), row.words.len(), "{} on {era}", row.name);
    for (at, (&seen, &wanted)) in seen.words.iter().zip(&row.words).enumerate() {
        if wanted != ANY {
            assert_eq!(
                seen, wanted,
                "{} on {era}: word {at} of the argument: {seen:#x}, not {wanted:#x}",
                row.name
            );
        }
    }
}

/// The release function closes the test's event descriptor, which is not open.
fn wanted_success(row: &Row) -> i64 {
    if row.name == "hlthunk_notifier_release" {
        -(Errno::EBADF as i64)
    } else {
        0
    }
}

#[test]
fn each_function_makes_one_request() {
    for era in Era::ALL {
        let ports = if era == Era::AccelDrm { ports() } else { Vec::new() };
        for row in table().into_iter().chain(ports) {
            let (value, seen) = on_driver(
                era,
                |_, argument| {
                    // Answer requests other than INFO with zeros.
                    if argument.len() != 3 {
                        argument.fill(0);
                    }
                    Ok(())
                },
                &row.call,
            );
            assert_row(&row, era, &seen);
            if row.name == "hlthunk_notifier_create" {
                assert!(value > 2, "an event descriptor");
                drop(unsafe {
                    <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(value as c_int)
                });
            } else {
                assert_eq!(value, wanted_success(&row), "{} on {era}", row.name);
            }
        }
    }
}

#[test]
fn each_function_reports_errno() {
    for row in table().into_iter().chain(ports()) {
        let (value, seen) = on_today(|_, _| Err(Errno::EBUSY), &row.call);
        assert_eq!(seen.len(), 1, "{}: EBUSY is not retried", row.name);
        let wanted = match row.fails {
            Fails::Negative => -(Errno::EBUSY as i64),
            Fails::Zero => 0,
        };
        assert_eq!(value, wanted, "{}", row.name);
        assert_eq!(errno(), Errno::EBUSY, "{}: errno", row.name);
    }
}

#[test]
fn eintr_and_eagain_repeat_unchanged_requests() {
    for row in table() {
        let mut failures = vec![Errno::EAGAIN, Errno::EINTR, Errno::EAGAIN];
        let (value, seen) = on_today(
            move |_, argument| match failures.pop() {
                Some(errno) => Err(errno),
                None => {
                    if argument.len() != 3 {
                        argument.fill(0);
                    }
                    Ok(())
                }
            },
            &row.call,
        );
        // The driver overwrites these.
        let (calls, last) = match seen[0].ioctl {
            Ioctl::Memory | Ioctl::Cb => (1, Some(Errno::EAGAIN)),
            Ioctl::Cs => (2, Some(Errno::EINTR)),
            _ => (4, None),
        };
        assert_eq!(seen.len(), calls, "{}: {value}", row.name);
        if let Some(last) = last {
            assert_eq!(errno(), last, "{}: errno", row.name);
        }
        let shortened = |seen: &Seen| {
            let mut words = seen.words.clone();
            // The remaining time of a timeout may differ.
            if seen.ioctl == Ioctl::WaitCs {
                words[1] = 0;
                words[3] = 0;
            }
            words
        };
        assert!(
            seen.iter().all(|call| shortened(call) == shortened(&seen[0])),
            "{}: {seen:?}",
            row.name
        );
        if row.name == "hlthunk_notifier_create" {
            drop(unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(value as c_int) });
        }
    }
}

/// Covers every pointer that the library itself dereferences.
#[test]
fn null_is_einval_without_a_request() {
    use std::ptr::{null, null_mut};
    let at = memory(16 * 1024);
    macro_rules! nulls {
        ($($name:ident($($argument:expr),* $(,)?);)*) => {$(
            let (value, seen) = on_today(|_, _| Ok(()), || unsafe { $name($($argument),*) });
            assert_eq!(value, -(Errno::EINVAL as c_int), stringify!($name));
            assert_eq!(errno(), Errno::EINVAL, stringify!($name));
            assert!(seen.is_empty(), "{}: {seen:?}", stringify!($name));
        )*};
    }
    nulls! {
        hlthunk_get_hw_ip_info(FD, null_mut());
        hlthunk_get_open_stats(FD, null_mut());
        hlthunk_get_hw_asic_status(FD, null_mut());
        hlthunk_get_dram_usage(FD, null_mut());
        hlthunk_get_busy_engines_mask(FD, null_mut());
        hlthunk_get_engine_status(FD, null_mut(), 8, at.cast());
        hlthunk_get_engine_status(FD, at.cast(), 0, at.cast());
        hlthunk_get_engine_status(FD, at.cast(), 8, null_mut());
        hlthunk_get_pll_frequency(FD, 0, null_mut());
        hlthunk_get_device_utilization(FD, 0, null_mut());
        hlthunk_get_hw_events_arr(FD, true, 8, null_mut());
        hlthunk_get_clk_rate(FD, null_mut(), at.cast());
        hlthunk_get_clk_rate(FD, at.cast(), null_mut());
        hlthunk_get_reset_count_info(FD, null_mut());
        hlthunk_get_time_sync_info(FD, null_mut());
        hlthunk_get_sync_manager_info(FD, 0, null_mut());
        hlthunk_get_dev_memalloc_page_orders(FD, null_mut());
        hlthunk_get_cs_counters_info(FD, null_mut());
        hlthunk_get_pci_counters_info(FD, null_mut());
        hlthunk_get_clk_throttle_info(FD, null_mut());
        hlthunk_get_total_energy_consumption_info(FD, null_mut());
        hlthunk_get_power_info(FD, null_mut());
        hlthunk_get_dram_replaced_rows_info(FD, null_mut());
        hlthunk_get_dram_pending_rows_info(FD, null_mut());
        hlthunk_get_sec_attest_info(FD, 0, null_mut());
        hlthunk_fw_send_generic_request(FD, null_mut(), 8, 0);
        hlthunk_fw_send_generic_request(FD, at.cast(), 0, 0);
        hlthunk_get_event_record(FD, HlthunkEventRecordId::OPEN_DEV, null_mut());
        hlthunk_get_event_record(FD, HlthunkEventRecordId(99), at.cast());
        hlthunk_get_page_fault_info(FD, null_mut(), 1);
        hlthunk_notifier_recv(FD, FD, null_mut(), at, 0, 0);
        hlthunk_notifier_recv(FD, FD, at, null_mut(), 0, 0);
        hlthunk_get_hw_block(FD, 0, null_mut(), at);
        hlthunk_get_hw_block(FD, 0, at.cast(), null_mut());
        hlthunk_allocate_timestamp_elements(FD, 1, null_mut());
        hlthunk_device_mapped_memory_export_dmabuf_fd(FD, 0, 0, 0, 0);
        hlthunk_request_command_buffer(FD, 8, null_mut());
        hlthunk_request_mapped_command_buffer(FD, 8, null_mut());
        hlthunk_get_mapped_cb_device_va_by_handle(FD, 8, null_mut());
        hlthunk_get_cb_usage_count(FD, 8, null_mut());
        hlthunk_command_submission(FD, null_mut(), at.cast());
        hlthunk_command_submission(FD, at.cast(), null_mut());
        hlthunk_command_submission_timeout(FD, null_mut(), at.cast(), 1);
        hlthunk_command_submission_timeout(FD, at.cast(), null_mut(), 1);
        hlthunk_staged_command_submission(FD, 1, null_mut(), at.cast());
        hlthunk_staged_command_submission(FD, 1, at.cast(), null_mut());
        hlthunk_staged_command_submission_timeout(FD, 1, at.cast(), null_mut(), 1);
        hlthunk_staged_command_submission_encaps_signals(FD, 1, null_mut(), at.cast());
        hlthunk_engine_cores_set_mode(FD, null(), 1, 1);
        hlthunk_engine_cores_set_mode(FD, at.cast(), 1, 3);
        hlthunk_engines_command(FD, null(), 1, 1);
        hlthunk_engines_command(FD, at.cast(), 1, 5);
        hlthunk_engines_command(FD, at.cast(), 1, 0);
        hlthunk_signal_submission(FD, null_mut(), at.cast());
        hlthunk_signal_submission_timeout(FD, at.cast(), null_mut(), 1);
        hlthunk_wait_for_signal(FD, null_mut(), at.cast());
        hlthunk_wait_for_signal_timeout(FD, at.cast(), null_mut(), 1);
        hlthunk_wait_for_collective_signal(FD, null_mut(), at.cast());
        hlthunk_wait_for_collective_signal_timeout(FD, at.cast(), null_mut(), 1);
        hlthunk_wait_for_reserved_encaps_signals(FD, null_mut(), at.cast());
        hlthunk_wait_for_reserved_encaps_collective_signals(FD, at.cast(), null_mut());
        hlthunk_reserve_encaps_signals(FD, null_mut(), at.cast());
        hlthunk_reserve_encaps_signals(FD, at.cast(), null_mut());
        hlthunk_unreserve_encaps_signals(FD, null_mut(), at.cast());
        hlthunk_unreserve_encaps_signals(FD, at.cast(), null_mut());
        hlthunk_wait_for_cs(FD, 1, 1, null_mut());
        hlthunk_wait_for_cs_with_timestamp(FD, 1, 1, null_mut(), at);
        hlthunk_wait_for_cs_with_timestamp(FD, 1, 1, at.cast(), null_mut());
        hlthunk_wait_for_multi_cs(FD, null_mut(), at.cast());
        hlthunk_wait_for_multi_cs(FD, at.cast(), null_mut());
        hlthunk_wait_for_multi_cs_with_timestamp(FD, at.cast(), at.cast(), null_mut());
        hlthunk_wait_for_interrupt(FD, null_mut(), 1, 1, 1, at.cast());
        hlthunk_wait_for_interrupt(FD, at.cast(), 1, 1, 1, null_mut());
        hlthunk_wait_for_interrupt_with_timestamp(FD, null_mut(), 1, 1, 1, at.cast(), at);
        hlthunk_wait_for_interrupt_by_handle(FD, 1, 1, 1, 1, 1, null_mut());
        hlthunk_debugfs_open(FD, null_mut());
        hlthunk_debugfs_read(null_mut(), 0, at.cast());
        hlthunk_debugfs_read(at.cast(), 0, null_mut());
        hlthunk_debugfs_write(null_mut(), 0, 0);
        hlthunk_debugfs_close(null_mut());
        hlthunk_get_habana_link_state(FD, null_mut(), at.cast());
        hlthunk_get_habana_link_state(FD, at.cast(), null_mut());
        hlthunk_get_habana_link_statistics(FD, at.cast(), null_mut());
        hlthunk_get_time_sync_per_die_info(FD, 0, null_mut());
        hlthunk_get_dev_info_signed(FD, 0, null_mut());
        hlthunk_nic_get_ports_masks(FD, null_mut());
        hlthunk_device_memory_read_block_experimental(FD, null_mut(), 0, 0, 0);
        hlthunk_alloc_conn(FD, 0, null_mut());
        hlthunk_alloc_coll_conn(FD, null_mut(), at.cast());
        hlthunk_alloc_coll_conn(FD, at.cast(), null_mut());
        hlthunk_set_requester_conn_ctx(FD, 0, 0, null(), at.cast());
        hlthunk_set_requester_conn_ctx(FD, 0, 0, at.cast(), null_mut());
        hlthunk_set_responder_conn_ctx(FD, 0, 0, null());
        hlthunk_nic_user_ccq_set(FD, null_mut(), at.cast());
        hlthunk_nic_user_ccq_set(FD, at.cast(), null_mut());
        hlthunk_nic_wq_arr_set(FD, at.cast(), null_mut());
        hlthunk_nic_user_cq_id_alloc(FD, at.cast(), null_mut());
        hlthunk_nic_user_cq_id_set(FD, at.cast(), null_mut());
        hlthunk_nic_user_cq_id_unset(FD, null_mut());
        hlthunk_nic_user_set_app_params(FD, 0, null());
        hlthunk_nic_user_get_app_params(FD, 0, null_mut());
        hlthunk_nic_eq_poll(FD, 0, null_mut());
        hlthunk_nic_alloc_user_db_fifo(FD, 0, null_mut());
        hlthunk_nic_user_db_fifo_set(FD, at.cast(), null_mut());
        hlthunk_nic_user_encap_alloc(FD, 0, null_mut());
        hlthunk_nic_user_encap_set(FD, null());
        hlthunk_nic_dump_qp(FD, 0, 0, 0, null_mut(), 8);
        hlthunk_open_control_by_bus_id(null());
        hlthunk_get_device_index_from_pci_bus_id(null());
        hlthunk_get_pci_bus_id_from_fd(FD, null_mut(), 13);
        hlthunk_get_pci_bus_id_from_fd(FD, at.cast(), -1);
    }
}
