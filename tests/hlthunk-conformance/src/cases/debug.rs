//! Debug mode, the profiler's hooks, debugfs and deprecated functions.

use std::ptr;

use gaudi_conformance::{Verdict, equal};
use gaudi_uapi::debug::{DebugOp, HlDebugArgs};
use nix::errno::Errno;

use crate::answer::{fails, ok, refused, rejected};
use crate::bench::Bench;
use crate::card::Card;
use crate::case::cases;
use crate::types::Debugfs;

cases! { "debug":
    "mode-on-and-off", "common/device.c:hl_device_set_debug_mode" => mode;
    "mode-twice-is-a-fault", "common/device.c:hl_device_set_debug_mode" => twice;
    "mode-off-when-off-is-a-fault", "common/device.c:hl_device_set_debug_mode" => off;
    "mode-ends-with-its-user", "common/context.c:hl_ctx_fini" => ends;
    "component-outside-mode-is-a-fault", "common/habanalabs_ioctl.c:hl_debug_ioctl" => outside;
    "component-in-mode", "gaudi2/gaudi2_coresight.c:gaudi2_debug_coresight" => component;
    "unknown-operation-is-invalid", "common/habanalabs_ioctl.c:hl_debug_ioctl" => unknown;
    "unmapped-input-is-a-fault", "common/habanalabs_ioctl.c:debug_coresight" => fault;
    "null-fails", "hlthunk.h:hlthunk_debug" => null;
    "foreign-descriptor-is-enotty", "hlthunk.h:hlthunk_debug" => on_foreign;
    "profiler-is-not-there", "hlthunk.h:hlthunk_profiler_start" => profiler;
    "profiler-destroy-leaves-library-usable", "hlthunk.h:hlthunk_profiler_destroy" => profiler_destroy;
    "debugfs-of-foreign-fails", "hlthunk.h:hlthunk_debugfs_open" => debugfs_foreign;
    "debugfs-refused-leaves-no-descriptor", "hlthunk.h:hlthunk_debugfs_open" => debugfs_refused;
    "debugfs-null-fails", "hlthunk.h:hlthunk_debugfs_read" => debugfs_null;
    "debugfs-of-closed-fails", "hlthunk.h:hlthunk_debugfs_read" => debugfs_closed;
    "debugfs-close-of-nothing", "hlthunk.h:hlthunk_debugfs_close" => debugfs_close_nothing;
    "deprecated-1-is-eperm", "hlthunk.h:hlthunk_deprecated_func1" => deprecated_1;
    "deprecated-2-is-eperm", "hlthunk.h:hlthunk_deprecated_func2" => deprecated_2;
    "deprecated-3-is-eperm", "hlthunk.h:hlthunk_deprecated_func3" => deprecated_3;
}

/// Returns the argument that switches debug mode.
pub(crate) fn set_mode(on: bool) -> HlDebugArgs {
    HlDebugArgs {
        op: DebugOp::SET_MODE,
        enable: u32::from(on),
        ..HlDebugArgs::default()
    }
}

fn switch(card: Card, on: bool) -> i32 {
    card.hl.debug(card.fd, Some(&mut set_mode(on)))
}

fn mode(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for _ in 0..2 {
        ok("entering debug mode", switch(card, true))?;
        ok("leaving debug mode", switch(card, false))?;
    }
    Ok(())
}

fn twice(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    ok("entering debug mode", switch(card, true))?;
    let verdict = refused("entering debug mode twice", switch(card, true), Errno::EFAULT);
    ok("leaving debug mode", switch(card, false))?;
    verdict
}

fn off(bench: &mut Bench) -> Verdict {
    refused(
        "leaving debug mode when it is off",
        switch(bench.card()?, false),
        Errno::EFAULT,
    )
}

fn ends(bench: &mut Bench) -> Verdict {
    ok("entering debug mode", switch(bench.card()?, true))?;
    let card = bench.reopen()?;
    ok("entering debug mode as the next user", switch(card, true))?;
    ok("leaving debug mode", switch(card, false))
}

fn run(card: Card, op: DebugOp, input: u64, len: u32) -> i32 {
    let mut args = HlDebugArgs {
        op,
        enable: 1,
        input_ptr: input,
        input_size: len,
        ..HlDebugArgs::default()
    };
    card.hl.debug(card.fd, Some(&mut args))
}

fn outside(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for op in [DebugOp::STM, DebugOp::FUNNEL, DebugOp::TIMESTAMP] {
        refused(
            &format!("{op} outside debug mode"),
            run(card, op, 0, 0),
            Errno::EFAULT,
        )?;
    }
    Ok(())
}

fn component(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    ok("entering debug mode", switch(card, true))?;
    let code = run(card, DebugOp::TIMESTAMP, 0, 0);
    let verdict = ok("the timestamp generator", code);
    ok("leaving debug mode", switch(card, false))?;
    verdict
}

fn unknown(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for op in [8, u32::MAX] {
        refused(
            &format!("operation {op}"),
            run(card, DebugOp(op), 0, 0),
            Errno::EINVAL,
        )?;
    }
    Ok(())
}

fn fault(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    ok("entering debug mode", switch(card, true))?;
    let code = run(card, DebugOp::STM, 16, 24);
    let verdict = refused("input at an unmapped address", code, Errno::EFAULT);
    ok("leaving debug mode", switch(card, false))?;
    verdict
}

fn null(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    fails("a NULL request", card.hl.debug(card.fd, None))
}

fn on_foreign(bench: &mut Bench) -> Verdict {
    use std::os::fd::AsRawFd as _;
    let file = super::open::foreign()?;
    let card = Card {
        hl: bench.hl,
        fd: file.as_raw_fd(),
    };
    refused("debug mode on /dev/null", switch(card, true), Errno::ENOTTY)
}

fn profiler(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let (hl, fd, mut size, mut entries) = (card.hl, card.fd, 0, 0);
    equal("hlthunk_profiler_start", hl.profiler_start(fd), -1)?;
    equal("hlthunk_profiler_stop", hl.profiler_stop(fd), -1)?;
    let code = hl.profiler_get_trace(fd, ptr::null_mut(), Some(&mut size), Some(&mut entries));
    equal("hlthunk_profiler_get_trace", code, -1)
}

fn profiler_destroy(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    for _ in 0..3 {
        card.hl.profiler_destroy();
        card.usage()?;
    }
    Ok(())
}

fn debugfs_foreign(bench: &mut Bench) -> Verdict {
    use std::os::fd::AsRawFd as _;
    let file = super::open::foreign()?;
    let mut debugfs = Debugfs::default();
    for fd in [file.as_raw_fd(), -1] {
        let code = bench.hl.debugfs_open(fd, Some(&mut debugfs));
        rejected("debugfs of another file", code, Errno::ENODEV)?;
    }
    Ok(())
}

fn debugfs_refused(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let before = crate::bench::descriptors();
    let mut debugfs = Debugfs {
        addr_fd: -1,
        data_fd: -1,
        clk_gate_fd: -1,
        ..Debugfs::default()
    };
    let code = card.hl.debugfs_open(card.fd, Some(&mut debugfs));
    if code == 0 {
        // Root may open debugfs of a real card.
        ok("hlthunk_debugfs_close", card.hl.debugfs_close(Some(&mut debugfs)))?;
    }
    equal("descriptors afterwards", crate::bench::descriptors(), before)
}

fn debugfs_null(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let (hl, mut value) = (card.hl, 0);
    fails("opening with a NULL struct", hl.debugfs_open(card.fd, None))?;
    fails(
        "reading with a NULL struct",
        hl.debugfs_read(None, 0, Some(&mut value)),
    )?;
    fails("writing with a NULL struct", hl.debugfs_write(None, 0, 0))?;
    fails("closing NULL", hl.debugfs_close(None))
}

const NOTHING: Debugfs = Debugfs {
    addr_fd: -1,
    data_fd: -1,
    clk_gate_fd: -1,
    clk_gate_val: [0; 32],
};

fn debugfs_closed(bench: &mut Bench) -> Verdict {
    let (mut debugfs, mut value) = (NOTHING, 7);
    let code = bench.hl.debugfs_read(Some(&mut debugfs), 0, Some(&mut value));
    rejected("reading with closed files", code, Errno::EBADF)?;
    let code = bench.hl.debugfs_write(Some(&mut debugfs), 0, 0);
    rejected("writing with closed files", code, Errno::EBADF)?;
    equal("the value after a failure", value, 7)
}

fn debugfs_close_nothing(bench: &mut Bench) -> Verdict {
    let mut debugfs = NOTHING;
    ok("closing closed files", bench.hl.debugfs_close(Some(&mut debugfs)))
}

fn deprecated_1(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let (hl, fd, mut status, mut time) = (card.hl, card.fd, 7, 8);
    rejected(
        "func1",
        hl.deprecated_func1(fd, 1, 0, Some(&mut status), Some(&mut time)),
        Errno::EPERM,
    )?;
    rejected(
        "func1 with NULL",
        hl.deprecated_func1(-1, 1, 0, None, None),
        Errno::EPERM,
    )?;
    equal("the output parameters", (status, time), (7, 8))
}

fn deprecated_2(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    rejected(
        "func2",
        card.hl.deprecated_func2(card.fd, 1, 2, 3, 4, 5, 6),
        Errno::EPERM,
    )
}

fn deprecated_3(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let mut handle = 7;
    rejected(
        "func3",
        card.hl.deprecated_func3(card.fd, 1, Some(&mut handle)),
        Errno::EPERM,
    )?;
    rejected(
        "func3 with NULL",
        card.hl.deprecated_func3(-1, 1, None),
        Errno::EPERM,
    )?;
    equal("the output parameter", handle, 7)
}
