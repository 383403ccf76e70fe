//! Rules of nodes: open, every ioctl, INFO, events, DEBUG, and importers of a dma-buf.

use gaudi_sys::Errno;
use gaudi_uapi::NodeKind;
use gaudi_uapi::debug::DebugOp;
use gaudi_uapi::info::{DeviceStatus, InfoOp};

use crate::error_kind::ErrorKind;
use crate::operation::{AnyRequest, Operation};
use crate::request::{DebugRequest, Info};
use crate::rule::{Condition, Rule, Subject, rows};

/// Die cores in the driver's tables (habanalabs.h `HL_MAX_DCORES`).
const MAX_DCORES: u32 = 8;
/// Bytes of an engine status (habanalabs.h `HL_ENGINES_DATA_MAX_SIZE`).
const STATUS_BYTES: std::ops::RangeInclusive<usize> = 1 << 10..=1 << 20;
/// Requests that may be passed through to firmware: versions, error counters, power state.
const FW_REQUESTS: u32 = 3;
/// The most bytes of one.
const FW_REQUEST_ROOM: usize = 1 << 20;
/// The most that the driver can allocate at once for an answer (`KMALLOC_MAX_SIZE` of x86-64).
const MOST_OUTPUT: usize = 4 << 20;

/// The argument word of this INFO operation.
fn arg_of(info: &Info<'_>, op: InfoOp) -> Option<u32> {
    (info.request.op == op).then_some(info.request.arg)
}

/// The bytes for the answer of this INFO operation.
fn room_of(info: &Info<'_>, op: InfoOp) -> Option<usize> {
    (info.request.op == op).then_some(info.answer.len())
}

/// Whether an answer has too few bytes. Most operations want one; those of records look for the
/// answer's address alone, and an answer without bytes has none.
fn lacks_room(info: &Info<'_>) -> bool {
    let least = match info.request.op {
        InfoOp::REGISTER_EVENTFD | InfoOp::UNREGISTER_EVENTFD | InfoOp::FW_GENERIC_REQ => 0,
        InfoOp::GET_EVENTS => size_of::<u64>(),
        op => usize::from(op.named().is_some()),
    };
    info.answer.len() < least
}

/// Returns whether the request switches debug mode to `on`.
fn sets_mode(request: &DebugRequest<'_>, on: bool) -> bool {
    request.op == DebugOp::SET_MODE && request.enable == on
}

rows! {
    /// Rules of open(2).
    mod open {
        IN_RESET "open.in-reset" open EAGAIN as InReset
            "the device is in reset; try again in a second", "common/habanalabs_drv.c:hl_device_open",
            "if it lasts, deregister the memory regions that delay the reset (`gaudi dmabuf list` lists their processes)";
        SCRUBBING "open.scrubbing" open EAGAIN as InReset ; rare;
            "the driver is scrubbing the device's memory", "common/habanalabs_drv.c:hl_device_open";
        LAST_SESSION "open.last-session" open EAGAIN as InReset ; rare;
            "the last user's session is still being cleaned up", "common/habanalabs_drv.c:hl_device_open";
        NOT_OPERATIONAL "open.not-operational" open EPERM
            "the device is not operational (malfunction, needs reset, or being created)",
            "common/habanalabs_drv.c:hl_device_open";
        IN_USE "open.in-use" open EBUSY as Busy
            "another process has the device open, or a dma-buf that it exported is still alive",
            "common/habanalabs_drv.c:hl_device_open",
            "close the other user's files and dma-bufs (`gaudi dmabuf list` lists them), or choose another device";
        DRM_FLAG "open.unsigned-offset" open EINVAL as Unsupported
            "this kernel's habanalabs lacks FOP_UNSIGNED_OFFSET, so DRM refuses every open (seen on 6.12 to 7.3)",
            "drivers/gpu/drm/drm_file.c:drm_open_helper",
            "load the module of tools/hl-open-flag, or patch the kernel (docs/src/how-to/open-flag.md); control nodes need neither";
        FILE_MEMORY "open.file-memory" open ENOMEM
            "the kernel has no memory for the file's data", "common/habanalabs_drv.c:hl_device_open";
        CONTEXT_MEMORY "open.context-memory" open ENOMEM
            "the kernel has no memory for a context", "common/context.c:hl_ctx_create";
        REMOVED "open.removed" open ENODEV as NotFound
            "the device was removed", "drivers/gpu/drm/drm_drv.c:drm_minor_acquire";
        CONTROL_LEFT_OVER "open.control.left-over" control ENXIO
            "the node is left over: the driver has no such device",
            "common/habanalabs_drv.c:hl_device_open_ctrl";
        CONTROL_MEMORY "open.control.file-memory" control ENOMEM
            "the kernel has no memory", "common/habanalabs_drv.c:hl_device_open_ctrl";
        CONTROL_DISABLED "open.control.disabled" control EPERM
            "the device is disabled", "common/habanalabs_drv.c:hl_device_open_ctrl";
    }

    /// Rules of every ioctl.
    mod ioctl {
        UNKNOWN "ioctl.unknown" ioctl ENOTTY
            "the driver does not have this ioctl: another era's number, or a control node, which has INFO only",
            "common/habanalabs_ioctl.c:hl_ioctl_control", "open the compute node";
        NOT_OPERATIONAL "ioctl.not-operational" ioctl EBUSY
            "the device is not operational (in reset or failed)",
            "common/habanalabs_ioctl.c:hl_debug_ioctl, and each other ioctl but INFO",
            "close the device; open it again when it is operational";
        POINTER "ioctl.pointer" ioctl EFAULT
            "a pointer in the request cannot be read or written", "common/habanalabs_ioctl.c:_hl_ioctl";
        REMOVED "ioctl.removed" ioctl ENODEV
            "the device was removed or is about to be hard-reset: close the file",
            "common/habanalabs_ioctl.c:hl_ioctl_control; drivers/gpu/drm/drm_ioctl.c:drm_ioctl";
        MEMORY "ioctl.memory" ioctl ENOMEM
            "the kernel has no memory", "common/habanalabs_ioctl.c:_hl_ioctl";
    }

    /// Rules of INFO.
    mod info {
        PADDING "info.padding" [Info] EINVAL ; rare;
            "padding is not 0", "common/habanalabs_ioctl.c:_hl_info_ioctl";
        ROOM "info.answer-without-room" [Info] EINVAL
            "the request has no buffer for the answer, or a size of 0",
            "common/habanalabs_ioctl.c:hw_ip_info, and the functions of most ops"
            early |Info(info), _| lacks_room(info) => info.answer.len();
        UNKNOWN "info.unknown-operation" [Info] EINVAL
            "the driver does not know this op", "common/habanalabs_ioctl.c:_hl_info_ioctl";
        IN_RESET "info.in-reset" [Info] EBUSY
            "the device is in reset, and the operation reads the chip", "common/habanalabs_ioctl.c:_hl_info_ioctl"
            state |Info(info), driver|
                info.request.needs_operation() && driver.status() != DeviceStatus::OPERATIONAL => driver.status();
        CONTROL_EVENTS "info.control-events" [Info RegisterEvents UnregisterEvents] EOPNOTSUPP
            "a control node has no events", "common/habanalabs_ioctl.c:hl_info_ioctl_control",
            "open the compute node";
        EVENT_COUNTERS "info.event-counters" [Info] EOPNOTSUPP ; rare;
            "this chip has no event counters", "common/habanalabs_ioctl.c:hw_events_info";
        POWER "info.utilization.power" [Info] EINVAL for "HL_INFO_DEVICE_UTILIZATION" ; rare;
            "the firmware does not report the power", "common/habanalabs_ioctl.c:device_utilization";
        DCORE "info.sync-manager.no-such-dcore" [Info] EINVAL for "HL_INFO_SYNC_MANAGER"
            "the chip has no such die core", "common/habanalabs_ioctl.c:sync_manager_info"
            early |Info(info), _| arg_of(info, InfoOp::SYNC_MANAGER) >= Some(MAX_DCORES) => info.request.arg;
        PLL "info.pll.no-such-pll" [Info] EINVAL for "HL_INFO_PLL_FREQUENCY"
            "the chip has no such PLL", "gaudi2/gaudi2.c:gaudi2_map_pll_idx_to_fw_idx"
            late |Info(info), asic| arg_of(info, InfoOp::PLL_FREQUENCY) >= Some(asic.plls) => info.request.arg;
        ATTESTATION_MEMORY "info.attestation.memory" [Info] ENOMEM for "HL_INFO_SECURED_ATTESTATION" ; rare;
            "the kernel has no memory for the answer", "common/habanalabs_ioctl.c:sec_attest_info";
        SIGNED_MEMORY "info.signed.memory" [Info] ENOMEM for "HL_INFO_DEV_SIGNED" ; rare;
            "the kernel has no memory for the answer", "common/habanalabs_ioctl.c:dev_info_signed";
        ENGINE_STATUS_SIZE "info.engine-status.size-of-answer" [Info] EINVAL for "HL_INFO_ENGINE_STATUS"
            "the buffer is below 1 KiB or above 1 MiB", "common/habanalabs_ioctl.c:engine_status_info"
            late |Info(info), _|
                room_of(info, InfoOp::ENGINE_STATUS).is_some_and(|room| !STATUS_BYTES.contains(&room))
                => info.answer.len();
        ENGINE_STATUS_ROOM "info.engine-status.longer-than-its-room" [Info] ENOMEM for "HL_INFO_ENGINE_STATUS"
            "the engine status is longer than the buffer", "common/habanalabs_ioctl.c:engine_status_info";
        MAPPINGS_POINTER "info.user-mappings.pointer" [Info] EINVAL for "HL_INFO_USER_MAPPINGS" ; rare;
            "the request has no buffer for the answer", "common/habanalabs_ioctl.c:user_mappings_info";
        MAPPINGS_ROOM "info.user-mappings.room" [Info] ENOMEM for "HL_INFO_USER_MAPPINGS"
            "the buffer is too small for the mappings", "common/habanalabs_ioctl.c:user_mappings_info";
        HW_ERROR_POINTER "info.hw-error.pointer" [Info] EINVAL for "HL_INFO_HW_ERR_EVENT" ; rare;
            "an error is recorded, and the request has no buffer", "common/habanalabs_ioctl.c:hw_err_info";
        HW_ERROR_ROOM "info.hw-error.room" [Info] ENOMEM for "HL_INFO_HW_ERR_EVENT" ; rare;
            "an error is recorded, and the buffer is too small", "common/habanalabs_ioctl.c:hw_err_info";
        FW_ERROR_POINTER "info.fw-error.pointer" [Info] EINVAL for "HL_INFO_FW_ERR_EVENT" ; rare;
            "an error is recorded, and the request has no buffer", "common/habanalabs_ioctl.c:fw_err_info";
        FW_ERROR_ROOM "info.fw-error.room" [Info] ENOMEM for "HL_INFO_FW_ERR_EVENT" ; rare;
            "an error is recorded, and the buffer is too small", "common/habanalabs_ioctl.c:fw_err_info";
        ENGINE_ERROR_POINTER "info.engine-error.pointer" [Info] EINVAL for "HL_INFO_USER_ENGINE_ERR_EVENT" ; rare;
            "an error is recorded, and the request has no buffer", "common/habanalabs_ioctl.c:engine_err_info";
        ENGINE_ERROR_ROOM "info.engine-error.room" [Info] ENOMEM for "HL_INFO_USER_ENGINE_ERR_EVENT"
            "an error is recorded, and the buffer is too small", "common/habanalabs_ioctl.c:engine_err_info";
        FIRMWARE_UNKNOWN "info.firmware-request.unknown" [Info] EINVAL for "HL_INFO_FW_GENERIC_REQ"
            "the firmware has no such request", "common/habanalabs_ioctl.c:send_fw_generic_request"
            late |Info(info), _| arg_of(info, InfoOp::FW_GENERIC_REQ) >= Some(FW_REQUESTS) => info.request.arg;
        FIRMWARE_TOO_LARGE "info.firmware-request.too-large" [Info] EINVAL for "HL_INFO_FW_GENERIC_REQ"
            "the buffer is above 1 MiB", "common/habanalabs_ioctl.c:send_fw_generic_request"
            late |Info(info), _| room_of(info, InfoOp::FW_GENERIC_REQ) > Some(FW_REQUEST_ROOM) => info.answer.len();
        FIRMWARE_REFUSES "info.firmware-request.refused" [Info] EIO for "HL_INFO_FW_GENERIC_REQ"
            "the firmware refuses the request", "common/firmware_if.c:hl_fw_send_cpu_message";
        FIRMWARE_ROOM "info.firmware-request.without-room" [Info] ENOMEM for "HL_INFO_FW_GENERIC_REQ"
            "the buffer has no bytes", "common/habanalabs_ioctl.c:send_fw_generic_request"
            late |Info(info), _| room_of(info, InfoOp::FW_GENERIC_REQ) == Some(0) => 0;
        FIRMWARE_POINTER "info.firmware-request.pointer" [Info] EFAULT for "HL_INFO_FW_GENERIC_REQ" ; rare;
            "the request cannot be read", "common/habanalabs_ioctl.c:send_fw_generic_request";
    }

    /// Rules of eventfds.
    mod events {
        REGISTERED "events.register-twice" [RegisterEvents] EINVAL
            "an eventfd is registered already", "common/habanalabs_ioctl.c:eventfd_register"
            state |RegisterEvents(_), driver| driver.has_eventfd() => "another eventfd";
        NOT_EVENTFD "events.not-an-eventfd" [RegisterEvents] EINVAL
            "the descriptor is not an eventfd", "common/habanalabs_ioctl.c:eventfd_register";
        NOT_REGISTERED "events.unregister-unregistered" [UnregisterEvents] EINVAL
            "no eventfd is registered", "common/habanalabs_ioctl.c:eventfd_unregister"
            state |UnregisterEvents(_), driver| !driver.has_eventfd() => "no eventfd";
    }

    /// Rules of DEBUG.
    mod debug {
        OUTSIDE_MODE "debug.outside-mode" [Debug] EFAULT
            "the device is not in debug mode", "common/habanalabs_ioctl.c:hl_debug_ioctl",
            "enter it with HL_DEBUG_OP_SET_MODE"
            state |Debug(request), driver| request.op != DebugOp::SET_MODE && !driver.is_debugged() => request.op;
        ALREADY_OFF "debug.mode.off-when-off" [Debug] EFAULT for "HL_DEBUG_OP_SET_MODE"
            "the device is not in debug mode", "common/device.c:hl_device_set_debug_mode"
            state |Debug(request), driver| sets_mode(request, false) && !driver.is_debugged() => "off";
        ALREADY_ON "debug.mode.twice" [Debug] EFAULT for "HL_DEBUG_OP_SET_MODE"
            "the device is in debug mode already", "common/device.c:hl_device_set_debug_mode"
            state |Debug(request), driver| sets_mode(request, true) && driver.is_debugged() => "on";
        UNKNOWN "debug.unknown-operation" [Debug] EINVAL
            "no such operation", "common/habanalabs_ioctl.c:hl_debug_ioctl"
            early |Debug(request), _| request.op.0 > DebugOp::SET_MODE.0 => request.op;
        TOO_LARGE "debug.answer-too-large" [Debug] ENOMEM
            "the answer is larger than the kernel allocates at once", "common/habanalabs_ioctl.c:debug_coresight"
            late |Debug(request), _| request.op != DebugOp::SET_MODE && request.output.len() > MOST_OUTPUT
                => request.output.len();
        INPUT "debug.input" [Debug] EFAULT ; rare;
            "the input cannot be read", "common/habanalabs_ioctl.c:debug_coresight";
        OUTPUT "debug.output" [Debug] EFAULT ; rare;
            "the output cannot be written", "common/habanalabs_ioctl.c:debug_coresight";
        COMPONENT "debug.no-such-component" [Debug] EINVAL
            "the chip has no such component",
            "gaudi2/gaudi2_coresight.c:gaudi2_config_stm, _etf, _funnel, _bmon and _spmu"
            late |Debug(request), asic| request.components(asic).is_some_and(|all| request.reg_idx >= all.0)
                => request.reg_idx;
        PARAMETERS "debug.without-parameters" [Debug] EINVAL
            "the component needs its parameters",
            "gaudi2/gaudi2_coresight.c:gaudi2_config_stm, _etf, _etr, _bmon and _spmu";
        TRACE_BUFFER_EMPTY "debug.trace-buffer.empty" [Debug] EINVAL for "HL_DEBUG_OP_ETR"
            "the trace buffer has no bytes", "gaudi2/gaudi2_coresight.c:gaudi2_config_etr";
        TRACE_BUFFER_ADDRESS "debug.trace-buffer.address" [Debug] EINVAL for "HL_DEBUG_OP_ETR"
            "the trace buffer lies where users have no memory", "gaudi2/gaudi2_coresight.c:gaudi2_config_etr";
        EVENTS "debug.too-many-events" [Debug] EINVAL for "HL_DEBUG_OP_SPMU"
            "an SPMU counts at most six kinds of events", "gaudi2/gaudi2_coresight.c:gaudi2_config_spmu";
        LOCKED "debug.locked" [Debug] EIO ; rare;
            "the component stays locked", "gaudi2/gaudi2_coresight.c:gaudi2_config_stm, and the others";
    }

    /// Rules of importers that map an exported dma-buf.
    mod attach {
        PEER_TO_PEER "attach.peer-to-peer" attach EPERM
            "the importer cannot reach the device by PCI peer-to-peer, or did not ask for it",
            "common/memory.c:hl_map_dmabuf";
        SEGMENTS "attach.segments" attach EINVAL
            "the importer's DMA segments are smaller than a page",
            "common/memory.c:alloc_sgt_from_device_pages";
    }
}
