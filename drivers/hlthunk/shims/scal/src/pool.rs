//! The pools of the process: one per open of a device.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gaudi_hlthunk_client::HlThunk;
use gaudi_uapi::info::{HlInfoDramUsage, HlInfoHwIpInfo, HlOpenStatsInfo};
use nix::errno::Errno;
use nix::sys::stat::fstat;

/// The reason why a function failed.
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

/// Identifies an open of a device: its file, and the driver's open count. A descriptor number alone
/// could be reused for another device.
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
        // SAFETY: libhl-thunk has just used the descriptor. If another thread of the program closed
        // it since, fstat(2) fails with EBADF.
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
    /// The number of the last pool. Numbers are not reused.
    last: usize,
}

static TABLE: Mutex<Table> = Mutex::new(Table {
    pools: Vec::new(),
    last: 0,
});

fn table() -> MutexGuard<'static, Table> {
    // Each change of the table is a single statement, so a poisoned table is consistent.
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn thunk() -> Result<&'static HlThunk, Failure> {
    HlThunk::get().map_err(Failure::Other)
}

/// Returns the number of an open device's pool. Creates the pool if necessary.
pub(crate) fn create(fd: c_int) -> Result<usize, Failure> {
    let thunk = thunk()?;
    let mut table = table();
    let open = Open::of(thunk, fd)?;
    if let Some(pool) = table.pools.iter_mut().find(|pool| pool.open == open) {
        pool.users += 1;
        return Ok(pool.id);
    }
    // Remove pools of earlier opens of the device: the driver freed them at close.
    table
        .pools
        .retain(|pool| (pool.open.device, pool.open.inode) != (open.device, open.inode));
    let (handle, base, bytes) = take(thunk, fd).map_err(|errno| match errno {
        Errno::ENOMEM => Failure::OutOfMemory,
        errno => Failure::Other(format!("cannot allocate device memory for global_hbm: {errno}")),
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

/// Allocates and maps the free device memory except for one page.
fn take(thunk: &HlThunk, fd: c_int) -> Result<(u64, u64, u64), Errno> {
    let free = thunk.info::<HlInfoDramUsage>(fd)?.dram_free_mem;
    let page = thunk.info::<HlInfoHwIpInfo>(fd)?.dram_page_size;
    let pages = free.checked_div(page).ok_or(Errno::ENODEV)?;
    let bytes = match pages {
        0 => return Err(Errno::ENOMEM),
        1 => page,
        pages => (pages - 1) * page,
    };
    // A mock can export only contiguous pages; the driver exports any.
    let handle = thunk
        .alloc(fd, bytes, true)
        .or_else(|_| thunk.alloc(fd, bytes, false))?;
    match thunk.map(fd, handle) {
        Ok(base) => Ok((handle, base, bytes)),
        Err(errno) => {
            // Report the first failure.
            let _ = thunk.free(fd, handle);
            Err(errno)
        }
    }
}

/// Drops a reference to a pool, and frees the pool with the last one.
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
    // If the device was closed, the driver has freed the memory, and the descriptor may be reused.
    if !Open::of(thunk, pool.fd).is_ok_and(|open| open == pool.open) {
        return Ok(());
    }
    let failed = |errno| Failure::Other(format!("cannot free global_hbm: {errno}"));
    thunk.unmap(pool.fd, pool.base).map_err(failed)?;
    thunk.free(pool.fd, pool.handle).map_err(failed)
}

/// Returns the number of an open device's pool.
pub(crate) fn find(fd: c_int) -> Result<usize, Failure> {
    let open = Open::of(thunk()?, fd)?;
    let table = table();
    let found = table.pools.iter().find(|pool| pool.open == open);
    found.map(|pool| pool.id).ok_or(Failure::NotFound)
}

/// Returns the pool with a number.
pub(crate) fn get(id: usize) -> Result<Pool, Failure> {
    let table = table();
    let found = table.pools.iter().find(|pool| pool.id == id);
    found.copied().ok_or(Failure::Invalid)
}
