//! Requests of CB, MEMORY and WAIT_CS that are contained in the argument struct: one row per
//! request.

#![expect(unsafe_code, reason = "see `Wire::answer`")]

use std::time::Duration;

use gaudi_seam::{
    CbCreate, CbDestroy, CbHandle, CbQuery, CqCounter, CsSeq, DeviceVa, Errno, ExportRequest, HostVa,
    InterruptId, InterruptWait, InterruptWord, MapBlock, MapDevice, MapHost, MemAlloc, MemFree, MemHandle,
    MemUnmap, Request as _, TimestampRegistration, TsAlloc, TsHandle, WaitCs,
};
use gaudi_uapi::Ioctl;
use gaudi_uapi::cb::{CbFlags, CbOp, HlCbArgs, HlCbIn};
use gaudi_uapi::memory::{
    HlMemArgs, HlMemIn, HlMemInAlloc, HlMemInExportDmabufFd, HlMemInMapDevice, HlMemInMapHost, HlMemOut,
    MemFlags, MemOp,
};
use gaudi_uapi::wait::{HlWaitCsArgs, HlWaitCsIn, HlWaitCsOut, WaitCsFlags, WaitCsStatus};
use zerocopy::FromZeros;

use crate::answer::{Reply, front};
use crate::wire::{Visitor, Wire};

/// A row: `Request [failure] encoding, if condition => decoding;`. An argument decodes to the first
/// row whose condition holds.
macro_rules! rows {
    ($ioctl:ident $args:ident fn $decode:ident($input:ident: $in:ident, $this:ident) {$(
        $request:ty [$failure:expr] $encode:expr, if $when:expr => $build:expr;
    )*}) => {
        $(
            impl Wire for $request {
                type Args = $args;
                const IOCTL: Ioctl = Ioctl::$ioctl;

                fn encode(&mut self) -> $args {
                    let $this = *self;
                    $encode.into()
                }

                unsafe fn answer(&self, args: &$args) -> Result<Self::Answer, Errno> {
                    // SAFETY: the caller meets the same requirements.
                    unsafe { Reply::read(&args.0, self.view()) }
                }

                fn set_answer(&self, answer: Self::Answer, args: &mut $args) {
                    answer.write(&mut args.0, self.view());
                }

                fn set_failure(&self, errno: Errno, args: &mut $args) -> Result<(), Errno> {
                    $failure(self, errno, args)
                }
            }
        )*

        pub(crate) fn $decode<V: Visitor>($input: $in, visitor: V) -> Result<V::Output, Errno> {
            $(if $when {
                return Ok(visitor.visit($build));
            })*
            Err(Errno::EINVAL)
        }
    };
}

/// The driver leaves the request in the argument.
fn kept<R, A>(_: &R, errno: Errno, _: &mut A) -> Result<(), Errno> {
    Err(errno)
}

/// Clears the argument, as the driver does before it handles the request. The driver checks the
/// device first: with `EBUSY` the argument keeps the request.
fn cleared<R, A: FromZeros>(_: &R, errno: Errno, args: &mut A) -> Result<(), Errno> {
    if errno != Errno::EBUSY {
        args.zero();
    }
    Err(errno)
}

fn flag(is_set: bool) -> CbFlags {
    if is_set { CbFlags::MAP } else { CbFlags::NONE }
}

// common/command_buffer.c:hl_cb_ioctl
rows! {
    Cb HlCbArgs fn decode_cb(input: HlCbIn, this) {
        CbCreate [cleared] HlCbIn::create(this.size, flag(this.map_to_device)),
            if input.op == CbOp::CREATE => CbCreate {
                size: input.cb_size,
                map_to_device: input.flags.contains(CbFlags::MAP),
            };
        CbDestroy [kept] HlCbIn::destroy(this.0.0),
            if input.op == CbOp::DESTROY => CbDestroy(CbHandle(input.cb_handle));
        CbQuery [kept]
            if this.device_va { HlCbIn::device_va(this.handle.0) } else { HlCbIn::usage(this.handle.0) },
            if input.op == CbOp::INFO => CbQuery {
                handle: CbHandle(input.cb_handle),
                device_va: input.flags.contains(CbFlags::GET_DEVICE_VA),
            };
    }
}

fn hint_of(address: u64) -> Option<DeviceVa> {
    (address != 0).then_some(DeviceVa(address))
}

/// Removes `HL_MEM_USERPTR`, which selects the kind of mapping.
fn plain(flags: MemFlags) -> MemFlags {
    MemFlags(flags.0 & !MemFlags::USERPTR.0)
}

/// `hl_mem_out.fd` is `-EBADF` after a failure.
fn export_failed(_: &ExportRequest, errno: Errno, args: &mut HlMemArgs) -> Result<(), Errno> {
    if errno != Errno::EBUSY {
        args.set_answer(HlMemOut {
            arg: [u64::from(-(Errno::EBADF as i32) as u32), 0],
        });
    }
    Err(errno)
}

// common/memory.c:hl_mem_ioctl
rows! {
    Memory HlMemArgs fn decode_memory(input: HlMemIn, this) {
        MemAlloc [cleared] HlMemIn::alloc(this.size, this.page_size, this.flags),
            if input.op == MemOp::ALLOC => {
                let HlMemInAlloc { mem_size: size, page_size } = front(&input.arg);
                MemAlloc { size, page_size, flags: input.flags }
            };
        MemFree [kept] HlMemIn::free(this.0.0),
            if input.op == MemOp::FREE => MemFree(MemHandle(input.arg[0]));
        MapHost [cleared]
            HlMemIn::map_host(this.address.0, this.size, this.hint.map_or(0, DeviceVa::get), plain(this.flags)),
            if input.op == MemOp::MAP && input.flags.contains(MemFlags::USERPTR) => {
                let host: HlMemInMapHost = front(&input.arg);
                MapHost {
                    address: HostVa(host.host_virt_addr),
                    size: host.mem_size,
                    hint: hint_of(host.hint_addr),
                    flags: plain(input.flags),
                }
            };
        MapDevice [cleared]
            HlMemIn::map_device(this.handle.0, this.hint.map_or(0, DeviceVa::get), plain(this.flags)),
            if input.op == MemOp::MAP => {
                let HlMemInMapDevice { hint_addr, handle } = front(&input.arg);
                MapDevice { handle: MemHandle(handle), hint: hint_of(hint_addr), flags: input.flags }
            };
        MemUnmap [kept] HlMemIn::unmap(this.0.0),
            if input.op == MemOp::UNMAP => MemUnmap(DeviceVa(input.arg[0]));
        MapBlock [kept] HlMemIn::map_block(this.0),
            if input.op == MemOp::MAP_BLOCK => MapBlock(input.arg[0]);
        ExportRequest [export_failed]
            HlMemIn::export_dmabuf_fd(this.address.0, this.size, this.offset, this.flags),
            if input.op == MemOp::EXPORT_DMABUF_FD => {
                let HlMemInExportDmabufFd { addr, mem_size: size, offset } = front(&input.arg);
                ExportRequest { address: DeviceVa(addr), size, offset, flags: input.flags.0 }
            };
        TsAlloc [kept] HlMemIn::ts_alloc(this.0),
            if input.op == MemOp::TS_ALLOC => TsAlloc(input.num_of_elements);
    }
}

/// Converts to microseconds. Rounds up, so that a short timeout does not become a poll.
pub(crate) fn micros(timeout: Duration) -> u64 {
    u64::try_from(timeout.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX)
}

/// Returns the argument of an interrupt wait with a timeout of `timeout_us` microseconds; ignores
/// the request's own timeout. Uses only the low 12 bits of the interrupt number.
pub fn interrupt(wait: &InterruptWait, timeout_us: u64) -> HlWaitCsIn {
    let InterruptWait {
        interrupt,
        word,
        target,
        ..
    } = *wait;
    match word {
        InterruptWord::User(word) => HlWaitCsIn::interrupt(interrupt.0, word.0, target, timeout_us),
        InterruptWord::KernelCq(CqCounter { handle, offset }) => {
            HlWaitCsIn::interrupt_on_counter(interrupt.0, handle.0, offset, target, timeout_us)
        }
    }
}

/// Returns the argument that registers a timestamp. Uses only the low 12 bits of the interrupt
/// number.
pub fn timestamp(registration: &TimestampRegistration) -> HlWaitCsIn {
    let TimestampRegistration {
        interrupt,
        counter,
        target,
        buffer,
        index,
    } = *registration;
    let slot = (buffer.0, index);
    HlWaitCsIn::register_timestamp(interrupt.0, counter.handle.0, counter.offset, target, slot)
}

fn is_interrupt(input: &HlWaitCsIn, kind: WaitCsFlags) -> bool {
    input.flags.contains(WaitCsFlags::INTERRUPT | kind)
}

fn counter_of(input: &HlWaitCsIn) -> CqCounter {
    CqCounter {
        handle: CbHandle(input.arg[0]),
        offset: input.cq_counters_offset,
    }
}

// common/command_submission.c:hl_wait_ioctl
rows! {
    WaitCs HlWaitCsArgs fn decode_wait(input: HlWaitCsIn, this) {
        &TimestampRegistration [kept] timestamp(this),
            if is_interrupt(&input, WaitCsFlags::INTERRUPT_KERNEL_CQ | WaitCsFlags::REGISTER_INTERRUPT) =>
            &TimestampRegistration {
                interrupt: InterruptId(input.flags.interrupt()),
                counter: counter_of(&input),
                target: input.arg[1],
                buffer: TsHandle(input.timestamp_handle),
                index: input.timestamp_offset,
            };
        &InterruptWait [interrupt_failed] interrupt(this, micros(this.timeout)),
            if is_interrupt(&input, WaitCsFlags::NONE) => &InterruptWait {
                interrupt: InterruptId(input.flags.interrupt()),
                word: match is_interrupt(&input, WaitCsFlags::INTERRUPT_KERNEL_CQ) {
                    true => InterruptWord::KernelCq(counter_of(&input)),
                    false => InterruptWord::User(HostVa(input.arg[0])),
                },
                target: input.arg[1],
                timeout: Duration::from_micros(input.arg2[0]),
            };
        WaitCs [wait_failed] HlWaitCsIn::cs(this.seq.0, micros(this.timeout)),
            if true => WaitCs { seq: CsSeq(input.arg[0]), timeout: Duration::from_micros(input.arg[1]) };
    }
}

fn ended(args: &mut HlWaitCsArgs, status: WaitCsStatus) {
    args.set_answer(HlWaitCsOut {
        status,
        ..HlWaitCsOut::default()
    });
}

/// common/command_submission.c:hl_cs_wait_ioctl
fn wait_failed(_: &WaitCs, errno: Errno, args: &mut HlWaitCsArgs) -> Result<(), Errno> {
    match errno {
        Errno::EBUSY | Errno::EINTR => {}
        Errno::ETIMEDOUT => ended(args, WaitCsStatus::TIMEDOUT),
        Errno::EIO => ended(args, WaitCsStatus::ABORTED),
        _ => ended(args, WaitCsStatus::COMPLETED),
    }
    Err(errno)
}

/// If a wait on a word in user memory is aborted, the ioctl succeeds and reports the abort in its
/// status (common/command_submission.c:_hl_interrupt_wait_ioctl_user_addr).
fn interrupt_failed(wait: &&InterruptWait, errno: Errno, args: &mut HlWaitCsArgs) -> Result<(), Errno> {
    if let (InterruptWord::User(_), Errno::EIO) = (wait.word, errno) {
        ended(args, WaitCsStatus::ABORTED);
        return Ok(());
    }
    Err(errno)
}
