//! Requests and answers of seam 1 by the kernel's names.

use std::os::fd::AsRawFd as _;
use std::time::Duration;

use gaudi_seam::{
    AnyAnswer, AnyRequest, CbCreate, CbInfo, CsAnswer, CsArgument, CsRequest, ExportRequest, InterruptId,
    InterruptWait, InterruptWord, MapDevice, MapHost, MemAlloc, MultiWaitAnswer, Operation,
    TimestampRegistration, WaitAnswer, WaitStatus,
};
use gaudi_seam::{CbQuery, Info, WaitCs, WaitMultiCs};
use gaudi_uapi::cb::CbFlags;
use gaudi_uapi::cs::{CsFlags, HlCsChunk};
use gaudi_uapi::limits::{HL_MAX_JOBS_PER_CS, HL_WAIT_MULTI_CS_LIST_MAX_LEN};
use gaudi_uapi::memory::MemFlags;
use gaudi_uapi::wait::{WaitCsStatus, WaitCsStatusFlags};

use super::fields::{Fields, Value};
use super::info;

/// The kernel's name of an operation, as fine as it has one: `HL_INFO_DRAM_USAGE`.
pub(super) fn name(request: AnyRequest<'_>) -> String {
    match request {
        AnyRequest::Info(Info { request, .. }) => info::name(request.op),
        // The kernel has one name for both and distinguishes them by a flag.
        AnyRequest::MemMapHost(_) => Operation::MemMapDevice.kernel_name().to_owned(),
        other => other.operation().kernel_name().to_owned(),
    }
}

/// The arguments of an operation.
pub(super) fn request(request: AnyRequest<'_>) -> Fields {
    match request {
        AnyRequest::Info(info) => fields()
            .with("return_size", info.answer.len())
            .with("arg", info.request.arg),
        AnyRequest::CbCreate(request) => cb_create(request),
        AnyRequest::CbDestroy(request) => fields().with("cb_handle", Value::hex(request.0.0)),
        AnyRequest::CbInfo(request) => cb_info(request),
        AnyRequest::Submit(request) => submit(request),
        AnyRequest::WaitCs(request) => wait_cs(request),
        AnyRequest::WaitMultiCs(request) => wait_multi_cs(request),
        AnyRequest::WaitInterrupt(request) => wait_interrupt(request),
        AnyRequest::RegisterTimestamp(request) => register_timestamp(request),
        AnyRequest::MemAlloc(request) => mem_alloc(request),
        AnyRequest::MemFree(request) => fields().with("handle", request.0.0),
        AnyRequest::MemMapDevice(request) => map_device(request),
        AnyRequest::MemMapHost(request) => map_host(request),
        AnyRequest::MemUnmap(request) => fields().with("device_virt_addr", Value::hex(request.0.0)),
        AnyRequest::TsAlloc(request) => fields().with("num_of_elements", request.0),
        AnyRequest::MapBlock(request) => fields().with("block_addr", Value::hex(request.0)),
        AnyRequest::ExportDmabuf(request) => export(request),
        AnyRequest::RegisterDmabuf(request) => fields()
            .with("fd", i64::from(request.dmabuf.as_raw_fd()))
            .with("length", request.len),
        AnyRequest::Debug(request) => fields()
            .with("op", Value::shown(request.op))
            .with("reg_idx", request.reg_idx)
            .with("enable", u32::from(request.enable))
            .with("input", info::debug_input(request.op, request.input)),
        AnyRequest::Nic(request) => fields()
            .with("op", request.op)
            .with("input", Value::bytes(request.input)),
        AnyRequest::Mmap(request) => fields()
            .with("offset", Value::hex(request.offset))
            .with("length", request.len),
        AnyRequest::RegisterEvents(request) => fields().with("eventfd", i64::from(request.0.as_raw_fd())),
        AnyRequest::UnregisterEvents(_) => fields(),
    }
}

/// What an operation returned. The request names the struct in a buffer that the driver filled.
pub(super) fn answer(request: AnyRequest<'_>, answer: AnyAnswer<'_>) -> Fields {
    match answer {
        AnyAnswer::None => match request {
            AnyRequest::Debug(request) => fields().with("output", Value::bytes(request.output)),
            AnyRequest::Nic(request) => fields().with("output", Value::bytes(request.output)),
            _ => fields(),
        },
        AnyAnswer::Word(arg) => match request {
            AnyRequest::Info(info) => info::answer(info.request.op, info.answer).with("arg", *arg),
            _ => fields().with("arg", *arg),
        },
        AnyAnswer::CbHandle(handle) => fields().with("cb_handle", Value::hex(handle.0)),
        AnyAnswer::CbInfo(info) => cb_info_answer(info),
        AnyAnswer::Cs(cs) => submit_answer(cs),
        AnyAnswer::Wait(wait) => wait_answer(wait),
        AnyAnswer::MultiWait(wait) => multi_wait_answer(wait),
        AnyAnswer::MemHandle(handle) => fields().with("handle", handle.0),
        AnyAnswer::DeviceVa(address) => fields().with("device_virt_addr", Value::hex(address.0)),
        AnyAnswer::TsHandle(handle) => fields().with("handle", Value::hex(handle.0)),
        AnyAnswer::Block(block) => fields()
            .with("block_handle", Value::hex(block.handle))
            .with("block_size", block.size),
        AnyAnswer::Dmabuf(fd) => fields().with("fd", i64::from(fd.as_raw_fd())),
        AnyAnswer::Mapping(map) => fields().with("address", Value::hex(map.as_ptr().as_ptr().addr() as u64)),
    }
}

fn fields() -> Fields {
    Fields::new()
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX)
}

/// The first `most` items. The driver rejects longer lists; their length is a field of its own.
fn list<T>(items: &[T], most: usize, show: impl Fn(&T) -> Value) -> Value {
    Value::List(items.iter().take(most).map(show).collect())
}

fn cb_create(request: &CbCreate) -> Fields {
    let flags = match request.map_to_device {
        true => CbFlags::MAP,
        false => CbFlags::NONE,
    };
    fields()
        .with("cb_size", request.size)
        .with("flags", Value::shown(flags))
}

fn cb_info(request: &CbQuery) -> Fields {
    let flags = match request.device_va {
        true => CbFlags::GET_DEVICE_VA,
        false => CbFlags::NONE,
    };
    fields()
        .with("cb_handle", Value::hex(request.handle.0))
        .with("flags", Value::shown(flags))
}

fn cb_info_answer(answer: &CbInfo) -> Fields {
    match answer.device_va {
        Some(va) => fields().with("device_va", Value::hex(va.0)),
        None => fields().with("usage_cnt", answer.usage_count),
    }
}

fn chunk(chunk: &HlCsChunk) -> Value {
    let padding = chunk.pad.iter().any(|word| *word != 0);
    fields()
        .with("cb_handle", Value::hex(chunk.cb_handle))
        .with("queue_index", chunk.queue_index)
        .with("cb_size", chunk.cb_size)
        .with("cs_chunk_flags", Value::shown(chunk.cs_chunk_flags))
        .with("collective_engine_id", chunk.collective_engine_id)
        .with_some("pad", padding.then_some(chunk.pad))
        .into()
}

/// More engines than a chip has are not listed.
const ENGINE_IDS: usize = 512;

fn submit(request: &CsRequest<'_>) -> Fields {
    let most = HL_MAX_JOBS_PER_CS as usize;
    let mut decoded = fields();
    if !request.restore.is_empty() {
        decoded = decoded
            .with("num_chunks_restore", request.restore.len())
            .with("chunks_restore", list(request.restore, most, chunk));
    }
    decoded = decoded
        .with("num_chunks_execute", request.execute.len())
        .with("chunks_execute", list(request.execute, most, chunk))
        .with("cs_flags", Value::shown(request.cs_flags()));
    if request.cs_flags().contains(CsFlags::CUSTOM_TIMEOUT) {
        decoded = decoded.with("timeout", request.timeout_s);
    }
    match request.argument {
        CsArgument::None => decoded,
        CsArgument::Stage { seq } => decoded.with("seq", seq.0),
        CsArgument::Encapsulated { handle } | CsArgument::UnreserveSignals { handle } => {
            decoded.with("encaps_sig_handle_id", handle)
        }
        CsArgument::ReserveSignals { count, queue } => decoded
            .with("encaps_signals_count", count)
            .with("encaps_signals_q_idx", queue.0),
        CsArgument::EngineCores { cores, command } => decoded
            .with("num_engine_cores", cores.len())
            .with("engine_cores", list(cores, ENGINE_IDS, |&id| id.into()))
            .with("core_command", Value::shown(command)),
        CsArgument::Engines { engines, command } => decoded
            .with("num_engines", engines.len())
            .with("engines", list(engines, ENGINE_IDS, |&id| id.into()))
            .with("engine_command", Value::shown(command)),
    }
}

fn submit_answer(answer: &CsAnswer) -> Fields {
    fields()
        .with("seq", answer.seq.0)
        .with("status", Value::shown(answer.status))
        .with("sob_base_addr_offset", answer.sob_base_addr_offset)
        .with("sob_count_before_submission", answer.sob_count_before_submission)
}

fn wait_cs(&WaitCs { seq, timeout }: &WaitCs) -> Fields {
    fields()
        .with("seq", seq.0)
        .with("timeout_us", microseconds(timeout))
}

fn status(status: WaitStatus) -> Value {
    Value::shown(match status {
        WaitStatus::Completed => WaitCsStatus::COMPLETED,
        WaitStatus::Busy => WaitCsStatus::BUSY,
    })
}

fn wait_answer(answer: &WaitAnswer) -> Fields {
    let mut flags = WaitCsStatusFlags::NONE;
    if answer.gone {
        flags |= WaitCsStatusFlags::GONE;
    }
    if answer.timestamp_ns.is_some() {
        flags |= WaitCsStatusFlags::TIMESTAMP_VLD;
    }
    fields()
        .with("status", status(answer.status))
        .with("flags", Value::shown(flags))
        .with_some("timestamp_nsec", answer.timestamp_ns)
}

fn wait_multi_cs(&WaitMultiCs { seqs, timeout }: &WaitMultiCs<'_>) -> Fields {
    fields()
        .with("seq_arr_len", seqs.len())
        .with(
            "seq",
            list(seqs, HL_WAIT_MULTI_CS_LIST_MAX_LEN, |seq| seq.0.into()),
        )
        .with("timeout_us", microseconds(timeout))
}

fn multi_wait_answer(answer: &MultiWaitAnswer) -> Fields {
    fields()
        .with("status", status(answer.status))
        .with("cs_completion_map", Value::hex(answer.completion_map.into()))
        .with_some("timestamp_nsec", answer.timestamp_ns)
}

fn wait_interrupt(request: &InterruptWait) -> Fields {
    fields()
        .with("interrupt", interrupt(request.interrupt))
        .with_word(request.word)
        .with("target", request.target)
        .with("interrupt_timeout_us", microseconds(request.timeout))
}

fn register_timestamp(request: &TimestampRegistration) -> Fields {
    fields()
        .with("interrupt", interrupt(request.interrupt))
        .with_word(InterruptWord::KernelCq(request.counter))
        .with("target", request.target)
        .with("timestamp_handle", Value::hex(request.buffer.0))
        .with("timestamp_offset", request.index)
}

fn interrupt(id: InterruptId) -> Value {
    match id {
        InterruptId::ANY_CQ => Value::shown("ANY_CQ_INTERRUPT"),
        InterruptId::ANY_DECODER => Value::shown("ANY_DEC_INTERRUPT"),
        InterruptId(number) => number.into(),
    }
}

trait WithWord {
    fn with_word(self, word: InterruptWord) -> Self;
}

impl WithWord for Fields {
    fn with_word(self, word: InterruptWord) -> Self {
        match word {
            InterruptWord::User(address) => self.with("addr", Value::hex(address.0)),
            InterruptWord::KernelCq(counter) => self
                .with("cq_counters_handle", Value::hex(counter.handle.0))
                .with("cq_counters_offset", counter.offset),
        }
    }
}

fn mem_alloc(request: &MemAlloc) -> Fields {
    fields()
        .with("mem_size", request.size)
        .with("page_size", request.page_size)
        .with("flags", Value::shown(request.flags))
}

fn map_device(request: &MapDevice) -> Fields {
    fields()
        .with("handle", request.handle.0)
        .with("hint_addr", Value::hex(request.hint.map_or(0, |hint| hint.0)))
        .with("flags", Value::shown(request.flags))
}

fn map_host(request: &MapHost) -> Fields {
    fields()
        .with("host_virt_addr", Value::hex(request.address.0))
        .with("mem_size", request.size)
        .with("hint_addr", Value::hex(request.hint.map_or(0, |hint| hint.0)))
        .with("flags", Value::shown(request.flags | MemFlags::USERPTR))
}

fn export(request: &ExportRequest) -> Fields {
    fields()
        .with("addr", Value::hex(request.address.0))
        .with("mem_size", request.size)
        .with("offset", request.offset)
        .with("flags", Value::hex(request.flags.into()))
}
