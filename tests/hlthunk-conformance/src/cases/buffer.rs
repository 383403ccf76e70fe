//! Command buffers.

use gaudi_conformance::{Program, Verdict, equal, holds, pattern, same_bytes};
use gaudi_spec::gaudi2::HOST_VA;
use gaudi_spec::gaudi2::packet::MsgLong;
use gaudi_uapi::limits::HL_MAX_CB_SIZE;
use nix::errno::Errno;

use crate::answer::{fails, ok, refused, rejected};
use crate::bench::Bench;
use crate::card::{Buffer, Card, Cb, Host, PAGE, Q};
use crate::case::cases;

cases! { "buffer":
    "one-byte-is-a-page", "client:hl-thunk/tests/command_buffer.c:test_cb_unaligned_size" => one_byte;
    "page", "client:hl-thunk/tests/command_buffer.c:test_cb_mmap" => one_page;
    "zero-bytes-is-a-page", "common/command_buffer.c:hl_cb_mmap_mem_alloc" => zero_bytes;
    "rounds-up-to-pages", "common/memory_mgr.c:hl_mem_mgr_mmap" => rounds_up;
    "largest", "common/command_buffer.c:hl_cb_ioctl" => largest;
    "too-large-is-invalid", "common/command_buffer.c:hl_cb_ioctl" => too_large;
    "is-zeroed", "common/command_buffer.c:hl_cb_alloc" => is_zeroed;
    "mapped-is-zeroed", "common/command_buffer.c:hl_cb_alloc" => mapped_is_zeroed;
    "handles-are-page-offsets", "client:synapse/driver_device.cpp:mapCommandBuffer" => handles;
    "null-handle-is-invalid", "hlthunk.h:hlthunk_request_command_buffer" => null_handle;
    "mmap-keeps-bytes-over-munmap", "common/memory_mgr.c:hl_mmap_mem_buf_vm_close" => keeps_bytes;
    "mmap-wrong-length-is-invalid", "common/memory_mgr.c:hl_mem_mgr_mmap" => wrong_length;
    "mmap-twice-is-invalid", "common/memory_mgr.c:hl_mem_mgr_mmap" => mmap_twice;
    "mmap-unknown-handle-is-invalid", "common/memory_mgr.c:hl_mem_mgr_mmap" => mmap_unknown;
    "mmap-after-destroy-is-invalid", "common/memory_mgr.c:hl_mem_mgr_mmap" => mmap_after_destroy;
    "destroy-twice-is-invalid", "common/command_buffer.c:hl_cb_destroy" => destroy_twice;
    "destroy-unknown-is-invalid", "common/memory_mgr.c:hl_mmap_mem_buf_get" => destroy_unknown;
    "destroy-while-mapped-keeps-memory", "client:hl-thunk/tests/command_buffer.c:test_cb_skip_unmap" => destroy_while_mapped;
    "destroy-twice-while-mapped-is-invalid", "common/command_buffer.c:hl_cb_destroy" => destroy_twice_mapped;
    "mapped-memory-is-not-given-to-others", "common/memory_mgr.c:hl_mmap_mem_buf_put_handle" => held_by_mmap;
    "without-munmap-and-destroy-is-cleaned", "client:hl-thunk/tests/command_buffer.c:test_cb_skip_unmap_and_destroy" => left_behind;
    "device-address-of-mapped", "common/command_buffer.c:hl_cb_info" => device_address;
    "device-addresses-do-not-overlap", "common/command_buffer.c:cb_map_mem" => addresses_differ;
    "device-address-of-plain-is-invalid", "common/command_buffer.c:hl_cb_info" => address_of_plain;
    "device-address-of-unknown-is-invalid", "common/memory_mgr.c:hl_mmap_mem_buf_get" => address_unknown;
    "device-address-into-null-fails", "hlthunk.h:hlthunk_get_mapped_cb_device_va_by_handle" => address_null;
    "usage-count-is-zero", "common/command_buffer.c:hl_cb_info" => usage;
    "usage-count-of-unknown-is-invalid", "common/memory_mgr.c:hl_mmap_mem_buf_get" => usage_unknown;
    "usage-count-into-null-is-invalid", "hlthunk.h:hlthunk_get_cb_usage_count" => usage_null;
    "device-reads-late-writes", "common/command_buffer.c:cb_map_mem" => late_writes;
    "many-at-once", "client:synapse/driver_device.cpp:createCommandBuffer" => many;
    "created-and-destroyed-many-times", "common/memory_mgr.c:hl_mmap_mem_buf_alloc" => many_times;
    "foreign-descriptor-is-enotty", "hlthunk.h:hlthunk_request_command_buffer" => on_foreign;
    "closed-descriptor-is-ebadf", "hlthunk.h:hlthunk_request_command_buffer" => on_closed;
}

/// A handle that does not exist.
const UNKNOWN: u64 = 0x2 << 59 | 0x7ff << 12;

fn round_trip(card: Card, size: u32, len: usize) -> Verdict {
    let cb = Cb::new(card, size)?;
    let view = cb.view(len)?;
    let bytes = pattern(64, 1);
    view.write(len - 64, &bytes)?;
    let mut seen = [0; 64];
    view.read(len - 64, &mut seen)?;
    same_bytes(&format!("the end of a buffer of {size} bytes"), &seen, &bytes)
}

fn one_byte(bench: &mut Bench) -> Verdict {
    round_trip(bench.card()?, 1, PAGE)
}

fn one_page(bench: &mut Bench) -> Verdict {
    round_trip(bench.card()?, 4096, PAGE)
}

fn zero_bytes(bench: &mut Bench) -> Verdict {
    round_trip(bench.card()?, 0, PAGE)
}

fn rounds_up(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    round_trip(card, 4097, 2 * PAGE)?;
    round_trip(card, 3 * 4096 - 1, 3 * PAGE)
}

fn largest(bench: &mut Bench) -> Verdict {
    round_trip(
        bench.card()?,
        HL_MAX_CB_SIZE,
        (HL_MAX_CB_SIZE as usize).next_multiple_of(PAGE),
    )
}

fn too_large(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for size in [HL_MAX_CB_SIZE + 1, 2 << 20, u32::MAX] {
        let mut handle = 7;
        let code = card.hl.request_command_buffer(card.fd, size, Some(&mut handle));
        refused(&format!("a buffer of {size} bytes"), code, Errno::EINVAL)?;
        let code = card
            .hl
            .request_mapped_command_buffer(card.fd, size, Some(&mut handle));
        refused(&format!("a mapped buffer of {size} bytes"), code, Errno::EINVAL)?;
        equal("the handle after a failure", handle, 7)?;
    }
    Ok(())
}

fn is_zeroed(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for round in 0..3 {
        let cb = Cb::new(card, 8192)?;
        let view = cb.view(2 * PAGE)?;
        let mut seen = [0xff; 2 * PAGE];
        view.read(0, &mut seen)?;
        same_bytes(&format!("a new buffer, round {round}"), &seen, &[0; 2 * PAGE])?;
        view.fill(0, 2 * PAGE, 0xa5)?;
    }
    Ok(())
}

fn mapped_is_zeroed(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for round in 0..3 {
        let cb = Cb::mapped(card, 4096)?;
        let view = cb.view(PAGE)?;
        let mut seen = [0xff; PAGE];
        view.read(0, &mut seen)?;
        same_bytes(&format!("a new buffer, round {round}"), &seen, &[0; PAGE])?;
        view.fill(0, PAGE, 0xa5)?;
    }
    Ok(())
}

fn handles(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let (a, b) = (Cb::new(card, 1)?, Cb::new(card, 1)?);
    holds(
        "two buffers have different handles",
        a.handle != b.handle,
        (a.handle, b.handle),
    )?;
    // mmap(2) takes the handle as a page-aligned offset (off_t).
    let are_offsets = [&a, &b]
        .iter()
        .all(|cb| cb.handle % 4096 == 0 && cb.handle >> 63 == 0);
    holds(
        "handles are offsets of mmap(2)",
        are_offsets,
        (a.handle, b.handle),
    )
}

fn null_handle(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    rejected(
        "a buffer with a NULL handle pointer",
        card.hl.request_command_buffer(card.fd, 1, None),
        Errno::EINVAL,
    )?;
    rejected(
        "a mapped buffer with a NULL handle pointer",
        card.hl.request_mapped_command_buffer(card.fd, 1, None),
        Errno::EINVAL,
    )
}

fn keeps_bytes(bench: &mut Bench) -> Verdict {
    let cb = Cb::new(bench.card()?, 4096)?;
    let bytes = pattern(100, 3);
    cb.view(PAGE)?.write(0, &bytes)?;
    let mut seen = [0; 100];
    cb.view(PAGE)?.read(0, &mut seen)?;
    same_bytes("bytes written through an earlier mapping", &seen, &bytes)
}

fn no_mmap(what: &str, mapped: gaudi_sys::SysResult<gaudi_sys::RawMapping>) -> Verdict {
    equal(what, mapped.map(drop), Err(Errno::EINVAL))
}

fn wrong_length(bench: &mut Bench) -> Verdict {
    let cb = Cb::new(bench.card()?, 8192)?;
    for len in [PAGE, 3 * PAGE] {
        no_mmap(&format!("mapping {len} of 8192 bytes"), cb.view(len))?;
    }
    cb.view(2 * PAGE)?;
    Ok(())
}

fn mmap_twice(bench: &mut Bench) -> Verdict {
    let cb = Cb::new(bench.card()?, 1)?;
    let _view = cb.view(PAGE)?;
    no_mmap("mapping a mapped buffer", cb.view(PAGE))
}

fn mmap_unknown(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for handle in [0, PAGE as u64, UNKNOWN] {
        no_mmap(&format!("mapping handle {handle:#x}"), card.mmap(handle, PAGE))?;
    }
    Ok(())
}

fn mmap_after_destroy(bench: &mut Bench) -> Verdict {
    let mut cb = Cb::new(bench.card()?, 1)?;
    ok("the destroy", cb.destroy())?;
    no_mmap("mapping a destroyed buffer", cb.view(PAGE))
}

fn destroy_twice(bench: &mut Bench) -> Verdict {
    let mut cb = Cb::new(bench.card()?, 1)?;
    ok("the destroy", cb.destroy())?;
    refused("the second destroy", cb.destroy(), Errno::EINVAL)
}

fn destroy_unknown(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for handle in [0, 4096, UNKNOWN, u64::MAX] {
        let code = card.hl.destroy_command_buffer(card.fd, handle);
        refused(&format!("destroying {handle:#x}"), code, Errno::EINVAL)?;
    }
    Ok(())
}

fn destroy_while_mapped(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let mut cb = Cb::new(card, 1)?;
    let view = cb.view(PAGE)?;
    ok("the destroy", cb.destroy())?;
    let bytes = pattern(PAGE, 9);
    view.write(0, &bytes)?;
    let other = Cb::new(card, 1)?;
    other.view(PAGE)?.fill(0, PAGE, 0xee)?;
    let mut seen = vec![0; PAGE];
    view.read(0, &mut seen)?;
    same_bytes("memory of a buffer destroyed while mapped", &seen, &bytes)
}

fn destroy_twice_mapped(bench: &mut Bench) -> Verdict {
    let mut cb = Cb::new(bench.card()?, 1)?;
    let _view = cb.view(PAGE)?;
    ok("the destroy", cb.destroy())?;
    refused("the second destroy", cb.destroy(), Errno::EINVAL)
}

fn held_by_mmap(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let mut views = Vec::new();
    for nth in 0..50_u8 {
        let mut cb = Cb::new(card, 4096)?;
        let view = cb.view(PAGE)?;
        ok("the destroy", cb.destroy())?;
        view.fill(0, PAGE, nth)?;
        views.push(view);
    }
    for (nth, view) in views.iter().enumerate() {
        let mut seen = [0; PAGE];
        view.read(0, &mut seen)?;
        same_bytes(
            &format!("mapping {nth} of destroyed buffers"),
            &seen,
            &[nth as u8; PAGE],
        )?;
    }
    Ok(())
}

fn left_behind(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let cb = Cb::new(card, 4096)?;
    let view = cb.view(PAGE)?;
    view.fill(0, PAGE, 1)?;
    // The close destroys the buffer; the mapping keeps the session open, like the driver's file.
    std::mem::forget(cb);
    drop(view);
    bench.reopen()?.usage().map(drop)
}

fn device_address(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for size in [1, 4096, 5000, HL_MAX_CB_SIZE] {
        let va = Cb::mapped(card, size)?.va()?;
        let is_there = HOST_VA.contains(va, u64::from(size)) && va.0 % 4096 == 0;
        holds("the device address is a page in the host range", is_there, va)?;
    }
    Ok(())
}

fn addresses_differ(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let (a, b) = (Cb::mapped(card, 8192)?, Cb::mapped(card, 8192)?);
    let (a, b) = (a.va()?.0, b.va()?.0);
    holds(
        "two buffers do not overlap",
        a + 8192 <= b || b + 8192 <= a,
        (a, b),
    )
}

fn address_of(card: Card, handle: u64) -> (i32, u64) {
    let mut va = 7;
    (
        card.hl
            .get_mapped_cb_device_va_by_handle(card.fd, handle, Some(&mut va)),
        va,
    )
}

fn address_of_plain(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let cb = Cb::new(card, 1)?;
    let (code, va) = address_of(card, cb.handle);
    refused("the device address of a plain buffer", code, Errno::EINVAL)?;
    equal("the address after a failure", va, 7)
}

fn address_unknown(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for handle in [0, UNKNOWN, u64::MAX] {
        refused(
            &format!("the address of {handle:#x}"),
            address_of(card, handle).0,
            Errno::EINVAL,
        )?;
    }
    Ok(())
}

fn address_null(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let cb = Cb::mapped(card, 1)?;
    fails(
        "an address with a NULL pointer",
        card.hl
            .get_mapped_cb_device_va_by_handle(card.fd, cb.handle, None),
    )
}

fn usage(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let buffer = Buffer::new(card, Program::new().nop())?;
    let seq = buffer.submit(Q)?;
    let mut count = u32::MAX;
    ok(
        "the usage count",
        card.hl
            .get_cb_usage_count(card.fd, buffer.cb.handle, Some(&mut count)),
    )?;
    // Gaudi2's queues take addresses, so a submission does not use the buffer.
    equal("the usage count", count, 0)?;
    card.finish(seq)
}

fn usage_unknown(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let mut count = 7;
    refused(
        "the usage count",
        card.hl.get_cb_usage_count(card.fd, UNKNOWN, Some(&mut count)),
        Errno::EINVAL,
    )?;
    equal("the count after a failure", count, 7)
}

fn usage_null(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let cb = Cb::new(card, 1)?;
    rejected(
        "a usage count with a NULL pointer",
        card.hl.get_cb_usage_count(card.fd, cb.handle, None),
        Errno::EINVAL,
    )
}

fn late_writes(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let target = Host::new(card, PAGE)?;
    let store = |value| Program::new().long(MsgLong::new(target.va, value));
    let buffer = Buffer::new(card, store(1))?;
    for value in [1, 2, 3] {
        buffer.view.write(0, &store(value).bytes())?;
        card.finish(buffer.submit(Q)?)?;
        same_bytes(
            "the word that the rewritten program stored",
            &target.bytes(0, 4)?,
            &u32::to_le_bytes(value),
        )?;
    }
    Ok(())
}

fn many(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let all: Result<Vec<_>, _> = (0..200).map(|_| Cb::mapped(card, 4096)).collect();
    for (nth, cb) in all?.iter().enumerate() {
        let view = cb.view(PAGE)?;
        let mut first = [0xff];
        view.read(0, &mut first)?;
        equal(&format!("buffer {nth} has its own contents"), first, [0])?;
        view.fill(0, PAGE, 1)?;
    }
    Ok(())
}

fn many_times(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for _ in 0..1000 {
        let cb = Cb::new(card, 16 << 10)?;
        cb.view(4 * PAGE)?.fill(0, PAGE, 1)?;
    }
    Ok(())
}

fn all(card: Card, errno: Errno) -> Verdict {
    let (hl, fd) = (card.hl, card.fd);
    let (mut handle, mut count) = (0, 0);
    refused(
        "create",
        hl.request_command_buffer(fd, 1, Some(&mut handle)),
        errno,
    )?;
    refused(
        "create mapped",
        hl.request_mapped_command_buffer(fd, 1, Some(&mut handle)),
        errno,
    )?;
    refused("destroy", hl.destroy_command_buffer(fd, UNKNOWN), errno)?;
    refused(
        "address",
        hl.get_mapped_cb_device_va_by_handle(fd, UNKNOWN, Some(&mut handle)),
        errno,
    )?;
    refused(
        "count",
        hl.get_cb_usage_count(fd, UNKNOWN, Some(&mut count)),
        errno,
    )
}

fn on_foreign(bench: &mut Bench) -> Verdict {
    use std::os::fd::AsRawFd as _;
    let file = super::open::foreign()?;
    all(
        Card {
            hl: bench.hl,
            fd: file.as_raw_fd(),
        },
        Errno::ENOTTY,
    )
}

fn on_closed(bench: &mut Bench) -> Verdict {
    all(Card { hl: bench.hl, fd: -1 }, Errno::EBADF)
}
