//! The buffers of a context that user code maps: command buffers and timestamps (memory_mgr.c).

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use gaudi_seam::engine::HostRange;
use gaudi_seam::{
    CbHandle, CqCounter, DeviceVa, Engine, Errno, Error, RawMapping, Result, TimestampRegistration,
};
use gaudi_spec::asic;
use gaudi_sys::standin::{self, Window};
use gaudi_sys::{Memfd, PAGE};

use crate::interrupt::Line;
use crate::pages::lowest_free;
use crate::va::VaSpace;

/// Bytes of device addresses for command buffers (command_buffer.c:CB_VA_POOL_SIZE).
pub(crate) const POOL_SIZE: u64 = 4 << 30;
/// Bytes of memory for command buffers: half for those with a device address, half for the others.
const MEMORY: u64 = 2 * POOL_SIZE;
/// The type bits in a command buffer's handle (habanalabs.h:HL_MMAP_TYPE_CB, shifted by a page).
pub(crate) const TYPE_CB: u64 = 0x2 << 59;
/// The type bits in a timestamps buffer's handle (habanalabs.h:HL_MMAP_TYPE_TS_BUFF).
pub(crate) const TYPE_TS: u64 = 0x10 << 59;
/// The type bits of a handle (habanalabs.h:HL_MMAP_TYPE_MASK).
pub(crate) const TYPE_MASK: u64 = 0x1f << 59;

/// The command buffers of a context. Their memory is one sparse file. Byte n of the pool has the
/// device address `pool + n`; the buffers without a device address follow the pool.
#[derive(Debug)]
pub(crate) struct Buffers {
    memory: Memfd,
    map: RawMapping,
    pool: DeviceVa,
    space: VaSpace,
    unmapped: VaSpace,
    buffers: BTreeMap<u32, Buffer>,
    /// Timestamps buffers, numbered together with the command buffers. They live as long as the
    /// context: the driver has no operation that destroys one.
    timestamps: BTreeMap<u32, Timestamps>,
    /// Times that are to be written (`ts_list_head` of each interrupt).
    registrations: Vec<Registration>,
}

#[derive(Debug)]
pub(crate) struct Buffer {
    pub(crate) at: DeviceVa,
    pub(crate) size: u64,
    /// The number of counters in it: the driver uses the requested bytes, not whole pages
    /// (command_submission.c:_hl_interrupt_wait_ioctl).
    pub(crate) counters: u64,
    pub(crate) mapped_to_device: bool,
    /// The handle is destroyed. The memory stays while the user has it mapped or a counter in it is
    /// watched.
    pub(crate) destroyed: bool,
    /// Waits and registrations that watch a counter in it.
    pub(crate) watchers: u32,
}

#[derive(Debug)]
pub(crate) struct Timestamps {
    pub(crate) memory: Memfd,
    map: RawMapping,
    pub(crate) elements: u32,
}

/// A time that is to be written once a counter has reached a value (`struct timestamp_reg_info`).
#[derive(Debug, Clone, Copy)]
struct Registration {
    line: Line,
    counter: Counter,
    target: u64,
    buffer: u32,
    index: u64,
}

/// A counter in a command buffer, whose memory stays while it is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counter {
    buffer: u32,
    at: usize,
}

impl Buffers {
    pub(crate) fn new(pool: DeviceVa) -> Result<Self> {
        let failed = |errno| Error::from_errno("open", errno).because("no memory for command buffers");
        let memory = Memfd::sparse(c"gaudi-mock-cb", MEMORY).map_err(failed)?;
        let map = RawMapping::of_fd(&memory, 0, MEMORY as usize).map_err(failed)?;
        let space = |from| {
            let range = asic::VaRange {
                start: DeviceVa(pool.0 + from),
                end: DeviceVa(pool.0 + from + POOL_SIZE),
                page: PAGE,
            };
            VaSpace::new(range, PAGE, 0..0)
        };
        Ok(Self {
            memory,
            map,
            pool,
            space: space(0),
            unmapped: space(POOL_SIZE),
            buffers: BTreeMap::new(),
            timestamps: BTreeMap::new(),
            registrations: Vec::new(),
        })
    }

    /// Returns the number of buffers that have a handle or are mapped by the user.
    pub(crate) fn len(&self) -> usize {
        self.buffers
            .values()
            .filter(|buffer| self.is_kept(buffer))
            .count()
    }

    /// The bytes of a buffer in [`memory`](Self::memory).
    pub(crate) fn window(&self, buffer: &Buffer) -> Window {
        Window {
            offset: buffer.at.0 - self.pool.0,
            len: buffer.size,
        }
    }

    fn is_mapped(&self, buffer: &Buffer) -> bool {
        standin::is_exported(&self.memory, self.window(buffer)).unwrap_or(true)
    }

    fn is_kept(&self, buffer: &Buffer) -> bool {
        !buffer.destroyed || buffer.watchers > 0 || self.is_mapped(buffer)
    }

    /// Frees the memory of buffers that have neither a handle nor a mapping.
    pub(crate) fn reap(&mut self, engine: &mut dyn Engine) {
        let unused: Vec<u32> = self
            .buffers
            .iter()
            .filter(|(_, buffer)| !self.is_kept(buffer))
            .map(|(&key, _)| key)
            .collect();
        for key in unused {
            if let Some(buffer) = self.buffers.remove(&key) {
                self.give_back(&buffer, engine);
            }
        }
    }

    fn give_back(&mut self, buffer: &Buffer, engine: &mut dyn Engine) {
        if buffer.mapped_to_device {
            engine.unmap(buffer.at);
        }
        let window = self.window(buffer);
        // A new buffer's memory reads as zeros (command_buffer.c:hl_cb_alloc `__GFP_ZERO`).
        let punched = self.memory.punch_hole(window.offset, window.len);
        debug_assert!(
            punched.is_ok(),
            "punching a hole into command buffers: {punched:?}"
        );
        self.space_for(buffer.mapped_to_device)
            .give(buffer.at, buffer.size);
    }

    /// Returns the allocator of device addresses, or of memory only.
    pub(crate) fn space_for(&mut self, mapped_to_device: bool) -> &mut VaSpace {
        match mapped_to_device {
            true => &mut self.space,
            false => &mut self.unmapped,
        }
    }

    /// Unmaps all buffers from the device when the context closes. The user's mappings stay.
    pub(crate) fn release(&mut self, engine: &mut dyn Engine) {
        for buffer in self.buffers.values() {
            if buffer.mapped_to_device {
                engine.unmap(buffer.at);
            }
        }
        self.buffers.clear();
        self.registrations.clear();
    }

    /// Returns a buffer as the driver does (memory_mgr.c:hl_mmap_mem_buf_get): by the number in
    /// bits 43..12 only, also after destruction while it is mapped.
    pub(crate) fn find(&self, handle: CbHandle) -> Option<(u32, &Buffer)> {
        let key = number(handle)?;
        self.buffers
            .get(&key)
            .filter(|buffer| self.is_kept(buffer))
            .map(|buffer| (key, buffer))
    }

    /// Adds a buffer. Returns its number.
    pub(crate) fn add(&mut self, buffer: Buffer) -> u32 {
        let number = self.free_number();
        self.buffers.insert(number, buffer);
        number
    }

    /// Adds a timestamps buffer. Returns its number.
    pub(crate) fn add_timestamps(&mut self, timestamps: Timestamps) -> u32 {
        let number = self.free_number();
        self.timestamps.insert(number, timestamps);
        number
    }

    /// As `idr_alloc(.., 1, 0, ..)`.
    fn free_number(&self) -> u32 {
        lowest_free(|number| self.buffers.contains_key(&number) || self.timestamps.contains_key(&number))
    }

    /// Drops a handle. The buffer stays while it is mapped or watched.
    pub(crate) fn destroy(&mut self, handle: CbHandle, engine: &mut dyn Engine) {
        let number = number(handle);
        if let Some(buffer) = number.and_then(|number| self.buffers.get_mut(&number)) {
            buffer.destroyed = true;
        }
        self.reap(engine);
    }

    /// A timestamps buffer, with its number.
    pub(crate) fn timestamps(&self, handle: u64) -> Option<(u32, &Timestamps)> {
        let number = number(CbHandle(handle))?;
        Some((number, self.timestamps.get(&number)?))
    }

    /// The memory that the user can map at a handle: of a timestamps buffer, or of a command buffer
    /// whose handle is not destroyed (memory_mgr.c `hl_mem_mgr_mmap`).
    pub(crate) fn user_memory(&self, handle: CbHandle) -> Option<(&Memfd, Window)> {
        if let Some((_, Timestamps { memory, .. })) = self.timestamps(handle.0) {
            let len = memory.len();
            return Some((memory, Window { offset: 0, len }));
        }
        let (_, buffer) = self.find(handle).filter(|(_, buffer)| !buffer.destroyed)?;
        Some((&self.memory, self.window(buffer)))
    }
}

/// The number in a handle: bits 43..12 (memory_mgr.c `hl_mmap_mem_buf_get`).
pub(crate) fn number(handle: CbHandle) -> Option<u32> {
    u32::try_from((handle.0 / PAGE) & 0xffff_ffff).ok()
}

impl Timestamps {
    pub(crate) fn new(size: u64, elements: u32) -> std::result::Result<Self, Errno> {
        let memory = Memfd::sparse(c"gaudi-mock-ts", size)?;
        let map = RawMapping::of_fd(&memory, 0, usize::try_from(size).map_err(|_| Errno::ENOMEM)?)?;
        Ok(Self {
            memory,
            map,
            elements,
        })
    }
}

/// Counters in command buffers, and the times that are written when one reaches a value.
impl Buffers {
    /// A counter by handle and index (command_submission.c:_hl_interrupt_wait_ioctl); `None` if
    /// there is none. Its memory stays until [`unwatch`](Self::unwatch).
    pub(crate) fn watch(&mut self, counter: CqCounter) -> Option<Counter> {
        let (key, buffer) = self.find(counter.handle)?;
        // The driver's own check wraps round for offsets past the address space
        // (command_submission.c:_hl_interrupt_wait_ioctl); those are refused here.
        let at = Some(counter.offset).filter(|&at| at < buffer.counters)? * 8;
        let at = usize::try_from(buffer.at.0 - self.pool.0 + at).ok()?;
        self.buffers.get_mut(&key)?.watchers += 1;
        Some(Counter { buffer: key, at })
    }

    /// Ends one watch of a counter.
    pub(crate) fn unwatch(&mut self, counter: Counter, engine: &mut dyn Engine) {
        if let Some(buffer) = self.buffers.get_mut(&counter.buffer) {
            buffer.watchers = buffer.watchers.saturating_sub(1);
        }
        self.reap(engine);
    }

    /// A counter's value.
    pub(crate) fn count(&self, counter: Counter) -> u64 {
        let value = self.map.load_u64(counter.at, Ordering::Acquire);
        value.expect("`watch` checked that the counter lies in a buffer")
    }

    /// Registers a time to be written, or writes it at once if the counter has reached its value
    /// (command_submission.c:ts_get_and_handle_kernel_record). `None` if counter or buffer do not
    /// exist.
    pub(crate) fn register(
        &mut self,
        request: &TimestampRegistration,
        line: Line,
        engine: &mut dyn Engine,
        now: u64,
    ) -> Option<()> {
        let (buffer, _) = self.timestamps(request.buffer.0)?;
        let counter = self.watch(request.counter)?;
        // An earlier registration of the slot is removed first
        // (command_submission.c:ts_get_and_handle_kernel_record).
        let same = |one: &Registration| (one.buffer, one.index) == (buffer, request.index);
        self.drop_registrations(engine, same);
        if self.count(counter) >= request.target {
            self.stamp(buffer, request.index, now);
            self.unwatch(counter, engine);
            return Some(());
        }
        self.registrations.push(Registration {
            line,
            counter,
            // `set_record_cq_info` takes 32 bits of it (command_submission.c:set_record_cq_info).
            target: request.target & 0xffff_ffff,
            buffer,
            index: request.index,
        });
        Some(())
    }

    /// Writes the times of the registrations at a raised line whose counter reached its value
    /// (irq.c:handle_user_interrupt_ts_list).
    pub(crate) fn stamp_reached(&mut self, line: Line, engine: &mut dyn Engine, at_ns: u64) {
        let all = std::mem::take(&mut self.registrations);
        for one in all {
            if one.line == line && self.count(one.counter) >= one.target {
                self.stamp(one.buffer, one.index, at_ns);
                self.unwatch(one.counter, engine);
            } else {
                self.registrations.push(one);
            }
        }
    }

    /// Drops the registrations at the lines that a reset aborts
    /// (command_submission.c:hl_cs_rollback_all).
    pub(crate) fn abort_registrations(&mut self, engine: &mut dyn Engine) {
        self.drop_registrations(engine, |one| one.line.is_aborted);
    }

    fn drop_registrations(&mut self, engine: &mut dyn Engine, which: impl Fn(&Registration) -> bool) {
        let (dropped, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut self.registrations)
            .into_iter()
            .partition(which);
        self.registrations = kept;
        for one in dropped {
            self.unwatch(one.counter, engine);
        }
    }

    fn stamp(&self, buffer: u32, index: u64, at_ns: u64) {
        let at = usize::try_from(index * 8);
        if let (Some(timestamps), Ok(at)) = (self.timestamps.get(&buffer), at) {
            // The slot was checked when it was registered.
            let _ = timestamps.map.write(at, &at_ns.to_le_bytes());
        }
    }
}

impl Buffers {
    #[expect(unsafe_code, reason = "the chip reads command buffers where they lie")]
    pub(crate) fn map_to_device(
        &self,
        engine: &mut dyn Engine,
        at: DeviceVa,
        size: u64,
    ) -> std::result::Result<(), Errno> {
        let offset = usize::try_from(at.0 - self.pool.0).map_err(|_| Errno::EINVAL)?;
        let size = usize::try_from(size).map_err(|_| Errno::EINVAL)?;
        let start = self.map.at(offset, size)?;
        // SAFETY: the bytes lie in `self.map`, to which nothing has a reference; the chip's range
        // is unmapped in `give_back` or `release`, both before the mapping does.
        let range = unsafe { HostRange::new(start, size) };
        engine.map_host(at, range).map_err(|_| Errno::ENOMEM)
    }
}
