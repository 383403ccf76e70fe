//! The buffers of a context that user code maps: command buffers and timestamps (memory_mgr.c).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use gaudi_seam::engine::HostRange;
use gaudi_seam::{
    CbHandle, CqCounter, DeviceVa, Engine, Errno, Error, RawMapping, Result, TimestampRegistration,
};
use gaudi_spec::asic;
use gaudi_sys::standin::{self, Window};
use gaudi_sys::{Memfd, PAGE, maps};

use crate::interrupt::Line;
use crate::layout::{self, COMMAND_BUFFERS, POOL_SIZE, TIMESTAMPS};
use crate::pages::lowest_free;
use crate::va::VaSpace;

/// The type bits in a command buffer's handle (habanalabs.h:HL_MMAP_TYPE_CB, shifted by a page).
pub(crate) const TYPE_CB: u64 = 0x2 << 59;
/// The type bits in a timestamps buffer's handle (habanalabs.h:HL_MMAP_TYPE_TS_BUFF).
pub(crate) const TYPE_TS: u64 = 0x10 << 59;
/// The type bits of a handle (habanalabs.h:HL_MMAP_TYPE_MASK).
pub(crate) const TYPE_MASK: u64 = 0x1f << 59;

const NO_MEMORY: &str = "no memory for command buffers";

/// Bytes of destroyed buffers whose memory is kept before the mappings of the process are read.
const MOST_UNSETTLED: u64 = 32 << 20;

/// What a handle is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Handles {
    /// As the driver's: the object's type, and the lowest number that is free.
    Numbers,
    /// For a program that maps the file itself: the object's offset in the file, without a type.
    /// Its number is that of its first page, so a lookup is the same.
    Offsets,
}

/// The command buffers of a context. Their memory is one sparse file ([`layout`]). Byte n of the
/// pool has the device address `pool + n`; the buffers without a device address follow the pool.
#[derive(Debug)]
pub(crate) struct Buffers {
    /// The file; `None` if the memory is private to this process.
    file: Option<Arc<Memfd>>,
    /// All command buffers; all that user code maps if the memory is private.
    map: Arc<RawMapping>,
    pool: DeviceVa,
    space: VaSpace,
    unmapped: VaSpace,
    stamps: VaSpace,
    handles: Handles,
    /// Bytes of buffers that were destroyed since the mappings of the process were read.
    unsettled: u64,
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
    pub(crate) users: Users,
}

/// The mappings of one object of private memory: each holds a clone. The kernel counts those of a
/// file.
#[derive(Debug, Clone, Default)]
pub(crate) struct Users(Arc<()>);

impl Users {
    fn is_mapped(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

/// Memory that the user can map at a handle.
pub(crate) struct UserMemory<'a> {
    buffers: &'a Buffers,
    window: Window,
    users: &'a Users,
}

impl UserMemory<'_> {
    /// Bytes of it.
    pub(crate) fn len(&self) -> u64 {
        self.window.len
    }

    /// Whether a mapping of it exists. If the kernel does not answer, it counts as mapped.
    pub(crate) fn is_mapped(&self) -> bool {
        match &self.buffers.file {
            Some(file) => standin::is_exported(file, self.window).unwrap_or(true),
            None => self.users.is_mapped(),
        }
    }

    /// Maps its first bytes.
    pub(crate) fn map(&self, len: usize) -> std::result::Result<RawMapping, Errno> {
        match &self.buffers.file {
            // The mapping keeps the file open, and so the lock by which the mock detects the
            // mapping.
            Some(file) => standin::export(file, self.window)
                .and_then(|file| RawMapping::of_fd(&file, self.window.offset, len)),
            None => {
                let at = usize::try_from(self.window.offset).map_err(|_| Errno::EINVAL)?;
                let users = Arc::clone(&self.users.0);
                RawMapping::part_of(&self.buffers.map, at, len, users)
            }
        }
    }
}

#[derive(Debug)]
pub(crate) struct Timestamps {
    /// The buffer's bytes in the file.
    pub(crate) window: Window,
    map: RawMapping,
    pub(crate) elements: u32,
    users: Users,
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
    pub(crate) fn shared(pool: DeviceVa) -> Result<Self> {
        let failed = |errno| Error::from_errno("open", errno).because(NO_MEMORY);
        let memory = Memfd::sparse(c"gaudi-mock", layout::LEN).map_err(failed)?;
        let map = RawMapping::of_fd(&memory, 0, COMMAND_BUFFERS.end as usize).map_err(failed)?;
        Ok(Self::new(pool, Some(Arc::new(memory)), Arc::new(map)))
    }

    /// Buffers in memory of this process.
    pub(crate) fn private(pool: DeviceVa) -> Result<Self> {
        let failed = |errno| Error::from_errno("open", errno).because(NO_MEMORY);
        let map = RawMapping::anonymous_sparse(layout::LEN as usize).map_err(failed)?;
        Ok(Self::new(pool, None, Arc::new(map)))
    }

    fn new(pool: DeviceVa, file: Option<Arc<Memfd>>, map: Arc<RawMapping>) -> Self {
        let space = |start, size| {
            let range = asic::VaRange {
                start: DeviceVa(start),
                end: DeviceVa(start + size),
                page: PAGE,
            };
            VaSpace::new(range, PAGE, 0..0)
        };
        Self {
            file,
            map,
            pool,
            space: space(pool.0, POOL_SIZE),
            unmapped: space(pool.0 + POOL_SIZE, POOL_SIZE),
            stamps: space(TIMESTAMPS.start, TIMESTAMPS.end - TIMESTAMPS.start),
            handles: Handles::Numbers,
            unsettled: 0,
            buffers: BTreeMap::new(),
            timestamps: BTreeMap::new(),
            registrations: Vec::new(),
        }
    }

    /// Makes handles offsets in the file, for a program that maps it. The context is new: it has no
    /// buffer. `None` if the memory is private.
    pub(crate) fn hand_out_offsets(&mut self) -> Option<Arc<Memfd>> {
        debug_assert!(self.buffers.is_empty() && self.timestamps.is_empty());
        let file = self.file.clone()?;
        self.handles = Handles::Offsets;
        Some(file)
    }

    /// Whether a handle is an offset in the file.
    pub(crate) fn has_offsets(&self) -> bool {
        self.handles == Handles::Offsets
    }

    /// The handle of the object with this number and type.
    pub(crate) fn handle(&self, kind: u64, number: u32) -> u64 {
        let page = u64::from(number) * PAGE;
        match self.handles {
            Handles::Numbers => kind | page,
            Handles::Offsets => page,
        }
    }

    /// Returns the number of buffers that have a handle or are mapped by the user.
    pub(crate) fn len(&self) -> usize {
        self.buffers.len() - self.unused().len()
    }

    /// The file of the context; `None` if the memory is private.
    pub(crate) fn file(&self) -> Option<&Memfd> {
        self.file.as_deref()
    }

    /// The offset of a command buffer in the context's memory.
    fn offset(&self, at: DeviceVa) -> u64 {
        COMMAND_BUFFERS.start + (at.0 - self.pool.0)
    }

    /// The bytes of a buffer in the context's memory.
    pub(crate) fn window(&self, buffer: &Buffer) -> Window {
        Window {
            offset: self.offset(buffer.at),
            len: buffer.size,
        }
    }

    fn is_mapped(&self, key: u32, buffer: &Buffer) -> bool {
        match self.handles {
            Handles::Numbers => self.memory_of(buffer).is_mapped(),
            Handles::Offsets => self.mapped().is_none_or(|mapped| mapped.contains(&key)),
        }
    }

    fn memory_of<'a>(&'a self, buffer: &'a Buffer) -> UserMemory<'a> {
        UserMemory {
            buffers: self,
            window: self.window(buffer),
            users: &buffer.users,
        }
    }

    fn is_kept(&self, key: u32, buffer: &Buffer) -> bool {
        !buffer.destroyed || buffer.watchers > 0 || self.is_mapped(key, buffer)
    }

    /// The buffers that this process maps, where handles are offsets: the program's mappings hold
    /// no lock, so the list of all mappings is read. `None` if it cannot be.
    fn mapped(&self) -> Option<BTreeSet<u32>> {
        let own = self.map.as_ptr().as_ptr().addr() as u64;
        let own = own..own + self.map.len() as u64;
        let mut mapped = BTreeSet::new();
        let file = self.file.as_deref()?;
        maps::of_file(file, |addresses, offsets| {
            if own.contains(&addresses.start) {
                return;
            }
            let last = u32::try_from((offsets.end - 1) / PAGE).unwrap_or(u32::MAX);
            let before_end = self.buffers.range(..=last).rev();
            mapped.extend(
                before_end
                    .take_while(|(_, buffer)| self.offset(buffer.at) + buffer.size > offsets.start)
                    .map(|(&key, _)| key),
            );
        })
        .ok()?;
        Some(mapped)
    }

    /// The buffers that have neither a handle nor a mapping.
    fn unused(&self) -> Vec<u32> {
        let destroyed = self
            .buffers
            .iter()
            .filter(|(_, buffer)| buffer.destroyed && buffer.watchers == 0);
        match self.handles {
            Handles::Numbers => destroyed
                .filter(|&(&key, buffer)| !self.is_mapped(key, buffer))
                .map(|(&key, _)| key)
                .collect(),
            Handles::Offsets => {
                let destroyed: Vec<u32> = destroyed.map(|(&key, _)| key).collect();
                if destroyed.is_empty() {
                    return destroyed;
                }
                let mapped = self.mapped();
                let is_unused = |key: &u32| mapped.as_ref().is_some_and(|mapped| !mapped.contains(key));
                destroyed.into_iter().filter(is_unused).collect()
            }
        }
    }

    /// Frees the memory of buffers that have neither a handle nor a mapping. Where handles are
    /// offsets, it waits until there is enough of it.
    pub(crate) fn reap(&mut self, engine: &mut dyn Engine) {
        if self.handles == Handles::Numbers || self.unsettled >= MOST_UNSETTLED {
            self.reap_now(engine);
        }
    }

    fn reap_now(&mut self, engine: &mut dyn Engine) {
        self.unsettled = 0;
        for key in self.unused() {
            if let Some(buffer) = self.buffers.remove(&key) {
                self.give_back(&buffer, engine);
            }
        }
    }

    /// Takes the lowest device address, or place of memory only, for `size` bytes.
    pub(crate) fn take(
        &mut self,
        mapped_to_device: bool,
        size: u64,
        engine: &mut dyn Engine,
    ) -> Option<DeviceVa> {
        self.reap(engine);
        let lowest = self.space_for(mapped_to_device).take_lowest(size);
        if lowest.is_some() || self.unsettled == 0 {
            return lowest;
        }
        self.reap_now(engine);
        self.space_for(mapped_to_device).take_lowest(size)
    }

    fn give_back(&mut self, buffer: &Buffer, engine: &mut dyn Engine) {
        if buffer.mapped_to_device {
            engine.unmap(buffer.at);
        }
        let window = self.window(buffer);
        // A new buffer's memory reads as zeros (command_buffer.c:hl_cb_alloc `__GFP_ZERO`).
        let punched = match &self.file {
            Some(file) => file.punch_hole(window.offset, window.len),
            None => self.zero(window),
        };
        debug_assert!(
            punched.is_ok(),
            "punching a hole into command buffers: {punched:?}"
        );
        self.space_for(buffer.mapped_to_device)
            .give(buffer.at, buffer.size);
    }

    fn zero(&self, window: Window) -> std::result::Result<(), Errno> {
        let offset = usize::try_from(window.offset).map_err(|_| Errno::EINVAL)?;
        let len = usize::try_from(window.len).map_err(|_| Errno::EINVAL)?;
        self.map.fill(offset, len, 0)
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
        self.registrations.clear();
        if self.file.is_none() {
            // The next context gets the memory as new.
            let buffers = self.buffers.values().map(|buffer| self.window(buffer));
            for window in buffers.chain(self.timestamps.values().map(|stamps| stamps.window)) {
                let zeroed = self.zero(window);
                debug_assert_eq!(zeroed, Ok(()), "{window:?} is memory of the context");
            }
        }
        self.buffers.clear();
    }

    /// Makes released buffers as new ones, in the same memory.
    pub(crate) fn restart(&mut self) {
        // Every field, so that a new one is not forgotten.
        let Self {
            file: _,
            map: _,
            pool: _,
            space,
            unmapped,
            stamps,
            handles,
            unsettled,
            buffers,
            timestamps,
            registrations,
        } = self;
        [space, unmapped, stamps].into_iter().for_each(VaSpace::restart);
        *handles = Handles::Numbers;
        *unsettled = 0;
        buffers.clear();
        timestamps.clear();
        registrations.clear();
    }

    /// Whether the user maps private memory of released buffers.
    pub(crate) fn are_mapped(&self) -> bool {
        Arc::strong_count(&self.map) > 1
    }

    /// Returns a buffer as the driver does (memory_mgr.c:hl_mmap_mem_buf_get): by the number in
    /// bits 43..12 only, also after destruction while it is mapped.
    pub(crate) fn find(&self, handle: CbHandle) -> Option<(u32, &Buffer)> {
        let key = number(handle)?;
        self.buffers
            .get(&key)
            .filter(|buffer| self.is_kept(key, buffer))
            .map(|buffer| (key, buffer))
    }

    /// Adds a buffer. Returns its number.
    pub(crate) fn add(&mut self, buffer: Buffer) -> u32 {
        let number = self.free_number(self.window(&buffer));
        self.buffers.insert(number, buffer);
        number
    }

    /// Adds a timestamps buffer of this many bytes, whole pages. Returns its number.
    pub(crate) fn add_timestamps(&mut self, size: u64, elements: u32) -> std::result::Result<u32, Errno> {
        let offset = self.stamps.take_lowest(size).ok_or(Errno::ENOMEM)?.0;
        let window = Window { offset, len: size };
        let users = Users::default();
        let map = usize::try_from(size).map_err(|_| Errno::ENOMEM);
        let map = map.and_then(|len| match &self.file {
            Some(file) => RawMapping::of_fd(&**file, offset, len),
            None => RawMapping::part_of(&self.map, offset as usize, len, Arc::new(())),
        });
        let map = map.inspect_err(|_| self.stamps.give(DeviceVa(offset), size))?;
        let number = self.free_number(window);
        self.timestamps.insert(
            number,
            Timestamps {
                window,
                map,
                elements,
                users,
            },
        );
        Ok(number)
    }

    /// The number of a new object: as `idr_alloc(.., 1, 0, ..)`, or its first page.
    fn free_number(&self, window: Window) -> u32 {
        match self.handles {
            Handles::Numbers => lowest_free(|number| {
                self.buffers.contains_key(&number) || self.timestamps.contains_key(&number)
            }),
            Handles::Offsets => u32::try_from(window.offset / PAGE).expect("the layout has 32 bits of pages"),
        }
    }

    /// Drops a handle. The buffer stays while it is mapped or watched.
    pub(crate) fn destroy(&mut self, handle: CbHandle, engine: &mut dyn Engine) {
        let number = number(handle);
        if let Some(buffer) = number.and_then(|number| self.buffers.get_mut(&number)) {
            buffer.destroyed = true;
            self.unsettled += buffer.size;
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
    pub(crate) fn user_memory(&self, handle: CbHandle) -> Option<UserMemory<'_>> {
        if let Some((_, timestamps)) = self.timestamps(handle.0) {
            return Some(UserMemory {
                buffers: self,
                window: timestamps.window,
                users: &timestamps.users,
            });
        }
        let (_, buffer) = self.find(handle).filter(|(_, buffer)| !buffer.destroyed)?;
        Some(self.memory_of(buffer))
    }
}

/// The number in a handle: bits 43..12 (memory_mgr.c `hl_mmap_mem_buf_get`).
pub(crate) fn number(handle: CbHandle) -> Option<u32> {
    u32::try_from((handle.0 / PAGE) & 0xffff_ffff).ok()
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
        let at = usize::try_from(self.offset(buffer.at) + at).ok()?;
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
        let offset = usize::try_from(self.offset(at)).map_err(|_| Errno::EINVAL)?;
        let size = usize::try_from(size).map_err(|_| Errno::EINVAL)?;
        let start = self.map.at(offset, size)?;
        // SAFETY: the bytes lie in `self.map`, to which nothing has a reference; the chip's range
        // is unmapped in `give_back` or `release`, both before the mapping does.
        let range = unsafe { HostRange::new(start, size) };
        engine.map_host(at, range).map_err(|_| Errno::ENOMEM)
    }
}
