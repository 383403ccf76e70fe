//! Threads, fork children and killed processes.

#![expect(unsafe_code, reason = "fork children call the library and _exit(2)")]

use std::ffi::c_int;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::ptr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use gaudi_conformance::{Failure, Program, Verdict, equal, holds, same_bytes};
use gaudi_spec::gaudi2::packet::MsgLong;
use gaudi_spec::gaudi2::queue;
use nix::errno::Errno;
use nix::libc;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use crate::answer::{fails, minus_one, ok};
use crate::bench::{Backend, Bench};
use crate::card::{
    BUSY, Buffer, COMPLETED, Card, Cb, DRAM_PAGE, Dram, Gate, Host, LONG, Memory, OTHER, PAGE, Q,
};
use crate::case::cases;
use crate::cases::info::stats;
use crate::child::{CALLS, FLAG, WAIT_FOR_RESET};
use crate::types::name;

cases! { "process":
    "threads-submit-and-wait", "client:hl-thunk/tests/dma.c:test_dma_512_threads" => threads_submit;
    "threads-allocate-and-map", "common/memory.c:hl_mem_ioctl" => threads_allocate;
    "threads-create-and-map-buffers", "common/memory_mgr.c:hl_mmap_mem_buf_alloc" => threads_buffers;
    "threads-ask", "common/habanalabs_ioctl.c:hl_info_ioctl" => threads_ask;
    "one-of-many-threads-opens", "common/habanalabs_drv.c:hl_device_open" => threads_open;
    "waiters-wake-in-every-thread", "common/command_submission.c:hl_wait_for_fence" => threads_wait;
    "signals-end-no-wait-early", "common/command_submission.c:hl_wait_for_fence" => signals_in_wait;
    "signals-extend-no-timeout", "hlthunk.h:hlthunk_wait_for_cs" => signals_and_timeout;
    "many-opens-and-closes", "client:ucx/gaudi_md.c:uct_gaudi_md_close" => many_opens;
    "fork-child-is-refused-with-enodev", "hlthunk.h:hlthunk_open" => fork_refused;
    "fork-child-uses-inherited-device", "common/habanalabs_drv.c:hl_device_open" => fork_inherits;
    "fork-leaves-parent-working", "common/context.c:hl_ctx_do_release" => fork_parent;
    "fork-while-memory-is-mapped", "common/memory.c:get_user_memory" => fork_mapped;
    "fork-child-that-ends-releases-nothing", "common/habanalabs_drv.c:hl_device_release" => fork_ends;
    "opened-by-exec-child-is-busy", "common/habanalabs_drv.c:hl_device_open" => exec_child;
    "kill-inside-calls-leaves-nothing", "common/habanalabs_drv.c:hl_device_release" => killed;
    "kill-inside-every-call-leaves-nothing", "common/habanalabs_drv.c:hl_device_release" => killed_everywhere;
    "reset-kills-its-user", "common/device.c:device_kill_open_processes" => reset_kills;
}

/// Runs `work` in threads that start at the same time.
fn together(threads: usize, work: impl Fn(usize) -> Verdict + Sync) -> Verdict {
    let barrier = Barrier::new(threads);
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|nth| {
                let (barrier, work) = (&barrier, &work);
                scope.spawn(move || {
                    barrier.wait();
                    work(nth)
                })
            })
            .collect();
        let mut verdict = Ok(());
        for thread in running {
            let ended = thread.join();
            let ended = ended.unwrap_or_else(|_| Err(Failure::new("a thread", "an end", "a panic")));
            verdict = verdict.and(ended);
        }
        verdict
    })
}

/// Returns the number of threads for a backend: guests have two processors and may lack KVM.
fn threads(bench: &Bench) -> usize {
    match bench.backend {
        Backend::Mock => 512,
        Backend::Driver => 64,
    }
}

fn threads_submit(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let target = Host::new(card, PAGE)?;
    let buffers: Result<Vec<_>, _> = (0..threads(bench))
        .map(|nth| {
            let word = gaudi_conformance::offset(target.va, 4 * nth as u64);
            Buffer::new(card, Program::new().long(MsgLong::new(word, nth as u32 + 1)))
        })
        .collect();
    let buffers = buffers?;
    let queues = [Q, queue::PDMA_0_1, OTHER];
    together(buffers.len(), |nth| {
        let seq = buffers[nth].submit(queues[nth % queues.len()])?;
        card.finish(seq)
    })?;
    let expected: Vec<u8> = (1..=buffers.len() as u32).flat_map(u32::to_le_bytes).collect();
    same_bytes(
        "the word of each thread",
        &target.bytes(0, expected.len())?,
        &expected,
    )
}

fn threads_allocate(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let pages = card.usage()?.dram_free_mem / DRAM_PAGE;
    together(16, |_| {
        for _ in 0..pages / 16 {
            let dram = Dram::new(card, 1)?;
            drop(Host::new(card, PAGE)?);
            drop(dram);
        }
        Ok(())
    })
}

fn threads_buffers(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    together(16, |nth| {
        for _ in 0..20 {
            let cb = Cb::new(card, 4096)?;
            let view = cb.view(PAGE)?;
            view.fill(0, PAGE, nth as u8)?;
            std::thread::yield_now();
            let mut seen = [0xff; PAGE];
            view.read(0, &mut seen)?;
            same_bytes("the thread's own buffer", &seen, &[nth as u8; PAGE])?;
        }
        Ok(())
    })
}

fn threads_ask(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let memory = Memory::new(card, 1)?;
    together(32, |_| {
        for _ in 0..20 {
            equal("memory of the user", card.usage()?.ctx_dram_mem, DRAM_PAGE)?;
        }
        Ok(())
    })?;
    drop(memory);
    Ok(())
}

fn threads_open(bench: &mut Bench) -> Verdict {
    let hl = bench.card()?.hl;
    bench.close()?;
    let winner = std::sync::Mutex::new(Vec::new());
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(60) {
        together(16, |_| {
            let fd = hl.open(name::DONT_CARE, ptr::null());
            let errno = Errno::last();
            if fd >= 0 {
                winner
                    .lock()
                    .map_err(|_| Failure::new("a lock", "taken", "poisoned"))?
                    .push(fd);
                return Ok(());
            }
            let is_busy = [Errno::EBUSY, Errno::EAGAIN].contains(&errno);
            holds(
                "a rejected open fails with EBUSY",
                fd == -1 && is_busy,
                (fd, errno),
            )
        })?;
        let opened = winner.lock().map_or(0, |opened| opened.len());
        if opened > 0 || bench.is_mock() {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let opened = winner.into_inner().unwrap_or_default();
    if let [fd] = opened[..] {
        bench.adopt(fd);
        return Ok(());
    }
    for &fd in &opened {
        ok("hlthunk_close", hl.close(fd))?;
    }
    equal("threads that opened the device", opened.len(), 1)
}

fn threads_wait(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let gate = Gate::shut(card)?;
    let seq = gate.seq();
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..16)
            .map(|_| scope.spawn(move || card.wait(seq, LONG)))
            .collect();
        equal("a poll during the waits", card.wait(seq, 0)?, BUSY)?;
        gate.open()?;
        for waiter in waiters {
            let status = waiter
                .join()
                .map_err(|_| Failure::new("a waiter", "an end", "a panic"))?;
            equal("a waiter's status", status?, COMPLETED)?;
        }
        Ok(())
    })
}

static SIGNALS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_signal(_: c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

/// Waits for `seq` in a thread that receives a signal every 2 ms for at most 3 s, and calls
/// `meanwhile` after 20 signals. The handler is installed without SA_RESTART. Returns the wait's
/// status.
fn wait_under_signals(
    card: Card,
    seq: u64,
    timeout_us: u64,
    meanwhile: impl FnOnce() -> Verdict,
) -> Result<u32, Failure> {
    SIGNALS.store(0, Ordering::Relaxed);
    // SAFETY: zero is a valid sigaction: no flags, so no SA_RESTART, and an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = count_signal as extern "C" fn(c_int) as usize;
    let mut before = action;
    // SAFETY: the handler only increments an atomic counter.
    Errno::result(unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, &raw mut before) })?;
    let (sender, receiver) = std::sync::mpsc::channel();
    let status = std::thread::scope(|scope| {
        let waiter = scope.spawn(move || {
            // SAFETY: no arguments.
            let sent = sender.send(unsafe { libc::pthread_self() });
            sent.expect("the receiver is in use until the thread ends");
            card.wait(seq, timeout_us)
        });
        let thread = receiver.recv().expect("the waiter sends first");
        let (begin, mut meanwhile) = (Instant::now(), Some(meanwhile));
        while !waiter.is_finished() {
            std::thread::sleep(Duration::from_millis(2));
            if begin.elapsed() < Duration::from_secs(3) {
                // SAFETY: the thread is not joined yet, so its id is valid even if it has exited.
                unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
            }
            if SIGNALS.load(Ordering::Relaxed) >= 20 {
                meanwhile.take().map_or(Ok(()), |act| act())?;
            }
        }
        let ended = waiter.join();
        ended.unwrap_or_else(|_| Err(Failure::new("a waiter", "an end", "a panic")))
    });
    // SAFETY: restores the previous action.
    Errno::result(unsafe { libc::sigaction(libc::SIGUSR1, &raw const before, ptr::null_mut()) })?;
    status
}

fn signals_in_wait(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let gate = Gate::shut(card)?;
    let seq = gate.seq();
    let status = wait_under_signals(card, seq, LONG, || gate.open())?;
    equal("the wait's status", status, COMPLETED)?;
    let signals = SIGNALS.load(Ordering::Relaxed);
    holds("the wait survives 20 signals", signals >= 20, signals)
}

/// If the library reused the full timeout, each signal would restart it.
fn signals_and_timeout(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let gate = Gate::shut(card)?;
    let begin = Instant::now();
    let status = wait_under_signals(card, gate.seq(), 50_000, || Ok(()))?;
    let took = begin.elapsed();
    equal("the wait's status", status, BUSY)?;
    let is_right = (Duration::from_millis(50)..Duration::from_millis(2500)).contains(&took);
    holds("a wait of 50 ms with signals", is_right, format!("{took:?}"))?;
    gate.open()
}

fn many_opens(bench: &mut Bench) -> Verdict {
    let opens = stats(bench.card()?)?.open_counter;
    let times = match bench.backend {
        Backend::Mock => 10_000,
        // A reset each: those of the cases before count.
        Backend::Driver => 30_u64.saturating_sub(opens).max(3),
    };
    bench.close()?;
    let before = crate::bench::descriptors().len();
    for nth in 0..times {
        let card = bench.card()?;
        if nth % 100 == 0 {
            card.hl.device_memory_alloc(card.fd, 1, 0, false, false);
        }
        bench.close()?;
    }
    equal(
        "descriptors afterwards",
        crate::bench::descriptors().len(),
        before,
    )?;
    equal("memory of the next user", bench.card()?.usage()?.ctx_dram_mem, 0)
}

/// Runs `work` in a fork child. Returns its result, or `None` if a signal killed the child.
fn in_fork(work: impl FnOnce() -> u8) -> Result<Option<u8>, Failure> {
    // SAFETY: the child calls the library, which must work there or fail, and exits with _exit(2).
    match unsafe { fork() }? {
        ForkResult::Child => {
            let code = work();
            // SAFETY: ends the child without the parent's exit handlers.
            unsafe { libc::_exit(code.into()) }
        }
        ForkResult::Parent { child } => match waitpid(child, None)? {
            WaitStatus::Exited(_, code) => Ok(u8::try_from(code).ok()),
            _ => Ok(None),
        },
    }
}

/// Returns the number of the first call that does not fail with `errno`, or 0.
fn first_unlike(card: Card, errno: Errno) -> u8 {
    let (hl, fd) = (card.hl, card.fd);
    let (mut handle, mut status) = (0, 0);
    let by_code = [
        hl.get_dram_usage(fd, Some(&mut Default::default())),
        hl.device_memory_free(fd, 1),
        hl.memory_unmap(fd, 1),
        hl.request_command_buffer(fd, 1, Some(&mut handle)),
        hl.destroy_command_buffer(fd, 4096),
        hl.wait_for_cs(fd, 1, 0, Some(&mut status)),
        hl.cs_flush_pci_hbw_writes(fd),
        hl.notifier_create(fd),
        hl.get_device_status_info(fd),
    ];
    let unlike = by_code.iter().position(|&code| code != -(errno as i32));
    if let Some(nth) = unlike {
        return nth as u8 + 1;
    }
    let memory = hl.device_memory_alloc(fd, 1, 0, false, false);
    if memory != 0 || Errno::last() != errno {
        100
    } else {
        0
    }
}

fn fork_refused(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let code = in_fork(|| first_unlike(card, Errno::ENODEV))?;
    equal(
        "the first call in a fork child that does not fail with ENODEV",
        code,
        Some(0),
    )?;
    card.usage().map(drop)
}

fn fork_inherits(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let _memory = Memory::new(card, 1)?;
    let code = in_fork(|| match card.usage() {
        Ok(usage) => u8::from(usage.ctx_dram_mem != DRAM_PAGE),
        Err(_) => 2,
    })?;
    equal("a query in a fork child", code, Some(0))
}

fn fork_parent(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let gate = Gate::shut(card)?;
    for _ in 0..3 {
        equal("a fork child that does nothing", in_fork(|| 0)?, Some(0))?;
    }
    equal("the blocked submission", card.wait(gate.seq(), 0)?, BUSY)?;
    gate.open()
}

fn fork_mapped(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let (up, down) = (Host::new(card, PAGE)?, Host::new(card, PAGE)?);
    equal("a fork child", in_fork(|| 0)?, Some(0))?;
    // After fork(2), copy-on-write may give this process another page than the mapped one.
    up.memory.fill(0, PAGE, 0x77)?;
    card.run(Q, Program::new().copy(down.va, up.va, PAGE as u32))?;
    same_bytes(
        "bytes that the engine read after a fork",
        &down.bytes(0, PAGE)?,
        &[0x77; PAGE],
    )
}

fn fork_ends(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let dram = Dram::new(card, 1)?;
    let hl = card.hl;
    // The child's exit closes its copy of the descriptor, like an explicit close.
    equal(
        "a fork child that closes",
        in_fork(|| u8::from(hl.close(card.fd) != 0))?,
        Some(0),
    )?;
    equal("memory of the parent", card.usage()?.ctx_dram_mem, DRAM_PAGE)?;
    minus_one(
        "a second open",
        hl.open(name::DONT_CARE, ptr::null()),
        Errno::EBUSY,
    )?;
    drop(dram);
    Ok(())
}

/// Starts this program as a child that repeats a call.
fn child(call: &str) -> Result<std::process::Child, Failure> {
    let failed = |what: &str| {
        let what = what.to_owned();
        move |error: std::io::Error| Failure::new(what, "success", error.to_string())
    };
    let own = std::env::current_exe().map_err(failed("this program's path"))?;
    let mut child = Command::new(own)
        .args([FLAG, call])
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed("a child of this program"))?;
    let Some(output) = child.stdout.take() else {
        return Err(Failure::new("the child's output", "a pipe", "none"));
    };
    let mut line = String::new();
    let read = BufReader::new(output).read_line(&mut line);
    read.map_err(failed("the child's first line"))?;
    equal("the child's first line", line.trim(), "ready")?;
    Ok(child)
}

fn exec_child(bench: &mut Bench) -> Verdict {
    bench.close()?;
    let mut child = child("info")?;
    let code = bench.hl.open(name::DONT_CARE, ptr::null());
    let errno = Errno::last();
    let killed = child.kill().and_then(|()| child.wait());
    killed.map_err(|error| Failure::new("the child's end", "one", error.to_string()))?;
    equal(
        "an open while another process has the device",
        (code, errno),
        (-1, Errno::EBUSY),
    )?;
    bench.card().map(drop)
}

fn killed(bench: &mut Bench) -> Verdict {
    killed_inside(bench, CALLS.iter().map(|row| row.0))
}

fn killed_everywhere(bench: &mut Bench) -> Verdict {
    // 6.12 does not survive a process that dies with a registered timestamp.
    let dangerous = bench.backend == Backend::Driver && crate::differences::major() < 7;
    let calls = crate::random::functions();
    killed_inside(
        bench,
        calls.filter(|&call| !(dangerous && call == "hlthunk_register_timestamp_interrupt")),
    )
}

fn killed_inside(bench: &mut Bench, calls: impl Iterator<Item = &'static str>) -> Verdict {
    bench.close()?;
    for (nth, call) in calls.enumerate() {
        let mut child = child(call)?;
        // The kill hits the child at a random point in the repeated call.
        std::thread::sleep(Duration::from_micros(2_000 + 997 * nth as u64));
        let ended = child.kill().and_then(|()| child.wait());
        let ended = ended.map_err(|error| Failure::new("the child's end", "one", error.to_string()))?;
        // Otherwise the call ended the child before.
        equal(call, ended.signal(), Some(libc::SIGKILL))?;
    }
    let card = bench.card()?;
    equal("memory of the next user", card.usage()?.ctx_dram_mem, 0)?;
    card.run(Q, Program::new().nop())?;
    fails("a second open", card.hl.open(name::DONT_CARE, ptr::null()))
}

fn reset_kills(bench: &mut Bench) -> Verdict {
    bench.close()?;
    let mut child = child(WAIT_FOR_RESET.0)?;
    let ended = child
        .wait()
        .map_err(|error| Failure::new("the child's end", "one", error.to_string()))?;
    equal(
        "the signal that ends the user of a card in reset",
        ended.signal(),
        Some(libc::SIGKILL),
    )?;
    let card = bench.card()?;
    card.run(Q, Program::new().nop())
}
