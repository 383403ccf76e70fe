//! Command buffers and mmap (command_buffer.c, memory_mgr.c, device.c `hl_mmap`).

use gaudi_seam::{
    CbCreate, CbDestroy, CbHandle, CbInfo, CbQuery, Errno, MmapRequest, Operation, RawMapping, Result,
    TsAlloc, TsHandle, rules,
};
use gaudi_sys::PAGE;

use crate::block::{self, TYPE_BLOCK};
use crate::buffers::{Buffer, TYPE_CB, TYPE_MASK, TYPE_TS, Users};
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
            users: Users::default(),
        };
        let key = buffers.add(buffer);
        Ok(CbHandle(buffers.handle(TYPE_CB, key)))
    }

    pub(crate) fn cb_destroy(&self, handle: CbHandle) -> Result<()> {
        let mut guard = self.admit(&CbDestroy(handle))?;
        let (context, engine) = guard.parts();
        context.buffers.destroy(handle, engine);
        Ok(())
    }

    pub(crate) fn cb_info(&self, handle: CbHandle, device_va: bool) -> Result<CbInfo> {
        const OP: Operation = Operation::CbInfo;
        let mut state = self.admit(&CbQuery { handle, device_va })?;
        let Some((_, buffer)) = state.context().buffers.find(handle) else {
            // The user unmapped a destroyed buffer since the check.
            return Err(self.refuse(OP, &rules::buffer::UNKNOWN));
        };
        Ok(CbInfo {
            // Queues of Gaudi2 take no handles (gaudi2.c:gaudi2_set_fixed_properties), so no
            // submission ever counts as a user of one.
            usage_count: 0,
            device_va: device_va.then_some(buffer.at),
        })
    }

    pub(crate) fn mmap(&self, request: MmapRequest) -> Result<RawMapping> {
        const OP: Operation = Operation::Mmap;
        // mm/mmap.c `file_mmap_ok`: before the call of the driver.
        self.check_rules(&request, None)?;
        // device.c:__hl_mmap does not check the status: mmap works during a reset too.
        let mut state = self.lock();
        state.settle();
        if state.context.is_none() {
            return Err(self.refusal(OP, Errno::EBUSY));
        }
        // device.c:__hl_mmap: mmap goes by the kind of what is mapped.
        match request.offset & TYPE_MASK {
            TYPE_BLOCK => {
                let file = state.context().buffers.file();
                return block::mmap(self.asic, file, request).map_err(|error| error.on(self.id));
            }
            TYPE_CB | TYPE_TS => self.check_rules(&request, Some(&state))?,
            _ => {
                let error = self.refuse(OP, &rules::mmap::TYPE);
                return Err(error.showing(format!("{:#x}", request.offset)));
            }
        }
        let found = state.context().buffers.user_memory(CbHandle(request.offset));
        let memory = found.expect("the rules allow handles of buffers");
        memory.map(request.len).map_err(|errno| self.refusal(OP, errno))
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
}
