//! What the driver behind an open node understands: found at open, and the reason where a call is refused.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use gaudi_seam::{DeviceVa, Era, Error, ErrorKind, ExportRequest, KernelIoExt as _, MemHandle, Operation, Result};
use gaudi_sys::Errno;
use gaudi_uapi::Since;
use gaudi_uapi::cs::CsFlags;
use gaudi_uapi::info::{HlInfoHwIpInfo, HlInfoRazwiEvent, InfoOp};
use gaudi_uapi::legacy::HlInfoRazwiEvent61;
use gaudi_uapi::memory::HlMemIn;
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::ioctl::Kernel;
use crate::jobs::ENGINE_FLAGS;
use crate::open::Driver;
use crate::system::Syscalls;

/// What a driver understands.
#[derive(Debug)]
pub(crate) struct Dialect {
    /// `HL_CS_FLAGS_*` of newer headers. An older driver does not refuse them: it misreads the request.
    strange: u32,
    /// Flags that a submission of chunks alone does not have: the strange ones, and those of commands to engines.
    pub(crate) not_plain: u32,
    /// What the process allocated and mapped, on a driver of Linux 6.2 or older: there exports go by handle.
    handles: Option<Mutex<Handles>>,
}

/// Linux 6.3 made EXPORT_DMABUF_FD take the mapped address in place of the handle ("habanalabs: modify export dmabuf
/// API"), and moved the header to `drm/habanalabs_accel.h`; the nodes kept their old names until 6.7.
const NEW_HEADER: (u32, u32) = (6, 3);

/// PCI devices whose DRAM has no virtual addresses: Gaudi and Gaudi secured (include/hw_ip/pci/pci_general.h).
const GAUDI: [u32; 2] = [0x1000, 0x1010];

impl Dialect {
    /// What a driver with nodes of this era understands, as far as the machine tells.
    pub(crate) fn of<S: Syscalls + ?Sized>(driver: &Driver<S>, era: Era) -> Self {
        let old = era == Era::HlMisc
            && (driver.is_vendors() || driver.release().is_none_or(|release| release < NEW_HEADER));
        let knows = if old { Since::V6_1 } else { Since::V7 };
        let strange = CsFlags::NAMES.iter().filter(|flag| flag.since > knows);
        let strange = strange.fold(0, |all, flag| all | flag.value as u32);
        Self {
            strange,
            not_plain: strange | ENGINE_FLAGS,
            handles: old.then(Mutex::default),
        }
    }
}

#[derive(Debug, Default)]
struct Handles {
    /// Bytes asked for, by handle.
    sizes: HashMap<u64, u64>,
    /// Handles by the device address that they are mapped at.
    mapped: HashMap<u64, u64>,
}

/// What happened to device memory; kept where exports go by handle.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// ALLOC: handle, bytes.
    Allocated(MemHandle, u64),
    /// MAP: address, handle.
    Mapped(DeviceVa, MemHandle),
}

impl<S: Syscalls + ?Sized> Kernel<S> {
    /// Refuses flags that the driver would misread.
    #[inline]
    pub(crate) fn refuse_strange(&self, operation: Operation, flags: CsFlags) -> Result<()> {
        match flags.0 & self.dialect().strange {
            0 => Ok(()),
            strange => Err(self.strange(operation, strange)),
        }
    }

    #[cold]
    fn strange(&self, operation: Operation, strange: u32) -> Error {
        let first = CsFlags::NAMES
            .iter()
            .find(|flag| flag.value as u32 & strange != 0);
        let (name, since) = first.map_or(("a flag", Since::V7), |flag| (flag.c_name, flag.since));
        self.lacks(operation, name, since)
    }

    /// The error of an INFO operation that EINVAL came for, where the driver may be older than the operation.
    pub(crate) fn lacks_info(&self, operation: Operation, op: InfoOp, errno: Errno) -> Option<Error> {
        let named = op.named()?;
        // Drivers of the newest era know what the newest mainline header names: then the argument is to blame.
        let known = match self.node_ref().era {
            Era::AccelDrm => Since::V7,
            // 6.2 to 6.6 learnt operations one by one: asking tells.
            Era::HlMisc | Era::AccelH => Since::V6_1,
        };
        let lacks = errno == Errno::EINVAL && named.since > known;
        lacks.then(|| self.lacks(operation, named.c_name, named.since).with_errno(errno))
    }

    /// An operation or flag that this driver is too old for, or of another branch than.
    pub(crate) fn lacks(&self, operation: Operation, name: &str, since: Since) -> Error {
        let node = self.node_ref();
        let help = match since {
            Since::Gaudi3 => "only the driver of the Gaudi3 release has it",
            _ => "use a kernel from 6.7 on",
        };
        Error::unsupported(operation.kernel_name(), format!("this driver does not have {name}"))
            .on(node.device)
            .saw(format_args!("the interface {}", node.era), since)
            .helped_by(help)
    }

    /// Turns an answer whose meaning changed after Linux 6.1 into today's.
    pub(crate) fn modernise(&self, op: InfoOp, answer: &mut [u8]) {
        if op != InfoOp::RAZWI_EVENT || self.dialect().handles.is_none() {
            return;
        }
        if let Ok((old, _)) = HlInfoRazwiEvent61::read_from_prefix(answer) {
            let event = HlInfoRazwiEvent::from(old);
            let len = answer.len().min(size_of_val(&event));
            answer[..len].copy_from_slice(&event.as_bytes()[..len]);
        }
    }

    /// Keeps what an export by handle needs. Nothing on newer drivers.
    pub(crate) fn note(&self, event: Event) {
        let Some(handles) = &self.dialect().handles else {
            return;
        };
        let mut handles = handles.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Allocated(handle, size) => drop(handles.sizes.insert(handle.0, size)),
            Event::Mapped(address, handle) => drop(handles.mapped.insert(address.0, handle.0)),
        }
    }

    /// Forgets an allocation, and says how large it was.
    pub(crate) fn forget_handle(&self, handle: MemHandle) -> Option<u64> {
        let handles = self.dialect().handles.as_ref()?;
        let mut handles = handles.lock().unwrap_or_else(PoisonError::into_inner);
        handles.sizes.remove(&handle.0)
    }

    /// Forgets a mapping, and says of which allocation it was.
    pub(crate) fn forget_mapping(&self, address: DeviceVa) -> Option<MemHandle> {
        let handles = self.dialect().handles.as_ref()?;
        let mut handles = handles.lock().unwrap_or_else(PoisonError::into_inner);
        handles.mapped.remove(&address.0).map(MemHandle)
    }

    /// Returns the argument of EXPORT_DMABUF_FD as this driver takes it: by mapped address, or, before Linux 6.3, by the
    /// allocation's handle, as a whole (Gaudi: always by physical address). The request names the mapping in every case.
    pub(crate) fn export_input(&self, operation: Operation, request: ExportRequest) -> Result<HlMemIn> {
        let ExportRequest {
            address,
            size,
            offset,
            flags,
        } = request;
        let Some(handles) = &self.dialect().handles else {
            return Ok(HlMemIn::export_dmabuf_fd(address.0, size, offset, flags));
        };
        if offset != 0 {
            return Err(self.lacks(operation, "the offset of HL_MEM_OP_EXPORT_DMABUF_FD", Since::V7));
        }
        let known = {
            let handles = handles.lock().unwrap_or_else(PoisonError::into_inner);
            let handle = handles.mapped.get(&address.0).copied();
            handle.map(|handle| (handle, handles.sizes.get(&handle).copied()))
        };
        match known {
            Some((handle, Some(asked))) if self.is_whole(asked, size)? => {
                Ok(HlMemIn::export_dmabuf_fd(handle, size, 0, flags))
            }
            Some((_, whole)) => Err(Error::unsupported(
                operation.kernel_name(),
                "this driver exports whole allocations only",
            )
            .on(self.node_ref().device)
            .saw(
                format_args!("{size} bytes"),
                whole.map_or("the size of an allocation of this file".to_owned(), |whole| {
                    format!("{whole} bytes")
                }),
            )
            .helped_by("export the whole allocation, or use a kernel from 6.7 on")),
            // An unknown address would be read as a handle, and could hit one: only a chip whose memory has no
            // virtual addresses takes addresses.
            None if self.has_physical_memory()? => Ok(HlMemIn::export_dmabuf_fd(address.0, size, 0, flags)),
            None => Err(Error::new(ErrorKind::InvalidInput, operation.kernel_name())
                .with_errno(Errno::EINVAL)
                .on(self.node_ref().device)
                .because("no mapping of device memory that this file made starts at this address")
                .saw(address, "an address that HL_MEM_OP_MAP returned")),
        }
    }

    /// Whether `size` is a whole allocation of `asked` requested bytes: the driver rounds up to its pages.
    fn is_whole(&self, asked: u64, size: u64) -> Result<bool> {
        if size <= asked {
            return Ok(size == asked);
        }
        let hw = self.query::<HlInfoHwIpInfo>()?;
        let pages = [hw.device_mem_alloc_default_page_size, hw.dram_page_size];
        let page = pages.into_iter().find(|&page| page != 0).unwrap_or(1);
        Ok(asked.checked_next_multiple_of(page) == Some(size))
    }

    fn has_physical_memory(&self) -> Result<bool> {
        Ok(GAUDI.contains(&self.query::<HlInfoHwIpInfo>()?.device_id))
    }
}
