//! Requests and answers of seam 1 by the kernel's names.

use std::time::Duration;

use gaudi_seam::{
    BlockMapping, CbCreate, CbInfo, CsAnswer, CsArgument, CsRequest, CsSeq, ExportRequest, InterruptId,
    InterruptWait, InterruptWord, MapDevice, MapHost, MemAlloc, MmapRequest, MultiWaitAnswer,
    TimestampRegistration, WaitAnswer, WaitStatus,
};
use gaudi_uapi::cb::CbFlags;
use gaudi_uapi::cs::{CsFlags, HlCsChunk};
use gaudi_uapi::limits::{HL_MAX_JOBS_PER_CS, HL_WAIT_MULTI_CS_LIST_MAX_LEN};
use gaudi_uapi::memory::MemFlags;
use gaudi_uapi::wait::{WaitCsStatus, WaitCsStatusFlags};

use super::fields::{Fields, Value};

fn fields() -> Fields {
    Fields::new()
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX)
}

/// A list of at most so many; longer ones, which the driver refuses, are told by their length.
fn list<T>(items: &[T], most: usize, show: impl Fn(&T) -> Value) -> Value {
    Value::List(items.iter().take(most).map(show).collect())
}

pub(super) fn cb_create(request: &CbCreate) -> Fields {
    let flags = match request.map_to_device {
        true => CbFlags::MAP,
        false => CbFlags::NONE,
    };
    fields()
        .with("cb_size", request.size)
        .with("flags", Value::shown(flags))
}

pub(super) fn cb_info(handle: u64, device_va: bool) -> Fields {
    let flags = match device_va {
        true => CbFlags::GET_DEVICE_VA,
        false => CbFlags::NONE,
    };
    fields()
        .with("cb_handle", Value::hex(handle))
        .with("flags", Value::shown(flags))
}

pub(super) fn cb_info_answer(answer: &CbInfo) -> Fields {
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

pub(super) fn submit(request: &CsRequest<'_>) -> Fields {
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

pub(super) fn submit_answer(answer: &CsAnswer) -> Fields {
    fields()
        .with("seq", answer.seq.0)
        .with("status", Value::shown(answer.status))
        .with("sob_base_addr_offset", answer.sob_base_addr_offset)
        .with("sob_count_before_submission", answer.sob_count_before_submission)
}

pub(super) fn wait_cs(seq: CsSeq, timeout: Duration) -> Fields {
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

pub(super) fn wait_answer(answer: &WaitAnswer) -> Fields {
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

pub(super) fn wait_multi_cs(seqs: &[CsSeq], timeout: Duration) -> Fields {
    fields()
        .with("seq_arr_len", seqs.len())
        .with(
            "seq",
            list(seqs, HL_WAIT_MULTI_CS_LIST_MAX_LEN, |seq| seq.0.into()),
        )
        .with("timeout_us", microseconds(timeout))
}

pub(super) fn multi_wait_answer(answer: &MultiWaitAnswer) -> Fields {
    fields()
        .with("status", status(answer.status))
        .with("cs_completion_map", Value::hex(answer.completion_map.into()))
        .with_some("timestamp_nsec", answer.timestamp_ns)
}

pub(super) fn wait_interrupt(request: &InterruptWait) -> Fields {
    fields()
        .with("interrupt", interrupt(request.interrupt))
        .with_word(request.word)
        .with("target", request.target)
        .with("interrupt_timeout_us", microseconds(request.timeout))
}

pub(super) fn register_timestamp(request: &TimestampRegistration) -> Fields {
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

pub(super) fn mem_alloc(request: &MemAlloc) -> Fields {
    fields()
        .with("mem_size", request.size)
        .with("page_size", request.page_size)
        .with("flags", Value::shown(request.flags))
}

pub(super) fn map_device(request: &MapDevice) -> Fields {
    fields()
        .with("handle", request.handle.0)
        .with("hint_addr", Value::hex(request.hint.map_or(0, |hint| hint.0)))
        .with("flags", Value::shown(request.flags))
}

pub(super) fn map_host(request: &MapHost) -> Fields {
    fields()
        .with("host_virt_addr", Value::hex(request.address.0))
        .with("mem_size", request.size)
        .with("hint_addr", Value::hex(request.hint.map_or(0, |hint| hint.0)))
        .with("flags", Value::shown(request.flags | MemFlags::USERPTR))
}

pub(super) fn export(request: &ExportRequest) -> Fields {
    fields()
        .with("addr", Value::hex(request.address.0))
        .with("mem_size", request.size)
        .with("offset", request.offset)
        .with("flags", Value::hex(request.flags.into()))
}

pub(super) fn block_answer(answer: &BlockMapping) -> Fields {
    fields()
        .with("block_handle", Value::hex(answer.handle))
        .with("block_size", answer.size)
}

pub(super) fn mmap(request: &MmapRequest) -> Fields {
    fields()
        .with("offset", Value::hex(request.offset))
        .with("length", request.len)
}
