//! [`serve`]: the driver's ioctl entry point over a node of seam 1.

#![expect(unsafe_code, reason = "an argument can map host memory to the device")]

use std::time::Duration;

use gaudi_seam::{
    Answer as _, AnyAnswer, AnyRequest, CsRequest, Errno, Info, InfoRequest, KernelIo, KernelIoExt as _,
    NodeKind,
};
use gaudi_uapi::Ioctl;
use gaudi_uapi::cs::HlCsArgs;
use gaudi_uapi::debug::HlDebugArgs;
use gaudi_uapi::drm::{DRIVER_NAME, DRM_IOCTL_VERSION, DrmVersion};
use gaudi_uapi::era::{DRM_COMMAND_BASE, DRM_IOCTL_BASE, HL_IOCTL_BASE};
use gaudi_uapi::info::{DeviceStatus, HlInfoArgs, HlInfoDeviceStatus, HlInfoHwIpInfo, HlUserMapping, InfoOp};
use gaudi_uapi::ioctl::{Parts, READ, WRITE};
use gaudi_uapi::nic::HlNicArgs;
use gaudi_uapi::wait::HlWaitCsArgs;
use zerocopy::{FromBytes, IntoBytes, KnownLayout};

use crate::decode::decode;
use crate::errno::errno_of;
use crate::information::most_of;
use crate::memory::UserMemory;
use crate::submit::is_multi;
use crate::wire::{Visitor, Wire};

/// Number of words in the longest argument, `struct drm_version`.
const WORDS: usize = size_of::<DrmVersion>() / 8;

/// Views an argument's words as a struct. Every argument struct fits.
fn view<T: FromBytes + IntoBytes + KnownLayout>(words: &mut [u64; WORDS]) -> &mut T {
    match T::mut_from_prefix(words.as_mut_bytes()) {
        Ok((view, _)) => view,
        Err(_) => unreachable!("an argument struct has at most {WORDS} words and their alignment"),
    }
}

/// Serves one ioctl: decodes its argument, performs the request on `io`, and encodes the answer
/// into `arg` as the driver does. `arg` holds the bytes at the ioctl's argument address, as many as
/// the size field of `request` states. `memory` is the memory of the calling program.
///
/// Every node accepts the request numbers of every era; a compute node also accepts
/// `DRM_IOCTL_VERSION`. As in DRM (drivers/gpu/drm/drm_ioctl.c:drm_ioctl), an argument shorter than
/// the driver's struct is padded with zeros and a longer one is truncated. `arg` is written after a
/// failure, too.
///
/// This function is unsafe because the argument of `HL_MEM_OP_MAP` for host memory lets the device
/// access that memory after the call returns. Whether that is sound depends on the program that
/// passed the argument.
///
/// # Errors
/// The errno that ioctl(2) gives for this argument:
/// - `EINVAL`: DRM has no such number, or it is one of DRM's own but `DRM_IOCTL_VERSION`.
/// - `ENOTTY`: the number has neither DRM's type nor another era's, or a control node does not have
///   it.
/// - `EFAULT`: a list or a buffer of the argument is not in `memory`.
/// - The errno of the failed operation ([`errno_of`]).
///
/// # Safety
/// - If the argument maps host memory, the program that passes it meets the requirements of
///   [`KernelIo::mem_map_host`].
pub unsafe fn serve(
    io: &dyn KernelIo,
    request: u32,
    arg: &mut [u8],
    memory: &dyn UserMemory,
) -> Result<(), Errno> {
    let parts = Parts::of(request);
    let control = io.node().kind == NodeKind::Control;
    let served = served(control, parts)?;
    // DRM copies in the directions that the program's request number states; the driver's own entry
    // point always copies both ways (common/habanalabs_ioctl.c:_hl_ioctl).
    let direction = match parts.kind {
        DRM_IOCTL_BASE if !control => parts.direction,
        _ => READ | WRITE,
    };
    let mut words = [0; WORDS];
    let len = parts.size.min(arg.len()).min(size_of_val(&words));
    if direction & WRITE != 0 {
        words.as_mut_bytes()[..len].copy_from_slice(&arg[..len]);
    }
    let result = match served {
        Served::Version => version(view(&mut words), memory),
        // SAFETY: the caller meets the same requirements.
        Served::Ioctl(ioctl) => unsafe { perform(io, ioctl, &mut words, memory) },
    };
    if direction & READ != 0 {
        arg[..len].copy_from_slice(&words.as_bytes()[..len]);
    }
    result
}

enum Served {
    Version,
    Ioctl(Ioctl),
}

/// Returns the request that a request number stands for on a node.
fn served(control: bool, parts: Parts) -> Result<Served, Errno> {
    if control {
        // common/habanalabs_ioctl.c:hl_ioctl_control compares only the `nr` field.
        let is_info = parts.nr == DRM_COMMAND_BASE || (parts.kind, parts.nr) == (HL_IOCTL_BASE, 1);
        return if is_info {
            Ok(Served::Ioctl(Ioctl::Info))
        } else {
            Err(Errno::ENOTTY)
        };
    }
    if (parts.kind, parts.nr) == (DRM_IOCTL_BASE, Parts::of(DRM_IOCTL_VERSION).nr) {
        return Ok(Served::Version);
    }
    let known = Ioctl::of_request(parts.request());
    known.map(Served::Ioctl).ok_or(match parts.kind {
        // Outside of the core's table and of the driver's (drivers/gpu/drm/drm_ioctl.c:drm_ioctl).
        // The core's other functions are not modelled.
        DRM_IOCTL_BASE => Errno::EINVAL,
        _ => Errno::ENOTTY,
    })
}

/// drivers/gpu/drm/drm_ioctl.c:drm_version. Reports the version of the kernel that the rules were
/// read from. That kernel no longer reports a date.
fn version(version: &mut DrmVersion, memory: &dyn UserMemory) -> Result<(), Errno> {
    (
        version.version_major,
        version.version_minor,
        version.version_patchlevel,
    ) = (7, 3, 4);
    let texts = [
        (version.name, &mut version.name_len, DRIVER_NAME),
        (version.date, &mut version.date_len, "0"),
        (version.desc, &mut version.desc_len, DRIVER_NAME),
    ];
    for (address, len, text) in texts {
        let room = usize::try_from(*len).unwrap_or(usize::MAX).min(text.len());
        *len = text.len() as u64;
        if address != 0 && room > 0 {
            memory.write(address, &text.as_bytes()[..room])?;
        }
    }
    Ok(())
}

/// # Safety
/// - As [`serve`].
unsafe fn perform(
    io: &dyn KernelIo,
    ioctl: Ioctl,
    words: &mut [u64; WORDS],
    memory: &dyn UserMemory,
) -> Result<(), Errno> {
    let asked = *words;
    let performer = Performer { io, memory, words };
    let result = decode(ioctl, asked.as_bytes(), memory, performer);
    let result = result.unwrap_or_else(|errno| malformed(io, ioctl, errno, words));
    if (ioctl, result) == (Ioctl::Info, Err(Errno::ENOMEM)) {
        report_mappings(io, view(words));
    }
    result
}

/// Performs a request and writes its answer as the driver does.
struct Performer<'a> {
    io: &'a dyn KernelIo,
    memory: &'a dyn UserMemory,
    words: &'a mut [u64; WORDS],
}

impl Visitor for Performer<'_> {
    type Output = Result<(), Errno>;

    fn visit<R: Wire>(self, mut request: R) -> Result<(), Errno> {
        let Self { io, memory, words } = self;
        // SAFETY: the caller of `serve` guarantees it for the argument that `request` was decoded
        // from.
        match unsafe { request.perform(io) } {
            Ok(answer) => {
                copy_out(io, request.view(), answer.view(), words, memory)?;
                request.set_answer(answer, view(words));
                Ok(())
            }
            Err(error) => request.set_failure(errno_of(&error), view(words)),
        }
    }
}

/// Copies the answer buffer to the program's memory.
fn copy_out(
    io: &dyn KernelIo,
    request: AnyRequest<'_>,
    answer: AnyAnswer<'_>,
    words: &mut [u64; WORDS],
    memory: &dyn UserMemory,
) -> Result<(), Errno> {
    let (address, bytes) = match (request, answer) {
        (AnyRequest::Info(info), AnyAnswer::Word(word)) => {
            let len = written(io, info, *word).min(info.answer.len());
            (view::<HlInfoArgs>(words).return_pointer, &info.answer[..len])
        }
        (AnyRequest::Debug(debug), _) => (view::<HlDebugArgs>(words).output_ptr, &*debug.output),
        (AnyRequest::Nic(nic), _) => (view::<HlNicArgs>(words).output_ptr, &*nic.output),
        _ => return Ok(()),
    };
    match bytes {
        [] => Ok(()),
        bytes => memory.write(address, bytes),
    }
}

/// Returns how many bytes of an INFO answer the driver writes. The rest of the program's buffer
/// stays unchanged.
fn written(io: &dyn KernelIo, info: &Info<'_>, word: u32) -> usize {
    match info.request.op {
        // common/habanalabs_ioctl.c:engine_status_info
        InfoOp::ENGINE_STATUS => word as usize,
        // common/habanalabs_ioctl.c:user_mappings_info: writes nothing if no page fault was
        // recorded. A mapping contains a byte other than zero.
        InfoOp::USER_MAPPINGS => {
            let last = info.answer.iter().rposition(|&byte| byte != 0);
            last.map_or(0, |last| (last + 1).next_multiple_of(size_of::<HlUserMapping>()))
        }
        // common/habanalabs_ioctl.c:hw_events_info: one counter per event of the chip.
        InfoOp::HW_EVENTS | InfoOp::HW_EVENTS_AGGREGATE => {
            let events = io.query::<HlInfoHwIpInfo>().map(|hw| hw.num_of_events);
            events.map_or(0, |events| (events as usize).saturating_mul(size_of::<u32>()))
        }
        _ => info.answer.len(),
    }
}

/// Reports the number of mappings if they do not fit
/// (common/habanalabs_ioctl.c:user_mappings_info).
fn report_mappings(io: &dyn KernelIo, args: &mut HlInfoArgs) {
    let request = InfoRequest {
        op: args.op,
        arg: args.arg,
    };
    if request.op == InfoOp::USER_MAPPINGS {
        let mut all = vec![0; most_of(request.op)];
        // If this query fails as well, the number stays unknown.
        if let Ok(count) = io.info(request, &mut all) {
            args.arg = count;
        }
    }
}

/// Returns the error for an argument that does not decode. The driver checks the device before it
/// reads the argument.
fn malformed(io: &dyn KernelIo, ioctl: Ioctl, errno: Errno, words: &mut [u64; WORDS]) -> Result<(), Errno> {
    let first = match ioctl {
        Ioctl::Info => {
            let op = view::<HlInfoArgs>(words).op;
            let is_event = [
                InfoOp::REGISTER_EVENTFD,
                InfoOp::UNREGISTER_EVENTFD,
                InfoOp::GET_EVENTS,
            ]
            .contains(&op);
            if is_event && io.node().kind == NodeKind::Control {
                // common/habanalabs_ioctl.c:hl_info_ioctl_control
                return Err(Errno::EOPNOTSUPP);
            }
            // The driver checks padding before the device
            // (common/habanalabs_ioctl.c:_hl_info_ioctl).
            if errno == Errno::EBADF {
                not_operational(io)
            } else {
                None
            }
        }
        // On a chip without multi-CS waits the driver does not read the list
        // (common/command_submission.c:hl_multi_cs_wait_ioctl).
        Ioctl::WaitCs if errno == Errno::EFAULT && is_multi(&view::<HlWaitCsArgs>(words).request()) => io
            .wait_multi_cs(&[], Duration::ZERO)
            .err()
            .map(|error| errno_of(&error)),
        // Mainline's table ends before it, so nothing of the argument is read.
        Ioctl::Nic => Some(Errno::EINVAL),
        _ => not_operational(io),
    };
    let errno = first.unwrap_or(errno);
    match ioctl {
        Ioctl::Cs => (&CsRequest::default()).set_failure(errno, view::<HlCsArgs>(words)),
        _ => Err(errno),
    }
}

/// Returns `EBUSY` if the device is not operational.
fn not_operational(io: &dyn KernelIo) -> Option<Errno> {
    match io.query::<HlInfoDeviceStatus>() {
        Ok(answer) if answer.status == DeviceStatus::OPERATIONAL => None,
        Ok(_) => Some(Errno::EBUSY),
        Err(error) => Some(errno_of(&error)),
    }
}
