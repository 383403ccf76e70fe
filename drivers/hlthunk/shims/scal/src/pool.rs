//! The pools of the process: one for each open of a device.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gaudi_hlthunk_client::HlThunk;
use gaudi_uapi::info::{HlInfoDramUsage, HlInfoHwIpInfo, HlOpenStatsInfo};
use nix::errno::Errno;
use nix::sys::stat::fstat;

/// Why a function failed.
#[derive(Debug)]
pub(crate) enum Failure {
    Invalid,
    NotFound,
    OutOfMemory,
    Other(String),
}

/// A pool of device memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pool {
    id: usize,
    open: Open,
    fd: c_int,
    handle: u64,
    pub(crate) base: u64,
    pub(crate) bytes: u64,
    users: u32,
}

/// What names an open of a device: its file, and how often the device was opened. A number of a
/// descriptor alone would name the next device that gets it, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Open {
    device: u64,
    inode: u64,
    count: u64,
}

impl Open {
    fn of(thunk: &HlThunk, fd: c_int) -> Result<Self, Failure> {
        if fd < 0 {
            return Err(Failure::Invalid);
        }
        let stats: HlOpenStatsInfo = thunk.info(fd).map_err(|_| Failure::Invalid)?;
        // SAFETY: the descriptor is open, as libhl-thunk has just used it; a program that closes it
        // in another thread gets EBADF here.
        let file = fstat(unsafe { BorrowedFd::borrow_raw(fd) }).map_err(|_| Failure::Invalid)?;
        Ok(Self {
            device: file.st_dev,
            inode: file.st_ino,
            count: stats.open_counter,
        })
    }
}

struct Table {
    pools: Vec<Pool>,
    /// The number of the last pool. Numbers are not used again.
    last: usize,
}

static TABLE: Mutex<Table> = Mutex::new(Table {
    pools: Vec::new(),
    last: 0,
});

fn table() -> MutexGuard<'static, Table> {
    // Every change of the table is one statement.
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn thunk() -> Result<&'static HlThunk, Failure> {
    HlThunk::get().map_err(Failure::Other)
}

/// The pool of an open device, which is created if there is none. Returns its number.
pub(crate) fn create(fd: c_int) -> Result<usize, Failure> {
    let thunk = thunk()?;
    let mut table = table();
    let open = Open::of(thunk, fd)?;
    if let Some(pool) = table.pools.iter_mut().find(|pool| pool.open == open) {
        pool.users += 1;
        return Ok(pool.id);
    }
    // Pools of an earlier open of the same device: the driver freed them when it was closed.
    table
        .pools
        .retain(|pool| (pool.open.device, pool.open.inode) != (open.device, open.inode));
    let (handle, base, bytes) = take(thunk, fd).map_err(|errno| match errno {
        Errno::ENOMEM => Failure::OutOfMemory,
        errno => Failure::Other(format!(
            "the device's memory cannot be taken for global_hbm: {errno}"
        )),
    })?;
    table.last += 1;
    let id = table.last;
    table.pools.push(Pool {
        id,
        open,
        fd,
        handle,
        base,
        bytes,
        users: 1,
    });
    Ok(id)
}

/// Takes the free device memory but one page, in one mapping.
fn take(thunk: &HlThunk, fd: c_int) -> Result<(u64, u64, u64), Errno> {
    let free = thunk.info::<HlInfoDramUsage>(fd)?.dram_free_mem;
    let page = thunk.info::<HlInfoHwIpInfo>(fd)?.dram_page_size;
    let pages = free.checked_div(page).ok_or(Errno::ENODEV)?;
    let bytes = match pages {
        0 => return Err(Errno::ENOMEM),
        1 => page,
        pages => (pages - 1) * page,
    };
    // A mock exports pages in a row only; a driver exports any.
    let handle = thunk
        .alloc(fd, bytes, true)
        .or_else(|_| thunk.alloc(fd, bytes, false))?;
    match thunk.map(fd, handle) {
        Ok(base) => Ok((handle, base, bytes)),
        Err(errno) => {
            // The failure that is reported is the first.
            let _ = thunk.free(fd, handle);
            Err(errno)
        }
    }
}

/// Frees a pool with its last user.
pub(crate) fn destroy(id: usize) -> Result<(), Failure> {
    let thunk = thunk()?;
    let mut table = table();
    let Some(at) = table.pools.iter().position(|pool| pool.id == id) else {
        return Err(Failure::Invalid);
    };
    let pool = &mut table.pools[at];
    pool.users -= 1;
    if pool.users > 0 {
        return Ok(());
    }
    let pool = table.pools.remove(at);
    // The driver freed it if the device was closed. Another device may have the number now.
    if !Open::of(thunk, pool.fd).is_ok_and(|open| open == pool.open) {
        return Ok(());
    }
    let failed = |errno| Failure::Other(format!("global_hbm cannot be freed: {errno}"));
    thunk.unmap(pool.fd, pool.base).map_err(failed)?;
    thunk.free(pool.fd, pool.handle).map_err(failed)
}

/// The number of an open device's pool.
pub(crate) fn find(fd: c_int) -> Result<usize, Failure> {
    let open = Open::of(thunk()?, fd)?;
    let table = table();
    let found = table.pools.iter().find(|pool| pool.open == open);
    found.map(|pool| pool.id).ok_or(Failure::NotFound)
}

/// The pool of a number.
pub(crate) fn get(id: usize) -> Result<Pool, Failure> {
    let table = table();
    let found = table.pools.iter().find(|pool| pool.id == id);
    found.copied().ok_or(Failure::Invalid)
}
