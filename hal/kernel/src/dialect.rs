//! [`Dialect`]: what the driver behind an open node understands, and the errors for what it lacks.

use std::collections::HashMap;
use std::sync::Mutex;

use gaudi_seam::{DeviceVa, Era, Error, ErrorKind, ExportRequest, MemHandle, Node, Operation, Result};
use gaudi_sys::Errno;
use gaudi_uapi::Since;
use gaudi_uapi::cs::CsFlags;
use gaudi_uapi::info::{HlInfoHwIpInfo, HlInfoRazwiEvent, InfoOp};
use gaudi_uapi::legacy::HlInfoRazwiEvent61;
use gaudi_uapi::memory::HlMemIn;
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::machine::Machine;

/// Flags that make the driver read engine ids where chunks are otherwise.
const ENGINE_FLAGS: u32 = CsFlags::ENGINE_CORE_COMMAND.0 | CsFlags::ENGINES_COMMAND.0;

/// What a driver understands.
#[derive(Debug)]
pub(crate) struct Dialect {
    /// `HL_CS_FLAGS_*` of newer headers. An older driver does not reject them: it misreads the
    /// request.
    unknown_flags: u32,
    /// Flags that a submission of chunks alone does not have: the unknown ones, and those of
    /// commands to engines.
    pub(crate) not_plain: u32,
    /// Allocations and mappings of the process, for drivers up to Linux 6.2: exports go by handle
    /// there.
    handles: Option<Mutex<Handles>>,
}

/// Linux 6.3 made EXPORT_DMABUF_FD take the mapped address in place of the handle ("habanalabs:
/// modify export dmabuf API"), and moved the header to `drm/habanalabs_accel.h`. The nodes kept
/// their old names until 6.7.
const NEW_HEADER: (u32, u32) = (6, 3);

/// PCI devices whose DRAM has no virtual addresses: Gaudi and Gaudi secured
/// (include/hw_ip/pci/pci_general.h).
const GAUDI: [u32; 2] = [0x1000, 0x1010];

#[derive(Debug, Default)]
struct Handles {
    /// Requested bytes, by handle.
    sizes: HashMap<u64, u64>,
    /// Handles by the device address of the mapping.
    mapped: HashMap<u64, u64>,
}

impl Dialect {
    /// What a driver with nodes of this era understands, as far as the machine shows.
    pub(crate) fn of(machine: &Machine, era: Era) -> Self {
        let old = era == Era::HlMisc
            && (machine.is_vendors() || machine.release().is_none_or(|release| release < NEW_HEADER));
        let knows = if old { Since::V6_1 } else { Since::V7 };
        let unknown = CsFlags::NAMES.iter().filter(|flag| flag.since > knows);
        let unknown_flags = unknown.fold(0, |all, flag| all | flag.value as u32);
        Self {
            unknown_flags,
            not_plain: unknown_flags | ENGINE_FLAGS,
            handles: old.then(Mutex::default),
        }
    }

    /// Rejects flags that the driver would misread.
    #[inline]
    pub(crate) fn check_flags(&self, node: &Node, operation: Operation, flags: CsFlags) -> Result<()> {
        match flags.0 & self.unknown_flags {
            0 => Ok(()),
            unknown => Err(unknown_flag(node, operation, unknown)),
        }
    }

    /// Records an allocation. Does nothing on newer drivers.
    pub(crate) fn allocated(&self, handle: MemHandle, size: u64) {
        if let Some(handles) = &self.handles {
            lock(handles).sizes.insert(handle.0, size);
        }
    }

    /// Records a mapping. Does nothing on newer drivers.
    pub(crate) fn mapped(&self, address: DeviceVa, handle: MemHandle) {
        if let Some(handles) = &self.handles {
            lock(handles).mapped.insert(address.0, handle.0);
        }
    }

    /// Removes an allocation and returns its size.
    pub(crate) fn forget_allocation(&self, handle: MemHandle) -> Option<u64> {
        lock(self.handles.as_ref()?).sizes.remove(&handle.0)
    }

    /// Removes a mapping and returns its allocation.
    pub(crate) fn forget_mapping(&self, address: DeviceVa) -> Option<MemHandle> {
        lock(self.handles.as_ref()?)
            .mapped
            .remove(&address.0)
            .map(MemHandle)
    }

    /// The argument of EXPORT_DMABUF_FD for this driver: by mapped address, or, before Linux 6.3,
    /// by the allocation's handle, as a whole (Gaudi: always by physical address). The request
    /// names the mapping in every case. `hw` asks the driver for HW_IP_INFO.
    pub(crate) fn export_input(
        &self,
        node: &Node,
        operation: Operation,
        request: ExportRequest,
        hw: impl Fn() -> Result<HlInfoHwIpInfo>,
    ) -> Result<HlMemIn> {
        let ExportRequest {
            address,
            size,
            offset,
            flags,
        } = request;
        let Some(handles) = &self.handles else {
            return Ok(HlMemIn::export_dmabuf_fd(address.0, size, offset, flags));
        };
        if offset != 0 {
            let what = "the offset of HL_MEM_OP_EXPORT_DMABUF_FD";
            return Err(lacks(node, operation, what, Since::V7));
        }
        let known = {
            let handles = lock(handles);
            let handle = handles.mapped.get(&address.0).copied();
            handle.map(|handle| (handle, handles.sizes.get(&handle).copied()))
        };
        match known {
            Some((handle, Some(asked))) if is_whole(asked, size, &hw)? => {
                Ok(HlMemIn::export_dmabuf_fd(handle, size, 0, flags))
            }
            Some((_, whole)) => Err(Error::unsupported(
                operation.kernel_name(),
                "this driver exports whole allocations only",
            )
            .on(node.device)
            .saw(
                format_args!("{size} bytes"),
                whole.map_or("the size of an allocation of this file".to_owned(), |whole| {
                    format!("{whole} bytes")
                }),
            )
            .helped_by("export the whole allocation, or use a kernel from 6.7 on")),
            // The driver would read an unknown address as a handle, and could find one: only a chip
            // whose memory has no virtual addresses takes addresses.
            None if GAUDI.contains(&hw()?.device_id) => {
                Ok(HlMemIn::export_dmabuf_fd(address.0, size, 0, flags))
            }
            None => Err(Error::new(ErrorKind::InvalidInput, operation.kernel_name())
                .with_errno(Errno::EINVAL)
                .on(node.device)
                .because("no mapping of device memory that this file made starts at this address")
                .saw(address, "an address that HL_MEM_OP_MAP returned")),
        }
    }

    /// Converts an answer whose meaning changed after Linux 6.1 into today's.
    pub(crate) fn modernise(&self, op: InfoOp, answer: &mut [u8]) {
        if op != InfoOp::RAZWI_EVENT || self.handles.is_none() {
            return;
        }
        if let Ok((old, _)) = HlInfoRazwiEvent61::read_from_prefix(answer) {
            let event = HlInfoRazwiEvent::from(old);
            let len = answer.len().min(size_of_val(&event));
            answer[..len].copy_from_slice(&event.as_bytes()[..len]);
        }
    }
}

fn lock(handles: &Mutex<Handles>) -> std::sync::MutexGuard<'_, Handles> {
    // No code panics under the lock.
    handles.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Whether `size` is a whole allocation of `asked` requested bytes: the driver rounds up to its
/// pages.
fn is_whole(asked: u64, size: u64, hw: impl Fn() -> Result<HlInfoHwIpInfo>) -> Result<bool> {
    if size <= asked {
        return Ok(size == asked);
    }
    let hw = hw()?;
    let pages = [hw.device_mem_alloc_default_page_size, hw.dram_page_size];
    let page = pages.into_iter().find(|&page| page != 0).unwrap_or(1);
    Ok(asked.checked_next_multiple_of(page) == Some(size))
}

#[cold]
fn unknown_flag(node: &Node, operation: Operation, unknown: u32) -> Error {
    let first = CsFlags::NAMES
        .iter()
        .find(|flag| flag.value as u32 & unknown != 0);
    let (name, since) = first.map_or(("a flag", Since::V7), |flag| (flag.c_name, flag.since));
    lacks(node, operation, name, since)
}

/// The error of an INFO operation that returned EINVAL, if the driver may be older than the
/// operation.
pub(crate) fn lacks_info(node: &Node, operation: Operation, op: InfoOp, errno: Errno) -> Option<Error> {
    let named = op.named()?;
    // Drivers of the newest era know every name of the newest mainline header: then the argument is
    // invalid.
    let known = match node.era {
        Era::AccelDrm => Since::V7,
        // 6.2 to 6.6 gained operations one by one: only the driver's answer decides.
        Era::HlMisc | Era::AccelH => Since::V6_1,
    };
    let lacking = errno == Errno::EINVAL && named.since > known;
    lacking.then(|| lacks(node, operation, named.c_name, named.since).with_errno(errno))
}

/// The error for an operation or a flag that this driver does not have.
pub(crate) fn lacks(node: &Node, operation: Operation, name: &str, since: Since) -> Error {
    let help = match since {
        Since::Gaudi3 => "only the driver of the Gaudi3 release has it",
        _ => "use a kernel from 6.7 on",
    };
    Error::unsupported(
        operation.kernel_name(),
        format!("this driver does not have {name}"),
    )
    .on(node.device)
    .saw(format_args!("the interface {}", node.era), since)
    .helped_by(help)
}
