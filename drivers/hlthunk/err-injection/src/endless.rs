//! A command that never completes: a fence on a counter that is never incremented.

use std::ffi::c_int;
use std::num::NonZeroUsize;

use gaudi_hlthunk_client::{CsEnd, HlThunk};
use gaudi_spec::asic::QueueEngine;
use gaudi_spec::gaudi2::packet::Fence;
use gaudi_spec::{ASICS, Asic, QueueId};
use gaudi_uapi::cs::HlCsChunk;
use gaudi_uapi::info::HlInfoHwIpInfo;
use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};

const PAGE: usize = 4096;
/// Timeout of the submission in seconds.
const TIMEOUT: u32 = 1;
/// Timeout of one wait in microseconds.
const WAIT: u64 = 5_000_000;

/// Returns the first queue of an engine that copies between host and device.
fn queue(asic: &Asic) -> Option<QueueId> {
    let mut rows = (0..asic.queue_count).filter_map(|number| (asic.queue)(QueueId(number)));
    rows.find(|row| row.user && row.engine == QueueEngine::Pdma)
        .map(|row| row.id)
}

/// Submits the command, and waits until the driver has timed it out.
pub(crate) fn submit(thunk: &HlThunk, fd: c_int) -> Result<(), Errno> {
    let chip = thunk.info::<HlInfoHwIpInfo>(fd)?.device_id;
    let asic = ASICS.into_iter().find(|asic| u32::from(asic.device) == chip);
    let queue = asic.and_then(queue).ok_or(Errno::ENODEV)?;
    let fence = Fence::new(0, 1, 1).ok_or(Errno::EINVAL)?.to_bytes();

    let flags = MapFlags::MAP_PRIVATE;
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let length = NonZeroUsize::new(PAGE).ok_or(Errno::EINVAL)?;
    // SAFETY: a new anonymous mapping replaces no other.
    let page = unsafe { mmap_anonymous(None, length, protection, flags) }?;
    // SAFETY: the page is longer than a packet, and nothing else accesses it.
    unsafe { page.cast::<[u8; Fence::LEN]>().write(fence) };
    let start = page.addr().get() as u64;
    // SAFETY: from here on only the device accesses the page.
    let mapped = unsafe { thunk.map_host(fd, start..start + PAGE as u64) };
    let ended = mapped.and_then(|address| {
        let chunk = HlCsChunk::user(queue.0, address, Fence::LEN as u32);
        let ended = thunk.submit(fd, chunk, Some(TIMEOUT)).and_then(|seq| {
            loop {
                match thunk.wait(fd, seq, WAIT)? {
                    CsEnd::Busy => {}
                    CsEnd::Failed => return Ok(()),
                    CsEnd::Completed => return Err(Errno::EIO),
                }
            }
        });
        // Fails while the device is in reset. Closing the device unmaps the page.
        let _ = thunk.unmap(fd, address);
        ended
    });
    // SAFETY: the driver holds its own reference to the page, and nothing else accesses it.
    unsafe { munmap(page, PAGE) }?;
    ended
}
