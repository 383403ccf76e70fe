//! Command buffers: `HL_IOCTL_CB` and their mmap.

use gaudi_seam::{CbCreate, CbHandle, Errno, MmapRequest, RawMapping, SharedIo};
use gaudi_spec::gaudi2::{HOST_VA, queue};
use gaudi_sys::PAGE;
use gaudi_uapi::limits::HL_MAX_CB_SIZE;

use crate::bench::Bench;
use crate::case::{Case, Verdict, equal, holds, refused, same_bytes};
use crate::rig::{Buffer, PAGE_LEN, Program, finish, pattern};

pub(crate) static CASES: &[Case] = &[
    Case::gaudi2(
        "buffer.create.zero-bytes",
        "common/command_buffer.c:191",
        create_zero,
    ),
    Case::gaudi2(
        "buffer.create.rounds-up",
        "common/memory_mgr.c:254",
        create_rounds_up,
    ),
    Case::gaudi2(
        "buffer.create.largest",
        "common/command_buffer.c:383",
        create_largest,
    ),
    Case::gaudi2(
        "buffer.create.too-large",
        "common/command_buffer.c:383",
        create_too_large,
    ),
    Case::gaudi2(
        "buffer.create.is-zeroed",
        "common/command_buffer.c:143",
        create_is_zeroed,
    ),
    Case::gaudi2("buffer.handle.bits", "common/memory_mgr.c:171", handle_bits),
    Case::gaudi2(
        "buffer.handle.lowest-free",
        "common/memory_mgr.c:160",
        handle_lowest,
    ),
    Case::gaudi2("buffer.handle.unknown", "common/memory_mgr.c:26", handle_unknown),
    Case::gaudi2(
        "buffer.handle.type-bits-are-ignored",
        "common/memory_mgr.c:25",
        handle_type_bits,
    ),
    Case::gaudi2(
        "buffer.mmap.wrong-length",
        "common/memory_mgr.c:254",
        mmap_wrong_length,
    ),
    Case::gaudi2(
        "buffer.mmap.without-type-bits",
        "common/device.c:671",
        mmap_without_type,
    ),
    Case::gaudi2("buffer.mmap.twice", "common/memory_mgr.c:271", mmap_twice),
    Case::gaudi2(
        "buffer.mmap.after-munmap",
        "common/memory_mgr.c:212",
        mmap_after_munmap,
    ),
    Case::gaudi2(
        "buffer.mmap.after-destroy",
        "common/memory_mgr.c:249",
        mmap_after_destroy,
    ),
    Case::gaudi2(
        "buffer.destroy.twice",
        "common/command_buffer.c:312",
        destroy_twice,
    ),
    Case::gaudi2(
        "buffer.destroy.while-mmapped",
        "common/command_buffer.c:328",
        destroy_while_mapped,
    ),
    Case::gaudi2(
        "buffer.destroy.twice-while-mmapped",
        "common/command_buffer.c:318",
        destroy_twice_while_mapped,
    ),
    Case::gaudi2(
        "buffer.info.after-destroy-while-mmapped",
        "common/command_buffer.c:340",
        info_after_destroy,
    ),
    Case::gaudi2(
        "buffer.handle.held-by-mmap",
        "common/memory_mgr.c:126",
        handle_held_by_mmap,
    ),
    Case::gaudi2(
        "buffer.handle.free-to-timestamps-after-munmap",
        "common/memory_mgr.c:212",
        handle_free_after_munmap,
    ),
    Case::gaudi2(
        "buffer.info.device-address",
        "common/command_buffer.c:349",
        info_device_address,
    ),
    Case::gaudi2(
        "buffer.create.lowest-address",
        "common/command_buffer.c:35",
        create_lowest_address,
    ),
    Case::gaudi2(
        "buffer.info.not-mapped-to-device",
        "common/command_buffer.c:352",
        info_not_mapped,
    ),
    Case::gaudi2(
        "buffer.info.usage-count",
        "common/command_buffer.c:356",
        info_usage_count,
    ),
    Case::gaudi2(
        "buffer.device-reads-what-was-written-late",
        "common/command_buffer.c:43",
        written_late,
    ),
];

/// A command buffer of any kind, destroyed when it goes.
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
        // Refused where the case destroyed it already.
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
        refused(
            &format!("a buffer of {size} bytes"),
            Cb::new(&io, size),
            Errno::EINVAL,
        )?;
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
    // The driver looks at bits 43..12 alone when it searches.
    let io = bench.io()?;
    let cb = Cb::new(&io, 1)?;
    let index = cb.handle.0 & 0xfff_ffff_f000;
    io.cb_info(CbHandle(index), false)?;
    Ok(io.cb_destroy(CbHandle(index | 0x123))?)
}

fn mmap_wrong_length(bench: &mut Bench) -> Verdict {
    let cb = Cb::new(&bench.io()?, 8192)?;
    for len in [PAGE_LEN, 3 * PAGE_LEN] {
        refused(
            &format!("mapping {len} of 8192 bytes"),
            cb.mmap(len),
            Errno::EINVAL,
        )?;
    }
    cb.mmap(8192)?;
    Ok(())
}

fn mmap_without_type(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let cb = Cb::new(&io, 1)?;
    let number = cb.handle.0 & 0xfff_ffff_f000;
    // mmap, unlike the operations, goes by the bits that say what is mapped.
    for kind in [0, 0x1, 0x8] {
        let request = MmapRequest {
            offset: kind << 59 | number,
            len: PAGE_LEN,
        };
        refused(
            &format!("mapping a buffer as kind {kind:#x}"),
            io.mmap(request),
            Errno::EINVAL,
        )?;
    }
    Ok(())
}

fn mmap_twice(bench: &mut Bench) -> Verdict {
    let cb = Cb::new(&bench.io()?, 1)?;
    let _memory = cb.mmap(PAGE_LEN)?;
    refused(
        "mapping a buffer that is mapped",
        cb.mmap(PAGE_LEN),
        Errno::EINVAL,
    )
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
    refused(
        "mapping a buffer that was destroyed",
        cb.mmap(PAGE_LEN),
        Errno::EINVAL,
    )
}

fn destroy_twice(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let cb = Cb::new(&io, 1)?;
    io.cb_destroy(cb.handle)?;
    refused("destroying again", io.cb_destroy(cb.handle), Errno::EINVAL)
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
    refused(
        "destroying again while it is mapped",
        io.cb_destroy(cb.handle),
        Errno::EINVAL,
    )
}

fn info_after_destroy(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let cb = Cb::new(&io, 1)?;
    let memory = cb.mmap(PAGE_LEN)?;
    io.cb_destroy(cb.handle)?;
    // The mapping keeps the buffer, and with it the number under which it is found.
    equal(
        "uses of a destroyed buffer that is mapped",
        io.cb_info(cb.handle, false)?.usage_count,
        0,
    )?;
    drop(memory);
    refused(
        "asking when the mapping is gone too",
        io.cb_info(cb.handle, false),
        Errno::EINVAL,
    )
}

fn handle_free_after_munmap(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    // Without a guard: its second destroy would reach for the timestamps buffer, and the driver takes one kind for the other.
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
        "the number of a timestamps buffer made when the mapping was gone",
        io.ts_alloc(1)?.0 & 0xfff_ffff_f000,
        handle.0 & 0xfff_ffff_f000,
    )?;
    // No operation frees it: the close does.
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
        "the handle once the mapping is gone",
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
    // A hole that fits, above one that is larger.
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
    refused(
        "the device address of a buffer that the device does not see",
        io.cb_info(cb.handle, true),
        Errno::EINVAL,
    )
}

fn info_usage_count(bench: &mut Bench) -> Verdict {
    let io = bench.io()?;
    let buffer = Buffer::new(&io, Program::new().nop())?;
    let seq = buffer.submit(queue::PDMA_0_0)?;
    // Gaudi2's queues take addresses, so no submission counts as a user of the buffer.
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
