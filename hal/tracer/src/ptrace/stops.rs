//! ptrace(2) and waitpid(2), as far as a tracer needs them.
//!
//! Not `nix`: its `WaitStatus` has no room for real-time signals, which a traced program uses as
//! any other, and it has no PTRACE_LISTEN.

#![expect(
    unsafe_code,
    reason = "ptrace(2) takes addresses in arguments that are numbers"
)]

use nix::errno::Errno;
use nix::libc;

/// What is followed automatically.
const FOLLOW: i32 = libc::PTRACE_O_TRACESYSGOOD
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACEEXEC;
/// What a program with the filter needs besides: without its tracer, every call that the filter
/// stops fails with ENOSYS, so it dies with it.
const FILTERED: i32 = FOLLOW | libc::PTRACE_O_TRACESECCOMP | libc::PTRACE_O_EXITKILL;
/// `KCMP_FILES`.
const KCMP_FILES: i32 = 2;
/// `struct ptrace_syscall_info` in words.
const INFO_WORDS: usize = 11;

/// What waitpid(2) reported of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It is dead; the status of wait(2).
    Dead(u32),
    /// It enters or leaves a system call.
    Syscall,
    /// The seccomp filter stopped it at the entry of a system call.
    Filtered,
    /// It made another thread or process.
    Made,
    /// It executed a program.
    Executed,
    /// It is in a stop that SIGSTOP and the like cause.
    Group,
    /// It stopped for the tracer: newly attached, interrupted, or continued.
    Trap,
    /// It gets a signal.
    Signal(i32),
}

/// Which side of a system call, and its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Syscall {
    Entry {
        arch: u32,
        number: u64,
        arguments: [u64; 6],
    },
    Exit {
        result: i64,
    },
    /// Not in a system call that the kernel knows.
    None,
}

fn ptrace(request: libc::c_uint, tid: u32, address: usize, data: usize) -> Result<i64, Errno> {
    let tid = libc::pid_t::try_from(tid).map_err(|_| Errno::ESRCH)?;
    // SAFETY: the callers below pass requests whose address and data are numbers, or addresses of
    // locals that are as large as the request writes.
    Errno::result(unsafe { libc::ptrace(request, tid, address, data) })
}

/// Starts to trace a thread without stopping it.
pub(crate) fn seize(tid: u32, filtered: bool) -> Result<(), Errno> {
    let options = if filtered { FILTERED } else { FOLLOW };
    ptrace(libc::PTRACE_SEIZE, tid, 0, options as usize).map(drop)
}

/// Makes a thread stop soon ([`Stop::Trap`]).
pub(crate) fn interrupt(tid: u32) -> Result<(), Errno> {
    ptrace(libc::PTRACE_INTERRUPT, tid, 0, 0).map(drop)
}

/// Lets a thread run, with a signal or 0; to the next side of a system call if `to_syscall`.
pub(crate) fn resume(tid: u32, signal: i32, to_syscall: bool) -> Result<(), Errno> {
    let request = if to_syscall {
        libc::PTRACE_SYSCALL
    } else {
        libc::PTRACE_CONT
    };
    ptrace(request, tid, 0, signal as usize).map(drop)
}

/// Leaves a thread in its group stop, but hears of its end.
pub(crate) fn listen(tid: u32) -> Result<(), Errno> {
    ptrace(libc::PTRACE_LISTEN, tid, 0, 0).map(drop)
}

/// Ends the tracing of a stopped thread, with a signal or 0.
pub(crate) fn detach(tid: u32, signal: i32) -> Result<(), Errno> {
    ptrace(libc::PTRACE_DETACH, tid, 0, signal as usize).map(drop)
}

/// The number that comes with [`Stop::Made`] (the new thread) and [`Stop::Executed`] (the old id).
pub(crate) fn message(tid: u32) -> Result<u32, Errno> {
    let mut number: libc::c_ulong = 0;
    ptrace(
        libc::PTRACE_GETEVENTMSG,
        tid,
        0,
        (&raw mut number).expose_provenance(),
    )?;
    u32::try_from(number).map_err(|_| Errno::ERANGE)
}

/// The system call of a stopped thread (Linux 5.3).
pub(crate) fn syscall(tid: u32) -> Result<Syscall, Errno> {
    let mut words = [0_u64; INFO_WORDS];
    let size = size_of_val(&words);
    ptrace(
        libc::PTRACE_GET_SYSCALL_INFO,
        tid,
        size,
        words.as_mut_ptr().expose_provenance(),
    )?;
    let [first, _, _, number, a0, a1, a2, a3, a4, a5, _] = words;
    let [operation, _, _, _, arch @ ..] = first.to_ne_bytes();
    Ok(match operation {
        libc::PTRACE_SYSCALL_INFO_ENTRY | libc::PTRACE_SYSCALL_INFO_SECCOMP => Syscall::Entry {
            arch: u32::from_ne_bytes(arch),
            number,
            arguments: [a0, a1, a2, a3, a4, a5],
        },
        libc::PTRACE_SYSCALL_INFO_EXIT => Syscall::Exit {
            result: number as i64,
        },
        _ => Syscall::None,
    })
}

/// Waits until a thread that this thread traces stops or dies.
///
/// # Errors
/// - `ECHILD`: none is left.
/// - `EINTR`: a signal came.
pub(crate) fn wait() -> Result<(u32, Stop), Errno> {
    let mut status = 0;
    // SAFETY: the status outlives the call.
    let tid = Errno::result(unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::__WNOTHREAD) })?;
    let tid = u32::try_from(tid).map_err(|_| Errno::ECHILD)?;
    if !libc::WIFSTOPPED(status) {
        return Ok((tid, Stop::Dead(status as u32)));
    }
    let signal = libc::WSTOPSIG(status);
    let stop = match status >> 16 {
        0 if signal == libc::SIGTRAP | 0x80 => Stop::Syscall,
        0 => Stop::Signal(signal),
        libc::PTRACE_EVENT_SECCOMP => Stop::Filtered,
        libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK => Stop::Made,
        libc::PTRACE_EVENT_EXEC => Stop::Executed,
        libc::PTRACE_EVENT_STOP if signal == libc::SIGTRAP => Stop::Trap,
        libc::PTRACE_EVENT_STOP => Stop::Group,
        _ => Stop::Trap,
    };
    Ok((tid, stop))
}

/// Whether two threads share their descriptor table; nothing if the kernel does not tell.
pub(crate) fn share_files(one: u32, other: u32) -> Option<bool> {
    // SAFETY: the call takes numbers only.
    let answer = unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_FILES, 0, 0) };
    Errno::result(answer).ok().map(|order| order == 0)
}
