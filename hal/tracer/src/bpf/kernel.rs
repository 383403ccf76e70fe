//! bpf(2): maps, programs and raw tracepoints.

#![expect(
    unsafe_code,
    reason = "libc has no wrapper for bpf(2), whose argument contains addresses"
)]

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::libc;

/// `enum bpf_cmd`.
#[derive(Clone, Copy, Debug)]
enum Command {
    MapCreate = 0,
    MapLookup = 1,
    MapUpdate = 2,
    ProgLoad = 5,
    ObjGetInfo = 15,
    RawTracepointOpen = 17,
}

/// `enum bpf_map_type`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MapType {
    Hash = 1,
    Array = 2,
    PerCpuArray = 6,
    Ringbuf = 27,
}

/// `BPF_PROG_TYPE_RAW_TRACEPOINT`.
const RAW_TRACEPOINT: u32 = 17;
/// The size of `struct bpf_prog_info` up to `recursion_misses` (Linux 5.12), and that field's
/// offset.
const PROG_INFO: usize = 216;
const RECURSION_MISSES: usize = 208;
/// Size of the verifier's log in bytes. Only its end is used.
const LOG: usize = 1 << 20;

/// `union bpf_attr`, as words.
type Attr = [u64; 16];

/// Combines two 32-bit fields in one word, in memory order.
fn pair(first: u32, second: u32) -> u64 {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&first.to_ne_bytes());
    bytes[4..].copy_from_slice(&second.to_ne_bytes());
    u64::from_ne_bytes(bytes)
}

/// # Safety
/// - Every address in `attr` is valid for the command's reads and writes until the call returns.
unsafe fn bpf(command: Command, attr: &mut Attr) -> Result<i64, Errno> {
    // SAFETY: `attr` has the size that is passed; the caller guarantees the addresses in it.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command as libc::c_long,
            attr.as_mut_ptr(),
            size_of::<Attr>(),
        )
    };
    Errno::result(answer)
}

fn own(number: i64) -> Result<OwnedFd, Errno> {
    let number = RawFd::try_from(number).map_err(|_| Errno::EBADF)?;
    // SAFETY: the call that returned `number` created the descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// A map with 4-byte keys, or a ring buffer.
#[derive(Debug)]
pub(crate) struct Map {
    fd: OwnedFd,
    value: usize,
}

impl Map {
    pub(crate) fn new(kind: MapType, value: usize, entries: u32) -> Result<Self, Errno> {
        let (key, bytes) = match kind {
            MapType::Ringbuf => (0, 0),
            _ => (4, u32::try_from(value).map_err(|_| Errno::E2BIG)?),
        };
        let mut attr = Attr::default();
        attr[0] = pair(kind as u32, key);
        attr[1] = pair(bytes, entries);
        // SAFETY: the command's argument contains no addresses.
        let fd = own(unsafe { bpf(Command::MapCreate, &mut attr) }?)?;
        Ok(Self { fd, value })
    }

    /// Returns the descriptor number, to embed in a program.
    pub(crate) fn number(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    pub(crate) fn set(&self, key: u32, value: &[u8]) -> Result<(), Errno> {
        assert_eq!(value.len(), self.value, "the value has the map's value size");
        let mut attr = self.element(&key);
        attr[2] = value.as_ptr().addr() as u64;
        // SAFETY: the key has 4 bytes, like the keys of every map here; the value's size is
        // asserted above.
        unsafe { bpf(Command::MapUpdate, &mut attr) }.map(drop)
    }

    /// Returns the value of `key`. The map must not be a per-CPU map.
    pub(crate) fn get<const N: usize>(&self, key: u32) -> Result<[u8; N], Errno> {
        assert_eq!(N, self.value, "the value has the map's value size");
        let mut value = [0; N];
        let mut attr = self.element(&key);
        attr[2] = value.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: as in `set`; the kernel writes `N` bytes to `value`, which outlives the call.
        unsafe { bpf(Command::MapLookup, &mut attr) }?;
        Ok(value)
    }

    fn element(&self, key: &u32) -> Attr {
        let mut attr = Attr::default();
        attr[0] = pair(self.fd.as_raw_fd() as u32, 0);
        attr[1] = std::ptr::from_ref(key).expose_provenance() as u64;
        attr
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A loaded program.
#[derive(Debug)]
pub(crate) struct Program(OwnedFd);

/// A failed load: the errno, and the end of the verifier's log.
#[derive(Debug)]
pub(crate) struct Rejected {
    pub(crate) errno: Errno,
    pub(crate) log: String,
}

impl Program {
    /// Loads instructions (`struct bpf_insn`).
    pub(crate) fn load(code: &[u8], name: &str) -> Result<Self, Rejected> {
        let first = Self::try_load(code, name, None);
        first.or_else(|errno| {
            if matches!(errno, Errno::EPERM) {
                return Err(Rejected {
                    errno,
                    log: String::new(),
                });
            }
            // The log is slow, so it is requested only after a rejection.
            let mut log = vec![0_u8; LOG];
            Self::try_load(code, name, Some(&mut log)).map_err(|errno| {
                let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
                let text = String::from_utf8_lossy(&log[..end]);
                let lines: Vec<&str> = text.lines().collect();
                let log = lines[lines.len().saturating_sub(40)..].join("\n");
                Rejected { errno, log }
            })
        })
    }

    fn try_load(code: &[u8], name: &str, log: Option<&mut Vec<u8>>) -> Result<Self, Errno> {
        /// The kernel restricts helpers that read kernel memory to GPL-compatible programs.
        const LICENSE: &CStr = c"Dual MIT/GPL";
        let count = u32::try_from(code.len() / 8).map_err(|_| Errno::E2BIG)?;
        let mut attr = Attr::default();
        attr[0] = pair(RAW_TRACEPOINT, count);
        attr[1] = code.as_ptr().expose_provenance() as u64;
        attr[2] = LICENSE.as_ptr().expose_provenance() as u64;
        if let Some(log) = log {
            attr[3] = pair(1, u32::try_from(log.len()).unwrap_or(u32::MAX));
            attr[4] = log.as_mut_ptr().expose_provenance() as u64;
        }
        let mut title = [0; 16];
        for (to, from) in title[..15].iter_mut().zip(name.bytes()) {
            *to = from;
        }
        let [low, high] = [0, 8].map(|at| {
            let mut word = [0; 8];
            word.copy_from_slice(&title[at..at + 8]);
            u64::from_ne_bytes(word)
        });
        (attr[6], attr[7]) = (low, high);
        let mut tries = 0;
        loop {
            // SAFETY: the code has `count` instructions, the license is NUL-terminated, and the log
            // has the stated size; all outlive the call.
            match unsafe { bpf(Command::ProgLoad, &mut attr) } {
                // A pending signal, such as SIGCONT, ends the verifier (verifier.c:do_check).
                // libbpf tries five times too (bpf.c:sys_bpf_prog_load).
                Err(Errno::EAGAIN) if tries < 4 => tries += 1,
                answer => return own(answer?).map(Self),
            }
        }
    }

    /// Attaches the program to a raw tracepoint until the result is dropped.
    pub(crate) fn attach(&self, tracepoint: &CStr) -> Result<OwnedFd, Errno> {
        let mut attr = Attr::default();
        attr[0] = tracepoint.as_ptr().expose_provenance() as u64;
        attr[1] = pair(self.0.as_raw_fd() as u32, 0);
        // SAFETY: the name is NUL-terminated and outlives the call.
        own(unsafe { bpf(Command::RawTracepointOpen, &mut attr) }?)
    }

    /// Returns how often the kernel skipped the program because it was already running on the same
    /// CPU. Returns 0 before Linux 5.12, which does not count this.
    pub(crate) fn skipped(&self) -> u64 {
        let mut info = [0_u8; PROG_INFO];
        let mut attr = Attr::default();
        attr[0] = pair(self.0.as_raw_fd() as u32, PROG_INFO as u32);
        attr[1] = info.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: the kernel writes at most `PROG_INFO` bytes to `info`, which outlives the call.
        // Its zeros request no further arrays.
        let answer = unsafe { bpf(Command::ObjGetInfo, &mut attr) };
        // A kernel with a shorter struct leaves zeros here.
        let misses = info
            .get(RECURSION_MISSES..)
            .and_then(|bytes| bytes.try_into().ok());
        answer.ok().and(misses).map_or(0, u64::from_ne_bytes)
    }
}
