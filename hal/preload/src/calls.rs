//! The functions of libc that this library hides, other than vfork(2) and clone(2).

#![allow(unsafe_code, reason = "replaces functions of libc")]

use std::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use gaudi_capture::raw::{self, Stamp};
use gaudi_capture::record::{FdSource, MmapRecord, OpenRecord};
use gaudi_ring::Session;
use nix::libc;

use crate::author::{now, with, write};
use crate::files::{self, File};
use crate::next::{Next, call_next, errno, kernel_result, set_errno};
use crate::{data, ioctl as record, memory};

macro_rules! functions {
    ($($next:ident = $name:literal;)*) => {
        $(static $next: Next = Next::new($name);)*
        /// Resolves every function.
        pub(crate) fn resolve() {
            $($next.resolve();)*
        }
    };
}

functions! {
    IOCTL = c"ioctl";
    OPEN = c"open";
    OPEN64 = c"open64";
    OPEN_2 = c"__open_2";
    OPEN64_2 = c"__open64_2";
    OPENAT = c"openat";
    OPENAT64 = c"openat64";
    OPENAT_2 = c"__openat_2";
    OPENAT64_2 = c"__openat64_2";
    CREAT = c"creat";
    CREAT64 = c"creat64";
    CLOSE = c"close";
    CLOSE_RANGE = c"close_range";
    CLOSEFROM = c"closefrom";
    FCLOSE = c"fclose";
    DUP = c"dup";
    DUP2 = c"dup2";
    DUP3 = c"dup3";
    FCNTL = c"fcntl";
    FCNTL64 = c"fcntl64";
    MMAP = c"mmap";
    MMAP64 = c"mmap64";
    MUNMAP = c"munmap";
    RECVMSG = c"recvmsg";
    PIDFD_GETFD = c"pidfd_getfd";
    WRITE = c"write";
}

/// Returns the session if descriptors are recorded.
fn files_session() -> Option<&'static Session> {
    Session::get().filter(|session| session.filter().files && session.filter().preload)
}

/// ioctl(2).
///
/// # Safety
/// As ioctl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let call = || {
        call_next!(
            IOCTL,
            fn(c_int, c_ulong, *mut c_void) -> c_int,
            fd,
            request,
            argument
        )
    };
    let Some(session) = Session::get() else {
        return call();
    };
    if !session.records_type((request >> 8) as u8) || !session.filter().preload {
        return call();
    }
    let file = files::of(session, fd);
    if !file.records_ioctl() {
        return call();
    }
    let address = argument.expose_provenance() as u64;
    record::record(session, file, (fd, request as u32, address), call)
}

/// write(2), of which only commands to RDMA devices are recorded.
///
/// # Safety
/// As write(2).
#[unsafe(export_name = "write")]
pub unsafe extern "C-unwind" fn write_command(fd: c_int, buffer: *const c_void, len: usize) -> isize {
    let call = || call_next!(WRITE, fn(c_int, *const c_void, usize) -> isize, fd, buffer, len);
    // Not looked up: most writes are to other files, which the table need not have.
    let file = files::known(fd);
    if !file.takes_commands() {
        return call();
    }
    let Some(session) = Session::get().filter(|session| session.filter().preload) else {
        return call();
    };
    let address = buffer.expose_provenance() as u64;
    record::record_write(session, file, (fd, address, len as u64), call)
}

/// Records an open that has ended with `result`.
fn opened(result: c_int, path: *const c_char, flags: c_int, time_ns: u64) {
    let Some(session) = files_session() else {
        if result >= 0 {
            files::forget(result);
        }
        return;
    };
    let saved = errno();
    let mut buffer = [0_u8; 256];
    let mut file = None;
    if result >= 0 {
        files::forget(result);
        let found = files::of(session, result);
        if !found.records_file() {
            return;
        }
        file = Some(found);
    }
    let read = memory::read(path.expose_provenance() as u64, &mut buffer);
    let read = if read == 0 {
        near_end(path, &mut buffer)
    } else {
        read
    };
    let path = buffer.get(..read).unwrap_or(&[]);
    let path = path.split(|&byte| byte == 0).next().unwrap_or(&[]);
    if file.is_some() || path.starts_with(b"/dev/") {
        with(session, |local, author| {
            let open = OpenRecord {
                time_ns,
                duration_ns: now().saturating_sub(time_ns),
                pid: author.pid,
                tid: author.tid,
                source: FdSource::Open,
                path: Vec::new(),
                flags: flags as u32,
                device: file.and_then(File::device),
                result: if result >= 0 {
                    i64::from(result)
                } else {
                    -i64::from(saved)
                },
            };
            write(session, local, |out| raw::open(out, &open, path));
            if let Some(file) = file {
                files::set(session, result, file.introduced());
            }
        });
    }
    set_errno(saved);
}

/// Reads a path near the end of mapped memory byte by byte up to its end.
fn near_end(path: *const c_char, buffer: &mut [u8]) -> usize {
    let mut read = 0;
    let address = path.expose_provenance() as u64;
    for byte in buffer.iter_mut() {
        if memory::read(address.wrapping_add(read), std::slice::from_mut(byte)) == 0 {
            break;
        }
        read += 1;
        if *byte == 0 {
            break;
        }
    }
    read as usize
}

macro_rules! opens {
    ($($(#[$doc:meta])* fn $name:ident = $next:ident($($argument:ident: $kind:ty),*), $path:ident, $flags:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As the function of libc.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $kind),*) -> c_int {
            let time_ns = if files_session().is_some() { now() } else { 0 };
            let result = call_next!($next, fn($($kind),*) -> c_int, $($argument),*);
            opened(result, $path, $flags, time_ns);
            result
        }
    )*};
}

const CREATES: c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;

opens! {
    /// open(2).
    fn open = OPEN(path: *const c_char, flags: c_int, mode: c_uint), path, flags;
    /// open(2) with large files.
    fn open64 = OPEN64(path: *const c_char, flags: c_int, mode: c_uint), path, flags;
    /// open(2) of a fortified program.
    fn __open_2 = OPEN_2(path: *const c_char, flags: c_int), path, flags;
    /// open(2) of a fortified program with large files.
    fn __open64_2 = OPEN64_2(path: *const c_char, flags: c_int), path, flags;
    /// openat(2).
    fn openat = OPENAT(folder: c_int, path: *const c_char, flags: c_int, mode: c_uint), path, flags;
    /// openat(2) with large files.
    fn openat64 = OPENAT64(folder: c_int, path: *const c_char, flags: c_int, mode: c_uint), path, flags;
    /// openat(2) of a fortified program.
    fn __openat_2 = OPENAT_2(folder: c_int, path: *const c_char, flags: c_int), path, flags;
    /// openat(2) of a fortified program with large files.
    fn __openat64_2 = OPENAT64_2(folder: c_int, path: *const c_char, flags: c_int), path, flags;
    /// creat(2).
    fn creat = CREAT(path: *const c_char, mode: c_uint), path, CREATES;
    /// creat(2) with large files.
    fn creat64 = CREAT64(path: *const c_char, mode: c_uint), path, CREATES;
}

/// Records the close of a descriptor that was introduced.
fn closed(fd: c_int, file: File, result: c_int) {
    let Some(session) = files_session().filter(|_| file.is_introduced()) else {
        return;
    };
    let saved = errno();
    with(session, |local, author| {
        let at = Stamp {
            time_ns: now(),
            pid: author.pid,
            tid: author.tid,
        };
        let result = if result == -1 { -i64::from(saved) } else { 0 };
        write(session, local, |out| raw::close(out, at, fd, result));
    });
    set_errno(saved);
}

/// close(2).
///
/// # Safety
/// As close(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    // Before the call: another thread can get the number as soon as it is free.
    let file = files::forget(fd);
    let result = call_next!(CLOSE, fn(c_int) -> c_int, fd);
    closed(fd, file, result);
    result
}

/// fclose(3), which closes the stream's descriptor without close(3).
///
/// # Safety
/// As fclose(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fclose(stream: *mut libc::FILE) -> c_int {
    // SAFETY: the caller passes an open stream.
    let fd = unsafe { libc::fileno(stream) };
    let file = files::forget(fd);
    let result = call_next!(FCLOSE, fn(*mut libc::FILE) -> c_int, stream);
    closed(fd, file, 0);
    result
}

/// close_range(2).
///
/// # Safety
/// As close_range(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let result = call_next!(
        CLOSE_RANGE,
        fn(c_uint, c_uint, c_int) -> c_int,
        first,
        last,
        flags
    );
    if result == 0 && flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0 {
        let clamp = |fd: c_uint| c_int::try_from(fd).unwrap_or(c_int::MAX);
        closed_all(clamp(first), clamp(last));
    }
    result
}

/// closefrom(3).
///
/// # Safety
/// As closefrom(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn closefrom(first: c_int) {
    let _: c_int = call_next!(CLOSEFROM, fn(c_int) -> c_int, first);
    closed_all(first, c_int::MAX);
}

fn closed_all(first: c_int, last: c_int) {
    for fd in files::cached(first, last) {
        closed(fd, files::forget(fd), 0);
    }
}

/// Records a duplicate of a descriptor.
fn duplicated(fd: c_int, new: c_int, file: Option<File>, replaced: File) {
    let Some((session, file)) = files_session().zip(file).filter(|_| new >= 0) else {
        return;
    };
    if !file.records_file() {
        return closed(new, replaced, 0);
    }
    let saved = errno();
    with(session, |local, author| {
        if !file.is_introduced() {
            record::introduce_file(session, local, author, fd, file, FdSource::Inherited);
        }
        let at = Stamp {
            time_ns: now(),
            pid: author.pid,
            tid: author.tid,
        };
        write(session, local, |out| {
            raw::dup(out, at, fd, i64::from(new));
        });
        files::set(session, new, file.introduced());
    });
    set_errno(saved);
}

/// Returns the file of a descriptor that is about to be duplicated.
fn source(fd: c_int) -> Option<File> {
    files_session().map(|session| files::of(session, fd))
}

/// dup(2).
///
/// # Safety
/// As dup(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    let file = source(fd);
    let new = call_next!(DUP, fn(c_int) -> c_int, fd);
    files::forget(new);
    duplicated(fd, new, file, files::known(-1));
    new
}

/// dup2(2).
///
/// # Safety
/// As dup2(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup2(fd: c_int, to: c_int) -> c_int {
    let file = source(fd);
    let new = call_next!(DUP2, fn(c_int, c_int) -> c_int, fd, to);
    if new >= 0 && fd != to {
        duplicated(fd, new, file, files::forget(to));
    }
    new
}

/// dup3(2).
///
/// # Safety
/// As dup3(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    let file = source(fd);
    let new = call_next!(DUP3, fn(c_int, c_int, c_int) -> c_int, fd, to, flags);
    if new >= 0 {
        duplicated(fd, new, file, files::forget(to));
    }
    new
}

macro_rules! controls {
    ($($(#[$doc:meta])* fn $name:ident = $next:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As fcntl(2).
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
            let duplicates = matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC);
            let file = if duplicates { source(fd) } else { None };
            let new = call_next!($next, fn(c_int, c_int, *mut c_void) -> c_int, fd, command, argument);
            if duplicates {
                files::forget(new);
                duplicated(fd, new, file, files::known(-1));
            }
            new
        }
    )*};
}

controls! {
    /// fcntl(2).
    fn fcntl = FCNTL;
    /// fcntl(2) with large files.
    fn fcntl64 = FCNTL64;
}

/// The recorded mappings: start and length. Both are 0 in a free row.
static MAPPINGS: [(AtomicU64, AtomicU64); 256] = [const { (AtomicU64::new(0), AtomicU64::new(0)) }; 256];
static MAPPED: AtomicU64 = AtomicU64::new(0);

/// Records an mmap(2) of a recorded file.
fn mapped(result: *mut c_void, address: *mut c_void, numbers: (u64, c_int, c_int, c_int, i64), time_ns: u64) {
    let (length, protection, flags, fd, offset) = numbers;
    let Some(session) = files_session() else {
        return;
    };
    let saved = errno();
    let file = files::of(session, fd);
    if !file.records_file() {
        return;
    }
    let start = result.expose_provenance();
    with(session, |local, author| {
        if !file.is_introduced() {
            record::introduce_file(session, local, author, fd, file, FdSource::Inherited);
        }
        let mmap = MmapRecord {
            time_ns,
            duration_ns: now().saturating_sub(time_ns),
            pid: author.pid,
            tid: author.tid,
            address: address.expose_provenance() as u64,
            length,
            protection: protection as u32,
            flags: flags as u32,
            fd,
            device: file.device(),
            offset: offset as u64,
            result: if result == libc::MAP_FAILED {
                -i64::from(saved)
            } else {
                start as i64
            },
        };
        write(session, local, |out| raw::mmap(out, &mmap));
        if session.filter().data && mmap.device.is_some() && mmap.result >= 0 {
            let to = data::To {
                session,
                local,
                author,
            };
            data::mapped(to, mmap.result as u64, length);
        }
    });
    if result != libc::MAP_FAILED {
        let free = MAPPINGS.iter().find(|row| {
            let claimed = row
                .0
                .compare_exchange(0, start as u64, Ordering::Relaxed, Ordering::Relaxed);
            claimed.is_ok()
        });
        if let Some(row) = free {
            row.1.store(length, Ordering::Relaxed);
            MAPPED.fetch_add(1, Ordering::Relaxed);
        }
    }
    set_errno(saved);
}

macro_rules! maps {
    ($($(#[$doc:meta])* fn $name:ident = $next:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As mmap(2).
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            address: *mut c_void,
            length: usize,
            protection: c_int,
            flags: c_int,
            fd: c_int,
            offset: c_long,
        ) -> *mut c_void {
            let is_file = flags & libc::MAP_ANONYMOUS == 0 && fd >= 0 && Session::get().is_some();
            let time_ns = if is_file { now() } else { 0 };
            let address_of = call_next!(
                $next,
                fn(*mut c_void, usize, c_int, c_int, c_int, c_long) -> isize,
                address, length, protection, flags, fd, offset
            );
            let result = std::ptr::with_exposed_provenance_mut(address_of as usize);
            if is_file {
                mapped(result, address, (length as u64, protection, flags, fd, offset), time_ns);
            }
            result
        }
    )*};
}

maps! {
    /// mmap(2).
    fn mmap = MMAP;
    /// mmap(2) with large files.
    fn mmap64 = MMAP64;
}

/// munmap(2).
///
/// # Safety
/// As munmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn munmap(address: *mut c_void, length: usize) -> c_int {
    let result = call_next!(MUNMAP, fn(*mut c_void, usize) -> c_int, address, length);
    if MAPPED.load(Ordering::Relaxed) != 0 {
        unmapped(address.expose_provenance() as u64, length as u64, result);
    }
    result
}

/// Records an munmap(2) that overlaps a recorded mapping.
fn unmapped(address: u64, length: u64, result: c_int) {
    let Some(session) = files_session() else {
        return;
    };
    let result = kernel_result(i64::from(result));
    let saved = errno();
    let end = address.saturating_add(length);
    let mut touches = false;
    for (start, bytes) in &MAPPINGS {
        let first = start.load(Ordering::Relaxed);
        let last = first.saturating_add(bytes.load(Ordering::Relaxed));
        if first == 0 || last <= address || end <= first {
            continue;
        }
        touches = true;
        if result == 0 && address <= first && last <= end {
            bytes.store(0, Ordering::Relaxed);
            start.store(0, Ordering::Relaxed);
            MAPPED.fetch_sub(1, Ordering::Relaxed);
        }
    }
    if touches {
        with(session, |local, author| {
            let at = Stamp {
                time_ns: now(),
                pid: author.pid,
                tid: author.tid,
            };
            write(session, local, |out| {
                raw::munmap(out, at, (address, length), result);
            });
            if session.filter().data && result == 0 {
                data::unmapped(author, address, length);
            }
        });
    }
    set_errno(saved);
}

/// recvmsg(2), which can return descriptors.
///
/// # Safety
/// As recvmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvmsg(socket: c_int, message: *mut libc::msghdr, flags: c_int) -> isize {
    let result = call_next!(
        RECVMSG,
        fn(c_int, *mut libc::msghdr, c_int) -> isize,
        socket,
        message,
        flags
    );
    let Some(session) = files_session().filter(|_| result >= 0) else {
        return result;
    };
    let saved = errno();
    // SAFETY: the kernel has just written the message and its control data.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR return headers inside the control data.
        let this = unsafe { header.read_unaligned() };
        if (this.cmsg_level, this.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: as above.
            let data = unsafe { libc::CMSG_DATA(header) };
            // SAFETY: CMSG_LEN only computes.
            let head = unsafe { libc::CMSG_LEN(0) } as usize;
            for index in 0..this.cmsg_len.saturating_sub(head) / 4 {
                // SAFETY: the header's length covers the descriptor.
                let at = unsafe { data.add(4 * index) };
                // SAFETY: as above.
                let fd = unsafe { at.cast::<c_int>().read_unaligned() };
                record::received(session, fd, FdSource::Received);
            }
        }
        // SAFETY: as above.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    set_errno(saved);
    result
}

/// pidfd_getfd(2).
///
/// # Safety
/// As pidfd_getfd(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pidfd_getfd(pidfd: c_int, target: c_int, flags: c_uint) -> c_int {
    let fd = call_next!(
        PIDFD_GETFD,
        fn(c_int, c_int, c_uint) -> c_int,
        pidfd,
        target,
        flags
    );
    if let Some(session) = files_session().filter(|_| fd >= 0) {
        record::received(session, fd, FdSource::Taken);
    }
    fd
}
