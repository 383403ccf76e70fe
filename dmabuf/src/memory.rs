//! [`DeviceMemory`]: an allocation, its mapping and its exports under one owner, taken down in the only order that works.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use gaudi_seam::{
    DeviceVa, Errno, Error, ErrorKind, KernelIo, KernelIoExt as _, MapDevice, MemAlloc, MemHandle, Result,
    SharedIo,
};
use gaudi_sys::PAGE;
use gaudi_sys::fork::Birth;
use gaudi_uapi::info::HlInfoHwIpInfo;
use gaudi_uapi::memory::MemFlags;

use crate::buffer::{DmaBuf, Identity, Inner};
use crate::export::habanalabs::{Export, Rule, Source, export_by};
use crate::survey;
use crate::window::Window;

const CLOSE: &str = "device memory close";
/// Identities of past exports that are kept, to tell who holds one in another process.
const REMEMBERED: usize = 64;

/// The exports of one mapping: an export that covers a range is used again while it lives.
///
/// An export pins a whole device page however small it is, and each is a descriptor; windows of one cost nothing.
pub struct Exports {
    source: Mapped,
    rule: Rule,
    made: Mutex<Made>,
}

/// What is exported.
#[derive(Debug, Clone, Copy)]
struct Mapped {
    va: DeviceVa,
    len: u64,
}

#[derive(Default)]
struct Made {
    live: Vec<(u64, Weak<Inner>)>,
    identities: Vec<(bool, Identity)>,
}

impl Exports {
    /// Creates the set of exports of the mapping of `len` bytes at `va`, empty at first.
    pub fn new(rule: Rule, va: DeviceVa, len: u64) -> Self {
        Self {
            source: Mapped { va, len },
            rule,
            made: Mutex::default(),
        }
    }

    fn made(&self) -> MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The `len` bytes from `offset`, any of them, through an export that lives or a new one of the pages they lie in.
    #[track_caller]
    pub fn window(&self, io: &dyn KernelIo, offset: u64, len: u64) -> Result<Window> {
        let end = offset
            .checked_add(len)
            .filter(|&end| len > 0 && end <= self.source.len);
        let Some(end) = end else {
            return Err(Error::from_errno("dma-buf window", Errno::EINVAL)
                .because("the window leaves the mapping")
                .saw(
                    format!("{len} bytes at {offset:#x}"),
                    format!("1 byte or more inside {} bytes", self.source.len),
                )
                .on(io.node().device));
        };
        // The lock is held across the export: two who ask for one range at a time get one export.
        let mut made = self.made();
        made.live.retain(|(_, weak)| weak.strong_count() > 0);
        for (start, weak) in &made.live {
            let Some(inner) = weak.upgrade() else { continue };
            let dmabuf = DmaBuf { inner };
            if *start <= offset && end <= start + dmabuf.size() {
                return dmabuf.window(offset - start, len);
            }
        }
        let (part, whole) = (self.part(offset, end), self.part(0, self.source.len));
        let exported = export_by(io, &self.rule, part.1).map(|dmabuf| (part.0, dmabuf));
        let (start, dmabuf) = match exported {
            // Some drivers export whole mappings only.
            Err(error) if error.kind() == ErrorKind::Unsupported && part != whole => {
                (whole.0, export_by(io, &self.rule, whole.1)?)
            }
            exported => exported?,
        };
        made.live.push((start, Arc::downgrade(&dmabuf.inner)));
        if made.identities.len() == REMEMBERED {
            made.identities.remove(0);
        }
        let stand_in = !dmabuf.exporter().is_dmabuf();
        made.identities.push((stand_in, dmabuf.identity()));
        dmabuf.window(offset - start, len)
    }

    /// Returns the smallest part of whole pages around these bytes, and where it starts.
    fn part(&self, offset: u64, end: u64) -> (u64, Source) {
        let Mapped { va, len } = self.source;
        let start = offset / PAGE * PAGE;
        // A mapping may end with the address space, where there is no whole page more.
        let size = end.checked_next_multiple_of(PAGE).map_or(len, |end| end.min(len)) - start;
        match self.rule {
            Rule::Mapping => {
                let export = Export {
                    mapping: va,
                    mapping_len: len,
                    offset: start,
                    len: size,
                };
                (start, Source::Mapping(export))
            }
            Rule::Physical { .. } => {
                let address = va.0.saturating_add(start);
                (start, Source::Physical { address, len: size })
            }
        }
    }

    /// Who in this process holds an export, one line each; none where the mapping may go as far as this process knows.
    pub fn held(&self) -> Vec<String> {
        let made = self.made();
        let live = made.live.iter().filter_map(|(_, weak)| weak.upgrade());
        live.filter_map(|inner| {
            let dmabuf = DmaBuf { inner };
            // The handle here is one; whoever holds another keeps it open.
            let held = dmabuf.held_beyond(1)?;
            Some(format!("{dmabuf:?} (made at {}): {held}", dmabuf.place()))
        })
        .collect()
    }

    /// The exports that were made, the newest at the end.
    fn identities(&self) -> Vec<(bool, Identity)> {
        self.made().identities.clone()
    }
}

impl fmt::Debug for Exports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "exports of {:#x} bytes at {} by {}",
            self.source.len, self.source.va, self.rule
        )
    }
}

/// Device memory that is allocated and mapped, with the dma-bufs that left it.
///
/// The kernel lets it go in one order only: memory regions, the dma-bufs' descriptors, the mapping, the allocation, the device.
/// [`close`](Self::close) keeps to it and names who is in the way; dropping does the same and logs. The device stays open while this lives.
pub struct DeviceMemory {
    io: SharedIo,
    exports: Exports,
    mapped: bool,
    allocated: Option<MemHandle>,
    birth: Birth,
}

impl DeviceMemory {
    /// Allocates at least `size` bytes, and maps them. `Unsupported` on Gaudi, whose device memory is not mapped: its ranges are exported
    /// with [`export_by`].
    pub fn new(io: SharedIo, size: u64, flags: MemFlags) -> Result<Self> {
        let rule = Rule::of(&*io)?;
        if matches!(rule, Rule::Physical { .. }) {
            return Err(Error::unsupported(
                "HL_MEM_OP_MAP",
                "this chip's device memory has no virtual addresses",
            )
            .on(io.node().device)
            .helped_by("export its physical ranges"));
        }
        let hw: HlInfoHwIpInfo = io.query()?;
        let handle = io.mem_alloc(MemAlloc {
            size,
            page_size: 0,
            flags,
        })?;
        let map = MapDevice {
            handle,
            hint: None,
            flags: MemFlags::NONE,
        };
        let va = match io.mem_map_device(map) {
            Ok(va) => va,
            Err(error) => {
                if let Err(second) = io.mem_free(handle) {
                    tracing::warn!(%second, "device memory that could not be mapped was not freed");
                }
                return Err(error);
            }
        };
        let pages = [hw.device_mem_alloc_default_page_size, hw.dram_page_size];
        let page = pages.into_iter().find(|&page| page != 0).unwrap_or(PAGE);
        let len = size.checked_next_multiple_of(page).unwrap_or(size);
        Ok(Self {
            io,
            exports: Exports::new(rule, va, len),
            mapped: true,
            allocated: Some(handle),
            birth: Birth::here(),
        })
    }

    /// Where the device sees the first byte.
    pub fn address(&self) -> DeviceVa {
        self.exports.source.va
    }

    /// Bytes: whole device pages.
    #[expect(clippy::len_without_is_empty, reason = "an allocation of nothing is refused")]
    pub fn len(&self) -> u64 {
        self.exports.source.len
    }

    /// The `len` bytes from `offset` as a window of a dma-buf; exports are shared between windows.
    #[track_caller]
    pub fn window(&self, offset: u64, len: u64) -> Result<Window> {
        if self.birth.is_elsewhere() {
            return Err(self.forked("dma-buf window"));
        }
        self.exports.window(&*self.io, offset, len)
    }

    /// Gives the memory back. `InUse` with all who hold a dma-buf of it, in this process by name and in others by process number, while
    /// anyone does; the memory is as it was then.
    #[expect(clippy::result_large_err, reason = "a refused close gives the memory back")]
    pub fn close(mut self) -> Result<(), (Self, Error)> {
        match self.release() {
            Ok(()) => Ok(()),
            Err(error) => Err((self, error)),
        }
    }

    fn forked(&self, operation: &'static str) -> Error {
        Error::new(ErrorKind::Forked, operation)
            .on(self.io.node().device)
            .because("the memory belongs to the parent of this fork child")
    }

    fn release(&mut self) -> Result<()> {
        if self.birth.is_elsewhere() {
            return Err(self.forked(CLOSE));
        }
        let held = self.exports.held();
        if !held.is_empty() {
            return Err(self.in_use(&held, None));
        }
        if self.mapped {
            self.io
                .mem_unmap(self.address())
                .map_err(|error| self.explain(error))?;
            self.mapped = false;
        }
        if let Some(handle) = self.allocated {
            self.io.mem_free(handle)?;
            self.allocated = None;
        }
        Ok(())
    }

    fn in_use(&self, held: &[String], errno: Option<Errno>) -> Error {
        let error = Error::new(ErrorKind::InUse, CLOSE)
            .on(self.io.node().device)
            .because(format!("dma-bufs of the memory at {} are held", self.address()))
            .saw(held.join("; "), "none")
            .helped_by("deregister the memory regions on them, drop attachments and windows, and close their descriptors in every process");
        match errno {
            Some(errno) => error.with_errno(errno),
            None => error,
        }
    }

    /// The driver says `EINVAL` of memory that somebody holds, and not who. The holders are looked for.
    fn explain(&self, error: Error) -> Error {
        let exported = self.exports.identities();
        if error.errno() != Some(Errno::EINVAL) || exported.is_empty() {
            return error;
        }
        let mut held = survey::holders_of(&exported);
        if held.is_empty() {
            held.push("a process that cannot be looked into, or a device of the kernel".to_owned());
        }
        self.in_use(&held, error.errno())
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // A fork child only lets go; the memory is its parent's.
        if self.birth.is_elsewhere() || self.allocated.is_none() {
            return;
        }
        if let Err(error) = self.release() {
            tracing::warn!(%error, "device memory was not given back");
        }
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:#x} bytes of device memory at {} on {}",
            self.len(),
            self.address(),
            self.io.node().device
        )
    }
}
