//! Device memory as dma-bufs, in both directions (driver common/memory.c; the import, of the Gaudi3
//! header).
//!
//! If `/dev/udmabuf` exists, an export is a real dma-buf of the memory's own pages; otherwise it is
//! a stand-in. Its holder can read from the descriptor which of the two it is.

use std::os::fd::{AsFd, OwnedFd};

use gaudi_seam::engine::HostRange;
use gaudi_seam::{
    DeviceVa, Errno, Error, ExportRequest, Operation, RawMapping, RegisterDmabuf, Result, rules,
};
use gaudi_spec::{Asic, DevicePa};
use gaudi_sys::dmabuf::{UdmabufPart, is_dmabuf, udmabuf_create_list, udmabuf_open};
use gaudi_sys::standin::{self, Window};
use gaudi_sys::{Memfd, PAGE, fd};

use crate::address_space::{Exported, Mapping, page_address};
use crate::open::Device;
use crate::va::Hint;

/// The most bytes of a real dma-buf: udmabuf takes and pins every page, and device memory is
/// sparse. It is also the driver's own limit in Linux 6.12 (`size_limit_mb`).
const REAL_LIMIT: u64 = 64 << 20;

const OP: Operation = Operation::ExportDmabuf;
/// open(2).
const O_CLOEXEC: u32 = 0o2_000_000;

impl Device {
    pub(crate) fn export_dmabuf(&self, request: ExportRequest) -> Result<OwnedFd> {
        let export = self.export(request)?;
        // memory.c:export_dmabuf: of the flags the descriptor takes this one (fs/file.c
        // `get_unused_fd_flags`); ours are born with it.
        if request.flags & O_CLOEXEC == 0 {
            fd::keep_on_exec(&export).map_err(|errno| self.refusal(OP, errno))?;
        }
        Ok(export)
    }

    fn export(&self, request: ExportRequest) -> Result<OwnedFd> {
        let mut state = self.admit(&request)?;
        let Some(&Mapping::Device { handle, .. }) = state.context().mappings.get(&request.address.0) else {
            unreachable!(
                "the rules allow addresses of device memory, and not {}",
                request.address
            );
        };
        let pages = &state.mapped(handle).pages;
        let windows = windows(self.asic, pages, request.offset, request.offset + request.size);
        for window in &windows {
            let start = DevicePa(self.asic.dram_base.0 + window.offset);
            state.engine.expose(start, window.len);
        }
        let Some(memory) = state.engine.memory_file() else {
            return Err(
                Error::unsupported(OP.kernel_name(), "the chip's memory is private to this process")
                    .on(self.id),
            );
        };
        let failed = |errno| match errno {
            Errno::EMFILE => self.refuse(OP, &rules::export::NO_DESCRIPTOR),
            errno => self.refusal(OP, errno).because("no descriptor for the export"),
        };
        if let Some(fd) = real(memory, &windows, request.size).map_err(failed)? {
            // The mock keeps a descriptor, to detect that the others are closed.
            let own = fd::duplicate(&fd).map_err(failed)?;
            state.note_export(request.address, Exported::Real(own));
            return Ok(fd);
        }
        let [window] = windows[..] else {
            return Err(Error::unsupported(
                OP.kernel_name(),
                "the stand-in for a dma-buf covers pages in a row only, and these are not",
            )
            .on(self.id)
            .helped_by("allocate with HL_MEM_CONTIGUOUS"));
        };
        let fd = standin::export(memory, window).map_err(failed)?;
        state.note_export(request.address, Exported::StandIn(window));
        Ok(fd)
    }

    /// Maps another exporter's memory into this process, so that the chip can access it.
    #[expect(
        unsafe_code,
        reason = "the chip is handed a mapping that lives as long as its own"
    )]
    pub(crate) fn register_dmabuf(&self, request: RegisterDmabuf<'_>) -> Result<DeviceVa> {
        const OP: Operation = Operation::RegisterDmabuf;
        if !self.spec.import {
            let with = format!(
                "mock:{}?import=1 has the operation of the Gaudi3 header",
                self.spec.chip
            );
            return Err(self.refuse(OP, &rules::export::NO_IMPORT).helped_by(with));
        }
        let mut guard = self.enter(OP)?;
        let refuse = |errno: Errno, why: &str| self.refusal(OP, errno).because(why.to_owned());
        let (start, size) = extent(request)
            .map_err(|errno| refuse(errno, "the descriptor is not a dma-buf, or not a safe stand-in"))?;
        if request.len != size || size == 0 || size % PAGE != 0 {
            return Err(refuse(Errno::EINVAL, "the length is not the dma-buf's").saw(request.len, size));
        }
        let len = usize::try_from(size).map_err(|_| refuse(Errno::EOVERFLOW, "too many bytes to map"))?;
        let map = RawMapping::of_fd(request.dmabuf, start, len).map_err(|errno| match errno {
            Errno::ENODEV | Errno::EINVAL => Error::unsupported(
                OP.kernel_name(),
                "the mock reaches dma-bufs that the CPU can map, and no others",
            )
            .on(self.id),
            errno => refuse(errno, "the dma-buf cannot be mapped"),
        })?;
        let (context, engine) = guard.parts();
        let Some(block) = context.va.host.take(size, PAGE, Hint::NONE) else {
            return Err(self.no_address(OP, size, Hint::NONE));
        };
        // SAFETY: the mapping is stored with the chip's range and outlives it (`State::unmap`). A
        // `RawMapping` hands out no references.
        let range = unsafe { HostRange::new(map.as_ptr(), len) };
        let mapped = engine.map_host(block, range);
        debug_assert!(
            mapped.is_ok(),
            "an address that was free cannot be mapped: {mapped:?}"
        );
        let mapping = Mapping::Host {
            block,
            size,
            len: size,
            imported: Some(map),
        };
        context.mappings.insert(block.0, mapping);
        Ok(block)
    }
}

/// Returns the first byte and the length of a dma-buf, or of a stand-in without a
/// [flaw](standin::Flaw). `EINVAL` for any other file, as dma_buf_get() answers.
fn extent(request: RegisterDmabuf<'_>) -> std::result::Result<(u64, u64), Errno> {
    match standin::window(request.dmabuf)? {
        Some(window) if standin::flaw(request.dmabuf, window)?.is_none() => Ok((window.offset, window.len)),
        None if is_dmabuf(request.dmabuf)? => Ok((0, fd::size(request.dmabuf)?)),
        Some(_) | None => Err(Errno::EINVAL),
    }
}

/// The windows of device memory's file that hold `offset..end` of an allocation; adjacent pages are
/// one window.
fn windows(asic: &Asic, pages: &[usize], offset: u64, end: u64) -> Vec<Window> {
    let page_size = asic.dram_page;
    let mut windows: Vec<Window> = Vec::new();
    let mut at = offset;
    while at < end {
        let page = pages[(at / page_size) as usize];
        let inside = at % page_size;
        let len = (page_size - inside).min(end - at);
        let offset = page_address(asic, page).0 + inside - asic.dram_base.0;
        match windows.last_mut() {
            Some(last) if last.offset + last.len == offset => last.len += len,
            _ => windows.push(Window { offset, len }),
        }
        at += len;
    }
    windows
}

/// Returns a real dma-buf of these windows; `None` if the machine has no udmabuf that takes them.
fn real(memory: &Memfd, windows: &[Window], size: u64) -> std::result::Result<Option<OwnedFd>, Errno> {
    if size > REAL_LIMIT {
        return Ok(None);
    }
    let udmabuf = match udmabuf_open() {
        Err(errno @ (Errno::EMFILE | Errno::ENFILE)) => return Err(errno),
        Err(_) => return Ok(None),
        Ok(udmabuf) => udmabuf,
    };
    let parts: Vec<_> = windows
        .iter()
        .map(|window| UdmabufPart {
            memfd: memory,
            offset: window.offset,
            size: window.len,
        })
        .collect();
    match udmabuf_create_list(udmabuf.as_fd(), &parts) {
        Err(errno @ (Errno::EMFILE | Errno::ENFILE)) => Err(errno),
        // Its limit was lowered, or memory is short: a stand-in needs none.
        answer => Ok(answer.ok()),
    }
}
