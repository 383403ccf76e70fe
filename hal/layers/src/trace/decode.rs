//! Requests and answers of seam 1 by the kernel's names.

use std::os::fd::AsRawFd as _;
use std::time::Duration;

use gaudi_seam::{
    AnyAnswer, AnyRequest, CqCounter, CsArgument, CsRequest, Info, InterruptId, InterruptWord, Operation,
    WaitAnswer, WaitStatus,
};
use gaudi_uapi::cb::CbFlags;
use gaudi_uapi::cs::{CsFlags, HlCsChunk};
use gaudi_uapi::limits::{HL_MAX_JOBS_PER_CS, HL_WAIT_MULTI_CS_LIST_MAX_LEN};
use gaudi_uapi::memory::MemFlags;
use gaudi_uapi::wait::{WaitCsStatus, WaitCsStatusFlags};
use zerocopy::IntoBytes as _;

use super::fields::{Fields, Value, bytes, decoded, fields, hex, list, shown};
use super::info;

/// The kernel's name of an operation, as fine as it has one: `HL_INFO_DRAM_USAGE`.
pub(crate) fn name(request: AnyRequest<'_>) -> String {
    match request {
        AnyRequest::Info(Info { request, .. }) => info::name(request.op),
        // The kernel has one name for both and distinguishes them by a flag.
        AnyRequest::MemMapHost(_) => Operation::MemMapDevice.kernel_name().to_owned(),
        other => other.operation().kernel_name().to_owned(),
    }
}

/// The arguments of an operation.
pub(super) fn request(request: AnyRequest<'_>) -> Fields {
    let flag = |is_set, flag| if is_set { flag } else { CbFlags::NONE };
    match request {
        AnyRequest::Info(info) => fields! { return_size: info.answer.len(), arg: info.request.arg },
        AnyRequest::CbCreate(cb) => {
            fields! { cb_size: cb.size, flags: shown(flag(cb.map_to_device, CbFlags::MAP)) }
        }
        AnyRequest::CbDestroy(cb) => fields! { cb_handle: hex(cb.0.0) },
        AnyRequest::CbInfo(cb) => {
            fields! { cb_handle: hex(cb.handle.0), flags: shown(flag(cb.device_va, CbFlags::GET_DEVICE_VA)) }
        }
        AnyRequest::Submit(request) => submit(request),
        AnyRequest::WaitCs(wait) => fields! { seq: wait.seq.0, timeout_us: microseconds(wait.timeout) },
        AnyRequest::WaitMultiCs(wait) => fields! {
            seq_arr_len: wait.seqs.len(),
            seq: list(wait.seqs, HL_WAIT_MULTI_CS_LIST_MAX_LEN, |seq| seq.0.into()),
            timeout_us: microseconds(wait.timeout),
        },
        AnyRequest::WaitInterrupt(wait) => {
            let word = match wait.word {
                InterruptWord::User(address) => fields! { addr: hex(address.0) },
                InterruptWord::KernelCq(counter) => cq_counter(counter),
            };
            let limits = fields! { target: wait.target, interrupt_timeout_us: microseconds(wait.timeout) };
            let interrupt = fields! { interrupt: interrupt(wait.interrupt) };
            interrupt.into_iter().chain(word).chain(limits).collect()
        }
        AnyRequest::RegisterTimestamp(timestamp) => {
            let rest = fields! {
                target: timestamp.target,
                timestamp_handle: hex(timestamp.buffer.0),
                timestamp_offset: timestamp.index,
            };
            let interrupt = fields! { interrupt: interrupt(timestamp.interrupt) };
            let counter = cq_counter(timestamp.counter);
            interrupt.into_iter().chain(counter).chain(rest).collect()
        }
        AnyRequest::MemAlloc(memory) => {
            fields! { mem_size: memory.size, page_size: memory.page_size, flags: shown(memory.flags) }
        }
        AnyRequest::MemFree(memory) => fields! { handle: memory.0.0 },
        AnyRequest::MemMapDevice(map) => fields! {
            handle: map.handle.0,
            hint_addr: hex(map.hint.map_or(0, |hint| hint.0)),
            flags: shown(map.flags),
        },
        AnyRequest::MemMapHost(map) => fields! {
            host_virt_addr: hex(map.address.0),
            mem_size: map.size,
            hint_addr: hex(map.hint.map_or(0, |hint| hint.0)),
            flags: shown(map.flags | MemFlags::USERPTR),
        },
        AnyRequest::MemUnmap(address) => fields! { device_virt_addr: hex(address.0.0) },
        AnyRequest::TsAlloc(elements) => fields! { num_of_elements: elements.0 },
        AnyRequest::MapBlock(block) => fields! { block_addr: hex(block.0) },
        AnyRequest::ExportDmabuf(export) => fields! {
            addr: hex(export.address.0),
            mem_size: export.size,
            offset: export.offset,
            flags: hex(export.flags),
        },
        AnyRequest::RegisterDmabuf(import) => {
            fields! { fd: import.dmabuf.as_raw_fd(), length: import.len }
        }
        AnyRequest::Debug(debug) => fields! {
            op: shown(debug.op),
            reg_idx: debug.reg_idx,
            enable: u32::from(debug.enable),
            input: info::debug_input(debug.op, debug.input),
        },
        AnyRequest::Nic(nic) => fields! { op: nic.op, input: bytes(nic.input) },
        AnyRequest::Mmap(map) => fields! { offset: hex(map.offset), length: map.len },
        AnyRequest::RegisterEvents(events) => fields! { eventfd: events.0.as_raw_fd() },
        AnyRequest::UnregisterEvents(_) => Fields::new(),
    }
}

/// What an operation returned. The request names the struct in a buffer that the driver filled.
pub(super) fn answer(request: AnyRequest<'_>, answer: AnyAnswer<'_>) -> Fields {
    match answer {
        AnyAnswer::None => match request {
            AnyRequest::Debug(request) => fields! { output: bytes(request.output) },
            AnyRequest::Nic(request) => fields! { output: bytes(request.output) },
            _ => Fields::new(),
        },
        AnyAnswer::Word(arg) => {
            let mut fields = match request {
                AnyRequest::Info(info) => info::answer(info.request.op, info.answer),
                _ => Fields::new(),
            };
            fields.insert("arg".to_owned(), (*arg).into());
            fields
        }
        AnyAnswer::CbHandle(handle) => fields! { cb_handle: hex(handle.0) },
        AnyAnswer::CbInfo(info) => match info.device_va {
            Some(va) => fields! { device_va: hex(va.0) },
            None => fields! { usage_cnt: info.usage_count },
        },
        AnyAnswer::Cs(cs) => fields! {
            seq: cs.seq.0,
            status: shown(cs.status),
            sob_base_addr_offset: cs.sob_base_addr_offset,
            sob_count_before_submission: cs.sob_count_before_submission,
        },
        AnyAnswer::Wait(wait) => {
            let fields = fields! { status: status(wait.status), flags: shown(wait_flags(wait)) };
            with_timestamp(fields, wait.timestamp_ns)
        }
        AnyAnswer::MultiWait(wait) => {
            let fields = fields! { status: status(wait.status), cs_completion_map: hex(wait.completion_map) };
            with_timestamp(fields, wait.timestamp_ns)
        }
        AnyAnswer::MemHandle(handle) => fields! { handle: handle.0 },
        AnyAnswer::DeviceVa(address) => fields! { device_virt_addr: hex(address.0) },
        AnyAnswer::TsHandle(handle) => fields! { handle: hex(handle.0) },
        AnyAnswer::Block(block) => fields! { block_handle: hex(block.handle), block_size: block.size },
        AnyAnswer::Dmabuf(fd) => fields! { fd: fd.as_raw_fd() },
        AnyAnswer::Mapping(map) => fields! { address: hex(map.as_ptr().as_ptr().addr() as u64) },
    }
}

fn microseconds(time: Duration) -> u64 {
    // A wait of 600 000 years is as good as one without an end.
    u64::try_from(time.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX)
}

fn chunk(chunk: &HlCsChunk) -> Value {
    let mut fields = decoded(&HlCsChunk::LAYOUT, chunk.as_bytes());
    if chunk.pad.iter().any(|word| *word != 0) {
        fields.insert("pad".to_owned(), chunk.pad.into());
    }
    fields.into()
}

/// More engines than a chip has are not listed.
const ENGINE_IDS: usize = 512;

fn submit(request: &CsRequest<'_>) -> Fields {
    let chunks = |chunks| list(chunks, HL_MAX_JOBS_PER_CS as usize, chunk);
    let ids = |ids| list(ids, ENGINE_IDS, |&id| Value::from(id));
    let mut decoded = Fields::new();
    if !request.restore.is_empty() {
        let (count, chunks) = (request.restore.len(), chunks(request.restore));
        decoded = fields! { num_chunks_restore: count, chunks_restore: chunks };
    }
    decoded.extend(fields! {
        num_chunks_execute: request.execute.len(),
        chunks_execute: chunks(request.execute),
        cs_flags: shown(request.cs_flags()),
    });
    if request.cs_flags().contains(CsFlags::CUSTOM_TIMEOUT) {
        decoded.extend(fields! { timeout: request.timeout_s });
    }
    decoded.extend(match request.argument {
        CsArgument::None => Fields::new(),
        CsArgument::Stage { seq } => fields! { seq: seq.0 },
        CsArgument::Encapsulated { handle } | CsArgument::UnreserveSignals { handle } => {
            fields! { encaps_sig_handle_id: handle }
        }
        CsArgument::ReserveSignals { count, queue } => {
            fields! { encaps_signals_count: count, encaps_signals_q_idx: queue.0 }
        }
        CsArgument::EngineCores { cores, command } => {
            fields! { num_engine_cores: cores.len(), engine_cores: ids(cores), core_command: shown(command) }
        }
        CsArgument::Engines { engines, command } => {
            fields! { num_engines: engines.len(), engines: ids(engines), engine_command: shown(command) }
        }
    });
    decoded
}

fn status(status: WaitStatus) -> Value {
    shown(match status {
        WaitStatus::Completed => WaitCsStatus::COMPLETED,
        WaitStatus::Busy => WaitCsStatus::BUSY,
    })
}

fn wait_flags(answer: &WaitAnswer) -> WaitCsStatusFlags {
    let mut flags = WaitCsStatusFlags::NONE;
    if answer.gone {
        flags |= WaitCsStatusFlags::GONE;
    }
    if answer.timestamp_ns.is_some() {
        flags |= WaitCsStatusFlags::TIMESTAMP_VLD;
    }
    flags
}

fn with_timestamp(mut fields: Fields, timestamp_ns: Option<i64>) -> Fields {
    fields.extend(timestamp_ns.map(|ns| ("timestamp_nsec".to_owned(), ns.into())));
    fields
}

fn cq_counter(counter: CqCounter) -> Fields {
    fields! { cq_counters_handle: hex(counter.handle.0), cq_counters_offset: counter.offset }
}

fn interrupt(id: InterruptId) -> Value {
    match id {
        InterruptId::ANY_CQ => "ANY_CQ_INTERRUPT".into(),
        InterruptId::ANY_DECODER => "ANY_DEC_INTERRUPT".into(),
        InterruptId(number) => number.into(),
    }
}
