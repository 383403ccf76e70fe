//! Command buffers: `HL_IOCTL_CB` and their mmap.

use gaudi_seam::{CbCreate, CbHandle, Errno, MmapRequest, RawMapping, SharedIo};
use gaudi_spec::gaudi2::{HOST_VA, queue};
use gaudi_sys::PAGE;
use gaudi_uapi::limits::HL_MAX_CB_SIZE;

use crate::bench::Bench;
use crate::case::cases;
use crate::rig::{Buffer, PAGE_LEN, Program, finish, pattern};
use crate::verdict::{Verdict, equal, holds, invalid, refused, same_bytes};

cases! {
    "buffer.create.zero-bytes", "common/command_buffer.c:hl_cb_mmap_mem_alloc" => create_zero;
    "buffer.create.rounds-up", "common/memory_mgr.c:hl_mem_mgr_mmap" => create_rounds_up;
    "buffer.create.largest", "common/command_buffer.c:hl_cb_ioctl" => create_largest;
    "buffer.create.too-large", "common/command_buffer.c:hl_cb_ioctl" => create_too_large;
    "buffer.create.is-zeroed", "common/command_buffer.c:hl_cb_alloc" => create_is_zeroed;
    "buffer.handle.bits", "common/memory_mgr.c:hl_mmap_mem_buf_alloc" => handle_bits;
    "buffer.handle.lowest-free", "common/memory_mgr.c:hl_mmap_mem_buf_alloc" => handle_lowest;
    "buffer.handle.unknown", "common/memory_mgr.c:hl_mmap_mem_buf_get" => handle_unknown;
    "buffer.handle.type-bits-are-ignored", "common/memory_mgr.c:hl_mmap_mem_buf_get" => handle_type_bits;
    "buffer.mmap.wrong-length", "common/memory_mgr.c:hl_mem_mgr_mmap" => mmap_wrong_length;
    "buffer.mmap.without-type-bits", "common/device.c:__hl_mmap" => mmap_without_type;
    "buffer.mmap.twice", "common/memory_mgr.c:hl_mem_mgr_mmap" => mmap_twice;
    "buffer.mmap.after-munmap", "common/memory_mgr.c:hl_mmap_mem_buf_vm_close" => mmap_after_munmap;
    "buffer.mmap.after-destroy", "common/memory_mgr.c:hl_mem_mgr_mmap" => mmap_after_destroy;
    "buffer.destroy.twice", "common/command_buffer.c:hl_cb_destroy" => destroy_twice;
    "buffer.destroy.while-mmapped", "common/command_buffer.c:hl_cb_destroy" => destroy_while_mapped;
    "buffer.destroy.twice-while-mmapped", "common/command_buffer.c:hl_cb_destroy" => destroy_twice_while_mapped;
    "buffer.info.after-destroy-while-mmapped", "common/command_buffer.c:hl_cb_info" => info_after_destroy;
    "buffer.handle.held-by-mmap", "common/memory_mgr.c:hl_mmap_mem_buf_put_handle" => handle_held_by_mmap;
    "buffer.handle.free-to-timestamps-after-munmap", "common/memory_mgr.c:hl_mmap_mem_buf_vm_close" => handle_free_after_munmap;
    "buffer.info.device-address", "common/command_buffer.c:hl_cb_info" => info_device_address;
    "buffer.create.lowest-address", "common/command_buffer.c:cb_map_mem" => create_lowest_address;
    "buffer.info.not-mapped-to-device", "common/command_buffer.c:hl_cb_info" => info_not_mapped;
    "buffer.info.usage-count", "common/command_buffer.c:hl_cb_info" => info_usage_count;
    "buffer.device-reads-what-was-written-late", "common/command_buffer.c:cb_map_mem" => written_late;
}

/// A command buffer of any kind, destroyed on drop.
struct Cb {
    io: SharedIo,
    handle: CbHandle,
}

impl Cb {
    fn new(io: &SharedIo, size: u32) -> gaudi_seam::Result<Self> {
        let request = CbCreate {
            size,
            map_to_device: false,
        };
        let handle = io.cb_create(request)?;
        Ok(Self {
            io: io.clone(),
            handle,
        })
    }

    fn mmap(&self, len: usize) -> gaudi_seam::Result<RawMapping> {
        let offset = self.handle.0;
        self.io.mmap(MmapRequest { offset, len })
    }
}

impl Drop for Cb {
    fn drop(&mut self) {
        // Fails if the case has already destroyed it.
        let _ = self.io.cb_destroy(self.handle);
    }
}

fn create_zero(bench: &mut Bench) -> Verdict {
    let cb = Cb::new(&bench.io()?, 0)?;
    equal(
        "bytes of a buffer of 0 bytes, as mmap takes them",
        cb.mmap(PAGE_LEN)?.len(),
        PAGE_LEN,
    )
}

fn create_rounds_up(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for (size, pages) in [(1, 1), (4096, 1), (4097, 2), (3 * 4096 - 1, 3)] {
        let cb = Cb::new(&io, size)?;
        let what = format!("bytes of a buffer of {size}, as mmap takes them");
        equal(&what, cb.mmap(pages * PAGE_LEN)?.len(), pages * PAGE_LEN)?;
    }
    Ok(())
}

fn create_largest(bench: &mut Bench) -> Verdict {
    let cb = Cb::new(&bench.io()?, HL_MAX_CB_SIZE)?;
    let memory = cb.mmap((HL_MAX_CB_SIZE as usize).next_multiple_of(PAGE_LEN))?;
    let bytes = pattern(64, 1);
    memory.write(memory.len() - 64, &bytes)?;
    let mut seen = [0; 64];
    memory.read(memory.len() - 64, &mut seen)?;
    same_bytes("the end of the largest buffer", &seen, &bytes)
}

fn create_too_large(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for size in [HL_MAX_CB_SIZE + 1, 2 << 20, u32::MAX] {
        invalid(&format!("a buffer of {size} bytes"), Cb::new(&io, size))?;
    }
    Ok(())
}

fn create_is_zeroed(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for round in 0..2 {
        let cb = Cb::new(&io, 8192)?;
        let memory = cb.mmap(8192)?;
        let mut seen = [0xff; 8192];
        memory.read(0, &mut seen)?;
        same_bytes(&format!("a fresh buffer, round {round}"), &seen, &[0; 8192])?;
        memory.fill(0, 8192, 0xa5)?;
    }
    Ok(())
}

fn handle_bits(bench: &mut Bench) -> Verdict {
    let cb = Cb::new(&bench.io()?, 1)?;
    equal(
        "the handle of the first buffer",
        cb.handle,
        CbHandle(0x2 << 59 | PAGE),
    )
}

fn handle_lowest(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let first = Cb::new(&io, 1)?;
    let handle = first.handle;
    let _second = Cb::new(&io, 1)?;
    drop(first);
    equal(
        "the handle after the first was destroyed",
        Cb::new(&io, 1)?.handle,
        handle,
    )
}

fn handle_unknown(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    for handle in [0, PAGE, 0x2 << 59, 0x2 << 59 | PAGE, u64::MAX] {
        let (cb, no) = (CbHandle(handle), Errno::EINVAL);
        refused(
            &format!("destroying {handle:#x}, which was not given"),
            io.cb_destroy(cb),
            no,
        )?;
        refused(&format!("asking about {handle:#x}"), io.cb_info(cb, false), no)?;
        let request = MmapRequest {
            offset: handle & 0x7fff_ffff_ffff_f000,
            len: PAGE_LEN,
        };
        refused("mapping a handle that was not given", io.mmap(request), no)?;
    }
    Ok(())
}

fn handle_type_bits(bench: &mut Bench) -> Verdict {
    // The driver looks a buffer up by bits 43..12 alone.
    let io = bench.io()?;
    let cb = Cb::new(&io, 1)?;
    let index = cb.handle.0 & 0xfff_ffff_f000;
    io.cb_info(CbHandle(index), false)?;
    Ok(io.cb_destroy(CbHandle(index | 0x123))?)
}

fn mmap_wrong_length(bench: &mut Bench) -> Verdict {
    let cb = Cb::new(&bench.io()?, 8192)?;
    for len in [PAGE_LEN, 3 * PAGE_LEN] {
        invalid(&format!("mapping {len} of 8192 bytes"), cb.mmap(len))?;
    }
    cb.mmap(8192)?;
    Ok(())
}

fn mmap_without_type(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let cb = Cb::new(&io, 1)?;
    let number = cb.handle.0 & 0xfff_ffff_f000;
    // mmap, unlike the operations, uses the type bits.
    for kind in [0, 0x1, 0x8] {
        let request = MmapRequest {
            offset: kind << 59 | number,
            len: PAGE_LEN,
        };
        invalid(&format!("mapping a buffer as kind {kind:#x}"), io.mmap(request))?;
    }
    Ok(())
}

fn mmap_twice(bench: &mut Bench) -> Verdict {
    let cb = Cb::new(&bench.io()?, 1)?;
    let _memory = cb.mmap(PAGE_LEN)?;
    invalid("mapping a buffer that is mapped", cb.mmap(PAGE_LEN))
}

fn mmap_after_munmap(bench: &mut Bench) -> Verdict {
    let cb = Cb::new(&bench.io()?, 1)?;
    let bytes = pattern(100, 3);
    cb.mmap(PAGE_LEN)?.write(0, &bytes)?;
    let mut seen = [0; 100];
    cb.mmap(PAGE_LEN)?.read(0, &mut seen)?;
    same_bytes("what an earlier mapping wrote", &seen, &bytes)
}

fn mmap_after_destroy(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let cb = Cb::new(&io, 1)?;
    io.cb_destroy(cb.handle)?;
    invalid("mapping a buffer that was destroyed", cb.mmap(PAGE_LEN))
}

fn destroy_twice(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let cb = Cb::new(&io, 1)?;
    io.cb_destroy(cb.handle)?;
    invalid("destroying again", io.cb_destroy(cb.handle))
}

fn destroy_while_mapped(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let cb = Cb::new(&io, 1)?;
    let memory = cb.mmap(PAGE_LEN)?;
    io.cb_destroy(cb.handle)?;
    let bytes = pattern(PAGE_LEN, 9);
    memory.write(0, &bytes)?;
    // Another buffer does not get the memory while it is mapped.
    let other = Cb::new(&io, 1)?;
    other.mmap(PAGE_LEN)?.fill(0, PAGE_LEN, 0xee)?;
    let mut seen = vec![0; PAGE_LEN];
    memory.read(0, &mut seen)?;
    same_bytes(
        "the memory of a buffer that was destroyed while mapped",
        &seen,
        &bytes,
    )
}

fn destroy_twice_while_mapped(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let cb = Cb::new(&io, 1)?;
    let _memory = cb.mmap(PAGE_LEN)?;
    io.cb_destroy(cb.handle)?;
    invalid("destroying again while it is mapped", io.cb_destroy(cb.handle))
}

fn info_after_destroy(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let cb = Cb::new(&io, 1)?;
    let memory = cb.mmap(PAGE_LEN)?;
    io.cb_destroy(cb.handle)?;
    // The mapping holds a reference to the buffer, so its number stays in use.
    equal(
        "uses of a destroyed buffer that is mapped",
        io.cb_info(cb.handle, false)?.usage_count,
        0,
    )?;
    drop(memory);
    invalid(
        "info after the mapping was removed, too",
        io.cb_info(cb.handle, false),
    )
}

fn handle_free_after_munmap(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    // Without a guard: its second destroy would hit the timestamps buffer, because the driver does
    // not check the kind.
    let handle = io.cb_create(CbCreate {
        size: 1,
        map_to_device: false,
    })?;
    let memory = io.mmap(MmapRequest {
        offset: handle.0,
        len: PAGE_LEN,
    })?;
    io.cb_destroy(handle)?;
    drop(memory);
    equal(
        "the number of a timestamps buffer created after the mapping was removed",
        io.ts_alloc(1)?.0 & 0xfff_ffff_f000,
        handle.0 & 0xfff_ffff_f000,
    )?;
    // No operation frees it; the close does.
    drop(io);
    bench.close();
    Ok(())
}

fn handle_held_by_mmap(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let cb = Cb::new(&io, 1)?;
    let memory = cb.mmap(PAGE_LEN)?;
    io.cb_destroy(cb.handle)?;
    let other = Cb::new(&io, 1)?;
    holds(
        "a handle is not given again while its memory is mapped",
        other.handle != cb.handle,
        other.handle,
    )?;
    drop((memory, other));
    let handle = cb.handle;
    drop(cb);
    equal(
        "the handle after the mapping was removed",
        Cb::new(&io, 1)?.handle,
        handle,
    )
}

fn create_lowest_address(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let create = |pages: u32| {
        io.cb_create(CbCreate {
            size: pages * PAGE as u32,
            map_to_device: true,
        })
    };
    let all = [create(2)?, create(1)?, create(1)?, create(1)?];
    let address = |handle| io.cb_info(handle, true).map(|info| info.device_va);
    let (low, high) = (address(all[0])?, address(all[2])?);
    holds("addresses grow from the start", low < high, (low, high))?;
    // A hole of the right size above a larger one.
    io.cb_destroy(all[0])?;
    io.cb_destroy(all[2])?;
    equal("the address of the next buffer", address(create(1)?)?, low)?;
    drop(io);
    bench.close();
    Ok(())
}

fn info_device_address(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let (a, b) = (
        Buffer::of_bytes(&io, &[0; 8])?,
        Buffer::of_bytes(&io, &[0; 5000])?,
    );
    for buffer in [&a, &b] {
        holds(
            "a buffer lies among host addresses, on a page",
            HOST_VA.contains(buffer.va, u64::from(buffer.len)) && buffer.va.0 % PAGE == 0,
            buffer.va,
        )?;
    }
    holds(
        "two buffers do not overlap",
        a.va.0 + PAGE <= b.va.0 || b.va.0 + 2 * PAGE <= a.va.0,
        (a.va, b.va),
    )
}

fn info_not_mapped(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let cb = Cb::new(&io, 1)?;
    invalid(
        "the device address of a buffer that the device does not see",
        io.cb_info(cb.handle, true),
    )
}

fn info_usage_count(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let buffer = Buffer::new(&io, Program::new().nop())?;
    let seq = buffer.submit(queue::PDMA_0_0)?;
    // Gaudi2's queues take addresses, so submissions do not count as users of the buffer.
    equal(
        "uses of a buffer that was submitted",
        io.cb_info(buffer.handle, false)?.usage_count,
        0,
    )?;
    finish(&*io, seq)
}

fn written_late(bench: &mut Bench) -> Verdict {
    use gaudi_spec::gaudi2::packet::MsgLong;
    let io = bench.io()?;
    let target = crate::rig::Host::new(&io, PAGE_LEN)?;
    let store = |value| Program::new().long(MsgLong::new(target.va, value)).bytes();
    let buffer = Buffer::of_bytes(&io, &store(1))?;
    for value in [1, 2, 3] {
        let memory = io.mmap(MmapRequest {
            offset: buffer.handle.0,
            len: PAGE_LEN,
        })?;
        memory.write(0, &store(value))?;
        finish(&*io, buffer.submit(queue::PDMA_0_0)?)?;
        let seen = target.bytes(0, 4)?;
        same_bytes(
            "what the program of the moment stored",
            &seen,
            &value.to_le_bytes(),
        )?;
    }
    Ok(())
}
