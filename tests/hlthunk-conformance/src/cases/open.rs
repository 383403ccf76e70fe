//! Open, close and discovery.

use std::ffi::{CStr, CString, c_char, c_int};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::net::UnixStream;
use std::ptr;

use gaudi_conformance::{Failure, Verdict, equal, holds};
use gaudi_sys::socket::{receive_with_fds, send_with_fds};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use crate::answer::{fails, minus_one, none, number, ok, refused, rejected};
use crate::bench::Bench;
use crate::card::{Card, borrow, own};
use crate::case::cases;
use crate::library::{Library, SYMBOLS};
use crate::types::{HwIpInfo, name};

cases! { "open":
    "by-name-opens-the-device", "hlthunk.h:hlthunk_open" => by_name;
    "by-any-name-opens-the-device", "hlthunk.h:hlthunk_open" => by_any_name;
    "by-other-name-finds-none", "hlthunk.h:hlthunk_open" => by_other_name;
    "by-bus-id-opens-the-device", "client:perftest/hl_memory.c:hl_memory_init" => by_bus_id;
    "by-short-bus-id-opens-the-device", "hlthunk.h:hlthunk_get_device_index_from_pci_bus_id" => by_short_bus_id;
    "by-unknown-bus-id-is-invalid", "hlthunk.h:hlthunk_open" => by_unknown_bus_id;
    "by-malformed-bus-id-is-invalid", "hlthunk.h:hlthunk_open" => by_malformed_bus_id;
    "bus-id-decides-over-name", "hlthunk.h:hlthunk_open" => bus_id_over_name;
    "by-module-id-opens-the-device", "client:ucx/gaudi_md.c:uct_gaudi_md_open" => by_module_id;
    "by-unknown-module-id-fails", "hlthunk.h:hlthunk_open_by_module_id" => by_unknown_module_id;
    "second-by-name-is-busy", "common/habanalabs_drv.c:hl_device_open" => second_by_name;
    "second-by-bus-id-is-busy", "common/habanalabs_drv.c:hl_device_open" => second_by_bus_id;
    "second-by-module-id-is-busy", "common/habanalabs_drv.c:hl_device_open" => second_by_module_id;
    "refused-second-leaves-first-usable", "common/habanalabs_drv.c:hl_device_open" => refused_second;
    "refused-second-leaves-no-descriptor", "hlthunk.h:hlthunk_open" => refused_leaves_none;
    "descriptor-is-closed-on-exec", "hlthunk.h:hlthunk_open" => close_on_exec;
    "descriptor-is-a-real-file", "client:ucx/gaudi_base.c:uct_gaudi_base_get_sysdev" => real_file;
    "duplicate-is-the-same-device", "client:hl-thunk/tests/debug.c:test_duplicate_file_descriptor" => duplicate_same;
    "duplicate-keeps-device-busy", "common/habanalabs_drv.c:hl_device_release" => duplicate_keeps;
    "duplicate-outlives-first", "common/habanalabs_drv.c:hl_device_release" => duplicate_outlives;
    "dup2-onto-number-is-the-device", "client:hl-thunk/tests/debug.c:test_duplicate_file_descriptor" => dup_onto_number;
    "descriptor-passed-by-socket-works", "client:ucx/gaudi_md.c:uct_gaudi_md_open" => passed_by_socket;
    "plain-close-releases-the-device", "hlthunk.h:hlthunk_close" => plain_close;
    "close-releases-the-device", "hlthunk.h:hlthunk_close" => close_releases;
    "close-twice-is-bad-descriptor", "hlthunk.h:hlthunk_close" => close_twice;
    "close-negative-is-bad-descriptor", "hlthunk.h:hlthunk_close" => close_negative;
    "close-of-foreign-descriptor-closes-it", "hlthunk.h:hlthunk_close" => close_foreign;
    "close-ends-every-call", "hlthunk.h:hlthunk_close" => close_ends_calls;
    "descriptor-number-is-reused-safely", "hlthunk.h:hlthunk_close" => number_reused;
    "session-starts-empty", "common/context.c:hl_ctx_fini" => session_starts_empty;
    "library-exports-every-symbol", "hlthunk.h:hlthunk_public" => every_symbol;
    "memory-outlives-nothing-at-exit", "hlthunk.h:hlthunk_close" => reopen_many;

    "control.by-number-opens", "hlthunk.h:hlthunk_open_control" => control_by_number;
    "control.by-bus-id-opens", "hlthunk.h:hlthunk_open_control" => control_by_bus_id;
    "control.by-name-opens", "hlthunk.h:hlthunk_open_control_by_name" => control_by_name;
    "control.by-other-name-finds-none", "hlthunk.h:hlthunk_open_control_by_name" => control_by_other_name;
    "control.by-name-prefers-bus-id", "hlthunk.h:hlthunk_open_control_by_name" => control_by_name_bus_id;
    "control.by-module-id-opens", "hlthunk.h:hlthunk_open_control_by_module_id" => control_by_module_id;
    "control.by-unknown-module-id-is-ebadf", "hlthunk.h:hlthunk_open_control_by_module_id" => control_unknown_module;
    "control.by-bus-id-alone-opens", "hlthunk.h:hlthunk_open_control_by_bus_id" => control_by_bus_id_alone;
    "control.by-short-bus-id-alone-opens", "hlthunk.h:hlthunk_open_control_by_bus_id" => control_by_short_bus_id;
    "control.by-unknown-bus-id-is-ebadf", "hlthunk.h:hlthunk_open_control_by_bus_id" => control_unknown_bus_id;
    "control.by-null-bus-id-is-invalid", "hlthunk.h:hlthunk_open_control_by_bus_id" => control_null_bus_id;
    "control.by-missing-number-is-enoent", "hlthunk.h:hlthunk_open_control" => control_missing_number;
    "control.by-negative-number-fails", "hlthunk.h:hlthunk_open_control" => control_negative_number;
    "control.opens-while-device-is-busy", "common/habanalabs_drv.c:hl_device_open_ctrl" => control_while_busy;
    "control.opens-many-times", "common/habanalabs_drv.c:hl_device_open_ctrl" => control_many;
    "control.closes-without-releasing-device", "common/habanalabs_drv.c:hl_device_release_ctrl" => control_closes;
    "control.refuses-memory", "common/habanalabs_ioctl.c:hl_ioctl_control" => control_refuses_memory;
    "control.refuses-buffers", "common/habanalabs_ioctl.c:hl_ioctl_control" => control_refuses_buffers;
    "control.refuses-submissions", "common/habanalabs_ioctl.c:hl_ioctl_control" => control_refuses_submissions;
    "control.refuses-waits", "common/habanalabs_ioctl.c:hl_ioctl_control" => control_refuses_waits;
    "control.refuses-debug", "common/habanalabs_ioctl.c:hl_ioctl_control" => control_refuses_debug;
    "control.refuses-notifier", "common/habanalabs_ioctl.c:hl_info_ioctl_control" => control_refuses_notifier;

    "discovery.count-of-any-is-one", "hlthunk.h:hlthunk_get_device_count" => count_any;
    "discovery.count-by-name", "hlthunk.h:hlthunk_get_device_count" => count_by_name;
    "discovery.count-of-other-is-zero", "hlthunk.h:hlthunk_get_device_count" => count_other;
    "discovery.count-of-invalid-is-einval", "hlthunk.h:hlthunk_get_device_count" => count_invalid;
    "discovery.count-past-last-name-is-einval", "hlthunk.h:hlthunk_get_device_count" => count_past_last;
    "discovery.count-while-busy", "client:ucx/gaudi_base.c:uct_gaudi_base_query_devices" => count_while_busy;
    "discovery.device-id", "hlthunk.h:hlthunk_get_device_id_from_fd" => device_id;
    "discovery.device-id-of-foreign-is-zero", "hlthunk.h:hlthunk_get_device_id_from_fd" => device_id_foreign;
    "discovery.device-name", "hlthunk.h:hlthunk_get_device_name_from_fd" => device_name;
    "discovery.device-name-of-foreign-is-invalid", "hlthunk.h:hlthunk_get_device_name_from_fd" => device_name_foreign;
    "discovery.bus-id-is-lower-case", "common/sysfs.c:pci_addr_show" => bus_id_form;
    "discovery.bus-id-of-control-is-the-same", "client:ucx/gaudi_base.c:uct_gaudi_base_get_sysdev" => bus_id_of_control;
    "discovery.bus-id-of-duplicate-is-the-same", "hlthunk.h:hlthunk_get_pci_bus_id_from_fd" => bus_id_of_duplicate;
    "discovery.bus-id-of-foreign-fails", "hlthunk.h:hlthunk_get_pci_bus_id_from_fd" => bus_id_foreign;
    "discovery.bus-id-into-null-is-invalid", "hlthunk.h:hlthunk_get_pci_bus_id_from_fd" => bus_id_null;
    "discovery.bus-id-into-short-room-overruns-nothing", "hlthunk.h:hlthunk_get_pci_bus_id_from_fd" => bus_id_short_room;
    "discovery.index-from-bus-id", "hlthunk.h:hlthunk_get_device_index_from_pci_bus_id" => index_from_bus_id;
    "discovery.index-from-short-bus-id", "hlthunk.h:hlthunk_get_device_index_from_pci_bus_id" => index_from_short;
    "discovery.index-from-unknown-bus-id-fails", "hlthunk.h:hlthunk_get_device_index_from_pci_bus_id" => index_unknown;
    "discovery.index-from-null-is-invalid", "hlthunk.h:hlthunk_get_device_index_from_pci_bus_id" => index_null;
    "discovery.index-opens-its-control-node", "hlthunk.h:hlthunk_open_control" => index_opens_control;
    "discovery.module-id-finds-itself", "hlthunk.h:hlthunk_open_by_module_id" => module_id_finds;
    "discovery.version-is-text-to-free", "hlthunk.h:hlthunk_get_version" => version;
    "discovery.malloc-is-zeroed", "hlthunk.h:hlthunk_malloc" => malloc_zeroed;
    "discovery.free-of-null-is-nothing", "hlthunk.h:hlthunk_free" => free_null;
}

/// A bus id that does not exist.
const NOWHERE: &CStr = c"ffff:ff:1f.7";

/// Returns the device's bus id, as the library reports it.
pub(crate) fn bus_id(card: Card) -> Result<CString, Failure> {
    let mut text = [0_u8; 13];
    let code = card
        .hl
        .get_pci_bus_id_from_fd(card.fd, text.as_mut_ptr().cast::<c_char>(), 13);
    ok("hlthunk_get_pci_bus_id_from_fd", code)?;
    let text = CStr::from_bytes_until_nul(&text);
    text.map(CStr::to_owned)
        .map_err(|_| Failure::new("the bus id", "a text with its end", "none"))
}

/// Returns the bus id without the domain, which is 0 for every device here.
fn short(full: &CStr) -> Result<CString, Failure> {
    let text = full.to_str().unwrap_or_default();
    match text.strip_prefix("0000:").map(CString::new) {
        Some(Ok(short)) => Ok(short),
        _ => Err(Failure::new("the bus id", "one of domain 0", format!("{full:?}"))),
    }
}

fn module_id(card: Card) -> Result<u32, Failure> {
    let mut info = HwIpInfo::default();
    ok(
        "hlthunk_get_hw_ip_info",
        card.hl.get_hw_ip_info(card.fd, Some(&mut info)),
    )?;
    Ok(info.module_id)
}

/// Returns a descriptor that is not a device's.
pub(crate) fn foreign() -> Result<std::os::fd::OwnedFd, Failure> {
    let file = std::fs::File::open("/dev/null");
    file.map(Into::into)
        .map_err(|error| Failure::new("opening /dev/null", "a descriptor", error.to_string()))
}

fn works(card: Card) -> Verdict {
    card.usage().map(drop)
}

fn by_name(bench: &mut Bench) -> Verdict {
    opened_by(bench, |hl| hl.open(name::GAUDI2, ptr::null()))
}

fn by_any_name(bench: &mut Bench) -> Verdict {
    works(bench.reopen()?)
}

fn by_other_name(bench: &mut Bench) -> Verdict {
    for other in [name::GOYA, name::GAUDI, name::INVALID] {
        let code = bench.hl.open(other, ptr::null());
        minus_one(&format!("opening by name {other}"), code, Errno::ENOENT)?;
    }
    Ok(())
}

fn opened_by(bench: &mut Bench, open: impl Fn(&Library) -> c_int) -> Verdict {
    works(bench.open_with(open)?)
}

fn by_bus_id(bench: &mut Bench) -> Verdict {
    let id = bus_id(bench.card()?)?;
    opened_by(bench, |hl| hl.open(name::DONT_CARE, id.as_ptr()))
}

fn by_short_bus_id(bench: &mut Bench) -> Verdict {
    let id = short(&bus_id(bench.card()?)?)?;
    equal("bytes of a bus id without a domain", id.as_bytes().len(), 7)?;
    opened_by(bench, |hl| hl.open(name::DONT_CARE, id.as_ptr()))
}

fn by_unknown_bus_id(bench: &mut Bench) -> Verdict {
    rejected(
        "opening an unknown bus id",
        bench.hl.open(name::DONT_CARE, NOWHERE.as_ptr()),
        Errno::EINVAL,
    )
}

fn by_malformed_bus_id(bench: &mut Bench) -> Verdict {
    for text in [
        c"",
        c"x",
        c"0000:",
        c"0000:00:00.00000000000000000000000000000",
        c"../../etc/passwd",
    ] {
        let code = bench.hl.open(name::DONT_CARE, text.as_ptr());
        rejected(&format!("opening {text:?}"), code, Errno::EINVAL)?;
    }
    Ok(())
}

fn bus_id_over_name(bench: &mut Bench) -> Verdict {
    let id = bus_id(bench.card()?)?;
    opened_by(bench, |hl| hl.open(name::GOYA, id.as_ptr()))
}

fn by_module_id(bench: &mut Bench) -> Verdict {
    let id = module_id(bench.card()?)?;
    opened_by(bench, |hl| hl.open_by_module_id(id))
}

fn by_unknown_module_id(bench: &mut Bench) -> Verdict {
    for id in [77, u32::MAX - 1] {
        equal(
            &format!("opening module {id}"),
            bench.hl.open_by_module_id(id),
            -1,
        )?;
    }
    Ok(())
}

fn second_by_name(bench: &mut Bench) -> Verdict {
    bench.card()?;
    for which in [name::DONT_CARE, name::GAUDI2] {
        minus_one(
            "a second open by name",
            bench.hl.open(which, ptr::null()),
            Errno::EBUSY,
        )?;
    }
    Ok(())
}

fn second_by_bus_id(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let id = bus_id(card)?;
    refused(
        "a second open by bus id",
        card.hl.open(name::DONT_CARE, id.as_ptr()),
        Errno::EBUSY,
    )
}

fn second_by_module_id(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let id = module_id(card)?;
    refused(
        "a second open by module id",
        card.hl.open_by_module_id(id),
        Errno::EBUSY,
    )
}

fn refused_second(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    fails("a second open", card.hl.open(name::DONT_CARE, ptr::null()))?;
    works(card)
}

fn refused_leaves_none(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let id = bus_id(card)?;
    let before = crate::bench::descriptors();
    for _ in 0..10 {
        fails(
            "a second open by name",
            card.hl.open(name::DONT_CARE, ptr::null()),
        )?;
        fails(
            "a second open by bus id",
            card.hl.open(name::DONT_CARE, id.as_ptr()),
        )?;
        fails("an open of another name", card.hl.open(name::GOYA, ptr::null()))?;
    }
    equal(
        "descriptors after refused opens",
        crate::bench::descriptors(),
        before,
    )
}

fn close_on_exec(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let control = bench.control()?;
    for fd in [card.fd, control.card.fd] {
        let flags = fcntl(borrow(fd), FcntlArg::F_GETFD)?;
        equal("the descriptor's flags", flags, FdFlag::FD_CLOEXEC.bits())?;
    }
    Ok(())
}

fn real_file(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let control = bench.control()?;
    for fd in [card.fd, control.card.fd] {
        let link = gaudi_sys::fd::link(borrow(fd))?;
        holds(
            "the descriptor is listed in /proc",
            !link.as_os_str().is_empty(),
            link,
        )?;
    }
    Ok(())
}

fn duplicate(card: Card) -> Result<(std::os::fd::OwnedFd, Card), Failure> {
    let twin = gaudi_sys::fd::duplicate(borrow(card.fd))?;
    let fd = twin.as_raw_fd();
    Ok((twin, Card { hl: card.hl, fd }))
}

fn duplicate_same(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let (_twin, other) = duplicate(card)?;
    let memory = crate::card::Memory::new(card, 1)?;
    equal(
        "memory usage through the duplicate",
        other.usage()?,
        card.usage()?,
    )?;
    let va = other.hl.device_memory_map(other.fd, memory.handle, 0);
    let va = crate::answer::handle("mapping through the duplicate", va)?;
    ok(
        "unmapping through the original",
        card.hl.memory_unmap(card.fd, va),
    )
}

fn duplicate_keeps(bench: &mut Bench) -> Verdict {
    let card = bench.take()?;
    let (twin, other) = duplicate(card)?;
    ok("hlthunk_close", card.hl.close(card.fd))?;
    let busy = minus_one(
        "an open while a duplicate is open",
        card.hl.open(name::DONT_CARE, ptr::null()),
        Errno::EBUSY,
    );
    let alive = works(other);
    drop(twin);
    busy.and(alive)?;
    works(bench.card()?)
}

fn duplicate_outlives(bench: &mut Bench) -> Verdict {
    let card = bench.take()?;
    let memory = card.hl.device_memory_alloc(card.fd, 1, 0, false, false);
    let (twin, other) = duplicate(card)?;
    ok("hlthunk_close", card.hl.close(card.fd))?;
    let freed = ok(
        "freeing through the duplicate",
        other.hl.device_memory_free(other.fd, memory),
    );
    drop(twin);
    freed
}

fn dup_onto_number(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    // Use a number that the program chooses, like a shell or a launcher.
    let number = 200;
    let moved = fcntl(borrow(card.fd), FcntlArg::F_DUPFD_CLOEXEC(number))?;
    let moved = own("fcntl", moved)?;
    works(Card {
        hl: card.hl,
        fd: moved.as_raw_fd(),
    })
}

fn passed_by_socket(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let pair = UnixStream::pair();
    let (ours, theirs) = pair.map_err(|error| Failure::new("a pair of sockets", "one", error.to_string()))?;
    send_with_fds(&ours, b"x", &[borrow(card.fd).as_fd()])?;
    let (_, received) = receive_with_fds(&theirs, &mut [0])?;
    let Some(received) = received.into_iter().next() else {
        return Err(Failure::new("the passed descriptor", "one", "none"));
    };
    works(Card {
        hl: card.hl,
        fd: received.as_raw_fd(),
    })
}

fn plain_close(bench: &mut Bench) -> Verdict {
    let card = bench.take()?;
    drop(own("the descriptor", card.fd)?);
    works(bench.card()?)
}

fn close_releases(bench: &mut Bench) -> Verdict {
    let card = bench.take()?;
    ok("hlthunk_close", card.hl.close(card.fd))?;
    works(bench.card()?)
}

fn close_twice(bench: &mut Bench) -> Verdict {
    let card = bench.take()?;
    ok("hlthunk_close", card.hl.close(card.fd))?;
    minus_one("closing again", card.hl.close(card.fd), Errno::EBADF)
}

fn close_negative(bench: &mut Bench) -> Verdict {
    for fd in [-1, c_int::MIN, c_int::MAX] {
        minus_one(&format!("closing {fd}"), bench.hl.close(fd), Errno::EBADF)?;
    }
    Ok(())
}

fn close_foreign(bench: &mut Bench) -> Verdict {
    use std::os::fd::IntoRawFd as _;
    let fd = foreign()?.into_raw_fd();
    ok("closing another file", bench.hl.close(fd))?;
    minus_one("closing it again", bench.hl.close(fd), Errno::EBADF)
}

fn close_ends_calls(bench: &mut Bench) -> Verdict {
    let card = bench.take()?;
    ok("hlthunk_close", card.hl.close(card.fd))?;
    let alloc = card.hl.device_memory_alloc(card.fd, 1, 0, false, false);
    none("an allocation after the close", alloc, Errno::EBADF)?;
    refused(
        "a free after the close",
        card.hl.device_memory_free(card.fd, 1),
        Errno::EBADF,
    )
}

fn number_reused(bench: &mut Bench) -> Verdict {
    let card = bench.take()?;
    ok("hlthunk_close", card.hl.close(card.fd))?;
    // The kernel reuses the lowest number, likely the device's. The library must not mistake the
    // file for the device.
    let file = foreign()?;
    let code = card
        .hl
        .get_dram_usage(file.as_raw_fd(), Some(&mut Default::default()));
    refused(
        "a query on a file with the device's old number",
        code,
        Errno::ENOTTY,
    )
}

fn session_starts_empty(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    // The close frees it.
    let memory = card.hl.device_memory_alloc(card.fd, 1, 0, false, false);
    let va = card.hl.device_memory_map(card.fd, memory, 0);
    holds("memory is mapped", va != 0, va)?;
    let mut cb = 0;
    ok(
        "a buffer",
        card.hl
            .request_mapped_command_buffer(card.fd, 4096, Some(&mut cb)),
    )?;
    let card = bench.reopen()?;
    equal("memory of the next user", card.usage()?.ctx_dram_mem, 0)?;
    refused(
        "unmapping the last user's memory",
        card.hl.memory_unmap(card.fd, va),
        Errno::EINVAL,
    )?;
    refused(
        "destroying the last user's buffer",
        card.hl.destroy_command_buffer(card.fd, cb),
        Errno::EINVAL,
    )
}

fn every_symbol(bench: &mut Bench) -> Verdict {
    // Loading the library resolved all of them.
    bench.card()?;
    equal("functions of both releases", SYMBOLS.len(), 143)
}

fn reopen_many(bench: &mut Bench) -> Verdict {
    let times = if bench.is_mock() { 100 } else { 2 };
    for _ in 0..times {
        let card = bench.reopen()?;
        // The close frees it, each time.
        card.hl.device_memory_alloc(card.fd, 1, 0, false, false);
        let mut cb = 0;
        ok(
            "a buffer",
            card.hl.request_command_buffer(card.fd, 4096, Some(&mut cb)),
        )?;
    }
    equal(
        "memory of the last user",
        bench.reopen()?.usage()?.ctx_dram_mem,
        0,
    )
}

fn control_by_number(bench: &mut Bench) -> Verdict {
    let control = bench.control()?;
    equal(
        "the device's status",
        bench.hl.get_device_status_info(control.card.fd),
        0,
    )
}

/// Opens a control node with `open`, and checks that it belongs to this device.
fn control_opened(bench: &mut Bench, open: impl FnOnce(&Library) -> c_int) -> Verdict {
    let card = bench.card()?;
    let id = bus_id(card)?;
    let fd = own("opening a control node", open(card.hl))?;
    let control = Card {
        hl: card.hl,
        fd: fd.as_raw_fd(),
    };
    equal("the control node's bus id", bus_id(control)?, id)
}

fn control_by_bus_id(bench: &mut Bench) -> Verdict {
    let id = bus_id(bench.card()?)?;
    // The index is ignored.
    control_opened(bench, |hl| hl.open_control(99, id.as_ptr()))
}

fn control_by_name(bench: &mut Bench) -> Verdict {
    for which in [name::DONT_CARE, name::GAUDI2] {
        control_opened(bench, |hl| hl.open_control_by_name(which, ptr::null()))?;
    }
    Ok(())
}

fn control_by_other_name(bench: &mut Bench) -> Verdict {
    let code = bench.hl.open_control_by_name(name::GOYA, ptr::null());
    minus_one("a control node of another chip", code, Errno::ENOENT)
}

fn control_by_name_bus_id(bench: &mut Bench) -> Verdict {
    let id = bus_id(bench.card()?)?;
    control_opened(bench, |hl| hl.open_control_by_name(name::GOYA, id.as_ptr()))
}

fn control_by_module_id(bench: &mut Bench) -> Verdict {
    let id = module_id(bench.card()?)?;
    control_opened(bench, |hl| hl.open_control_by_module_id(id))
}

fn control_unknown_module(bench: &mut Bench) -> Verdict {
    rejected(
        "a control node of module 77",
        bench.hl.open_control_by_module_id(77),
        Errno::EBADF,
    )
}

fn control_by_bus_id_alone(bench: &mut Bench) -> Verdict {
    let id = bus_id(bench.card()?)?;
    control_opened(bench, |hl| hl.open_control_by_bus_id(id.as_ptr()))
}

fn control_by_short_bus_id(bench: &mut Bench) -> Verdict {
    let id = short(&bus_id(bench.card()?)?)?;
    control_opened(bench, |hl| hl.open_control_by_bus_id(id.as_ptr()))
}

fn control_unknown_bus_id(bench: &mut Bench) -> Verdict {
    for text in [NOWHERE, c"", c"0000:00:00.0000000000000000000000000"] {
        let code = bench.hl.open_control_by_bus_id(text.as_ptr());
        rejected(&format!("a control node at {text:?}"), code, Errno::EBADF)?;
    }
    Ok(())
}

fn control_null_bus_id(bench: &mut Bench) -> Verdict {
    rejected(
        "a control node with a NULL bus id",
        bench.hl.open_control_by_bus_id(ptr::null()),
        Errno::EINVAL,
    )
}

fn control_missing_number(bench: &mut Bench) -> Verdict {
    for number in [77, 255, 256, c_int::MAX] {
        let code = bench.hl.open_control(number, ptr::null());
        rejected(&format!("control node {number}"), code, Errno::ENOENT)?;
    }
    Ok(())
}

fn control_negative_number(bench: &mut Bench) -> Verdict {
    for number in [-1, c_int::MIN] {
        fails(
            &format!("control node {number}"),
            bench.hl.open_control(number, ptr::null()),
        )?;
    }
    Ok(())
}

fn control_while_busy(bench: &mut Bench) -> Verdict {
    bench.card()?;
    bench.control().map(drop)
}

fn control_many(bench: &mut Bench) -> Verdict {
    let controls: Result<Vec<_>, _> = (0..20).map(|_| bench.control()).collect();
    for control in controls? {
        equal(
            "the device's status",
            bench.hl.get_device_status_info(control.card.fd),
            0,
        )?;
    }
    Ok(())
}

fn control_closes(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    drop(bench.control()?);
    minus_one(
        "a second open",
        card.hl.open(name::DONT_CARE, ptr::null()),
        Errno::EBUSY,
    )?;
    works(card)
}

const NOT_HERE: Errno = Errno::ENOTTY;

fn control_refuses_memory(bench: &mut Bench) -> Verdict {
    let control = bench.control()?;
    let (hl, fd) = (bench.hl, control.card.fd);
    none(
        "an allocation",
        hl.device_memory_alloc(fd, 1, 0, false, false),
        NOT_HERE,
    )?;
    none("a mapping", hl.device_memory_map(fd, 1, 0), NOT_HERE)?;
    refused("a free", hl.device_memory_free(fd, 1), NOT_HERE)?;
    refused("an unmap", hl.memory_unmap(fd, 1), NOT_HERE)?;
    let (mut size, mut handle) = (0, 0);
    refused(
        "a block",
        hl.get_hw_block(fd, 0, Some(&mut size), Some(&mut handle)),
        NOT_HERE,
    )?;
    refused(
        "timestamps",
        hl.allocate_timestamp_elements(fd, 1, Some(&mut handle)),
        NOT_HERE,
    )
}

fn control_refuses_buffers(bench: &mut Bench) -> Verdict {
    let control = bench.control()?;
    let (hl, fd) = (bench.hl, control.card.fd);
    let mut handle = 0;
    refused(
        "a buffer",
        hl.request_command_buffer(fd, 1, Some(&mut handle)),
        NOT_HERE,
    )?;
    refused(
        "a mapped buffer",
        hl.request_mapped_command_buffer(fd, 1, Some(&mut handle)),
        NOT_HERE,
    )?;
    refused("a destroy", hl.destroy_command_buffer(fd, 4096), NOT_HERE)
}

fn control_refuses_submissions(bench: &mut Bench) -> Verdict {
    let control = bench.control()?;
    let (code, _) = control.card.try_submit(&[], gaudi_uapi::cs::CsFlags::NONE);
    refused("a submission", code, NOT_HERE)?;
    refused(
        "a flush",
        bench.hl.cs_flush_pci_hbw_writes(control.card.fd),
        NOT_HERE,
    )
}

fn control_refuses_waits(bench: &mut Bench) -> Verdict {
    let control = bench.control()?;
    let mut status = 0;
    refused(
        "a wait",
        bench.hl.wait_for_cs(control.card.fd, 1, 0, Some(&mut status)),
        NOT_HERE,
    )
}

fn control_refuses_debug(bench: &mut Bench) -> Verdict {
    let control = bench.control()?;
    let mut args = super::debug::set_mode(true);
    refused(
        "debug mode",
        bench.hl.debug(control.card.fd, Some(&mut args)),
        NOT_HERE,
    )
}

fn control_refuses_notifier(bench: &mut Bench) -> Verdict {
    let control = bench.control()?;
    let code = bench.hl.notifier_create(control.card.fd);
    refused("a notifier on a control node", code, Errno::EOPNOTSUPP)
}

fn count_any(bench: &mut Bench) -> Verdict {
    equal(
        "devices of any name",
        bench.hl.get_device_count(name::DONT_CARE),
        1,
    )
}

fn count_by_name(bench: &mut Bench) -> Verdict {
    let own = bench.hl.get_device_name_from_fd(bench.card()?.fd);
    equal("devices of this name", bench.hl.get_device_count(own), 1)
}

fn count_other(bench: &mut Bench) -> Verdict {
    for other in [name::GOYA, name::GAUDI] {
        equal(
            &format!("devices of name {other}"),
            bench.hl.get_device_count(other),
            0,
        )?;
    }
    Ok(())
}

fn count_invalid(bench: &mut Bench) -> Verdict {
    rejected(
        "devices of an invalid name",
        bench.hl.get_device_count(name::INVALID),
        Errno::EINVAL,
    )
}

fn count_past_last(bench: &mut Bench) -> Verdict {
    for which in [name::MAX, name::MAX + 1, u32::MAX] {
        let code = bench.hl.get_device_count(which);
        rejected(&format!("devices of name {which}"), code, Errno::EINVAL)?;
    }
    Ok(())
}

fn count_while_busy(bench: &mut Bench) -> Verdict {
    bench.close()?;
    let free = bench.hl.get_device_count(name::DONT_CARE);
    bench.card()?;
    equal(
        "the device count while a device is open",
        (free, bench.hl.get_device_count(name::DONT_CARE)),
        (1, 1),
    )
}

fn device_id(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let control = bench.control()?;
    for fd in [card.fd, control.card.fd] {
        equal("the PCI device id", card.hl.get_device_id_from_fd(fd), 0x1020)?;
    }
    Ok(())
}

fn device_id_foreign(bench: &mut Bench) -> Verdict {
    let file = foreign()?;
    for fd in [file.as_raw_fd(), -1, c_int::MAX] {
        equal(
            "the PCI device id of another file",
            bench.hl.get_device_id_from_fd(fd),
            0,
        )?;
    }
    Ok(())
}

fn device_name(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let control = bench.control()?;
    for fd in [card.fd, control.card.fd] {
        // As in 2023; the Gaudi3 release has names for later revisions.
        equal(
            "the device's name",
            card.hl.get_device_name_from_fd(fd),
            name::GAUDI2,
        )?;
    }
    Ok(())
}

fn device_name_foreign(bench: &mut Bench) -> Verdict {
    let file = foreign()?;
    for fd in [file.as_raw_fd(), -1, c_int::MAX] {
        equal(
            "the name of another file",
            bench.hl.get_device_name_from_fd(fd),
            name::INVALID,
        )?;
    }
    Ok(())
}

fn bus_id_form(bench: &mut Bench) -> Verdict {
    let id = bus_id(bench.card()?)?;
    let bytes = id.as_bytes();
    let is_digit = |at: usize| bytes[at].is_ascii_digit() || (b'a'..=b'f').contains(&bytes[at]);
    let has_form = bytes.len() == 12
        && [4, 7].iter().all(|&at| bytes[at] == b':')
        && bytes[10] == b'.'
        && [0, 1, 2, 3, 5, 6, 8, 9, 11].into_iter().all(is_digit);
    holds("the bus id is dddd:bb:dd.f in lower case", has_form, &id)
}

fn bus_id_of_control(bench: &mut Bench) -> Verdict {
    let (card, control) = (bench.card()?, bench.control()?);
    equal("the control node's bus id", bus_id(control.card)?, bus_id(card)?)
}

fn bus_id_of_duplicate(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let (_twin, other) = duplicate(card)?;
    equal("a duplicate's bus id", bus_id(other)?, bus_id(card)?)
}

fn bus_id_foreign(bench: &mut Bench) -> Verdict {
    let file = foreign()?;
    let mut text = [0_u8; 16];
    for fd in [file.as_raw_fd(), -1, c_int::MAX] {
        let code = bench.hl.get_pci_bus_id_from_fd(fd, text.as_mut_ptr().cast(), 16);
        fails(&format!("the bus id of descriptor {fd}"), code)?;
    }
    equal("the buffer after a failed call", text, [0; 16])
}

fn bus_id_null(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let code = card.hl.get_pci_bus_id_from_fd(card.fd, ptr::null_mut(), 13);
    rejected("a bus id with a NULL buffer", code, Errno::EINVAL)
}

fn bus_id_short_room(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for len in [0, 1, 5, 12] {
        let mut text = [0x55_u8; 32];
        // The caller is responsible for the length, but bytes past it must not change.
        card.hl
            .get_pci_bus_id_from_fd(card.fd, text.as_mut_ptr().cast(), len);
        let behind = &text[len as usize..];
        holds(
            &format!("bytes past a buffer of {len}"),
            behind.iter().all(|&byte| byte == 0x55),
            behind,
        )?;
    }
    let mut text = [0x55_u8; 32];
    let code = card
        .hl
        .get_pci_bus_id_from_fd(card.fd, text.as_mut_ptr().cast(), -1);
    fails("a buffer of -1 bytes", code)?;
    holds("the buffer is unchanged", text == [0x55; 32], text)
}

fn index_from_bus_id(bench: &mut Bench) -> Verdict {
    let id = bus_id(bench.card()?)?;
    number(
        "the index",
        bench.hl.get_device_index_from_pci_bus_id(id.as_ptr()),
    )
    .map(drop)
}

fn index_from_short(bench: &mut Bench) -> Verdict {
    let id = bus_id(bench.card()?)?;
    let short = short(&id)?;
    let index = |id: &CStr| bench.hl.get_device_index_from_pci_bus_id(id.as_ptr());
    equal("the index for both forms", index(&short), index(&id))
}

fn index_unknown(bench: &mut Bench) -> Verdict {
    for text in [
        NOWHERE,
        c"",
        c"ff:1f.7",
        c"a text that is longer than any bus id of a device",
    ] {
        let code = bench.hl.get_device_index_from_pci_bus_id(text.as_ptr());
        fails(&format!("the index of {text:?}"), code)?;
    }
    Ok(())
}

fn index_null(bench: &mut Bench) -> Verdict {
    rejected(
        "the index of NULL",
        bench.hl.get_device_index_from_pci_bus_id(ptr::null()),
        Errno::EINVAL,
    )
}

fn index_opens_control(bench: &mut Bench) -> Verdict {
    let id = bus_id(bench.card()?)?;
    let index = bench.hl.get_device_index_from_pci_bus_id(id.as_ptr());
    control_opened(bench, |hl| hl.open_control(index, ptr::null()))
}

fn module_id_finds(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let id = module_id(card)?;
    equal(
        "the module id from the seam",
        card.query::<gaudi_uapi::info::HlInfoHwIpInfo>()?.module_id,
        id,
    )?;
    control_opened(bench, |hl| hl.open_control_by_module_id(id))
}

fn version(bench: &mut Bench) -> Verdict {
    let (one, other) = (bench.hl.get_version(), bench.hl.get_version());
    holds(
        "each call returns a new string",
        !one.is_null() && one != other,
        (one, other),
    )?;
    let text = crate::card::text_at(one);
    bench.hl.free(one.cast());
    bench.hl.free(other.cast());
    let mut numbers = text.split(['.', '-']);
    let are_numbers = (0..3).all(|_| numbers.next().is_some_and(|part| part.parse::<u32>().is_ok()));
    holds(
        "the version is major.minor.patch-sha",
        are_numbers && numbers.next().is_some(),
        text,
    )
}

fn malloc_zeroed(bench: &mut Bench) -> Verdict {
    for size in [1_usize, 100, 1 << 20] {
        let memory = bench.hl.malloc(size);
        holds("the allocation succeeds", !memory.is_null(), size)?;
        let bytes = crate::card::bytes_at(memory, size);
        bench.hl.free(memory);
        holds("memory is zeroed", bytes.iter().all(|&byte| byte == 0), size)?;
    }
    Ok(())
}

fn free_null(bench: &mut Bench) -> Verdict {
    bench.hl.free(ptr::null_mut());
    Ok(())
}
