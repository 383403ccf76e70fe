//! The driver's own ioctls.

use super::Count::{Bytes, Elements};
use super::{CallView, Part, Pointee, Pointer, Shape, Way, all, only};
use crate::cb::{CbFlags, CbOp, HlCbIn, HlCbOut, HlCbOutUsage};
use crate::cs::{
    CsFlags, HlCsChunk, HlCsIn, HlCsInChunks, HlCsInEncapsulated, HlCsInEngineCores, HlCsInEngines,
    HlCsInReserve, HlCsOut, HlCsOutReserve,
};
use crate::debug::{DebugOp, HlDebugArgs};
use crate::info::{HlInfoArgs, HlInfoHabanaLinkCounters, HlInfoTimeSyncPerDie, HlUserMapping, InfoOp};
use crate::legacy::{HlInfoRazwiEvent61, HlMemInExportDmabufFd61};
use crate::memory::{
    HlMemIn, HlMemInAlloc, HlMemInExportDmabufFd, HlMemInExportFlags, HlMemInFree, HlMemInMapBlock,
    HlMemInMapDevice, HlMemInMapHost, HlMemInRegDmabufFd, HlMemInUnmap, HlMemOutBlock, HlMemOutFd, MemFlags,
    MemOp,
};
use crate::nic::{HlNicArgs, NicOp};
use crate::wait::{HlWaitCsIn, HlWaitCsInCs, HlWaitCsInInterrupt, HlWaitCsInMulti, HlWaitCsOut, WaitCsFlags};
use crate::{CStruct, Era, Ioctl, Print, errno};

/// The parts of a question whose argument word has this name.
macro_rules! info_with {
    ($name:literal) => {
        &[
            only(&HlInfoArgs::LAYOUT, $name),
            only(&HlInfoArgs::LAYOUT, "return_pointer"),
            only(&HlInfoArgs::LAYOUT, "return_size"),
        ]
    };
}
/// Every way in which the driver reads an argument; the first row that fits counts.
pub const CALLS: &[CallView] = &[
    row(Ioctl::Info, &HlInfoArgs::LAYOUT)
        .op(InfoOp::RAZWI_EVENT.0)
        .era(Era::HlMisc)
        .takes(REPLY, &[OLD_RAZWI_PTR]),
    info(InfoOp::SYNC_MANAGER, info_with!("dcore_id")),
    info(InfoOp::DEVICE_UTILIZATION, info_with!("period_ms")),
    info(InfoOp::PLL_FREQUENCY, info_with!("pll_index")),
    info(InfoOp::REGISTER_EVENTFD, &[only(&HlInfoArgs::LAYOUT, "eventfd")]),
    info(InfoOp::UNREGISTER_EVENTFD, &[]),
    info(InfoOp::SECURED_ATTESTATION, info_with!("sec_attest_nonce")),
    info(InfoOp::DEV_SIGNED, info_with!("sec_attest_nonce")),
    info(InfoOp::HABANA_LINK_STATE, info_with!("habana_link_id")),
    row(Ioctl::Info, &HlInfoArgs::LAYOUT)
        .op(InfoOp::HABANA_LINK_COUNTERS.0)
        .takes(info_with!("habana_link_id"), &[REPLY_BOTH_PTR]),
    row(Ioctl::Info, &HlInfoArgs::LAYOUT)
        .op(InfoOp::TIME_SYNC_PER_DIE.0)
        .takes(REPLY, &[REPLY_BOTH_PTR]),
    row(Ioctl::Info, &HlInfoArgs::LAYOUT)
        .op(InfoOp::FW_GENERIC_REQ.0)
        .takes(info_with!("fw_sub_opcode"), &[REPLY_BOTH_PTR]),
    row(Ioctl::Info, &HlInfoArgs::LAYOUT)
        .op(InfoOp::ENGINE_STATUS.0)
        .takes(REPLY, &[filled_by("user_buffer_actual_size")])
        .returns(&[only(&HlInfoArgs::LAYOUT, "user_buffer_actual_size")]),
    row(Ioctl::Info, &HlInfoArgs::LAYOUT)
        .op(InfoOp::USER_MAPPINGS.0)
        .takes(REPLY, &[filled_by("array_size")])
        .returns(&[only(&HlInfoArgs::LAYOUT, "array_size")]),
    row(Ioctl::Info, &HlInfoArgs::LAYOUT).takes(REPLY, &[REPLY_PTR]),
    // Command buffers.
    row(Ioctl::Cb, &HlCbIn::LAYOUT)
        .op(CbOp::CREATE.0)
        .takes(&[only(&HlCbIn::LAYOUT, "cb_size")], &[])
        .returns(&[only(&HlCbOut::LAYOUT, "cb_handle")]),
    row(Ioctl::Cb, &HlCbIn::LAYOUT)
        .op(CbOp::DESTROY.0)
        .takes(CB_HANDLE, &[]),
    row(Ioctl::Cb, &HlCbIn::LAYOUT)
        .op(CbOp::INFO.0)
        .flags("flags", CbFlags::GET_DEVICE_VA.0)
        .takes(CB_HANDLE, &[])
        .returns(&[only(&HlCbOut::LAYOUT, "device_va")]),
    row(Ioctl::Cb, &HlCbIn::LAYOUT)
        .op(CbOp::INFO.0)
        .takes(CB_HANDLE, &[])
        .returns(&[all(&HlCbOutUsage::LAYOUT)]),
    row(Ioctl::Cb, &HlCbIn::LAYOUT),
    // Submissions (command_submission.c:hl_cs_ioctl).
    cs(CsFlags::ENGINES_COMMAND)
        .takes(&[all(&HlCsInEngines::LAYOUT)], &[ids("engines", "num_engines")])
        .returns(SEQ),
    cs(CsFlags::ENGINE_CORE_COMMAND)
        .takes(
            &[all(&HlCsInEngineCores::LAYOUT)],
            &[ids("engine_cores", "num_engine_cores")],
        )
        .returns(SEQ),
    cs(CsFlags::FLUSH_PCI_HBW_WRITES),
    cs(CsFlags::RESERVE_SIGNALS_ONLY)
        .takes(&[all(&HlCsInReserve::LAYOUT)], &[])
        .returns(&[
            all(&HlCsOutReserve::LAYOUT),
            only(&HlCsOut::LAYOUT, "sob_base_addr_offset"),
            only(&HlCsOut::LAYOUT, "status"),
        ]),
    cs(CsFlags::UNRESERVE_SIGNALS_ONLY).takes(&[all(&HlCsInEncapsulated::LAYOUT)], &[]),
    cs(CsFlags::SIGNAL).takes(CHUNKS, JOBS).returns(&[
        only(&HlCsOut::LAYOUT, "seq"),
        only(&HlCsOut::LAYOUT, "status"),
        only(&HlCsOut::LAYOUT, "sob_base_addr_offset"),
        only(&HlCsOut::LAYOUT, "sob_count_before_submission"),
    ]),
    cs(CsFlags(CsFlags::WAIT.0 | CsFlags::ENCAP_SIGNALS.0))
        .takes(CHUNKS, ENCAPSULATED_WAITS)
        .returns(SEQ),
    cs(CsFlags(CsFlags::COLLECTIVE_WAIT.0 | CsFlags::ENCAP_SIGNALS.0))
        .takes(CHUNKS, ENCAPSULATED_WAITS)
        .returns(SEQ),
    cs(CsFlags::WAIT).takes(CHUNKS, WAITS).returns(SEQ),
    cs(CsFlags::COLLECTIVE_WAIT).takes(CHUNKS, WAITS).returns(SEQ),
    cs(CsFlags::ENCAP_SIGNALS)
        .takes(
            &[all(&HlCsInChunks::LAYOUT), all(&HlCsInEncapsulated::LAYOUT)],
            JOBS,
        )
        .returns(&[
            only(&HlCsOut::LAYOUT, "seq"),
            only(&HlCsOut::LAYOUT, "status"),
            only(&HlCsOut::LAYOUT, "sob_count_before_submission"),
        ]),
    cs(CsFlags::STAGED_SUBMISSION_FIRST)
        .takes(CHUNKS, JOBS)
        .returns(SEQ),
    cs(CsFlags::STAGED_SUBMISSION)
        .takes(&[all(&HlCsInChunks::LAYOUT), only(&HlCsIn::LAYOUT, "seq")], JOBS)
        .returns(SEQ),
    row(Ioctl::Cs, &HlCsIn::LAYOUT).takes(CHUNKS, JOBS).returns(SEQ),
    // Waits.
    wait(WaitCsFlags::REGISTER_INTERRUPT).takes(
        &[
            only(&HlWaitCsInInterrupt::LAYOUT, "cq_counters_handle"),
            only(&HlWaitCsIn::LAYOUT, "cq_counters_offset"),
            only(&HlWaitCsInInterrupt::LAYOUT, "target"),
            only(&HlWaitCsIn::LAYOUT, "timestamp_handle"),
            only(&HlWaitCsIn::LAYOUT, "timestamp_offset"),
        ],
        &[],
    ),
    wait(WaitCsFlags(
        WaitCsFlags::INTERRUPT.0 | WaitCsFlags::INTERRUPT_KERNEL_CQ.0,
    ))
    .takes(
        &[
            only(&HlWaitCsInInterrupt::LAYOUT, "cq_counters_handle"),
            only(&HlWaitCsIn::LAYOUT, "cq_counters_offset"),
            only(&HlWaitCsInInterrupt::LAYOUT, "target"),
            only(&HlWaitCsIn::LAYOUT, "interrupt_timeout_us"),
        ],
        &[],
    ),
    wait(WaitCsFlags::INTERRUPT).takes(
        &[
            only(&HlWaitCsInInterrupt::LAYOUT, "addr"),
            only(&HlWaitCsInInterrupt::LAYOUT, "target"),
            only(&HlWaitCsIn::LAYOUT, "interrupt_timeout_us"),
        ],
        &[],
    ),
    wait(WaitCsFlags::MULTI_CS)
        .takes(
            &[all(&HlWaitCsInCs::LAYOUT), all(&HlWaitCsInMulti::LAYOUT)],
            &[Pointer::new("seq", SEQS, Elements("seq_arr_len"), Way::In)],
        )
        .returns(&[
            only(&HlWaitCsOut::LAYOUT, "status"),
            only(&HlWaitCsOut::LAYOUT, "flags"),
            only(&HlWaitCsOut::LAYOUT, "cs_completion_map"),
            only(&HlWaitCsOut::LAYOUT, "timestamp_nsec"),
        ]),
    wait(WaitCsFlags::NONE).takes(&[all(&HlWaitCsInCs::LAYOUT)], &[]),
    // Memory.
    memory(MemOp::ALLOC)
        .takes(&[all(&HlMemInAlloc::LAYOUT)], &[])
        .returns(&[only(&HlMemOutBlock::LAYOUT, "handle")]),
    memory(MemOp::FREE).takes(&[all(&HlMemInFree::LAYOUT)], &[]),
    memory(MemOp::MAP)
        .flags("flags", MemFlags::USERPTR.0)
        .takes(&[all(&HlMemInMapHost::LAYOUT)], &[])
        .returns(&[only(&HlMemOutBlock::LAYOUT, "device_virt_addr")]),
    memory(MemOp::MAP)
        .takes(&[all(&HlMemInMapDevice::LAYOUT)], &[])
        .returns(&[only(&HlMemOutBlock::LAYOUT, "device_virt_addr")]),
    memory(MemOp::UNMAP).takes(&[all(&HlMemInUnmap::LAYOUT)], &[]),
    memory(MemOp::MAP_BLOCK)
        .takes(&[all(&HlMemInMapBlock::LAYOUT)], &[])
        .returns(&[
            only(&HlMemOutBlock::LAYOUT, "block_handle"),
            only(&HlMemOutBlock::LAYOUT, "block_size"),
        ]),
    memory(MemOp::EXPORT_DMABUF_FD)
        .era(Era::HlMisc)
        .takes(
            &[
                all(&HlMemInExportDmabufFd61::LAYOUT),
                all(&HlMemInExportFlags::LAYOUT),
            ],
            &[],
        )
        .returns(&[all(&HlMemOutFd::LAYOUT)]),
    memory(MemOp::EXPORT_DMABUF_FD)
        .takes(
            &[
                all(&HlMemInExportDmabufFd::LAYOUT),
                all(&HlMemInExportFlags::LAYOUT),
            ],
            &[],
        )
        .returns(&[all(&HlMemOutFd::LAYOUT)]),
    memory(MemOp::TS_ALLOC)
        .takes(&[only(&HlMemIn::LAYOUT, "num_of_elements")], &[])
        .returns(&[only(&HlMemOutBlock::LAYOUT, "handle")]),
    memory(MemOp::REG_DMABUF_FD)
        .takes(&[all(&HlMemInRegDmabufFd::LAYOUT)], &[])
        .returns(&[only(&HlMemOutBlock::LAYOUT, "device_virt_addr")]),
    row(Ioctl::Memory, &HlMemIn::LAYOUT),
    row(Ioctl::Debug, &HlDebugArgs::LAYOUT).takes(
        &[],
        &[
            Pointer::new(
                "input_ptr",
                Pointee::ByOp(debug_input),
                Bytes("input_size"),
                Way::In,
            ),
            Pointer::new("output_ptr", Pointee::Bytes, Bytes("output_size"), Way::Out),
        ],
    ),
    row(Ioctl::Nic, &HlNicArgs::LAYOUT).takes(
        &[],
        &[
            Pointer::new(
                "input_ptr",
                Pointee::ByOp(nic_input),
                Bytes("input_size"),
                Way::In,
            ),
            Pointer::new(
                "output_ptr",
                Pointee::ByOp(nic_output),
                Bytes("output_size"),
                Way::Out,
            ),
        ],
    ),
];

const REPLY: &[Part] = &[
    only(&HlInfoArgs::LAYOUT, "return_pointer"),
    only(&HlInfoArgs::LAYOUT, "return_size"),
];

const REPLY_PTR: Pointer = Pointer::new(
    "return_pointer",
    Pointee::ByOp(info_reply),
    Bytes("return_size"),
    Way::Out,
);

const REPLY_BOTH_PTR: Pointer = Pointer {
    way: Way::Both,
    ..REPLY_PTR
};

const OLD_RAZWI_PTR: Pointer = Pointer {
    to: Pointee::Struct(&HlInfoRazwiEvent61::LAYOUT),
    ..REPLY_PTR
};

/// A reply of which the answer's field has the filled size.
const fn filled_by(name: &'static str) -> Pointer {
    Pointer {
        filled: Some(name),
        ..REPLY_PTR
    }
}

const CB_HANDLE: &[Part] = &[only(&HlCbIn::LAYOUT, "cb_handle")];

const CHUNKS: &[Part] = &[all(&HlCsInChunks::LAYOUT)];

const SEQ: &[Part] = &[only(&HlCsOut::LAYOUT, "seq"), only(&HlCsOut::LAYOUT, "status")];

const SEQS: Pointee = Pointee::Numbers {
    size: 8,
    print: Print::Plain,
};

/// The two arrays of chunks of this shape.
macro_rules! chunks {
    ($shape:expr) => {
        &[
            Pointer::new(
                "chunks_restore",
                Pointee::Structs(&$shape),
                Elements("num_chunks_restore"),
                Way::In,
            ),
            Pointer::new(
                "chunks_execute",
                Pointee::Structs(&$shape),
                Elements("num_chunks_execute"),
                Way::In,
            ),
        ]
    };
}

const JOBS: &[Pointer] = chunks!(Shape {
    base: &HlCsChunk::LAYOUT,
    parts: &[
        only(&HlCsChunk::LAYOUT, "queue_index"),
        only(&HlCsChunk::LAYOUT, "cb_handle"),
        only(&HlCsChunk::LAYOUT, "cb_size"),
    ],
    pointers: &[],
});

const WAITS: &[Pointer] = chunks!(Shape {
    base: &HlCsChunk::LAYOUT,
    parts: &[
        only(&HlCsChunk::LAYOUT, "queue_index"),
        only(&HlCsChunk::LAYOUT, "signal_seq_arr"),
        only(&HlCsChunk::LAYOUT, "num_signal_seq_arr"),
    ],
    pointers: &[Pointer::new(
        "signal_seq_arr",
        SEQS,
        Elements("num_signal_seq_arr"),
        Way::In
    )],
});

const ENCAPSULATED_WAITS: &[Pointer] = chunks!(Shape {
    base: &HlCsChunk::LAYOUT,
    parts: &[
        only(&HlCsChunk::LAYOUT, "queue_index"),
        only(&HlCsChunk::LAYOUT, "encaps_signal_seq"),
        only(&HlCsChunk::LAYOUT, "encaps_signal_offset"),
    ],
    pointers: &[],
});

/// An array of engines.
const fn ids(name: &'static str, count: &'static str) -> Pointer {
    let to = Pointee::Numbers {
        size: 4,
        print: Print::Plain,
    };
    Pointer::new(name, to, Elements(count), Way::In)
}

const fn row(ioctl: Ioctl, base: &'static CStruct) -> CallView {
    CallView {
        ioctl,
        era: None,
        op: None,
        flags: None,
        input: Shape::plain(base),
        output: &[],
        answers_with: &[],
    }
}

const fn info(op: InfoOp, parts: &'static [Part]) -> CallView {
    row(Ioctl::Info, &HlInfoArgs::LAYOUT)
        .op(op.0)
        .takes(parts, &[REPLY_PTR])
}

const fn cs(flags: CsFlags) -> CallView {
    row(Ioctl::Cs, &HlCsIn::LAYOUT).flags("cs_flags", flags.0)
}

const fn memory(op: MemOp) -> CallView {
    row(Ioctl::Memory, &HlMemIn::LAYOUT).op(op.0)
}

const WAITED: &[Part] = &[
    only(&HlWaitCsOut::LAYOUT, "status"),
    only(&HlWaitCsOut::LAYOUT, "flags"),
    only(&HlWaitCsOut::LAYOUT, "timestamp_nsec"),
];

/// The driver fills the answer before it returns ETIMEDOUT or EIO too.
const fn wait(flags: WaitCsFlags) -> CallView {
    let mut row = row(Ioctl::WaitCs, &HlWaitCsIn::LAYOUT).returns(WAITED);
    row.answers_with = &[errno::ETIMEDOUT, errno::EIO];
    if flags.0 == 0 {
        return row;
    }
    row.flags("flags", flags.0)
}

impl CallView {
    const fn op(mut self, op: u32) -> Self {
        self.op = Some(op);
        self
    }

    const fn era(mut self, era: Era) -> Self {
        self.era = Some(era);
        self
    }

    const fn flags(mut self, name: &'static str, bits: u32) -> Self {
        self.flags = Some((name, bits));
        self
    }

    const fn takes(mut self, parts: &'static [Part], pointers: &'static [Pointer]) -> Self {
        (self.input.parts, self.input.pointers) = (parts, pointers);
        self
    }

    const fn returns(mut self, output: &'static [Part]) -> Self {
        self.output = output;
        self
    }
}

fn info_reply(op: u32) -> Option<Pointee> {
    Some(match InfoOp(op) {
        InfoOp::REGISTER_EVENTFD | InfoOp::UNREGISTER_EVENTFD => return None,
        InfoOp::HW_EVENTS | InfoOp::HW_EVENTS_AGGREGATE => Pointee::Numbers {
            size: 4,
            print: Print::Plain,
        },
        InfoOp::USER_MAPPINGS => Pointee::Struct(&HlUserMapping::LAYOUT),
        InfoOp::HABANA_LINK_COUNTERS => Pointee::Struct(&HlInfoHabanaLinkCounters::LAYOUT),
        InfoOp::TIME_SYNC_PER_DIE => Pointee::Struct(&HlInfoTimeSyncPerDie::LAYOUT),
        InfoOp::ENGINE_STATUS => Pointee::Text,
        op => match op.answer() {
            Some(layout) => Pointee::Struct(layout),
            None => Pointee::Bytes,
        },
    })
}

fn debug_input(op: u32) -> Option<Pointee> {
    Some(match DebugOp(op).input() {
        Some(layout) => Pointee::Struct(layout),
        None => Pointee::Bytes,
    })
}

fn nic_input(op: u32) -> Option<Pointee> {
    Some(match NicOp(op).input() {
        Some(layout) => Pointee::Struct(layout),
        None => Pointee::Bytes,
    })
}

fn nic_output(op: u32) -> Option<Pointee> {
    Some(match NicOp(op).output() {
        Some(layout) => Pointee::Struct(layout),
        None => Pointee::Bytes,
    })
}
