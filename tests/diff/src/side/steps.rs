//! Operations with several steps that leave no objects.

use std::os::fd::AsFd as _;
use std::time::Duration;

use gaudi_seam::{CbCreate, CsRequest, CsSeq, DeviceVa, MemAlloc, MemHandle, QueueId, Result, SharedIo};
use gaudi_sys::Event;
use gaudi_uapi::memory::MemFlags;

use crate::arena::Arena;
use crate::fixtures::{Fixtures, LONG, fault};
use crate::op::End;
use crate::outcome::Outcome;

/// Copies the source window to `to` and back to the destination window, and returns its bytes.
pub(super) fn copy(
    io: &SharedIo,
    fixtures: &Fixtures,
    arena: &Arena,
    queue: QueueId,
    (to, from): (DeviceVa, DeviceVa),
    (at, len, seed): (u32, u32, u8),
) -> Result<Outcome> {
    let windows = fixtures.end(End::Host).unwrap_or(to);
    let window = crate::arena::WINDOW as u64;
    arena.prepare(0, crate::arena::WINDOW, seed).map_err(fault)?;
    let mut outcome = Outcome::default();
    let mut step = |name, to: DeviceVa, from: DeviceVa| -> Result<()> {
        let seq = fixtures.copy(io_of(io), queue, to, from, len)?;
        let status = io.wait_cs(seq, LONG)?.status;
        outcome = std::mem::take(&mut outcome).word(name, format!("{status:?}"));
        Ok(())
    };
    let off = |base: DeviceVa| DeviceVa(base.0 + u64::from(at));
    let (source, destination) = (off(windows), DeviceVa(windows.0 + window + u64::from(at)));
    // To the device, across if both ends are device memory, and back.
    let first = if from == windows { off(to) } else { off(from) };
    step("there", first, source)?;
    if from != windows && to != windows && from != to {
        step("across", off(to), off(from))?;
    }
    let last = if to == windows { off(from) } else { off(to) };
    step("back", destination, last)?;
    Ok(outcome.bytes("copied", arena.copied().map_err(fault)?))
}

fn io_of(io: &SharedIo) -> &dyn gaudi_seam::KernelIo {
    &**io
}

/// Performs an operation on the control node that only a compute node supports.
pub(super) fn on_control(io: &SharedIo, which: u8) -> Outcome {
    match which % 8 {
        0 => Outcome::of(io.mem_alloc(MemAlloc {
            size: 4096,
            page_size: 0,
            flags: MemFlags::NONE,
        })),
        1 => Outcome::of(io.mem_free(MemHandle(1))),
        2 => Outcome::of(io.cb_create(CbCreate {
            size: 4096,
            map_to_device: false,
        })),
        3 => Outcome::of(io.submit(&CsRequest::default())),
        4 => Outcome::of(io.wait_cs(CsSeq(1), Duration::ZERO)),
        5 => Outcome::of(io.unregister_events()),
        6 => Outcome::of(io.mem_unmap(DeviceVa(4096))),
        _ => Outcome::of(
            Event::new()
                .map_err(fault)
                .and_then(|event| io.register_events(event.as_fd())),
        ),
    }
}
