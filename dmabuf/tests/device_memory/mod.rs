//! [`DeviceMemory`]: an allocation, its mapping and its exports under one owner, for tests of what
//! a live dma-buf keeps allocated.

#![allow(
    dead_code,
    reason = "each test program that includes this file uses a part of it"
)]

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;

use gaudi_dmabuf::export::habanalabs::{DeviceRange, Rule};
use gaudi_dmabuf::{Error, ErrorKind, Exports, Identity, Result, Window, survey};
use gaudi_seam::{CloseError, DeviceVa, Errno, KernelIoExt as _, MapDevice, MemAlloc, MemHandle, SharedIo};
use gaudi_sys::PAGE;
use gaudi_sys::fork::OwnerProcess;
use gaudi_uapi::info::HlInfoHwIpInfo;
use gaudi_uapi::memory::MemFlags;

const CLOSE: &str = "device memory close";

/// Device memory that is allocated and mapped, with the dma-bufs that left it.
///
/// The kernel frees it in one order only: memory regions, the dma-bufs' descriptors, the mapping,
/// the allocation, the device. [`close`](Self::close) keeps to it and names the holders; dropping
/// does the same and prints them.
pub(crate) struct DeviceMemory {
    io: SharedIo,
    exports: Exports,
    address: DeviceVa,
    len: u64,
    /// The identities of the exports, with whether each is a stand-in.
    exported: Mutex<Vec<(bool, Identity)>>,
    mapped: bool,
    allocated: Option<MemHandle>,
    owner: OwnerProcess,
}

impl DeviceMemory {
    /// Allocates at least `size` bytes, and maps them.
    pub(crate) fn new(io: SharedIo, size: u64, flags: MemFlags) -> Result<Self> {
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
        let address = match io.mem_map_device(map) {
            Ok(address) => address,
            Err(error) => {
                if let Err(second) = io.mem_free(handle) {
                    eprintln!("device memory that could not be mapped was not freed: {second}");
                }
                return Err(error);
            }
        };
        let pages = [hw.device_mem_alloc_default_page_size, hw.dram_page_size];
        let page = pages.into_iter().find(|&page| page != 0).unwrap_or(PAGE);
        let len = size.checked_next_multiple_of(page).unwrap_or(size);
        Ok(Self {
            io,
            exports: Exports::new(DeviceRange::new(Rule::of(&hw), address, len)?),
            address,
            len,
            exported: Mutex::default(),
            mapped: true,
            allocated: Some(handle),
            owner: OwnerProcess::current(),
        })
    }

    /// Bytes: whole device pages.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The `len` bytes from `offset` as a window of a dma-buf; exports are shared between windows.
    #[track_caller]
    pub(crate) fn window(&self, offset: u64, len: u64) -> Result<Window> {
        if self.owner.is_foreign() {
            return Err(self.forked("dma-buf window"));
        }
        let window = self.exports.window(&*self.io, offset, len)?;
        let dmabuf = window.dmabuf();
        let named = (!dmabuf.exporter().is_dmabuf(), dmabuf.identity());
        self.exported.lock().expect("no panic").push(named);
        Ok(window)
    }

    /// Frees the memory. `InUse` with the holders of its dma-bufs, in this process by name and in
    /// others by process number, while there are any; the memory is then as it was.
    #[expect(clippy::result_large_err, reason = "a refused close gives the memory back")]
    pub(crate) fn close(mut self) -> Result<(), CloseError<Self>> {
        match self.release() {
            Ok(()) => Ok(()),
            Err(error) => Err(CloseError::new(self, error)),
        }
    }

    fn forked(&self, operation: &'static str) -> Error {
        Error::new(ErrorKind::Forked, operation)
            .on(self.io.node().device)
            .because("the memory belongs to the parent of this fork child")
    }

    fn release(&mut self) -> Result<()> {
        if self.owner.is_foreign() {
            return Err(self.forked(CLOSE));
        }
        let held = self.exports.held();
        if !held.is_empty() {
            return Err(self.in_use(&held, None));
        }
        if self.mapped {
            self.io
                .mem_unmap(self.address)
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
            .because(format!("dma-bufs of the memory at {} are held", self.address))
            .saw(held.join("; "), "none");
        match errno {
            Some(errno) => error.with_errno(errno),
            None => error,
        }
    }

    /// The driver refuses with `EINVAL` while the memory is held, and does not name the holders.
    fn explain(&self, error: Error) -> Error {
        let exported = self.exported.lock().expect("no panic");
        if error.errno() != Some(Errno::EINVAL) || exported.is_empty() {
            return error;
        }
        let mut held = holders_of(&exported);
        if held.is_empty() {
            held.push("a process that cannot be looked into, or a device of the kernel".to_owned());
        }
        self.in_use(&held, error.errno())
    }
}

/// The processes that hold one of these buffers, one line each; other than this one where there are
/// others.
fn holders_of(identities: &[(bool, Identity)]) -> Vec<String> {
    let mut lines = BTreeMap::new();
    for buffer in survey().buffers {
        let is_ours = |(stand_in, identity): &(bool, Identity)| {
            (*stand_in, identity.file.inode, identity.start) == (buffer.stand_in, buffer.inode, buffer.start)
        };
        if !identities.iter().any(is_ours) {
            continue;
        }
        for process in buffer.processes {
            let line = format!(
                "process {} ({}): inode {}, {} descriptors, {} mappings",
                process.pid, process.name, buffer.inode, process.descriptors, process.mappings
            );
            lines.entry(process.pid).or_insert(line);
        }
    }
    if lines.len() > 1 {
        lines.remove(&std::process::id());
    }
    lines.into_values().collect()
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // The memory of a fork child is its parent's.
        if self.owner.is_foreign() || self.allocated.is_none() {
            return;
        }
        if let Err(error) = self.release() {
            eprintln!("device memory was not freed: {error}");
        }
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x} bytes of device memory at {}", self.len, self.address)
    }
}
