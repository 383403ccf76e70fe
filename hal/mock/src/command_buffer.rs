//! Command buffers and mmap (command_buffer.c, memory_mgr.c, device.c `hl_mmap`).

use gaudi_seam::rules::When;
use gaudi_seam::{
    CbCreate, CbHandle, CbInfo, Errno, Error, MmapRequest, Operation, RawMapping, Result, TsAlloc, TsHandle,
    rules,
};
use gaudi_sys::standin::{self, Window};
use gaudi_sys::{Memfd, PAGE};

use crate::block::{self, TYPE_BLOCK};
use crate::buffers::{Buffer, TYPE_CB, TYPE_MASK, TYPE_TS, number};
use crate::open::Device;

impl Device {
    pub(crate) fn cb_create(&self, request: CbCreate) -> Result<CbHandle> {
        const OP: Operation = Operation::CbCreate;
        let mut guard = self.admit(&request)?;
        let (context, engine) = guard.parts();
        let buffers = &mut context.buffers;
        let size = u64::from(request.size).max(1).next_multiple_of(PAGE);
        // command_buffer.c:cb_map_mem
        let Some(at) = buffers.take(request.map_to_device, size, engine) else {
            return Err(self.refuse(OP, &rules::buffer::NO_ADDRESS));
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
            // command_buffer.c:hl_cb_mmap_mem_alloc
            counters: u64::from(request.size).max(PAGE) / 8,
            mapped_to_device: request.map_to_device,
            destroyed: false,
            watchers: 0,
        };
        let key = buffers.add(buffer);
        Ok(CbHandle(buffers.handle(TYPE_CB, key)))
    }

    pub(crate) fn cb_destroy(&self, handle: CbHandle) -> Result<()> {
        const OP: Operation = Operation::CbDestroy;
        let mut guard = self.enter(OP)?;
        let (context, engine) = guard.parts();
        // command_buffer.c:hl_cb_destroy
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
        // command_buffer.c:hl_cb_info: a buffer that was destroyed is found as long as it is
        // mapped.
        let Some((_, buffer)) = context.buffers.find(handle) else {
            return Err(self.no_buffer(OP, handle));
        };
        if !device_va {
            // Queues of Gaudi2 take no handles (gaudi2.c:gaudi2_set_fixed_properties), so no
            // submission ever counts as a user of one.
            return Ok(CbInfo {
                usage_count: 0,
                device_va: None,
            });
        }
        if !buffer.mapped_to_device {
            // command_buffer.c:hl_cb_info
            return Err(self.refuse(OP, &rules::buffer::NOT_MAPPED));
        }
        Ok(CbInfo {
            usage_count: 0,
            device_va: Some(buffer.at),
        })
    }

    pub(crate) fn mmap(&self, request: MmapRequest) -> Result<RawMapping> {
        const OP: Operation = Operation::Mmap;
        // mm/mmap.c `file_mmap_ok`: before the call of the driver.
        self.check_arguments(&request, When::Early)?;
        // device.c:__hl_mmap does not check the status: mmap works during a reset too.
        let mut state = self.lock();
        state.settle();
        let handle = CbHandle(request.offset);
        let kind = handle.0 & TYPE_MASK;
        let Some(context) = state.context.as_mut() else {
            return Err(self.refusal(OP, Errno::EBUSY));
        };
        if kind == TYPE_BLOCK {
            let memory = context.buffers.memory();
            return block::mmap(self.asic, memory, request).map_err(|error| error.on(self.id));
        }
        let buffers = &context.buffers;
        // device.c:__hl_mmap: mmap goes by the kind of what is mapped;
        // memory_mgr.c:hl_mem_mgr_mmap.
        let is_buffer = [TYPE_CB, TYPE_TS].contains(&kind);
        let timestamps = number(handle).filter(|_| is_buffer);
        if let Some(timestamps) = timestamps.and_then(|key| buffers.timestamps(key)) {
            return self.mmap_buffer(buffers.memory(), timestamps.window, request);
        }
        let Some((_, buffer)) = buffers.live(handle).filter(|_| is_buffer) else {
            return Err(self.no_buffer(OP, handle));
        };
        self.mmap_buffer(buffers.memory(), buffers.window(buffer), request)
    }

    /// Maps the window of a buffer in its file (memory_mgr.c `hl_mem_mgr_mmap`).
    fn mmap_buffer(&self, memory: &Memfd, window: Window, request: MmapRequest) -> Result<RawMapping> {
        const OP: Operation = Operation::Mmap;
        if request.whole_pages() != window.len {
            return Err(self.refuse(OP, &rules::mmap::LENGTH).saw(request.len, window.len));
        }
        // If the kernel does not answer, it counts as mapped.
        if standin::is_exported(memory, window).unwrap_or(true) {
            return Err(self.refuse(OP, &rules::mmap::TWICE));
        }
        // The mapping keeps the file open, and so the lock by which the mock detects the mapping.
        standin::export(memory, window)
            .and_then(|file| RawMapping::of_fd(&file, window.offset, request.len))
            .map_err(|errno| self.refusal(OP, errno))
    }

    /// `HL_MEM_OP_TS_ALLOC` (memory.c:allocate_timestamps_buffers)
    pub(crate) fn ts_alloc(&self, elements: u32) -> Result<TsHandle> {
        let mut guard = self.admit(&TsAlloc(elements))?;
        let (context, engine) = guard.parts();
        let size = (u64::from(elements) * 8).next_multiple_of(PAGE);
        let buffers = &mut context.buffers;
        // Frees the numbers of destroyed command buffers that are no longer mapped.
        buffers.reap(engine);
        let key = buffers
            .add_timestamps(size, elements)
            .map_err(|_| self.refuse(Operation::TsAlloc, &rules::timestamps::NONE))?;
        Ok(TsHandle(buffers.handle(TYPE_TS, key)))
    }

    fn no_buffer(&self, operation: Operation, handle: CbHandle) -> Error {
        let rule = match operation {
            // device.c `__hl_mmap` checks the type, memory_mgr.c the number.
            Operation::Mmap if ![TYPE_CB, TYPE_TS].contains(&(handle.0 & TYPE_MASK)) => &rules::mmap::TYPE,
            Operation::Mmap => &rules::mmap::UNKNOWN,
            _ => &rules::buffer::UNKNOWN,
        };
        self.refuse(operation, rule).showing(format!("{:#x}", handle.0))
    }
}
