//! A ring of command buffers: slots of one allocation that the device fetches commands from.

use gaudi_seam::{
    CbCreate, CbHandle, DeviceId, DeviceVa, Error, ErrorKind, KernelIo, MmapRequest, RawMapping, Result,
};
use gaudi_sys::PAGE;
use gaudi_uapi::limits::HL_MAX_CB_SIZE;

use crate::context::Context;

pub(crate) struct Ring {
    handle: CbHandle,
    map: RawMapping,
    va: DeviceVa,
    pub(crate) slot_bytes: usize,
    pub(crate) slots: usize,
}

impl Ring {
    /// Allocates and maps the ring of [`Options`](crate::Options).
    ///
    /// # Errors
    /// - `InvalidInput`: the options make no valid size.
    /// - The driver's own error, or `Protocol` if its answer has no device address.
    pub(crate) fn new(context: &Context) -> Result<Self> {
        const OP: &str = "HL_CB_OP_CREATE";
        let options = &context.options;
        let (slots, slot_bytes) = (options.command_buffers, options.command_buffer_bytes);
        let size = slots
            .checked_mul(slot_bytes)
            .filter(|&size| size > 0 && size <= HL_MAX_CB_SIZE)
            .ok_or_else(|| {
                context
                    .invalid(OP, "invalid size of the ring of command buffers")
                    .saw(
                        format!("{slots} × {slot_bytes} bytes"),
                        format!("1 to {HL_MAX_CB_SIZE} bytes"),
                    )
            })?;
        let io = &*context.io;
        let handle = io.cb_create(CbCreate {
            size,
            map_to_device: true,
        })?;
        let mapped = io.cb_info(handle, true).and_then(|info| {
            let va = info.device_va.ok_or_else(|| {
                Error::new(ErrorKind::Protocol, "HL_CB_OP_INFO")
                    .on(context.id)
                    .because("no device address for a mapped command buffer")
            })?;
            // The driver allocates whole pages, and maps all or none
            // (`memory_mgr.c:hl_mem_mgr_mmap`).
            let map = io.mmap(MmapRequest {
                offset: handle.0,
                len: (size as usize).next_multiple_of(PAGE as usize),
            })?;
            Ok((va, map))
        });
        match mapped {
            Ok((va, map)) => Ok(Self {
                handle,
                map,
                va,
                slot_bytes: slot_bytes as usize,
                slots: slots as usize,
            }),
            Err(error) => {
                destroy(io, context.id, handle);
                Err(error)
            }
        }
    }

    /// The device address of a slot. The ring's addresses do not wrap: the driver mapped one range.
    #[inline]
    pub(crate) fn address(&self, slot: usize) -> u64 {
        self.va.0.wrapping_add((slot * self.slot_bytes) as u64)
    }

    /// Writes into a slot.
    ///
    /// # Errors
    /// `BadAddress`: the range leaves the ring.
    #[inline]
    pub(crate) fn write(&self, slot: usize, offset: usize, bytes: &[u8]) -> Result<()> {
        let at = slot * self.slot_bytes + offset;
        self.map
            .write(at, bytes)
            .map_err(|errno| Error::from_errno("Queue", errno))
    }

    /// Returns the first `used` bytes of a slot.
    #[cold]
    pub(crate) fn contents(&self, slot: usize, used: usize) -> Vec<u8> {
        let mut bytes = vec![0; used];
        let read = self.map.read(slot * self.slot_bytes, &mut bytes);
        debug_assert!(read.is_ok(), "slot {slot} lies in the ring");
        bytes
    }

    /// The driver's handle of the ring.
    pub(crate) fn handle(&self) -> u64 {
        self.handle.0
    }

    /// Destroys the ring in the driver; logs an error. No engine may fetch from it any more.
    pub(crate) fn destroy(&self, io: &dyn KernelIo, device: DeviceId) {
        destroy(io, device, self.handle);
    }
}

fn destroy(io: &dyn KernelIo, device: DeviceId, handle: CbHandle) {
    if let Err(error) = io.cb_destroy(handle) {
        tracing::warn!(
            "device {device}: command buffer {:#x} was not destroyed: {error}",
            handle.0
        );
    }
}
