//! ptrace(2) and waitpid(2), reduced to what the tracer needs.
//!
//! `nix` was rejected: its `WaitStatus` cannot represent real-time signals, and it lacks
//! PTRACE_LISTEN.

#![expect(unsafe_code, reason = "ptrace(2) takes addresses as integer arguments")]

use nix::errno::Errno;
use nix::libc;

/// ptrace options: trace new threads and processes automatically.
const FOLLOW: i32 = libc::PTRACE_O_TRACESYSGOOD
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACEEXEC;
/// Additional options for a program with the filter. Without a tracer, every call that the filter
/// stops fails with ENOSYS, so the program is killed when the tracer dies.
const FILTERED: i32 = FOLLOW | libc::PTRACE_O_TRACESECCOMP | libc::PTRACE_O_EXITKILL;
/// `KCMP_FILES`.
const KCMP_FILES: i32 = 2;
/// `struct ptrace_syscall_info` in words.
const INFO_WORDS: usize = 11;

/// A change of state that waitpid(2) reported for a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The thread is dead. Holds the status of wait(2).
    Dead(u32),
    /// The thread enters or leaves a system call.
    Syscall,
    /// The seccomp filter stopped the thread at the entry of a system call.
    Filtered,
    /// The thread created another thread or process.
    Cloned,
    /// The thread executed a program.
    Executed,
    /// The thread is in a group stop, caused by SIGSTOP or a similar signal.
    Group,
    /// The thread stopped for the tracer: newly attached, interrupted, or continued.
    Trap,
    /// A signal is delivered to the thread.
    Signal(i32),
}

/// Entry or exit of a system call, with its registers.
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
    /// The thread is not in a system call.
    None,
}

fn ptrace(request: libc::c_uint, tid: u32, address: usize, data: usize) -> Result<i64, Errno> {
    let tid = libc::pid_t::try_from(tid).map_err(|_| Errno::ESRCH)?;
    // SAFETY: the callers below pass integers, or addresses of locals that are as large as the
    // request's output.
    Errno::result(unsafe { libc::ptrace(request, tid, address, data) })
}

/// Starts tracing a thread without stopping it.
pub(crate) fn seize(tid: u32, filtered: bool) -> Result<(), Errno> {
    let options = if filtered { FILTERED } else { FOLLOW };
    ptrace(libc::PTRACE_SEIZE, tid, 0, options as usize).map(drop)
}

/// Requests that a thread stops soon ([`Stop::Trap`]).
pub(crate) fn interrupt(tid: u32) -> Result<(), Errno> {
    ptrace(libc::PTRACE_INTERRUPT, tid, 0, 0).map(drop)
}

/// Resumes a thread and delivers `signal` unless it is 0. With `to_syscall`, the thread stops at
/// the next entry or exit of a system call.
pub(crate) fn resume(tid: u32, signal: i32, to_syscall: bool) -> Result<(), Errno> {
    let request = if to_syscall {
        libc::PTRACE_SYSCALL
    } else {
        libc::PTRACE_CONT
    };
    ptrace(request, tid, 0, signal as usize).map(drop)
}

/// Keeps a thread in its group stop and reports later events (PTRACE_LISTEN).
pub(crate) fn listen(tid: u32) -> Result<(), Errno> {
    ptrace(libc::PTRACE_LISTEN, tid, 0, 0).map(drop)
}

/// Detaches from a stopped thread and delivers `signal` unless it is 0.
pub(crate) fn detach(tid: u32, signal: i32) -> Result<(), Errno> {
    ptrace(libc::PTRACE_DETACH, tid, 0, signal as usize).map(drop)
}

/// Returns the event message of [`Stop::Cloned`] (the new thread) or [`Stop::Executed`] (the
/// old id).
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

/// Returns the system call of a stopped thread (Linux 5.3).
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

/// Waits until a thread that this thread traces changes its state.
///
/// # Errors
/// - `ECHILD`: no traced thread is left.
/// - `EINTR`: a signal interrupted the wait.
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
        libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK => Stop::Cloned,
        libc::PTRACE_EVENT_EXEC => Stop::Executed,
        libc::PTRACE_EVENT_STOP if signal == libc::SIGTRAP => Stop::Trap,
        libc::PTRACE_EVENT_STOP => Stop::Group,
        _ => Stop::Trap,
    };
    Ok((tid, stop))
}

/// Returns whether two threads share their descriptor table; `None` if kcmp(2) fails.
pub(crate) fn share_files(one: u32, other: u32) -> Option<bool> {
    // SAFETY: all arguments are integers.
    let answer = unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_FILES, 0, 0) };
    Errno::result(answer).ok().map(|order| order == 0)
}
