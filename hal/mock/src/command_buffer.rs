//! Command buffers and mmap (command_buffer.c, memory_mgr.c, device.c `hl_mmap`).

use gaudi_seam::{
    CbCreate, CbHandle, CbInfo, Errno, Error, MmapRequest, Operation, RawMapping, Result, TsHandle, rules,
};
use gaudi_sys::standin::{self, Window};
use gaudi_sys::{Memfd, PAGE};
use gaudi_uapi::limits::{HL_MAX_CB_SIZE, TS_MAX_ELEMENTS_NUM};

use crate::block::{TYPE_BLOCK, whole_pages};
use crate::buffers::{Buffer, TYPE_CB, TYPE_MASK, TYPE_TS, Timestamps, number};
use crate::open::Device;

impl Device {
    pub(crate) fn cb_create(&self, request: CbCreate) -> Result<CbHandle> {
        const OP: Operation = Operation::CbCreate;
        let mut guard = self.enter(OP)?;
        // command_buffer.c `hl_cb_create`
        if request.size > HL_MAX_CB_SIZE {
            return Err(self
                .refuse(OP, &rules::buffer::TOO_LARGE)
                .because("a command buffer cannot be that large")
                .saw(request.size, format!("at most {HL_MAX_CB_SIZE}")));
        }
        let (context, engine) = guard.parts();
        let buffers = &mut context.buffers;
        buffers.reap(engine);
        let size = u64::from(request.size).max(1).next_multiple_of(PAGE);
        // command_buffer.c:35
        let Some(at) = buffers.space_for(request.map_to_device).take_lowest(size) else {
            return Err(self
                .refuse(OP, &rules::buffer::NO_ADDRESS)
                .because("the addresses of command buffers are used up"));
        };
        if request.map_to_device {
            if let Err(errno) = buffers.map_to_device(engine, at, size) {
                buffers.space_for(true).give(at, size);
                return Err(self.refusal(OP, errno));
            }
        }
        let buffer = Buffer {
            at,
            size,
            // command_buffer.c:190
            counters: u64::from(request.size).max(PAGE) / 8,
            mapped_to_device: request.map_to_device,
            destroyed: false,
            watchers: 0,
        };
        let key = buffers.add(buffer);
        Ok(CbHandle(TYPE_CB | (u64::from(key) * PAGE)))
    }

    pub(crate) fn cb_destroy(&self, handle: CbHandle) -> Result<()> {
        const OP: Operation = Operation::CbDestroy;
        let mut guard = self.enter(OP)?;
        let (context, engine) = guard.parts();
        // command_buffer.c:318
        let Some((key, _)) = context.buffers.live(handle) else {
            let error = self.no_buffer(OP, handle);
            return Err(match context.buffers.find(handle) {
                Some(_) => error.with_rule(OP, &rules::buffer::DESTROYED),
                None => error,
            });
        };
        context.buffers.destroy(key, engine);
        Ok(())
    }

    pub(crate) fn cb_info(&self, handle: CbHandle, device_va: bool) -> Result<CbInfo> {
        const OP: Operation = Operation::CbInfo;
        let mut state = self.enter(OP)?;
        let context = state.context();
        // command_buffer.c:340: a buffer that was destroyed is found as long as it is mapped.
        let Some((_, buffer)) = context.buffers.find(handle) else {
            return Err(self.no_buffer(OP, handle));
        };
        if !device_va {
            // Queues of Gaudi2 take no handles (gaudi2.c:2773), so no submission ever counts as a
            // user of one.
            return Ok(CbInfo {
                usage_count: 0,
                device_va: None,
            });
        }
        if !buffer.mapped_to_device {
            // command_buffer.c:334
            return Err(self
                .refuse(OP, &rules::buffer::NOT_MAPPED)
                .because("the command buffer is not mapped to the device")
                .helped_by("create it with HL_CB_FLAGS_MAP"));
        }
        Ok(CbInfo {
            usage_count: 0,
            device_va: Some(buffer.at),
        })
    }

    pub(crate) fn mmap(&self, request: MmapRequest) -> Result<RawMapping> {
        const OP: Operation = Operation::Mmap;
        // mm/mmap.c `file_mmap_ok`: before a driver is asked. Offsets are of 64 bits here
        // (`FOP_UNSIGNED_OFFSET`).
        let len = whole_pages(request.len);
        if len > 0 && request.offset > len.wrapping_neg() {
            return Err(self
                .refuse(OP, &rules::mmap::PAST_THE_LAST_OFFSET)
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
            return context
                .blocks
                .mmap(self.asic, request)
                .map_err(|error| error.on(self.id));
        }
        let buffers = &context.buffers;
        // device.c:671: mmap goes by the kind of what is mapped; memory_mgr.c:246.
        let is_buffer = [TYPE_CB, TYPE_TS].contains(&kind);
        let timestamps = number(handle).filter(|_| is_buffer);
        if let Some(timestamps) = timestamps.and_then(|key| buffers.timestamps(key)) {
            return self.mmap_timestamps(&timestamps.memory, request);
        }
        let Some((_, buffer)) = buffers.live(handle).filter(|_| is_buffer) else {
            return Err(self.no_buffer(OP, handle));
        };
        if whole_pages(request.len) != buffer.size {
            // memory_mgr.c:253
            return Err(self
                .refuse(OP, &rules::mmap::LENGTH)
                .because("a buffer is mapped whole")
                .saw(request.len, buffer.size));
        }
        if buffers.is_mapped(buffer) {
            // memory_mgr.c:271
            return Err(self
                .refuse(OP, &rules::mmap::TWICE)
                .because("the buffer is mapped already")
                .helped_by("share the mapping"));
        }
        buffers
            .map(buffer, request.len)
            .map_err(|errno| self.refusal(OP, errno))
    }

    /// `HL_MEM_OP_TS_ALLOC` (memory.c:2174)
    pub(crate) fn ts_alloc(&self, elements: u32) -> Result<TsHandle> {
        const OP: Operation = Operation::TsAlloc;
        let mut guard = self.enter(OP)?;
        let (context, engine) = guard.parts();
        if elements > TS_MAX_ELEMENTS_NUM {
            return Err(self
                .refuse(OP, &rules::timestamps::TOO_MANY)
                .because("a timestamps buffer cannot be that large")
                .saw(elements, format!("at most {TS_MAX_ELEMENTS_NUM}")));
        }
        // memory.c `hl_ts_alloc_buf`: memory of 0 bytes cannot be allocated.
        let size = (u64::from(elements) * 8).next_multiple_of(PAGE);
        let made = match size {
            0 => Err(Errno::ENOMEM),
            size => Timestamps::new(size, elements),
        };
        let timestamps = made.map_err(|_| self.refuse(OP, &rules::timestamps::NONE))?;
        // The number of a command buffer whose mapping went since is free again.
        context.buffers.reap(engine);
        let key = context.buffers.add_timestamps(timestamps);
        Ok(TsHandle(TYPE_TS | (u64::from(key) * PAGE)))
    }

    fn mmap_timestamps(&self, memory: &Memfd, request: MmapRequest) -> Result<RawMapping> {
        const OP: Operation = Operation::Mmap;
        let whole = Window {
            offset: 0,
            len: memory.len(),
        };
        if whole_pages(request.len) != whole.len {
            return Err(self
                .refuse(OP, &rules::mmap::LENGTH)
                .because("a buffer is mapped whole")
                .saw(request.len, whole.len));
        }
        if standin::is_exported(memory, whole).unwrap_or(true) {
            return Err(self
                .refuse(OP, &rules::mmap::TWICE)
                .because("the buffer is mapped already")
                .helped_by("share the mapping"));
        }
        let file = standin::export(memory, whole).map_err(|errno| self.refusal(OP, errno))?;
        RawMapping::of_fd(&file, 0, request.len).map_err(|errno| self.refusal(OP, errno))
    }

    fn no_buffer(&self, operation: Operation, handle: CbHandle) -> Error {
        let rule = match operation {
            // device.c `__hl_mmap` looks at the type, memory_mgr.c at the number.
            Operation::Mmap if ![TYPE_CB, TYPE_TS].contains(&(handle.0 & TYPE_MASK)) => &rules::mmap::TYPE,
            Operation::Mmap => &rules::mmap::UNKNOWN,
            _ => &rules::buffer::UNKNOWN,
        };
        self.refuse(operation, rule)
            .because(format!("no buffer has handle {:#x}", handle.0))
    }
}
