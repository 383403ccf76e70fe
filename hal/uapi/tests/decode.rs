//! Bytes from anywhere decode, print and round-trip.

use gaudi_uapi::cb::{CbFlags, HlCbArgs, HlCbIn, HlCbOut};
use gaudi_uapi::cs::{CsFlags, EngineCommand, HlCsArgs, HlCsIn, HlCsOut};
use gaudi_uapi::info::{DeviceStatus, HlInfoHwIpInfo, HlInfoRazwiEvent, InfoOp, NotifierEvents, ServerType};
use gaudi_uapi::legacy::{HL_RAZWI_MMU_ACCESS_ERROR, HlInfoRazwiEvent61};
use gaudi_uapi::memory::{HlMemArgs, HlMemIn, HlMemOut, MemFlags, MemOp, MemRequest};
use gaudi_uapi::request::Request;
use gaudi_uapi::wait::{HlWaitCsArgs, HlWaitCsIn, HlWaitCsOut, WaitCsFlags, WaitCsStatus};
use gaudi_uapi::{Ioctl, Since};
use proptest::prelude::*;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

fn any_ioctl() -> impl Strategy<Value = Ioctl> {
    (0..Ioctl::ALL.len()).prop_map(|i| Ioctl::ALL[i])
}

proptest! {
    #![proptest_config(gaudi_random::config(256))]

    #[test]
    fn arbitrary_bytes_decode_or_are_too_short(ioctl in any_ioctl(), bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        let decoded = Request::decode(ioctl, &bytes);
        prop_assert_eq!(decoded.is_some(), bytes.len() >= ioctl.args_size(), "only length decides whether {} decodes", ioctl);
        if let Some(request) = decoded {
            prop_assert_eq!(request.ioctl(), ioctl, "a decoded request knows its ioctl");
            prop_assert!(!format!("{request:?}").is_empty(), "every request prints");
            if let Request::Memory(memory) = request {
                prop_assert!(!format!("{:?}", memory.request()).is_empty(), "every memory request prints");
            }
        }
    }

    #[test]
    fn requests_survive_their_buffers(words in any::<[u64; 7]>()) {
        let cb = HlCbIn::read_from_prefix(words.as_bytes()).unwrap().0;
        prop_assert_eq!(HlCbArgs::from(cb).request(), cb, "hl_cb_in survives hl_cb_args");
        let cs = HlCsIn::read_from_prefix(words.as_bytes()).unwrap().0;
        prop_assert_eq!(HlCsArgs::from(cs).request(), cs, "hl_cs_in survives hl_cs_args");
        let wait = HlWaitCsIn::read_from_prefix(words.as_bytes()).unwrap().0;
        prop_assert_eq!(HlWaitCsArgs::from(wait).request(), wait, "hl_wait_cs_in survives hl_wait_cs_args");
        let memory = HlMemIn::read_from_prefix(words.as_bytes()).unwrap().0;
        prop_assert_eq!(HlMemArgs::from(memory).request(), memory, "hl_mem_in survives hl_mem_args");
    }

    #[test]
    fn answers_outlive_their_buffers(words in any::<[u64; 7]>()) {
        let mut cs = HlCsArgs([u64::MAX; 6]);
        let answer = HlCsOut::read_from_prefix(words.as_bytes()).unwrap().0;
        cs.set_answer(&answer);
        prop_assert_eq!(cs.answer(), answer, "hl_cs_out survives hl_cs_args");
        prop_assert_eq!(&cs.0[3..], &[0u64; 3][..], "what lies behind the answer is zero");

        let mut wait = HlWaitCsArgs([u64::MAX; 7]);
        let answer = HlWaitCsOut::read_from_prefix(words.as_bytes()).unwrap().0;
        wait.set_answer(&answer);
        prop_assert_eq!(wait.answer(), answer, "hl_wait_cs_out survives hl_wait_cs_args");

        let mut memory = HlMemArgs([u64::MAX; 5]);
        let answer = HlMemOut { arg: [words[0], words[1]] };
        memory.set_answer(&answer);
        prop_assert_eq!(memory.answer(), answer, "hl_mem_out survives hl_mem_args");

        let mut cb = HlCbArgs([u64::MAX; 3]);
        cb.set_answer(&HlCbOut::of_handle(words[0]));
        prop_assert_eq!(cb.answer().cb_handle(), words[0], "hl_cb_out survives hl_cb_args");
    }

    #[test]
    fn memory_constructors_round_trip(a: u64, b: u64, c: u64, flags: u32, fd: i32, block: u32) {
        let alloc = HlMemIn::alloc(a, b, MemFlags(flags));
        prop_assert!(matches!(alloc.request(), MemRequest::Alloc(v) if (v.mem_size, v.page_size) == (a, b)));
        prop_assert!(matches!(HlMemIn::free(a).request(), MemRequest::Free(v) if v.handle == a));
        prop_assert!(matches!(HlMemIn::unmap(a).request(), MemRequest::Unmap(v) if v.device_virt_addr == a));
        prop_assert!(matches!(HlMemIn::map_block(a).request(), MemRequest::MapBlock(v) if v.block_addr == a));
        let host = HlMemIn::map_host(a, b, c, MemFlags::NONE).request();
        prop_assert!(
            matches!(host, MemRequest::MapHost(v) if (v.host_virt_addr, v.mem_size, v.hint_addr) == (a, b, c)),
            "map_host sets USERPTR and puts each value in its place: {:?}", host
        );
        let device = HlMemIn::map_device(a, b, MemFlags::FORCE_HINT).request();
        prop_assert!(matches!(device, MemRequest::MapDevice(v) if (v.handle, v.hint_addr) == (a, b)));
        let export = HlMemIn::export_dmabuf_fd(a, b, c, flags).request();
        prop_assert!(
            matches!(export, MemRequest::ExportDmabufFd { arg, file_flags }
                if (arg.addr, arg.mem_size, arg.offset, file_flags) == (a, b, c, flags)),
            "file flags are not read as memory flags: {:?}", export
        );
        prop_assert_eq!(HlMemOut::of_fd(fd).fd(), fd, "a negative fd stays negative");
        let answer = HlMemOut::of_block(a, block).block();
        prop_assert_eq!((answer.block_handle, answer.block_size), (a, block));
        let register = HlMemIn::reg_dmabuf_fd(a, b, MemFlags::NONE).request();
        prop_assert!(matches!(register, MemRequest::RegDmabufFd(v) if (v.fd, v.length) == (a, b)));
        let unknown = HlMemIn { arg: [a, b, c], op: MemOp(0x1_0000), ..HlMemIn::default() };
        prop_assert_eq!(unknown.request(), MemRequest::Unknown(MemOp(0x1_0000), [a, b, c]));
    }

    #[test]
    fn submissions_decode_to_what_they_were_given(address: u64, count: u32, seq: u64, seconds: u32) {
        let run = HlCsIn::execute(address, count, CsFlags::TIMESTAMP).with_timeout(seconds).with_stage(seq);
        prop_assert_eq!((run.chunks().chunks_restore, run.chunks().chunks_execute), (0, address));
        prop_assert_eq!((run.num_chunks_execute, run.timeout, run.seq()), (count, seconds, seq));
        prop_assert_eq!(run.cs_flags, CsFlags::TIMESTAMP | CsFlags::CUSTOM_TIMEOUT | CsFlags::STAGED_SUBMISSION);
        let engines = HlCsIn::engines(address, count, EngineCommand::STALL).engine_view();
        prop_assert_eq!((engines.engines, engines.num_engines, engines.engine_command), (address, count, EngineCommand::STALL));
        let cores = HlCsIn::engine_cores(address, count, EngineCommand::CORE_RUN).engine_core_view();
        prop_assert_eq!((cores.engine_cores, cores.num_engine_cores, cores.core_command), (address, count, EngineCommand::CORE_RUN));
        let reserve = HlCsIn::reserve_signals(count, seconds).reserve_view();
        prop_assert_eq!((reserve.encaps_signals_count, reserve.encaps_signals_q_idx), (count, seconds));
        prop_assert_eq!(HlCsIn::unreserve_signals(count).encaps_sig_handle_id(), count);
    }

    #[test]
    fn waits_decode_to_what_they_were_given(id in 0u16..0x1000, a: u64, target: u64, us: u64, offset: u64, slot: (u64, u64), n: u8) {
        let wait = HlWaitCsIn::interrupt(id, a, target, us);
        prop_assert_eq!(wait.flags.interrupt(), id, "the interrupt id survives the flags");
        prop_assert!(wait.flags.contains(WaitCsFlags::INTERRUPT), "the wait is one for an interrupt");
        prop_assert_eq!((wait.interrupt_view().addr, wait.interrupt_view().target, wait.interrupt_timeout_us()), (a, target, us));
        let register = HlWaitCsIn::register_timestamp(id, a, offset, target, slot);
        prop_assert_eq!((register.cq_counters_offset, register.timestamp_handle, register.timestamp_offset), (offset, slot.0, slot.1));
        let multi = HlWaitCsIn::multi_cs(a, n, us);
        prop_assert_eq!((multi.cs_view().seq, multi.cs_view().timeout_us, multi.multi_view().seq_arr_len), (a, us, n));
        let one = HlWaitCsIn::cs(a, us);
        prop_assert_eq!((one.cs_view().seq, one.flags), (a, WaitCsFlags::NONE));
    }

    #[test]
    fn flags_print_every_bit(bits: u32) {
        let flags = CsFlags(bits);
        let mut sum = 0;
        for part in flags.to_string().split('|') {
            sum |= match CsFlags::NAMES.iter().find(|n| n.c_name.strip_prefix("HL_CS_FLAGS_") == Some(part)) {
                Some(named) => named.value as u32,
                None => u32::from_str_radix(part.trim_start_matches("0x"), 16).unwrap(),
            };
        }
        prop_assert_eq!(sum, bits, "the printed flags are the flags: {}", flags);
    }

    #[test]
    fn card_names_of_any_bytes_print(bytes in any::<[u8; 16]>()) {
        let mut info = HlInfoHwIpInfo::new_zeroed();
        info.card_name = bytes;
        prop_assert!(!info.card_name_text().contains('\0'), "a card name ends at its first zero");
    }
}

#[test]
fn unknown_values_print_and_stay() {
    assert_eq!(
        InfoOp(5).to_string(),
        "Unknown(0x5)",
        "op 5 is a hole in the header"
    );
    assert_eq!(
        format!("{:?}", DeviceStatus(0x1f)),
        "Unknown(0x1f)",
        "an unknown status prints in hex"
    );
    assert_eq!(
        ServerType(13).to_string(),
        "Unknown(0xd)",
        "no header names server type 13"
    );
    assert_eq!(
        WaitCsStatus::BUSY.to_string(),
        "BUSY",
        "a known status prints its short name"
    );
    assert_eq!(CbFlags::NONE.to_string(), "0", "no flags print as 0");
    assert_eq!((MemFlags::USERPTR | MemFlags(0x100)).to_string(), "USERPTR|0x100");
    assert_eq!(NotifierEvents(1 << 63).to_string(), "0x8000000000000000");
}

#[test]
fn names_know_their_header() {
    assert_eq!(InfoOp::HW_IP_INFO.named().unwrap().since, Since::V6_1);
    assert_eq!(InfoOp::USER_MAPPINGS.named().unwrap().since, Since::V7);
    assert_eq!(MemOp::REG_DMABUF_FD.named().unwrap().since, Since::Gaudi3);
}

#[test]
fn linux_6_1_records_convert() {
    let old = |engine_id_1, engine_id_2| HlInfoRazwiEvent61 {
        timestamp: 5,
        addr: 7,
        engine_id_1,
        engine_id_2,
        error_type: HL_RAZWI_MMU_ACCESS_ERROR,
        ..HlInfoRazwiEvent61::default()
    };
    for (first, second, wanted) in [
        (3, 4, &[3, 4][..]),
        (3, u16::MAX, &[3]),
        (u16::MAX, u16::MAX, &[]),
        (u16::MAX, 0, &[0]),
    ] {
        let event = HlInfoRazwiEvent::from(old(first, second));
        let engines = &event.engine_id[..usize::from(event.num_of_possible_engines)];
        assert_eq!((event.timestamp, event.addr, engines), (5, 7, wanted));
    }
    let nothing = HlInfoRazwiEvent::from(HlInfoRazwiEvent61::default());
    assert_eq!(
        nothing,
        HlInfoRazwiEvent::new_zeroed(),
        "an empty record stays empty"
    );
}
