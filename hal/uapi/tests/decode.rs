//! Requests and answers round-trip through their buffers; values of any kind print.

use gaudi_uapi::cb::{CbFlags, HlCbArgs, HlCbIn};
use gaudi_uapi::cs::{
    CsFlags, EngineCommand, HlCsArgs, HlCsIn, HlCsInChunks, HlCsInEngineCores, HlCsInEngines, HlCsOut,
};
use gaudi_uapi::debug::DebugOp;
use gaudi_uapi::info::{DeviceStatus, HlInfoHwIpInfo, HlInfoRazwiEvent, InfoOp, NotifierEvents, ServerType};
use gaudi_uapi::legacy::{HL_RAZWI_MMU_ACCESS_ERROR, HlInfoRazwiEvent61};
use gaudi_uapi::memory::{
    HlMemArgs, HlMemIn, HlMemInAlloc, HlMemInExportDmabufFd, HlMemInFree, HlMemInMapBlock, HlMemInMapDevice,
    HlMemInMapHost, HlMemInUnmap, HlMemOut, MemFlags, MemOp,
};
use gaudi_uapi::wait::{
    HlWaitCsArgs, HlWaitCsIn, HlWaitCsInCs, HlWaitCsInInterrupt, HlWaitCsInMulti, HlWaitCsOut, WaitCsFlags,
    WaitCsStatus,
};
use gaudi_uapi::{CStruct, CType, Print, Since};
use proptest::prelude::*;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// The front of a union or of an argument's buffer, as one of its structs.
fn view<T: FromBytes>(words: &[u64]) -> T {
    T::read_from_prefix(words.as_bytes()).unwrap().0
}

proptest! {
    #![proptest_config(gaudi_random::config(256))]

    #[test]
    fn requests_survive_their_buffers(words in any::<[u64; 7]>()) {
        let cb: HlCbIn = view(&words);
        prop_assert_eq!(view::<HlCbIn>(&HlCbArgs::from(cb).0), cb, "hl_cb_in survives hl_cb_args");
        let cs: HlCsIn = view(&words);
        prop_assert_eq!(view::<HlCsIn>(&HlCsArgs::from(cs).0), cs, "hl_cs_in survives hl_cs_args");
        let wait: HlWaitCsIn = view(&words);
        prop_assert_eq!(view::<HlWaitCsIn>(&HlWaitCsArgs::from(wait).0), wait, "hl_wait_cs_in survives hl_wait_cs_args");
        let memory: HlMemIn = view(&words);
        prop_assert_eq!(view::<HlMemIn>(&HlMemArgs::from(memory).0), memory, "hl_mem_in survives hl_mem_args");
    }

    #[test]
    fn answers_outlive_their_buffers(words in any::<[u64; 7]>()) {
        let cs: HlCsOut = view(&words);
        prop_assert_eq!(HlCsArgs(view(&words)).answer(), cs, "hl_cs_out survives hl_cs_args");
        let wait: HlWaitCsOut = view(&words);
        prop_assert_eq!(HlWaitCsArgs(words).answer(), wait, "hl_wait_cs_out survives hl_wait_cs_args");
        let memory: HlMemOut = view(&words);
        prop_assert_eq!(HlMemArgs(view(&words)).answer(), memory, "hl_mem_out survives hl_mem_args");
        prop_assert_eq!((memory.handle(), memory.device_virt_addr()), (words[0], words[0]));
        prop_assert_eq!(memory.fd(), words[0] as i32, "a negative fd stays negative");
        prop_assert_eq!((memory.block().block_handle, memory.block().block_size), (words[0], words[1] as u32));
        let cb = HlCbArgs(view(&words)).answer();
        prop_assert_eq!((cb.cb_handle(), cb.device_va()), (words[0], words[0]), "hl_cb_out survives hl_cb_args");
        prop_assert_eq!(cb.usage_cnt(), words[0] as u32, "the low half is the count");
    }

    #[test]
    fn memory_constructors_fill_their_struct(a: u64, b: u64, c: u64, flags: u32) {
        let alloc = HlMemIn::alloc(a, b, MemFlags(flags));
        prop_assert_eq!((alloc.op, alloc.flags), (MemOp::ALLOC, MemFlags(flags)));
        prop_assert_eq!(view::<HlMemInAlloc>(&alloc.arg), HlMemInAlloc { mem_size: a, page_size: b });
        let free = HlMemIn::free(a);
        prop_assert_eq!((free.op, view(&free.arg)), (MemOp::FREE, HlMemInFree { handle: a }));
        let unmap = HlMemIn::unmap(a);
        prop_assert_eq!((unmap.op, view(&unmap.arg)), (MemOp::UNMAP, HlMemInUnmap { device_virt_addr: a }));
        let block = HlMemIn::map_block(a);
        prop_assert_eq!((block.op, view(&block.arg)), (MemOp::MAP_BLOCK, HlMemInMapBlock { block_addr: a }));
        let host = HlMemIn::map_host(a, b, c, MemFlags::NONE);
        prop_assert_eq!((host.op, host.flags), (MemOp::MAP, MemFlags::USERPTR), "map_host sets USERPTR");
        prop_assert_eq!(view::<HlMemInMapHost>(&host.arg), HlMemInMapHost { host_virt_addr: a, mem_size: b, hint_addr: c });
        let device = HlMemIn::map_device(a, b, MemFlags::FORCE_HINT);
        prop_assert_eq!((device.op, device.flags), (MemOp::MAP, MemFlags::FORCE_HINT));
        prop_assert_eq!(view::<HlMemInMapDevice>(&device.arg), HlMemInMapDevice { hint_addr: b, handle: a });
        let export = HlMemIn::export_dmabuf_fd(a, b, c, flags);
        prop_assert_eq!((export.op, export.flags.0), (MemOp::EXPORT_DMABUF_FD, flags), "file flags stay");
        prop_assert_eq!(view::<HlMemInExportDmabufFd>(&export.arg), HlMemInExportDmabufFd { addr: a, mem_size: b, offset: c });
        let timestamps = HlMemIn::ts_alloc(flags);
        prop_assert_eq!((timestamps.op, timestamps.num_of_elements), (MemOp::TS_ALLOC, flags));
    }

    #[test]
    fn submissions_fill_their_struct(address: u64, restore: u64, count: u32) {
        let (chunks_restore, chunks_execute) = (restore, address);
        let mut run = HlCsIn::default();
        run.set_chunks(HlCsInChunks { chunks_restore, chunks_execute });
        prop_assert_eq!(view::<HlCsInChunks>(&run.arg), HlCsInChunks { chunks_restore, chunks_execute });
        let stall = HlCsIn::engines(address, count, EngineCommand::STALL);
        let engines: HlCsInEngines = view(&stall.arg);
        prop_assert_eq!((engines.engines, engines.num_engines, engines.engine_command), (address, count, EngineCommand::STALL));
        prop_assert_eq!(stall.cs_flags, CsFlags::ENGINES_COMMAND);
        let run = HlCsIn::engine_cores(address, count, EngineCommand::CORE_RUN);
        let cores: HlCsInEngineCores = view(&run.arg);
        prop_assert_eq!((cores.engine_cores, cores.num_engine_cores, cores.core_command), (address, count, EngineCommand::CORE_RUN));
        prop_assert_eq!(run.cs_flags, CsFlags::ENGINE_CORE_COMMAND);
    }

    #[test]
    fn waits_fill_their_struct(id in 0u16..0x1000, a: u64, target: u64, us: u64, offset: u64, slot: (u64, u64), n: u8) {
        let wait = HlWaitCsIn::interrupt(id, a, target, us);
        prop_assert_eq!(wait.flags.interrupt(), id, "the interrupt id survives the flags");
        prop_assert!(wait.flags.contains(WaitCsFlags::INTERRUPT), "the wait is one for an interrupt");
        prop_assert_eq!((view(&wait.arg), wait.arg2), (HlWaitCsInInterrupt { addr: a, target }, [us]));
        let register = HlWaitCsIn::register_timestamp(id, a, offset, target, slot);
        prop_assert_eq!((register.cq_counters_offset, register.timestamp_handle, register.timestamp_offset), (offset, slot.0, slot.1));
        let multi = HlWaitCsIn::multi_cs(a, n, us);
        prop_assert_eq!(view::<HlWaitCsInCs>(&multi.arg), HlWaitCsInCs { seq: a, timeout_us: us });
        prop_assert_eq!(view::<HlWaitCsInMulti>(&multi.arg2).seq_arr_len, n);
        let one = HlWaitCsIn::cs(a, us);
        prop_assert_eq!((view(&one.arg), one.flags), (HlWaitCsInCs { seq: a, timeout_us: us }, WaitCsFlags::NONE));
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
fn fields_fill_their_struct() {
    let answers = InfoOp::NAMES
        .iter()
        .filter_map(|op| InfoOp(op.value as u32).answer());
    let inputs = DebugOp::NAMES
        .iter()
        .filter_map(|op| DebugOp(op.value as u32).input());
    for layout in answers.chain(inputs) {
        let end = layout.fields.iter().fold(0, |end, field| {
            assert_eq!(field.offset, end, "{} of {}", field.name, layout.c_name);
            end + field.size
        });
        assert_eq!(end, layout.size, "{}", layout.c_name);
    }
}

#[test]
fn fields_know_names_and_header() {
    let field = |layout: CStruct, name| *layout.fields.iter().find(|field| field.name == name).unwrap();
    let reserved = field(HlInfoHwIpInfo::LAYOUT, "reserved1");
    assert_eq!(
        reserved.c_names,
        [("reserved1", Since::V7), ("interposer_version", Since::Gaudi3)]
    );
    assert_eq!((reserved.since, reserved.print), (Since::V7, Print::Hidden));
    let size = field(HlMemInExportDmabufFd::LAYOUT, "mem_size");
    assert_eq!(size.c_names, [("export_dmabuf_fd.mem_size", Since::V6_1)]);
    assert_eq!(HlMemInExportDmabufFd::LAYOUT.view_at, Some(0));
    assert_eq!(HlMemInExportDmabufFd::LAYOUT.c_name, HlMemIn::LAYOUT.c_name);
    assert!(matches!(field(HlMemIn::LAYOUT, "op").kind, CType::Named(names) if !names.are_flags));
    assert!(matches!(
        field(HlMemIn::LAYOUT, "arg").kind,
        CType::Array { len: 3, .. }
    ));
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
