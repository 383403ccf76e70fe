//! Command buffers (driver common/command_buffer.c, common/memory_mgr.c).

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use gaudi_model::{Chip, HostRange};
use gaudi_seam::{
    CbCreate, CbHandle, CbInfo, CqCounter, DeviceId, DeviceVa, Errno, Error, ErrorKind, MmapRequest,
    RawMapping, Result, TimestampRegistration, TsHandle,
};
use gaudi_spec::asic;
use gaudi_sys::standin::{self, Window};
use gaudi_sys::{Memfd, PAGE};
use gaudi_uapi::limits::{HL_MAX_CB_SIZE, TS_MAX_ELEMENTS_NUM};

use crate::block::TYPE_BLOCK;
use crate::interrupt::Line;
use crate::open::Device;
use crate::va::VaSpace;

/// Bytes of device addresses for command buffers (command_buffer.c:14 `CB_VA_POOL_SIZE`).
pub(crate) const POOL_SIZE: u64 = 4 << 30;
/// Bytes of memory for command buffers: of those that have an address, and as much again of those that have none.
const MEMORY: u64 = 2 * POOL_SIZE;
/// What a handle of a command buffer has in its upper bits (habanalabs.h:55 `HL_MMAP_TYPE_CB`, shifted by a page).
const TYPE_CB: u64 = 0x2 << 59;
/// The same of a timestamps buffer (habanalabs.h:53 `HL_MMAP_TYPE_TS_BUFF`).
const TYPE_TS: u64 = 0x10 << 59;
/// Where a handle says what it is (habanalabs.h:52 `HL_MMAP_TYPE_MASK`).
const TYPE_MASK: u64 = 0x1f << 59;

/// The command buffers of a context. Their memory is one sparse file, byte n of which the device sees at pool + n; the buffers that it
/// does not see lie behind the pool.
#[derive(Debug)]
pub(crate) struct Buffers {
    memory: Memfd,
    map: RawMapping,
    pool: DeviceVa,
    space: VaSpace,
    unmapped: VaSpace,
    buffers: BTreeMap<u32, Buffer>,
    /// Timestamps buffers, numbered together with the others. They live as long as the context: the driver has no operation that
    /// takes one back.
    timestamps: BTreeMap<u32, Timestamps>,
    /// Times that are to be written (`ts_list_head` of each interrupt).
    registrations: Vec<Registration>,
}

#[derive(Debug)]
struct Buffer {
    at: DeviceVa,
    size: u64,
    /// Counters that it has room for: the driver counts in the bytes asked for, not in pages (command_submission.c:3407).
    counters: u64,
    mapped_to_device: bool,
    /// The handle is gone; the memory waits until the user's mapping is, and who looks at a counter in it.
    destroyed: bool,
    /// Waits and registrations that look at a counter in it.
    watchers: u32,
}

#[derive(Debug)]
struct Timestamps {
    memory: Memfd,
    map: RawMapping,
    elements: u32,
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

/// A counter in a command buffer, whose memory stays as long as somebody looks at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counter {
    buffer: u32,
    at: usize,
}

impl Buffers {
    pub(crate) fn new(id: DeviceId, pool: DeviceVa) -> Result<Self> {
        let failed = |errno| {
            Error::from_errno("open", errno)
                .on(id)
                .because("no memory for command buffers")
        };
        let memory = Memfd::sparse(c"gaudi-mock-cb", MEMORY).map_err(failed)?;
        let map = RawMapping::of_fd(&memory, 0, usize::try_from(MEMORY).unwrap_or(0)).map_err(failed)?;
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

    /// How many have a handle or are still mapped by the user.
    pub(crate) fn len(&self) -> usize {
        self.buffers
            .values()
            .filter(|buffer| self.is_kept(buffer))
            .count()
    }

    fn window(&self, buffer: &Buffer) -> Window {
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

    /// Gives back the memory of buffers whose handle and mapping are both gone.
    fn reap(&mut self, chip: &mut Chip) {
        let gone: Vec<u32> = self
            .buffers
            .iter()
            .filter(|(_, buffer)| !self.is_kept(buffer))
            .map(|(&key, _)| key)
            .collect();
        for key in gone {
            if let Some(buffer) = self.buffers.remove(&key) {
                self.give_back(&buffer, chip);
            }
        }
    }

    fn give_back(&mut self, buffer: &Buffer, chip: &mut Chip) {
        if buffer.mapped_to_device {
            chip.mmu_unmap(buffer.at);
        }
        let window = self.window(buffer);
        // A new buffer's memory reads as zeros (command_buffer.c:155 `__GFP_ZERO`).
        let punched = self.memory.punch_hole(window.offset, window.len);
        debug_assert!(
            punched.is_ok(),
            "punching a hole into command buffers: {punched:?}"
        );
        self.space_for(buffer.mapped_to_device)
            .give(buffer.at, buffer.size);
    }

    /// Addresses, or no more than memory.
    fn space_for(&mut self, mapped_to_device: bool) -> &mut VaSpace {
        match mapped_to_device {
            true => &mut self.space,
            false => &mut self.unmapped,
        }
    }

    /// The context goes: the device sees none of them any more; what the user has mapped stays mapped.
    pub(crate) fn release(&mut self, chip: &mut Chip) {
        for buffer in self.buffers.values() {
            if buffer.mapped_to_device {
                chip.mmu_unmap(buffer.at);
            }
        }
        self.buffers.clear();
        self.registrations.clear();
    }

    /// As the driver searches (memory_mgr.c:25): by the number in bits 43..12 alone, and as long as a mapping keeps the buffer.
    fn find(&self, handle: CbHandle) -> Option<(u32, &Buffer)> {
        let key = number(handle)?;
        self.buffers
            .get(&key)
            .filter(|buffer| self.is_kept(buffer))
            .map(|buffer| (key, buffer))
    }

    /// As `idr_alloc(.., 1, 0, ..)`.
    fn free_number(&self) -> u32 {
        (1..=u32::MAX)
            .find(|key| !self.buffers.contains_key(key) && !self.timestamps.contains_key(key))
            .unwrap_or(u32::MAX)
    }

    /// One whose handle was not destroyed.
    fn live(&self, handle: CbHandle) -> Option<(u32, &Buffer)> {
        self.find(handle).filter(|(_, buffer)| !buffer.destroyed)
    }
}

/// What a handle numbers: bits 43..12 (memory_mgr.c:25).
fn number(handle: CbHandle) -> Option<u32> {
    u32::try_from((handle.0 / PAGE) & 0xffff_ffff).ok()
}

impl Device {
    pub(crate) fn cb_create(&self, request: CbCreate) -> Result<CbHandle> {
        const OP: &str = "HL_CB_OP_CREATE";
        let mut guard = self.lock();
        self.operational(&mut guard, OP)?;
        let state = &mut *guard;
        // command_buffer.c:387
        if request.size > HL_MAX_CB_SIZE {
            return Err(self
                .refusal(OP, Errno::EINVAL)
                .because("a command buffer cannot be that large")
                .saw(request.size, format!("at most {HL_MAX_CB_SIZE}")));
        }
        let Some(context) = state.context.as_mut() else {
            return Err(self.refusal(OP, Errno::EBUSY));
        };
        let buffers = &mut context.buffers;
        buffers.reap(&mut state.chip);
        let size = u64::from(request.size).max(1).next_multiple_of(PAGE);
        // command_buffer.c:35
        let Some(at) = buffers.space_for(request.map_to_device).take_lowest(size) else {
            return Err(self
                .refusal(OP, Errno::ENOMEM)
                .because("the addresses of command buffers are used up"));
        };
        if request.map_to_device {
            if let Err(errno) = buffers.map_to_device(&mut state.chip, at, size) {
                buffers.space.give(at, size);
                return Err(self.refusal(OP, errno));
            }
        }
        let key = buffers.free_number();
        let buffer = Buffer {
            at,
            size,
            // command_buffer.c:190
            counters: u64::from(request.size).max(PAGE) / 8,
            mapped_to_device: request.map_to_device,
            destroyed: false,
            watchers: 0,
        };
        buffers.buffers.insert(key, buffer);
        Ok(CbHandle(TYPE_CB | (u64::from(key) * PAGE)))
    }

    pub(crate) fn cb_destroy(&self, handle: CbHandle) -> Result<()> {
        const OP: &str = "HL_CB_OP_DESTROY";
        let mut guard = self.lock();
        self.operational(&mut guard, OP)?;
        let state = &mut *guard;
        let Some(context) = state.context.as_mut() else {
            return Err(self.refusal(OP, Errno::EBUSY));
        };
        // command_buffer.c:318
        let Some((key, _)) = context.buffers.live(handle) else {
            return Err(self.no_buffer(OP, handle));
        };
        if let Some(buffer) = context.buffers.buffers.get_mut(&key) {
            buffer.destroyed = true;
        }
        context.buffers.reap(&mut state.chip);
        Ok(())
    }

    pub(crate) fn cb_info(&self, handle: CbHandle, device_va: bool) -> Result<CbInfo> {
        const OP: &str = "HL_CB_OP_INFO";
        let mut state = self.lock();
        self.operational(&mut state, OP)?;
        let Some(context) = state.context.as_ref() else {
            return Err(self.refusal(OP, Errno::EBUSY));
        };
        // command_buffer.c:340: a buffer that was destroyed is found as long as it is mapped.
        let Some((_, buffer)) = context.buffers.find(handle) else {
            return Err(self.no_buffer(OP, handle));
        };
        if !device_va {
            // Queues of Gaudi2 take no handles (gaudi2.c:2773), so no submission ever counts as a user of one.
            return Ok(CbInfo {
                usage_count: 0,
                device_va: None,
            });
        }
        if !buffer.mapped_to_device {
            // command_buffer.c:334
            return Err(self
                .refusal(OP, Errno::EINVAL)
                .because("the command buffer is not mapped to the device")
                .helped_by("create it with HL_CB_FLAGS_MAP"));
        }
        Ok(CbInfo {
            usage_count: 0,
            device_va: Some(buffer.at),
        })
    }

    pub(crate) fn mmap(&self, request: MmapRequest) -> Result<RawMapping> {
        const OP: &str = "mmap";
        // mm/mmap.c `file_mmap_ok`: before a driver is asked. Offsets are of 64 bits here (`FOP_UNSIGNED_OFFSET`).
        let len = whole_pages(request.len);
        if len > 0 && request.offset > len.wrapping_neg() {
            return Err(self
                .refusal(OP, Errno::EOVERFLOW)
                .because("the range leaves the file")
                .saw(format!("{:#x}", request.offset), "a buffer's handle"));
        }
        // device.c:650 looks at no status: what a user has can be mapped in a reset too.
        let mut state = self.lock();
        state.settle();
        let handle = CbHandle(request.offset);
        let kind = handle.0 & TYPE_MASK;
        let Some(context) = state.context.as_mut() else {
            return Err(self.refusal(OP, Errno::EBUSY));
        };
        if kind == TYPE_BLOCK {
            return self.mmap_block(&mut context.blocks, request);
        }
        let buffers = &context.buffers;
        // device.c:671: mmap goes by the kind of what is mapped; memory_mgr.c:246.
        let is_buffer = [TYPE_CB, TYPE_TS].contains(&kind);
        let timestamps = number(handle).filter(|_| is_buffer);
        if let Some(timestamps) = timestamps.and_then(|key| buffers.timestamps.get(&key)) {
            return self.mmap_timestamps(&timestamps.memory, request);
        }
        let Some((_, buffer)) = buffers.live(handle).filter(|_| is_buffer) else {
            return Err(self.no_buffer(OP, handle));
        };
        if whole_pages(request.len) != buffer.size {
            // memory_mgr.c:253
            return Err(self
                .refusal(OP, Errno::EINVAL)
                .because("a buffer is mapped whole")
                .saw(request.len, buffer.size));
        }
        if buffers.is_mapped(buffer) {
            // memory_mgr.c:271
            return Err(self
                .refusal(OP, Errno::EINVAL)
                .with_kind(ErrorKind::InUse)
                .because("the buffer is mapped already")
                .helped_by("share the mapping"));
        }
        // The mapping keeps the file open, and with it the lock that tells that the buffer is mapped.
        let file = standin::export(&buffers.memory, buffers.window(buffer))
            .map_err(|errno| self.refusal(OP, errno))?;
        RawMapping::of_fd(&file, buffers.window(buffer).offset, request.len)
            .map_err(|errno| self.refusal(OP, errno))
    }

    /// `HL_MEM_OP_TS_ALLOC` (memory.c:2174)
    pub(crate) fn ts_alloc(&self, elements: u32) -> Result<TsHandle> {
        const OP: &str = "HL_MEM_OP_TS_ALLOC";
        let mut guard = self.lock();
        self.operational(&mut guard, OP)?;
        let state = &mut *guard;
        let Some(context) = state.context.as_mut() else {
            return Err(self.refusal(OP, Errno::EBUSY));
        };
        if elements > TS_MAX_ELEMENTS_NUM {
            return Err(self
                .refusal(OP, Errno::EINVAL)
                .because("a timestamps buffer cannot be that large")
                .saw(elements, format!("at most {TS_MAX_ELEMENTS_NUM}")));
        }
        // memory.c:2125: there is no memory of 0 bytes.
        let size = (u64::from(elements) * 8).next_multiple_of(PAGE);
        let made = match size {
            0 => Err(Errno::ENOMEM),
            size => Timestamps::new(size, elements).map_err(|_| Errno::ENOMEM),
        };
        let timestamps = made.map_err(|errno| self.refusal(OP, errno).because("no memory for timestamps"))?;
        // The number of a command buffer whose mapping went since is free again.
        context.buffers.reap(&mut state.chip);
        let key = context.buffers.free_number();
        context.buffers.timestamps.insert(key, timestamps);
        Ok(TsHandle(TYPE_TS | (u64::from(key) * PAGE)))
    }

    fn mmap_timestamps(&self, memory: &Memfd, request: MmapRequest) -> Result<RawMapping> {
        const OP: &str = "mmap";
        let whole = Window {
            offset: 0,
            len: memory.len(),
        };
        if whole_pages(request.len) != whole.len {
            return Err(self
                .refusal(OP, Errno::EINVAL)
                .because("a buffer is mapped whole")
                .saw(request.len, whole.len));
        }
        if standin::is_exported(memory, whole).unwrap_or(true) {
            return Err(self
                .refusal(OP, Errno::EINVAL)
                .with_kind(ErrorKind::InUse)
                .because("the buffer is mapped already")
                .helped_by("share the mapping"));
        }
        let file = standin::export(memory, whole).map_err(|errno| self.refusal(OP, errno))?;
        RawMapping::of_fd(&file, 0, request.len).map_err(|errno| self.refusal(OP, errno))
    }

    fn no_buffer(&self, operation: &'static str, handle: CbHandle) -> Error {
        self.refusal(operation, Errno::EINVAL)
            .because(format!("no buffer has handle {:#x}", handle.0))
    }
}

impl Timestamps {
    fn new(size: u64, elements: u32) -> std::result::Result<Self, Errno> {
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
    /// A counter by handle and index (command_submission.c:3400); `None` where there is none. Its memory stays until
    /// [`unwatch`](Self::unwatch).
    pub(crate) fn watch(&mut self, counter: CqCounter) -> Option<Counter> {
        let (key, buffer) = self.find(counter.handle)?;
        // The driver's own check wraps round for offsets past the address space (command_submission.c:3407); those are refused here.
        let at = Some(counter.offset).filter(|&at| at < buffer.counters)? * 8;
        let at = usize::try_from(buffer.at.0 - self.pool.0 + at).ok()?;
        self.buffers.get_mut(&key)?.watchers += 1;
        Some(Counter { buffer: key, at })
    }

    /// Nobody looks at it any more on somebody's behalf.
    pub(crate) fn unwatch(&mut self, counter: Counter, chip: &mut Chip) {
        if let Some(buffer) = self.buffers.get_mut(&counter.buffer) {
            buffer.watchers = buffer.watchers.saturating_sub(1);
        }
        self.reap(chip);
    }

    /// A counter's value.
    pub(crate) fn count(&self, counter: Counter) -> u64 {
        self.map.load_u64(counter.at, Ordering::Acquire).unwrap_or(0)
    }

    /// Registers a time to be written: at once where the counter is there (command_submission.c:3316).
    pub(crate) fn register(
        &mut self,
        request: &TimestampRegistration,
        line: Line,
        chip: &mut Chip,
        now: u64,
    ) -> std::result::Result<(), &'static str> {
        let Some(counter) = self.watch(request.counter) else {
            return Err("there is no such counter");
        };
        let found = number(CbHandle(request.buffer.0))
            .and_then(|key| Some((key, self.timestamps.get(&key)?.elements)));
        let Some((buffer, elements)) = found else {
            self.unwatch(counter, chip);
            return Err("there is no such timestamps buffer");
        };
        if request.index >= u64::from(elements) {
            self.unwatch(counter, chip);
            return Err("the timestamps buffer has no such element");
        }
        // A slot that is registered already is taken out first (command_submission.c:3284).
        let same = |one: &Registration| (one.buffer, one.index) == (buffer, request.index);
        self.drop_registrations(chip, same);
        if self.count(counter) >= request.target {
            self.stamp(buffer, request.index, now);
            self.unwatch(counter, chip);
            return Ok(());
        }
        self.registrations.push(Registration {
            line,
            counter,
            // `set_record_cq_info` takes 32 bits of it (command_submission.c:3215).
            target: request.target & 0xffff_ffff,
            buffer,
            index: request.index,
        });
        Ok(())
    }

    /// Writes the times of what a raised line finds reached (irq.c:332).
    pub(crate) fn stamp_reached(&mut self, line: Line, chip: &mut Chip, at_ns: u64) {
        let all = std::mem::take(&mut self.registrations);
        for one in all {
            if one.line == line && self.count(one.counter) >= one.target {
                self.stamp(one.buffer, one.index, at_ns);
                self.unwatch(one.counter, chip);
            } else {
                self.registrations.push(one);
            }
        }
    }

    /// A reset forgets what is registered at the lines that it reaches (command_submission.c:1107).
    pub(crate) fn abort_registrations(&mut self, chip: &mut Chip) {
        self.drop_registrations(chip, |one| one.line.is_aborted());
    }

    fn drop_registrations(&mut self, chip: &mut Chip, which: impl Fn(&Registration) -> bool) {
        let (gone, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut self.registrations)
            .into_iter()
            .partition(which);
        self.registrations = kept;
        for one in gone {
            self.unwatch(one.counter, chip);
        }
    }

    fn stamp(&self, buffer: u32, index: u64, at_ns: u64) {
        let at = usize::try_from(index * 8);
        if let (Some(timestamps), Ok(at)) = (self.timestamps.get(&buffer), at) {
            // The slot was looked at when it was registered.
            let _ = timestamps.map.write(at, &at_ns.to_le_bytes());
        }
    }
}

impl Buffers {
    #[expect(unsafe_code, reason = "the chip reads command buffers where they lie")]
    fn map_to_device(&self, chip: &mut Chip, at: DeviceVa, size: u64) -> std::result::Result<(), Errno> {
        let offset = usize::try_from(at.0 - self.pool.0).map_err(|_| Errno::EINVAL)?;
        let size = usize::try_from(size).map_err(|_| Errno::EINVAL)?;
        let start = self.map.at(offset, size)?;
        // SAFETY: the bytes lie in `self.map`, to which nobody has a reference; the chip's range goes in `give_back` or `release`,
        // both before the mapping does.
        let range = unsafe { HostRange::new(start, size) };
        chip.mmu_map_host(at, range).map_err(|_| Errno::ENOMEM)
    }
}

/// Bytes of an mmap as the driver sees them: whole pages (mm/mmap.c rounds before a driver is asked, and 0 is what does not fit).
pub(crate) fn whole_pages(len: usize) -> u64 {
    (len as u64).checked_next_multiple_of(PAGE).unwrap_or(0)
}
